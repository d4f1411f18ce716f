//! How a partial file begins, what else is done with it, and how it ends.

use crate::harness::outcome::{DuringContext, Outcome, ensure, ensure_eq};
use crate::harness::raw::Mapping;
use crate::harness::{Cx, Layers, Mount, PATIENCE, Profile, rng, shell};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Size of the lower file.
const SIZE: usize = 8 << 20;
const BLOCK: usize = 4096;

/// What the lower file holds at an offset.
fn original(at: usize) -> u8 {
    (at / 5 % 251) as u8
}

pub(super) fn content() -> Vec<u8> {
    (0..SIZE).map(original).collect()
}

fn open(path: &Path, flags: OFlags) -> Outcome<OwnedFd> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
        .doing(format!("opening {}", path.display()))
}

pub(super) fn write(path: &Path, at: usize, data: &[u8]) -> Outcome {
    let fd = open(path, OFlags::WRONLY)?;
    let n = rustix::io::pwrite(&fd, data, at as u64)?;
    ensure_eq!(n, data.len(), "written");
    rustix::fs::fsync(&fd)?;
    Ok(())
}

/// A mount over one lower with the file `big`.
pub(super) fn mounted(cx: &Cx, options: &[&str]) -> Outcome<(Layers, Mount)> {
    let layers = cx.layers("union", 1)?;
    fs::write(layers.lower().join("big"), content())?;
    let mount = cx.mount_with(&layers, options)?;
    Ok((layers, mount))
}

/// Bytes of space that the upper's file takes.
fn space(layers: &Layers, name: &str) -> Outcome<u64> {
    Ok(fs::metadata(layers.upper().join(name))?.blocks() * 512)
}

pub(super) fn is_partial(layers: &Layers, name: &str) -> bool {
    let mut value = [0; 64];
    rustix::fs::lgetxattr(layers.upper().join(name), "trusted.vellum.p", value.as_mut_slice()).is_ok()
}

pub(super) fn expect(path: &Path, changes: &[(usize, &[u8])]) -> Outcome {
    let mut model = content();
    for (at, data) in changes {
        if model.len() < at + data.len() {
            model.resize(at + data.len(), 0);
        }
        model[*at..at + data.len()].copy_from_slice(data);
    }
    let found = fs::read(path)?;
    let first = found.iter().zip(&model).position(|(a, b)| a != b);
    ensure!(found.len() == model.len() && first.is_none(), "{}: differs at {first:?}", path.display());
    Ok(())
}

pub(super) fn first_write(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    write(&mount.path("big"), 5 * BLOCK + 17, b"x")?;
    let taken = space(&layers, "big")?;
    ensure!(taken <= 8192, "one byte took {taken} bytes");
    expect(&mount.path("big"), &[(5 * BLOCK + 17, b"x")])?;
    ensure!(fs::metadata(mount.path("big"))?.blocks() * 512 >= SIZE as u64, "the merged file looks sparse");
    // Small files are copied whole, and so are all when that is asked for.
    mount.unmount()?;
    let small = layers.lower().join("small");
    fs::write(&small, vec![1; 5000])?;
    let mut mount = cx.mount_with(&layers, &["block_copy=off"])?;
    fs::copy(layers.lower().join("big"), layers.lower().join("second"))?;
    write(&mount.path("small"), 0, b"x")?;
    ensure!(!is_partial(&layers, "small"), "a small file became partial");
    expect(&mount.path("big"), &[(5 * BLOCK + 17, b"x")])?;
    mount.unmount()
}

/// One who reads the lower goes on; one who opens the file again sees what was written.
pub(super) fn reader_and_writer(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    let path = mount.path("big");
    let reader = open(&path, OFlags::RDONLY)?;
    let mut buf = [0; 100];
    rustix::io::pread(&reader, &mut buf, 0)?;
    let writer = open(&path, OFlags::RDWR)?;
    rustix::io::pwrite(&writer, b"new", 50)?;
    let n = rustix::io::pread(&reader, &mut buf, 0).doing("the old descriptor")?;
    ensure_eq!(n, 100, "bytes read by the old descriptor");
    let mut buf = [0; 3];
    rustix::io::pread(&writer, &mut buf, 50)?;
    ensure_eq!(&buf, b"new", "what the writer sees");
    let again = open(&path, OFlags::RDONLY)?;
    rustix::io::pread(&again, &mut buf, 50)?;
    ensure_eq!(&buf, b"new", "what a new reader sees");
    // Written to everywhere while it is open, it becomes whole, and those who have it open go on.
    let all = vec![7; SIZE];
    rustix::io::pwrite(&writer, &all[..SIZE / 2], 0)?;
    rustix::io::pwrite(&writer, &all[SIZE / 2..], SIZE as u64 / 2)?;
    rustix::fs::fsync(&writer)?;
    ensure!(!is_partial(&layers, "big"), "written to everywhere, it is still partial");
    rustix::io::pwrite(&writer, b"after", 100)?;
    let mut buf = [0; 5];
    rustix::io::pread(&again, &mut buf, 100)?;
    ensure_eq!(&buf, b"after", "what an old reader sees");
    let new = open(&path, OFlags::RDWR)?;
    rustix::io::pread(&new, &mut buf, 100)?;
    ensure_eq!(&buf, b"after", "what a new reader sees of a whole file");
    rustix::io::pwrite(&new, b"later", 100)?;
    rustix::io::pread(&writer, &mut buf, 100)?;
    ensure_eq!(&buf, b"later", "what the first writer sees");
    drop((reader, writer, again, new));
    // All opens have ended: in passthrough, the kernel reads the upper's file from now on.
    let last = open(&path, OFlags::RDWR)?;
    rustix::io::pread(&last, &mut buf, 100)?;
    ensure_eq!(&buf, b"later", "what is left");
    rustix::io::pwrite(&last, b"ended", 100)?;
    rustix::io::pread(&last, &mut buf, 100)?;
    ensure_eq!(&buf, b"ended", "what was written last");
    drop(last);
    mount.unmount()
}

/// Shared and private mappings of a partial file.
pub(super) fn mappings(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    let path = mount.path("big");
    let fd = open(&path, OFlags::RDWR)?;
    let mapping = Mapping::shared(fd.as_fd(), SIZE, true)?;
    ensure_eq!(mapping.read(1000, 10), (1000..1010).map(original).collect::<Vec<_>>(), "lower data");
    mapping.write(3 * BLOCK + 100, b"mapped");
    let mut buf = [0; 6];
    rustix::io::pread(&fd, &mut buf, 3 * BLOCK as u64 + 100)?;
    ensure_eq!(&buf, b"mapped", "a read after a write by mapping");
    rustix::io::pwrite(&fd, b"written", 9 * BLOCK as u64)?;
    ensure_eq!(mapping.read(9 * BLOCK, 7), b"written".to_vec(), "the mapping after a write");
    mapping.sync()?;
    let taken = space(&layers, "big")?;
    ensure!(taken <= 8 * BLOCK as u64, "two blocks took {taken} bytes");
    drop(mapping);
    drop(fd);
    let changes: [(usize, &[u8]); 2] = [(3 * BLOCK + 100, b"mapped"), (9 * BLOCK, b"written")];
    expect(&path, &changes)?;
    mount.remount()?;
    expect(&path, &changes)?;
    mount.unmount()
}

/// A partial file is renamed, linked, listed by another mount, and lives on without a name.
pub(super) fn names(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    let change: [(usize, &[u8]); 1] = [(777, b"changed")];
    write(&mount.path("big"), 777, b"changed")?;
    fs::create_dir(mount.path("dir"))?;
    fs::rename(mount.path("big"), mount.path("dir/moved"))?;
    fs::hard_link(mount.path("dir/moved"), mount.path("link"))?;
    mount.remount()?;
    expect(&mount.path("dir/moved"), &change)?;
    write(&mount.path("link"), 0, b"by a link")?;
    let changes: [(usize, &[u8]); 2] = [(777, b"changed"), (0, b"by a link")];
    expect(&mount.path("dir/moved"), &changes)?;
    ensure!(is_partial(&layers, "link"), "it was copied whole");
    mount.crash()?;
    expect(&mount.path("link"), &changes)?;
    // The upper as a lower of another tree, and a chain of partial files.
    mount.unmount()?;
    let mut above = Layers::new(&cx.dir.join("above"), 0)?;
    above.lowers = layers.upper.iter().chain(&layers.lowers).cloned().collect();
    let mut chain = cx.mount(&above)?;
    write(&chain.path("dir/moved"), 2 * BLOCK, b"third")?;
    let changes: [(usize, &[u8]); 3] = [(777, b"changed"), (0, b"by a link"), (2 * BLOCK, b"third")];
    expect(&chain.path("link"), &changes)?;
    ensure!(space(&above, "link")? <= 4 * BLOCK as u64, "the chain took space");
    chain.remount()?;
    let fd = open(&chain.path("link"), OFlags::RDWR)?;
    fs::remove_file(chain.path("link"))?;
    fs::remove_file(chain.path("dir/moved"))?;
    rustix::io::pwrite(&fd, b"nameless", 5 * BLOCK as u64)?;
    let mut buf = [0; 8];
    rustix::io::pread(&fd, &mut buf, 5 * BLOCK as u64)?;
    ensure_eq!(&buf, b"nameless", "a file without a name");
    rustix::io::pread(&fd, &mut buf[..5], 2 * BLOCK as u64)?;
    ensure_eq!(&buf[..5], b"third", "its other blocks");
    drop(fd);
    chain.unmount()
}

/// Several processes append to one file, and none loses a line.
pub(super) fn appends(cx: &Cx) -> Outcome {
    const LINES: usize = 300;
    let (_layers, mut mount) = mounted(cx, &[])?;
    let path = mount.path("big");
    let children: Vec<_> = (0..4)
        .map(|number| {
            let line =
                format!("for i in $(seq {LINES}); do printf 'line %06d {number}\\n' $i >> \"$0\"; done");
            Command::new("bash").arg("-c").arg(line).arg(&path).spawn()
        })
        .collect::<Result<_, _>>()?;
    for mut child in children {
        ensure!(child.wait()?.success(), "an appending process failed");
    }
    let data = fs::read(&path)?;
    ensure_eq!(data.len(), SIZE + 4 * LINES * 14, "size");
    ensure!(data[..SIZE] == content()[..], "what was there before");
    let text = String::from_utf8_lossy(&data[SIZE..]).into_owned();
    let lines: std::collections::BTreeSet<&str> = text.lines().collect();
    ensure_eq!(lines.len(), 4 * LINES, "different lines");
    mount.unmount()
}

/// A file whose last block was written, or that was cut to nothing, is an ordinary one.
pub(super) fn becomes_complete(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    let path = mount.path("big");
    write(&path, 10, b"x")?;
    ensure!(is_partial(&layers, "big"), "it was copied whole");
    let fd = open(&path, OFlags::RDWR)?;
    for block in (0..SIZE / BLOCK).rev() {
        rustix::io::pwrite(&fd, b"y", (block * BLOCK) as u64)?;
    }
    rustix::fs::fsync(&fd)?;
    drop(fd);
    ensure!(!is_partial(&layers, "big"), "every block was written, and it is still partial");
    mount.remount()?;
    let mut model = content();
    model[10] = b'x';
    (0..SIZE / BLOCK).for_each(|block| model[block * BLOCK] = b'y');
    ensure!(fs::read(&path)? == model, "contents");
    ensure!(fs::read(layers.upper().join("big"))? == model, "contents of the upper's file");
    fs::write(layers.lower().join("second"), content())?;
    mount.remount()?;
    write(&mount.path("second"), 10, b"x")?;
    open(&mount.path("second"), OFlags::RDWR | OFlags::TRUNC)?;
    ensure!(!is_partial(&layers, "second"), "cut to nothing, it is still partial");
    mount.unmount()
}

pub(super) fn background(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &["background_fill=64M"])?;
    write(&mount.path("big"), 10, b"x")?;
    ensure!(is_partial(&layers, "big"), "it was copied whole");
    let mtime = fs::metadata(layers.upper().join("big"))?.mtime_nsec();
    // The kernel forgets the file, as it does when memory is short.
    fs::write("/proc/sys/vm/drop_caches", "2")?;
    let begin = Instant::now();
    while is_partial(&layers, "big") {
        ensure!(begin.elapsed() < PATIENCE, "still partial after {:?}", begin.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    expect(&layers.upper().join("big"), &[(10, b"x")])?;
    expect(&mount.path("big"), &[(10, b"x")])?;
    ensure_eq!(fs::metadata(layers.upper().join("big"))?.mtime_nsec(), mtime, "time of the last change");
    mount.unmount()
}

/// flatten is killed again and again, and the file is right at every moment; in the end every file is whole.
pub(super) fn flatten_interrupted(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    fs::write(layers.lower().join("other"), content())?;
    mount.remount()?;
    let changes: [(usize, &[u8]); 2] = [(12345, b"one"), (SIZE - 1, b"end")];
    for name in ["big", "other"] {
        for (at, data) in changes {
            write(&mount.path(name), at, data)?;
        }
    }
    rustix::fs::chmod(mount.path("big"), Mode::from_raw_mode(0o640))?;
    mount.unmount()?;
    let beside = layers.upper().parent().unwrap_or(layers.upper()).to_owned();
    let nothing_left = || -> Outcome {
        let names: Vec<_> = fs::read_dir(&beside)?.flatten().map(|entry| entry.file_name()).collect();
        let left = names.iter().filter(|name| name.to_string_lossy().starts_with(".vellum-flatten-"));
        ensure_eq!(left.count(), 0, "directories that killed ones left behind");
        Ok(())
    };
    for round in 0..12 {
        let mut child = super::flatten_command(&layers)
            .arg(layers.upper())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(Duration::from_millis(3 + round * 2));
        let _ = child.kill();
        child.wait()?;
        mount.mount()?;
        nothing_left().doing("mounted")?;
        expect(&mount.path("big"), &changes).doing(format!("round {round}"))?;
        expect(&mount.path("other"), &changes).doing(format!("round {round}"))?;
        mount.unmount()?;
    }
    super::flatten(&layers)?;
    for name in ["big", "other"] {
        ensure!(!is_partial(&layers, name), "{name} is still partial");
        expect(&layers.upper().join(name), &changes)?;
    }
    let said = super::flatten(&layers)?;
    ensure!(said.contains("nothing to do"), "the second time it says {said:?}");
    nothing_left()?;
    let mut kernel = Mount::kernel(&layers)?;
    expect(&kernel.path("big"), &changes)?;
    kernel.unmount()
}

/// A lower that is not the same any more: EIO, and never a mixture; the rest of the tree goes on.
pub(super) fn changed_lower(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    write(&mount.path("big"), 10, b"x")?;
    mount.unmount()?;
    let lower = layers.lower().join("big");
    let kept = fs::metadata(&lower)?;
    write(&lower, 0, b"somebody else")?;
    mount.mount()?;
    let errno = fs::read(mount.path("big")).err().and_then(|e| e.raw_os_error());
    ensure_eq!(errno, Some(libc::EIO), "reading a file whose lower has changed");
    let errno = write(&mount.path("big"), 0, b"x").err().map(|e| format!("{e}"));
    ensure!(errno.is_some(), "writing to a file whose lower has changed");
    fs::write(mount.path("new"), "works")?;
    mount.unmount()?;
    // As it was: the same size, time and content.
    write(&lower, 0, &content()[..13])?;
    let time = rustix::fs::Timespec { tv_sec: kept.mtime(), tv_nsec: kept.mtime_nsec() };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, &lower, &times, rustix::fs::AtFlags::empty())?;
    mount.mount()?;
    expect(&mount.path("big"), &[(10, b"x")])?;
    mount.unmount()
}

/// Kernel overlayfs says no to a partial file, instead of showing a mixture.
pub(super) fn others_refuse(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &[])?;
    write(&mount.path("big"), 10, b"x")?;
    mount.unmount()?;
    for layers in [layers.clone(), layers.as_lowers("again")?] {
        let mut kernel = Mount::kernel(&layers)?;
        let read = fs::read(kernel.path("big"));
        ensure!(read.is_err(), "overlayfs reads a partial file");
        kernel.unmount()?;
    }
    Ok(())
}

/// Where the filesystem shares blocks between files, that is what is done, and the file is whole.
pub(super) fn reflink(cx: &Cx) -> Outcome {
    if !shell::have("mkfs.xfs") {
        return crate::harness::skip("mkfs.xfs is missing: run make deps");
    }
    let image = cx.dir.join("xfs");
    let at = cx.dir.join("at");
    fs::create_dir(&at)?;
    fs::File::create(&image)?.set_len(512 << 20)?;
    shell::run(Command::new("mkfs.xfs").args(["-q", "-m", "reflink=1"]).arg(&image))?;
    if let Err(stop) = shell::run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at)) {
        return crate::harness::skip(format!("no XFS here: {stop}"));
    }
    let result = reflink_in(cx, &at);
    let _ = shell::run(Command::new("umount").arg(&at));
    result
}

fn reflink_in(cx: &Cx, at: &Path) -> Outcome {
    let layers = Layers::new(at, 1)?;
    fs::write(layers.lower().join("big"), content())?;
    let mut mount = cx.mount(&layers)?;
    let free = || -> Outcome<u64> {
        rustix::fs::sync();
        Ok(rustix::fs::statvfs(at)?.f_bavail * 4096)
    };
    let before = free()?;
    write(&mount.path("big"), 5000, b"x")?;
    let taken = before.saturating_sub(free()?);
    ensure!(taken < SIZE as u64 / 2, "the copy took {taken} bytes");
    ensure!(!is_partial(&layers, "big"), "it is partial, and blocks could be shared");
    expect(&layers.upper().join("big"), &[(5000, b"x")])?;
    expect(&mount.path("big"), &[(5000, b"x")])?;
    if cx.profile == Some(Profile::Passthrough) {
        mount.remount()?;
        expect(&mount.path("big"), &[(5000, b"x")])?;
    }
    mount.unmount()
}

/// Clones of one file that each change a hundredth of it take little more than that.
pub(super) fn clones(cx: &Cx) -> Outcome {
    const CLONES: usize = 32;
    const LEN: u64 = 64 << 20;
    let shared = cx.layers("shared", 1)?;
    let file = fs::File::create(shared.lower().join("big"))?;
    let piece: Vec<u8> = (0..1 << 20).map(original).collect();
    for _ in 0..LEN >> 20 {
        std::io::Write::write_all(&mut &file, &piece)?;
    }
    file.sync_all()?;
    let mut rng = rng::Rng::new(rng::seed());
    let mut mounts = Vec::new();
    for number in 0..CLONES {
        let mut layers = cx.layers(&format!("clone{number}"), 1)?;
        layers.lowers.clone_from(&shared.lowers);
        let mount = cx.mount_with(&layers, &[])?;
        mounts.push((layers, mount));
    }
    let blocks = LEN / BLOCK as u64;
    for (_, mount) in &mounts {
        let fd = open(&mount.path("big"), OFlags::WRONLY)?;
        for _ in 0..blocks / 100 {
            rustix::io::pwrite(&fd, &[7; BLOCK], rng.below(blocks) * BLOCK as u64)?;
        }
        rustix::fs::fsync(&fd)?;
    }
    let mut taken = 0;
    for (layers, mount) in &mut mounts {
        mount.unmount()?;
        taken += space(layers, "big")?;
    }
    let changed = CLONES as u64 * (blocks / 100) * BLOCK as u64;
    println!("{CLONES} clones take {taken} bytes for {changed} that were changed");
    ensure!(taken * 10 < changed * 11, "{taken} bytes for {changed}");
    Ok(())
}

/// The map of a file's blocks goes with the file, or with the next `vellum flatten` after a crash.
pub(super) fn maps_go(cx: &Cx) -> Outcome {
    let (layers, mut mount) = mounted(cx, &["block_map=sidecar"])?;
    fs::copy(layers.lower().join("big"), layers.lower().join("more"))?;
    mount.remount()?;
    let maps = || -> Outcome<usize> {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(layers.upper().join(".vellum.maps"))? {
            names.insert(entry?.file_name().into_string().unwrap_or_default());
        }
        // What is not durable yet stands beside a map, and goes with it.
        let (recent, whole): (Vec<_>, Vec<_>) = names.iter().partition(|name| name.ends_with(".recent"));
        let lost = recent.iter().find(|name| !names.contains(name.trim_end_matches(".recent")));
        ensure!(lost.is_none(), "{lost:?} has no map");
        Ok(whole.len())
    };
    let wait = |expected: usize| -> Outcome {
        // The kernel forgets a file some time after its last user.
        let begin = Instant::now();
        while maps()? != expected && begin.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure_eq!(maps()?, expected, "maps of blocks");
        Ok(())
    };
    write(&mount.path("big"), 100, b"x")?;
    write(&mount.path("more"), 100, b"y")?;
    fs::hard_link(mount.path("big"), mount.path("link"))?;
    wait(2)?;
    fs::remove_file(mount.path("big"))?;
    fs::rename(mount.path("link"), mount.path("big"))?;
    expect(&mount.path("big"), &[(100, b"x")])?;
    // Removed while open: it goes on, and the map with it.
    let fd = open(&mount.path("big"), OFlags::RDWR)?;
    fs::rename(mount.path("more"), mount.path("big"))?;
    rustix::io::pwrite(&fd, b"z", 3 * BLOCK as u64)?;
    rustix::fs::fsync(&fd)?;
    let mut byte = [0];
    rustix::io::pread(&fd, &mut byte, 100)?;
    ensure_eq!(byte, *b"x", "of a removed file");
    wait(2)?;
    drop(fd);
    wait(1)?;
    expect(&mount.path("big"), &[(100, b"y")])?;
    // One that is killed leaves the map of a removed file behind.
    let fd = open(&mount.path("big"), OFlags::RDWR)?;
    fs::remove_file(mount.path("big"))?;
    mount.crash()?;
    drop(fd);
    mount.unmount()?;
    wait(1)?;
    super::flatten(&layers)?;
    wait(0)
}
