//! What a service leaves to its successor of each mount: a small memory file with the numbers of the descriptors that make it.

use super::FORMAT;
use super::direct::Roots;
use super::wire::MountRequest;
use crate::failure::Failure;
use crate::layers::OpenLayers;
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use vellum_sys::Inherited;

/// How /proc shows the file.
const LINK: &str = "/memfd:vellum-card (deleted)";
/// Longest card in bytes.
const LEN_MAX: usize = 32 << 20;

/// A mount that is being served.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Card {
    format: u32,
    pub(super) request: MountRequest,
    device: RawFd,
    upper: Option<(RawFd, RawFd)>,
    lowers: Vec<RawFd>,
    locks: Vec<RawFd>,
    direct: Option<RawFd>,
    reading: Option<RawFd>,
    still: Option<RawFd>,
    ledger: RawFd,
    inflight: RawFd,
    /// None: no program reads from mappings here.
    generations: Option<RawFd>,
    /// What has been agreed on with the kernel.
    pub(super) negotiated: [u64; 9],
}

/// What a card leads to.
pub(super) struct Found {
    pub(super) card: Card,
    pub(super) device: OwnedFd,
    pub(super) layers: OpenLayers,
    pub(super) direct: Option<Roots<OwnedFd>>,
    pub(super) ledger: OwnedFd,
    pub(super) inflight: OwnedFd,
    pub(super) generations: Option<OwnedFd>,
    /// The card itself, to be held as long as the mount is served.
    pub(super) written: OwnedFd,
}

impl Card {
    /// Takes the numbers down; what the kernel agrees to comes later.
    pub(super) fn new(
        request: MountRequest,
        device: &impl AsRawFd,
        layers: &OpenLayers,
        locks: &[OwnedFd],
        direct: Option<&Roots<OwnedFd>>,
        (ledger, inflight, generations): (RawFd, RawFd, Option<RawFd>),
    ) -> Self {
        let number = |fd: &OwnedFd| fd.as_raw_fd();
        Self {
            format: FORMAT,
            request,
            device: device.as_raw_fd(),
            upper: layers.upper.as_ref().map(|(upper, work)| (number(upper), number(work))),
            lowers: layers.lowers.iter().map(number).collect(),
            locks: locks.iter().map(number).collect(),
            direct: direct.map(|roots| number(&roots.root)),
            reading: direct.and_then(|roots| roots.reading.as_ref().map(number)),
            still: direct.and_then(|roots| roots.still.as_ref().map(number)),
            ledger,
            inflight,
            generations,
            negotiated: [0; 9],
        }
    }

    /// Writes it on a blank one, where a successor finds it until the descriptor is closed.
    pub(super) fn write(&self, blank: &OwnedFd) -> Result<(), Failure> {
        let text = serde_json::to_vec(self).map_err(|e| failed(&e))?;
        // One write: a successor finds all of it or nothing.
        match rustix::io::pwrite(blank, &text, 0) {
            Ok(len) if len == text.len() => Ok(()),
            Ok(_) => Err(failed(&"it is cut off")),
            Err(e) => Err(failed(&e)),
        }
    }
}

/// A card with nothing on it.
pub(super) fn blank() -> Result<OwnedFd, Failure> {
    memfd_create(c"vellum-card", MemfdFlags::CLOEXEC).map_err(|e| failed(&e))
}

fn failed(why: &dyn std::fmt::Display) -> Failure {
    Failure::system(format!("memory for a card: {why}"))
}

/// Takes all that the predecessor was serving out of what it had open. False: of something it cannot be told what it is.
pub(super) fn find(inherited: &mut Inherited) -> (Vec<Found>, bool) {
    let mut found = Vec::new();
    let mut all = true;
    for written in inherited.take_all(|link| link == LINK) {
        match read(&written).and_then(|card| complete(card, written, inherited)) {
            Ok(one) => found.push(one),
            // A mount that was being made when the predecessor died: who asked for it gives it up.
            Err(why) if why.is_empty() => {}
            Err(why) => {
                tracing::error!("a mount is lost: {why}");
                all = false;
            }
        }
    }
    (found, all)
}

fn read(written: &OwnedFd) -> Result<Card, String> {
    let len = rustix::fs::fstat(written).map_err(|e| e.to_string())?.st_size;
    let mut text = vec![0; usize::try_from(len).unwrap_or(LEN_MAX).min(LEN_MAX)];
    let len = rustix::io::pread(written, &mut text, 0).map_err(|e| e.to_string())?;
    text.truncate(len);
    if text.is_empty() {
        return Err(String::new());
    }
    let card: Card = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    if card.format == FORMAT { Ok(card) } else { Err(format!("its card has format {}", card.format)) }
}

fn complete(card: Card, written: OwnedFd, inherited: &mut Inherited) -> Result<Found, String> {
    let mut take = |number: RawFd| inherited.take(number).ok_or(format!("descriptor {number} is missing"));
    // Without its connection a mount has ended; that is nothing to speak of.
    let device = take(card.device).map_err(|_| String::new())?;
    let upper = match card.upper {
        Some((upper, work)) => Some((take(upper)?, take(work)?)),
        None => None,
    };
    let lowers = card.lowers.iter().map(|number| take(*number)).collect::<Result<Vec<_>, _>>()?;
    let locks = card.locks.iter().map(|number| take(*number)).collect::<Result<Vec<_>, _>>()?;
    let reading = card.reading.map(&mut take).transpose()?;
    let still = card.still.map(&mut take).transpose()?;
    let direct = card.direct.map(&mut take).transpose()?.map(|root| Roots { root, reading, still });
    let (ledger, inflight) = (take(card.ledger)?, take(card.inflight)?);
    let generations = card.generations.map(take).transpose()?;
    let layers = layers(&card.request, upper, lowers, locks);
    Ok(Found { card, device, layers, direct, ledger, inflight, generations, written })
}

/// Layers as a request describes them.
pub(super) fn layers(
    request: &MountRequest,
    upper: Option<(OwnedFd, OwnedFd)>,
    lowers: Vec<OwnedFd>,
    locks: Vec<OwnedFd>,
) -> OpenLayers {
    let path = |bytes: &Vec<u8>| PathBuf::from(OsString::from_vec(bytes.clone()));
    OpenLayers {
        lowers,
        upper,
        paths: request.paths.iter().map(path).collect(),
        work_path: request.work_path.as_ref().map(path),
        locks: locks.into_iter().map(Into::into).collect(),
        mount: None,
    }
}
