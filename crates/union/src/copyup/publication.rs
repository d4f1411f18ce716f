//! A finished copy gets its names in the union, in one step for each that is there or not.

use crate::copyup::copy_metadata::restore_times;
use crate::extents::Record;
use crate::layers::Layers;
use crate::layers::orphan_link::OrphanLink;
use crate::layers::work_dir::Work;
use crate::nodes::node::{Dentry, File, FileState, InodeLocation, LowerData, Node};
use crate::sync::RwLockWriteGuard;
use crate::union::Core;
use std::ffi::CStr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use vellum_vfs::{BranchDir, BranchFile, Errno, Error, Name, Object, OpenMode, RenameFlags, Result, SetTime};

/// What a copy does not have itself and takes from below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LowerParts {
    /// It is whole.
    Nothing,
    /// All its data: only attributes were copied.
    All,
    /// The blocks that are not written to.
    Blocks(Record),
}

impl LowerParts {
    pub(crate) const fn record(&self) -> Option<&Record> {
        match self {
            Self::Blocks(record) => Some(record),
            Self::Nothing | Self::All => None,
        }
    }
}

/// A copy that has no name in the union yet.
pub(crate) enum Copy {
    /// A regular file without a name.
    Unnamed(Arc<dyn BranchFile>),
    /// Anything, by its name in the work directory.
    Named(Box<CStr>),
}

impl Copy {
    /// The copy, held.
    pub(crate) fn object(&self, work: &Work) -> Result<Arc<dyn Object>> {
        match self {
            Self::Unnamed(file) => Ok(as_object(Arc::clone(file))),
            Self::Named(name) => work.dir().hold(Name::new(name)?),
        }
    }

    /// The copy, opened for writing.
    pub(crate) fn open(&self, work: &Work) -> Result<Arc<dyn BranchFile>> {
        match self {
            Self::Unnamed(file) => Ok(Arc::clone(file)),
            Self::Named(name) => work.dir().open_file(Name::new(name)?, OpenMode::READ | OpenMode::WRITE),
        }
    }
}

fn as_object(file: Arc<dyn BranchFile>) -> Arc<dyn Object> {
    file
}

impl Core {
    /// Puts a finished copy under all names of the file, and makes the file live there.
    pub(crate) fn publish(
        &self,
        work: &Work,
        node: &Arc<Node>,
        file: &Arc<File>,
        copy: &Copy,
        (data, missing): (&Arc<LowerData>, LowerParts),
        linked: bool,
    ) -> Result<()> {
        if missing != LowerParts::Nothing {
            self.record_lowers();
        }
        let mut state = self.state_with_upper_parents(file)?;
        let object = copy.object(work)?;
        // Nothing may fail once the copy has its names.
        let ino = object.stat()?.ino;
        let mut before = None;
        if state.names.is_empty() {
            // It has no name any more: it lives on in the open descriptors. Times that it was given so far are its own.
            if let Some((atime, mtime)) = state.orphan_times() {
                object.set_times(Some(SetTime::At(atime)), Some(SetTime::At(mtime)))?;
            }
            match (work.orphan_name_for(&*object)?, copy) {
                (Some((orphan, _)), copy) => {
                    let how = match copy {
                        Copy::Named(temp) => OrphanLink::RenameTemp(temp),
                        Copy::Unnamed(_) => OrphanLink::LinkObject(&*object),
                    };
                    work.keep(&orphan, how)?;
                    before = state.set_orphan_name(Some(orphan));
                }
                (None, Copy::Named(temp)) => work.dir().remove(Name::new(temp)?)?,
                (None, Copy::Unnamed(_)) => {}
            }
            state.set_orphan_times(None);
            state.at = InodeLocation::Orphan(object);
        } else {
            let number = state.apart.then(|| self.layers.shown_ino(0, ino));
            if let Some(number) = number {
                self.nodes.prepare_number(node, number);
            }
            self.nodes.begins_naming(node, &state);
            let given = self.layers.give_names(work, &state, copy, &*object);
            self.nodes.ends_naming(node);
            if number.is_some() {
                self.nodes.renumber(node, number.filter(|_| given.is_ok()));
            }
            given?;
            if linked {
                self.nodes.links((0, ino), node);
                if let InodeLocation::Lower(_) = state.at
                    && let Some(key) = state.inode
                {
                    self.nodes.forget_inode(key);
                }
            }
            state.at = InodeLocation::Upper;
            if state.apart {
                // Another file than the others from now on.
                let _ = self.coherence.recall_attributes(node.id);
            }
        }
        file.unsynced.change();
        let data_moved = missing != LowerParts::All;
        state.inode = Some((0, ino));
        state.below = (missing != LowerParts::Nothing).then(|| Arc::clone(data));
        state.partial = matches!(missing, LowerParts::Blocks(_));
        // What is open of a partial lower is the lower's.
        *file.partial.lock() = Weak::new();
        state.lost = 0;
        if state.names.is_empty() {
            self.record_descriptor(node, &state);
        }
        // The ledger has the new one.
        drop(before);
        if data_moved {
            file.io.replace(None);
        }
        if data_moved {
            self.swap_backing_node(state, node, file, ino);
        }
        Ok(())
    }

    /// The state of a file, to be changed, once all directories in which it has names are in the upper layer.
    fn state_with_upper_parents<'a>(&self, file: &'a File) -> Result<RwLockWriteGuard<'a, FileState>> {
        loop {
            // The parents may change until the state is ours, so they are checked again under it.
            let parents: Vec<_> = file.state.read().names.iter().map(|p| Arc::clone(&p.parent)).collect();
            for parent in &parents {
                self.ensure_upper_dir(parent)?;
            }
            let state = file.state.write();
            if state.names.iter().all(|p| p.parent.as_dir().is_some_and(|d| d.upper.lock().is_some())) {
                return Ok(state);
            }
        }
    }

    /// Gives a file a new node if the kernel has its lower file as the backing of the old one. `ino`: of its inode in the upper layer.
    fn swap_backing_node(
        &self,
        state: RwLockWriteGuard<'_, FileState>,
        node: &Arc<Node>,
        file: &Arc<File>,
        ino: u64,
    ) {
        if node.marks().lower_passthrough.load(Relaxed) {
            self.swap_node(state, (node, file), Some((0, ino)));
        }
    }

    /// The data of a file, whose inode in the upper layer is `ino`, are in that now, all or (`partial`) in blocks.
    pub(crate) fn set_data_location(&self, node: &Arc<Node>, file: &Arc<File>, ino: u64, partial: bool) {
        let mut state = file.state.write();
        if !partial {
            state.below = None;
        }
        state.partial = partial;
        if partial {
            self.record_lowers();
        }
        file.unsynced.change();
        file.io.replace(None);
        self.swap_backing_node(state, node, file, ino);
    }
}

impl Layers {
    /// Gives a copy all names of the file: all, or none when one of them fails.
    fn give_names(&self, work: &Work, state: &FileState, copy: &Copy, object: &dyn Object) -> Result<()> {
        for (count, place) in state.names.iter().enumerate() {
            let given = (|| {
                let parent = self.upper_parent(place)?;
                let name = Name::new(&place.name)?;
                let before = parent.stat()?;
                match copy {
                    Copy::Named(temp) if count == 0 => {
                        work.dir().rename(Name::new(temp)?, &*parent, name, RenameFlags::empty())?;
                    }
                    _ => parent.link_object(object, name)?,
                }
                restore_times(&*parent, &before);
                Ok(())
            })();
            if let Err(error) = given {
                self.take_names(state.names.iter().take(count));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Takes the names back that a copy was given, so that they show the original again.
    fn take_names<'a>(&self, names: impl Iterator<Item = &'a Dentry>) {
        for place in names {
            let taken = (|| {
                let parent = self.upper_parent(place)?;
                let before = parent.stat()?;
                parent.remove(Name::new(&place.name)?)?;
                restore_times(&*parent, &before);
                Ok::<(), Error>(())
            })();
            if let Err(error) = taken {
                let name = place.name.to_string_lossy();
                tracing::error!(%error, %name, "a hard link of an unfinished copy stays: its names are two files now");
            }
        }
    }

    fn upper_parent(&self, place: &Dentry) -> Result<Arc<dyn BranchDir>> {
        let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
        self.upper_of(parent)?.ok_or_else(|| Errno::STALE.into())
    }
}
