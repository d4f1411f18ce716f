//! What a service leaves to its successor of each mount: a small memory file with the numbers of the descriptors that make it.

use super::FORMAT;
use super::format::{FormatError, parse_text};
use super::wire::MountRequest;
use crate::config::Config;
use crate::failure::Failure;
use crate::layers::OpenLayers;
use crate::path_text;
use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use vellum_sys::InheritedFds;

/// How /proc shows the file. All services that read this format look for this name.
const LINK: &str = "/memfd:vellum-card (deleted)";
/// Longest record in bytes.
const LEN_MAX: usize = 32 << 20;
/// What is said of one that is there, and says nothing.
const UNREADABLE: &str = "its record cannot be read";

/// A mount that is being served.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MountRecord {
    format: u32,
    pub(super) request: MountRequest,
    device: RawFd,
    /// Of layers that have one, as [`OpenLayers::all`] has them.
    roots: Vec<RawFd>,
    locks: Vec<RawFd>,
    #[serde(deserialize_with = "path_text::required")]
    handouts: Option<RawFd>,
    ledger: RawFd,
    inflight: RawFd,
    /// None: no program reads from mappings here.
    #[serde(deserialize_with = "path_text::required")]
    generations: Option<RawFd>,
    /// The log of what is to be written of the upper layer. None: it is not written behind.
    #[serde(deserialize_with = "path_text::required")]
    pub(super) dirty: Option<RawFd>,
    /// What has been agreed on with the kernel.
    pub(super) negotiated: [u64; 9],
}

/// What a record leads to.
pub(super) struct RecordedMount {
    pub(super) record: MountRecord,
    pub(super) device: OwnedFd,
    pub(super) layers: OpenLayers,
    pub(super) handouts: Option<OwnedFd>,
    pub(super) ledger: OwnedFd,
    pub(super) inflight: OwnedFd,
    pub(super) generations: Option<OwnedFd>,
    pub(super) dirty: Option<OwnedFd>,
    /// The record itself, to be held as long as the mount is served.
    pub(super) written: OwnedFd,
}

impl MountRecord {
    /// Takes the numbers down; what the kernel agrees to comes later.
    pub(super) fn new(
        request: MountRequest,
        device: &impl AsRawFd,
        layers: &OpenLayers,
        locks: &[OwnedFd],
        handouts: Option<RawFd>,
        (ledger, inflight, generations): (RawFd, RawFd, Option<RawFd>),
    ) -> Self {
        let number = |fd: &OwnedFd| fd.as_raw_fd();
        Self {
            format: FORMAT,
            request,
            device: device.as_raw_fd(),
            roots: layers.roots().map(number).collect(),
            locks: locks.iter().map(number).collect(),
            handouts,
            ledger,
            inflight,
            generations,
            dirty: None,
            negotiated: [0; 9],
        }
    }

    /// Writes it on a blank one, where a successor finds it until the descriptor is closed.
    pub(super) fn write(&self, blank: &OwnedFd) -> Result<(), Failure> {
        let text = serde_json::to_vec(self).map_err(failed)?;
        // One write: a successor finds all of it or nothing.
        match rustix::io::pwrite(blank, &text, 0) {
            Ok(len) if len == text.len() => Ok(()),
            Ok(_) => Err(failed(io::Error::other("it is cut off"))),
            Err(e) => Err(failed(e)),
        }
    }
}

/// The record of a mount that is being served.
#[derive(Debug)]
pub(crate) struct RecordFile(Mutex<Option<OwnedFd>>);

impl RecordFile {
    pub(super) const fn new(written: OwnedFd) -> Self {
        Self(Mutex::new(Some(written)))
    }

    /// A successor finds another weight. Nothing is done where the mount has ended.
    pub(crate) fn weigh(&self, weight: u16) -> Result<(), Failure> {
        let mut written = self.0.lock();
        let Some(old) = written.as_ref() else { return Ok(()) };
        let Some(mut record) = read(old)? else { return Ok(()) };
        record.request.config.weight = Some(weight);
        // A second one, for a write of more than a page can be cut off by a death. Of two the successor takes either: the other one's
        // connection has been taken by then.
        let new = blank()?;
        record.write(&new)?;
        *written = Some(new);
        Ok(())
    }

    /// The mount has ended: a successor must not find it.
    pub(super) fn close(&self) {
        drop(self.0.lock().take());
    }
}

/// A record with nothing on it.
pub(super) fn blank() -> Result<OwnedFd, Failure> {
    memfd_create(c"vellum-card", MemfdFlags::CLOEXEC).map_err(failed)
}

fn failed(why: impl std::error::Error) -> Failure {
    Failure::system("memory for a record").because(why)
}

/// Takes all that the predecessor was serving out of what it had open. False: of something it cannot be told what it is.
pub(super) fn find(inherited: &mut InheritedFds) -> (Vec<RecordedMount>, bool) {
    let mut found = Vec::new();
    let mut all = true;
    for written in inherited.take_all(|link| link == LINK) {
        match look_at(written, inherited) {
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
fn look_at(written: OwnedFd, inherited: &mut InheritedFds) -> Result<Option<RecordedMount>, Failure> {
    match read(&written)? {
        Some(record) => complete(record, written, inherited),
        // A mount that was being made when the predecessor died: who asked for it gives it up.
        None => Ok(None),
    }
}

/// None: nothing is written on it yet.
fn read(written: &OwnedFd) -> Result<Option<MountRecord>, Failure> {
    let failed = |e| Failure::system(UNREADABLE).because(e);
    let len = rustix::fs::fstat(written).map_err(failed)?.st_size;
    let mut text = vec![0; usize::try_from(len).unwrap_or(LEN_MAX).min(LEN_MAX)];
    let len = rustix::io::pread(written, &mut text, 0).map_err(failed)?;
    text.truncate(len);
    if text.is_empty() { Ok(None) } else { parse(&text).map(Some) }
}

fn parse(text: &[u8]) -> Result<MountRecord, Failure> {
    parse_text(text).map_err(|why| match why {
        FormatError::Format(format) => Failure::system(format!("its record has format {format}")),
        FormatError::Unclear(e) => Failure::system(UNREADABLE).because(e),
    })
}

/// What was mounted according to a record, read as a successor reads it.
pub fn asked_for(text: &[u8]) -> Result<Config, Failure> {
    let record = parse(text)?;
    record.request.config.check()?;
    Ok(record.request.config)
}

fn complete(
    record: MountRecord,
    written: OwnedFd,
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
    let (ledger, inflight) = (take(record.ledger)?, take(record.inflight)?);
    let generations = record.generations.map(&mut take).transpose()?;
    let dirty = record.dirty.map(take).transpose()?;
    if dirty.is_some() != record.request.config.write_behind.is_some() {
        return Err(Failure::system("its record does not say where what is to be written is"));
    }
    let locks = locks.into_iter().map(Into::into).collect();
    let layers = OpenLayers::from_roots(&record.request.config, &mut roots.into_iter(), locks)?;
    Ok(Some(RecordedMount {
        record,
        device,
        layers,
        handouts,
        ledger,
        inflight,
        generations,
        dirty,
        written,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::path::Path;

    fn record() -> Value {
        let config = Config { lowers: vec![Path::new("/l").into()], ..Config::default() };
        let layers = OpenLayers::from_roots(&config, &mut blank().into_iter(), Vec::new()).unwrap();
        let request = MountRequest::new(&config, "/m".as_ref(), &layers, false);
        let record = MountRecord::new(request, &blank().unwrap(), &layers, &[], None, (3, 4, None));
        serde_json::to_value(record).unwrap()
    }

    fn read(record: &Value) -> Result<Config, String> {
        asked_for(&serde_json::to_vec(record).unwrap()).map_err(|e| e.to_string())
    }

    #[test]
    fn what_was_mounted_is_read_from_it() {
        let config = read(&record()).unwrap();
        assert_eq!((config.mountpoint.as_path(), config.lowers.len()), ("/m".as_ref(), 1));
    }

    #[test]
    fn a_weight_that_changes_is_a_successors_too() {
        let blank = blank().unwrap();
        rustix::io::pwrite(&blank, &serde_json::to_vec(&record()).unwrap(), 0).unwrap();
        let kept = RecordFile::new(blank);
        kept.weigh(700).unwrap();
        let weight = |kept: &RecordFile| {
            let written = kept.0.lock();
            super::read(written.as_ref().unwrap()).unwrap().unwrap().request.config.weight
        };
        assert_eq!(weight(&kept), Some(700));
        kept.close();
        kept.weigh(5).unwrap();
        assert!(kept.0.lock().is_none());
    }

    #[test]
    fn one_of_another_format_is_refused_whatever_else_is_on_it() {
        let older = json!({ "format": FORMAT - 1, "request": { "arguments": [[47]] } });
        assert_eq!(read(&older).unwrap_err(), format!("its record has format {}", FORMAT - 1));
    }

    #[test]
    fn nothing_may_be_missing_and_nothing_unknown() {
        for place in ["", "/request"] {
            let names: Vec<String> =
                record().pointer(place).and_then(Value::as_object).unwrap().keys().cloned().collect();
            for name in names {
                let mut less = record();
                less.pointer_mut(place).and_then(Value::as_object_mut).unwrap().remove(&name);
                let why = read(&less).unwrap_err();
                assert!(why.contains(&format!("missing field `{name}`")), "{why}");
            }
            let mut more = record();
            more.pointer_mut(place).and_then(Value::as_object_mut).unwrap().insert("new".into(), json!(1));
            assert!(read(&more).unwrap_err().contains("unknown field `new`"));
        }
        let mut none = record();
        none["request"]["config"]["lowers"] = json!([]);
        assert!(read(&none).unwrap_err().contains("0 lower layers"));
    }
}
