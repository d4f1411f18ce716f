//! Checkpoints in the store of a zoned device: each is one object of the class for images, in zones of its own.
//!
//! The store gives an object its name when all of it is there, in one step, and a former one of that name is gone in the same step. So there
//! is nothing unfinished to be found and swept. Removing one empties its zones, without copying.

mod files;
mod format;
mod layer;
mod pacing;
mod sink;

use self::files::{Files, Mount, Object};
use self::format::{Contents, Index, Piece};
use self::layer::{Packed, Source};
use self::pacing::Pacing;
use self::sink::Writing;
use super::delta::Amount;
use super::making::{Kept, Making, Sizes};
use super::pace::Pace;
use super::record::{Listed, Record};
use crate::container::plain_name;
use crate::zoned;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use vellum_service::Failure;
use vellum_zoned::device::{Access, Found};
use vellum_zoned::store::{Class, Error, Store, Writer};

/// What a place begins with that is a device.
const SCHEME: &[u8] = b"zoned:";
/// What names of checkpoints begin with among the store's objects.
const PREFIX: &str = "checkpoint/";
/// How often it is looked whether a container has been restored.
const LOOK: Duration = Duration::from_millis(50);

/// A store for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Zoned {
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

    fn shown(&self) -> String {
        format!("zoned:{}", self.device.display())
    }

    /// Refuses a device that others can change, for what is in it says which programs run and as whom; and to write to one that others can read.
    fn own(&self, access: Access) -> Result<(), Failure> {
        // Whether it is there is for whoever opens it.
        let Ok(meta) = fs::metadata(&self.device) else { return Ok(()) };
        let (shown, mode) = (self.device.display(), meta.mode());
        let why = if meta.uid() != rustix::process::geteuid().as_raw() {
            format!("it belongs to user {}; give one of your own", meta.uid())
        } else if mode & 0o002 != 0 {
            format!("everybody can write to it; chmod o-rwx {shown}, or give another")
        } else if mode & 0o004 != 0 && access == Access::Write {
            format!("everybody can read it, and images hold secrets; chmod o-rwx {shown}, or give another")
        } else {
            return Ok(());
        };
        Err(Failure::input(format!("{}{}: {why}", self.option, self.shown())))
    }

    fn open(&self, access: Access) -> Result<(Found, Store), Failure> {
        self.own(access)?;
        zoned::store(&self.device, access).map_err(|why| why.of(format!("{}zoned", self.option)))
    }

    /// The store, if there is a checkpoint of this name.
    fn having(&self, name: &str) -> Result<(Store, Vec<u8>, String), Failure> {
        let object = object(plain_name("checkpoint", name)?);
        let (_, store) = self.open(Access::Read)?;
        let shown = format!("{}/{name}", self.shown());
        match store.entry(&object) {
            Ok(_) => Ok((store, object, shown)),
            Err(_) => Err(Failure::input(format!(
                "{shown}: no checkpoint of this name; vellum checkpoints list {} shows all",
                self.shown()
            ))),
        }
    }

    /// All that are there, by name.
    pub(super) fn list(&self) -> Result<Vec<Listed>, Failure> {
        let (_, store) = self.open(Access::Read)?;
        let one = |entry: vellum_zoned::store::Entry| {
            let name = std::str::from_utf8(&entry.name).ok()?.strip_prefix(PREFIX)?;
            let name = plain_name("checkpoint", name).ok()?.to_owned();
            let record = format::record(&store, &entry.name, &format!("{}/{name}", self.shown()));
            Some(Listed { name, record })
        };
        let all = store.list().into_iter().filter(|entry| entry.class == Class::Checkpoint);
        Ok(all.filter_map(one).collect())
    }

    /// What one says of itself.
    pub(super) fn record(&self, name: &str) -> Result<Record, Failure> {
        let (store, object, shown) = self.having(name)?;
        format::record(&store, &object, &shown)
    }

    /// One, to be restored.
    pub(super) fn find(&self, name: &str) -> Result<(KeptThere, Record), Failure> {
        let (store, name, shown) = self.having(name)?;
        let record = format::record(&store, &name, &shown)?;
        let index = format::index(&store, &name, &shown)?;
        let object = Arc::new(Object { store: Mutex::new(Some(store)), name });
        Ok((KeptThere { object, index, shown, mount: Arc::default() }, record))
    }

    /// Removes some, if all are there. Their zones are empty afterwards.
    pub(super) fn delete(&self, names: &[String]) -> Result<(), Failure> {
        // Opening a store to write to it writes.
        names.iter().try_for_each(|name| self.having(name).map(|_| ()))?;
        let (found, store) = self.open(Access::Write)?;
        for name in names {
            match store.remove(&object(name)) {
                // It was named twice.
                Ok(()) | Err(Error::NotFound) => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        store.sync().map_err(|e| self.failed(e))?;
        found.device.flush().map_err(|e| self.failed(e.into()))
    }

    fn failed(&self, error: Error) -> Failure {
        match error {
            Error::NoSpace => Failure::system(format!("{}: the device is full", self.shown()))
                .remedy(format!("vellum checkpoints delete {} NAME makes room", self.shown())),
            error => Failure::system(self.shown()).because(error),
        }
    }

    /// Begins one of the upper layer in a directory.
    pub(super) fn making(
        &self,
        name: &str,
        upper: &Path,
        beside: &Path,
        pace: Pace,
    ) -> Result<MadeThere, Failure> {
        let name = plain_name("--name", name)?;
        let (found, store) = self.open(Access::Write)?;
        let pacing = Pacing::new(pace, &self.device, &found.device);
        let writing = Writing::begin(&store, pacing).map_err(|e| self.failed(e))?;
        let files = Arc::new(Files::to(writing.sink().clone()));
        Ok(MadeThere {
            zoned: self.clone(),
            found,
            mount: Mount::new(&files, beside)?,
            files,
            layer: Packed::new(upper, writing.sink().clone())?,
            etc: BTreeMap::new(),
            state: Some(Progress::Writing(writing)),
            store,
            object: object(name),
            path: PathBuf::from(format!("{}/{name}", self.shown())),
            unfinished: beside.join("unfinished"),
        })
    }
}

fn object(name: &str) -> Vec<u8> {
    format!("{PREFIX}{name}").into_bytes()
}

/// A checkpoint that is being made in a store.
pub(super) struct MadeThere {
    zoned: Zoned,
    found: Found,
    mount: Mount,
    files: Arc<Files>,
    layer: Packed,
    etc: BTreeMap<String, Contents>,
    /// None: it has its name.
    state: Option<Progress>,
    // After what writes to it.
    store: Store,
    object: Vec<u8>,
    path: PathBuf,
    /// There never is such a path: a killed one leaves nothing.
    unfinished: PathBuf,
}

enum Progress {
    Writing(Writing),
    Whole(Writer),
}

impl MadeThere {
    /// Why bytes were not taken.
    fn refused(&self, errno: rustix::io::Errno) -> Failure {
        let known = match &self.state {
            Some(Progress::Writing(writing)) => writing.sink().failed(),
            _ => None,
        };
        known.map_or_else(|| Failure::at(&self.path, errno), |error| self.zoned.failed(error))
    }

    fn put(&self, bytes: &[u8]) -> Result<u64, Failure> {
        match &self.state {
            Some(Progress::Writing(writing)) => writing.sink().put(bytes).map_err(|e| self.refused(e)),
            _ => Err(Failure::at(&self.path, rustix::io::Errno::INVAL)),
        }
    }

    /// What failed because the store takes nothing more says so.
    fn explained<T>(&self, done: Result<T, Failure>) -> Result<T, Failure> {
        done.map_err(|why| match &self.state {
            Some(Progress::Writing(writing)) => {
                writing.sink().failed().map_or(why, |error| self.zoned.failed(error))
            }
            _ => why,
        })
    }
}

impl Making for MadeThere {
    fn images(&self) -> &Path {
        self.mount.path()
    }

    fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    fn ahead(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.ahead();
        self.explained(done)
    }

    fn still(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.still();
        self.explained(done)
    }

    fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure> {
        let bytes = match fs::read(from) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|e| Failure::at(from, e))?,
        };
        let (from, len) = (self.put(&bytes)?, bytes.len() as u64);
        let pieces = if len == 0 { Vec::new() } else { vec![Piece { at: 0, from, len }] };
        self.etc.insert(name.to_owned(), Contents { size: len, pieces });
        Ok(())
    }

    fn sizes(&mut self) -> Result<Sizes, Failure> {
        let images = self.files.contents().values().map(|file| file.size).sum();
        let upper = self.layer.items().values().map(|item| item.contents().bytes()).sum();
        Ok(Sizes { images, upper })
    }

    fn settle(&mut self, record: &Record) -> Result<(), Failure> {
        let Some(Progress::Writing(writing)) = &self.state else { return Ok(()) };
        let index = Index {
            images: self.files.contents(),
            files: self.etc.clone(),
            layer: self.layer.items().clone(),
        };
        let tail = format::tail(writing.sink().at(), &index, record)?;
        self.put(&tail)?;
        if let Some(Progress::Writing(writing)) = self.state.take() {
            self.state = Some(Progress::Whole(writing.finish().map_err(|e| self.zoned.failed(e))?));
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<PathBuf, Failure> {
        if let Some(Progress::Whole(writer)) = self.state.take() {
            writer.commit(&self.object).map_err(|e| self.zoned.failed(e))?;
        }
        self.store.sync().map_err(|e| self.zoned.failed(e))?;
        // That the zones of one that was replaced are empty is to be found by whoever looks next.
        self.found.device.flush().map_err(|e| self.zoned.failed(e.into()))?;
        Ok(std::mem::take(&mut self.path))
    }

    fn discard(mut self: Box<Self>) {
        self.state = None;
        // So that its zones are empty at once; otherwise whoever opens the store next empties them.
        let emptied = self.store.sync().and_then(|()| self.found.device.flush().map_err(Error::from));
        if let Err(e) = emptied {
            tracing::debug!("{}: {e}", self.zoned.shown());
        }
    }
}

/// A checkpoint in a store.
#[derive(Debug)]
pub(super) struct KeptThere {
    object: Arc<Object>,
    index: Index,
    shown: String,
    mount: Arc<Mutex<Option<Mount>>>,
}

impl KeptThere {
    fn store(&self) -> Result<Store, Failure> {
        let store = self.object.store.lock().clone();
        store.ok_or_else(|| Failure::system(format!("{}: it has been given back", self.shown)))
    }
}

impl Kept for KeptThere {
    fn shown(&self) -> String {
        self.shown.clone()
    }

    fn upper(&self, to: &Path) -> Result<(), Failure> {
        let store = self.store()?;
        layer::unpack(&self.index.layer, Source { store: &store, name: &self.object.name }, to)
    }

    fn file(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        let Some(contents) = self.index.files.get(name) else { return Ok(None) };
        let store = self.store()?;
        let mut text = Vec::new();
        for piece in &contents.pieces {
            let from = text.len();
            text.resize(from + usize::try_from(piece.len).unwrap_or(0), 0);
            let part = text.get_mut(from..).unwrap_or_default();
            format::read_exact(&store, &self.object.name, piece.from, part)
                .map_err(|e| Failure::system(self.shown.clone()).because(e))?;
        }
        Ok(Some(text))
    }

    fn images(&self, beside: &Path, restored: &Path) -> Result<PathBuf, Failure> {
        let files = Arc::new(Files::from(Arc::clone(&self.object), &self.index.images));
        let mount = Mount::new(&files, beside)?;
        let path = mount.path().to_owned();
        *self.mount.lock() = Some(mount);
        let (restored, object, mount) =
            (restored.to_owned(), Arc::clone(&self.object), Arc::clone(&self.mount));
        // Others may have the store as soon as the container runs.
        let watch = move || {
            while !restored.exists() || files.is_open() {
                thread::sleep(LOOK);
            }
            *mount.lock() = None;
            *object.store.lock() = None;
        };
        let watching = thread::Builder::new().name("restored".to_owned()).spawn(watch);
        watching.map_err(|e| Failure::system("no thread to watch a restored container").because(e))?;
        Ok(path)
    }
}

/// Reads what may be anything, as restoring does. For the fuzz target.
pub fn parse_hostile(bytes: &[u8]) {
    format::parse_hostile(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
            let said = zoned.own(access).err();
            assert_eq!(said.is_some(), refused.is_some(), "{mode:o}");
            if let (Some(why), Some(words)) = (said, refused) {
                assert!(why.exit_status() == 2 && why.to_string().contains(words), "{why}");
            }
        }
        assert_eq!(Zoned::named("--to", Path::new("dir/zoned:x")).unwrap(), None);
        assert_eq!(Zoned::named("--to", Path::new("zoned:")).unwrap_err().exit_status(), 2);
    }
}
