//! The service with the fewest privileges that work.
//!
//! What a client, a layer or a device sends is decoded by this process, and a mistake in that must not be worth the host. So once
//! the layers are open and the mount is made, and before a thread is started, the process gives up for ever what it will not
//! need: capabilities ([`capabilities`]), the tree beside its layers ([`files`]), and system calls ([`calls`]). All of it is
//! inherited by threads and cannot be taken back.
//!
//! What a kernel does not have is left out, and the report says so: a mount with less protection beats none. Taking the mount
//! away needs what is given up here, so the supervisor does it ([`crate::pool`]).

mod calls;
mod capabilities;
mod files;

pub use capabilities::can_pass_through;

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

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

    /// Whether something is given up.
    #[must_use]
    pub const fn is_enforced(self) -> bool {
        matches!(self, Self::On | Self::NoFiles)
    }

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

impl Plan {
    /// The layers, if there are to be rules about files.
    fn roots(&self) -> Option<&Roots> {
        self.roots.as_ref().filter(|_| self.mode == Mode::On)
    }
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
}

/// What is in force. To be kept as long as the process serves.
#[derive(Debug, Default)]
pub struct Entered {
    /// By the name of the part, what it allows or why it is missing.
    pub parts: BTreeMap<String, String>,
    _kept: Option<files::Kept>,
}

impl Entered {
    fn say(&mut self, part: &str, what: Result<String, String>) {
        let what = what.unwrap_or_else(|why| {
            tracing::info!("sandbox without {part}: {why}");
            format!("not in force: {why}")
        });
        self.parts.insert(part.into(), what);
    }
}

/// Gives up what `plan` does not need. Call while the process has one thread; with more, nothing is given up, for the others would
/// keep it.
#[must_use]
pub fn enter(plan: &Plan) -> Entered {
    let mut entered = Entered::default();
    entered.parts.insert("mode".into(), plan.mode.name().into());
    if plan.mode == Mode::Off {
        return entered;
    }
    if vellum_sys::thread_count() != Some(1) {
        entered.say("everything", Err("the process has several threads, or no /proc".into()));
        return entered;
    }
    if plan.mode == Mode::Warn {
        entered.say("calls", calls::restrict(plan));
        return entered;
    }
    // Without it, an ordinary user may not give anything up; with it, running a program never gains anything.
    entered.say("new privileges", no_new_privileges());
    let files = files::restrict(plan).map(|(what, kept)| {
        entered._kept = kept;
        what
    });
    entered.say("files", files);
    entered.say("capabilities", capabilities::restrict(plan));
    // The last, for it refuses what the others need.
    entered.say("calls", calls::restrict(plan));
    tracing::debug!(?entered, "privileges given up");
    entered
}

fn no_new_privileges() -> Result<String, String> {
    rustix::thread::set_no_new_privs(true).map_err(|e| e.to_string())?;
    Ok("none, for ever".into())
}
