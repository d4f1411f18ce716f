//! Hard links in a layer.
//!
//! The other names of an inode are found by listing the layer once: when a file with several is copied up,
//! all names that show in the union become hard links in the upper, and stay linked for whoever mounts it.

use crate::layers::layer::c_string;
use crate::layers::marks::Space;
use crate::layers::moves::{DEPTH_MAX, LIMITS, Moves};
use crate::nodes::recovery::ledger::Ledger;
use crate::sync::Mutex;
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::{Arc, OnceLock};
use vellum_vfs::{Branch, BranchDir, Errno, FileKind, Name, Result};

/// All names of every inode that has several names in one layer, and all directories that have moved in it.
#[derive(Default)]
pub(crate) struct LayerLinks {
    names: OnceLock<HashMap<u64, Vec<Box<CStr>>>>,
    moved: Mutex<MovesCache>,
    /// Held by the one that searches the layer: others wait for what it finds, instead of searching as well.
    search: Mutex<()>,
}

#[derive(Default)]
struct MovesCache {
    known: Option<Arc<Moves>>,
    /// How often that was found to be true no longer.
    changes: u64,
}

impl LayerLinks {
    /// Paths in the layer (no leading slash) of the inode `ino`. `ledger`: what tells a successor that this was interrupted.
    pub(crate) fn paths(
        &self,
        branch: &dyn Branch,
        ino: u64,
        ledger: Option<&Ledger>,
    ) -> Result<&[Box<CStr>]> {
        if self.names.get().is_none() {
            let _one = self.search.lock();
            if self.names.get().is_none() {
                let note = |begins| ledger.into_iter().for_each(|ledger| ledger.note_own_search(begins));
                note(true);
                let found = scan(branch)?;
                note(false);
                let _ = self.names.set(found);
            }
        }
        Ok(self.names.get().and_then(|names| names.get(&ino)).map_or(&[], Vec::as_slice))
    }

    /// Directories of the layer that have moved.
    pub(crate) fn moved(&self, branch: &dyn Branch, spaces: &[Space]) -> Result<Arc<Moves>> {
        if let Some(known) = &self.moved.lock().known {
            return Ok(Arc::clone(known));
        }
        let _one = self.search.lock();
        let changes = {
            let moved = self.moved.lock();
            if let Some(known) = &moved.known {
                return Ok(Arc::clone(known));
            }
            moved.changes
        };
        let found = Arc::new(Moves::find(&*branch.root(), spaces, LIMITS)?);
        if found.is_full() {
            let layer = branch.describe();
            tracing::warn!(
                layer,
                "too many directories have moved: copy-up does not find all names of files"
            );
        }
        let mut moved = self.moved.lock();
        if moved.changes == changes {
            moved.known = Some(Arc::clone(&found));
        }
        Ok(found)
    }

    /// A directory of the layer has moved since.
    pub(crate) fn moved_again(&self) {
        let mut moved = self.moved.lock();
        moved.changes += 1;
        moved.known = None;
    }
}

/// Lists the layer twice: first numbers only, then the names of those that occur twice. A listing does not say the device of a number, so
/// those names are asked.
fn scan(branch: &dyn Branch) -> Result<HashMap<u64, Vec<Box<CStr>>>> {
    let mut times: HashMap<u64, bool> = HashMap::new();
    walk(&*branch.root(), &mut Vec::new(), 0, &mut |_, items, _| {
        for (_, ino) in items {
            times.entry(*ino).and_modify(|again| *again = true).or_insert(false);
        }
        Ok(())
    })?;
    times.retain(|_, again| *again);
    let mut names: HashMap<u64, Vec<Box<CStr>>> = HashMap::new();
    walk(&*branch.root(), &mut Vec::new(), 0, &mut |dir, items, path| {
        for (name, _) in items.iter().filter(|(_, ino)| times.contains_key(ino)) {
            match dir.stat_at(Name::new(name)?) {
                Ok(attr) if attr.nlink > 1 => {
                    names.entry(attr.ino).or_default().push(joined(path, name.to_bytes()));
                }
                Ok(_) => {}
                Err(e) if e.errno() == Errno::NOENT => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    })?;
    Ok(names)
}

/// A name in a directory, with its number as the directory states it.
type Item = (Box<CStr>, u64);

/// What is done with a directory, what is in it, and its path.
type Visit<'a> = dyn FnMut(&dyn BranchDir, &[Item], &[u8]) -> Result<()> + 'a;

fn joined(path: &[u8], name: &[u8]) -> Box<CStr> {
    let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
    c_string([path, slash, name].concat())
}

fn walk(dir: &dyn BranchDir, path: &mut Vec<u8>, depth: usize, each: &mut Visit<'_>) -> Result<()> {
    if depth > DEPTH_MAX {
        return Ok(());
    }
    let (mut inner, mut items): (Vec<Box<CStr>>, Vec<Item>) = (Vec::new(), Vec::new());
    dir.list(&mut |item| {
        if matches!(item.kind, None | Some(FileKind::Directory)) {
            inner.push(item.name.as_c_str().into());
        }
        if item.kind != Some(FileKind::Directory) {
            items.push((item.name.as_c_str().into(), item.ino));
        }
        Ok(())
    })?;
    each(dir, &items, path)?;
    drop(items);
    let base = path.len();
    for name in inner {
        let name = Name::new(&name)?;
        match dir.open_dir(name) {
            Ok(child) => {
                if base > 0 {
                    path.push(b'/');
                }
                path.extend_from_slice(name.bytes());
                walk(&*child, path, depth + 1, each)?;
                path.truncate(base);
            }
            Err(e) if matches!(e.errno(), Errno::NOTDIR | Errno::LOOP) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::marks::ANY;
    use std::ffi::CString;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;
    use vellum_branch::MemoryBranch;
    use vellum_vfs::Result;

    /// Counts the searches, each of which takes a while.
    struct Counting(Arc<MemoryBranch>, AtomicUsize);

    impl Branch for Counting {
        fn inner(&self) -> Result<&dyn Branch> {
            Ok(&*self.0)
        }

        fn root(&self) -> Arc<dyn BranchDir> {
            self.1.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(30));
            self.0.root()
        }

        fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
            self.0.open_dir_path(path)
        }
    }

    #[test]
    fn concurrent_link_searches_share_one_scan() {
        let disk = MemoryBranch::new();
        let (root, file, link) = (disk.root(), CString::new("f").unwrap(), CString::new("g").unwrap());
        root.create(Name::new(&file).unwrap(), 0o600).unwrap();
        let object = root.hold(Name::new(&file).unwrap()).unwrap();
        root.link_object(&*object, Name::new(&link).unwrap()).unwrap();
        let ino = object.stat().unwrap().ino;
        let branch = Counting(disk, AtomicUsize::new(0));
        let (links, barrier) = (LayerLinks::default(), Barrier::new(8));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    barrier.wait();
                    assert_eq!(links.paths(&branch, ino, None).unwrap().len(), 2);
                    assert!(links.moved(&branch, ANY).unwrap().is_empty());
                });
            }
        });
        assert_eq!(branch.1.load(SeqCst), 3, "two lists for names, one for what has moved");
        links.moved_again();
        links.moved(&branch, ANY).unwrap();
        assert_eq!(branch.1.load(SeqCst), 4);
    }
}
