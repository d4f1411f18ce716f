//! What reading does to access times.

use crate::harness::outcome::{Outcome, ensure_eq};
use crate::harness::{Cx, Mount, MountKind, Profile};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Whether a read of a file of the upper layer has set its access time: one that was older than the last change, and one that was
/// newer. The same through the mount and in the layer.
fn set_by_reads(root: &Path, upper: &Path) -> Outcome<[bool; 2]> {
    let mut set = [false; 2];
    let now = SystemTime::now();
    let (before, later) = (now - Duration::from_secs(900), now + Duration::from_secs(900));
    for (set, accessed) in set.iter_mut().zip([before, later]) {
        let times = fs::FileTimes::new().set_accessed(accessed).set_modified(now);
        fs::File::options().write(true).open(root.join("file"))?.set_times(times)?;
        let old = fs::metadata(root.join("file"))?.accessed()?;
        ensure_eq!(fs::read_to_string(root.join("file"))?, "text", "what is read");
        let now = fs::metadata(root.join("file"))?.accessed()?;
        ensure_eq!(now, fs::metadata(upper.join("file"))?.accessed()?, "access time in the layer");
        *set = now != old;
    }
    Ok(set)
}

pub(super) fn access_times(cx: &Cx) -> Outcome {
    for (option, expected) in
        [("noatime", [false, false]), ("relatime", [true, false]), ("strictatime", [true, true])]
    {
        for kind in [MountKind::Kernel, MountKind::under_test()] {
            let vellum = kind.is_vellum();
            let layers = cx.layers(&format!("{option}-{vellum}"), 1)?;
            fs::write(layers.upper().join("file"), "text")?;
            let mut mount = Mount::new(kind, cx.profile, &layers, &[option])?;
            // What the kernel has cached it reads without asking.
            let expected =
                if vellum && cx.profile == Some(Profile::Cached) { [false, false] } else { expected };
            let seen = set_by_reads(mount.root(), layers.upper())?;
            ensure_eq!(seen, expected, "access times with {option}, vellum: {vellum}");
            mount.unmount()?;
        }
    }
    // Without a word, as with noatime.
    let layers = cx.layers("default", 1)?;
    fs::write(layers.upper().join("file"), "text")?;
    let mut mount = cx.mount(&layers)?;
    ensure_eq!(set_by_reads(mount.root(), layers.upper())?, [false, false], "access times without an option");
    mount.unmount()
}
