//! Paced files: whole or absent, and never without end.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use vellum_zoned::pace::Budget;
use vellum_zoned::paced_file::{Disk, PacedFile};

const MIB: u64 = 1 << 20;

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 4096) as u8 ^ at as u8).collect()
}

/// A directory that direct I/O is possible in; None where there is none.
fn directory() -> Option<(tempfile::TempDir, Disk)> {
    let directory = tempfile::tempdir().expect("a directory");
    match Disk::of_directory(directory.path(), Budget::of_disk(1 << 30)) {
        Ok(disk) => Some((directory, disk)),
        Err(error) => {
            println!("SKIPPED: no direct I/O here: {error}");
            None
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("the directory");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
}

fn create(directory: &Path, name: &str, disk: &Disk) -> std::io::Result<PacedFile> {
    PacedFile::create(directory, OsStr::new(name), disk)
}

#[test]
fn a_paced_file_has_exactly_its_written_bytes() {
    let Some((directory, disk)) = directory() else { return };
    for bytes in [0, 1, 4096, 262_144, 262_145, 3_000_001] {
        let data = content(bytes);
        let mut file = create(directory.path(), "image", &disk).expect("a file");
        for part in data.chunks(70_001) {
            file.write(part).expect("write");
        }
        file.finish().expect("finish");
        assert!(fs::read(directory.path().join("image")).expect("the file") == data, "{bytes}");
        assert_eq!(names(directory.path()), ["image"]);
    }
}

#[test]
fn the_old_file_stays_until_the_replacement() {
    let Some((directory, disk)) = directory() else { return };
    fs::write(directory.path().join("image"), "old").expect("a file");
    let mut file = create(directory.path(), "image", &disk).expect("a file");
    file.write(&content(1_000_000)).expect("write");
    assert_eq!(fs::read(directory.path().join("image")).expect("the file"), b"old");
    drop(file);
    assert_eq!(names(directory.path()), ["image"]);
    for name in ["", ".", "..", "a/b", "/a"] {
        assert!(create(directory.path(), name, &disk).is_err(), "{name}");
    }
    assert_eq!(fs::read(directory.path().join("image")).expect("the file"), b"old");
}

/// On a full filesystem an error is told, and nothing is left. There is no disk that counts there, so others are taken to be always at work.
#[test]
fn a_full_filesystem_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let mount = |args: &[&str]| {
        Command::new(args[0]).args(&args[1..]).arg(directory.path()).status().is_ok_and(|done| done.success())
    };
    if !mount(&["mount", "-t", "tmpfs", "-o", "size=20M", "tmpfs"]) {
        println!("SKIPPED: no right to mount");
        return;
    }
    let tried = Disk::of_directory(directory.path(), Budget { least: 64 * MIB, ..Budget::of_disk(1 << 30) })
        .map(|disk| {
            let mut file = create(directory.path(), "image", &disk)?;
            for _ in 0..20 {
                file.write(&content(MIB as usize))?;
            }
            file.finish()
        });
    let left = names(directory.path());
    assert!(mount(&["umount", "-l"]));
    match tried {
        Err(error) => println!("SKIPPED: no direct I/O on tmpfs: {error}"),
        Ok(done) => assert_eq!(done.map_err(|error| error.raw_os_error()), Err(Some(28))),
    }
    assert_eq!(left, Vec::<String>::new());
}

/// Somebody who never rests holds an image up, but not for ever.
#[test]
fn an_image_completes_under_any_load() {
    let Some((directory, _)) = directory() else { return };
    let budget = Budget { slack: 0.0, least: 32 * MIB, ..Budget::of_disk(1 << 30) };
    let disk = Disk::of_directory(directory.path(), budget).expect("a disk");
    let stop = std::sync::atomic::AtomicBool::new(false);
    let begins = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let path = directory.path().join("other");
                let written =
                    fs::write(&path, content(MIB as usize)).and_then(|()| fs::File::open(&path)?.sync_all());
                written.expect("somebody else's file");
            }
        });
        let mut file = create(directory.path(), "image", &disk).expect("a file");
        (0..16).for_each(|_| file.write(&content(MIB as usize)).expect("write"));
        file.finish().expect("finish");
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(Disk::measure(directory.path(), 8 * MIB).expect("a measurement") > 0);
    // Half a second at the least rate, pauses of 70 ms, and whatever the machine adds.
    assert!(begins.elapsed() < Duration::from_secs(20), "{:?}", begins.elapsed());
}
