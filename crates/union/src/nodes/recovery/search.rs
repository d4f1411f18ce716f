//! The search for all names of an inode, which goes on where a killed process was.
//!
//! A process lists a layer once for all inodes, in its own memory ([`links`](crate::layers::links)). Where one is killed meanwhile, a successor
//! may be killed as soon. So it searches for one inode, and has what is still to be listed in memory that outlives it: a
//! stack of directories. A directory stays on it until all in it were listed. One store of a word ends the work on a directory, so each
//! life makes at least that of one.

use crate::nodes::recovery::ledger::Ledger;
use std::ffi::{CStr, CString};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use vellum_vfs::{Branch, Errno, FileKind, Name, Result};

/// Words of the ledger for it.
pub(super) const WORDS: usize = 1 << 22;
/// Where names that were found begin.
const NAMES: usize = 3 << 20;

mod word {
    /// 1: a process searches in its own memory.
    pub(super) const OWN: usize = 0;
    /// The layers to be searched, 0: there is no search.
    pub(super) const LAYERS: usize = 1;
    pub(super) const INO: usize = 2;
    /// The layer, and the top of the stack.
    pub(super) const TOP: usize = 3;
    /// Where the next name goes that is found.
    pub(super) const END: usize = 4;
    pub(super) const DEEPEST: usize = 5;
    pub(super) const FILESYSTEM: usize = 6;
    /// The root of a layer, the lowest of the stack.
    pub(super) const ROOT: usize = 512;
}

/// The word TOP when all is listed.
const DONE: u64 = u64::MAX;
/// Words of an entry of the stack before its name: the parent and the length, the entry below it.
const ENTRY: usize = 2;

/// What is searched for: an inode of layers from the first on, up to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchKey {
    pub(crate) first: u16,
    pub(crate) last: u16,
    pub(crate) ino: u64,
    /// The deepest directory that is listed.
    pub(crate) deepest: usize,
    /// Which layers are searched, by their filesystem; 0: all of them.
    pub(crate) filesystem: u64,
}

/// A layer and a path in it.
pub(crate) type SearchResult = (u16, Vec<u8>);

/// The top of the stack.
#[derive(Clone, Copy)]
struct Top {
    layer: u16,
    at: usize,
    /// What is in the directory has been listed.
    is_listed: bool,
}

impl Top {
    const fn root(layer: u16) -> Self {
        Self { layer, at: word::ROOT, is_listed: false }
    }

    const fn to_word(self) -> u64 {
        (self.layer as u64) << 48 | (self.at as u64) << 1 | self.is_listed as u64
    }

    fn from_word(word: u64) -> Option<Self> {
        let at = (word >> 1) as usize & ((1 << 47) - 1);
        (word != DONE).then_some(Self { layer: (word >> 48) as u16, at, is_listed: word & 1 == 1 })
    }
}

/// An entry of the stack.
struct Entry {
    parent: usize,
    before: usize,
    name: Vec<u8>,
}

impl Ledger {
    fn searching(&self, at: usize) -> u64 {
        self.search_word(at).map_or(0, |word| word.load(Acquire))
    }

    fn set_searching(&self, at: usize, value: u64) {
        if let Some(word) = self.search_word(at) {
            word.change().store(value, Release);
        }
    }

    /// Whether a predecessor was killed while it searched.
    pub(super) fn had_interrupted_search(&self) -> bool {
        self.searching(word::OWN) != 0 || self.searching(word::LAYERS) != 0
    }

    /// This process begins or ends a search in its own memory.
    pub(crate) fn note_own_search(&self, begins: bool) {
        self.set_searching(word::OWN, begins.into());
    }

    /// What was found is not needed any more.
    pub(crate) fn end_search(&self) {
        if !self.is_search_kept.load(Relaxed) {
            return;
        }
        let _one = self.search.lock();
        if self.searching(word::TOP) == DONE {
            self.clear_search();
            self.note_own_search(false);
            self.is_search_kept.store(false, Relaxed);
        }
    }

    fn clear_search(&self) {
        self.set_searching(word::LAYERS, 0);
        self.release_search();
    }

    /// Paths of an inode. None: no search was interrupted, or there is no room for this one.
    pub(crate) fn search<'a>(
        &self,
        wanted: SearchKey,
        branch: &dyn Fn(u16) -> Option<&'a dyn Branch>,
    ) -> Result<Option<Vec<SearchResult>>> {
        if !self.is_search_kept.load(Relaxed) {
            return Ok(None);
        }
        let _one = self.search.lock();
        if let Some(other) = self.wanted().filter(|other| *other != wanted) {
            // It is to end, too, whoever asks first.
            if let Err(error) = self.list_all(other, branch) {
                tracing::debug!(%error, "a search of a predecessor is given up");
            }
            self.clear_search();
        }
        if self.wanted().is_none() {
            self.set_searching(word::END, NAMES as u64);
            self.set_searching(word::INO, wanted.ino);
            self.set_searching(word::DEEPEST, wanted.deepest as u64);
            self.set_searching(word::FILESYSTEM, wanted.filesystem);
            self.set_searching(word::TOP, Top::root(wanted.first).to_word());
            self.set_searching(
                word::LAYERS,
                1 << 32 | u64::from(wanted.first) << 16 | u64::from(wanted.last),
            );
        }
        if self.list_all(wanted, branch)? {
            return Ok(Some(self.names_found()));
        }
        tracing::warn!(
            "too many directories in a layer: the search for the names of a file may take until no service is killed meanwhile"
        );
        self.clear_search();
        self.is_search_kept.store(false, Relaxed);
        Ok(None)
    }

    fn wanted(&self) -> Option<SearchKey> {
        let layers = self.searching(word::LAYERS);
        let (first, last) = ((layers >> 16) as u16, layers as u16);
        let (ino, deepest) = (self.searching(word::INO), self.searching(word::DEEPEST) as usize);
        let filesystem = self.searching(word::FILESYSTEM);
        (layers != 0).then_some(SearchKey { first, last, ino, deepest, filesystem })
    }

    /// False: there is no room.
    fn list_all<'a>(
        &self,
        wanted: SearchKey,
        branch: &dyn Fn(u16) -> Option<&'a dyn Branch>,
    ) -> Result<bool> {
        while let Some(top) = Top::from_word(self.searching(word::TOP)) {
            let next = match branch(top.layer) {
                Some(branch) if !top.is_listed => match self.list_one(top, wanted, branch)? {
                    Some(next) => next,
                    None => return Ok(false),
                },
                _ => self.below(top),
            };
            let next = match next {
                Some(next) => next.to_word(),
                None if top.layer < wanted.last => Top::root(top.layer + 1).to_word(),
                None => DONE,
            };
            self.set_searching(word::TOP, next);
        }
        Ok(true)
    }

    /// The top without this one; None: it was the last one of its layer.
    fn below(&self, top: Top) -> Option<Top> {
        let entry = self.entry(top.at);
        // Those in a directory lie right above it.
        (top.at != word::ROOT && entry.before < top.at).then_some(Top {
            at: entry.before,
            is_listed: entry.before == entry.parent,
            ..top
        })
    }

    /// Lists the directory at the top, and adds the directories in it. The top from then on; None: there is no room.
    fn list_one(&self, top: Top, wanted: SearchKey, branch: &dyn Branch) -> Result<Option<Option<Top>>> {
        let SearchKey { ino, deepest, .. } = wanted;
        let (path, depth) = self.path(top.at, deepest);
        let c_path = CString::new(path.clone()).map_err(|_| Errno::IO)?;
        let dir = match branch.open_dir_path(&c_path) {
            Ok(dir) => dir,
            Err(e) if matches!(e.errno(), Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {
                return Ok(Some(self.below(top)));
            }
            Err(e) => return Err(e),
        };
        let (mut inner, mut names): (Vec<Box<CStr>>, Vec<Box<CStr>>) = (Vec::new(), Vec::new());
        dir.list(&mut |item| {
            if depth < deepest && matches!(item.kind, None | Some(FileKind::Directory)) {
                inner.push(item.name.as_c_str().into());
            }
            if item.kind != Some(FileKind::Directory) && item.ino == ino {
                names.push(item.name.as_c_str().into());
            }
            Ok(())
        })?;
        let mut end = self.searching(word::END) as usize;
        for name in names {
            // A listing does not say the device of a number.
            match dir.stat_at(Name::new(&name)?) {
                Ok(attr) if attr.nlink > 1 && attr.ino == ino => {}
                Ok(_) => continue,
                Err(e) if e.errno() == Errno::NOENT => continue,
                Err(e) => return Err(e),
            }
            let slash: &[u8] = if path.is_empty() { b"" } else { b"/" };
            let found = [&path, slash, name.to_bytes()].concat();
            let after = end + 1 + words(found.len());
            if after > WORDS {
                return Ok(None);
            }
            self.set_searching(end, u64::from(top.layer) << 32 | found.len() as u64);
            self.write(end + 1, &found);
            end = after;
        }
        // Found again after a kill before the last store, it is there twice.
        self.set_searching(word::END, end as u64);
        let (mut before, mut at) = (top.at, top.at + ENTRY + words(self.entry(top.at).name.len()));
        for name in &inner {
            let name = name.to_bytes();
            let after = at + ENTRY + words(name.len());
            if after > NAMES {
                return Ok(None);
            }
            self.set_searching(at, (top.at as u64) << 16 | name.len() as u64);
            self.set_searching(at + 1, before as u64);
            self.write(at + ENTRY, name);
            (before, at) = (at, after);
        }
        Ok(Some(if inner.is_empty() { self.below(top) } else { Some(Top { at: before, ..top }) }))
    }

    fn entry(&self, at: usize) -> Entry {
        if at == word::ROOT {
            return Entry { parent: at, before: at, name: Vec::new() };
        }
        let head = self.searching(at);
        Entry {
            parent: (head >> 16) as usize,
            before: self.searching(at + 1) as usize,
            name: self.read_bytes(at + ENTRY, usize::from(head as u16)),
        }
    }

    /// The path of a directory on the stack, and how deep it is.
    fn path(&self, mut at: usize, deepest: usize) -> (Vec<u8>, usize) {
        let mut names = Vec::new();
        while at != word::ROOT && names.len() <= deepest {
            let entry = self.entry(at);
            names.push(entry.name);
            at = entry.parent;
        }
        names.reverse();
        (names.join(&b'/'), names.len())
    }

    fn names_found(&self) -> Vec<SearchResult> {
        let (mut at, end) = (NAMES, self.searching(word::END) as usize);
        let mut found = Vec::new();
        while at < end {
            let head = self.searching(at);
            let len = head as u32 as usize;
            found.push(((head >> 32) as u16, self.read_bytes(at + 1, len)));
            at += 1 + words(len);
        }
        found
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (word, part) in bytes.chunks(8).enumerate() {
            let mut value = [0; 8];
            value.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
            self.set_searching(at + word, u64::from_ne_bytes(value));
        }
    }

    fn read_bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..words(len)).flat_map(|word| self.searching(at + word).to_ne_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

const fn words(bytes: usize) -> usize {
    bytes.div_ceil(8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use vellum_branch::MemoryBranch;
    use vellum_vfs::BranchDir;

    /// Whose process is killed when it has opened so many directories more.
    struct Mortal(Arc<MemoryBranch>, AtomicUsize);

    impl Branch for Mortal {
        fn inner(&self) -> Result<&dyn Branch> {
            Ok(&*self.0)
        }

        fn root(&self) -> Arc<dyn BranchDir> {
            self.0.root()
        }

        fn open_dir_path(&self, path: &CStr) -> Result<Arc<dyn BranchDir>> {
            let lives = self.1.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
            if lives { self.0.open_dir_path(path) } else { Err(Errno::IO.into()) }
        }
    }

    fn name(text: &str) -> CString {
        CString::new(text).unwrap()
    }

    /// A file with a name in each of `dirs` directories, which lie in one another by threes.
    fn tree(dirs: usize) -> (Arc<MemoryBranch>, u64, BTreeSet<Vec<u8>>) {
        let disk = MemoryBranch::new();
        disk.root().create(Name::new(&name("file")).unwrap(), 0o600).unwrap();
        let file = disk.root().hold(Name::new(&name("file")).unwrap()).unwrap();
        let mut all: Vec<(String, Arc<dyn BranchDir>)> = vec![(String::new(), disk.root())];
        let mut paths = BTreeSet::from([b"file".to_vec()]);
        for number in 0..dirs {
            let (above, parent) = all[number / 3].clone();
            let own = format!("a directory {number}");
            parent.make_dir(Name::new(&name(&own)).unwrap(), 0o700).unwrap();
            let dir = parent.open_dir(Name::new(&name(&own)).unwrap()).unwrap();
            dir.link_object(&*file, Name::new(&name("link")).unwrap()).unwrap();
            dir.create(Name::new(&name("other")).unwrap(), 0o600).unwrap();
            let path = if above.is_empty() { own } else { format!("{above}/{own}") };
            paths.insert(format!("{path}/link").into_bytes());
            all.push((path, dir));
        }
        (disk, file.stat().unwrap().ino, paths)
    }

    fn again(ledger: &Ledger) -> Ledger {
        Ledger::open(ledger.descriptor().try_clone_to_owned().unwrap()).unwrap()
    }

    #[test]
    fn a_repeatedly_killed_name_search_completes() {
        const DIRS: usize = 40;
        let (disk, ino, paths) = tree(DIRS);
        // Two layers: what is found in one does not go when the other is searched.
        let wanted = SearchKey { first: 1, last: 2, ino, deepest: 64, filesystem: 0 };
        let mut ledger = Ledger::create().unwrap();
        let mortal = Mortal(Arc::clone(&disk), AtomicUsize::new(0));
        let branch = |layer: u16| (layer < 3).then_some(&mortal as &dyn Branch);
        assert_eq!(ledger.search(wanted, &branch).unwrap(), None, "nothing was interrupted");
        ledger.note_own_search(true);
        let mut lives = 0;
        let found = loop {
            ledger = again(&ledger);
            mortal.1.store(1, Relaxed);
            if let Ok(found) = ledger.search(wanted, &branch) {
                break found.unwrap();
            }
            lives += 1;
            assert!(lives <= 2 * (DIRS + 1), "a life without progress");
        };
        for layer in [1, 2] {
            let of = found.iter().filter(|one| one.0 == layer).map(|one| one.1.clone());
            assert_eq!(of.collect::<BTreeSet<_>>(), paths, "layer {layer}");
        }
        // Who is killed before it uses them finds them at once.
        let ledger = again(&ledger);
        mortal.1.store(0, Relaxed);
        assert_eq!(ledger.search(wanted, &branch).unwrap().unwrap().len(), found.len());
        ledger.end_search();
        assert_eq!(again(&ledger).search(wanted, &branch).unwrap(), None, "it is over");
    }

    #[test]
    fn a_search_for_another_inode_ends_that_of_a_predecessor() {
        let (disk, ino, paths) = tree(5);
        let ledger = Ledger::create().unwrap();
        let mortal = Mortal(disk, AtomicUsize::new(2));
        let branch = |layer: u16| (layer < 1).then_some(&mortal as &dyn Branch);
        ledger.note_own_search(true);
        let ledger = again(&ledger);
        let of = |ino| SearchKey { first: 0, last: 0, ino, deepest: 64, filesystem: 0 };
        assert!(ledger.search(of(ino), &branch).is_err());
        let ledger = again(&ledger);
        mortal.1.store(100, Relaxed);
        assert_eq!(ledger.search(of(ino + 1000), &branch).unwrap().unwrap(), []);
        assert_eq!(ledger.search(of(ino), &branch).unwrap().unwrap().len(), paths.len());
    }
}
