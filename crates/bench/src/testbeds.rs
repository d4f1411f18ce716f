//! The places of one comparison: one for all subjects but those that are to be seen on another filesystem.

use crate::ceph::CephLayers;
use crate::contender::Kind;
use crate::failure::Result;
use crate::testbed::{Format, Testbed};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};

/// The size of the image for XFS at scale 1, in MiB. It takes the space that is written to it, and no more.
const XFS_MIB: f64 = 65_536.0;
/// What mkfs.xfs asks for at least, in MiB.
const XFS_MIB_MIN: u64 = 1024;

/// Where the layers of each subject lie.
#[derive(Debug)]
pub struct Testbeds {
    main: Testbed,
    dir: PathBuf,
    /// Made when it is first asked for.
    xfs: OnceCell<Testbed>,
}

impl Testbeds {
    /// A place below `dir`, on an image of a filesystem of so many MiB where that is given, and with layers on CephFS.
    pub fn new(
        dir: &Path,
        image: Option<(Format, u64)>,
        scale: f64,
        far: Option<CephLayers>,
    ) -> Result<Self> {
        let mut main = Testbed::on(dir, image, scale)?;
        far.map_or(Ok(()), |far| main.move_to_ceph(far))?;
        Ok(Self { main, dir: dir.to_owned(), xfs: OnceCell::new() })
    }

    /// The place of all subjects that need no other.
    #[must_use]
    pub fn main(&self) -> &Testbed {
        &self.main
    }

    /// The place of a subject.
    pub fn get(&self, kind: Kind) -> Result<&Testbed> {
        if kind != Kind::OverlayXfs {
            return Ok(&self.main);
        }
        if let Some(xfs) = self.xfs.get() {
            return Ok(xfs);
        }
        let scale = self.main.scale();
        let mib = ((XFS_MIB * scale) as u64).max(XFS_MIB_MIN);
        let xfs = Testbed::on(&self.dir, Some((Format::Xfs, mib)), scale)?;
        Ok(self.xfs.get_or_init(|| xfs))
    }
}
