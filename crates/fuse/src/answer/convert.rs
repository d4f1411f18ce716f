//! Between the vocabulary of `vellum-vfs` and the protocol's structures.

use crate::wire::{self, SetattrValid};
use std::time::Duration;
use vellum_vfs::{Attr, AttrReply, Entry, SetAttr, SetTime, StatFs, Timestamp};

/// Attributes as GETATTR and LOOKUP carry them.
pub(crate) fn attr(from: &Attr) -> wire::Attr {
    wire::Attr {
        ino: from.ino,
        size: from.size,
        blocks: from.blocks,
        atime: from.atime.secs as u64,
        mtime: from.mtime.secs as u64,
        ctime: from.ctime.secs as u64,
        atimensec: from.atime.nanos,
        mtimensec: from.mtime.nanos,
        ctimensec: from.ctime.nanos,
        mode: from.mode,
        nlink: from.nlink,
        uid: from.uid,
        gid: from.gid,
        // The protocol has the kernel's 32 bits, which are makedev's lower half.
        rdev: from.rdev as u32,
        blksize: from.blksize,
        flags: 0,
    }
}

pub(crate) fn attr_out(from: &AttrReply) -> wire::AttrOut {
    let (attr_valid, attr_valid_nsec) = ttl(from.ttl);
    wire::AttrOut { attr_valid, attr_valid_nsec, dummy: 0, attr: attr(&from.attr) }
}

pub(crate) fn entry(from: &Entry) -> wire::EntryOut {
    let (entry_valid, entry_valid_nsec) = ttl(from.entry_ttl);
    let (attr_valid, attr_valid_nsec) = ttl(from.attr_ttl);
    wire::EntryOut {
        nodeid: from.node.0,
        generation: from.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: attr(&from.attr),
    }
}

/// A name that does not exist, for the kernel to believe for `for_how_long`.
pub(crate) fn negative_entry(for_how_long: Duration) -> wire::EntryOut {
    let (entry_valid, entry_valid_nsec) = ttl(for_how_long);
    wire::EntryOut { entry_valid, entry_valid_nsec, ..wire::EntryOut::default() }
}

pub(crate) fn statx_out(from: &AttrReply) -> wire::StatxOut {
    let (attr_valid, attr_valid_nsec) = ttl(from.ttl);
    let a = &from.attr;
    let btime_known = a.btime != Timestamp::default();
    let stat = wire::Statx {
        mask: wire::STATX_BASIC | if btime_known { wire::STATX_BTIME } else { 0 },
        blksize: a.blksize,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        mode: a.mode as u16,
        ino: a.ino,
        size: a.size,
        blocks: a.blocks,
        atime: sx_time(a.atime),
        btime: sx_time(a.btime),
        ctime: sx_time(a.ctime),
        mtime: sx_time(a.mtime),
        rdev_major: rustix::fs::major(a.rdev),
        rdev_minor: rustix::fs::minor(a.rdev),
        ..wire::Statx::default()
    };
    wire::StatxOut { attr_valid, attr_valid_nsec, stat, ..wire::StatxOut::default() }
}

pub(crate) fn statfs(from: &StatFs) -> wire::Kstatfs {
    wire::Kstatfs {
        blocks: from.blocks,
        bfree: from.bfree,
        bavail: from.bavail,
        files: from.files,
        ffree: from.ffree,
        bsize: from.bsize,
        namelen: from.namelen,
        frsize: from.frsize,
        padding: 0,
        spare: [0; 6],
    }
}

pub(crate) fn set_attr(from: &wire::SetattrIn) -> SetAttr {
    let valid = SetattrValid::from_bits_truncate(from.valid);
    let time = |given, now, secs: u64, nanos| {
        if valid.contains(now) {
            Some(SetTime::Now)
        } else if valid.contains(given) {
            Some(SetTime::At(Timestamp { secs: secs as i64, nanos }))
        } else {
            None
        }
    };
    SetAttr {
        mode: valid.contains(SetattrValid::MODE).then_some(from.mode & 0o7777),
        uid: valid.contains(SetattrValid::UID).then_some(from.uid),
        gid: valid.contains(SetattrValid::GID).then_some(from.gid),
        size: valid.contains(SetattrValid::SIZE).then_some(from.size),
        atime: time(SetattrValid::ATIME, SetattrValid::ATIME_NOW, from.atime, from.atimensec),
        mtime: time(SetattrValid::MTIME, SetattrValid::MTIME_NOW, from.mtime, from.mtimensec),
        ctime: valid
            .contains(SetattrValid::CTIME)
            .then_some(Timestamp { secs: from.ctime as i64, nanos: from.ctimensec }),
        kill_suidgid: valid.contains(SetattrValid::KILL_SUIDGID),
    }
}

/// Whether nothing at all is to be set. So the kernel speaks to who has taken it upon himself to clear set-id bits
/// (HANDLE_KILLPRIV_V2) before somebody without privilege changes data, and also when only a capability of the file goes, which it
/// removes itself. Of the change that follows (FALLOCATE, a write to a backing file) it does not say for whom it is, if it says it at all.
pub(crate) fn asks_for_nothing(from: &wire::SetattrIn) -> bool {
    from.valid & !(SetattrValid::FH | SetattrValid::LOCKOWNER).bits() == 0
}

fn sx_time(from: Timestamp) -> wire::SxTime {
    wire::SxTime { secs: from.secs, nanos: from.nanos, reserved: 0 }
}

fn ttl(from: Duration) -> (u64, u32) {
    (from.as_secs(), from.subsec_nanos())
}
