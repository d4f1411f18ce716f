//! The operations that a run is made of, and their random choice.

mod unpack;

use crate::harness::Rng;

/// Descriptors that are held open at most.
pub(super) const SLOTS: usize = 6;

/// The ordinary user of some operations.
pub(super) const USER: u32 = 1000;

/// How a path is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Open {
    Read,
    Write,
    ReadWrite,
    Truncate,
    Create,
    CreateNew,
    CreateTruncate,
    Append,
    /// A new file, only to write to, as an archive is unpacked.
    Unpack,
}

/// What a run is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Operations and remounts.
    Random,
    /// The service crashes, too.
    Crashes,
    /// Operations by a program with the preload library, much of it what unpacks archives.
    Library,
}

/// What mknod(2) makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    File,
    Fifo,
    Socket,
    Char,
    Block,
}

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// An operation, by root or by [`USER`].
    Do(Op, bool),
    /// Compare the whole trees.
    Compare,
    /// Close every descriptor; programs end, and are begun once more.
    Close,
    /// Unmount and mount again.
    Remount,
    /// Kill the daemon, mount again.
    Crash,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Open { path: String, how: Open, mode: u32, slot: usize },
    Close { slot: usize },
    Write { slot: usize, at: u64, len: usize, seed: u64 },
    Read { slot: usize, at: u64, len: usize },
    Resize { slot: usize, len: u64 },
    Allocate { slot: usize, mode: u32, at: u64, len: u64 },
    CopyRange { from: usize, to: usize, from_at: u64, to_at: u64, len: usize },
    Sync { slot: usize },
    StatOpen { slot: usize },
    ChmodOpen { slot: usize, mode: u32 },
    ChownOpen { slot: usize, uid: Option<u32>, gid: Option<u32> },
    TimesOpen { slot: usize, secs: u64, nanos: u32 },
    MapWrite { slot: usize, at: usize, len: usize, seed: u64 },
    Truncate { path: String, len: u64 },
    ReadFile { path: String },
    Mkdir { path: String, mode: u32 },
    Rmdir { path: String },
    Unlink { path: String },
    Rename { from: String, to: String, flags: u32 },
    Link { from: String, to: String },
    Symlink { target: String, path: String },
    Readlink { path: String },
    Chmod { path: String, mode: u32 },
    Chown { path: String, uid: Option<u32>, gid: Option<u32> },
    Times { path: String, secs: i64, nanos: u32 },
    SetXattr { path: String, name: &'static str, value: Vec<u8>, flags: u32 },
    GetXattr { path: String, name: &'static str },
    ListXattr { path: String },
    RemoveXattr { path: String, name: &'static str },
    Mknod { path: String, node: Node, mode: u32 },
    Stat { path: String },
    List { path: String },
}

/// Few, so that operations meet.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Names of attributes: those of users and of root.
const XATTRS: [&str; 4] = ["user.one", "user.two", "trusted.three", "security.four"];

/// An access ACL (version 2: user rw-, user 1000 r--, group r--, mask rw-, other ---) as the kernel takes it.
pub(super) const ACL: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
    16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

/// Sizes and offsets around what matters: blocks, pages, and small numbers.
pub(super) fn amount(rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => 0,
        1 => rng.below(16),
        2 => 4096 * rng.below(5),
        3 => 4095 + rng.below(3),
        4 => rng.below(70_000),
        _ => rng.below(5000),
    }
}

/// A path of one to three components.
pub(super) fn path(rng: &mut Rng) -> String {
    let depth = match rng.below(10) {
        0..=3 => 1,
        4..=7 => 2,
        _ => 3,
    };
    (0..depth).map(|_| *rng.pick(&NAMES)).collect::<Vec<_>>().join("/")
}

fn mode(rng: &mut Rng) -> u32 {
    *rng.pick(&[0o644, 0o600, 0o755, 0o700, 0o777, 0o666, 0o444, 0o2755, 0o4755, 0o1777, 0o000, 0o2775])
}

/// Owner and group; one of the two at least.
fn owner(rng: &mut Rng) -> (Option<u32>, Option<u32>) {
    let id = |rng: &mut Rng| *rng.pick(&[None, Some(0), Some(USER), Some(1234), Some(65_534)]);
    let (uid, gid) = (id(rng), id(rng));
    (uid.or(gid.is_none().then_some(USER)), gid)
}

/// A random run of about `count` steps, closed by a comparison.
pub(super) fn run(rng: &mut Rng, count: usize, kind: Kind) -> Vec<Step> {
    let mut steps: Vec<Step> = match kind {
        Kind::Library => unpack::run(rng, count),
        _ => (0..count)
            .map(|at| match rng.below(400) {
                0 => Step::Remount,
                1 if kind == Kind::Crashes => Step::Crash,
                _ if at % 80 == 79 => Step::Compare,
                _ => {
                    let user = rng.one_in(4);
                    Step::Do(op(rng, path), user)
                }
            })
            .collect(),
    };
    steps.extend([Step::Compare, Step::Remount, Step::Compare]);
    steps
}

/// An operation, on paths that `choose` gives.
fn op(rng: &mut Rng, choose: impl Fn(&mut Rng) -> String) -> Op {
    let path = choose(rng);
    let slot = rng.below(SLOTS as u64) as usize;
    match rng.below(100) {
        0..=13 => {
            let how = *rng.pick(&[
                Open::Read,
                Open::Write,
                Open::ReadWrite,
                Open::Truncate,
                Open::Create,
                Open::CreateNew,
                Open::CreateTruncate,
                Open::Append,
            ]);
            Op::Open { path, how, mode: mode(rng), slot }
        }
        14 | 15 => Op::Close { slot },
        16..=23 => Op::Write { slot, at: amount(rng), len: amount(rng) as usize, seed: rng.next() },
        24..=28 => Op::Read { slot, at: amount(rng), len: amount(rng) as usize },
        29 | 30 => Op::Resize { slot, len: amount(rng) },
        31 | 32 => {
            // 0, KEEP_SIZE, PUNCH_HOLE with KEEP_SIZE, ZERO_RANGE with and without KEEP_SIZE.
            let mode = *rng.pick(&[0, 1, 3, 16, 17]);
            Op::Allocate { slot, mode, at: amount(rng), len: amount(rng).max(1) }
        }
        33 | 34 => {
            let to = rng.below(SLOTS as u64) as usize;
            Op::CopyRange {
                from: slot,
                to,
                from_at: amount(rng),
                to_at: amount(rng),
                len: amount(rng) as usize,
            }
        }
        35 => Op::Sync { slot },
        36 => Op::StatOpen { slot },
        37 => Op::ChmodOpen { slot, mode: mode(rng) },
        38 | 39 => Op::MapWrite {
            slot,
            at: rng.below(8000) as usize,
            len: 1 + rng.below(5000) as usize,
            seed: rng.next(),
        },
        40 | 41 => Op::Truncate { path, len: amount(rng) },
        42..=44 => Op::ReadFile { path },
        45..=51 => Op::Mkdir { path, mode: mode(rng) | if rng.one_in(2) { 0o755 } else { 0 } },
        52..=54 => Op::Rmdir { path },
        55..=60 => Op::Unlink { path },
        61..=70 => {
            // NOREPLACE and EXCHANGE are tried less often than neither.
            let flags = *rng.pick(&[0, 0, 0, 1, 2]);
            Op::Rename { from: path, to: choose(rng), flags }
        }
        71..=75 => Op::Link { from: path, to: choose(rng) },
        76 | 77 => Op::Symlink { target: choose(rng), path },
        78 => Op::Readlink { path },
        79..=81 => Op::Chmod { path, mode: mode(rng) },
        82 | 83 => {
            let (uid, gid) = owner(rng);
            Op::Chown { path, uid, gid }
        }
        84 | 85 => {
            Op::Times { path, secs: rng.below(1_500_000_000) as i64, nanos: rng.below(1_000_000_000) as u32 }
        }
        86..=88 => {
            if rng.one_in(5) {
                let name = *rng.pick(&["system.posix_acl_access", "system.posix_acl_default"]);
                return Op::SetXattr { path, name, value: ACL.to_vec(), flags: 0 };
            }
            let value = {
                let len = rng.below(120) as usize;
                rng.bytes(len)
            };
            Op::SetXattr { path, name: rng.pick::<&str>(&XATTRS), value, flags: rng.below(3) as u32 }
        }
        89 => Op::GetXattr { path, name: rng.pick::<&str>(&XATTRS) },
        90 => Op::ListXattr { path },
        91 | 92 => Op::RemoveXattr { path, name: rng.pick::<&str>(&XATTRS) },
        93 | 94 => {
            let node = *rng.pick(&[Node::File, Node::Fifo, Node::Socket, Node::Char, Node::Block]);
            Op::Mknod { path, node, mode: mode(rng) }
        }
        95..=97 => Op::Stat { path },
        _ => Op::List { path },
    }
}
