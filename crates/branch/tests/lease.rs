//! A file that somebody has a lease on is opened once the lease is given back, as by any program that opens it.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "one test program")]

mod support;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;
use support::*;
use vellum_vfs::OpenMode;

/// Asks the kernel for a lease for reading, or gives it back.
fn lease(file: &File, kind: libc::c_int) {
    // SAFETY: plain numbers.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn leases_are_waited_for() {
    vellum_sys::ignore_leases();
    let f = Fixture::local();
    std::fs::write(f.path().join("file"), "before").unwrap();
    let root = f.root();
    let held = root.hold(n(c"file")).unwrap();
    let open = root.open_file(n(c"file"), OpenMode::READ).unwrap();
    for mode in [OpenMode::WRITE, RW, RW | OpenMode::TRUNCATE] {
        let opens: [&(dyn Fn() -> vellum_vfs::Result<_> + Sync); 3] =
            [&|| root.open_file(n(c"file"), mode), &|| held.reopen(mode), &|| open.reopen(mode)];
        for opens in opens {
            let holder = File::open(f.path().join("file")).unwrap();
            lease(&holder, libc::F_RDLCK);
            thread::scope(|scope| {
                let opened = scope.spawn(|| opens().map(drop));
                thread::sleep(Duration::from_millis(50));
                assert!(!opened.is_finished(), "opened beside a lease, {mode:?}");
                lease(&holder, libc::F_UNLCK);
                opened.join().unwrap().unwrap();
            });
        }
    }
}
