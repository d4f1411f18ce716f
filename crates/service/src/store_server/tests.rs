//! Both ends of a store socket.

use super::client::{ConnectOutcome, StoreClient};
use super::server::{open, wait_until_unused};
use super::wire::PART_MAX;
use crate::pool::bind_at;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{SeekFrom, fgetxattr, seek};
use rustix::io::Errno;
use std::ffi::{CStr, CString};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;
use vellum_branch::{ZonedBranch, ZonedTree};
use vellum_fuse::{MountOptions, mount, unmount};
use vellum_vfs::{Branch, Name, OpenMode};
use vellum_zoned::device::Conventional;
use vellum_zoned::store::{Class, Placement, Stats, Store};

/// All commands of a process are counted together, so one test has some at a time.
static TURN: Mutex<()> = Mutex::new(());

struct Scene {
    store: Store,
    tree: Arc<ZonedTree>,
    dir: TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl Scene {
    fn new() -> Self {
        let turn = TURN.lock();
        let device = Conventional::create(tempfile::tempfile().unwrap(), 4096, 64, 256).unwrap();
        let store = Store::format(Arc::new(device), Placement::NONE).unwrap();
        let tree = ZonedTree::open(store.clone()).unwrap();
        store.sync().unwrap();
        let scene = Self { store, tree, dir: tempfile::tempdir().unwrap(), _turn: turn };
        let listener = bind_at(&scene.path(), 0o600).unwrap();
        open(listener.into(), &scene.tree, rustix::process::geteuid().as_raw()).unwrap();
        scene
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn client(&self, changes: bool) -> StoreClient {
        match StoreClient::connect_at(&self.path(), changes) {
            ConnectOutcome::In(client) => client,
            other => panic!("{other:?}"),
        }
    }

    /// What a command that has left may leave: nothing.
    fn stats(&self) -> Stats {
        wait_until_unused();
        Stats { written_blocks: 0, resets: [0, 0], ..self.store.stats() }
    }
}

fn put(client: &StoreClient, name: &[u8], bytes: &[u8]) -> std::io::Result<()> {
    client.begin()?;
    client.write(bytes)?;
    client.commit(name)?;
    client.sync()
}

#[test]
fn images_are_written_read_and_removed() {
    let scene = Scene::new();
    let bytes: Vec<u8> = (0..5 * PART_MAX / 2).map(|at| (at / 4096 + at) as u8).collect();
    let client = scene.client(true);
    let free = scene.store.stats().free_zones;
    put(&client, b"checkpoint/a", &bytes).unwrap();
    put(&client, b"checkpoint/b", b"small").unwrap();
    put(&client, b"checkpoint/b", b"other").unwrap();
    let reader = scene.client(false);
    let size = bytes.len() as u64;
    assert_eq!(reader.list().unwrap(), [(b"checkpoint/a".to_vec(), size), (b"checkpoint/b".to_vec(), 5)]);
    assert_eq!(reader.entry(b"checkpoint/a").unwrap(), size);
    let (mut read, mut part) = (Vec::new(), vec![0; 2 * PART_MAX]);
    loop {
        match reader.read(b"checkpoint/a", read.len() as u64, &mut part).unwrap() {
            0 => break,
            len => read.extend_from_slice(&part[..len]),
        }
    }
    assert!(read == bytes);
    drop(reader);
    client.remove(b"checkpoint/a").unwrap();
    client.remove(b"checkpoint/b").unwrap();
    client.sync().unwrap();
    assert_eq!(scene.store.stats().free_zones, free);
    assert_eq!(client.entry(b"checkpoint/a").unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn objects_other_than_checkpoints_are_inaccessible() {
    let scene = Scene::new();
    for name in [&b"x"[..], b"checkpoint/normal"] {
        scene.store.put(name, Class::Normal, b"mine").unwrap();
    }
    scene.store.put(b"image", Class::Checkpoint, b"mine").unwrap();
    let client = scene.client(true);
    assert_eq!(client.list().unwrap(), []);
    for name in [&b"x"[..], b"image", b"checkpoint/normal", b"checkpoint/"] {
        assert!(client.entry(name).is_err() && client.remove(name).is_err(), "{name:?}");
        assert!(client.read(name, 0, &mut [0; 4]).is_err(), "{name:?}");
        assert!(put(&client, name, b"other").is_err(), "{name:?}");
    }
    client.abandon().unwrap();
    assert!(client.commit(b"checkpoint/none").is_err() && client.write(b"none was begun").is_err());
    assert_eq!(scene.store.list().len(), 3);
    assert_eq!(scene.store.get(b"checkpoint/normal").unwrap(), b"mine");
}

#[test]
fn a_second_writer_is_refused_and_readers_cannot_write() {
    let scene = Scene::new();
    let client = scene.client(true);
    put(&client, b"checkpoint/a", b"a").unwrap();
    assert!(
        matches!(StoreClient::connect_at(&scene.path(), true), ConnectOutcome::No(why) if why.to_string().contains("another"))
    );
    let reader = scene.client(false);
    for refused in [reader.remove(b"checkpoint/a"), reader.begin(), reader.sync(), reader.flush()] {
        assert!(refused.is_err());
    }
    drop((client, reader));
    wait_until_unused();
    scene.client(true).remove(b"checkpoint/a").unwrap();
}

/// A layer is shown as it is: with its marks, holes, whiteouts and links. It can be read, and the store stays open as long as somebody looks.
#[test]
fn a_layer_is_shown_as_stored() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: mounting takes root and /dev/fuse");
        return;
    }
    let scene = Scene::new();
    let root = ZonedBranch::open(&scene.tree, c"", String::new()).unwrap().root();
    let name = |text: &'static CStr| Name::new(text).unwrap();
    root.make_dir(name(c"layer"), 0o751).unwrap();
    let layer = root.open_dir(name(c"layer")).unwrap();
    let file = layer.create(name(c"file"), 0o640).unwrap();
    file.write_at(&[7; 8192], 1 << 20).unwrap();
    file.truncate(3 << 20).unwrap();
    file.set_xattr(c"trusted.vellum.p", b"mark", 0).unwrap();
    layer.link(name(c"file"), &*layer, name(c"other")).unwrap();
    layer.make_node(name(c"gone"), 0o020_000, 0).unwrap();
    layer.make_symlink(name(c"link"), c"../..").unwrap();
    layer.make_dir(name(c"dir"), 0o700).unwrap();
    for number in 0..300 {
        let long = CString::new(format!("{number:0200}")).unwrap();
        layer.open_dir(name(c"dir")).unwrap().create(Name::new(&long).unwrap(), 0o600).unwrap();
    }

    let at = tempfile::tempdir().unwrap();
    let client = scene.client(false);
    let mounted = mount(at.path(), &MountOptions::default()).unwrap();
    let other = fs::File::open("/dev/null").unwrap();
    for (path, connection) in
        [(&b"layer"[..], other.as_fd()), (b"none", mounted.device.as_fd()), (b"..", mounted.device.as_fd())]
    {
        assert!(client.show(path, connection).is_err(), "{path:?}");
    }
    client.show(b"layer", mounted.device.as_fd()).unwrap();
    // As of a command that ends.
    drop((client, mounted));
    let meta = |name: &str| fs::symlink_metadata(at.path().join(name)).unwrap();
    assert_eq!(meta("").mode(), 0o040_751);
    let (one, other) = (meta("file"), meta("other"));
    assert_eq!((one.ino(), one.nlink(), one.len(), one.mode()), (other.ino(), 2, 3 << 20, 0o100_640));
    assert_eq!(meta("gone").mode() & 0o170_000, 0o020_000);
    assert_eq!(fs::read_link(at.path().join("link")).unwrap(), Path::new("../.."));
    let file = fs::File::open(at.path().join("file")).unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)).unwrap(), 1 << 20);
    assert_eq!(seek(&file, SeekFrom::Hole(1 << 20)).unwrap(), (1 << 20) + 8192);
    assert_eq!(seek(&file, SeekFrom::Data((1 << 20) + 8192)).unwrap_err(), Errno::NXIO);
    let mut value = [0; 8];
    assert_eq!(fgetxattr(&file, c"trusted.vellum.p", value.as_mut_slice()).unwrap(), 4);
    let mut bytes = [0; 8193];
    file.read_exact_at(&mut bytes, (1 << 20) - 1).unwrap();
    assert!(bytes[0] == 0 && bytes[1..] == [7; 8192]);
    assert_eq!(fs::read_dir(at.path().join("dir")).unwrap().count(), 300);
    assert_eq!(
        fs::write(at.path().join("file"), "x").unwrap_err().raw_os_error(),
        Some(Errno::ROFS.raw_os_error())
    );

    // What is changed shows at once.
    layer.remove(name(c"gone")).unwrap();
    layer.make_dir(name(c"gone"), 0o700).unwrap();
    layer.open_file(name(c"file"), OpenMode::WRITE).unwrap().truncate(5).unwrap();
    assert!(meta("gone").is_dir() && meta("file").len() == 5);

    let waits = std::thread::spawn(wait_until_unused);
    assert!(!waits.is_finished());
    drop(file);
    unmount(at.path(), false).unwrap();
    waits.join().unwrap();
}

/// Whoever ends, wherever that is, leaves nothing, and lets the next one in.
#[test]
fn an_ended_command_leaves_no_object() {
    let scene = Scene::new();
    put(&scene.client(true), b"checkpoint/old", &[1; 3 << 20]).unwrap();
    let before = scene.stats();
    let image = vec![7; 4 << 20];
    let stages: [fn(&StoreClient, &[u8]); 4] = [
        |_, _| (),
        |client, _| client.begin().unwrap(),
        |client, image| client.begin().and_then(|()| client.write(image)).unwrap(),
        |client, image| {
            client.begin().and_then(|()| client.write(image)).unwrap();
            client.flush().unwrap();
            client.sync().unwrap();
        },
    ];
    for (number, stage) in stages.into_iter().enumerate() {
        stage(&scene.client(true), &image);
        let after = scene.stats();
        assert_eq!(
            (after.free_zones, after.live_blocks),
            (before.free_zones, before.live_blocks),
            "{number}"
        );
    }
    // In the middle of what is said: heads of a Hello, a Begin and a Write of 1 MiB.
    let head = |op: u8, len: u32, offset: u8| {
        let mut head = b"vlsd\x01\0".to_vec();
        head.extend([op, 0, 0, 0, 0, 0]);
        head.extend(len.to_le_bytes());
        head.extend([offset, 0, 0, 0, 0, 0, 0, 0]);
        head
    };
    let mut said = [head(1, 0, 1), head(8, 0, 0), head(9, 1 << 20, 0)].concat();
    said.resize(said.len() + (1 << 20), 7);
    for cut in [0, 1, 23, 24, 25, 47, 48, 60, 72, 73, 500_000, said.len() - 1, said.len()] {
        let mut stream = UnixStream::connect(scene.path()).unwrap();
        stream.write_all(&said[..cut]).unwrap();
        drop(stream);
        // It is seen to be gone when the next one may change something.
        while !matches!(StoreClient::connect_at(&scene.path(), true), ConnectOutcome::In(_)) {
            std::thread::yield_now();
        }
        let after = scene.stats();
        assert_eq!(
            (after.free_zones, after.live_blocks),
            (before.free_zones, before.live_blocks),
            "cut {cut}"
        );
    }
    // What is no question ends the connection, and no other one.
    let other = scene.client(false);
    let mut stream = UnixStream::connect(scene.path()).unwrap();
    stream.write_all(&[0xff; 100]).unwrap();
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    assert!(String::from_utf8_lossy(&answer).contains("no question"));
    assert_eq!(other.list().unwrap().len(), 1);
    assert_eq!(scene.store.get(b"checkpoint/old").unwrap(), [1; 3 << 20]);
}

/// A mount that ends while a command is in takes nothing from that; nobody else is let in afterwards.
#[test]
fn the_store_stays_open_for_a_command() {
    let scene = Scene::new();
    let client = scene.client(true);
    client.begin().unwrap();
    let Scene { store, tree, dir, _turn } = scene;
    let gone = Arc::downgrade(&tree);
    drop(tree);
    client.write(&[3; 2 << 20]).unwrap();
    client.commit(b"checkpoint/late").unwrap();
    client.sync().unwrap();
    drop(client);
    wait_until_unused();
    assert_eq!(gone.strong_count(), 0);
    assert_eq!(store.get(b"checkpoint/late").unwrap(), [3; 2 << 20]);
    assert!(matches!(StoreClient::connect_at(&dir.path().join("socket"), false), ConnectOutcome::Nobody));
}
