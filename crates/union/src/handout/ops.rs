//! The calls of clients one by one.

use super::{Directory, policy};
use crate::coherence::names::{Brings, By};
use crate::nodes::node::{At, Body, Dir, Inherit, Node};
use crate::ops::create::{Made, Make};
use crate::ops::rename::comes;
use crate::union::{Core, Union};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use vellum_vfs::{
    Attr, Client, Context, Errno, Given, Handout, HandoutFlags, Name, NodeId, Refused, SetAttr, Verdict,
    View, Wanted,
};

fn context(client: &Client<'_>) -> Context<'static> {
    Context { uid: client.uid, gid: client.gid, pid: 0, umask: 0, groups: &[], who: None }
}

impl Core {
    /// [`Refused::Stale`]: a directory has been removed. The caller holds its `ops`.
    pub(super) fn still_there(&self, dir: &Dir) -> Verdict<()> {
        if dir.removed.load(Relaxed) { Err(Refused::Stale) } else { Ok(()) }
    }

    /// Whether a client may have a file go from its place: one that is wholly in the upper layer, with one name, and
    /// unknown to the kernel.
    fn lets_move(&self, client: &Client<'_>, inherit: Inherit, node: &Node) -> Verdict<()> {
        let file = node.as_file().ok_or(Refused::Kernel)?;
        if !self.is_unknown_to_kernel(node) {
            return Err(Refused::Known);
        }
        if !self.is_whole(node, file) || file.state.read().names.len() > 1 {
            return Err(Refused::Kernel);
        }
        policy::removes(client, inherit, &self.attr_of(node)?)
    }

    /// Makes something that is no file.
    fn make_shared(
        &self,
        client: &Client<'_>,
        at: &Wanted<'_, Directory>,
        what: Make<'_>,
        mode: u32,
    ) -> Verdict<Made> {
        let (node, dir) = self.shared_dir_of(at)?;
        let names = self.lock_names(node, By::Client)?;
        self.still_there(dir)?;
        policy::makes(client, self.inherit_of(node)?, mode)?;
        self.lets_make(dir, at.name)?;
        let cx = context(client);
        let made = Self::once(client, || self.make_alone(&cx, &names, at.name, what, mode));
        made.map_err(|error| policy::told(error.errno()))
    }
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
        policy::uses(client, core.inherit_of(&dir.node)?, policy::SEARCH)?;
        let node = shared.entries.node(name);
        match node {
            Some(node) if node.as_dir().is_some() && core.is_unknown_to_kernel(&node) => Ok(node.id),
            _ => Err(Refused::Known),
        }
    }

    fn open(&self, client: &Client<'_>, at: &Wanted<'_, Directory>, flags: HandoutFlags) -> Verdict<Given> {
        self.0.hand_out(client, at, flags)
    }

    fn create(
        &self,
        client: &Client<'_>,
        at: &Wanted<'_, Directory>,
        flags: HandoutFlags,
        mode: u32,
    ) -> Verdict<Given> {
        self.0.hand_out_new(client, at, flags, mode)
    }

    fn reopen(&self, client: &Client<'_>, node: NodeId, flags: HandoutFlags) -> Verdict<Given> {
        self.0.hand_out_again(client, node, flags)
    }

    fn stat(&self, client: &Client<'_>, at: &Wanted<'_, Directory>) -> Verdict<Attr> {
        let core = &self.0;
        let (parent, dir) = core.shared_dir_of(at)?;
        // Dropped after the lock.
        let node;
        let _names = dir.entries.share();
        policy::uses(client, core.inherit_of(parent)?, policy::SEARCH)?;
        let found = core.child_with_attr(parent, at.name)?;
        let (found, attr) = found.ok_or(Refused::Error(Errno::NOENT))?;
        node = found;
        if !core.is_unknown_to_kernel(&node) {
            return Err(Refused::Known);
        }
        let mut attr = match attr {
            Some(attr) => attr,
            None => core.attr_of(&node)?,
        };
        attr.ino = node.ino;
        Ok(attr)
    }

    fn setattr(
        &self,
        client: &Client<'_>,
        at: &Wanted<'_, Directory>,
        set: &SetAttr,
        follows: bool,
    ) -> Verdict<()> {
        let core = &self.0;
        let (parent, _) = core.shared_dir_of(at)?;
        // Dropped after the lock.
        let node: Arc<Node>;
        // Exclusively: the front is told attributes with it held, and must not be told the old ones from here on.
        let names = core.lock_names(parent, By::Client)?;
        policy::uses(client, core.inherit_of(parent)?, policy::SEARCH)?;
        node = names.child(at.name)?.ok_or(Refused::Kernel)?;
        if !core.is_unknown_to_kernel(&node) {
            return Err(Refused::Known);
        }
        let is_upper = match &node.body {
            Body::Dir(dir) => dir.upper.lock().is_some(),
            Body::File(file) => matches!(file.state.read().at, At::Upper),
        };
        if !is_upper {
            return Err(Refused::Kernel);
        }
        policy::changes(client, &core.attr_of(&node)?, set, follows)?;
        let _change = names.brings(Brings::Pure);
        core.change_node(&context(client), &node, set)?;
        Ok(())
    }

    fn unlink(&self, client: &Client<'_>, at: &Wanted<'_, Directory>) -> Verdict<()> {
        let core = &self.0;
        let (node, dir) = core.shared_dir_of(at)?;
        // Nodes of a predecessor are not all here, and files with a map of blocks leave that behind.
        if core.recovery.is_active() || core.has_maps {
            return Err(Refused::Kernel);
        }
        let names = core.lock_names(node, By::Client)?;
        core.still_there(dir)?;
        let inherit = core.inherit_of(node)?;
        policy::uses(client, inherit, policy::WRITE | policy::SEARCH)?;
        core.is_settled(dir)?;
        if dir.upper.lock().as_ref().is_none_or(|upper| upper.xwhiteouts) {
            return Err(Refused::Kernel);
        }
        if dir.entries.node(at.name).is_some() {
            return Err(Refused::Known);
        }
        if core.shows_from_below(dir, at.name)? {
            return Err(Refused::Kernel);
        }
        let upper = &at.dir.at;
        let attr = upper.stat(at.name).map_err(|error| match error.errno() {
            Errno::NOENT => Refused::Error(Errno::NOENT),
            _ => Refused::Kernel,
        })?;
        policy::removes(client, inherit, &attr)?;
        let change = names.takes();
        Core::once(client, || upper.remove(at.name))?;
        change.unlinks_unknown(at.name, attr.ino);
        Ok(())
    }

    fn rename(&self, client: &Client<'_>, at: &Wanted<'_, Directory>, to: Name<'_>) -> Verdict<()> {
        let core = &self.0;
        let (node, dir) = core.shared_dir_of(at)?;
        core.shared_dir_of(&Wanted { dir: at.dir, name: to, checked: false })?;
        if core.recovery.is_active() || core.has_maps {
            return Err(Refused::Kernel);
        }
        let work = core.work()?;
        // Dropped after the lock.
        let (source, target);
        let names = core.lock_names(node, By::Client)?;
        core.still_there(dir)?;
        let inherit = core.inherit_of(node)?;
        policy::uses(client, inherit, policy::WRITE | policy::SEARCH)?;
        source = names.child(at.name)?.ok_or(Refused::Error(Errno::NOENT))?;
        target = names.child(to)?;
        if at.name == to || core.shows_from_below(dir, at.name)? || core.shows_from_below(dir, to)? {
            return Err(Refused::Kernel);
        }
        for moved in [Some(&source), target.as_ref()].into_iter().flatten() {
            core.lets_move(client, inherit, moved)?;
        }
        core.lets_make(dir, to)?;
        let change = comes(&names, Some(&source));
        let (from, into) = ((node, at.name), (node, to));
        Core::once(client, || {
            core.replace(work, (from, &change), &source, (into, &change), target.as_ref())
        })?;
        Ok(())
    }

    fn mkdir(
        &self,
        client: &Client<'_>,
        at: &Wanted<'_, Directory>,
        mode: u32,
    ) -> Verdict<Option<Directory>> {
        let made = self.0.make_shared(client, at, Make::Dir, mode)?;
        // From here on it is made, whatever becomes of it.
        let ino = made.node.as_dir().and_then(|dir| dir.upper.lock().as_ref().map(|upper| upper.ino));
        let held = ino.and_then(|ino| at.dir.at.open_dir(at.name, ino).ok());
        Ok(held.map(|held| Directory::new(made.node, held)))
    }

    fn symlink(&self, client: &Client<'_>, at: &Wanted<'_, Directory>, target: &CStr) -> Verdict<()> {
        self.0.make_shared(client, at, Make::Symlink(target), 0o777).map(drop)
    }

    fn view(&self, dir: &Directory, most: usize, again: bool) -> Verdict<View> {
        let core = &self.0;
        let mut view = core.view_of(&dir.node, core.shared_dir(&dir.node)?, most)?;
        if !again {
            let (path, ino) = core.upper_place(&dir.node)?;
            let mount = core.handouts()?.export.view(&path, ino).inspect_err(|error| {
                // A kernel before 6.15, or another mount namespace.
                if error.errno() != Errno::STALE {
                    tracing::debug!(%error, "no view of a directory");
                }
            });
            view.mount = Some(mount?);
        }
        Ok(view)
    }
}

impl Union {
    /// Whether files of this tree may be handed out.
    #[must_use]
    pub fn hands_out(&self) -> bool {
        self.0.handouts.is_some()
    }

    /// Whether nothing has to be on disk before the mount ends.
    #[must_use]
    pub fn is_volatile(&self) -> bool {
        self.0.config.volatile
    }
}
