//! Clients that have more files open than the service may.

use crate::harness::PATIENCE;
use crate::harness::mount::only_vellum;
use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq, fail};
use crate::harness::{Cx, Mount};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Runs a program that may have 256 files open, and cannot change that.
const FEW: [&str; 5] =
    ["setpriv", "--bounding-set=-sys_resource", "bash", "-c", "ulimit -n 256; exec \"$0\" \"$@\""];
/// Files that the clients open, each in a directory of its own.
const OPEN: usize = 300;
/// How often another client looks at what nobody has looked at before.
const OTHERS: usize = 3;

/// What somebody else does meanwhile, with files that nobody has used yet.
fn another_client(mount: &Mount, round: usize) -> Outcome {
    let dir = mount.path(&format!("other{round}"));
    let when = |what: &str| format!("{what}, round {round}");
    ensure_eq!(fs::metadata(dir.join("file")).doing(when("stat"))?.len(), 5, "{}", when("size"));
    ensure_eq!(fs::read_to_string(dir.join("file")).doing(when("read"))?, "other", "{}", when("contents"));
    ensure_eq!(fs::read_dir(&dir).doing(when("readdir"))?.count(), 1, "{}", when("entries"));
    ensure!(!dir.join("none").try_exists().doing(when("lookup"))?, "what is not there is found");
    fs::write(dir.join("file"), "changed").doing(when("copy-up"))?;
    fs::write(dir.join("new"), "new").doing(when("create"))?;
    fs::create_dir(dir.join("made")).doing(when("mkdir"))?;
    ensure_eq!(fs::read_to_string(dir.join("file")).doing(when("read"))?, "changed", "{}", when("contents"));
    Ok(())
}

/// Open files cost the service nothing that others need. Files that are open and have no name cost it a descriptor each: the one too
/// many keeps its name, and others go on.
pub(super) fn more_than_the_service_may(cx: &Cx) -> Outcome {
    only_vellum("has no service")?;
    let layers = cx.layers("l", 1)?;
    let mut mount = cx.mount(&layers)?;
    mount.unmount()?;
    let numbered = (0..OPEN).map(|n| (format!("dir{n}"), format!("{n}")));
    for (dir, text) in numbered.chain((0..OTHERS).map(|n| (format!("other{n}"), "other".to_owned()))) {
        fs::create_dir(layers.lower().join(&dir))?;
        fs::write(layers.lower().join(dir).join("file"), text)?;
    }
    // Of the upper layer's files that have another name one is enough, until a handle is asked for.
    fs::create_dir(layers.upper().join("linked"))?;
    for n in 0..OPEN {
        let name = |which| layers.upper().join(format!("linked/{which}{n}"));
        fs::write(name("one"), "linked")?;
        fs::hard_link(name("one"), name("two"))?;
    }
    mount.mount_by(&FEW)?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", mount.service()?.as_raw_nonzero()))?;
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap_or_default();
    ensure!(
        line.split_whitespace().filter(|word| *word == "256").count() == 2,
        "the service's limit: {line}"
    );

    for n in 0..OPEN {
        fs::remove_file(mount.path(&format!("linked/one{n}")))
            .doing(format!("removing a name of file {n}"))?;
    }
    let path = |n: usize| mount.path(&format!("dir{n}/file"));
    let mut open = Vec::with_capacity(OPEN);
    for n in 0..OPEN {
        let file = File::options().read(true).write(n % 2 == 0).open(path(n));
        open.push(file.doing(format!("open of file {n}"))?);
    }
    another_client(&mount, 0)?;
    let read = |n: usize, file: &File| -> Outcome {
        let mut text = vec![0; format!("{n}").len()];
        file.read_exact_at(&mut text, 0).doing(format!("reading file {n}"))?;
        ensure_eq!(String::from_utf8_lossy(&text), format!("{n}"), "contents of file {n}");
        Ok(())
    };
    for (n, file) in open.iter().enumerate() {
        read(n, file)?;
        if n % 2 == 0 {
            file.write_all_at(b"more", 10).doing(format!("writing to file {n}"))?;
            file.sync_all().doing(format!("fsync of file {n}"))?;
        }
    }

    let mut nameless = 0;
    let refused = loop {
        match fs::remove_file(path(nameless)) {
            Ok(()) => nameless += 1,
            Err(error) => break error,
        }
        ensure!(nameless < OPEN, "the service has more files open than it may");
    };
    ensure_eq!(refused.raw_os_error(), Some(Errno::NFILE.raw_os_error()), "the removal that is one too many");
    ensure!(nameless > 100, "only {nameless} files without a name");
    another_client(&mount, 1)?;
    for (n, file) in open.iter().enumerate() {
        read(n, file)?;
        let names = u64::from(n >= nameless);
        ensure_eq!(file.metadata().doing(format!("fstat of file {n}"))?.nlink(), names, "names of file {n}");
    }

    drop(open);
    // The service hears of it later.
    let begin = Instant::now();
    for n in nameless..OPEN {
        while let Err(error) = fs::remove_file(path(n)) {
            if begin.elapsed() > PATIENCE {
                return fail(format!("file {n} cannot be removed: {error}"));
            }
            sleep(Duration::from_millis(1));
        }
    }
    another_client(&mount, 2)?;
    mount.unmount()
}
