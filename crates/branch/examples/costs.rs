//! What operations of a local branch cost: nanoseconds, the best of several rounds, in a directory that is made
//! below the given one (or the current one) and removed again.
//!
//! `cargo run --release -p vellum-branch --example costs [DIRECTORY]`
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on should stop")]

use std::ffi::{CString, OsString};
use std::hint::black_box;
use std::time::Instant;
use vellum_branch::LocalBranch;
use vellum_vfs::{Branch, BranchDir, Name, OpenMode, RenameFlags};

/// Times that an operation is repeated in a round.
const COUNT: usize = 2000;
/// Rounds; the best counts.
const ROUNDS: usize = 9;

fn name(text: &CString) -> Name<'_> {
    Name::new(text).unwrap()
}

/// Nanoseconds for one of `COUNT` calls in the best round. `before` and `after` each round are not measured.
fn measure(what: &str, mut before: impl FnMut(), mut each: impl FnMut(usize), mut after: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        before();
        let start = Instant::now();
        for number in 0..COUNT {
            each(number);
        }
        best = best.min(start.elapsed().as_nanos() as f64 / COUNT as f64);
        after();
    }
    println!("{what:<44} {best:>8.0} ns");
}

fn main() {
    vellum_sys::clear_umask();
    let base = std::env::args_os().nth(1).unwrap_or_else(|| OsString::from("."));
    let scratch = tempfile::tempdir_in(base).unwrap();
    let branch = LocalBranch::open(scratch.path()).unwrap();
    let root = branch.root();
    let names: Vec<CString> = (0..COUNT).map(|i| CString::new(format!("file-number-{i}")).unwrap()).collect();
    let others: Vec<CString> =
        (0..COUNT).map(|i| CString::new(format!("other-number-{i}")).unwrap()).collect();
    let nothing = || {};

    root.make_dir(name(&names[0]), 0o755).unwrap();
    let dir = root.open_dir(name(&names[0])).unwrap();
    for name in &names {
        let name = Name::new(name).unwrap();
        dir.create(name, 0o644).unwrap().write_at(b"some bytes", 0).unwrap();
    }
    let dir: &dyn BranchDir = &*dir;
    let clear = |names: &[CString]| {
        for text in names {
            dir.remove(name(text)).unwrap();
        }
    };

    measure("stat_at", nothing, |i| drop(black_box(dir.stat_at(name(&names[i])))), nothing);
    measure("stat_at of nothing", nothing, |i| drop(black_box(dir.stat_at(name(&others[i])))), nothing);
    let file = dir.open_file(name(&names[0]), OpenMode::READ).unwrap();
    measure("stat of an open file", nothing, |_| drop(black_box(file.stat())), nothing);
    measure("open_dir + drop", nothing, |_| drop(black_box(root.open_dir(name(&names[0])))), nothing);
    let read = OpenMode::READ;
    measure("open_file + drop", nothing, |i| drop(black_box(dir.open_file(name(&names[i]), read))), nothing);
    measure("hold + drop", nothing, |i| drop(black_box(dir.hold(name(&names[i])))), nothing);
    measure("reopen + drop", nothing, |_| drop(black_box(file.reopen(read))), nothing);
    let mut buf = [0; 256];
    let attr = c"trusted.overlay.opaque";
    measure(
        "get_xattr_at, none there",
        nothing,
        |i| drop(black_box(dir.get_xattr_at(name(&names[i]), attr, &mut buf))),
        nothing,
    );
    measure(
        "get_xattr of a directory, none there",
        nothing,
        |_| drop(black_box(dir.get_xattr(attr, &mut buf))),
        nothing,
    );
    measure("read_at, 10 bytes", nothing, |_| drop(black_box(file.read_at(&mut buf[..10], 0))), nothing);
    measure(
        "link",
        nothing,
        |i| dir.link(name(&names[i]), dir, name(&others[i])).unwrap(),
        || clear(&others),
    );
    let plain = RenameFlags::empty();
    measure(
        "rename",
        nothing,
        |i| dir.rename(name(&names[i]), dir, name(&others[i]), plain).unwrap(),
        || {
            for (one, other) in names.iter().zip(&others) {
                dir.rename(name(other), dir, name(one), plain).unwrap();
            }
        },
    );
    measure(
        "create + drop",
        nothing,
        |i| drop(dir.create(name(&others[i]), 0o644).unwrap()),
        || clear(&others),
    );
    measure(
        "create_unnamed + link_object + drop",
        nothing,
        |i| {
            let file = dir.create_unnamed(0o644).unwrap();
            dir.link_object(&*file, name(&others[i])).unwrap();
        },
        || clear(&others),
    );
    measure(
        "make_dir",
        nothing,
        |i| dir.make_dir(name(&others[i]), 0o755).unwrap(),
        || others.iter().for_each(|text| dir.remove_dir(name(text)).unwrap()),
    );
    measure(
        "remove",
        || others.iter().for_each(|text| drop(dir.create(name(text), 0o644).unwrap())),
        |i| dir.remove(name(&others[i])).unwrap(),
        nothing,
    );
    let mut best = f64::MAX;
    for _ in 0..ROUNDS * 10 {
        let mut entries = 0_u32;
        let start = Instant::now();
        dir.list(&mut |item| {
            black_box(item);
            entries += 1;
            Ok(())
        })
        .unwrap();
        best = best.min(start.elapsed().as_nanos() as f64 / f64::from(entries));
    }
    println!("{:<44} {best:>8.0} ns", "list, an entry");
}
