//! Work for idle times: what partial files miss is copied while nobody asks for anything, at a limited rate.

use crate::instance::Instance;
use crate::instance::inspect::Explain;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vellum_fuse::SessionHandle;
use vellum_fuse::wire::Opcode;
use vellum_vfs::Filesystem;

/// How often there is a look whether there is something to do.
const STEP: Duration = Duration::from_millis(100);
/// So many looks without a request make an idle time.
const QUIET: u32 = 10;

/// Starts the thread that works in idle times, `rate` bytes per second. It ends with the instance.
pub(crate) fn start<F: Filesystem + Explain>(
    instance: &Arc<Instance<F>>,
    session: SessionHandle,
    rate: u64,
) -> std::io::Result<()> {
    let instance = Arc::downgrade(instance);
    std::thread::Builder::new().name("vellum-tend".into()).spawn(move || fill(&instance, &session, rate))?;
    Ok(())
}

fn fill<F: Filesystem + Explain>(instance: &Weak<Instance<F>>, session: &SessionHandle, rate: u64) {
    let share = (rate / (Duration::from_secs(1).as_millis() / STEP.as_millis()) as u64).max(4096);
    let (mut seen, mut quiet) = (0, 0);
    loop {
        std::thread::sleep(STEP);
        // That the kernel forgets, as it does when memory is short, is nobody asking.
        let counts = session.counts();
        let now = counts.total() - counts.get(Opcode::Forget) - counts.get(Opcode::BatchForget);
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
        let Some(instance) = instance.upgrade() else { return };
        if quiet >= QUIET && instance.inner().background_fill(share) == 0 {
            // Nothing to do: look again after the next quiet time.
            quiet = 0;
        }
    }
}
