//! Layers that mean well, and layers that do not.

use super::*;
use crate::image::HostFiles;
use crate::image::digest::{Algorithm, Digest};
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::process::geteuid;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use tar::{EntryType, Header};

/// An archive under construction. Entries belong to whoever runs the test, so that it need not be root.
#[derive(Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn entry(mut self, kind: EntryType, name: &str, target: &str, mode: u32, data: &[u8]) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        // Without the checks that would keep bad names out.
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + target.len()].copy_from_slice(target.as_bytes());
        header.set_size(data.len() as u64);
        header.set_mode(mode);
        header.set_uid(geteuid().as_raw().into());
        header.set_gid(rustix::process::getegid().as_raw().into());
        header.set_mtime(1_000_000_000);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, data: &str) -> Self {
        self.entry(EntryType::Regular, name, "", 0o644, data.as_bytes())
    }

    fn dir(self, name: &str) -> Self {
        self.entry(EntryType::Directory, name, "", 0o755, b"")
    }

    fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Symlink, name, target, 0o777, b"")
    }

    fn link(self, name: &str, target: &str) -> Self {
        self.entry(EntryType::Link, name, target, 0o644, b"")
    }

    fn pax(self, pairs: &[(&str, &[u8])]) -> Self {
        let mut text = Vec::new();
        for (key, value) in pairs {
            let rest = key.len() + value.len() + 3;
            let len = (rest..).find(|len| len.to_string().len() + rest == *len).unwrap();
            text.extend(format!("{len} {key}=").into_bytes());
            text.extend(*value);
            text.push(b'\n');
        }
        self.entry(EntryType::XHeader, "pax", "", 0o644, &text)
    }

    fn end(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 1024, 0);
        self.0
    }
}

struct World {
    dir: tempfile::TempDir,
    store: LayerStore,
}

fn of(bytes: &[u8]) -> Digest {
    Algorithm::Sha256.digest(bytes)
}

/// Blobs are called by their whole paths here.
fn here() -> HostFiles {
    HostFiles(PathBuf::new())
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = LayerStore::at(dir.path().join("layers"));
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/secret"), "secret").unwrap();
        Self { dir, store }
    }

    fn blob(&self, packed: &[u8], plain: &[u8]) -> Blob {
        let digest = of(packed);
        let path = self.dir.path().join(digest.digits());
        fs::write(&path, packed).unwrap();
        Blob { path, size: packed.len() as u64, digest, content: of(plain) }
    }

    fn unpack(&self, tar: Tar) -> Result<PathBuf, Failure> {
        let text = tar.end();
        let blob = self.blob(&text, &text);
        self.store.layer(&blob, &here(), &|| false).map(Option::unwrap)
    }

    /// It is refused as bad input, and nothing is left of it or was touched elsewhere.
    fn refuses(&self, tar: Tar, cause: &str) {
        self.is_bad(self.unpack(tar), cause);
    }

    fn is_bad(&self, outcome: Result<PathBuf, Failure>, cause: &str) {
        let failure = outcome.unwrap_err();
        assert_eq!(failure.exit_status(), 2, "{failure}");
        assert!(failure.to_string().contains(cause), "{failure} does not name {cause}");
        let left: Vec<_> = fs::read_dir(self.dir.path().join("layers")).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        let outside: Vec<_> = fs::read_dir(self.dir.path().join("outside")).unwrap().collect();
        assert_eq!(outside.len(), 1);
        let secret = self.dir.path().join("outside/secret");
        assert_eq!(fs::read(&secret).unwrap(), b"secret");
        assert_eq!(fs::metadata(&secret).unwrap().nlink(), 1);
    }
}

#[test]
fn an_unpacked_tree_matches_the_archive() {
    let world = World::new();
    let long = format!("a/{}", "n".repeat(200));
    let tar = Tar::default()
        .entry(EntryType::Directory, "./", "", 0o711, b"")
        .entry(EntryType::Directory, "a/", "", 0o1777, b"")
        .file("a/f", "words")
        .file("b/c/d", "unmentioned directories")
        .entry(EntryType::Regular, "setuid", "", 0o4755, b"x")
        .link("a/hard", "a/f")
        .link("a/slash", "/a/f")
        .symlink("lib", "/b/c")
        .file("lib/inside", "through a link")
        .symlink("away", "/etc/passwd")
        .entry(EntryType::Fifo, "fifo", "", 0o620, b"")
        .file(".wh.gone", "")
        .file("a/.wh..wh..opq", "")
        .file(".wh..wh.plnk", "")
        .pax(&[
            ("path", long.as_bytes()),
            ("mtime", b"1234567890.5"),
            ("SCHILY.xattr.user.k", b"a\nb\0c"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
            ("SCHILY.xattr.trusted.overlay.redirect", b"/x"),
        ])
        .file("short", "long");
    let root = world.unpack(tar).unwrap();
    let mode = |name: &str| fs::symlink_metadata(root.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(""), mode("a"), mode("b/c"), mode("setuid")), (0o755, 0o1777, 0o755, 0o4755));
    assert_eq!((mode("fifo"), mode("a/f")), (0o620, 0o644));
    assert_eq!(fs::read_to_string(root.join("b/c/d")).unwrap(), "unmentioned directories");
    assert_eq!(fs::read_to_string(root.join("b/c/inside")).unwrap(), "through a link");
    assert_eq!(fs::metadata(root.join("a/f")).unwrap().nlink(), 3);
    assert_eq!(fs::read_link(root.join("away")).unwrap(), Path::new("/etc/passwd"));
    assert!(fs::symlink_metadata(root.join("fifo")).unwrap().file_type().is_fifo());
    assert!(
        root.join(".wh.gone").exists()
            && root.join("a/.wh..wh..opq").exists()
            && !root.join(".wh..wh.plnk").exists()
    );
    for name in ["a", "a/f", "away"] {
        assert_eq!(fs::symlink_metadata(root.join(name)).unwrap().mtime(), 1_000_000_000, "{name}");
    }
    let long = fs::metadata(root.join(&long)).unwrap();
    assert_eq!((long.mtime(), long.mtime_nsec(), long.len()), (1_234_567_890, 500_000_000, 4));
    let mut value = [0_u8; 64];
    let path = root.join(format!("a/{}", "n".repeat(200)));
    // A filesystem without user attributes has none to lose.
    if let Ok(len) = rustix::fs::getxattr(&path, "user.k", &mut value) {
        assert_eq!(&value[..len], b"a\nb\0c");
    }
    for mark in ["user.overlay.opaque", "trusted.overlay.redirect"] {
        assert!(rustix::fs::getxattr(&path, mark, &mut value).is_err(), "{mark}");
    }
}

#[test]
fn owners_devices_and_capabilities_are_preserved() {
    if !geteuid().is_root() {
        eprintln!("SKIPPED: only root can give files away");
        return;
    }
    let world = World::new();
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let tar = Tar::default()
        .pax(&[("uid", b"70000"), ("gid", b"12"), ("SCHILY.xattr.security.capability", &capability)])
        .file("given", "x")
        .pax(&[("uid", b"70000"), ("gid", b"12")])
        .link("other", "given");
    let root = world.unpack(tar).unwrap();
    let given = fs::metadata(root.join("given")).unwrap();
    assert_eq!((given.uid(), given.gid()), (70000, 12));
    let mut value = [0_u8; 64];
    let len = rustix::fs::getxattr(root.join("given"), "security.capability", &mut value).unwrap();
    assert_eq!(value[..len], capability);
    let mut null = Header::new_gnu();
    null.set_path("null").unwrap();
    null.set_entry_type(EntryType::Char);
    null.set_size(0);
    null.set_mode(0o666);
    null.set_uid(0);
    null.set_gid(0);
    null.set_mtime(1);
    null.set_device_major(1).unwrap();
    null.set_device_minor(3).unwrap();
    null.set_cksum();
    let root = world.unpack(Tar(null.as_bytes().to_vec())).unwrap();
    let null = fs::metadata(root.join("null")).unwrap();
    assert!(null.file_type().is_char_device() && null.rdev() == rustix::fs::makedev(1, 3));
}

#[test]
fn names_begin_at_the_root_of_the_layer() {
    let world = World::new();
    let tar = Tar::default()
        .entry(EntryType::Directory, "/", "", 0o700, b"")
        .entry(EntryType::Directory, "/abs/", "", 0o750, b"")
        .file("/abs/f", "one")
        .link("h", "/abs/../abs/f")
        .file("e/../dd", "two")
        .entry(EntryType::Directory, "dd/..", "", 0o711, b"")
        .file("/.wh.gone", "");
    let root = world.unpack(tar).unwrap();
    let mode = |name: &str| fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(""), mode("abs")), (0o755, 0o750));
    assert_eq!(fs::metadata(root.join("abs/f")).unwrap().nlink(), 2);
    assert_eq!(fs::read(root.join("dd")).unwrap(), b"two");
    assert!(root.join(".wh.gone").exists() && !root.join("e").exists());
}

#[test]
fn a_directory_makes_room_for_a_file() {
    let world = World::new();
    let tar = Tar::default()
        .dir("d")
        .dir("d/e")
        .file("d/e/x", "1")
        .file("d", "2")
        .file("i/j/k", "")
        .symlink("i", "other")
        .dir("other")
        .entry(EntryType::Directory, "s/t/", "", 0o755, b"")
        .link("s", "d");
    let root = world.unpack(tar).unwrap();
    assert_eq!(fs::read(root.join("d")).unwrap(), b"2");
    assert_eq!(fs::read_link(root.join("i")).unwrap(), Path::new("other"));
    assert_eq!(fs::metadata(root.join("s")).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(root.join("other")).unwrap().mtime(), 1_000_000_000);
}

#[test]
fn the_last_header_of_a_file_counts() {
    let world = World::new();
    let tar = Tar::default()
        .entry(EntryType::Regular, "a", "", 0o600, b"data")
        .pax(&[("mtime", b"1500000000"), ("SCHILY.xattr.user.k", b"v"), ("SCHILY.xattr.user.vellum.o", b"v")])
        .entry(EntryType::Link, "b", "a", 0o4755, b"")
        .symlink("l", "nothing")
        .link("m", "l");
    let root = world.unpack(tar).unwrap();
    let a = fs::metadata(root.join("a")).unwrap();
    assert_eq!((a.permissions().mode() & 0o7777, a.mtime(), a.nlink()), (0o4755, 1_500_000_000, 2));
    let mut value = [0_u8; 8];
    if let Ok(len) = rustix::fs::getxattr(root.join("a"), "user.k", &mut value) {
        assert_eq!(&value[..len], b"v");
    }
    assert!(rustix::fs::getxattr(root.join("a"), "user.vellum.o", &mut value).is_err());
    assert!(!root.join("nothing").exists());
}

#[test]
fn holes_stay_holes() {
    let world = World::new();
    let sparse = |size: &str, map: &str| {
        Tar::default()
            .pax(&[("GNU.sparse.size", size.as_bytes()), ("GNU.sparse.map", map.as_bytes())])
            .file("sparse", "middleend")
    };
    let root = world.unpack(sparse("4194304", "1048576,6,3145728,3,4194304,0")).unwrap();
    let data = fs::read(root.join("sparse")).unwrap();
    assert_eq!(
        (data.len(), &data[1_048_576..1_048_582], &data[3_145_728..3_145_731]),
        (4_194_304, &b"middle"[..], &b"end"[..])
    );
    assert_eq!(data.iter().filter(|byte| **byte != 0).count(), 9);
    assert!(fs::metadata(root.join("sparse")).unwrap().blocks() < 1000);
    let world = World::new();
    world.refuses(sparse("10", "0,6,20,3"), "regions");
    // Some filesystems take it.
    if let Err(failure) = world.unpack(sparse("9223372036854775807", "9223372036854775797,9")) {
        assert_eq!(failure.exit_status(), 2, "{failure}");
    }
}

/// The marks that directories without an entry get; none: a filesystem that takes no attributes.
fn implied(dir: &Path) -> usize {
    let marks = |name: &std::ffi::CStr| rustix::fs::getxattr(dir, name, &mut [0_u8; 8]).is_ok();
    vellum_service::layers::IMPLIED.into_iter().filter(|name| marks(name)).count()
}

#[test]
fn only_implied_directories_are_marked() {
    let world = World::new();
    fs::create_dir(world.dir.path().join("probe")).unwrap();
    if rustix::fs::setxattr(
        world.dir.path().join("probe"),
        "user.probe",
        b"y",
        rustix::fs::XattrFlags::empty(),
    )
    .is_err()
    {
        eprintln!("SKIPPED: no attributes of users in {}", world.dir.path().display());
        return;
    }
    let forged: [(&str, &[u8]); 2] =
        [("SCHILY.xattr.trusted.vellum.implied", b"y"), ("SCHILY.xattr.user.vellum.implied", b"y")];
    let tar = Tar::default()
        .file("a/b/f", "")
        .entry(EntryType::Directory, "a", "", 0o700, b"")
        .pax(&forged)
        .dir("forged")
        .pax(&forged)
        .entry(EntryType::Directory, "./", "", 0o755, b"")
        .dir("real")
        .symlink("link", "real")
        .file("link/x/f", "")
        .file("link/y/f", "")
        .dir("link/y");
    let root = world.unpack(tar).unwrap();
    for (dir, marks) in
        [("", 0), ("a", 0), ("a/b", 1), ("forged", 0), ("real", 0), ("real/x", 1), ("real/y", 0)]
    {
        assert_eq!(implied(&root.join(dir)), marks, "{dir}");
    }
    assert_eq!(fs::metadata(root.join("a/b")).unwrap().permissions().mode() & 0o7777, 0o755);
}

#[test]
fn every_digest_is_checked_by_its_own_algorithm() {
    let world = World::new();
    let text = Tar::default().file("f", "x").end();
    let plain = world.blob(&text, &text);
    for algorithm in [Algorithm::Sha384, Algorithm::Sha512] {
        let blob =
            Blob { digest: algorithm.digest(&text), content: algorithm.digest(&text), ..plain.clone() };
        let wrong = Blob { content: algorithm.digest(b"x"), ..blob.clone() };
        world.is_bad(world.store.layer(&wrong, &here(), &|| false).map(Option::unwrap), "digest");
        let dir = world.store.layer(&blob, &here(), &|| false).unwrap().unwrap();
        assert_eq!(world.store.present(&[blob.content.digits().to_owned()]), Some(vec![dir.clone()]));
        fs::remove_dir_all(dir).unwrap();
    }
}

#[test]
fn no_entry_leaves_the_layer() {
    let world = World::new();
    let outside = world.dir.path().join("outside").display().to_string();
    let up = "../../outside";
    world.refuses(Tar::default().file("../x", "x"), "..");
    world.refuses(Tar::default().file("a/../../x", "x"), "..");
    world.refuses(Tar::default().file("/../x", "x"), "..");
    world.refuses(Tar::default().dir(".."), "..");
    world.refuses(Tar::default().symlink("l", &outside).file("l/x", "x"), "l/x");
    world.refuses(Tar::default().symlink("l", up).file("l/x", "x"), "l/x");
    world.refuses(Tar::default().symlink("l", &outside).dir("l/d"), "l/d");
    world.refuses(Tar::default().link("h", "../outside/secret"), "..");
    world.refuses(Tar::default().link("h", &format!("{outside}/secret")), "hard link");
    world.refuses(Tar::default().symlink("l", &outside).link("h", "l/secret"), "hard link");
    world.refuses(Tar::default().symlink("l", "/proc/self/root").file("l/x", "x"), "l/x");
    world.refuses(Tar::default().link("h", "nothing"), "nothing");
    world.refuses(Tar::default().dir("d").link("h", "d"), "a directory");
    world.refuses(Tar::default().file(".", "x"), "root");
    world.refuses(Tar::default().file("f", "x").file("f/x", "x"), "f/x");
    world.refuses(Tar::default().dir("d").file("d/x", "x").link("d", "d/x"), "d/x");
    // A link to what is outside can be replaced, and then only it has changed.
    let tar = Tar::default()
        .symlink("l", &format!("{outside}/secret"))
        .file("l", "new")
        .symlink("m", &outside)
        .dir("m");
    let root = world.unpack(tar).unwrap();
    assert_eq!(fs::read(root.join("l")).unwrap(), b"new");
    assert!(fs::symlink_metadata(root.join("m")).unwrap().is_dir());
    // And a hard link to a link is one to the link itself.
    let root =
        world.unpack(Tar::default().symlink("l", &format!("{outside}/secret")).link("h", "l")).unwrap();
    assert!(fs::symlink_metadata(root.join("h")).unwrap().is_symlink());
    assert_eq!(fs::metadata(world.dir.path().join("outside/secret")).unwrap().nlink(), 1);
}

#[test]
fn the_last_entry_of_a_name_counts() {
    let world = World::new();
    let tar = Tar::default()
        .file("x", "1")
        .dir("x")
        .symlink("x", "y")
        .file("x", "2")
        .dir("d")
        .entry(EntryType::Directory, "d", "", 0o700, b"")
        .link("x", "x");
    let root = world.unpack(tar).unwrap();
    assert_eq!(fs::read(root.join("x")).unwrap(), b"2");
    assert_eq!(fs::metadata(root.join("d")).unwrap().permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_layer_must_match_its_digests() {
    let world = World::new();
    let text = Tar::default().file("f", &"words ".repeat(1000)).end();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&text).unwrap();
    let gzip = gzip.finish().unwrap();
    let layer = |blob: &Blob| world.store.layer(blob, &here(), &|| false).map(Option::unwrap);
    let good = world.blob(&gzip, &text);
    // Cut off, with the right size and digest of what is left.
    for len in [20, gzip.len() / 2, gzip.len() - 1] {
        let blob = Blob { content: good.content.clone(), ..world.blob(&gzip[..len], b"") };
        let failure = layer(&blob).unwrap_err();
        assert_eq!(failure.exit_status(), 2, "{failure}");
    }
    world.is_bad(layer(&Blob { digest: of(b"x"), ..good.clone() }), "digest");
    world.is_bad(layer(&Blob { content: of(b"x"), ..good.clone() }), "digest");
    world.is_bad(layer(&Blob { size: 1, ..good.clone() }), "manifest says 1");
    world.is_bad(layer(&Blob { path: world.dir.path().join("nothing"), ..good.clone() }), "nothing");
    // More is claimed than there is.
    let mut header = Header::new_gnu();
    header.set_path("huge").unwrap();
    header.set_mode(0o644);
    header.set_uid(geteuid().as_raw().into());
    header.set_gid(rustix::process::getegid().as_raw().into());
    header.set_size(1 << 60);
    header.set_cksum();
    world.refuses(Tar(header.as_bytes().to_vec()), "cut off");
    world.refuses(Tar(b"not a tar archive at all".repeat(100)), "not a tar archive");
    // And the good one, packed in any way, is there once.
    let done = layer(&good).unwrap();
    assert_eq!(layer(&world.blob(&text, &text)).unwrap(), done);
    assert_eq!(fs::read_dir(world.dir.path().join("layers")).unwrap().count(), 1);
}

#[test]
fn concurrent_unpacks_of_a_layer_share_it() {
    let world = World::new();
    let mut tar = Tar::default();
    for number in 0..300 {
        tar = tar.file(&format!("dir/{number}"), "words");
    }
    let text = tar.end();
    let blob = world.blob(&text, &text);
    // What a killed command has left is in nobody's way.
    fs::create_dir_all(
        world.dir.path().join(format!("layers/unfinished-{}/tree/dir", blob.content.digits())),
    )
    .unwrap();
    let dirs: Vec<PathBuf> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| world.store.layer(&blob, &here(), &|| false).unwrap().unwrap()))
            .collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(dirs.iter().all(|dir| *dir == dirs[0]));
    assert_eq!(fs::read_dir(dirs[0].join("dir")).unwrap().count(), 300);
    assert_eq!(fs::read_dir(world.dir.path().join("layers")).unwrap().count(), 1);
}

#[test]
fn an_interrupted_unpack_leaves_nothing() {
    let world = World::new();
    let text = Tar::default().file("a", "1").file("b", "2").end();
    let blob = world.blob(&text, &text);
    let asked = AtomicBool::new(false);
    let stop = || asked.swap(true, Ordering::Relaxed);
    assert_eq!(world.store.layer(&blob, &here(), &stop).unwrap(), None);
    assert_eq!(fs::read_dir(world.dir.path().join("layers")).unwrap().count(), 0);
    fs::create_dir(world.dir.path().join("layers/unfinished-x")).unwrap();
    world.store.sweep();
    assert_eq!(fs::read_dir(world.dir.path().join("layers")).unwrap().count(), 0);
}
