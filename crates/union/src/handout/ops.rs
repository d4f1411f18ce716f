//! The calls of clients one by one.

use super::{Directory, policy};
use crate::coherence::name_changes::NameChanger;
use crate::nodes::node::{Body, Dir, InodeLocation, Node};
use crate::ops::create::{NewNode, NewObject};
use crate::union::{Core, Union};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vellum_vfs::{
    Client, Context, DirName, ExportFile, Handout, HandoutError, HandoutFlags, Name, NodeId, SetAttr, Verdict,
};

fn context<'a>(client: &Client<'a>) -> Context<'a> {
    Context { uid: client.uid, gid: client.gid, progress: client.progress, ..Context::default() }
}

impl Core {
    /// Makes something that is no file.
    fn make_shared(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        what: NewObject<'_>,
        mode: u32,
    ) -> Verdict<NewNode> {
        let (node, dir) = self.shared_dir_of(at)?;
        let names = self.lock_names(node, NameChanger::Client)?;
        check_not_removed(dir)?;
        policy::check_create(client, self.inherit_of(node)?, mode)?;
        self.notes_shared(node, dir);
        self.coherence.check_new_name(node, dir, at.name)?;
        let made = self.make_locked(&context(client), &names, at.name, what, mode);
        made.map_err(|error| policy::refusal_for(error.errno()))
    }
}

/// [`HandoutError::Stale`]: a directory has been removed. The caller holds its `ops`.
pub(super) fn check_not_removed(dir: &Dir) -> Verdict<()> {
    if dir.removed.load(Relaxed) { Err(HandoutError::Stale) } else { Ok(()) }
}

impl Handout for Union {
    type Dir = Directory;

    fn enter(&self, node: NodeId) -> Verdict<Directory> {
        self.0.hand_out_dir(node)
    }

    fn ino(&self, dir: &Directory) -> u64 {
        dir.node.ino
    }

    fn node(&self, dir: &Directory) -> NodeId {
        dir.node.id
    }

    fn below(&self, client: &Client<'_>, dir: &Directory, name: Name<'_>) -> Verdict<NodeId> {
        let core = &self.0;
        let shared = core.shared_dir(&dir.node)?;
        policy::check_use(client, core.inherit_of(&dir.node)?, policy::SEARCH)?;
        let node = shared.entries.node(name);
        match node {
            Some(node) if node.as_dir().is_some() && core.nodes.is_unknown_to_kernel(&node) => Ok(node.id),
            _ => Err(HandoutError::Known),
        }
    }

    fn open(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        flags: HandoutFlags,
    ) -> Verdict<ExportFile> {
        self.0.hand_out(client, at, flags)
    }

    fn create(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        flags: HandoutFlags,
        mode: u32,
    ) -> Verdict<ExportFile> {
        self.0.hand_out_new(client, at, flags, mode)
    }

    fn reopen(&self, client: &Client<'_>, node: NodeId, flags: HandoutFlags) -> Verdict<ExportFile> {
        self.0.hand_out_again(client, node, flags)
    }

    fn setattr(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        set: &SetAttr,
        follows: bool,
    ) -> Verdict<()> {
        let core = &self.0;
        let (parent, _) = core.shared_dir_of(at)?;
        // Dropped after the lock.
        let node: Arc<Node>;
        // Exclusively: the front is told attributes with it held, and must not be told the old ones from here on.
        let names = core.lock_names(parent, NameChanger::Client)?;
        policy::check_use(client, core.inherit_of(parent)?, policy::SEARCH)?;
        node = names.child(at.name)?.ok_or(HandoutError::Kernel)?;
        if !core.nodes.is_unknown_to_kernel(&node) {
            return Err(HandoutError::Known);
        }
        let is_upper = match &node.body {
            Body::Dir(dir) => dir.upper.lock().is_some(),
            Body::File(file) => matches!(file.state.read().at, InodeLocation::Upper),
        };
        if !is_upper {
            return Err(HandoutError::Kernel);
        }
        policy::changes(client, &core.attr_of(&node)?, set, follows)?;
        core.change_node(&context(client), &node, set)?;
        Ok(())
    }

    fn mkdir(
        &self,
        client: &Client<'_>,
        at: &DirName<'_, Directory>,
        mode: u32,
    ) -> Verdict<Option<Directory>> {
        let made = self.0.make_shared(client, at, NewObject::Dir, mode)?;
        // From here on it is made, whatever becomes of it.
        let ino = made.node.as_dir().and_then(|dir| dir.upper.lock().as_ref().map(|upper| upper.ino));
        let held = ino.and_then(|ino| at.dir.at.open_dir(at.name, ino).ok());
        Ok(held.map(|held| Directory::new(made.node, held)))
    }

    fn symlink(&self, client: &Client<'_>, at: &DirName<'_, Directory>, target: &CStr) -> Verdict<()> {
        self.0.make_shared(client, at, NewObject::Symlink(target), 0o777).map(drop)
    }
}

impl Union {
    /// Whether files of this tree may be handed out.
    #[must_use]
    pub fn can_hand_out(&self) -> bool {
        self.0.coherence.can_hand_out()
    }
}
