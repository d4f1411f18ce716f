//! Upper layers of containers that are no directories of this host: notes in a container's directory, for who has to take it away.

use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use vellum_service::layers::ceph::CephLayer;
use vellum_service::layers::zoned::ZonedLayer;

/// Of an upper layer on CephFS: that and its work directory.
pub(super) const FAR_NOTE: &str = "upper.far";
/// Of one in a store on a zoned device: the same.
pub(super) const STORED_NOTE: &str = "upper.stored";

/// An upper layer on CephFS that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CephUpper {
    pub(super) upper: CephLayer,
    pub(super) work: CephLayer,
}

/// A note that is not whole was being written when its writer died: then nothing has been made there.
pub(super) fn read_remote_upper(dir: &Path) -> Option<CephUpper> {
    serde_json::from_slice(&fs::read(dir.join(FAR_NOTE)).ok()?).ok()
}

/// An upper layer in a store on a zoned device. Its work directory stays there, for the next mount of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ZonedUpper {
    pub(super) upper: ZonedLayer,
    pub(super) work: ZonedLayer,
}

/// As [`read_remote_upper`].
pub(super) fn stored_note(dir: &Path) -> Option<ZonedUpper> {
    serde_json::from_slice(&fs::read(dir.join(STORED_NOTE)).ok()?).ok()
}
