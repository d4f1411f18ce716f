//! Layers that change between the two passes, put into a store and taken out again, compared by what everybody can see.

use super::*;
use crate::compression::Compress;
use crate::object::format::{Index, read};
use crate::object::map::Map;
use crate::object::sink::WriteOptions;
use crate::object::sink::tests::InMemory;
use crate::object::storage::MemorySource;
use proptest::prelude::*;
use rustix::fs::syncfs;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::Duration;

/// Everything about a tree, by path.
pub(in super::super) fn listing(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut all = BTreeMap::new();
    let mut first = HashMap::new();
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        let mut entries: Vec<_> =
            fs::read_dir(top.join(&dir)).unwrap().map(|one| one.unwrap().file_name()).collect();
        entries.sort();
        for path in entries.into_iter().map(|name| dir.join(name)).chain([dir.clone()]) {
            let full = top.join(&path);
            let meta = full.symlink_metadata().unwrap();
            if meta.is_dir() && path != dir {
                dirs.push(path);
                continue;
            }
            // Names of one object are told by the first of them.
            let same: PathBuf = first.entry(meta.ino()).or_insert_with(|| path.clone()).clone();
            let contents =
                if meta.is_file() { format!("{:?}", fs::read(&full).unwrap()) } else { String::new() };
            let target = fs::read_link(&full).unwrap_or_default();
            let marks: Vec<_> = listed(&full)
                .unwrap()
                .into_iter()
                .map(|name| {
                    let mut value = vec![0; 256];
                    let len = lgetxattr(&full, name.as_c_str(), &mut value).unwrap();
                    (name, value[..len].to_vec())
                })
                .collect();
            let links = if meta.is_dir() { 0 } else { meta.nlink() };
            let blocks = if meta.is_file() { meta.blocks() } else { 0 };
            let line = format!(
                "{:o} {} {} {} {} {}.{} {links} {blocks} {same:?} {target:?} {marks:?} {contents}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.rdev(),
                if meta.is_dir() { 0 } else { meta.size() },
                meta.mtime(),
                meta.mtime_nsec()
            );
            all.insert(path, line);
        }
    }
    all
}

/// What may become of a layer.
#[derive(Clone, Debug)]
enum Op {
    Dir(u8),
    File(u8, u8),
    Write(u8, u8, u8),
    Cut(u8, u8),
    Link(u8, u8),
    Symlink(u8),
    Fifo(u8),
    Mark(u8, u8),
    Mode(u8, u8),
    Rename(u8, u8),
    Remove(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0..6_u8;
    prop_oneof![
        n.clone().prop_map(Op::Dir),
        (n.clone(), any::<u8>()).prop_map(|(a, b)| Op::File(a, b)),
        (n.clone(), 0..8_u8, any::<u8>()).prop_map(|(a, b, c)| Op::Write(a, b, c)),
        (n.clone(), 0..8_u8).prop_map(|(a, b)| Op::Cut(a, b)),
        (n.clone(), n.clone()).prop_map(|(a, b)| Op::Link(a, b)),
        n.clone().prop_map(Op::Symlink),
        n.clone().prop_map(Op::Fifo),
        (n.clone(), any::<u8>()).prop_map(|(a, b)| Op::Mark(a, b)),
        (n.clone(), any::<u8>()).prop_map(|(a, b)| Op::Mode(a, b)),
        (n.clone(), n.clone()).prop_map(|(a, b)| Op::Rename(a, b)),
        n.prop_map(Op::Remove),
    ]
}

/// Does it, or not if it cannot be done.
fn apply(top: &Path, op: &Op) {
    // Some names lie in each other.
    let path = |n: &u8| top.join(["a", "b", "a/c", "a/d", "a/c/e", "b/f"][usize::from(*n)]);
    // To open a pipe would be to wait for its other end, and by a link everything could be written to.
    let plain = |n: &u8| path(n).symlink_metadata().is_ok_and(|meta| meta.is_file());
    let _ = match op {
        Op::File(n, _) if !plain(n) && path(n).symlink_metadata().is_ok() => Ok(()),
        Op::Write(n, ..) | Op::Cut(n, _) if !plain(n) => Ok(()),
        Op::Dir(n) => fs::create_dir(path(n)),
        Op::File(n, byte) => fs::write(path(n), [*byte; 100]),
        Op::Write(n, block, byte) => File::options()
            .write(true)
            .open(path(n))
            .and_then(|file| file.write_all_at(&[*byte; 4096], u64::from(*block) * 65_536)),
        Op::Cut(n, block) => File::options()
            .write(true)
            .open(path(n))
            .and_then(|file| file.set_len(u64::from(*block) * 65_536)),
        Op::Link(from, to) => fs::hard_link(path(from), path(to)),
        Op::Symlink(n) => symlink("nowhere", path(n)),
        Op::Fifo(n) => mknodat(rustix::fs::CWD, path(n), FileType::Fifo, Mode::RWXU, 0).map_err(Into::into),
        Op::Mark(n, value) => {
            lsetxattr(path(n), "user.mark", &[*value], XattrFlags::empty()).map_err(Into::into)
        }
        Op::Mode(n, mode) if path(n).symlink_metadata().is_ok_and(|meta| !meta.is_symlink()) => {
            fs::set_permissions(path(n), fs::Permissions::from_mode(0o700 | u32::from(*mode)))
        }
        Op::Mode(..) => Ok(()),
        Op::Rename(from, to) => fs::rename(path(from), path(to)),
        Op::Remove(n) => fs::remove_dir_all(path(n)).or_else(|_| fs::remove_file(path(n))),
    };
}

fn writing(compress: Compress) -> InMemory {
    InMemory::begin(WriteOptions { compress, ..WriteOptions::default() })
}

/// The object of a layer that has been taken.
fn sealed_object(packed: &LayerWriter, writing: InMemory) -> (Vec<u8>, Map) {
    let index = Index { layer: packed.items().clone(), ..Index::default() };
    let bytes = postcard::to_stdvec(&index).unwrap();
    assert_eq!(read::<Index>(&bytes, 1 << 20).as_ref(), Some(&index));
    writing.finish()
}

fn long_ago(packed: &mut LayerWriter) {
    if let Some(since) = &mut packed.since {
        *since += 3600;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_packed_layer_unpacks_identically(
        before in prop::collection::vec(op(), 0..24), middle in prop::collection::vec(op(), 0..12),
        after in prop::collection::vec(op(), 0..12), aheads in 0..3, zstd: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        before.iter().for_each(|op| apply(&from, op));
        let writing = writing(if zstd { Compress::Zstd(1) } else { Compress::None });
        let mut packed = LayerWriter::new(&from, writing.pipeline.sink().clone()).unwrap();
        for turn in 0..aheads {
            if turn > 0 {
                middle.iter().for_each(|op| apply(&from, op));
            }
            packed.first_pass().unwrap();
            // Between the passes the clock of files goes on: otherwise nobody could tell.
            long_ago(&mut packed);
            std::thread::sleep(Duration::from_millis(10));
        }
        after.iter().for_each(|op| apply(&from, op));
        packed.final_pass().unwrap();
        let (bytes, map) = sealed_object(&packed, writing);
        let bytes = ObjectBytes::new((Box::new(MemorySource(bytes)), &map), Vec::new()).unwrap();
        unpack(packed.items(), &bytes, &to).unwrap();
        // Blocks that are not on disk yet are counted in different ways.
        syncfs(fs::File::open(&to).unwrap()).unwrap();
        prop_assert_eq!(listing(&to), listing(&from));
    }
}

#[test]
fn unchanged_files_are_not_packed_again() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("dir")).unwrap();
    fs::write(from.join("dir/large"), vec![1; 6 << 20]).unwrap();
    fs::write(from.join("dir/other"), vec![1; 1 << 20]).unwrap();
    let writing = writing(Compress::None);
    let mut packed = LayerWriter::new(&from, writing.pipeline.sink().clone()).unwrap();
    let first = packed.first_pass().unwrap();
    if first.objects == 0 {
        println!("SKIPPED: the filesystem of /var/tmp does not tell of all changes");
        return;
    }
    assert_eq!((first.objects, first.copied), (3, 2));
    // What was changed a moment before may change again with the same times.
    assert_eq!(packed.final_pass().unwrap().copied, 2);
    long_ago(&mut packed);
    assert_eq!(packed.final_pass().unwrap(), Amount { objects: 3, copied: 0, bytes: 0 });
    fs::write(from.join("dir/other"), "x").unwrap();
    assert_eq!(packed.final_pass().unwrap(), Amount { objects: 3, copied: 1, bytes: 1 });
    let (bytes, _) = sealed_object(&packed, writing);
    assert_eq!(bytes.len(), (14 << 20) + 4096);
}

/// A directory that a container puts a link in place of is not left.
#[test]
fn links_out_of_the_layer_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for path in [&from, &to, &dir.path().join("secret")] {
        fs::create_dir(path).unwrap();
    }
    fs::write(dir.path().join("secret/file"), "words").unwrap();
    symlink("../secret", from.join("link")).unwrap();
    symlink("../secret/file", from.join("file")).unwrap();
    let writing = writing(Compress::None);
    let mut packed = LayerWriter::new(&from, writing.pipeline.sink().clone()).unwrap();
    packed.final_pass().unwrap();
    assert_eq!(directory(&packed.from, Path::new("link")).unwrap_err(), Errno::NOTDIR);
    assert_eq!(directory(&packed.from, Path::new("link/..")).unwrap_err(), Errno::LOOP);
    let (bytes, map) = sealed_object(&packed, writing);
    let bytes = ObjectBytes::new((Box::new(MemorySource(bytes)), &map), Vec::new()).unwrap();
    unpack(packed.items(), &bytes, &to).unwrap();
    assert!(to.join("link").is_symlink() && to.join("file").is_symlink());
}

/// Paths and links of an index that somebody else has written lead to nowhere but the layer.
#[test]
fn unpacked_paths_stay_inside() {
    let dir = tempfile::tempdir().unwrap();
    let (to, secret) = (dir.path().join("to"), dir.path().join("secret"));
    fs::create_dir(&to).unwrap();
    fs::create_dir(&secret).unwrap();
    let bytes = ObjectBytes::plain(Box::new(MemorySource(Vec::new())), 0);
    let plain = Item { mode: 0o100_600, ..Item::default() };
    let to_secret =
        Item { mode: 0o120_777, target: secret.as_os_str().as_bytes().to_vec(), ..Item::default() };
    let linked = Item { same_as: Some(b"../secret/x".to_vec()), ..plain.clone() };
    for items in [
        vec![(&b"../secret/file"[..], plain.clone())],
        vec![(secret.as_os_str().as_bytes(), plain.clone())],
        vec![(b"link", to_secret), (b"link/file", plain)],
        vec![(b"other", linked)],
    ] {
        let items: BTreeMap<Vec<u8>, Item> =
            items.into_iter().map(|(path, item)| (path.to_vec(), item)).collect();
        unpack(&items, &bytes, &to).unwrap_err();
        assert_eq!(fs::read_dir(&secret).unwrap().count(), 0);
    }
}
