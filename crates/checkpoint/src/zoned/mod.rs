//! Checkpoints in the store of a zoned device: each is one object of the class for images, in zones of its own.
//!
//! The store gives an object its name when all of it is there, in one step, and a former one of that name is gone in the same step. So there
//! is nothing unfinished to be found and swept. Removing one empties its zones, without copying. Where a mount has its upper layer in the store,
//! its service does for this command what must be done by whoever has the store open (`store_access`).

mod store_access;

use self::store_access::{Image, StoreAccess, StoreUnavailable};
use super::chain;
use super::object::{ByteSink, ByteSource, ObjectInfo, ObjectReader, ParentGranules, WriteOptions};
use super::options::CheckpointOptions;
use super::pace::Pace;
use super::pacer::WritePacer;
use super::record::{CheckpointEntry, Record};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vellum_container::plain_name;
use vellum_service::Failure;
use vellum_service::store_server::PREFIX;
use vellum_zoned::device::Access;
use vellum_zoned::paced_file::Disk;
use vellum_zoned::store::Error;

/// Bytes that are written at once.
const PART: usize = 1 << 20;
/// What a place begins with that is a device.
const SCHEME: &[u8] = b"zoned:";
/// A store for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zoned {
    device: PathBuf,
    option: String,
}

impl Zoned {
    /// The one that a place names. None: it names a directory.
    pub(super) fn named(option: &str, at: &Path) -> Result<Option<Self>, Failure> {
        let Some(device) = at.as_os_str().as_bytes().strip_prefix(SCHEME) else { return Ok(None) };
        let option = if option.is_empty() { String::new() } else { format!("option {option} ") };
        if device.is_empty() {
            return Err(Failure::input(format!("{option}zoned: no device; write zoned:DEVICE")));
        }
        Ok(Some(Self { device: Path::new(OsStr::from_bytes(device)).to_owned(), option }))
    }

    fn display(&self) -> String {
        format!("zoned:{}", self.device.display())
    }

    /// Refuses a device that others can change, for what is in it says which programs run and as whom; and to write to one that others can read.
    fn check_device_access(&self, access: Access) -> Result<(), Failure> {
        // Whether it is there is for whoever opens it.
        let Ok(meta) = fs::metadata(&self.device) else { return Ok(()) };
        let (display, mode) = (self.device.display(), meta.mode());
        let why = if meta.uid() != rustix::process::geteuid().as_raw() {
            format!("it belongs to user {}; give one of your own", meta.uid())
        } else if mode & 0o002 != 0 {
            format!("everybody can write to it; chmod o-rwx {display}, or give another")
        } else if mode & 0o004 != 0 && access == Access::Write {
            format!("everybody can read it, and images hold secrets; chmod o-rwx {display}, or give another")
        } else {
            return Ok(());
        };
        Err(Failure::input(format!("{}{}: {why}", self.option, self.display())))
    }

    fn open(&self, access: Access) -> Result<StoreAccess, Failure> {
        self.check_device_access(access)?;
        StoreAccess::open(&self.device, access).map_err(|closed| match closed {
            StoreUnavailable::Refused(why) => why.context(format!("{}zoned", self.option)),
            StoreUnavailable::Busy(why) => {
                Failure::system(format!("{}{}", self.option, self.display())).because(why)
            }
        })
    }

    /// The store, if there is a checkpoint of this name.
    fn having(&self, name: &str) -> Result<StoreAccess, Failure> {
        let object = object(plain_name("checkpoint", name)?);
        let store = self.open(Access::Read)?;
        let display = format!("{}/{name}", self.display());
        match store.size(&object).map_err(|e| self.failed(e))? {
            Some(_) => Ok(store),
            None => Err(Failure::input(format!(
                "{display}: no checkpoint of this name; vellum checkpoints list {} shows all",
                self.display()
            ))),
        }
    }

    /// All that are there, by name.
    pub(super) fn list(&self) -> Result<Vec<CheckpointEntry>, Failure> {
        self.list_of(&self.open(Access::Read)?)
    }

    fn list_of(&self, store: &StoreAccess) -> Result<Vec<CheckpointEntry>, Failure> {
        let one = |(name, _): (Vec<u8>, u64)| {
            let name = std::str::from_utf8(&name).ok()?.strip_prefix(PREFIX)?;
            let name = plain_name("checkpoint", name).ok()?.to_owned();
            let record = self.look(store, &name).and_then(|object_info| object_info.record());
            Some(CheckpointEntry { name, record })
        };
        let all = store.list().map_err(|e| self.failed(e))?;
        Ok(all.into_iter().filter_map(one).collect())
    }

    /// What one says of itself.
    pub(super) fn record(&self, name: &str) -> Result<Record, Failure> {
        let store = self.having(name)?;
        self.look(&store, name)?.record()
    }

    fn look(&self, store: &StoreAccess, name: &str) -> Result<ObjectInfo, Failure> {
        let (name, display) = (object(name), format!("{}/{name}", self.display()));
        let size = store.size(&name).and_then(|size| size.ok_or_else(|| io_error(Error::NotFound)));
        let size = size.map_err(|e| Failure::system(display.clone()).because(e))?;
        ObjectInfo::at(Box::new(StoreObject { store: store.clone(), name, size }), &display)
    }

    /// Looks at one that may be there.
    fn find_object(&self, store: &StoreAccess, name: &str) -> Result<Option<ObjectInfo>, Failure> {
        match store.size(&object(name)).map_err(|e| self.failed(e))? {
            Some(_) => self.look(store, name).map(Some),
            None => Ok(None),
        }
    }

    /// One, to be restored.
    pub(super) fn find(&self, name: &str) -> Result<(ObjectReader, Record), Failure> {
        let store = self.having(name)?;
        let object_info = self.look(&store, name)?;
        let record = object_info.record()?;
        let display = format!("{}/{name}", self.display());
        let parents =
            chain::needed(object_info.map()?.as_ref(), &display, &|name| self.find_object(&store, name))?;
        Ok((ObjectReader::new(object_info, parents, &display)?, record))
    }

    /// Removes some, if all are there. Their zones are empty afterwards.
    pub(super) fn delete(&self, names: &[String]) -> Result<(), Failure> {
        // Opening a store to write to it writes.
        names.iter().try_for_each(|name| self.having(name).map(drop))?;
        chain::free(&self.list()?, names)?;
        let store = self.open(Access::Write)?;
        // Others may have made some in between.
        let names = chain::free(&self.list_of(&store)?, names)?;
        for name in &names {
            store.remove(&object(name)).map_err(|e| self.failed(e))?;
        }
        store.sync().map_err(|e| self.failed(e))
    }

    fn failed(&self, error: io::Error) -> Failure {
        self.explain(&error)
    }

    fn explain(&self, error: &io::Error) -> Failure {
        if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) {
            return Failure::system(format!("{}: the device is full", self.display()))
                .remedy(format!("vellum checkpoints delete {} NAME makes room", self.display()));
        }
        Failure::system(self.display()).because(error)
    }

    /// Begins one of this name: where it goes, and how it is made.
    pub(super) fn begin_upper(
        &self,
        name: &str,
        manner: &CheckpointOptions,
    ) -> Result<(Box<dyn ByteSink>, WriteOptions), Failure> {
        let name = plain_name("--name", name)?;
        let store = self.open(Access::Write)?;
        chain::free(&self.list_of(&store)?, &[name.to_owned()])?;
        let known = match &manner.parent {
            Some(parent) => chain::parent_granules(parent, name, &|name| self.find_object(&store, name))?,
            None => ParentGranules::default(),
        };
        let sink = StoreSink {
            image: Some(store.image().map_err(|e| self.failed(e))?),
            pacing: self.pacing(manner.pace.unwrap_or_default()),
            zoned: self.clone(),
            store,
            name: name.to_owned(),
        };
        Ok((Box::new(sink), WriteOptions { compress: manner.compress, known }))
    }

    fn pacing(&self, pace: Pace) -> WritePacer {
        WritePacer::on(pace, &self.device, |budget| {
            let above = self.device.parent().filter(|above| !above.as_os_str().is_empty());
            if self.device.is_file() {
                Disk::of_directory(above.unwrap_or(Path::new(".")), budget)
            } else {
                Disk::of_device(&self.device, budget)
            }
        })
    }
}

fn object(name: &str) -> Vec<u8> {
    format!("{PREFIX}{name}").into_bytes()
}

fn io_error(error: Error) -> io::Error {
    match error {
        Error::NoSpace => Errno::NOSPC.into(),
        Error::NotFound => io::Error::new(io::ErrorKind::NotFound, error),
        error => io::Error::other(error),
    }
}

#[derive(Debug)]
struct StoreObject {
    store: StoreAccess,
    name: Vec<u8>,
    size: u64,
}

impl ByteSource for StoreObject {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact(&self, mut at: u64, mut into: &mut [u8]) -> io::Result<()> {
        while !into.is_empty() {
            let read = self.store.read(&self.name, at, into)?;
            if read == 0 {
                return Err(io_error(Error::Damaged("an object is shorter than it says".to_owned())));
            }
            at += read as u64;
            into = into.get_mut(read..).unwrap_or_default();
        }
        Ok(())
    }
}

/// A checkpoint on its way to a store, at a pace.
struct StoreSink {
    zoned: Zoned,
    store: StoreAccess,
    name: String,
    /// None: it has its name.
    image: Option<Image>,
    pacing: WritePacer,
}

impl ByteSink for StoreSink {
    fn write(&mut self, bytes: &[u8], hurry: bool) -> io::Result<()> {
        for part in bytes.chunks(PART) {
            self.pacing.before(part.len() as u64, hurry);
            self.image.as_mut().ok_or(Errno::BADF)?.write(part)?;
            self.pacing.written(part.len() as u64, || self.store.flush())?;
        }
        Ok(())
    }

    fn explain(&self, error: &io::Error) -> Failure {
        self.zoned.explain(error)
    }

    fn sync(&mut self, _: &Record) -> Result<(), Failure> {
        self.pacing.sync(|| self.store.flush()).map_err(|e| self.zoned.failed(e))
    }

    fn commit(mut self: Box<Self>) -> Result<PathBuf, Failure> {
        let image = self.image.take().ok_or_else(|| self.zoned.failed(Errno::BADF.into()))?;
        image.commit(&object(&self.name)).map_err(|e| self.zoned.failed(e))?;
        // That the zones of one that was replaced are empty is to be found by whoever looks next.
        self.store.sync().map_err(|e| self.zoned.failed(e))?;
        Ok(PathBuf::from(format!("{}/{}", self.zoned.display(), self.name)))
    }
}

impl Drop for StoreSink {
    fn drop(&mut self) {
        let Some(image) = self.image.take() else { return };
        image.abandon();
        // So that its zones are empty at once; otherwise whoever opens the store next empties them.
        if let Err(e) = self.store.sync() {
            tracing::debug!("{}: {e}", self.zoned.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compression::Compress;
    use crate::object::WritePipeline;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use vellum_zoned::device::Conventional;
    use vellum_zoned::device::ZonedDevice;
    use vellum_zoned::store::{Placement, Store};

    fn store(zones: u32) -> (Store, StoreAccess) {
        let device = Conventional::create(tempfile::tempfile().unwrap(), 4096, zones, 256).unwrap();
        let device: Arc<dyn ZonedDevice> = Arc::new(device);
        let store = Store::format(Arc::clone(&device), Placement::NONE).unwrap();
        (store.clone(), StoreAccess::Own(store, device))
    }

    fn writing(store: &StoreAccess) -> WritePipeline {
        let zoned = Zoned { device: "/x".into(), option: String::new() };
        let image = Some(store.image().unwrap());
        let pacing = zoned.pacing(Pace::None);
        let sink = StoreSink { zoned, store: store.clone(), name: "x".to_owned(), image, pacing };
        let how = WriteOptions { compress: Compress::None, ..WriteOptions::default() };
        WritePipeline::begin(Box::new(sink), how).unwrap()
    }

    #[test]
    fn removing_copies_nothing() {
        let (store, opened) = store(64);
        let before = store.stats();
        let writing = writing(&opened);
        writing.sink().put(&[1; 7 << 20]).unwrap();
        writing.finish().unwrap().0.commit().unwrap();
        let name = object("x");
        let zones = store.places(&name).unwrap();
        assert!(zones.len() >= 7 && store.stats().free_zones <= before.free_zones - 7, "{zones:?}");
        let stored = StoreObject { store: opened, name: name.clone(), size: 7 << 20 };
        let mut part = [0; 5000];
        stored.read_exact((7 << 20) - 5000, &mut part).unwrap();
        assert_eq!(part, [1; 5000]);
        assert!(stored.read_exact((7 << 20) - 4999, &mut part).is_err());
        let written = store.stats().written_blocks;
        store.remove(&name).unwrap();
        store.sync().unwrap();
        let after = store.stats();
        assert_eq!(
            (after.moved_blocks, after.written_blocks, after.free_zones),
            (0, written, before.free_zones)
        );
    }

    #[test]
    fn a_full_store_fails_and_leaves_no_object() {
        let (store, opened) = store(24);
        let before = store.stats().free_zones;
        let writing = writing(&opened);
        // Refused at once, or when it is its turn.
        let _ = (0..100).find_map(|_| writing.sink().put(&[7; 1 << 20]).err());
        let refusal = writing.finish().err().unwrap().to_string();
        assert!(refusal.contains("the device is full"), "{refusal}");
        let writing = self::writing(&opened);
        writing.sink().put(&[7; 1 << 20]).unwrap();
        drop(writing);
        store.sync().unwrap();
        assert!(store.list().is_empty());
        assert_eq!(store.stats().free_zones, before);
    }

    #[test]
    fn a_device_that_others_can_use_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let at = PathBuf::from(format!("zoned:{}", file.path().display()));
        let zoned = Zoned::named("--to", &at).unwrap().unwrap();
        for (mode, access, refused) in [
            (0o660, Access::Write, None),
            (0o664, Access::Read, None),
            (0o664, Access::Write, Some("chmod o-rwx")),
            (0o602, Access::Read, Some("chmod o-rwx")),
        ] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            let said = zoned.check_device_access(access).err();
            assert_eq!(said.is_some(), refused.is_some(), "{mode:o}");
            if let (Some(why), Some(words)) = (said, refused) {
                assert!(why.exit_status() == 2 && why.to_string().contains(words), "{why}");
            }
        }
        assert_eq!(Zoned::named("--to", Path::new("dir/zoned:x")).unwrap(), None);
        assert_eq!(Zoned::named("--to", Path::new("zoned:")).unwrap_err().exit_status(), 2);
    }
}
