//! What a checkpoint says of itself: `checkpoint.json`.

use super::identity::Lowers;
use crate::container::Settings;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use vellum_service::Failure;

/// The file.
pub(crate) const NAME: &str = "checkpoint.json";
/// The one format that is read and written.
const FORMAT: u32 = 1;
/// The largest one that is read, in bytes.
pub(crate) const RECORD_MAX: u64 = 16 << 20;

/// All that is known of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// Of this file.
    pub format: u32,
    /// The version of Vellum that has taken it.
    pub vellum: String,
    /// The version of CRIU.
    pub criu: String,
    /// The container's name.
    pub container: String,
    /// When, in seconds since 1970.
    pub taken: u64,
    /// How long the container stood still, in microseconds.
    pub pause_us: u64,
    /// Bytes of images: memory, and what the kernel knows of the processes.
    pub image_bytes: u64,
    /// Bytes that the copy of the upper layer takes, as far as its blocks are its own.
    pub upper_bytes: u64,
    /// Objects in the upper layer.
    pub upper_objects: u64,
    /// Whether the container went on.
    pub left_running: bool,
    /// The layers below.
    pub lowers: Lowers,
    /// What it was started with.
    pub settings: Settings,
}

/// A checkpoint in a list.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// What it says of itself, or why that cannot be read.
    pub record: Result<Record, Failure>,
}

/// As much as says what it is.
#[derive(Deserialize)]
struct Head {
    format: u32,
}

impl Record {
    /// The format of records that are written.
    pub(crate) const FORMAT: u32 = FORMAT;

    /// Reads that of the checkpoint in a directory.
    pub(crate) fn read(dir: &Path) -> Result<Self, Failure> {
        let path = dir.join(NAME);
        let shown = path.display();
        let failed = |e: std::io::Error| Failure::input(format!("{shown}")).because(e);
        let mut text = Vec::new();
        let file = crate::regular::open(&path).map_err(failed)?;
        file.take(RECORD_MAX).read_to_end(&mut text).map_err(failed)?;
        Self::parse(&text, &shown.to_string())
    }

    /// Reads one from its text; `shown` is where that was.
    pub(crate) fn parse(text: &[u8], shown: &str) -> Result<Self, Failure> {
        let unclear =
            |e: serde_json::Error| Failure::input(format!("{shown}: no record of a checkpoint")).because(e);
        let head: Head = serde_json::from_slice(text).map_err(unclear)?;
        if head.format != FORMAT {
            return Err(Failure::input(format!(
                "{shown}: format {}, and this version reads {FORMAT}; use the version of vellum that has written it",
                head.format
            )));
        }
        serde_json::from_slice(text).map_err(unclear)
    }

    /// Writes it, durably.
    pub(crate) fn write(&self, dir: &Path) -> Result<(), Failure> {
        let path = dir.join(NAME);
        let failed = |e: std::io::Error| Failure::system(format!("{}", path.display())).because(e);
        let text = serde_json::to_vec_pretty(self).map_err(|e| Failure::system("a record").because(e))?;
        let mut file =
            fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(failed)?;
        file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
    }
}
