//! New names: files, directories, devices, links.

use crate::coherence::name_changes::{Change, LockedNames, NameChanger};
use crate::copyup::partial_file::own_mark;
use crate::layers::Layers;
use crate::layers::attrs::{S_ISGID, S_ISUID, S_IXGRP};
use crate::layers::layer::{c_string, join};
use crate::layers::layer_object::Target;
use crate::layers::marks::{self, DirMarks, OwnMark, WHITEOUT_PREFIX};
use crate::layers::merge::LayerLookup;
use crate::layers::overrides::Override;
use crate::layers::work_dir::{Whiteouts, Work};
use crate::nodes::names::Names;
use crate::nodes::node::{
    Body, Dentry, Dir, File, FileState, Inherit, InodeLocation, Io, Node, Owner, UpperDir,
};
use crate::nodes::recovery::ledger::Flags;
use crate::union::Core;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{
    Attr, BranchDir, BranchFile, Context, Entry, Errno, Error, FileKind, Name, Object, RenameFlags, Result,
};

const DEFAULT_ACL: &CStr = c"system.posix_acl_default";
const ACCESS_ACL: &CStr = c"system.posix_acl_access";

/// What is to be made.
#[derive(Clone, Copy)]
pub(crate) enum NewObject<'a> {
    /// A regular file.
    File,
    Dir,
    /// A device, fifo or socket: kind and device number.
    Node(FileKind, u64),
    /// A symbolic link.
    Symlink(&'a CStr),
}

impl NewObject<'_> {
    /// Takes away again what has been made under a name, as far as that can be done.
    fn undo(self, dir: &dyn BranchDir, name: Name<'_>) {
        let _ = if matches!(self, Self::Dir) { dir.remove_dir(name) } else { dir.remove(name) };
    }
}

/// Something new: its node, its attributes, and the open file if it is a regular one.
pub(crate) struct NewNode {
    pub(crate) node: Arc<Node>,
    pub(crate) attr: Attr,
}

impl Core {
    /// What new entries of a directory inherit.
    pub(crate) fn inherit_of(&self, node: &Node) -> Result<Inherit> {
        let dir = node.as_dir().ok_or(Errno::NOTDIR)?;
        // Held until it is stored: what changes in the meantime is taken back after that.
        let mut inherit = dir.inherit.lock();
        if let Some(known) = *inherit {
            return Ok(known);
        }
        let attr = self.attr_of(node)?;
        let (_, handle) = self.layers.top_of(dir)?;
        let default_acl = handle.get_xattr(DEFAULT_ACL, &mut []).is_ok_and(|len| len > 0);
        let acl =
            self.coherence.can_hand_out() && handle.get_xattr(ACCESS_ACL, &mut []).is_ok_and(|len| len > 0);
        let owner = Owner { uid: attr.uid, gid: attr.gid, mode: attr.mode };
        let now = Inherit { owner, default_acl, acl };
        *inherit = Some(now);
        Ok(now)
    }

    /// Makes something in a directory for the kernel, and what that is told of it: programs must not change it in between.
    /// EEXIST: the name is taken.
    pub(crate) fn make(
        &self,
        cx: &Context<'_>,
        parent: &Arc<Node>,
        name: Name<'_>,
        what: NewObject<'_>,
        mode: u32,
    ) -> Result<(Arc<Node>, Entry)> {
        let names = self.lock_names(parent, NameChanger::Kernel)?;
        // A program may have made the name since the kernel looked: to be seen before it is said that this has begun to make it.
        if self.nodes.is_shared(parent.id) && names.child(name)?.is_some() {
            return Err(Error::new(Errno::EXIST, ""));
        }
        let made = self.make_locked(cx, &names, name, what, mode)?;
        let entry = self.entry(&made.node, Some(made.attr))?;
        Ok((made.node, entry))
    }

    /// Makes something in a directory that is locked. EEXIST: the name is taken.
    pub(crate) fn make_locked(
        &self,
        cx: &Context<'_>,
        names: &LockedNames<'_>,
        name: Name<'_>,
        what: NewObject<'_>,
        mode: u32,
    ) -> Result<NewNode> {
        let work = self.upper.work()?;
        let (parent, dir) = (names.node(), names.dir());
        names.check_present()?;
        // Without lower parts, the layer itself says EEXIST.
        if !dir.lowers.is_empty() && names.child(name)?.is_some() {
            return Err(Error::new(Errno::EXIST, ""));
        }
        let handle = self.ensure_upper_dir(parent)?;
        let inherit = self.inherit_of(parent)?;
        let owner = self.layers.owner_of(cx, inherit, what, mode);
        let own = work.own_mark_for(name, what)?;
        // An AUFS whiteout beside the name goes last, and then a lower directory must not show through.
        let opaque =
            matches!(what, NewObject::Dir) && self.upper.aufs && self.layers.has_lower_entry(dir, name)?;
        let direct = own == OwnMark::default() && !opaque;
        let change = names.change();
        cx.progress.once(|| {
            let made_at =
                if direct { work.make_at(&*handle, name, what, owner) } else { Err(Errno::EXIST.into()) };
            let is_at_free_name = made_at.is_ok() && !self.upper.aufs;
            let file = match made_at {
                Err(e) if e.errno() == Errno::EXIST => {
                    let xwhiteouts = dir.upper.lock().as_ref().is_some_and(|upper| upper.xwhiteouts);
                    self.layers.make_atomically(work, (&*handle, xwhiteouts), name, what, owner, &own)?
                }
                made_at => made_at?,
            };
            if self.upper.aufs {
                work.remove_aufs_whiteout(&*handle, name)?;
            }
            let made = self.enter_new(parent, &change, &*handle, name, file, &own);
            if made.is_err() && is_at_free_name {
                // Who is told that it has failed may go another way, and must find the name free.
                what.undo(&*handle, name);
            }
            made
        })
    }

    /// Makes the node of something that has just been made in the upper layer.
    fn enter_new(
        &self,
        parent: &Arc<Node>,
        change: &Change<'_>,
        handle: &dyn BranchDir,
        name: Name<'_>,
        file: Option<Arc<dyn BranchFile>>,
        own: &OwnMark,
    ) -> Result<NewNode> {
        let raw = match &file {
            Some(file) => file.stat()?,
            None => handle.stat_at(name)?,
        };
        let mut attr = self.present(0, handle, name, raw)?;
        attr.ino = self.layers.shown_ino(0, raw.ino);
        let place = Dentry::new(parent, change.shared(name));
        let body = if raw.is_dir() {
            let new = Dir::new(Some(place), Vec::new(), None);
            self.layers.set_upper(&new, UpperDir::new(raw.ino, handle.open_dir(name)?, &DirMarks::default()));
            Body::Dir(Box::new(new))
        } else {
            if own.null_device {
                attr.mode = FileKind::CharDevice.mode_bits() | attr.perm();
            }
            let state = FileState::complete(Names::one(place), InodeLocation::Upper, (0, raw.ino));
            let state = FileState { null_device: own.null_device, ..state };
            let new = Arc::new(File::new(attr.kind(), state));
            new.unsynced.note_original();
            new.no_capability.note();
            if let Some(file) = file {
                self.layers.store_io(&new, file);
            }
            Body::file(new)
        };
        let node = change.note_new_object(name, (raw.ino, attr.ino, attr.kind()), body)?;
        Ok(NewNode { node, attr })
    }

    /// Creates a file without a name, for open(2) with O_TMPFILE.
    pub(crate) fn make_unnamed(&self, cx: &Context<'_>, parent: &Arc<Node>, mode: u32) -> Result<NewNode> {
        let work = self.upper.work()?;
        let handle = self.ensure_upper_dir(parent)?;
        self.room_to_hold(handle.as_descriptor())?;
        let inherit = self.inherit_of(parent)?;
        let owner = self.layers.owner_of(cx, inherit, NewObject::File, mode);
        let (file, orphan) = match work.make_orphan(&inherit, owner.mode)? {
            Some((file, orphan)) => (file, Some(orphan)),
            None => (handle.create_unnamed(owner.mode)?, None),
        };
        if (owner.uid, owner.gid) != work.ids {
            let set = || file.set_owner(Some(owner.uid), Some(owner.gid));
            let is_given = work.give_owner((owner.uid, owner.gid), set)?;
            let set_ids = owner.mode & (S_ISGID | S_ISUID);
            if set_ids != 0 {
                file.set_mode(file.stat()?.perm() & 0o1777 | if is_given { set_ids } else { 0 })?;
            }
        }
        let raw = file.stat()?;
        let mut attr = raw;
        self.layers.map_owner(&mut attr);
        attr.ino = self.layers.shown_ino(0, raw.ino);
        attr.nlink = 0;
        let held: Arc<dyn Object> = Arc::clone(&file) as Arc<dyn Object>;
        let mut state = FileState::complete(Names::default(), InodeLocation::Orphan(held), (0, raw.ino));
        state.set_orphan_name(orphan);
        let new = Arc::new(File::new(FileKind::Regular, state));
        new.unsynced.note_original();
        new.no_capability.note();
        self.layers.store_io(&new, file);
        let node = self.nodes.make(None, attr.ino, Body::file(new))?;
        self.nodes.write_new(&node, &[]);
        if let Some(file) = node.as_file() {
            self.record_descriptor(&node, &file.state.read());
        }
        Ok(NewNode { node, attr })
    }

    /// Makes another name for a file.
    pub(crate) fn make_link(
        &self,
        cx: &Context<'_>,
        node: &Arc<Node>,
        parent: &Arc<Node>,
        name: Name<'_>,
    ) -> Result<()> {
        let work = self.upper.work()?;
        // A name never leads to a node that is stale.
        let node = &self.current(Arc::clone(node))?;
        let file = node.as_file().ok_or(Error::new(Errno::PERM, "hard link to a directory"))?;
        // What has lost its last name does not get another one, as with any filesystem. (What never had one is in the upper layer.)
        // A block map that goes with the file must not be needed again.
        let gone = file.used().is_some_and(|used| used.doomed.lock().is_some())
            || matches!(file.state.read().at, InodeLocation::Lower(_)) && self.attr_of(node)?.nlink == 0;
        if !gone {
            // Before any directory is locked: copy-up may walk the tree.
            self.copy_up_attrs(node, file)?;
        }
        let names = self.lock_names(parent, NameChanger::Kernel)?;
        names.check_present()?;
        if names.child(name)?.is_some() {
            return Err(Error::new(Errno::EXIST, ""));
        }
        if gone {
            return Err(Error::new(Errno::NOENT, "the file was removed"));
        }
        let handle = self.ensure_upper_dir(parent)?;
        let mut state = file.state.write();
        let change = names.change();
        let (_, target) = self.layers.target_of(&state)?;
        work.mark_moved(&state, &target, name)?;
        let object = target.hold()?;
        let key = (0, object.stat()?.ino);
        self.nodes.links(key, node);
        // Before it has two: a successor must know the node before it looks at either.
        self.nodes.write_flags(node, Flags::LINKED);
        cx.progress.begins();
        match link_target(&target, &*object, &*handle, name) {
            Ok(()) => {}
            Err(e) if e.errno() == Errno::EXIST => {
                // A whiteout: replaced by a link that was made beside it.
                let temp = work.temp_name();
                let temp = Name::new(&temp)?;
                link_target(&target, &*object, work.dir(), temp)?;
                work.dir().rename(temp, &*handle, name, RenameFlags::empty()).inspect_err(|_| {
                    let _ = work.dir().remove(temp);
                })?;
            }
            Err(e) => return Err(e),
        }
        if self.upper.aufs {
            work.remove_aufs_whiteout(&*handle, name)?;
        }
        if matches!(state.at, InodeLocation::Orphan(_)) && state.names.is_empty() {
            state.at = InodeLocation::Upper;
        }
        change.links(name, node, &mut state);
        drop(state.set_orphan_name(None));
        Ok(())
    }
}

impl Layers {
    /// Owner and mode of what `cx` makes in a directory: umask, set-group-id directories, mappings.
    fn owner_of(&self, cx: &Context<'_>, inherit: Inherit, what: NewObject<'_>, mode: u32) -> Owner {
        let mut mode = mode & 0o7777;
        if !inherit.default_acl {
            mode &= !cx.umask;
        }
        let gid = if inherit.is_setgid() { inherit.owner.gid } else { cx.gid };
        if inherit.is_setgid() {
            if matches!(what, NewObject::Dir) {
                mode |= S_ISGID;
            } else if mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP && cx.uid != 0 && !cx.in_group(gid) {
                // As the kernel does for a caller outside the group: else anyone could make such a program.
                mode &= !S_ISGID;
            }
        }
        Owner { uid: self.config.uid_map.to_layer(cx.uid), gid: self.config.gid_map.to_layer(gid), mode }
    }

    /// Makes something in place of a whiteout, or with a mark, so that it appears complete and at once.
    fn make_atomically(
        &self,
        work: &Work,
        (dir, xwhiteouts): (&dyn BranchDir, bool),
        name: Name<'_>,
        what: NewObject<'_>,
        owner: Owner,
        own: &OwnMark,
    ) -> Result<Option<Arc<dyn BranchFile>>> {
        let replaces = match dir.stat_at(name) {
            Ok(attr) => {
                if !self.is_hidden(dir, 0, xwhiteouts, name, &attr)? {
                    return Err(Error::new(Errno::EXIST, ""));
                }
                true
            }
            Err(e) if e.errno() == Errno::NOENT => false,
            Err(e) => return Err(e),
        };
        let temp = work.temp_name();
        let temp = Name::new(&temp)?;
        // A default ACL acts where something is made, so it is made in a directory that has the parent's.
        let acl = marks::read_value(dir, DEFAULT_ACL, marks::XATTR_MAX)?;
        let (nest, nest_name) = match &acl {
            Some(acl) if !acl.is_empty() => {
                let nest = work.temp_name();
                let at = Name::new(&nest)?;
                work.dir().make_dir(at, 0o700)?;
                let handle = work.dir().open_dir(at)?;
                handle.set_xattr(DEFAULT_ACL, acl, 0)?;
                (Some(handle), Some(nest))
            }
            _ => (None, None),
        };
        let place: &dyn BranchDir = nest.as_deref().unwrap_or(work.dir());
        let is_dir = matches!(what, NewObject::Dir);
        let result = (|| {
            let file = work.make_at(place, temp, what, owner)?;
            if is_dir {
                place.open_dir(temp)?.set_xattr(work.space.opaque(), b"y", 0)?;
            } else if *own != OwnMark::default() {
                place.hold(temp)?.set_xattr(work.space.own(), &own.encode(), 0)?;
            }
            if is_dir && replaces && work.exchanges {
                place.rename(temp, dir, name, RenameFlags::EXCHANGE)?;
                place.remove(temp)?;
            } else {
                if is_dir && replaces {
                    work.free_name(dir, name)?;
                }
                place.rename(temp, dir, name, RenameFlags::empty())?;
            }
            Ok(file)
        })();
        if result.is_err() {
            what.undo(place, temp);
        }
        if let Some(nest) = nest_name {
            work.dir().remove_dir(Name::new(&nest)?)?;
        }
        result
    }

    /// Keeps the open file of a new or newly opened upper file.
    pub(crate) fn store_io(&self, file: &File, open: Arc<dyn BranchFile>) {
        let (io, filled) = file.io.fill(Arc::new(Io::new(open, true)));
        if filled {
            self.watch(&**file, io.file.as_descriptor());
        }
    }

    /// Whether the layers below show something under a name, so that removing the upper's entry takes a whiteout.
    pub(crate) fn has_lower_entry(&self, dir: &Dir, name: Name<'_>) -> Result<bool> {
        if dir.lowers.is_empty() {
            return Ok(false);
        }
        Ok(!matches!(self.find(&dir.lowers, name)?, LayerLookup::Nothing))
    }
}

impl Work {
    /// The mark that something needs so that it is not mistaken for a whiteout.
    fn own_mark_for(&self, name: Name<'_>, what: NewObject<'_>) -> Result<OwnMark> {
        let null_device = matches!(what, NewObject::Node(FileKind::CharDevice, 0));
        let literal = (null_device || matches!(what, NewObject::File)) && self.looks_like_whiteout(name)?;
        Ok(OwnMark { null_device, literal, ..OwnMark::default() })
    }

    /// Whether a file of that name needs a mark so that it is not taken for a whiteout. EINVAL: no mark can help.
    fn looks_like_whiteout(&self, name: Name<'_>) -> Result<bool> {
        let looks_so = name.bytes().starts_with(WHITEOUT_PREFIX);
        if looks_so && self.whiteouts == Whiteouts::Aufs {
            return Err(Error::new(Errno::INVAL, "this name is a whiteout in this layer's format"));
        }
        Ok(looks_so)
    }

    /// Makes something under a name that is free in the layer; what fails half-way is taken away again.
    fn make_at(
        &self,
        dir: &dyn BranchDir,
        name: Name<'_>,
        what: NewObject<'_>,
        owner: Owner,
    ) -> Result<Option<Arc<dyn BranchFile>>> {
        let mut there = false;
        let made = self.try_make_at(dir, name, what, owner, &mut there);
        if made.is_err() && there {
            what.undo(dir, name);
        }
        made
    }

    /// `there` says afterwards whether the name is taken by what was made: what is there on failure may also be a whiteout.
    fn try_make_at(
        &self,
        dir: &dyn BranchDir,
        name: Name<'_>,
        what: NewObject<'_>,
        owner: Owner,
        there: &mut bool,
    ) -> Result<Option<Arc<dyn BranchFile>>> {
        if self.overrides.xattr().is_some() {
            return self.make_overridden(dir, name, what, owner, there);
        }
        let mut file = None;
        match what {
            NewObject::File => file = Some(dir.create(name, owner.mode)?),
            NewObject::Dir => dir.make_dir(name, owner.mode)?,
            // A 0:0 device is a whiteout; it is stored as an empty file with a mark.
            NewObject::Node(FileKind::CharDevice, 0) | NewObject::Node(FileKind::Regular, _) => {
                drop(dir.create(name, owner.mode)?);
            }
            NewObject::Node(kind, rdev) => dir.make_node(name, kind.mode_bits() | owner.mode, rdev)?,
            NewObject::Symlink(target) => dir.make_symlink(name, target)?,
        }
        *there = true;
        let chowned = (owner.uid, owner.gid) != self.ids;
        let is_given = !chowned
            || self.give_owner((owner.uid, owner.gid), || match &file {
                Some(file) => file.set_owner(Some(owner.uid), Some(owner.gid)),
                None => dir.set_owner_at(name, Some(owner.uid), Some(owner.gid)),
            })?;
        // mkdir(2) drops set-id bits; so does a change of owner. The other bits may come from an ACL, and stay.
        if owner.mode & (S_ISGID | S_ISUID) != 0
            && (chowned || matches!(what, NewObject::Dir))
            && !matches!(what, NewObject::Symlink(_))
        {
            let now = dir.stat_at(name)?.perm();
            let set_ids = if is_given { owner.mode & (S_ISGID | S_ISUID) } else { 0 };
            let wanted = now & 0o1777 | set_ids;
            if wanted != now {
                dir.set_mode_at(name, wanted)?;
            }
        }
        Ok(file)
    }

    /// Makes something whose owner, mode and type are recorded in an attribute.
    fn make_overridden(
        &self,
        dir: &dyn BranchDir,
        name: Name<'_>,
        what: NewObject<'_>,
        owner: Owner,
        there: &mut bool,
    ) -> Result<Option<Arc<dyn BranchFile>>> {
        let Some(xattr) = self.overrides.xattr() else { return Ok(None) };
        let mut file = None;
        let mut kind = None;
        match what {
            NewObject::File => file = Some(dir.create(name, 0o600 | owner.mode & 0o777)?),
            NewObject::Dir => dir.make_dir(name, 0o700 | owner.mode & 0o777)?,
            NewObject::Symlink(target) => {
                // Symbolic links take no user attributes: they show the service's own ids.
                dir.make_symlink(name, target)?;
                return Ok(None);
            }
            NewObject::Node(node, rdev) => {
                kind = Some((node, rdev));
                drop(dir.create(name, 0o600)?);
            }
        }
        *there = true;
        let value = Override { uid: owner.uid, gid: owner.gid, mode: owner.mode, kind };
        dir.hold(name)?.set_xattr(xattr, value.format().as_bytes(), 0)?;
        Ok(file)
    }

    /// Before a file gets a name other than the one it was looked up by: its data, if they are below, must be found
    /// without the name, and a name that looks like a whiteout must not be taken for one.
    pub(crate) fn mark_moved(&self, state: &FileState, target: &Target<'_>, name: Name<'_>) -> Result<()> {
        let space = self.space;
        if let Some(below) = &state.below {
            let held = target.hold()?;
            if held.get_xattr(space.redirect(), &mut []).is_err()
                && let Some(place) = state.names.first()
                && let Some(dir) = place.parent.as_dir()
                && let Some(path) = &dir.lower_path
            {
                let path = join(path, Name::new(&place.name)?);
                tracing::debug!(below = %below.at.name.to_string_lossy(), "redirect of a file's data");
                held.set_xattr(space.redirect(), crate::copyup::full_copy::absolute(&path).to_bytes(), 0)?;
            }
        }
        // By its name alone first: most need no look at the file.
        if name.bytes().starts_with(WHITEOUT_PREFIX)
            && target.stat()?.is_file()
            && self.looks_like_whiteout(name)?
        {
            let held = target.hold()?;
            let own = own_mark(&*held, space).ok().flatten().unwrap_or_default();
            held.set_xattr(space.own(), &OwnMark { literal: true, ..own }.encode(), 0)?;
        }
        Ok(())
    }
}

/// Links by name where there is one: that needs no privilege.
fn link_target(target: &Target<'_>, object: &dyn Object, dir: &dyn BranchDir, name: Name<'_>) -> Result<()> {
    match target {
        Target::Entry(from, old) => from.link(Name::new(old)?, dir, name),
        Target::Object(_) => dir.link_object(object, name),
    }
}

/// A target of a symbolic link that came from a front.
pub(crate) fn check_target(target: &CStr) -> Result<Box<CStr>> {
    const PATH_MAX: usize = 4095;
    match target.to_bytes().len() {
        0 => Err(Error::new(Errno::NOENT, "empty link target")),
        n if n > PATH_MAX => Err(Error::new(Errno::NAMETOOLONG, "link target")),
        _ => Ok(c_string(target.to_bytes().to_vec())),
    }
}
