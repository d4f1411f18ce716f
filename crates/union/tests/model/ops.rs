//! What can happen. Objects and directories are meant by their place among those that are held at that moment, so that
//! any part of a sequence is a sequence, too.

use proptest::prelude::*;

/// A held object, a held directory, or a name, by index.
pub type Index = u8;

#[derive(Clone, Debug)]
pub enum Op {
    Lookup(Index, Index),
    /// By the path, as far as it leads, holding everything on the way.
    Walk(Vec<Index>),
    Create {
        dir: Index,
        at: Index,
        mode: u16,
        as_user: bool,
    },
    Mkdir {
        dir: Index,
        at: Index,
        mode: u16,
        as_user: bool,
    },
    Mknod {
        dir: Index,
        at: Index,
        kind: Index,
        mode: u16,
    },
    Symlink(Index, Index),
    Tmpfile(Index),
    Link(Index, Index, Index),
    Unlink(Index, Index),
    Rmdir(Index, Index),
    Rename {
        from: (Index, Index),
        to: (Index, Index),
        flags: Index,
    },
    Write {
        file: Index,
        offset: u16,
        len: u16,
        byte: u8,
    },
    Truncate(Index, u16),
    Allocate {
        file: Index,
        kind: Index,
        offset: u16,
        len: u16,
    },
    CopyRange {
        from: (Index, u16),
        to: (Index, u16),
        len: u16,
    },
    Open {
        file: Index,
        how: Index,
    },
    Chmod(Index, u16),
    Chown(Index, u8, u8),
    Times {
        of: Index,
        atime: Option<u16>,
        mtime: Option<u16>,
    },
    SetXattr {
        of: Index,
        which: Index,
        value: u8,
        flags: Index,
    },
    RemoveXattr(Index, Index),
    Fsync(Index),
    Parent(Index),
    Forget(Index),
    ForgetAll,
    /// A handle to something forgotten is opened.
    Recall(Index),
    ListBegin(Index),
    ListMore {
        session: Index,
        room: u8,
        plus: bool,
    },
    Compare,
    Remount,
    /// The upper becomes a lower, and a new upper lies above it.
    Commit,
    /// Past the kernel, in a directory that has been entered.
    Handout {
        dir: Index,
        at: Index,
        op: HandoutOp,
        as_user: bool,
    },
}

/// What a client asks for past the kernel, or does with a file that it was given.
#[derive(Clone, Debug)]
pub enum HandoutOp {
    /// Enters a held directory.
    Enter,
    Open {
        create: bool,
        exclusive: bool,
        cut: bool,
        mode: u16,
    },
    /// A held file once more, to write.
    Reopen,
    Mkdir(u16),
    Symlink,
    Set {
        mode: Option<u16>,
        mtime: Option<u16>,
    },
    Write(u16, u16, u8),
    Cut(u16),
    Close,
}

fn handout_op() -> impl Strategy<Value = HandoutOp> {
    let b = any::<bool>;
    prop_oneof![
        3 => Just(HandoutOp::Enter),
        8 => (proptest::bool::weighted(0.8), proptest::bool::weighted(0.3), b(), mode())
            .prop_map(|(create, exclusive, cut, mode)| HandoutOp::Open { create, exclusive, cut, mode: mode | 0o600 }),
        3 => Just(HandoutOp::Reopen),
        3 => mode().prop_map(|mode| HandoutOp::Mkdir(mode | 0o700)),
        1 => Just(HandoutOp::Symlink),
        2 => (proptest::option::of(mode()), proptest::option::of(0u16..2000))
            .prop_map(|(mode, mtime)| HandoutOp::Set { mode, mtime }),
        4 => (size(), 1u16..5000, any::<u8>()).prop_map(|(offset, len, byte)| HandoutOp::Write(offset, len, byte)),
        2 => size().prop_map(HandoutOp::Cut),
        1 => Just(HandoutOp::Close),
    ]
}

/// One operation past the kernel.
pub fn handout() -> impl Strategy<Value = Op> {
    let i = any::<u8>;
    (i(), i(), handout_op(), any::<bool>()).prop_map(|(dir, at, op, as_user)| Op::Handout {
        dir,
        at,
        op,
        as_user,
    })
}

/// Small offsets and sizes around the limits of blocks.
fn size() -> impl Strategy<Value = u16> {
    prop_oneof![
        2 => 0u16..20_000,
        1 => proptest::sample::select(vec![0u16, 1, 4095, 4096, 4097, 8192, 12_288, 16_384]),
    ]
}

fn mode() -> impl Strategy<Value = u16> {
    prop_oneof![3 => 0u16..0o1000, 1 => 0u16..0o10_000]
}

pub fn op() -> impl Strategy<Value = Op> {
    let i = any::<u8>;
    let time = || proptest::option::of(any::<u16>());
    prop_oneof![
        6 => (i(), i()).prop_map(|(dir, at)| Op::Lookup(dir, at)),
        6 => proptest::collection::vec(i(), 1..4).prop_map(Op::Walk),
        5 => (i(), i(), mode(), any::<bool>()).prop_map(|(dir, at, mode, as_user)| Op::Create { dir, at, mode, as_user }),
        5 => (i(), i(), mode(), any::<bool>()).prop_map(|(dir, at, mode, as_user)| Op::Mkdir { dir, at, mode, as_user }),
        2 => (i(), i(), i(), mode()).prop_map(|(dir, at, kind, mode)| Op::Mknod { dir, at, kind, mode }),
        1 => (i(), i()).prop_map(|(dir, at)| Op::Symlink(dir, at)),
        1 => i().prop_map(Op::Tmpfile),
        4 => (i(), i(), i()).prop_map(|(of, dir, at)| Op::Link(of, dir, at)),
        5 => (i(), i()).prop_map(|(dir, at)| Op::Unlink(dir, at)),
        4 => (i(), i()).prop_map(|(dir, at)| Op::Rmdir(dir, at)),
        8 => (i(), i(), i(), i(), 0u8..4).prop_map(|(a, b, c, d, flags)| Op::Rename { from: (a, b), to: (c, d), flags }),
        5 => (i(), size(), 1u16..5000, i()).prop_map(|(file, offset, len, byte)| Op::Write { file, offset, len, byte }),
        3 => (i(), size()).prop_map(|(file, size)| Op::Truncate(file, size)),
        1 => (i(), 0u8..5, size(), 1u16..9000).prop_map(|(file, kind, offset, len)| Op::Allocate { file, kind, offset, len }),
        1 => (i(), size(), i(), size(), 1u16..9000)
            .prop_map(|(from, a, to, b, len)| Op::CopyRange { from: (from, a), to: (to, b), len }),
        4 => (i(), 0u8..4).prop_map(|(file, how)| Op::Open { file, how }),
        3 => (i(), mode()).prop_map(|(of, mode)| Op::Chmod(of, mode)),
        1 => (i(), i(), i()).prop_map(|(of, uid, gid)| Op::Chown(of, uid, gid)),
        2 => (i(), time(), time()).prop_map(|(of, atime, mtime)| Op::Times { of, atime, mtime }),
        3 => (i(), i(), i(), 0u8..6).prop_map(|(of, which, value, flags)| Op::SetXattr { of, which, value, flags }),
        1 => (i(), i()).prop_map(|(of, which)| Op::RemoveXattr(of, which)),
        1 => i().prop_map(Op::Fsync),
        1 => i().prop_map(Op::Parent),
        3 => i().prop_map(Op::Forget),
        1 => Just(Op::ForgetAll),
        1 => i().prop_map(Op::Recall),
        2 => i().prop_map(Op::ListBegin),
        4 => (i(), 1u8..4, any::<bool>()).prop_map(|(session, room, plus)| Op::ListMore { session, room, plus }),
        1 => Just(Op::Compare),
        1 => Just(Op::Remount),
        1 => Just(Op::Commit),
    ]
}
