//! What programs do that unpack archives, amid other operations: those are the calls that go by a ring.

use super::{NAMES, Op, Open, SLOTS, Step, USER, amount, mode, op, owner};
use crate::harness::Rng;

/// A directory of the ordinary user's.
const HOME: &str = "home";

/// About `count` steps. They come in stretches of root's and the user's, for a program that becomes somebody else needs another ring.
pub(super) fn run(rng: &mut Rng, count: usize) -> Vec<Step> {
    let home = [
        Op::Mkdir { path: HOME.into(), mode: 0o755 },
        Op::Chown { path: HOME.into(), uid: Some(USER), gid: Some(USER) },
    ];
    let mut steps = home.map(|op| Step::Do(op, false)).to_vec();
    let mut compared = 0;
    let mut number = 0;
    while steps.len() < count {
        let user = rng.one_in(5);
        let mut stretch = unpack(rng, user, number);
        for _ in 0..rng.below(16) {
            stretch.push(op(rng, |rng| path(rng, number)));
        }
        steps.extend(stretch.into_iter().map(|op| Step::Do(op, user)));
        number += 1;
        match rng.below(20) {
            0 => steps.push(Step::Remount),
            1..=5 => steps.push(Step::Close),
            _ => {}
        }
        if steps.len() >= compared + 80 {
            compared = steps.len();
            steps.push(Step::Compare);
        }
    }
    steps
}

/// Where the tree with this number is unpacked.
fn tree(number: u64, user: bool) -> String {
    if user { format!("{HOME}/t{number}") } else { format!("t{number}") }
}

/// A path in one of the last trees, or anywhere.
fn path(rng: &mut Rng, last: u64) -> String {
    let (number, user) = (last.saturating_sub(rng.below(3)), rng.one_in(3));
    let rest = super::path(rng);
    if rng.one_in(4) { rest } else { format!("{}/{rest}", tree(number, user)) }
}

/// Unpacks a tree: mostly to where nothing is.
fn unpack(rng: &mut Rng, user: bool, number: u64) -> Vec<Op> {
    let number = if rng.one_in(5) { rng.below(number + 1) } else { number };
    let mut dir = match rng.below(6) {
        // Amid what is below.
        0 => format!("{}/t{number}", super::path(rng)),
        _ => tree(number, user),
    };
    let mut dirs = vec![dir.clone()];
    let mut ops = vec![Op::Mkdir { path: dir.clone(), mode: *rng.pick(&[0o755, 0o700, 0o777]) }];
    for _ in 0..8 + rng.below(16) {
        let plain = *rng.pick(&NAMES);
        let path =
            if rng.one_in(3) { format!("{dir}/{plain}") } else { format!("{dir}/{plain}{}", rng.below(9)) };
        match rng.below(9) {
            0 | 1 => {
                ops.push(Op::Mkdir { path: path.clone(), mode: *rng.pick(&[0o755, 0o700, 0o2775]) });
                dirs.push(path.clone());
                if rng.one_in(2) {
                    dir = path;
                }
            }
            2 => ops.push(Op::Symlink { target: (*rng.pick(&NAMES)).into(), path }),
            3 => {
                let how = *rng.pick(&[Open::Write, Open::Truncate, Open::CreateTruncate, Open::Append]);
                file(rng, path, how, &mut ops);
            }
            _ => file(rng, path, Open::Unpack, &mut ops),
        }
    }
    // The innermost first, as tar does it.
    for path in dirs.into_iter().rev() {
        if rng.one_in(2) {
            let (uid, gid) = if user || rng.one_in(2) { (None, Some(USER)) } else { owner(rng) };
            ops.push(Op::Chown { path: path.clone(), uid, gid });
        }
        if rng.one_in(2) {
            ops.push(Op::Chmod { path: path.clone(), mode: *rng.pick(&[0o755, 0o750, 0o2755, 0o1777]) });
        }
        ops.push(Op::Times {
            path,
            secs: rng.below(1_500_000_000) as i64,
            nanos: rng.below(1_000_000_000) as u32,
        });
    }
    ops
}

/// A file, with what it gets before it is closed.
fn file(rng: &mut Rng, path: String, how: Open, ops: &mut Vec<Op>) {
    let slot = rng.below(SLOTS as u64) as usize;
    ops.push(Op::Open { path, how, mode: *rng.pick(&[0o600, 0o644, 0o666, 0o755]), slot });
    for _ in 0..rng.below(3) {
        ops.push(Op::Write { slot, at: amount(rng), len: amount(rng) as usize, seed: rng.next() });
    }
    if rng.one_in(5) {
        // A copy of what is below, as cp makes it.
        let from = (slot + 1) % SLOTS;
        ops.push(Op::Open { path: super::path(rng), how: Open::Read, mode: 0, slot: from });
        let (from_at, to_at, len) = (amount(rng), amount(rng), amount(rng) as usize);
        ops.push(Op::CopyRange { from, to: slot, from_at, to_at, len });
    }
    if rng.one_in(2) {
        let (uid, gid) = owner(rng);
        ops.push(Op::ChownOpen { slot, uid, gid });
    }
    if rng.one_in(2) {
        ops.push(Op::ChmodOpen { slot, mode: mode(rng) });
    }
    if rng.one_in(2) {
        let (secs, nanos) = (rng.below(1_500_000_000), rng.below(1_000_000_000) as u32);
        ops.push(Op::TimesOpen { slot, secs, nanos });
    }
    if rng.one_in(4) {
        ops.push(Op::StatOpen { slot });
    }
    if !rng.one_in(4) {
        ops.push(Op::Close { slot });
    }
}
