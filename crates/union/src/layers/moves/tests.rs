//! Against whole paths, and with hostile layers.

use super::*;
use crate::layers::marks::ANY;
use proptest::prelude::*;
use std::ffi::CString;
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_vfs::Branch;

/// Makes directories by their paths, some with a redirect.
fn layer(dirs: &[(String, Option<String>)]) -> Arc<MemoryBranch> {
    let branch = MemoryBranch::new();
    for (path, redirect) in dirs {
        let dir = branch.subtree(path).unwrap().root();
        if let Some(redirect) = redirect {
            dir.set_xattr(Space::Trusted.redirect(), redirect.as_bytes(), 0).unwrap();
        }
    }
    branch
}

fn moves(branch: &MemoryBranch, limits: Limits) -> Moves {
    Moves::find(&*branch.root(), ANY, limits).unwrap()
}

/// Finds moved directories by whole paths, and without limits.
fn naive(dir: &dyn BranchDir, path: &str, below: &str, found: &mut Vec<(String, String)>) {
    let mut inner: Vec<CString> = Vec::new();
    dir.list(&mut |item| {
        inner.push(item.name.as_c_str().into());
        Ok(())
    })
    .unwrap();
    let under = |base: &str, name: &str| [base, if base.is_empty() { "" } else { "/" }, name].concat();
    for name in inner {
        let child = dir.open_dir(Name::new(&name).unwrap()).unwrap();
        let name = name.to_str().unwrap();
        let at = under(path, name);
        let from = match crate::layers::marks::read_dir_marks(&*child, ANY).unwrap().redirect {
            None => under(below, name),
            Some(redirect) => {
                let redirect = String::from_utf8(redirect.into()).unwrap();
                let from =
                    redirect.strip_prefix('/').map_or_else(|| under(below, &redirect), ToOwned::to_owned);
                found.push((from.clone(), at.clone()));
                from
            }
        };
        naive(&*child, &at, &from, found);
    }
}

fn naive_places(path: &str, layers: &[Vec<(String, String)>]) -> BTreeSet<String> {
    let mut paths = vec![path.to_owned()];
    for moved in layers {
        let apply = |(from, to): &(String, String), path: &String| {
            let rest = path.strip_prefix(from.as_str())?;
            rest.starts_with('/').then(|| [to.as_str(), rest].concat())
        };
        let elsewhere: Vec<_> =
            moved.iter().flat_map(|moved| paths.iter().filter_map(|path| apply(moved, path))).collect();
        paths.extend(elsewhere);
    }
    paths.into_iter().collect()
}

fn places(path: &str, layers: &[Moves], room: usize) -> (BTreeSet<String>, bool) {
    let mut paths = BTreeSet::from([path.as_bytes().to_vec()]);
    let all = add_places(&mut paths, layers.iter(), room);
    (paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect(), all)
}

fn some_layer() -> impl Strategy<Value = Vec<(String, Option<String>)>> {
    let redirect = prop_oneof!["[a-c]", "/[a-c]", "/[a-c]/[a-c]", "/[a-c]/[a-c]/[a-c]"];
    let path = prop_oneof!["[a-c]", "[a-c]/[a-c]", "[a-c]/[a-c]/[a-c]", "[a-c]/[a-c]/[a-c]/[a-c]"];
    proptest::collection::vec((path, proptest::option::of(redirect)), 0..12)
}

proptest! {
    #[test]
    fn moved_names_agree_with_a_path_model(
        layers in proptest::collection::vec(some_layer(), 1..4),
        paths in proptest::collection::vec("[a-c](/[a-c]){0,4}", 1..10),
    ) {
        let branches: Vec<_> = layers.iter().map(|dirs| layer(dirs)).collect();
        let all: Vec<_> = branches.iter().map(|branch| moves(branch, LIMITS)).collect();
        let model: Vec<_> = branches
            .iter()
            .map(|branch| {
                let mut found = Vec::new();
                naive(&*branch.root(), "", "", &mut found);
                found
            })
            .collect();
        for (moves, model) in all.iter().zip(&model) {
            prop_assert_eq!(moves.count, model.len());
            prop_assert!(!moves.is_full());
            prop_assert_eq!(moves.is_empty(), moves.paths.steps.is_empty(), "steps that lead nowhere");
        }
        for path in paths {
            prop_assert_eq!(places(&path, &all, usize::MAX), (naive_places(&path, &model), true));
        }
    }
}

#[test]
fn a_path_moves_with_its_directory_only() {
    let all = [moves(&layer(&[("x".into(), Some("/a/b".into()))]), LIMITS)];
    let found = |path: &str| places(path, &all, usize::MAX).0.len();
    assert!(places("a/b/c", &all, usize::MAX).0.contains("x/c"));
    assert_eq!((found("a/b/c"), found("a/bc"), found("a/b")), (2, 1, 1));
}

/// Directories that have moved into the end of a deep path.
#[test]
fn deep_paths_are_stored_once() {
    let (depth, count) = (300, 200);
    let end = vec!["n".repeat(255); depth].join("/");
    let branch = MemoryBranch::new();
    let last = branch.subtree(&end).unwrap();
    for n in 0..count {
        let dir = last.subtree(&format!("r{n}")).unwrap().root();
        dir.set_xattr(Space::Trusted.redirect(), format!("/d/r{n}").as_bytes(), 0).unwrap();
    }
    let root = branch.root();
    let mut found = None;
    let used = allocation_counter::measure(|| found = Some(Moves::find(&*root, ANY, LIMITS).unwrap()));
    assert_eq!(found.unwrap().count, count);
    assert!(used.bytes_max < 2 << 20, "{} bytes", used.bytes_max);
    let mut found = Vec::new();
    let whole = allocation_counter::measure(|| naive(&*root, "", "", &mut found));
    assert!(whole.bytes_max > 15 << 20, "{} bytes with whole paths", whole.bytes_max);
}

#[test]
fn a_hostile_layer_is_searched_up_to_a_limit() {
    let dirs: Vec<_> = (0..50).map(|n| (format!("d/m{n}"), Some(format!("/o/m{n}")))).collect();
    let branch = layer(&dirs);
    let all = moves(&branch, LIMITS);
    assert!(!all.is_full() && all.count == 50);
    for limits in [Limits { moved: 7, ..LIMITS }, Limits { bytes: 1500, ..LIMITS }] {
        let some = moves(&branch, limits);
        assert!(some.is_full() && some.count > 0 && some.count <= limits.moved);
        assert!(some.paths.bytes <= limits.bytes);
        let some = [some];
        let found = (0..50)
            .filter(|n| places(&format!("o/m{n}/f"), &some, usize::MAX).0.contains(&format!("d/m{n}/f")));
        assert_eq!(found.count(), some[0].count, "what is known is right");
    }
    assert!(!moves(&branch, Limits { moved: 50, ..LIMITS }).is_full(), "just as many as may be");
}

/// Each layer doubles the paths by which a file may be found.
#[test]
fn redirects_of_many_layers_do_not_multiply_without_end() {
    let depth = 40;
    let layers: Vec<_> = (0..depth)
        .rev()
        .map(|n| moves(&layer(&[(format!("{}y", "x/".repeat(n)), Some("x".into()))]), LIMITS))
        .collect();
    let path = format!("{}f", "x/".repeat(depth));
    let room = 1 << 20;
    let (found, all) = places(&path, &layers, room);
    assert!(!all && found.len() > 1000 && found.len() <= room / PATH_COST, "{} paths", found.len());
    let (found, all) = places(&path, &layers[..8], room);
    assert!(all && found.len() == 1 << 8);
}

/// Two directories change places in each layer.
#[test]
fn the_same_path_counts_once() {
    let swap = [("a".to_owned(), Some("/b".to_owned())), ("b".to_owned(), Some("/a".to_owned()))];
    let layers: Vec<_> = (0..64).map(|_| moves(&layer(&swap), LIMITS)).collect();
    let (found, all) = places("a/f", &layers, 1 << 20);
    assert!(all && found == BTreeSet::from(["a/f".to_owned(), "b/f".to_owned()]));
}
