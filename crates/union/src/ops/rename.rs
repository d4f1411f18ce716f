//! Names move: rename, with replacement, without, and exchange.
//!
//! A directory that shows through from below is moved by moving its upper part and recording on it where it shows
//! through to (a redirect). Nothing is copied.

use crate::coherence::name_changes::{Change, MoveSource};
use crate::layers::Layers;
use crate::layers::list::holds_nothing;
use crate::layers::orphan_link::OrphanLink;
use crate::layers::work_dir::{Whiteouts, Work};
use crate::nodes::node::{Body, Dir, File, FileState, InodeLocation, Node};
use crate::ops::create::NewObject;
use crate::ops::remove::{RETRIES, upper_handle};
use crate::sync::RwLockWriteGuard;
use crate::union::Core;
use smallvec::SmallVec;
use std::sync::Arc;
use vellum_vfs::{BranchDir, Context, Errno, Error, FileKind, Name, RenameFlags, Result};

/// One side of a rename: a directory and a name in it.
type Side<'a> = (&'a Arc<Node>, Name<'a>);

impl Core {
    /// Renames, as renameat2(2) does with NOREPLACE or EXCHANGE or neither.
    pub(crate) fn rename(&self, from: Side<'_>, to: Side<'_>, flags: RenameFlags) -> Result<()> {
        let work = self.upper.work()?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let unknown = exchange && (flags.contains(RenameFlags::NOREPLACE) || !work.exchanges);
        if flags.contains(RenameFlags::WHITEOUT) || unknown {
            return Err(Error::new(Errno::INVAL, "rename flags"));
        }
        for _ in 0..RETRIES {
            let source = self.find_child(from)?.ok_or(Error::new(Errno::NOENT, ""))?;
            let target = self.find_child(to)?;
            // In the kernel's order, of which errors are part.
            match &target {
                None if exchange => return Err(Error::new(Errno::NOENT, "")),
                Some(_) if flags.contains(RenameFlags::NOREPLACE) => {
                    return Err(Error::new(Errno::EXIST, ""));
                }
                _ => {}
            }
            let over_ancestor = target.as_ref().is_some_and(|target| is_inside(from.0, target));
            if is_inside(to.0, &source) || exchange && over_ancestor {
                return Err(Error::new(Errno::INVAL, "a directory into itself"));
            }
            if over_ancestor {
                return Err(Error::new(Errno::NOTEMPTY, ""));
            }
            check_kinds(&source, target.as_ref(), flags)?;
            // Before any directory is locked: a file's copy-up may walk the tree.
            if let Some(file) = source.as_file() {
                self.copy_up_attrs(&source, file)?;
            }
            if let Some(target) = &target
                && let Some(file) = target.as_file()
                && (exchange || self.layers.has_more_links(file)?)
            {
                self.copy_up_attrs(target, file)?;
            }
            let victim = target.as_ref().filter(|t| t.as_dir().is_some() && !exchange);
            let locked = self.lock_many([from.0, to.0].into_iter().chain(victim))?;
            let (from_names, to_names) = (locked.get(from.0)?, locked.get(to.0)?);
            if !is_same(from_names.child(from.1)?.as_ref(), Some(&source))
                || !is_same(to_names.child(to.1)?.as_ref(), target.as_ref())
            {
                continue;
            }
            if target.as_ref().is_some_and(|t| is_same_file(t, &source)) {
                return Ok(());
            }
            let (leaves, enters) = (from_names.change(), to_names.change());
            let (old, new) = ((from, &leaves), (to, &enters));
            return match &target {
                Some(target) if exchange => self.exchange(work, old, &source, new, target),
                target => self.replace(work, old, &source, new, target.as_ref()),
            };
        }
        Err(Error::new(Errno::AGAIN, "rename"))
    }

    /// Renames, and leaves a device 0:0 behind, as renameat2(2) with WHITEOUT: for a union whose upper layer lies in this one. In two
    /// steps, between which there is nothing.
    pub(crate) fn rename_leaving_whiteout(
        &self,
        cx: &Context<'_>,
        from: Side<'_>,
        to: Side<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let is_whiteout = |node: &Arc<Node>| node.as_file().is_some_and(|file| file.state.read().null_device);
        if flags.contains(RenameFlags::EXCHANGE) {
            return Err(Error::new(Errno::INVAL, "rename flags"));
        }
        // A request that comes again, after its service has died: nobody moves a whiteout so.
        if self.find_child(from)?.as_ref().is_some_and(is_whiteout) {
            return Ok(());
        }
        self.rename(from, to, flags.difference(RenameFlags::WHITEOUT))?;
        let (_, entry) = self.make(cx, from.0, from.1, NewObject::Node(FileKind::CharDevice, 0), 0)?;
        self.forget(entry.node, 1);
        Ok(())
    }

    fn find_child(&self, side: Side<'_>) -> Result<Option<Arc<Node>>> {
        let dir = side.0.as_dir().ok_or(Errno::NOTDIR)?;
        let _names = dir.entries.share();
        if dir.removed.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(Error::new(Errno::NOENT, "the directory was removed"));
        }
        self.child(side.0, side.1)
    }

    /// Prepares a directory for another place: what shows through it must not depend on its name, and nothing else
    /// may show through it at the new place.
    fn mark_dir_moved(&self, work: &Work, node: &Arc<Node>, dir: &Dir, covered: bool) -> Result<()> {
        let handle = self.ensure_upper_dir(node)?;
        let space = work.space;
        match &dir.lower_path {
            Some(path) if !dir.lowers.is_empty() => {
                handle.set_xattr(space.redirect(), crate::copyup::full_copy::absolute(path).to_bytes(), 0)
            }
            _ if covered => handle.set_xattr(space.opaque(), b"y", 0),
            _ => Ok(()),
        }
        .map_err(|e| {
            // Without extended attributes a directory cannot say where it came from.
            let unfit = [Errno::OPNOTSUPP, Errno::NOSPC, Errno::RANGE, Errno::TOOBIG, Errno::NAMETOOLONG];
            if unfit.contains(&e.errno()) { Error::new(Errno::XDEV, "redirect of a directory") } else { e }
        })
    }

    /// Moves `source` over `target`. The caller holds the names of both directories, and of a directory that is replaced.
    fn replace(
        &self,
        work: &Work,
        (from, leaves): (Side<'_>, &Change<'_>),
        source: &Arc<Node>,
        (to, enters): (Side<'_>, &Change<'_>),
        target: Option<&Arc<Node>>,
    ) -> Result<()> {
        let before = MoveSource { change: leaves, name: from.1, exchanged: false };
        let (from_dir, to_dir) = (from.0.as_dir().ok_or(Errno::NOTDIR)?, to.0.as_dir().ok_or(Errno::NOTDIR)?);
        if let Some(victim) = target.and_then(|t| t.as_dir())
            && !self.layers.is_empty_dir(victim)?
        {
            return Err(Error::new(Errno::NOTEMPTY, ""));
        }
        let from_handle = self.ensure_upper_dir(from.0)?;
        let to_handle = self.ensure_upper_dir(to.0)?;
        if target.is_some() {
            self.room_to_hold(to_handle.as_descriptor())?;
        }
        let uncovers = self.layers.has_lower_entry(from_dir, from.1)?;
        let covers = self.layers.has_lower_entry(to_dir, to.1)?;
        match &source.body {
            Body::Dir(dir) => {
                self.mark_dir_moved(work, source, dir, covers)?;
                let victim = target.and_then(|t| t.as_dir());
                let _copies = lock_copies(&[Some(source), target]);
                if let (Some(gone), Some(victim)) = (target, victim) {
                    self.write_held_dir(gone, victim);
                }
                self.nodes.write_move(source, to);
                self.layers.move_dir(work, (&*from_handle, from.1), (&*to_handle, to.1), victim, uncovers)?;
                if let (Some(gone), Some(victim)) = (target, victim) {
                    enters.removes_dir_for(gone, victim);
                }
                enters.moves_dir(to.1, source, dir, before);
            }
            Body::File(file) => {
                let victim = target.and_then(|t| t.as_file());
                let (mut state, mut other) = lock_states(file, victim);
                let (_, moved) = self.layers.target_of(&state)?;
                work.mark_moved(&state, &moved, to.1)?;
                if state.below.is_some() {
                    file.unsynced.change();
                }
                let (mut is_last, mut is_new) = (false, false);
                if let (Some(gone), Some(victim)) = (&mut other, victim) {
                    match &gone.at {
                        InodeLocation::Upper if gone.names.len() <= 1 => {
                            is_new = gone.hold(work, upper_handle(victim, &*to_handle, to.1)?)?;
                            is_last = true;
                        }
                        InodeLocation::Lower(_) => gone.lost += 1,
                        _ => {}
                    }
                    target.iter().for_each(|node| self.nodes.write_leaves(node, gone, to));
                    if gone.names.len() <= 1 {
                        target.iter().for_each(|node| self.record_descriptor(node, gone));
                    }
                }
                self.nodes.write_move(source, to);
                let kept = other.as_ref().and_then(|gone| gone.orphan()).filter(|_| is_new);
                let moved = kept
                    .map_or(Ok(()), |kept| work.keep(kept, OrphanLink::LinkName(&*to_handle, to.1)))
                    .and_then(|()| work.move_entry((&*from_handle, from.1), (&*to_handle, to.1), uncovers));
                if let (Err(_), true, Some(gone)) = (&moved, is_last, &mut other) {
                    gone.unhold();
                }
                moved?;
                if let (Some(gone), Some(node), Some(victim)) = (&mut other, target, victim) {
                    enters.unlinks_for(to.1, node, gone);
                    self.layers.doom_sidecar(victim, gone, work.space);
                }
                enters.moves_file(to.1, source, &mut state, before);
            }
        }
        self.layers.note_moved(&[source]);
        if self.upper.aufs {
            work.remove_aufs_whiteout(&*to_handle, to.1)?;
        }
        Ok(())
    }

    fn exchange(
        &self,
        work: &Work,
        (from, leaves): (Side<'_>, &Change<'_>),
        source: &Arc<Node>,
        (to, enters): (Side<'_>, &Change<'_>),
        target: &Arc<Node>,
    ) -> Result<()> {
        let (from_dir, to_dir) = (from.0.as_dir().ok_or(Errno::NOTDIR)?, to.0.as_dir().ok_or(Errno::NOTDIR)?);
        let from_handle = self.ensure_upper_dir(from.0)?;
        let to_handle = self.ensure_upper_dir(to.0)?;
        for (node, dir, name) in [(source, to_dir, to.1), (target, from_dir, from.1)] {
            if let Some(moved) = node.as_dir() {
                self.mark_dir_moved(work, node, moved, self.layers.has_lower_entry(dir, name)?)?;
            }
        }
        let _copies = lock_copies(&[Some(source), Some(target)]);
        let mut nodes =
            [(source, (leaves, from.1), (enters, to.1)), (target, (enters, to.1), (leaves, from.1))];
        nodes.sort_unstable_by_key(|(node, _, _)| node.as_file().map(Arc::as_ptr));
        let mut states: SmallVec<[Option<RwLockWriteGuard<'_, FileState>>; 2]> = SmallVec::new();
        for (node, _, new) in &nodes {
            let Some(file) = node.as_file() else {
                states.push(None);
                continue;
            };
            let state = file.state.write();
            let (_, moved) = self.layers.target_of(&state)?;
            work.mark_moved(&state, &moved, new.1)?;
            if state.below.is_some() {
                file.unsynced.change();
            }
            states.push(Some(state));
        }
        self.nodes.write_move(source, to);
        self.nodes.write_move(target, from);
        from_handle.rename(from.1, &*to_handle, to.1, RenameFlags::EXCHANGE)?;
        self.layers.note_moved(&[source, target]);
        for ((node, (change, name), new), state) in nodes.into_iter().zip(&mut states) {
            let before = MoveSource { change, name, exchanged: true };
            match (&node.body, state) {
                (Body::Dir(dir), _) => new.0.moves_dir(new.1, node, dir, before),
                (Body::File(_), Some(state)) => new.0.moves_file(new.1, node, state, before),
                (Body::File(_), None) => {}
            }
        }
        Ok(())
    }
}

impl Layers {
    fn move_dir(
        &self,
        work: &Work,
        from: (&dyn BranchDir, Name<'_>),
        to: (&dyn BranchDir, Name<'_>),
        victim: Option<&Dir>,
        uncovers: bool,
    ) -> Result<()> {
        let in_upper = victim.and_then(|victim| Some((victim, victim.upper.lock().clone()?)));
        if let Some((victim, upper)) = in_upper {
            upper.slot.pin();
            if let Some(kept) = self.upper_of(victim)?
                && !holds_nothing(&*kept)?
            {
                if !work.exchanges {
                    return work.replace_dir(from, to, uncovers);
                }
                work.empty_dir(to.0, to.1, &*kept)?;
            }
        } else if let Ok(attr) = to.0.stat_at(to.1) {
            if attr.is_dir() {
                return Err(Error::new(Errno::NOTEMPTY, "unexpected directory in the upper layer"));
            }
            if uncovers && work.whiteouts == Whiteouts::Aufs {
                work.whiteout(from.0, from.1)?;
            }
            if !work.exchanges {
                work.free_name(to.0, to.1)?;
                return from.0.rename(from.1, to.0, to.1, RenameFlags::empty());
            }
            // A whiteout there. The two change places: the whiteout is then where one may be needed, and else does no harm.
            from.0.rename(from.1, to.0, to.1, RenameFlags::EXCHANGE)?;
            if (!uncovers || work.whiteouts == Whiteouts::Aufs)
                && let Err(error) = from.0.remove(from.1)
            {
                tracing::debug!(%error, "a whiteout that hides nothing stays");
            }
            return Ok(());
        }
        work.move_entry(from, to, uncovers)
    }
}

impl Work {
    /// Moves an entry of the upper layer over whatever else is there that is no directory, and leaves a whiteout if
    /// something would show up from below.
    fn move_entry(
        &self,
        from: (&dyn BranchDir, Name<'_>),
        to: (&dyn BranchDir, Name<'_>),
        uncovers: bool,
    ) -> Result<()> {
        let is_aufs = self.whiteouts == Whiteouts::Aufs;
        if uncovers && is_aufs {
            self.whiteout(from.0, from.1)?;
        }
        if !uncovers || is_aufs {
            return from.0.rename(from.1, to.0, to.1, RenameFlags::empty());
        }
        match from.0.rename(from.1, to.0, to.1, RenameFlags::WHITEOUT) {
            // A filesystem that cannot do both at once: between the two steps a crash lets the lower entry show again.
            Err(e) if matches!(e.errno(), Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                let replaces = to.0.stat_at(to.1).is_ok();
                from.0.rename(from.1, to.0, to.1, RenameFlags::empty())?;
                match self.whiteout(from.0, from.1) {
                    Err(error) if replaces => {
                        // What was there is gone, so there is no way back.
                        let name = from.1;
                        tracing::error!(%error, %name, "no whiteout after a rename: a lower file shows again");
                    }
                    Err(error) => {
                        to.0.rename(to.1, from.0, from.1, RenameFlags::empty())?;
                        return Err(error);
                    }
                    Ok(()) => {}
                }
                Ok(())
            }
            other => other,
        }
    }

    /// Puts a directory in the place of one that holds nothing but whiteouts, where names cannot change places. A crash may come when
    /// the one has gone and the other is not there yet.
    fn replace_dir(
        &self,
        from: (&dyn BranchDir, Name<'_>),
        to: (&dyn BranchDir, Name<'_>),
        uncovers: bool,
    ) -> Result<()> {
        let temp = self.temp_name();
        let temp = Name::new(&temp)?;
        self.whiteout(to.0, to.1)?;
        to.0.rename(to.1, self.dir(), temp, RenameFlags::empty())?;
        let moved = self.move_entry(from, to, uncovers);
        if moved.is_ok() {
            self.discard_dir(temp);
        } else if let Err(error) = self.dir().rename(temp, to.0, to.1, RenameFlags::empty()) {
            tracing::error!(%error, name = %to.1, "an empty directory is gone that was to be replaced");
        }
        moved
    }

    /// Makes a directory of the upper layer really empty: in the union it is, but it holds whiteouts.
    fn empty_dir(&self, parent: &dyn BranchDir, name: Name<'_>, victim: &dyn BranchDir) -> Result<()> {
        let attr = victim.stat()?;
        let temp = self.temp_name();
        let temp = Name::new(&temp)?;
        self.dir().make_dir(temp, 0o700)?;
        let fresh = self.dir().open_dir(temp)?;
        let swapped = fresh
            .set_xattr(self.space.opaque(), b"y", 0)
            .and_then(|()| {
                self.give_owner((attr.uid, attr.gid), || fresh.set_owner(Some(attr.uid), Some(attr.gid)))
            })
            .and_then(|_| fresh.set_mode(attr.perm()))
            .and_then(|()| self.dir().rename(temp, parent, name, RenameFlags::EXCHANGE));
        self.discard_dir(temp);
        swapped
    }
}

/// Whether `node` is `dir` or lies in it.
fn is_inside(node: &Arc<Node>, dir: &Arc<Node>) -> bool {
    if dir.as_dir().is_none() {
        return false;
    }
    let mut at = Some(Arc::clone(node));
    while let Some(node) = at {
        if Arc::ptr_eq(&node, dir) {
            return true;
        }
        at = node.as_dir().and_then(|d| d.place.read().as_ref().map(|place| Arc::clone(&place.parent)));
    }
    false
}

fn is_same(a: Option<&Arc<Node>>, b: Option<&Arc<Node>>) -> bool {
    a.map(Arc::as_ptr) == b.map(Arc::as_ptr)
}

/// Whether two nodes show one file: renaming a file onto another name of its own does nothing.
fn is_same_file(a: &Arc<Node>, b: &Arc<Node>) -> bool {
    match (&a.body, &b.body) {
        (Body::File(a), Body::File(b)) => Arc::ptr_eq(a, b),
        _ => Arc::ptr_eq(a, b),
    }
}

fn check_kinds(source: &Node, target: Option<&Arc<Node>>, flags: RenameFlags) -> Result<()> {
    let Some(target) = target.filter(|_| !flags.contains(RenameFlags::EXCHANGE)) else { return Ok(()) };
    match (source.kind() == FileKind::Directory, target.kind() == FileKind::Directory) {
        (true, false) => Err(Error::new(Errno::NOTDIR, "")),
        (false, true) => Err(Error::new(Errno::ISDIR, "")),
        _ => Ok(()),
    }
}

type StateGuard<'a> = RwLockWriteGuard<'a, FileState>;

/// Takes the `copy` locks of the directories among some nodes, in the order of their ids.
fn lock_copies<'a>(nodes: &[Option<&'a Arc<Node>>]) -> Vec<crate::sync::MutexGuard<'a, ()>> {
    let mut dirs: Vec<_> =
        nodes.iter().flatten().filter_map(|node| Some((node.id, node.as_dir()?))).collect();
    dirs.sort_unstable_by_key(|(id, _)| *id);
    dirs.into_iter().map(|(_, dir)| dir.copy.lock()).collect()
}

/// Takes the states of two files, in the order of their addresses: a file may have several nodes.
fn lock_states<'a>(
    file: &'a Arc<File>,
    other: Option<&'a Arc<File>>,
) -> (StateGuard<'a>, Option<StateGuard<'a>>) {
    match other {
        None => (file.state.write(), None),
        Some(victim) if Arc::as_ptr(victim) < Arc::as_ptr(file) => {
            let victim = victim.state.write();
            (file.state.write(), Some(victim))
        }
        Some(victim) => {
            let state = file.state.write();
            (state, Some(victim.state.write()))
        }
    }
}
