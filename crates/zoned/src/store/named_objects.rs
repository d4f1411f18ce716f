//! The store, as its users see it.

use super::change::{Change, Class, SIZE_MAX, check_name};
use super::check::{self, CheckReport};
use super::core::Core;
use super::error::Result;
use super::format::Placement;
use super::open;
use super::reader::Reader;
use super::roots::{ROOT_ZONES, last_in};
use super::shared::Shared;
use super::writer::Writer;
use super::zones::Role;
use crate::device::ZonedDevice;
use parking_lot::Mutex;
use std::sync::Arc;

/// A store: named objects on a zoned device.
///
/// Changes are made in the order of calls. After a loss of power some first part of them is there: at least all before the last
/// [`sync`](Self::sync) that was answered. A new object is there whole or not at all.
#[derive(Clone, Debug)]
pub struct Store {
    shared: Arc<Shared>,
}

/// An object, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is.
    pub class: Class,
    /// Its size in bytes.
    pub size: u64,
}

/// Counts of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Of the store, drawn when it was made.
    pub uuid: [u8; 16],
    /// Checkpoints of the metadata since then.
    pub generation: u64,
    /// Which zones are for what.
    pub placement: Placement,
    /// Zones of the device.
    pub zones: u64,
    /// Zones that are free.
    pub free_zones: u64,
    /// Zones that data may not take.
    pub kept_back_zones: u64,
    /// Zones that cannot be written any more.
    pub dead_zones: u64,
    /// Zones that have the log.
    pub log_zones: u64,
    /// Blocks of objects.
    pub live_blocks: u64,
    /// Objects with a name.
    pub objects: u64,
    /// Files, directories and other nodes of the tree.
    pub nodes: u64,
    /// Blocks written for users since the store was opened.
    pub written_blocks: u64,
    /// Blocks moved since the store was opened.
    pub moved_blocks: u64,
    /// Fewest and most resets of a zone that is not for roots.
    pub resets: [u32; 2],
}

impl Store {
    /// Makes a store on a device. What it held is lost.
    pub fn format(device: Arc<dyn ZonedDevice>, placement: Placement) -> Result<Self> {
        let core = open::format(Arc::clone(&device), placement)?;
        Ok(Self::from_parts(device, core))
    }

    /// Opens the store on a device. Its metadata are written anew, to other zones.
    pub fn open(device: Arc<dyn ZonedDevice>) -> Result<Self> {
        let mut core = open::read(Arc::clone(&device))?;
        open::begin_writing(&mut core)?;
        Ok(Self::from_parts(device, core))
    }

    /// Opens the store on a device to be read. Nothing is written to the device, and every change is refused.
    pub fn open_read_only(device: Arc<dyn ZonedDevice>) -> Result<Self> {
        let mut core = open::read(Arc::clone(&device))?;
        core.refuse_changes("it was opened to be read");
        Ok(Self::from_parts(device, core))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether there is a store on a device, also one that is damaged or of another version.
    #[must_use]
    pub fn is_on(device: &dyn ZonedDevice) -> bool {
        (0..ROOT_ZONES).any(|zone| !matches!(last_in(device, zone), Ok(None)))
    }

    fn from_parts(device: Arc<dyn ZonedDevice>, core: Core) -> Self {
        Self { shared: Arc::new(Shared { device, core: Mutex::new(core) }) }
    }

    /// Begins a new object, which gets its name when it is whole.
    pub fn writer(&self, class: Class) -> Result<Writer> {
        Writer::new(&self.shared, class)
    }

    /// Writes a whole object. One that has this name is gone.
    pub fn put(&self, name: &[u8], class: Class, data: &[u8]) -> Result<()> {
        check_name(name)?;
        let mut writer = self.writer(class)?;
        writer.write(data)?;
        writer.commit(name)
    }

    /// Writes `data` at `offset` of an object, which grows if it must. Blocks of at most 256 side by side are written as one.
    pub fn write_at(&self, name: &[u8], offset: u64, data: &[u8]) -> Result<()> {
        self.shared.core.lock().write_object(name, offset, data)
    }

    /// Reads from `offset` of an object on, as much as there is, and says how much that is. An object that is replaced meanwhile is NOT_FOUND.
    pub fn read(&self, name: &[u8], offset: u64, into: &mut [u8]) -> Result<usize> {
        self.shared.read(name, offset, into)
    }

    /// Reads an object from its start to its end, ahead of whoever asks: faster than [`read`](Self::read) where it is large.
    pub fn reader(&self, name: &[u8]) -> Result<Reader> {
        Reader::new(&self.shared, name)
    }

    /// All bytes of an object.
    pub fn get(&self, name: &[u8]) -> Result<Vec<u8>> {
        let size = self.entry(name)?.size.min(SIZE_MAX);
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        let read = self.read(name, 0, &mut bytes)?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// What is known of an object.
    pub fn entry(&self, name: &[u8]) -> Result<Entry> {
        let core = self.shared.core.lock();
        let (_, object) = core.state.object(name)?;
        Ok(Entry { name: name.to_vec(), class: object.class, size: object.size })
    }

    /// All objects, by name.
    #[must_use]
    pub fn list(&self) -> Vec<Entry> {
        let core = self.shared.core.lock();
        let entry = |(name, number): (&Vec<u8>, &u64)| {
            let object = core.state.objects.get(number)?;
            Some(Entry { name: name.clone(), class: object.class, size: object.size })
        };
        core.state.names.iter().filter_map(entry).collect()
    }

    /// The zones that have blocks of an object, each once.
    pub fn places(&self, name: &[u8]) -> Result<Vec<u32>> {
        let core = self.shared.core.lock();
        let (_, object) = core.state.object(name)?;
        let mut zones: Vec<u32> = object.extents.values().map(|extent| extent.place.zone).collect();
        zones.sort_unstable();
        zones.dedup();
        Ok(zones)
    }

    /// The zones that have the log, in pairs that hold the same.
    #[must_use]
    pub fn log_zones(&self) -> Vec<[u32; 2]> {
        self.shared.core.lock().log_parts().to_vec()
    }

    /// Removes a name. Possible on a full device, too.
    pub fn remove(&self, name: &[u8]) -> Result<()> {
        let mut core = self.shared.core.lock();
        core.check_writable()?;
        core.change(Change::Unlink { name: name.to_vec() })
    }

    /// Gives an object another name. One that has that name is gone.
    pub fn rename(&self, from: &[u8], to: &[u8]) -> Result<()> {
        check_name(to)?;
        let mut core = self.shared.core.lock();
        core.check_writable()?;
        core.state.object(from)?;
        core.make_room()?;
        core.change(Change::Rename { from: from.to_vec(), to: to.to_vec() })
    }

    /// Waits until all changes so far would survive a loss of power.
    pub fn sync(&self) -> Result<()> {
        let mut core = self.shared.core.lock();
        core.commit()?;
        // What was asked for is done. That zones are moved from is for later.
        if let Err(error) = core.evacuate().and_then(|()| core.level_wear()) {
            tracing::warn!("a zone cannot be moved from: {error}");
        }
        Ok(())
    }

    /// Has the device make durable what was written to it so far. What is known of it only in memory is not; see [`sync`](Self::sync).
    pub fn flush_device(&self) -> Result<()> {
        Ok(self.shared.device.flush()?)
    }

    /// Collects one zone. False: none is worth it.
    pub fn collect(&self) -> Result<bool> {
        let mut core = self.shared.core.lock();
        core.commit()?;
        core.collect()
    }

    /// Compares everything with its checksums, and the metadata with what the device says. Changes that are not synced are left out.
    pub fn check(&self) -> Result<CheckReport> {
        self.check_watched(&mut |_, _| ())
    }

    /// Like [`check`](Self::check); `progress` is told of blocks: read, and all.
    pub fn check_watched(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        check::check(&mut self.shared.core.lock(), progress)
    }

    /// Counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let core = self.shared.core.lock();
        let with = |role| core.zones.with_role(role).count() as u64;
        let resets = || core.state.zones.iter().skip(ROOT_ZONES as usize).map(|zone| zone.resets);
        Stats {
            uuid: core.root.uuid,
            generation: core.root.generation,
            placement: core.root.placement,
            zones: core.zones.all.len() as u64,
            free_zones: core.zones.free(),
            kept_back_zones: core.reserve(),
            dead_zones: with(Role::Dead),
            log_zones: with(Role::Log),
            live_blocks: core.state.zones.iter().map(|zone| zone.live_blocks).sum(),
            objects: core.state.names.len() as u64,
            nodes: core.state.tree.nodes.len() as u64,
            written_blocks: core.written_blocks[0],
            moved_blocks: core.written_blocks[1],
            resets: [resets().min().unwrap_or(0), resets().max().unwrap_or(0)],
        }
    }
}
