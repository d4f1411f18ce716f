//! Layers that change between the two passes, put into a store and taken out again, compared by what everybody can see.

use super::*;
use crate::checkpoint::delta::tests::{apply, listing, op};
use crate::checkpoint::zoned::format::Index;
use crate::checkpoint::zoned::pacing::Pacing;
use crate::checkpoint::zoned::sink::Writing;
use crate::checkpoint::zoned::sink::tests::store;
use proptest::prelude::*;
use rustix::fs::syncfs;
use std::fs;
use std::time::Duration;

/// Makes an object of a layer that has been taken; its name.
fn kept(store: &Store, packed: &Packed, writing: Writing) -> &'static [u8] {
    let index = Index { layer: packed.items().clone(), ..Index::default() };
    let bytes = postcard::to_stdvec(&index).unwrap();
    assert_eq!(postcard::from_bytes::<Index>(&bytes).unwrap(), index);
    writing.sink().put(&bytes).unwrap();
    writing.finish().unwrap().commit(b"layer").unwrap();
    store.sync().unwrap();
    b"layer"
}

fn long_ago(packed: &mut Packed) {
    if let Some(since) = &mut packed.since {
        *since += 3600;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_layer_comes_out_as_it_was(
        before in prop::collection::vec(op(), 0..24), after in prop::collection::vec(op(), 0..12), ahead: bool,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        fs::create_dir(&from).unwrap();
        fs::create_dir(&to).unwrap();
        before.iter().for_each(|op| apply(&from, op));
        let store = store(64);
        let writing = Writing::begin(&store, Pacing::None).unwrap();
        let mut packed = Packed::new(&from, writing.sink().clone()).unwrap();
        if ahead {
            packed.ahead().unwrap();
            long_ago(&mut packed);
            std::thread::sleep(Duration::from_millis(10));
        }
        after.iter().for_each(|op| apply(&from, op));
        packed.still().unwrap();
        let name = kept(&store, &packed, writing);
        unpack(packed.items(), Source { store: &store, name }, &to).unwrap();
        // Blocks that are not on disk yet are counted in different ways.
        syncfs(fs::File::open(&to).unwrap()).unwrap();
        prop_assert_eq!(listing(&to), listing(&from));
    }
}

#[test]
fn what_has_not_changed_is_not_taken_again_and_removing_copies_nothing() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("dir")).unwrap();
    fs::write(from.join("dir/large"), vec![1; 6 << 20]).unwrap();
    fs::write(from.join("dir/other"), vec![1; 1 << 20]).unwrap();
    let store = store(64);
    let before = store.stats();
    let writing = Writing::begin(&store, Pacing::None).unwrap();
    let mut packed = Packed::new(&from, writing.sink().clone()).unwrap();
    let first = packed.ahead().unwrap();
    if first.objects == 0 {
        println!("SKIPPED: the filesystem of /var/tmp does not tell of all changes");
        return;
    }
    assert_eq!((first.objects, first.copied), (3, 2));
    long_ago(&mut packed);
    assert_eq!(packed.still().unwrap(), Amount { objects: 3, copied: 0, bytes: 0 });
    fs::write(from.join("dir/other"), "x").unwrap();
    assert_eq!(packed.still().unwrap(), Amount { objects: 3, copied: 1, bytes: 1 });
    let name = kept(&store, &packed, writing);
    let zones = store.places(name).unwrap();
    assert!(zones.len() >= 7 && store.stats().free_zones <= before.free_zones - 7, "{zones:?}");
    let written = store.stats().written_blocks;
    store.remove(name).unwrap();
    store.sync().unwrap();
    let after = store.stats();
    assert_eq!((after.moved_blocks, after.written_blocks, after.free_zones), (0, written, before.free_zones));
}

/// Paths and links of an index that somebody else has written lead to nowhere but the layer.
#[test]
fn no_path_leads_out() {
    let dir = tempfile::tempdir().unwrap();
    let (to, secret) = (dir.path().join("to"), dir.path().join("secret"));
    fs::create_dir(&to).unwrap();
    fs::create_dir(&secret).unwrap();
    let store = store(32);
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
        unpack(&items, Source { store: &store, name: b"none" }, &to).unwrap_err();
        assert_eq!(fs::read_dir(&secret).unwrap().count(), 0);
    }
}
