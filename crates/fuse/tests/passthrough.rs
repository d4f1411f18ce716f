//! The passthrough profile: data that never comes to the daemon, and the swap of node ids.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unsafe_code, reason = "a mapping")]

mod common;

use common::{Manner, Mount, mount_with, passthrough};
use rustix::mm::{MapFlags, ProtFlags};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use vellum_fuse::SessionOptions;
use vellum_fuse::wire::{InitFlags, Opcode};
use vellum_vfs::Profile;

/// A shared mapping of one page.
struct Mapping(*mut u8);

const PAGE: usize = 4096;

impl Mapping {
    fn new(file: impl AsFd) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice; the files of these tests are at least a page.
        let address =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), PAGE, protection, MapFlags::SHARED, file, 0) };
        Self(address.unwrap().cast())
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < PAGE);
        // SAFETY: within the mapping, which others may change: hence volatile.
        unsafe { self.0.wrapping_add(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u8) {
        assert!(at < PAGE);
        // SAFETY: within the mapping, which others may change: hence volatile.
        unsafe { self.0.wrapping_add(at).write_volatile(value) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and nothing refers to it any more.
        unsafe { rustix::mm::munmap(self.0.cast(), PAGE) }.unwrap();
    }
}

fn start(backing: &Path) -> Option<Mount> {
    let m = passthrough(backing)?;
    if !m.handle.negotiated().flags.contains(InitFlags::PASSTHROUGH) {
        println!("SKIPPED: the kernel offers no passthrough");
        return None;
    }
    Some(m)
}

/// The one backing file of a test that makes one file.
fn backing_file(dir: &Path) -> fs::File {
    fs::File::options().read(true).write(true).open(dir.join("0")).unwrap()
}

#[test]
fn passthrough_data_bypasses_the_daemon_and_is_coherent() {
    let dir = tempfile::tempdir().unwrap();
    let Some(m) = start(dir.path()) else { return };
    let file = fs::File::options().read(true).write(true).create_new(true).open(m.at("f")).unwrap();
    file.write_all_at(&[b'a'; 2 * PAGE], 0).unwrap();
    let behind = backing_file(dir.path());
    let mut buf = [0; 4];
    behind.read_exact_at(&mut buf, 100).unwrap();
    assert_eq!(&buf, b"aaaa");

    let map = Mapping::new(&file);
    assert_eq!(map.get(7), b'a');
    behind.write_all_at(b"BB", 7).unwrap();
    assert_eq!((map.get(7), map.get(8)), (b'B', b'B'));
    map.set(9, b'C');
    file.read_exact_at(&mut buf, 7).unwrap();
    assert_eq!(&buf, b"BBCa");
    behind.read_exact_at(&mut buf, 7).unwrap();
    assert_eq!(&buf, b"BBCa");
    file.write_all_at(b"D", 10).unwrap();
    assert_eq!(map.get(10), b'D');

    // A second open shares the backing id. A mapping is one of the file behind, and needs no id once it is made.
    let second = fs::File::open(m.at("f")).unwrap();
    assert_eq!(m.handle.backed_nodes(), 1);
    drop((file, second));
    common_end(&m);
    assert_eq!(map.get(7), b'B');
    let third = fs::File::open(m.at("f")).unwrap();
    third.read_exact_at(&mut buf, 7).unwrap();
    assert_eq!(&buf, b"BBCD");
    drop((map, third));
    assert_eq!(fs::metadata(m.at("f")).unwrap().len(), 2 * PAGE as u64);

    let counts = m.handle.counts();
    for opcode in [Opcode::Read, Opcode::Write, Opcode::Flush] {
        assert_eq!(counts.get(opcode), 0, "{counts:?}");
    }
    common_end(&m);
}

/// RELEASE is sent after close(2) has returned: wait for it.
fn common_end(m: &Mount) {
    for _ in 0..1000 {
        if m.handle.backed_nodes() == 0 && m.fs.opens() == 0 {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{} nodes are still backed, {} files open", m.handle.backed_nodes(), m.fs.opens());
}

#[test]
fn truncating_appending_and_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(m) = start(dir.path()) else { return };
    fs::write(m.at("f"), b"0123456789").unwrap();
    assert!(m.handle.negotiated().flags.contains(InitFlags::ATOMIC_O_TRUNC));
    let before = m.handle.counts();
    fs::write(m.at("f"), b"abc").unwrap();
    assert_eq!(m.handle.counts().since(&before).get(Opcode::Setattr), 0);
    assert_eq!(fs::read(m.at("f")).unwrap(), b"abc");
    let mut file = fs::File::options().append(true).open(m.at("f")).unwrap();
    std::io::Write::write_all(&mut file, b"def").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 6);
    file.set_len(4).unwrap();
    assert_eq!(fs::read(m.at("f")).unwrap(), b"abcd");
    drop(file);
    common_end(&m);
}

#[test]
fn a_node_id_is_swapped_when_the_backing_file_changes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(m) = start(dir.path()) else { return };
    fs::write(m.at("f"), [b'x'; PAGE]).unwrap();
    let old = fs::File::open(m.at("f")).unwrap();
    let map_of_old = Mapping::new(fs::File::options().read(true).write(true).open(m.at("f")).unwrap());
    let ino = old.metadata().unwrap().ino();
    assert_eq!(m.fs.nodes_of(ino).len(), 1);

    m.fs.swap(ino);
    let new = fs::File::options().read(true).write(true).open(m.at("f")).unwrap();
    assert_eq!(new.metadata().unwrap().ino(), ino, "the inode number stays");
    assert_eq!(m.fs.nodes_of(ino).len(), 2, "the node id does not");
    assert_eq!(m.fs.seen.stale.load(Ordering::Relaxed), 1);
    new.write_all_at(b"new", 0).unwrap();
    let mut buf = [0; 3];
    old.read_exact_at(&mut buf, 0).unwrap();
    assert_eq!(&buf, b"xxx", "the old descriptor goes on with the old file");
    assert_eq!(map_of_old.get(0), b'x');
    assert_eq!(&fs::read(m.at("f")).unwrap()[..3], b"new");
    assert_eq!(old.metadata().unwrap().ino(), ino);
    drop((old, new, map_of_old));
    common_end(&m);
    fs::remove_file(m.at("f")).unwrap();
}

#[test]
fn swaps_while_many_open() {
    let dir = tempfile::tempdir().unwrap();
    let Some(m) = start(dir.path()) else { return };
    let text = [b'x'; PAGE];
    fs::write(m.at("f"), text).unwrap();
    let ino = fs::metadata(m.at("f")).unwrap().ino();
    let stop = Arc::new(AtomicBool::new(false));
    let (opens, stale) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let clients: Vec<_> = (0..4)
        .map(|t| {
            let (stop, opens, stale) = (Arc::clone(&stop), Arc::clone(&opens), Arc::clone(&stale));
            let path = m.at("f");
            std::thread::spawn(move || {
                let mut kept = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let open = fs::File::options().read(true).write(t % 2 == 0).open(&path);
                    let file = match open {
                        Ok(file) => file,
                        Err(error) if error.raw_os_error() == Some(116) => {
                            stale.fetch_add(1, Ordering::Relaxed);
                            continue;
                        }
                        Err(error) => panic!("open: {error}"),
                    };
                    opens.fetch_add(1, Ordering::Relaxed);
                    let mut buf = [0; 16];
                    file.read_exact_at(&mut buf, 64).unwrap();
                    assert_eq!(buf, [b'x'; 16]);
                    assert_eq!(file.metadata().unwrap().ino(), ino);
                    kept.push(file);
                    if kept.len() > 8 {
                        kept.swap_remove(opens.load(Ordering::Relaxed) as usize % 8);
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        m.fs.swap(ino);
        std::thread::sleep(Duration::from_millis(3));
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.join().unwrap();
    }
    let (opens, stale) = (opens.load(Ordering::Relaxed), stale.load(Ordering::Relaxed));
    let refused = m.fs.seen.stale.load(Ordering::Relaxed);
    println!(
        "{opens} opens, {refused} of them refused with ESTALE by the daemon, {stale} seen by the application"
    );
    assert!(opens > 200 && refused > 10);
    // The kernel tries a second time, so the application sees ESTALE only when it is overtaken twice.
    assert!(stale * 100 <= opens, "{stale} of {opens}");
    common_end(&m);
    wait_for_old_nodes(&m, ino);
}

fn wait_for_old_nodes(m: &Mount, ino: u64) {
    for _ in 0..1000 {
        if m.fs.nodes_of(ino).len() <= 1 {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("{} node ids are still held by the kernel", m.fs.nodes_of(ino).len());
}

#[test]
fn files_that_cannot_be_registered_are_cached() {
    // Backing files on a passthrough mount are stacked one level too deep.
    let dir = tempfile::tempdir().unwrap();
    let Some(lower) = start(dir.path()) else { return };
    fs::create_dir(lower.at("backing")).unwrap();
    let manner =
        Manner { backing: Some(lower.at("backing")), ttl: Duration::from_secs(3600), ..Manner::default() };
    let options = SessionOptions { profile: Profile::Passthrough, ..SessionOptions::default() };
    let m = mount_with(manner, options).unwrap();
    fs::write(m.at("f"), [b'y'; PAGE]).unwrap();
    let one = fs::File::options().read(true).write(true).open(m.at("f")).unwrap();
    let two = fs::File::open(m.at("f")).unwrap();
    let map = Mapping::new(&one);
    one.write_all_at(b"zz", 10).unwrap();
    let mut buf = [0; 4];
    two.read_exact_at(&mut buf, 9).unwrap();
    assert_eq!((&buf, map.get(10)), (b"yzzy", b'z'));
    assert!(m.handle.counts().get(Opcode::Write) > 0);
    drop((one, two, map));
    common_end(&m);
}

#[test]
fn a_direct_mode_reads_request_by_request() {
    let manner = Manner { direct: true, ttl: Duration::from_secs(3600), ..Manner::default() };
    let options = SessionOptions { profile: Profile::Passthrough, ..SessionOptions::default() };
    let Some(m) = mount_with(manner, options) else { return };
    fs::write(m.at("f"), [b'q'; PAGE]).unwrap();
    let file = fs::File::options().read(true).write(true).open(m.at("f")).unwrap();
    let before = m.handle.counts();
    let mut buf = [0; 10];
    for _ in 0..10 {
        file.read_exact_at(&mut buf, 5).unwrap();
    }
    assert_eq!(m.handle.counts().since(&before).get(Opcode::Read), 10);
    // Shared mappings are allowed all the same.
    assert!(m.handle.negotiated().flags.contains(InitFlags::DIRECT_IO_ALLOW_MMAP));
    let map = Mapping::new(&file);
    assert_eq!(map.get(9), b'q');
}
