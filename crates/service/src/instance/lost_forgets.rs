//! What a predecessor was told to forget and has not noted is forgotten, once.

use crate::instance::Instance;
use std::sync::{Arc, Weak};
use std::time::Duration;
use vellum_union::Union;

/// How often there is a look whether the kernel has been told to go on.
const STEP: Duration = Duration::from_millis(100);
/// Longer than a program needs to take an answer that has been given to it.
const ANSWERS_ARRIVE: Duration = Duration::from_secs(5);

/// Starts the thread that does it, in a service that goes on with a mount.
pub(crate) fn start(instance: &Arc<Instance<Union>>) -> std::io::Result<()> {
    let instance = Arc::downgrade(instance);
    std::thread::Builder::new().name("vellum-lost".into()).spawn(move || forget(&instance))?;
    Ok(())
}

fn forget(instance: &Weak<Instance<Union>>) {
    let before = loop {
        std::thread::sleep(STEP);
        let Some(instance) = instance.upgrade() else { return };
        if let Some(before) = instance.inner().not_held() {
            break before;
        }
    };
    if before.is_empty() {
        return;
    }
    std::thread::sleep(ANSWERS_ARRIVE);
    if let Some(instance) = instance.upgrade() {
        let nodes = instance.inner().forget_lost(&before);
        tracing::debug!(nodes, "forgotten for a predecessor");
    }
}
