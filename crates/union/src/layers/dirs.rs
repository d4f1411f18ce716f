//! Directories of the layers are opened, and kept open as long as the budget allows. Those in the upper layer may move: they are
//! found again by where they are now.

use crate::layers::Layers;
use crate::layers::handles::Slot;
use crate::layers::layer::LowerDir;
use crate::layers::marks::{self, DirMarks};
use crate::nodes::node::{Dentry, Dir, UpperDir};
use crate::nodes::shared_name::SharedName;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{BranchDir, Errno, Error, Name, Result};

impl Layers {
    /// The root of the union, and its inode number.
    pub(crate) fn root_dir(&self) -> Result<(Dir, u64)> {
        let dir = Dir::new(None, self.lower_roots.clone(), Some(SharedName::from(c"")));
        let mut ino = self.lower_roots.last().map(|root| root.ino);
        if self.config.upper.is_some()
            && let Some(layer) = self.first()
        {
            let handle = layer.branch.root();
            let attr = handle.stat()?;
            let marks = marks::read_dir_marks(&*handle, layer.marking.spaces)?;
            ino = ino.or(Some(self.shown_ino(0, attr.ino)));
            let upper = UpperDir::new(attr.ino, handle, &marks);
            upper.slot.pin();
            *dir.upper.lock() = Some(upper);
        }
        Ok((dir, ino.unwrap_or(1)))
    }

    /// Opens a directory in the upper layer again after its handle was given back. Its path may be changing at the
    /// same time, so what is found is checked and the search repeated.
    fn reopen_upper(&self, dir: &Dir) -> Result<Arc<dyn BranchDir>> {
        const TRIES: usize = 64;
        for _ in 0..TRIES {
            // Up to the first parent that is open (the root always is), then down again: without recursion, for a
            // tree may be deeper than a stack.
            let mut chain: Vec<Dentry> = Vec::new();
            let mut next = dir.place.read().clone();
            let mut handle = None;
            while let Some(place) = next {
                let parent = place.parent.as_dir().ok_or(Errno::NOTDIR)?;
                let open = parent.upper.lock().as_ref().and_then(|upper| upper.slot.get());
                next = if open.is_some() { None } else { parent.place.read().clone() };
                handle = open;
                chain.push(place);
            }
            let Some(mut handle) = handle else { break };
            let mut found = false;
            while let Some(place) = chain.pop() {
                let below = chain.last().map(|place| Arc::clone(&place.parent));
                let target = below.as_ref().and_then(|node| node.as_dir()).unwrap_or(dir);
                match self.open_upper_child(&*handle, &place.name, target) {
                    Some(open) => handle = open,
                    None => {
                        found = false;
                        break;
                    }
                }
                found = true;
            }
            if found {
                return Ok(handle);
            }
            std::thread::yield_now();
        }
        Err(Error::new(Errno::STALE, "a directory of the upper layer has gone"))
    }

    /// Opens `name` in `parent` if it is `dir`'s directory in the upper layer, and keeps it open there.
    fn open_upper_child(&self, parent: &dyn BranchDir, name: &CStr, dir: &Dir) -> Option<Arc<dyn BranchDir>> {
        let upper = dir.upper.lock().clone()?;
        let handle = parent.open_dir(Name::new(name).ok()?).ok()?;
        if handle.stat().ok()?.ino != upper.ino {
            return None;
        }
        let (handle, filled) = upper.slot.fill(handle);
        if filled {
            self.watch(&upper.slot, handle.as_descriptor());
        }
        Some(handle)
    }

    /// A directory's handle in the upper layer; None: it is not there.
    pub(crate) fn upper_of(&self, dir: &Dir) -> Result<Option<Arc<dyn BranchDir>>> {
        let Some(upper) = dir.upper.lock().clone() else { return Ok(None) };
        match upper.slot.get() {
            Some(handle) => Ok(Some(handle)),
            None => self.reopen_upper(dir).map(Some),
        }
    }

    /// Notes that a directory is in the upper layer now.
    pub(crate) fn set_upper(&self, dir: &Dir, upper: UpperDir) {
        let handle = upper.slot.get();
        let descriptor = handle.as_ref().and_then(|handle| handle.as_descriptor());
        self.watch(&upper.slot, descriptor);
        *dir.upper.lock() = Some(upper);
    }
}

impl LowerDir {
    /// A handle to the directory.
    pub(crate) fn open(self: &Arc<Self>, layers: &Layers) -> Result<Arc<dyn BranchDir>> {
        if let Some(handle) = self.slot.get() {
            return Ok(handle);
        }
        let layer = layers.layer(self.layer).ok_or(Error::new(Errno::IO, "no such layer"))?;
        let handle = layer.branch.open_dir_path(&self.path).map_err(|e| e.at(self.path.to_bytes()))?;
        Ok(self.keep(handle, layers))
    }

    /// Keeps a handle that has just been opened.
    pub(crate) fn keep(self: &Arc<Self>, handle: Arc<dyn BranchDir>, layers: &Layers) -> Arc<dyn BranchDir> {
        let (handle, filled) = self.slot.fill(handle);
        if filled {
            layers.watch(self, handle.as_descriptor());
        }
        handle
    }
}

impl UpperDir {
    pub(crate) fn new(ino: u64, handle: Arc<dyn BranchDir>, marks: &DirMarks) -> Self {
        let slot = Slot::empty();
        slot.fill(handle);
        Self { ino, slot: Arc::new(slot), xwhiteouts: marks.xwhiteouts, impure: marks.impure }
    }
}
