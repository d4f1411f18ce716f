//! Somebody keeps a lease on a file of the layer: who opens it to write is told so, soon, and nobody else waits for it.

use super::{Ground, SETTLED, status};
use crate::harness::Cx;
use crate::harness::outcome::{Outcome, ensure, ensure_eq};
use libc::{O_APPEND, O_CREAT, O_EXCL, O_NONBLOCK, O_WRONLY};
use rustix::fs::{OFlags, fcntl_getfl};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};
use vellum_ring::files::ASK_KERNEL;

/// The kernel would wait for 45 s (`/proc/sys/fs/lease-break-time`).
const SOON: Duration = Duration::from_secs(40);

pub(super) fn leases(cx: &Cx) -> Outcome {
    vellum_sys::ignore_leases();
    let ground = Ground::new(cx, |_| Ok(()))?;
    let program = ground.program()?;
    let dir = program.enter(&ground.path("new"))?.or_else(status)?;
    std::thread::sleep(SETTLED);
    let made = program.opened(dir, "file", O_CREAT | O_EXCL | O_WRONLY, 0o644)?;
    // By a descriptor of the layer's, as programs may have them.
    let holder = fs::File::open(format!("/proc/self/fd/{}", made.as_raw_fd()))?;
    drop(made);
    vellum_sys::lease_to_read(holder.as_fd())?;
    let begin = Instant::now();
    ensure_eq!(program.open(dir, "file", O_WRONLY, 0)?.err(), Some(ASK_KERNEL), "over the ring");
    let through = OpenOptions::new().write(true).open(ground.path("new/file"));
    ensure_eq!(through.err().and_then(|e| e.raw_os_error()), Some(libc::EAGAIN), "through the mount");
    // While many wait, others do not.
    std::thread::scope(|scope| {
        let waiting = [(); 4]
            .map(|()| scope.spawn(|| OpenOptions::new().write(true).open(ground.path("new/file")).is_err()));
        for n in 0..50 {
            fs::write(ground.path("new").join(n.to_string()), "others")?;
        }
        let refused = waiting.into_iter().all(|waiting| waiting.join().is_ok_and(|refused| refused));
        ensure!(refused, "opened beside a lease");
        Ok(())
    })?;
    ensure!(begin.elapsed() < SOON, "it took {:?}", begin.elapsed());
    vellum_sys::release_lease(holder.as_fd())?;
    OpenOptions::new().write(true).open(ground.path("new/file"))?.write_all(b"written")?;
    // What is given out has the flags that were asked for.
    drop(program.opened(dir, "flags", O_CREAT | O_EXCL | O_WRONLY, 0o644)?);
    for flags in [0, O_APPEND, O_NONBLOCK, O_APPEND | O_NONBLOCK] {
        let file = program.opened(dir, "flags", O_WRONLY | flags, 0)?;
        let has = fcntl_getfl(&file)? & (OFlags::APPEND | OFlags::NONBLOCK);
        ensure_eq!(has.bits(), flags as u32, "flags of an open");
        let again = program.reopen(&ground.path("new/flags"), flags & O_NONBLOCK)?;
        if let Some(Ok(again)) = again {
            let has = fcntl_getfl(&again)? & (OFlags::APPEND | OFlags::NONBLOCK);
            ensure_eq!(has.bits(), (flags & O_NONBLOCK) as u32, "flags of a companion");
        }
    }
    Ok(())
}
