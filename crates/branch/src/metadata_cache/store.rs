//! What is known, and how it is forgotten.

use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use vellum_vfs::{Attr, BranchDir, Errno, Error, FileKind, Name, Result};

/// Longest value of an extended attribute, target of a link and list of attributes that is kept, in bytes.
const KEPT_MAX: usize = 1024;
/// Most extended attributes of an object that are kept: a program may ask for whatever names it likes.
const XATTRS_MAX: usize = 16;
/// What is kept takes so many bytes beside names and values, about: an object with its name,
const OBJECT_BYTES: usize = 480;
/// a name that is missing, in a list, or of an extended attribute,
const NAME_BYTES: usize = 64;
/// and a directory, which the storage's client keeps, too.
const DIR_BYTES: usize = 2048;
/// One list takes at most such a part of all.
const LIST_PART: usize = 4;

/// What is known in a process of all that nobody changes: how much, and until when.
///
/// What goes with its branch goes without a word: the count of bytes is an upper bound, and right again when all was forgotten.
pub struct MetadataCache {
    /// How often all was forgotten: what was learned before that counts no more.
    turn: AtomicU64,
    bytes: AtomicUsize,
    most: usize,
    /// Directories that hold something.
    dirs: Mutex<Vec<Weak<Node>>>,
}

impl MetadataCache {
    /// Nothing is known; at most about so many bytes will be.
    #[must_use]
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { turn: AtomicU64::new(0), bytes: AtomicUsize::new(0), most, dirs: Mutex::default() })
    }

    /// Bytes that it takes, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes.load(SeqCst)
    }

    /// Forgets all, of all branches. What somebody is about to learn meanwhile is of an earlier turn, and is not believed.
    pub fn recall(&self) {
        let dirs = {
            let mut dirs = self.dirs.lock();
            self.turn.fetch_add(1, SeqCst);
            self.bytes.store(0, SeqCst);
            std::mem::take(&mut *dirs)
        };
        // Whoever holds one does not keep all that was known below it.
        for dir in dirs.iter().filter_map(Weak::upgrade) {
            drop(dir.facts());
        }
    }

    /// So many bytes more. Where there is no room for them, all is forgotten.
    fn charge(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, SeqCst) + bytes > self.most {
            self.recall();
        }
    }
}

/// An entry of a list of names.
pub(super) struct Item {
    pub(super) name: Box<CStr>,
    pub(super) ino: u64,
    pub(super) kind: Option<FileKind>,
}

/// A file's attributes, and the count of its changes, where the storage has one.
pub(super) type Version = (Attr, Option<u64>);

/// What is known of an object. What is not there was not asked.
#[derive(Default)]
struct Facts {
    turn: u64,
    attr: Option<Attr>,
    /// Of a file with these attributes: the storage's count of its changes, if it has one.
    count: Option<Option<u64>>,
    target: Option<Box<[u8]>>,
    xattrs: Option<Box<Xattrs>>,
    /// Of a directory.
    inside: Option<Box<Tables>>,
}

/// A value of an extended attribute, or why there is none.
type Value = Result<Box<[u8]>, Errno>;

#[derive(Default)]
struct Xattrs {
    list: Option<Box<[u8]>>,
    values: Vec<(Box<CStr>, Value)>,
}

#[derive(Default)]
struct Tables {
    handle: Option<Arc<dyn BranchDir>>,
    /// None: it is missing.
    names: HashMap<Box<CStr>, Option<Arc<Node>>>,
    /// All names, sorted.
    list: Option<Arc<[Item]>>,
}

/// An object of the branch, by one of its names.
pub(super) struct Node {
    pub(super) known: Arc<MetadataCache>,
    facts: Mutex<Facts>,
}

/// What was found of a name.
pub(super) enum CachedLookup {
    Found(Arc<Node>, Attr),
    Missing,
    /// It has to be asked, in this turn.
    Unknown(u64),
}

impl Node {
    pub(super) fn new(known: &Arc<MetadataCache>) -> Arc<Self> {
        let facts = Facts { turn: known.turn.load(SeqCst), ..Facts::default() };
        Arc::new(Self { known: Arc::clone(known), facts: Mutex::new(facts) })
    }

    /// What is known now: nothing that was forgotten.
    fn facts(&self) -> MutexGuard<'_, Facts> {
        let mut facts = self.facts.lock();
        let turn = self.known.turn.load(SeqCst);
        if facts.turn != turn {
            *facts = Facts { turn, ..Facts::default() };
        }
        facts
    }

    /// Keeps something of so many bytes that was asked in a turn, unless all was forgotten since.
    fn cache_facts(&self, turn: u64, bytes: usize, keep: impl FnOnce(&mut Facts)) {
        self.known.charge(bytes);
        let mut facts = self.facts();
        if facts.turn == turn {
            keep(&mut facts);
        }
    }

    /// As [`Self::cache_facts`], of what is in a directory.
    fn cache_children(self: &Arc<Self>, turn: u64, bytes: usize, keep: impl FnOnce(&mut Tables)) {
        let note = || self.known.dirs.lock().push(Arc::downgrade(self));
        let is_new = self.facts().inside.is_none();
        self.cache_facts(turn, bytes + if is_new { DIR_BYTES } else { 0 }, |facts| {
            if facts.inside.is_none() {
                note();
            }
            keep(facts.inside.get_or_insert_default());
        });
    }

    pub(super) fn attr(&self, ask: impl FnOnce() -> Result<Attr>) -> Result<Attr> {
        let turn = {
            let facts = self.facts();
            if let Some(attr) = facts.attr {
                return Ok(attr);
            }
            facts.turn
        };
        let attr = ask()?;
        self.cache_facts(turn, 0, |facts| facts.attr = Some(attr));
        Ok(attr)
    }

    /// The version of a file's contents; otherwise the turn in which it is to be asked.
    pub(super) fn version(&self) -> Result<Version, u64> {
        let facts = self.facts();
        facts.attr.zip(facts.count).ok_or(facts.turn)
    }

    /// Keeps the version of a file, which was opened in a turn. One that is not the file that was known, as it was known, shows that the
    /// layer has changed.
    pub(super) fn learn_version(&self, turn: u64, (attr, count): Version) {
        if self.facts().attr.is_some_and(|known| !is_same(&(known, None), &(attr, None))) {
            return self.known.recall();
        }
        self.cache_facts(turn, 0, |facts| (facts.attr, facts.count) = (Some(attr), Some(count)));
    }

    /// What a name in this directory leads to.
    pub(super) fn look(&self, name: Name<'_>) -> CachedLookup {
        let facts = self.facts();
        let turn = facts.turn;
        let Some(inside) = &facts.inside else { return CachedLookup::Unknown(turn) };
        let found = match inside.names.get(name.as_c_str()) {
            Some(Some(node)) => Arc::clone(node),
            Some(None) => return CachedLookup::Missing,
            None => {
                let name = name.as_c_str();
                let is_missing = inside
                    .list
                    .as_ref()
                    .is_some_and(|list| list.binary_search_by(|item| (*item.name).cmp(name)).is_err());
                return if is_missing { CachedLookup::Missing } else { CachedLookup::Unknown(turn) };
            }
        };
        drop(facts);
        let attr = found.facts().attr;
        attr.map_or(CachedLookup::Unknown(turn), |attr| CachedLookup::Found(found, attr))
    }

    /// Keeps what a name leads to; None: nothing.
    pub(super) fn learn_name(
        self: &Arc<Self>,
        turn: u64,
        name: Name<'_>,
        attr: Option<Attr>,
    ) -> Option<Arc<Self>> {
        let node = attr.map(|attr| {
            let node = Self::new(&self.known);
            node.facts.lock().attr = Some(attr);
            node
        });
        let bytes = name.bytes().len() + if node.is_some() { OBJECT_BYTES } else { NAME_BYTES };
        let mut kept = node.clone();
        self.cache_children(turn, bytes, |inside| {
            let entry = inside.names.entry(name.as_c_str().into()).or_default();
            // Another one that has asked at the same time may have learned more of it.
            let is_better = entry.as_ref().is_none_or(|there| there.facts().attr.is_none());
            if is_better {
                *entry = node;
            }
            kept = entry.clone();
        });
        kept
    }

    /// The handle of this directory, by which others have opened it; otherwise the turn in which it is to be opened.
    pub(super) fn handle(&self) -> Result<Arc<dyn BranchDir>, u64> {
        let facts = self.facts();
        facts.inside.as_ref().and_then(|inside| inside.handle.clone()).ok_or(facts.turn)
    }

    pub(super) fn learn_handle(self: &Arc<Self>, turn: u64, handle: &Arc<dyn BranchDir>) {
        self.cache_children(turn, 0, |inside| inside.handle = Some(Arc::clone(handle)));
    }

    /// All names of this directory; otherwise the turn in which they are to be asked.
    pub(super) fn list(&self) -> Result<Arc<[Item]>, u64> {
        let facts = self.facts();
        facts.inside.as_ref().and_then(|inside| inside.list.clone()).ok_or(facts.turn)
    }

    pub(super) fn learn_list(self: &Arc<Self>, turn: u64, mut items: Items) {
        items.all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        self.cache_children(turn, items.bytes, |inside| inside.list = Some(items.all.into()));
    }

    /// A list that is to be kept, as far as it has come.
    pub(super) fn items(&self) -> Items {
        Items { all: Vec::new(), bytes: 0, most: self.known.most / LIST_PART }
    }

    /// The target of a symbolic link. `ask` fills a buffer.
    pub(super) fn target(&self, buf: &mut [u8], ask: impl Fn(&mut [u8]) -> Result<usize>) -> Result<usize> {
        let turn = {
            let facts = self.facts();
            if let Some(target) = facts.target.as_deref().filter(|_| !buf.is_empty()) {
                let len = target.len().min(buf.len());
                buf.iter_mut().zip(target).for_each(|(to, from)| *to = *from);
                return Ok(len);
            }
            facts.turn
        };
        let len = ask(buf)?;
        // One that fills the buffer may be longer.
        if let Some(target) = buf.get(..len).filter(|_| len < buf.len() && len <= KEPT_MAX) {
            self.cache_facts(turn, len, |facts| facts.target = Some(target.into()));
        }
        Ok(len)
    }

    /// An extended attribute. `ask` asks for it as [`vellum_vfs::Object::get_xattr`].
    pub(super) fn xattr(
        &self,
        name: &CStr,
        buf: &mut [u8],
        ask: impl Fn(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let turn = {
            let facts = self.facts();
            let values = facts.xattrs.as_ref().map(|xattrs| &xattrs.values);
            if let Some((_, found)) = values.into_iter().flatten().find(|(known, _)| **known == *name) {
                return found
                    .as_ref()
                    .map_err(|errno| Error::from(*errno))
                    .and_then(|value| copy_value(value, buf));
            }
            facts.turn
        };
        let (kept, answer) = read_complete(buf, &ask);
        if let Some(kept) = kept {
            let bytes = NAME_BYTES + name.count_bytes() + kept.as_ref().map_or(0, |value| value.len());
            self.cache_facts(turn, bytes, |facts| {
                let values = &mut facts.xattrs.get_or_insert_default().values;
                if values.len() < XATTRS_MAX {
                    values.push((name.into(), kept));
                }
            });
        }
        answer
    }

    /// Names of extended attributes, as [`Self::xattr`].
    pub(super) fn xattr_list(
        &self,
        buf: &mut [u8],
        ask: impl Fn(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let turn = {
            let facts = self.facts();
            if let Some(list) = facts.xattrs.as_ref().and_then(|xattrs| xattrs.list.as_deref()) {
                return copy_value(list, buf);
            }
            facts.turn
        };
        let (kept, answer) = read_complete(buf, &ask);
        if let Some(Ok(list)) = kept {
            self.cache_facts(turn, NAME_BYTES + list.len(), |facts| {
                facts.xattrs.get_or_insert_default().list = Some(list);
            });
        }
        answer
    }
}

/// Whether both are of one file with the same contents.
pub(super) fn is_same((one, count): &Version, (other, other_count): &Version) -> bool {
    let what = |attr: &Attr| (attr.dev, attr.ino, attr.size);
    let is_changed = match (count, other_count) {
        (Some(count), Some(other)) => count != other,
        _ => one.ctime != other.ctime,
    };
    what(one) == what(other) && !is_changed
}

impl Drop for Node {
    /// One after the other: a tree may be deeper than a stack.
    fn drop(&mut self) {
        let children = |node: &mut Self| {
            let names = node.facts.get_mut().inside.take().map(|inside| inside.names);
            names.into_iter().flatten().filter_map(|(_, node)| node)
        };
        let mut rest: Vec<Arc<Self>> = children(self).collect();
        while let Some(node) = rest.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                rest.extend(children(&mut node));
            }
        }
    }
}

/// A list while it is read.
pub(super) struct Items {
    all: Vec<Item>,
    bytes: usize,
    most: usize,
}

impl Items {
    /// One more. False: there are too many to be kept.
    pub(super) fn add(&mut self, name: Name<'_>, ino: u64, kind: Option<FileKind>) -> bool {
        self.bytes += NAME_BYTES + name.bytes().len();
        if self.bytes > self.most {
            self.all = Vec::new();
            return false;
        }
        self.all.push(Item { name: name.as_c_str().into(), ino, kind });
        true
    }
}

/// Asks for more than a buffer may have room for, so that the answer is good for others, too: what to keep, and the answer.
fn read_complete(
    buf: &mut [u8],
    ask: &impl Fn(&mut [u8]) -> Result<usize>,
) -> (Option<Value>, Result<usize>) {
    let mut place = [0; KEPT_MAX];
    match ask(&mut place) {
        Ok(len) => {
            let value: Box<[u8]> = place.get(..len).unwrap_or_default().into();
            let answer = copy_value(&value, buf);
            (Some(Ok(value)), answer)
        }
        Err(error) if error.errno() == Errno::RANGE => (None, ask(buf)),
        Err(error) if matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP) => {
            (Some(Err(error.errno())), Err(error))
        }
        Err(error) => (None, Err(error)),
    }
}

/// As getxattr(2) answers.
fn copy_value(value: &[u8], buf: &mut [u8]) -> Result<usize> {
    if !buf.is_empty() {
        buf.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len())
}
