//! Layers that change between the two passes, put into a store and taken out again, compared by what everybody can see.

use super::*;
use crate::compression::Compress;
use crate::delta::tests::{apply, listing, op};
use crate::object::format::{Index, read};
use crate::object::map::Map;
use crate::object::sink::tests::ToMemory;
use crate::object::sink::{WriteOptions, WritePipeline};
use crate::object::storage::MemorySource;
use proptest::prelude::*;
use rustix::fs::syncfs;
use std::fs;
use std::time::Duration;

fn writing(compress: Compress) -> WritePipeline<ToMemory> {
    WritePipeline::begin(ToMemory::new(usize::MAX), WriteOptions { compress, ..WriteOptions::default() })
        .unwrap()
}

/// The object of a layer that has been taken.
fn kept(packed: &LayerWriter, writing: WritePipeline<ToMemory>) -> (Vec<u8>, Map) {
    let index = Index { layer: packed.items().clone(), ..Index::default() };
    let bytes = postcard::to_stdvec(&index).unwrap();
    assert_eq!(read::<Index>(&bytes, 1 << 20).as_ref(), Some(&index));
    let (out, map) = writing.finish().unwrap();
    (out.bytes, map)
}

fn long_ago(packed: &mut LayerWriter) {
    if let Some(since) = &mut packed.since {
        *since += 3600;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_layer_comes_out_as_it_was(
        before in prop::collection::vec(op(), 0..24), after in prop::collection::vec(op(), 0..12), ahead: bool,
        zstd: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        before.iter().for_each(|op| apply(&from, op));
        let writing = writing(if zstd { Compress::Zstd(1) } else { Compress::None });
        let mut packed = LayerWriter::new(&from, writing.sink().clone()).unwrap();
        if ahead {
            packed.first_pass().unwrap();
            long_ago(&mut packed);
            std::thread::sleep(Duration::from_millis(10));
        }
        after.iter().for_each(|op| apply(&from, op));
        packed.final_pass().unwrap();
        let (bytes, map) = kept(&packed, writing);
        let bytes = ObjectBytes::new((Box::new(MemorySource(bytes)), &map), Vec::new()).unwrap();
        unpack(packed.items(), &bytes, &to).unwrap();
        // Blocks that are not on disk yet are counted in different ways.
        syncfs(fs::File::open(&to).unwrap()).unwrap();
        prop_assert_eq!(listing(&to), listing(&from));
    }
}

#[test]
fn what_has_not_changed_is_not_taken_again() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("dir")).unwrap();
    fs::write(from.join("dir/large"), vec![1; 6 << 20]).unwrap();
    fs::write(from.join("dir/other"), vec![1; 1 << 20]).unwrap();
    let writing = writing(Compress::None);
    let mut packed = LayerWriter::new(&from, writing.sink().clone()).unwrap();
    let first = packed.first_pass().unwrap();
    if first.objects == 0 {
        println!("SKIPPED: the filesystem of /var/tmp does not tell of all changes");
        return;
    }
    assert_eq!((first.objects, first.copied), (3, 2));
    long_ago(&mut packed);
    assert_eq!(packed.final_pass().unwrap(), Amount { objects: 3, copied: 0, bytes: 0 });
    fs::write(from.join("dir/other"), "x").unwrap();
    assert_eq!(packed.final_pass().unwrap(), Amount { objects: 3, copied: 1, bytes: 1 });
    let (bytes, _) = kept(&packed, writing);
    assert_eq!(bytes.len(), (7 << 20) + 4096);
}

/// Paths and links of an index that somebody else has written lead to nowhere but the layer.
#[test]
fn no_path_leads_out() {
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
