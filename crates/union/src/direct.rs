//! What a program does past the front: it is given the upper layer's file itself, and the front must not believe otherwise afterwards.
//!
//! The caller makes the system calls, in a directory of the upper layer that he has open; here is decided whether they mean the same as
//! by way of the union, what must not happen at the same time, and what the front is told. Whatever is not certain is refused, and
//! goes through the front as ever.
//!
//! What the front may still believe is noted with each directory ([`crate::coherence::leases::DirLease`]). An answer that is on its way to the front can
//! be older than a change that is made meanwhile. For attributes the kernel notices that itself. For lists of names it does not: so a directory is
//! the front's alone until the answers that were under way have arrived. A name of which it was told that it is not there is the front's
//! to make.

use crate::coherence::no_writers::Known;
use crate::coherence::writers::Direct;
use crate::layers::marks::{Space, WHITEOUT_PREFIX};
use crate::nodes::node::{At, Dir, File, Node, Owner};
use crate::ops::create::{Made, Make};
use crate::union::{Core, Union};
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use vellum_vfs::{
    Attr, Connection, Context, Errno, Error, Features, FileKind, Name, NodeId, OpenMode, Result,
};

/// Why something is not done here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The error is the program's.
    Error(Errno),
    /// The front has to be asked.
    Front,
    /// The front knows this name: something may be mounted over it.
    Known,
    /// This directory is not there any more.
    Stale,
}

impl From<Error> for Refused {
    fn from(_: Error) -> Self {
        Self::Front
    }
}

/// Something to be told to the front once no lock is held.
#[derive(Default)]
struct Notices {
    attributes: bool,
    names: bool,
    file: Option<NodeId>,
}

/// A directory of the union's, whether the front knows it or not. It stays the same one when it is moved.
#[derive(Clone)]
pub struct Directory(pub(crate) Arc<Node>);

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Directory").field(&self.0.id).finish()
    }
}

impl Directory {
    /// Its inode number, as the union shows it.
    #[must_use]
    pub fn ino(&self) -> u64 {
        self.0.ino
    }

    /// Whether both are the same one.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A name that a program is about to open.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The directory.
    pub dir: &'a Directory,
    /// The name in it.
    pub name: Name<'a>,
    /// The program has looked whether something is mounted over it.
    pub checked: bool,
    /// It is going to be written to, or cut.
    pub writes: bool,
}

impl Core {
    /// Namespaces of the marks that count in a layer.
    pub(crate) fn mark_spaces(&self, layer: u16) -> &'static [Space] {
        self.layers.get(usize::from(layer)).map_or(&[], |layer| layer.marking.spaces)
    }

    fn direct(&self) -> Result<&Direct, Refused> {
        self.direct.as_ref().ok_or(Refused::Front)
    }

    /// The front, if it has no pages of its own of the files that it hands to the kernel.
    fn front(&self) -> Result<&Connection, Refused> {
        self.kernel.get().filter(|front| front.features.contains(Features::PASSTHROUGH)).ok_or(Refused::Front)
    }

    /// Whether programs may ever have been writing to a file.
    pub(crate) fn was_written(&self, node: &Node) -> bool {
        let is_file = node.as_file().is_some_and(|file| file.kind == FileKind::Regular);
        is_file && self.direct.as_ref().is_some_and(|direct| direct.written.have(node.ino))
    }

    /// Whether programs may be writing to a file just now. Who begins later takes back what the front was told of it. To be asked before
    /// attributes are read: what was written by one that has ended is in them then.
    pub(crate) fn has_writers(&self, node: &Node) -> bool {
        let (Some(file), Some(direct)) = (node.as_file(), &self.direct) else { return false };
        if !self.was_written(node) {
            return false;
        }
        let Known::Nothing(then) = direct.no_writers.look(node.ino) else { return false };
        let writes = self.is_open_to_write(file);
        if !writes {
            direct.no_writers.keep(node.ino, then);
        }
        writes
    }

    /// Whether somebody but the union has a file open to write, or mapped.
    pub(crate) fn is_open_to_write(&self, file: &File) -> bool {
        let asked = || -> Result<bool> {
            let state = file.state.read();
            // Only what is whole and in the upper layer is ever handed out.
            if matches!(state.at, At::Lower(_)) || state.below.is_some() {
                return Ok(false);
            }
            Ok(self.target_of(&state)?.1.open(OpenMode::READ)?.has_writers())
        };
        if !asked().unwrap_or(true) {
            return false;
        }
        // The union itself may have it open from before. Of what a predecessor had open not all can be opened again.
        if self.recovery.is_active() {
            return true;
        }
        let was_open = file.io.drop_handle().is_some();
        !was_open || asked().unwrap_or(true)
    }

    /// Whether programs may be making a file shorter just now. To be asked before its size is.
    pub(crate) fn has_cutters(&self, node: &Node) -> bool {
        self.direct.as_ref().is_some_and(|direct| direct.cut.have(node.ino)) && self.has_writers(node)
    }

    /// To be called before the front is told attributes of a directory; true: those that were read before must be read again.
    pub(crate) fn tells_attributes(&self, node: &Node) -> bool {
        match node.as_dir() {
            Some(dir) if self.direct.is_some() && !dir.lease.attributes.load(SeqCst) => {
                dir.lease.attributes.store(true, SeqCst);
                true
            }
            _ => false,
        }
    }

    /// To be called before the front is told that a name is not there, with no lock held: whether it may believe it.
    pub(crate) fn tells_negative(&self, parent: NodeId, name: Name<'_>) -> bool {
        let Some(direct) = &self.direct else { return true };
        let Ok(node) = self.node(parent) else { return false };
        let Some(dir) = node.as_dir() else { return false };
        // Programs make names with it held exclusively: whoever does so later finds this name noted.
        let _ops = dir.ops.read();
        let seen = &dir.lease;
        let shared = seen.shared.load(SeqCst);
        if direct.is_shared(shared) {
            return false;
        }
        // It is the front's alone again, but a program may have made the name since it was looked for.
        if shared != 0 && !matches!(self.child(&node, name), Ok(None)) {
            return false;
        }
        seen.negative.add(name);
        if let Some(ledger) = &self.table.ledger {
            ledger.set_negative(parent, true);
        }
        true
    }

    /// The front has made a name, for which it looked before: it does not believe any more that it is not there. The caller holds the
    /// directory's `ops` exclusively.
    pub(crate) fn kernel_made(&self, parent: &Node, dir: &Dir, name: Name<'_>) {
        if self.direct.is_some()
            && dir.lease.negative.remove(name)
            && let Some(ledger) = &self.table.ledger
        {
            ledger.set_negative(parent.id, false);
        }
    }

    /// To be called before the front is told names of a directory, with its `ops` held.
    pub(crate) fn tells_names(&self, dir: &Dir) {
        if self.direct.is_some() {
            dir.lease.tells_names();
        }
    }

    /// A directory of the upper layer, where programs may do something themselves.
    pub(crate) fn shared_dir<'a>(&self, directory: &'a Directory) -> Result<&'a Dir, Refused> {
        self.direct()?;
        let dir = directory.0.as_dir().ok_or(Refused::Stale)?;
        if dir.removed.load(Relaxed) {
            return Err(Refused::Stale);
        }
        if dir.upper.lock().is_none() || self.upper_aufs {
            return Err(Refused::Front);
        }
        Ok(dir)
    }

    /// The directory of a name that means the same in the upper layer.
    pub(crate) fn shared_dir_of<'a>(&self, wanted: &Wanted<'a>) -> Result<(&'a Arc<Node>, &'a Dir), Refused> {
        let dir = self.shared_dir(wanted.dir)?;
        let name = wanted.name.bytes();
        let is_map = self.has_maps && self.is_maps(dir, name);
        if is_map || name.starts_with(WHITEOUT_PREFIX) {
            return Err(Refused::Front);
        }
        Ok((&wanted.dir.0, dir))
    }

    /// Whether a program may make names in a directory, where owner and mode say what may be done. The caller holds its `ops`
    /// exclusively.
    fn lets_make(&self, node: &Node, dir: &Dir, name: Name<'_>) -> Result<(), Refused> {
        let (direct, front) = (self.direct()?, self.front()?);
        if dir.removed.load(Relaxed) {
            return Err(Refused::Stale);
        }
        if !dir.lease.is_settled(&*front.notifier, direct.now()) {
            return Err(Refused::Front);
        }
        // The kernel makes it, and need not be told: to take back that it is not there would mean to wait for whatever goes on in the
        // directory, and a service that waits so cannot even be killed.
        if dir.lease.negative.has(name) {
            return Err(Refused::Front);
        }
        // The umask does not act beside a default ACL; an ACL of the directory says more than its mode.
        let inherit = self.inherit_of(node)?;
        if inherit.default_acl || inherit.acl { Err(Refused::Front) } else { Ok(()) }
    }

    /// What is to be told after a change of a directory's names. The caller holds its `ops` exclusively.
    fn changed(&self, dir: &Dir) -> Notices {
        Notices {
            attributes: dir.lease.attributes.swap(false, SeqCst),
            names: dir.lease.take_back_names(),
            file: None,
        }
    }

    /// Makes something that is no file in a directory where programs make names.
    fn make_shared(
        &self,
        wanted: &Wanted<'_>,
        cx: &Context<'_>,
        what: Make<'_>,
        mode: u32,
    ) -> Result<Made, Refused> {
        let (node, dir) = self.shared_dir_of(wanted)?;
        let (made, notices) = {
            let _ops = dir.ops.write();
            self.lets_make(node, dir, wanted.name)?;
            let _changing = self.changes(node, dir);
            let made = self.make_alone(cx, node, wanted.name, what, mode);
            (made.map_err(|error| Refused::Error(error.errno()))?, self.changed(dir))
        };
        self.tell(node, &notices);
        Ok(made)
    }

    /// Tells the front what does not hold any more of a directory, and of a file in it. False: it does not have the file yet, of which
    /// it was told: that answer is on its way, and what was taken back is in it.
    fn tell(&self, node: &Node, notices: &Notices) -> bool {
        let Some(front) = self.kernel.get() else { return true };
        let has_heard = |told: Result<()>| match told {
            Ok(()) => true,
            Err(error) if error.errno() == Errno::NOENT => false,
            Err(error) => {
                tracing::warn!(%error, "the kernel was not told of a change");
                true
            }
        };
        if notices.names {
            has_heard(front.notifier.expire_data(node.id));
        } else if notices.attributes {
            has_heard(front.notifier.inval_inode(node.id, -1, 0));
        }
        notices.file.is_none_or(|file| has_heard(front.notifier.inval_inode(file, -1, 0)))
    }

    /// A file that a program may be given itself: a regular one, wholly in the upper layer, under its own number.
    fn is_whole(&self, node: &Node, file: &File) -> bool {
        let state = file.state.read();
        file.kind == FileKind::Regular
            && matches!(state.at, At::Upper)
            && state.below.is_none()
            && !state.partial
            && !state.lost_data
            && !state.null_device
            && !node.alias
            && !node.stale.load(SeqCst)
            && file.cached_opens.load(SeqCst) == 0
    }
}

impl Union {
    /// Whether files of this tree may be handed out.
    #[must_use]
    pub fn hands_out(&self) -> bool {
        self.0.direct.is_some()
    }

    /// Whether nothing has to be on disk before the mount ends.
    #[must_use]
    pub fn is_volatile(&self) -> bool {
        self.0.config.volatile
    }

    /// A directory that the front knows, if it is one where programs may do something themselves.
    pub fn directory(&self, id: NodeId) -> Result<Directory, Refused> {
        let directory = Directory(self.0.node(id).map_err(|_| Refused::Stale)?);
        self.0.shared_dir(&directory)?;
        Ok(directory)
    }

    /// Who may do what in a directory. Where it has an ACL, which says more, nothing is done here.
    pub fn owner(&self, directory: &Directory) -> Result<Owner, Refused> {
        self.0.shared_dir(directory)?;
        let inherit = self.0.inherit_of(&directory.0)?;
        if inherit.acl { Err(Refused::Front) } else { Ok(inherit.owner) }
    }

    /// Where a directory is in the upper layer: its path there, and its inode number.
    pub fn upper_path(&self, directory: &Directory) -> Result<(Vec<u8>, u64), Refused> {
        let dir = self.0.shared_dir(directory)?;
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = Arc::clone(&directory.0);
        loop {
            let place = at.as_dir().and_then(|dir| dir.place.read().clone());
            let Some(place) = place else { break };
            names.push(place.name.to_bytes().to_vec());
            at = place.parent;
        }
        if at.id != NodeId::ROOT {
            return Err(Refused::Stale);
        }
        names.reverse();
        let ino = dir.upper.lock().as_ref().map(|upper| upper.ino);
        Ok((names.join(&b'/'), ino.ok_or(Refused::Front)?))
    }

    /// A new regular file. `make` creates it in the upper layer, exclusively, and says its inode number there. EEXIST, from here or
    /// from `make`: the name is taken, in whatever way.
    pub fn make_direct<T>(
        &self,
        wanted: &Wanted<'_>,
        make: impl FnOnce() -> Result<(T, u64), Errno>,
    ) -> Result<T, Refused> {
        let core = &self.0;
        let direct = core.direct()?;
        let (node, dir) = core.shared_dir_of(wanted)?;
        let (made, notices) = {
            let _ops = dir.ops.write();
            core.lets_make(node, dir, wanted.name)?;
            let _changing = core.changes(node, dir);
            if !dir.lowers.is_empty() && core.child(node, wanted.name)?.is_some() {
                return Err(Refused::Error(Errno::EXIST));
            }
            let (made, ino) = make().map_err(Refused::Error)?;
            core.inodes.remove((0, ino));
            core.table.handle_ids.drop_key((0, ino));
            direct.opens(ino);
            direct.hands_out(ino);
            let mut children = dir.children.lock();
            children.live.remove(wanted.name.as_c_str());
            if let Some(listing) = &mut children.listing {
                let shown = core.shown_ino(0, ino);
                listing.insert(wanted.name.as_c_str(), shown, Some(FileKind::Regular));
            }
            drop(children);
            (made, core.changed(dir))
        };
        core.tell(node, &notices);
        Ok(made)
    }

    /// A new directory of `cx`, who may make one, with permissions from which the umask has been taken away, and its inode number in the
    /// upper layer. EEXIST: the name is taken, in whatever way.
    pub fn make_dir_direct(
        &self,
        wanted: &Wanted<'_>,
        cx: &Context<'_>,
        mode: u32,
    ) -> Result<(Directory, u64), Refused> {
        let made = self.0.make_shared(wanted, cx, Make::Dir, mode)?;
        // From here on it is made, whatever becomes of it.
        let upper = made.node.as_dir().and_then(|dir| dir.upper.lock().as_ref().map(|upper| upper.ino));
        Ok((Directory(made.node), upper.unwrap_or_default()))
    }

    /// A new symbolic link of `cx`, who may make one. EEXIST: as above.
    pub fn make_link_direct(
        &self,
        wanted: &Wanted<'_>,
        cx: &Context<'_>,
        target: &CStr,
    ) -> Result<(), Refused> {
        self.0.make_shared(wanted, cx, Make::Symlink(target), 0o777).map(drop)
    }

    /// A file that is there. `open` opens it in the upper layer, without changing it, and says its inode number there; it is told whether
    /// the front knows the file. `then` is called with what it opened once that has turned out to be the file.
    pub fn open_direct<T>(
        &self,
        wanted: &Wanted<'_>,
        open: impl FnOnce(bool) -> Result<(T, u64), Refused>,
        then: impl FnOnce(T) -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        let core = &self.0;
        let (direct, _) = (core.direct()?, core.front()?);
        let (parent, dir) = core.shared_dir_of(wanted)?;
        let mut notices = Notices::default();
        // Dropped after the lock.
        let node;
        let opened = {
            // Exclusively: a lookup at the same time would answer with attributes that are not to be believed any more.
            let _ops = dir.ops.write();
            if core.inherit_of(parent)?.acl {
                return Err(Refused::Front);
            }
            node = core.child(parent, wanted.name)?.ok_or(Refused::Error(Errno::NOENT))?;
            let file = node.as_file().ok_or(Refused::Front)?;
            if !core.is_whole(&node, file) {
                return Err(Refused::Front);
            }
            let known = !core.is_unknown_to_kernel(&node);
            if known && !wanted.checked {
                return Err(Refused::Known);
            }
            if wanted.writes {
                direct.opens(node.ino);
            }
            let (opened, ino) = open(known)?;
            if ino != node.ino {
                return Err(Refused::Front);
            }
            let _shorter = if wanted.writes { core.truncates(&node, file) } else { None };
            // An open by way of the front's cache may have begun meanwhile.
            if !core.is_whole(&node, file) {
                return Err(Refused::Front);
            }
            if wanted.writes {
                direct.hands_out(node.ino);
                notices.file = known.then_some(node.id);
            }
            then(opened)?
        };
        if core.tell(parent, &notices) { Ok(opened) } else { Err(Refused::Front) }
    }

    /// The file of a node, for a program that has it open by way of the front and makes it shorter only there. `open` opens its path in
    /// the upper layer, to write, and says its inode number there.
    pub fn reopen_direct<T>(
        &self,
        id: NodeId,
        open: impl FnOnce(&[u8]) -> Result<(T, u64), Refused>,
    ) -> Result<T, Refused> {
        let core = &self.0;
        let (direct, _) = (core.direct()?, core.front()?);
        // There a sync by way of the front does nothing.
        if core.config.volatile {
            return Err(Refused::Front);
        }
        let node = core.node(id).map_err(|_| Refused::Stale)?;
        let file = node.as_file().ok_or(Refused::Front)?;
        let place = file.state.read().names.first().cloned().ok_or(Refused::Front)?;
        let dir = place.parent.as_dir().ok_or(Refused::Stale)?;
        let name = Name::new(&place.name).map_err(|_| Refused::Front)?;
        if !core.is_whole(&node, file) {
            return Err(Refused::Front);
        }
        let raw = core.target_of(&file.state.read())?.1.stat()?.ino;
        if core.shown_ino(0, raw) != node.ino {
            // It is going to be synced past the union. Before any lock is taken: that waits for the disk.
            core.settle_names(&node, file, &*core.readable(file)?.file, false)?;
        }
        let opened = {
            // As in `open_direct`.
            let _ops = dir.ops.write();
            let is_there = file.state.read().names.contains(&place.parent, name);
            if !is_there || !core.is_whole(&node, file) {
                return Err(Refused::Front);
            }
            let (mut path, _) = self.upper_path(&Directory(Arc::clone(&place.parent)))?;
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(place.name.to_bytes());
            // Once copied up it is shown under a number that it does not have itself.
            let itself = core.target_of(&file.state.read())?.1.stat()?.ino;
            direct.written.add(node.ino);
            let (opened, ino) = open(&path)?;
            if ino != itself || !core.is_whole(&node, file) {
                return Err(Refused::Front);
            }
            direct.hands_out(node.ino);
            opened
        };
        // An answer about attributes that is under way the kernel recognises as older than this.
        let notices = Notices { file: Some(id), ..Notices::default() };
        if core.tell(&place.parent, &notices) { Ok(opened) } else { Err(Refused::Front) }
    }

    /// Attributes of a name that the front does not know.
    pub fn stat_direct(&self, wanted: &Wanted<'_>) -> Result<Attr, Refused> {
        let core = &self.0;
        let (parent, dir) = core.shared_dir_of(wanted)?;
        let node;
        let attr = {
            let _ops = dir.ops.read();
            if core.inherit_of(parent)?.acl {
                return Err(Refused::Front);
            }
            let found = core.child_with_attr(parent, wanted.name)?;
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
            attr
        };
        drop(node);
        Ok(attr)
    }

    /// Removes a file's only name, if the front does not know it and nothing is below. `remove` looks at it in the upper layer and
    /// removes it; it is called at most once, and says the inode number.
    pub fn unlink_direct(
        &self,
        wanted: &Wanted<'_>,
        remove: impl FnOnce() -> Result<u64, Refused>,
    ) -> Result<(), Refused> {
        let core = &self.0;
        let (direct, front) = (core.direct()?, core.front()?);
        let (node, dir) = core.shared_dir_of(wanted)?;
        // Nodes of a predecessor are not all here, and files with a map of blocks leave that behind.
        if core.recovery.is_active() || core.has_maps {
            return Err(Refused::Front);
        }
        let notices = {
            let _ops = dir.ops.write();
            if dir.removed.load(Relaxed) {
                return Err(Refused::Stale);
            }
            if core.inherit_of(node)?.acl || !dir.lease.is_settled(&*front.notifier, direct.now()) {
                return Err(Refused::Front);
            }
            if dir.upper.lock().as_ref().is_none_or(|upper| upper.xwhiteouts) {
                return Err(Refused::Front);
            }
            let live = dir.children.lock().node(wanted.name);
            if live.is_some() {
                return Err(Refused::Known);
            }
            if core.shows_from_below(dir, wanted.name)? {
                return Err(Refused::Front);
            }
            let ino = remove()?;
            core.inodes.remove((0, ino));
            core.table.handle_ids.drop_key((0, ino));
            dir.children.lock().clear(wanted.name);
            core.changed(dir)
        };
        core.tell(node, &notices);
        Ok(())
    }
}
