//! Sequences that once failed, each as small as it could be made.

use crate::base::{Item, Opaque, Placed, Whiteout};
use crate::ops::Op;
use crate::run;
use crate::world::{Abilities, Setup};

fn setup(base: Vec<Vec<Placed>>) -> Setup {
    let disk = Abilities {
        privileged: true,
        unnamed: false,
        rename_whiteout: false,
        exchange: true,
        reflink: false,
    };
    Setup {
        base,
        far: false,
        metacopy: false,
        passthrough: false,
        one_file: false,
        exports: false,
        few_handles: false,
        writeback: false,
        handout: false,
        disk,
    }
}

fn placed(path: &[u8], item: Item) -> Placed {
    Placed { path: path.to_vec(), item, mode: 0, owner: 0, mtime: None, xattr: false }
}

fn file(path: &[u8]) -> Placed {
    placed(path, Item::File { size: 0, byte: 0, hole: false })
}

fn create(dir: u8, at: u8) -> Op {
    Op::Create { dir, at, mode: 0, as_user: false }
}

fn mkdir(dir: u8, at: u8) -> Op {
    Op::Mkdir { dir, at, mode: 0, as_user: false }
}

fn write(file: u8) -> Op {
    Op::Write { file, offset: 0, len: 1, byte: 0 }
}

fn set_mtime(of: u8) -> Op {
    Op::Times { of, atime: None, mtime: Some(1000) }
}

/// `.wh.c` beside a directory `c`: the directory is there, and nothing shows through it.
#[test]
fn an_aufs_whiteout_beside_a_directory_hides_what_is_below_only() {
    let upper = vec![placed(&[2], Item::Dir(Opaque::No)), placed(&[2], Item::Whiteout(Whiteout::Aufs))];
    run(&setup(vec![upper, vec![file(&[2, 0])]]), &[Op::Lookup(0, 0)]);
}

#[test]
fn a_missing_acl_can_be_removed() {
    run(&setup(vec![]), &[Op::RemoveXattr(0, 122)]);
}

/// The union looks a name up for itself (here for a refused rmdir): the forgotten node's handle must outlive that.
#[test]
fn a_handle_outlives_lookups_of_the_unions_own() {
    let mut setup = setup(vec![vec![placed(&[0], Item::Dir(Opaque::No))]]);
    setup.exports = true;
    run(&setup, &[Op::Lookup(0, 0), Op::Forget(151), create(0, 128), Op::Lookup(0, 0), Op::Recall(0)]);
    run(&setup, &[create(0, 92), Op::Forget(255), Op::Symlink(0, 92), Op::Recall(0)]);
}

/// A whiteout of a user's `.wh..wh..opq` does not make its directory opaque.
#[test]
fn a_whiteout_named_like_an_opaque_mark_is_none() {
    let ops = [
        mkdir(0, 94),
        mkdir(35, 253),
        Op::Commit,
        Op::Walk(vec![94]),
        Op::Rename { from: (11, 77), to: (0, 19), flags: 0 },
    ];
    run(&setup(vec![vec![file(&[0]), file(&[2])]]), &ops);
}

/// After a swap of nodes, the front still holds the old one, and nobody the new one, when the name is removed.
#[test]
fn a_swapped_file_stays_one_file() {
    let mut setup = setup(vec![vec![file(&[1]), file(&[0, 1, 0])]]);
    setup.passthrough = true;
    let ops = [
        Op::Walk(vec![84]),
        Op::Rename { from: (61, 9), to: (19, 27), flags: 0 },
        Op::Remount,
        Op::Walk(vec![1]),
        Op::Open { file: 0, how: 0 },
        Op::Link(171, 0, 0),
        Op::Unlink(0, 69),
    ];
    run(&setup, &ops);
}

/// Times given to a lower file without a name end with the next write.
#[test]
fn a_nameless_lower_file_gets_new_times_when_written() {
    let ops = [create(0, 45), Op::Commit, Op::Lookup(0, 45), Op::Unlink(0, 157), set_mtime(1), write(0)];
    run(&setup(vec![]), &ops);
}

/// An open that says ESTALE, and cannot be repeated since the file has no name, must not have cut the file.
#[test]
fn a_refused_open_truncates_nothing() {
    let mut setup = setup(vec![vec![placed(&[1], Item::File { size: 1, byte: 0, hole: false })]]);
    setup.passthrough = true;
    let ops =
        [Op::Lookup(0, 1), Op::Open { file: 0, how: 0 }, Op::Unlink(0, 1), Op::Open { file: 0, how: 2 }];
    run(&setup, &ops);
    // Nor is it refused where the kernel was not given the lower file.
    setup.one_file = true;
    run(&setup, &ops);
}

/// A hard link that is copied up takes the directories of its other names along, which the front may have forgotten.
#[test]
fn a_handle_outlives_a_copy_up_of_the_unions_own() {
    let mut setup = setup(vec![vec![file(&[1, 0]), placed(&[0], Item::Link(0))]]);
    setup.exports = true;
    let ops = [
        create(0, 108),
        Op::Lookup(0, 244),
        Op::Lookup(0, 181),
        Op::Forget(27),
        Op::Link(53, 0, 0),
        Op::Forget(2),
        Op::Recall(12),
    ];
    run(&setup, &ops);
    setup.passthrough = true;
    run(&setup, &ops);
}
