//! A file that somebody has a lease on is opened once the lease is given back; who keeps it is not waited for without end.
#![allow(unreachable_pub, clippy::unwrap_used, reason = "one test program")]

mod support;

use std::fs::File;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;
use support::*;
use vellum_sys::{ignore_leases, lease_to_read, release_lease};
use vellum_vfs::{Errno, OpenMode};

#[test]
fn leases_are_waited_for() {
    ignore_leases();
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
            lease_to_read(holder.as_fd()).unwrap();
            thread::scope(|scope| {
                let opened = scope.spawn(|| opens().map(drop));
                thread::sleep(Duration::from_millis(50));
                assert!(!opened.is_finished(), "opened beside a lease, {mode:?}");
                release_lease(holder.as_fd()).unwrap();
                opened.join().unwrap().unwrap();
            });
        }
        // One that is not given back.
        let holder = File::open(f.path().join("file")).unwrap();
        lease_to_read(holder.as_fd()).unwrap();
        assert_eq!(errno(root.open_file(n(c"file"), mode)), Errno::AGAIN);
    }
}
