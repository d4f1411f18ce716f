//! What the service will need once it has given its privileges up.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// The environment's say in it.
pub const VARIABLE: &str = "VELLUM_SANDBOX";

/// How much of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// All that the kernel has.
    #[default]
    On,
    /// All but the rules about files, which cost about a microsecond for each file that is opened, made or removed.
    NoFiles,
    /// Nothing is refused; system calls that would be are named in the kernel's audit log.
    Warn,
    /// Nothing.
    Off,
}

impl Mode {
    const ALL: [Self; 4] = [Self::On, Self::NoFiles, Self::Warn, Self::Off];

    /// Its name in the environment and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::NoFiles => "nofiles",
            Self::Warn => "warn",
            Self::Off => "off",
        }
    }

    /// What [`VARIABLE`] asks for.
    pub fn from_environment() -> Result<Self, Failure> {
        match std::env::var_os(VARIABLE) {
            Some(text) if !text.is_empty() => {
                Self::ALL.into_iter().find(|mode| text == mode.name()).ok_or_else(|| {
                    let shown = text.to_string_lossy();
                    Failure::input(format!(
                        "{VARIABLE}={shown}: no such mode; write on, nofiles, warn or off"
                    ))
                })
            }
            _ => Ok(Self::On),
        }
    }
}

/// The roots of an instance's layers, as descriptors (also O_PATH).
#[derive(Debug, Default)]
pub struct Roots {
    /// Of layers that are only read.
    pub read_only: Vec<OwnedFd>,
    /// Of the upper and its work directory.
    pub writable: Vec<OwnedFd>,
}

/// What the service will need from now on.
#[derive(Debug)]
pub struct Plan {
    /// How much is asked for.
    pub mode: Mode,
    /// The layers. None: they come later, as descriptors through a socket that is open already. Which files the process may open
    /// cannot be said then, for Landlock judges by where a file is, also with descriptors of others.
    pub roots: Option<Roots>,
    /// Files are handed to the kernel, to be read, written and run in the name of this process.
    pub passthrough: bool,
    /// Something can be changed.
    pub writable: bool,
    /// Processors are kept awake.
    pub keep_awake: bool,
    /// Layers are read through a cache, whose files lie in memory files.
    pub cache: bool,
    /// Layers may lie on CephFS: connections to clusters are made, by keys in these files. None: no connection is made.
    pub ceph: Option<Vec<PathBuf>>,
    /// Layers may lie in a store on a zoned device, which is open already.
    pub zoned: bool,
}

impl Plan {
    /// Whether commands come in by a store socket.
    pub(super) fn has_store_server(&self) -> bool {
        self.zoned && self.writable
    }

    /// The layers, if there are to be rules about files.
    pub(super) fn roots(&self) -> Option<&Roots> {
        self.roots.as_ref().filter(|_| self.mode == Mode::On)
    }
}
