//! A descriptor that the service handed out is this process's alone, and has one number. Before that changes (by dup, by fork, by the
//! execution of another program), or a lock is taken by it, another descriptor of the same file takes its place, one that was opened
//! through the mount: locks must be seen by those who have the file open there, and programs without this library must see one file.

use crate::fds::service_fd_numbers::{ANY, HELD};
use crate::fds::service_fds::{self, Mount};
use crate::fds::{close, companion};
use crate::shim::attributes::{self, AT_STATX_DONT_SYNC, AT_SYMLINK_NOFOLLOW, STATX_INO, STATX_TYPE};
use crate::shim::mountinfo::{self, Room, read_table, with_room};
use crate::shim::paths::{self, PATH_MAX};
use crate::shim::{process, raw};
use core::ffi::CStr;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// Before this process shares its descriptors with another one.
pub(crate) fn before_sharing() {
    companion::end_all();
    if !ANY.load(Acquire) || process::is_borrowed() {
        return;
    }
    for (index, word) in HELD.iter().enumerate() {
        let mut bits = word.swap(0, Relaxed);
        while bits != 0 {
            let bit = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            let fd = (index * 64 + bit) as i32;
            if !replace(fd) && service_fds::mount_of(fd).is_some() {
                // Without a name: nobody else can have it open. It may get one again.
                word.fetch_or(1 << bit, Relaxed);
            }
        }
    }
}

/// Whether there is a descriptor that was handed out.
pub(crate) fn is_any() -> bool {
    let held = |(index, word): (usize, &core::sync::atomic::AtomicU64)| {
        let bits = word.load(Relaxed);
        (0..64).any(|bit| bits >> bit & 1 != 0 && service_fds::mount_of((index * 64 + bit) as i32).is_some())
    };
    ANY.load(Acquire) && HELD.iter().enumerate().any(held)
}

/// Before a descriptor gets another number, or a lock. Whether it was one that was handed out, and is one of the mount now.
#[inline]
pub(crate) fn before_use(fd: i32) -> bool {
    service_fds::any() && process::is_on() && !process::is_borrowed() && replace(fd)
}

/// Puts a descriptor of the mount in the place of one that was handed out. False: it is none, or that cannot be done.
fn replace(fd: i32) -> bool {
    let Some(mount) = service_fds::mount_of(fd) else { return false };
    let Some(new) = with_room(|room| open(fd, &mount, room)).flatten() else { return false };
    let done = take_place(fd, new);
    raw::close(new);
    done
}

/// Does something with the path of a descriptor that was handed out, as it is in this process's tree now.
pub(crate) fn path_of<R>(fd: i32, mount: &Mount, act: impl Fn(&CStr) -> R) -> Option<R> {
    with_room(|room| find(fd, mount, room, |path, _| Some(act(path)))).flatten()
}

/// Calls `each` with the paths at which the very file is found, and with its number, until that has a result.
fn find<R>(fd: i32, mount: &Mount, room: &mut Room, each: impl Fn(&CStr, u64) -> Option<R>) -> Option<R> {
    let ino = attributes::stat_fd(fd).ok()?.ino;
    let Room { path, found, table } = room;
    // As seen from the root of the service's mount, which is that of the union.
    let inside = link(fd, path)?;
    let table = read_table(table);
    mountinfo::find(table, attributes::split(mount.union), inside, found, |path| {
        let path = CStr::from_bytes_with_nul(path).ok()?;
        let mask = STATX_TYPE | STATX_INO;
        let there =
            attributes::at(raw::AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, mask).ok()?;
        if there.device() == mount.union && there.ino == ino { each(path, ino) } else { None }
    })
}

fn open(fd: i32, mount: &Mount, room: &mut Room) -> Option<i32> {
    const O_CREAT_EXCL_TRUNC: usize = 0o1300;
    const O_CLOEXEC: usize = 0o2_000_000;
    const F_SETFL: usize = 4;
    const O_APPEND: usize = 0o2000;
    let all = usize::try_from(raw::flags_of(fd)).ok()?;
    // With O_APPEND from the beginning the kernel would append for ever, also when the program has taken that back.
    let flags = all & !(O_CREAT_EXCL_TRUNC | O_APPEND) | O_CLOEXEC;
    find(fd, mount, room, |path, ino| {
        let words = [raw::word(raw::AT_FDCWD), path.as_ptr() as usize, flags, 0, 0, 0];
        let new = i32::try_from(raw::plain(raw::number::OPENAT, words)).ok().filter(|new| *new >= 0)?;
        // The path may have come to lead elsewhere.
        let is_it = attributes::stat_fd(new).is_ok_and(|new| new.device() == mount.union && new.ino == ino);
        let words = [raw::word(new), F_SETFL, all, 0, 0, 0];
        if is_it && (all & O_APPEND == 0 || raw::plain(raw::number::FCNTL, words) == 0) {
            return Some(new);
        }
        raw::close(new);
        None
    })
}

/// The path that /proc shows for a descriptor. None: it has none any more.
fn link(fd: i32, to: &mut [u8; PATH_MAX]) -> Option<&[u8]> {
    let name = paths::of_descriptor(fd);
    let words = [raw::word(raw::AT_FDCWD), name.as_ptr() as usize, to.as_mut_ptr() as usize, to.len(), 0, 0];
    // SAFETY: the kernel writes no more than there is room for.
    let len = unsafe { raw::call(raw::number::READLINKAT, words) };
    let path = to.get(..usize::try_from(len).ok()?)?;
    (path.first() == Some(&b'/') && path.len() < PATH_MAX && !path.ends_with(b" (deleted)")).then_some(path)
}

/// The new descriptor gets the old one's number, position and flag.
fn take_place(fd: i32, new: i32) -> bool {
    const SEEK_SET: usize = 0;
    const SEEK_CUR: usize = 1;
    const F_GETFD: usize = 1;
    const O_CLOEXEC: usize = 0o2_000_000;
    let at = raw::plain(raw::number::LSEEK, [raw::word(fd), 0, SEEK_CUR, 0, 0, 0]);
    if at > 0 {
        raw::plain(raw::number::LSEEK, [raw::word(new), at as usize, SEEK_SET, 0, 0, 0]);
    }
    let closes = raw::plain(raw::number::FCNTL, [raw::word(fd), F_GETFD, 0, 0, 0, 0]) & 1 != 0;
    let flags = if closes { O_CLOEXEC } else { 0 };
    close::while_closing(fd, || {
        raw::plain(raw::number::DUP3, [raw::word(new), raw::word(fd), flags, 0, 0, 0]) == fd as isize
    })
}
