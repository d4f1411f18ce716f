//! Names go: unlink and rmdir.

use crate::coherence::name_changes::NameChanger;
use crate::layers::Layers;
use crate::layers::orphan_link::OrphanLink;
use crate::layers::work_dir::Work;
use crate::nodes::node::{Body, Dir, File, InodeLocation, Node};
use crate::union::Core;
use std::sync::Arc;
use vellum_vfs::{BranchDir, Errno, Error, Name, Object, Result};

/// Changes of the tree under an operation's feet after which it gives up.
pub(crate) const RETRIES: usize = 1000;

impl Core {
    /// Removes a name that is not a directory.
    pub(crate) fn unlink(&self, parent: &Arc<Node>, name: Name<'_>) -> Result<()> {
        let work = self.upper.work()?;
        let dir = parent.as_dir().ok_or(Errno::NOTDIR)?;
        self.unlink_prepare(parent, dir, name)?;
        let names = self.lock_names(parent, NameChanger::Kernel)?;
        let node = names.child(name)?.ok_or(Error::new(Errno::NOENT, ""))?;
        let Body::File(file) = &node.body else { return Err(Error::new(Errno::ISDIR, "")) };
        // What is served from below shows from below.
        let lower = matches!(file.state.read().at, InodeLocation::Lower(_));
        let covered = lower || self.layers.has_lower_entry(dir, name)?;
        let handle = self.removal_dir(parent, covered)?;
        let change = names.change();
        let mut state = file.state.write();
        self.nodes.write_leaves(&node, &state, (parent, name));
        match &state.at {
            InodeLocation::Lower(_) => {
                if state.names.len() <= 1 {
                    self.record_descriptor(&node, &state);
                }
                work.whiteout(&*handle, name)?;
                state.lost += 1;
            }
            InodeLocation::Upper | InodeLocation::Orphan(_) => {
                let is_last = matches!(state.at, InodeLocation::Upper) && state.names.len() <= 1;
                // Whoever has it open goes on using it; the kernel does not say who does.
                let is_new = is_last && state.hold(work, upper_handle(file, &*handle, name)?)?;
                self.record_descriptor(&node, &state);
                let removed = match state.orphan() {
                    Some(orphan) if is_new => {
                        work.keep(orphan, OrphanLink::MoveName(&*handle, name, covered))
                    }
                    _ if covered => work.replace_by_whiteout(&*handle, name),
                    _ => handle.remove(name),
                };
                if removed.is_err() && is_last {
                    state.unhold();
                }
                removed?;
            }
        }
        change.unlinks(name, &node, &mut state);
        self.layers.doom_sidecar(file, &state, work.space);
        Ok(())
    }

    /// The directory of the upper layer that a name goes from, or gets a whiteout in. There is room to hold what loses its name.
    fn removal_dir(&self, parent: &Arc<Node>, covered: bool) -> Result<Arc<dyn BranchDir>> {
        let dir = parent.as_dir().ok_or(Errno::NOTDIR)?;
        let handle =
            if covered { Some(self.ensure_upper_dir(parent)?) } else { self.layers.upper_of(dir)? };
        let handle = handle.ok_or(Error::new(Errno::STALE, "nothing to remove"))?;
        self.room_to_hold(handle.as_descriptor())?;
        Ok(handle)
    }

    /// A lower file with several names is copied up before one of them goes, so that the count of links is right and
    /// stays right over a remount.
    fn unlink_prepare(&self, parent: &Arc<Node>, dir: &Dir, name: Name<'_>) -> Result<()> {
        let node = {
            let _names = dir.entries.share();
            self.child(parent, name)?
        };
        if let Some(node) = node
            && let Some(file) = node.as_file()
            && self.layers.has_more_links(file)?
        {
            self.copy_up_attrs(&node, file)?;
        }
        Ok(())
    }

    /// Removes an empty directory.
    pub(crate) fn rmdir(&self, parent: &Arc<Node>, name: Name<'_>) -> Result<()> {
        let work = self.upper.work()?;
        let dir = parent.as_dir().ok_or(Errno::NOTDIR)?;
        for _ in 0..RETRIES {
            let found = {
                let _names = dir.entries.share();
                self.child(parent, name)?
            };
            let node = found.ok_or(Error::new(Errno::NOENT, ""))?;
            let victim = node.as_dir().ok_or(Error::new(Errno::NOTDIR, ""))?;
            let names = self.lock_many([parent, &node])?;
            let names = names.get(parent)?;
            match names.child(name)? {
                Some(now) if Arc::ptr_eq(&now, &node) => {}
                _ => continue,
            }
            if !self.layers.is_empty_dir(victim)? {
                return Err(Error::new(Errno::NOTEMPTY, ""));
            }
            let covered = self.layers.has_lower_entry(dir, name)?;
            let handle = self.removal_dir(parent, covered)?;
            let _one = victim.copy.lock();
            self.write_held_dir(&node, victim);
            let change = names.change();
            self.layers.remove_dir_entry(work, &*handle, name, victim, covered)?;
            change.removes_dir(name, &node, victim);
            return Ok(());
        }
        Err(Error::new(Errno::AGAIN, "rmdir"))
    }
}

impl Layers {
    /// Whether a file is a lower one with several names.
    pub(crate) fn has_more_links(&self, file: &File) -> Result<bool> {
        let state = file.state.read();
        let InodeLocation::Lower(at) = &state.at else { return Ok(false) };
        if state.apart {
            return Ok(false);
        }
        let handle = at.dir.open(self)?;
        Ok(handle.stat_at(Name::new(&at.name)?)?.nlink > 1)
    }

    /// Takes an empty directory's name out of the upper layer, with the whiteouts that may be in it.
    pub(crate) fn remove_dir_entry(
        &self,
        work: &Work,
        handle: &dyn BranchDir,
        name: Name<'_>,
        victim: &Dir,
        covered: bool,
    ) -> Result<()> {
        let in_upper = victim.upper.lock().clone();
        match in_upper {
            None => work.whiteout(handle, name),
            Some(upper) => {
                // Kept open for whoever has it as working directory: it cannot be found again.
                upper.slot.pin();
                drop(self.upper_of(victim)?);
                if !covered {
                    match handle.remove_dir(name) {
                        Err(e) if e.errno() == Errno::NOTEMPTY => {}
                        other => return other,
                    }
                }
                work.take_dir(handle, name, covered)
            }
        }
    }
}

/// A handle to a file in the upper layer; the open file, if there is one, saves a system call.
pub(crate) fn upper_handle(file: &File, dir: &dyn BranchDir, name: Name<'_>) -> Result<Arc<dyn Object>> {
    match file.open_io() {
        // Of a file with blocks below only the inode is held: it opens again in whatever form it has then.
        Some(io) if io.writable && io.partial.is_none() => Ok(Arc::clone(&io.file) as Arc<dyn Object>),
        _ => dir.hold(name),
    }
}
