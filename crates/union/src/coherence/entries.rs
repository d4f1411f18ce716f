//! A directory's entries, as far as they are known, and the lock of its names.
//!
//! What is found out of entries that are there is noted by everybody who looks, with the names shared. A change of names is made
//! by [`LockedNames`](crate::coherence::name_changes::LockedNames) alone: what it takes is visible nowhere else.

use crate::coherence::child_nodes::ChildNodes;
use crate::nodes::listing::{Listing, ListingEntry};
use crate::nodes::node::Node;
use crate::nodes::shared_name::SharedName;
use crate::sync::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{FileKind, Name};

/// Entries of a directory.
#[derive(Default)]
pub(crate) struct Entries {
    /// Shared by lookups and listings, exclusive for what changes the directory's names.
    ops: RwLock<()>,
    /// Held for the length of a few instructions.
    cache: Mutex<EntryCache>,
}

#[derive(Default)]
struct EntryCache {
    live: ChildNodes<Node>,
    /// All names, once they were listed.
    listing: Option<Listing>,
    /// The version of the lower layers that it was made of, where others change them.
    version: Option<u64>,
    /// Lookups that had to search the layers since the directory became known.
    searches: u8,
}

impl EntryCache {
    /// A name that is known here, or a new one.
    fn name(&self, name: &CStr) -> SharedName {
        let listed = || self.listing.as_ref()?.get(name.to_bytes()).map(|listed| listed.name.clone());
        let live = || self.live.get(name).map(|(name, _)| name.clone());
        listed().or_else(live).unwrap_or_else(|| name.into())
    }

    fn node(&self, name: Name<'_>) -> Option<Arc<Node>> {
        self.live.get(name.as_c_str())?.1.upgrade()
    }
}

/// What is known of a name.
pub(crate) enum EntryLookup {
    Node(Arc<Node>),
    /// There is no such name.
    Absent,
    /// The layers must be searched.
    Unknown,
}

/// A name's node.
pub(crate) enum EntryNode {
    /// It had one already.
    Before(Arc<Node>),
    /// It has got this one.
    Now(Arc<Node>),
}

/// A directory's names, which stay as they are while this is held.
#[must_use]
pub(crate) struct SharedNames<'a>(#[expect(dead_code, reason = "held")] RwLockReadGuard<'a, ()>);

impl Entries {
    /// Those of a directory that has just been made.
    pub(super) fn none(&self) {
        self.cache.lock().listing = Some(Listing::default());
    }

    /// Keeps the names as they are.
    pub(crate) fn share(&self) -> SharedNames<'_> {
        SharedNames(self.ops.read())
    }

    pub(super) fn lock(&self) -> RwLockWriteGuard<'_, ()> {
        self.ops.write()
    }

    /// What is known of a name.
    pub(crate) fn look(&self, name: Name<'_>) -> EntryLookup {
        let cache = self.cache.lock();
        match (cache.node(name), &cache.listing) {
            (Some(node), _) => EntryLookup::Node(node),
            (None, Some(listing)) if listing.get(name.bytes()).is_none() => EntryLookup::Absent,
            (None, _) => EntryLookup::Unknown,
        }
    }

    /// A name as it is kept here already, if it is: all who keep it share it.
    pub(crate) fn name(&self, name: Name<'_>) -> SharedName {
        self.cache.lock().name(name.as_c_str())
    }

    /// The node of a name, if it has one.
    pub(crate) fn node(&self, name: Name<'_>) -> Option<Arc<Node>> {
        self.cache.lock().node(name)
    }

    /// Counts a search that has found nothing; true: from `most` of them on, while the names have not been listed.
    pub(crate) fn count_search(&self, most: u8) -> bool {
        let mut cache = self.cache.lock();
        cache.searches = cache.searches.saturating_add(1);
        cache.listing.is_none() && cache.searches >= most
    }

    /// Gives a name that is there the node that `make` makes, unless it has one.
    pub(crate) fn enter<E>(
        &self,
        name: &SharedName,
        make: impl FnOnce() -> Result<Arc<Node>, E>,
    ) -> Result<EntryNode, E> {
        let mut cache = self.cache.lock();
        if let Some(first) = cache.live.get(name).and_then(|(_, node)| node.upgrade()) {
            return Ok(EntryNode::Before(first));
        }
        let node = make()?;
        cache.live.set(name.clone(), Arc::downgrade(&node));
        Ok(EntryNode::Now(node))
    }

    /// A name that is there has another node from now on.
    pub(crate) fn set_node(&self, name: &CStr, node: &Arc<Node>) {
        let mut cache = self.cache.lock();
        let name = cache.name(name);
        cache.live.set(name, Arc::downgrade(node));
    }

    /// A node is no more, which may be a name's.
    pub(crate) fn forget(&self, name: &CStr, node: *const Node) {
        let mut cache = self.cache.lock();
        if cache.live.get(name).is_some_and(|(_, weak)| std::ptr::eq(weak.as_ptr(), node)) {
            cache.live.remove(name);
        }
    }

    /// Whether all names are known.
    pub(crate) fn is_listed(&self) -> bool {
        self.cache.lock().listing.is_some()
    }

    /// Keeps a list of all names, made with the names shared, and the version of the layers that it was made of.
    pub(crate) fn keep(&self, listing: Listing, version: Option<u64>) {
        let mut cache = self.cache.lock();
        if cache.listing.is_none() || cache.version != version || version.is_none() {
            (cache.listing, cache.version) = (Some(listing.packed()), version);
        }
    }

    /// Whether the names are known as they are in this version of the layers.
    pub(crate) fn is_of(&self, version: u64) -> bool {
        let cache = self.cache.lock();
        cache.listing.is_some() && cache.version == Some(version)
    }

    /// Forgets the list of a directory, unless somebody is looking at its names: nobody is waited for.
    pub(crate) fn forget_list(&self) {
        let Some(_names) = self.ops.try_write() else { return };
        let listing = self.cache.lock().listing.take();
        drop(listing);
    }

    /// Looks at all names; None: they have not been listed.
    pub(crate) fn listed<R>(&self, look: impl FnOnce(&Listing) -> R) -> Option<R> {
        self.cache.lock().listing.as_ref().map(look)
    }

    /// The inode number of a listed name has turned out; None: it is the one that was listed.
    pub(crate) fn is_exactly(&self, name: &CStr, ino: Option<u64>) {
        if let Some(listing) = &mut self.cache.lock().listing
            && let Some(&ListingEntry { ino: before, kind, .. }) = listing.get(name.to_bytes())
        {
            listing.insert(name, ino.unwrap_or(before), kind);
        }
    }

    /// A name is there from now on, with a node or without one.
    pub(super) fn insert(&self, name: Name<'_>, node: Option<&Arc<Node>>, ino: u64, kind: FileKind) {
        let mut cache = self.cache.lock();
        let shared = cache.name(name.as_c_str());
        if let Some(listing) = &mut cache.listing {
            listing.insert(shared.clone(), ino, Some(kind));
        }
        match node {
            Some(node) => cache.live.set(shared, Arc::downgrade(node)),
            None => cache.live.remove(name.as_c_str()),
        }
    }

    /// A name is not there any more.
    pub(super) fn remove(&self, name: Name<'_>) {
        let mut cache = self.cache.lock();
        cache.live.remove(name.as_c_str());
        if let Some(listing) = &mut cache.listing {
            listing.remove(name.bytes());
        }
    }
}
