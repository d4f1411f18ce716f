//! What a service leaves to its successor of each mount: a small memory with the numbers of the descriptors that make it.

use super::FORMAT;
use super::format::{FormatError, parse_text};
use super::mount_memory::MemoryFds;
use super::wire::MountRequest;
use crate::config::Config;
use crate::failure::Failure;
use crate::layers::OpenLayers;
use crate::path_text;
use parking_lot::Mutex;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::{Acquire, Release};
use vellum_sys::{InheritedFds, MemoryKind, PersistentMemory};

/// Where the text begins, in words.
const TEXT: usize = PersistentMemory::HEADER;
/// Longest text in words.
const TEXT_MAX: usize = 4 << 20;
/// Its memory. Services of all formats look for this name.
const MEMORY: MemoryKind =
    MemoryKind { name: c"vellum-card", magic: 0x7665_6c6c_6d72_0001, words: TEXT + 1..=TEXT + TEXT_MAX };
/// Word with the text's length in bytes; 0: not all of it is there.
const LEN: usize = 1;
/// Where the text begins, in bytes.
const TEXT_AT: u64 = (TEXT * size_of::<u64>()) as u64;

/// A mount that is being served.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MountRecord {
    format: u32,
    request: MountRequest,
    device: RawFd,
    /// Of layers that have one, as [`OpenLayers::all`] has them.
    roots: Vec<RawFd>,
    locks: Vec<RawFd>,
    #[serde(deserialize_with = "path_text::required")]
    handouts: Option<RawFd>,
    pub(super) memory: MemoryFds<RawFd>,
    /// What has been agreed on with the kernel.
    pub(super) negotiated: [u64; 9],
}

/// What a record leads to.
pub(super) struct RecordedMount {
    pub(super) request: MountRequest,
    pub(super) negotiated: [u64; 9],
    pub(super) device: OwnedFd,
    pub(super) layers: OpenLayers,
    pub(super) handouts: Option<OwnedFd>,
    pub(super) memory: MemoryFds<OwnedFd>,
    pub(super) file: RecordFile,
}

impl MountRecord {
    /// Without what the kernel agrees to, and what is made of the layers: that comes later.
    pub(super) fn new(
        request: MountRequest,
        device: &impl AsRawFd,
        layers: &OpenLayers,
        locks: &[OwnedFd],
        handouts: Option<RawFd>,
        memory: MemoryFds<RawFd>,
    ) -> Self {
        let number = |fd: &OwnedFd| fd.as_raw_fd();
        Self {
            format: FORMAT,
            request,
            device: device.as_raw_fd(),
            roots: layers.roots().map(number).collect(),
            locks: locks.iter().map(number).collect(),
            handouts,
            memory,
            negotiated: [0; 9],
        }
    }

    /// Writes it down. A successor finds all of it or nothing, until the memory is closed.
    fn write(&self) -> Result<PersistentMemory, Failure> {
        fn failed(why: impl std::error::Error) -> Failure {
            Failure::system("memory for a record").because(why)
        }
        let text = serde_json::to_vec(self).map_err(failed)?;
        let words = TEXT + text.len().div_ceil(size_of::<u64>());
        let memory = PersistentMemory::create(&MEMORY, words).map_err(failed)?;
        memory.write(&text, TEXT_AT).map_err(failed)?;
        memory.store(LEN, text.len() as u64, Release);
        Ok(memory)
    }
}

/// The record of a mount, which a successor finds as long as it is there.
#[derive(Debug)]
pub(crate) struct RecordFile(Mutex<Option<PersistentMemory>>);

impl RecordFile {
    pub(super) fn create(record: &MountRecord) -> Result<Self, Failure> {
        Ok(Self(Mutex::new(Some(record.write()?))))
    }

    /// A successor finds another weight. Nothing is done where the mount has ended.
    pub(crate) fn weigh(&self, weight: u16) -> Result<(), Failure> {
        let mut written = self.0.lock();
        let Some(old) = written.as_ref() else { return Ok(()) };
        let Some(mut record) = read(old)? else { return Ok(()) };
        record.request.config.weight = Some(weight);
        // A second one. Of two the successor takes either: the other one's connection has been taken by then.
        *written = Some(record.write()?);
        Ok(())
    }

    /// The mount has ended: a successor must not find it.
    pub(super) fn close(&self) {
        drop(self.0.lock().take());
    }
}

/// Takes all that the predecessor was serving out of what it had open. False: of something it cannot be told what it is.
pub(super) fn find(inherited: &mut InheritedFds) -> (Vec<RecordedMount>, bool) {
    let mut found = Vec::new();
    let mut all = true;
    for written in inherited.take_memories(MEMORY.name) {
        match open_record(written, inherited) {
            Ok(one) => found.extend(one),
            Err(failure) => {
                tracing::error!("a mount is lost: {failure}");
                all = false;
            }
        }
    }
    (found, all)
}

/// What a record leads to; None: nothing is left to serve.
fn open_record(written: OwnedFd, inherited: &mut InheritedFds) -> Result<Option<RecordedMount>, Failure> {
    match open(written)? {
        Some((record, written)) => complete(record, written, inherited),
        None => Ok(None),
    }
}

/// None: the mount was being made when the predecessor died. Who asked for it gives it up.
fn open(written: OwnedFd) -> Result<Option<(MountRecord, PersistentMemory)>, Failure> {
    match PersistentMemory::open(&MEMORY, written) {
        Ok(written) => Ok(read(&written)?.map(|record| (record, written))),
        Err(Errno::NODATA) => Ok(None),
        Err(error) => Err(unreadable(error)),
    }
}

/// None: it was not written to its end.
fn read(written: &PersistentMemory) -> Result<Option<MountRecord>, Failure> {
    let len = written.load(LEN, Acquire);
    let room = (written.len() - TEXT) * size_of::<u64>();
    let mut text = vec![0; usize::try_from(len).unwrap_or(room).min(room)];
    written.read(&mut text, TEXT_AT).map_err(unreadable)?;
    if text.is_empty() { Ok(None) } else { parse(&text).map(Some) }
}

fn parse(text: &[u8]) -> Result<MountRecord, Failure> {
    parse_text(text).map_err(|why| match why {
        FormatError::Format(format) => Failure::system(format!("its record has format {format}")),
        FormatError::Unclear(e) => unreadable(e),
    })
}

fn unreadable(why: impl std::error::Error) -> Failure {
    Failure::system("its record cannot be read").because(why)
}

/// What was mounted according to a record, read as a successor reads it.
pub fn parse_mount_record(text: &[u8]) -> Result<Config, Failure> {
    let record = parse(text)?;
    record.request.config.check()?;
    Ok(record.request.config)
}

fn complete(
    record: MountRecord,
    written: PersistentMemory,
    inherited: &mut InheritedFds,
) -> Result<Option<RecordedMount>, Failure> {
    // Without its connection a mount has ended; that is nothing to speak of.
    let Some(device) = inherited.take(record.device) else { return Ok(None) };
    let mut take = |number: RawFd| {
        inherited.take(number).ok_or_else(|| Failure::system(format!("descriptor {number} is missing")))
    };
    let roots = record.roots.iter().map(|number| take(*number)).collect::<Result<Vec<_>, _>>()?;
    let locks = record.locks.iter().map(|number| take(*number)).collect::<Result<Vec<_>, _>>()?;
    let handouts = record.handouts.map(&mut take).transpose()?;
    let memory = record.memory.map(take)?;
    if memory.log.is_some() != record.request.config.write_behind.is_some() {
        return Err(Failure::system("its record does not say where what is to be written is"));
    }
    let locks = locks.into_iter().map(Into::into).collect();
    let layers = OpenLayers::from_roots(&record.request.config, &mut roots.into_iter(), locks)?;
    let MountRecord { request, negotiated, .. } = record;
    let file = RecordFile(Mutex::new(Some(written)));
    Ok(Some(RecordedMount { request, negotiated, device, layers, handouts, memory, file }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::mount_memory::MountMemory;
    use serde_json::{Value, json};
    use std::path::Path;
    use vellum_sys::crash_point::{self, at_each};
    use vellum_sys::open_descriptors;

    fn record() -> MountRecord {
        let config = Config { lowers: vec![Path::new("/l").into()], ..Config::default() };
        let root = std::fs::File::open("/").unwrap();
        let layers =
            OpenLayers::from_roots(&config, &mut [root.try_clone().unwrap().into()].into_iter(), vec![]);
        let layers = layers.unwrap();
        let request = MountRequest::new(&config, "/m".as_ref(), &layers, false);
        let memory = MountMemory::create(true).unwrap().numbers(None);
        MountRecord::new(request, &root, &layers, &[], None, memory)
    }

    fn json() -> Value {
        serde_json::to_value(record()).unwrap()
    }

    fn read(record: &Value) -> Result<Config, String> {
        parse_mount_record(&serde_json::to_vec(record).unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_mount_record_has_its_config() {
        let config = read(&json()).unwrap();
        assert_eq!((config.mountpoint.as_path(), config.lowers.len()), ("/m".as_ref(), 1));
    }

    /// The weights in all records of this process that are of the mount.
    fn weights(mountpoint: &Path) -> Vec<Option<u16>> {
        let copies = open_descriptors().into_iter().filter_map(|number| {
            let path = format!("/proc/self/fd/{number}");
            let link = std::fs::read_link(&path).ok()?;
            let is_record = link.as_os_str() == "/memfd:vellum-card (deleted)";
            let file = is_record.then(|| std::fs::File::open(&path).ok())??;
            Some(crash_point::copy(file, c"copy").unwrap())
        });
        let records = copies.filter_map(|copy| super::open(copy).unwrap());
        let own = records.filter(|(record, _)| record.request.config.mountpoint == mountpoint);
        own.map(|(record, _)| record.request.config.weight).collect()
    }

    #[test]
    fn a_crash_at_any_moment_keeps_records_atomic() {
        let mountpoint = Path::new("/of this test");
        let mut record = record();
        record.request.config.mountpoint = mountpoint.into();
        record.request.config.weight = Some(5);
        let found = |allowed: &'static [&'static [Option<u16>]]| {
            move || assert!(allowed.contains(&&*weights(mountpoint)), "{:?}", weights(mountpoint))
        };
        let (file, points) = at_each(found(&[&[]]), || RecordFile::create(&record).unwrap());
        assert_eq!((points, weights(mountpoint)), (4, vec![Some(5)]));
        let ((), points) = at_each(found(&[&[Some(5)]]), || file.weigh(700).unwrap());
        assert_eq!((points, weights(mountpoint)), (4, vec![Some(700)]));
        file.close();
        file.weigh(5).unwrap();
        assert_eq!(weights(mountpoint), []);
    }

    #[test]
    fn a_record_of_another_format_is_refused() {
        let older = json!({ "format": FORMAT - 1, "request": { "arguments": [[47]] } });
        assert_eq!(read(&older).unwrap_err(), format!("its record has format {}", FORMAT - 1));
    }

    #[test]
    fn missing_and_unknown_fields_are_refused() {
        for place in ["", "/request", "/memory"] {
            let names: Vec<String> =
                json().pointer(place).and_then(Value::as_object).unwrap().keys().cloned().collect();
            for name in names {
                let mut less = json();
                less.pointer_mut(place).and_then(Value::as_object_mut).unwrap().remove(&name);
                let why = read(&less).unwrap_err();
                assert!(why.contains(&format!("missing field `{name}`")), "{why}");
            }
            let mut more = json();
            more.pointer_mut(place).and_then(Value::as_object_mut).unwrap().insert("new".into(), json!(1));
            assert!(read(&more).unwrap_err().contains("unknown field `new`"));
        }
        let mut none = json();
        none["request"]["config"]["lowers"] = json!([]);
        assert!(read(&none).unwrap_err().contains("0 lower layers"));
    }
}
