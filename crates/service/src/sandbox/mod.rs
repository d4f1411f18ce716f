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
mod plan;

pub use capabilities::can_pass_through;
pub(crate) use capabilities::is_initial_namespace;
pub use plan::{Mode, Plan, Roots, VARIABLE};

use std::collections::BTreeMap;

/// What is in force. To be kept as long as the process serves.
#[derive(Debug, Default)]
pub struct ActiveSandbox {
    /// By the name of the part, what it allows or why it is missing.
    pub parts: BTreeMap<String, String>,
    _kept: Option<files::RuleFds>,
}

impl ActiveSandbox {
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
pub fn enter(plan: &Plan) -> ActiveSandbox {
    let mut entered = ActiveSandbox::default();
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
    if plan.ceph.is_some() {
        entered.parts.insert("connections".into(), "to clusters, and so to any address (TCP, Ceph)".into());
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
