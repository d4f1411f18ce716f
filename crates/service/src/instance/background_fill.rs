//! Work for idle times: what partial files miss is copied while nobody asks for anything, at a limited rate.

use std::sync::{Arc, Weak};
use std::time::Duration;
use vellum_fuse::SessionHandle;
use vellum_fuse::wire::Opcode;
use vellum_union::Union;

/// How often there is a look whether there is something to do.
const STEP: Duration = Duration::from_millis(100);
/// So many looks without a request make an idle time.
const QUIET: u32 = 10;

/// Starts the thread that works in idle times, `rate` bytes per second. It ends with the tree.
pub(crate) fn start(tree: &Arc<Union>, session: SessionHandle, rate: u64) -> std::io::Result<()> {
    let tree = Arc::downgrade(tree);
    std::thread::Builder::new().name("vellum-tend".into()).spawn(move || fill(&tree, &session, rate))?;
    Ok(())
}

fn fill(tree: &Weak<Union>, session: &SessionHandle, rate: u64) {
    let share = (rate / (Duration::from_secs(1).as_millis() / STEP.as_millis()) as u64).max(4096);
    let (mut seen, mut quiet) = (0, 0);
    loop {
        std::thread::sleep(STEP);
        // That the kernel forgets, as it does when memory is short, is nobody asking.
        let counts = session.counts();
        let now = counts.total() - counts.get(Opcode::Forget) - counts.get(Opcode::BatchForget);
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
        let Some(tree) = tree.upgrade() else { return };
        if quiet >= QUIET && tree.background_fill(share) == 0 {
            // Nothing to do: look again after the next quiet time.
            quiet = 0;
        }
    }
}
