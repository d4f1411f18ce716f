//! Where a path below a mount is in this process's tree, by /proc/self/mountinfo.

use crate::shim::paths::{self, PATH_MAX};
use crate::shim::{attributes, raw};
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Release};

/// Bytes of the table of mounts that are looked at.
const TABLE: usize = 64 << 10;

/// Room for paths and the table, which is too much for a stack.
pub(crate) struct Room {
    pub(crate) path: [u8; PATH_MAX],
    pub(crate) found: [u8; PATH_MAX],
    pub(crate) table: [u8; TABLE],
}

struct RoomCell(UnsafeCell<Room>);

// SAFETY: only who has set `BUSY` refers to what is inside.
unsafe impl Sync for RoomCell {}

static ROOM: RoomCell =
    RoomCell(UnsafeCell::new(Room { path: [0; PATH_MAX], found: [0; PATH_MAX], table: [0; TABLE] }));
static BUSY: AtomicBool = AtomicBool::new(false);

/// Does something with that room. None: others have it for long.
pub(crate) fn with_room<R>(act: impl FnOnce(&mut Room) -> R) -> Option<R> {
    /// Another thread is done soon; a signal handler would wait for itself.
    const LOOKS: u32 = 10_000;
    for _ in 0..LOOKS {
        if !BUSY.swap(true, Acquire) {
            // SAFETY: `BUSY` was free, and is this thread's now.
            let done = act(unsafe { &mut *ROOM.0.get() });
            BUSY.store(false, Release);
            return Some(done);
        }
        core::hint::spin_loop();
    }
    None
}

/// Whether somebody uses it.
pub(crate) fn is_busy() -> bool {
    BUSY.load(Acquire)
}

/// Whether the table of mounts says that a device is a union's.
pub(crate) fn is_in_table(device: u64) -> bool {
    with_room(|room| is_union(read_table(&mut room.table), attributes::split(device))).unwrap_or(false)
}

/// Reads the table of mounts.
pub(crate) fn read_table(to: &mut [u8; TABLE]) -> &[u8] {
    let words = [raw::word(raw::AT_FDCWD), c"/proc/self/mountinfo".as_ptr() as usize, 0o2_000_000, 0, 0, 0];
    let Ok(fd) = i32::try_from(raw::plain(raw::number::OPENAT, words)) else { return &[] };
    let mut len = 0;
    while let Some(room) = to.get_mut(len..).filter(|room| fd >= 0 && !room.is_empty()) {
        let words = [raw::word(fd), room.as_mut_ptr() as usize, room.len(), 0, 0, 0];
        // SAFETY: the kernel writes no more than there is room for.
        match unsafe { raw::call(raw::number::READ, words) } {
            got if got > 0 => len += got as usize,
            _ => break,
        }
    }
    raw::close(fd);
    to.get(..len).unwrap_or_default()
}

/// The paths at which a path of a filesystem can be found: one for each line of the table that shows a part of it where it is.
/// `device`: major and minor number. `inside`: the path from the filesystem's root on. Calls `each` with a path that ends with a
/// zero byte, until that has a result.
pub(crate) fn find<R>(
    table: &[u8],
    device: [u32; 2],
    inside: &[u8],
    to: &mut [u8; PATH_MAX],
    mut each: impl FnMut(&[u8]) -> Option<R>,
) -> Option<R> {
    lines_of(table, device).find_map(|mut words| {
        let (root, at) = (words.next()?, words.next()?);
        let below = path_below(inside, root)?;
        let mut len = 0;
        let mut add = |byte: u8| {
            let place = to.get_mut(len);
            len += 1;
            place.map(|place| *place = byte).is_some()
        };
        let fits =
            unescape(if at == b"/" { b"" } else { at }).chain(below.iter().copied()).chain([0]).all(&mut add);
        to.get(..len).filter(|_| fits).and_then(&mut each)
    })
}

/// Whether a device is a union's.
pub(crate) fn is_union(table: &[u8], device: [u32; 2]) -> bool {
    // Optional fields end with a dash, and the type comes after it.
    lines_of(table, device).any(|words| words.skip_while(|word| *word != b"-").nth(1) == Some(b"fuse.vellum"))
}

/// The lines of a device: their words after its number.
fn lines_of(table: &[u8], device: [u32; 2]) -> impl Iterator<Item = impl Iterator<Item = &[u8]>> {
    table.split(|byte| *byte == b'\n').filter_map(move |line| {
        let mut words = line.split(|byte| *byte == b' ').skip(2);
        (words.next().and_then(parse) == Some(device)).then_some(words)
    })
}

/// What is left of a path below a directory, with its first slash.
fn path_below<'a>(path: &'a [u8], root: &[u8]) -> Option<&'a [u8]> {
    if root == b"/" {
        return Some(path);
    }
    let mut left = path;
    for byte in unescape(root) {
        let (first, others) = left.split_first()?;
        if *first != byte {
            return None;
        }
        left = others;
    }
    (left.is_empty() || left.first() == Some(&b'/')).then_some(left)
}

/// "major:minor".
fn parse(text: &[u8]) -> Option<[u32; 2]> {
    let mut parts = text.split(|byte| *byte == b':').map(paths::number);
    Some([parts.next()??, parts.next()??])
}

/// Bytes of a path in the table, where blanks and the like are a backslash and three octal digits.
fn unescape(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut left = text;
    core::iter::from_fn(move || {
        let (first, others) = left.split_first()?;
        let digits =
            others.first_chunk::<3>().filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match digits {
            Some(digits) if *first == b'\\' => {
                left = others.get(3..).unwrap_or_default();
                Some(digits.iter().fold(0u8, |byte, digit| byte.wrapping_mul(8).wrapping_add(digit - b'0')))
            }
            _ => {
                left = others;
                Some(*first)
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw - ext4 /dev/vda rw\n\
        40 22 0:50 / /mnt/a\\040b rw shared:1 - fuse.vellum vellum rw\n\
        41 22 0:50 /sub/dir /other rw - fuse.vellum vellum rw\n\
        42 22 0:51 / /x rw - tmpfs tmpfs rw\nnonsense\n43 22 0:5x / /y rw";

    fn all(device: [u32; 2], inside: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut to = [0; PATH_MAX];
        find(TABLE, device, inside.as_bytes(), &mut to, |path| {
            found.push(String::from_utf8(path.strip_suffix(&[0]).unwrap().to_vec()).unwrap());
            None::<()>
        });
        found
    }

    #[test]
    fn mountinfo_paths_resolve_to_their_mount() {
        assert_eq!(all([254, 0], "/etc/x"), ["/etc/x"]);
        assert_eq!(all([0, 50], "/sub/dir/f"), ["/mnt/a b/sub/dir/f", "/other/f"]);
        assert_eq!(all([0, 50], "/sub/dirs/f"), ["/mnt/a b/sub/dirs/f"]);
        assert_eq!(all([0, 5], "/f"), [""; 0]);
        assert!(is_union(TABLE, [0, 50]) && !is_union(TABLE, [0, 51]) && !is_union(TABLE, [254, 0]));
        let long = format!("/{}", "n".repeat(PATH_MAX));
        assert_eq!(all([0, 51], &long), [""; 0]);
    }
}
