//! Of which kind a mount is: a union, or something that is none of this library's business.

use crate::shim::attributes::{self, AT_STATX_DONT_SYNC};
use crate::shim::{mountinfo, raw};
use core::ffi::CStr;

const STATX_MNT_ID_UNIQUE: u32 = 0x4000;
const STATMOUNT_SB_BASIC: u64 = 1;
const STATMOUNT_FS_SUBTYPE: u64 = 0x100;
const NAME: &[u8] = b"vellum\0";
/// Bytes of `struct statmount` before its strings.
const FIXED: usize = 512;

/// `struct mnt_id_req`.
#[repr(C)]
struct Request {
    size: u32,
    spare: u32,
    mount: u64,
    wanted: u64,
}

/// `struct statmount`, as far as it is looked at.
#[repr(C, align(8))]
struct Answer {
    size: u32,
    options: u32,
    given: u64,
    device: [u32; 2],
    magic: u64,
    unused: [u8; 88],
    /// Where in `strings`.
    subtype: u32,
    rest: [u8; FIXED - 124],
    strings: [u8; 64],
}

const _: () = assert!(core::mem::offset_of!(Answer, subtype) == 120);
const _: () = assert!(core::mem::offset_of!(Answer, strings) == FIXED);

/// Whether a directory is a union's. `device`: its `st_dev`.
pub(crate) fn is_union(directory: i32, path: &CStr, device: u64) -> bool {
    #[cfg(test)]
    if crate::tests::is_union(device) {
        return true;
    }
    // The table of all mounts takes a hundred times as long.
    ask(directory, path).unwrap_or_else(|| mountinfo::is_in_table(device))
}

/// Asks for the one mount. None: this kernel cannot say (before Linux 6.13), or may not be asked.
fn ask(directory: i32, path: &CStr) -> Option<bool> {
    const PR_GET_SECCOMP: usize = 21;
    // A filter may end whoever makes a system call that is newer than itself.
    if raw::plain(raw::number::PRCTL, [PR_GET_SECCOMP, 0, 0, 0, 0, 0]) != 0 {
        return None;
    }
    let found = attributes::at(directory, path, AT_STATX_DONT_SYNC, STATX_MNT_ID_UNIQUE).ok()?;
    if found.mask & STATX_MNT_ID_UNIQUE == 0 {
        return None;
    }
    let wanted = STATMOUNT_SB_BASIC | STATMOUNT_FS_SUBTYPE;
    let request = Request { size: size_of::<Request>() as u32, spare: 0, mount: found.mnt_id, wanted };
    let mut answer = Answer {
        size: 0,
        options: 0,
        given: 0,
        device: [0; 2],
        magic: 0,
        unused: [0; 88],
        subtype: 0,
        rest: [0; FIXED - 124],
        strings: [0; 64],
    };
    let to = &raw mut answer as usize;
    let words = [&raw const request as usize, to, size_of::<Answer>(), 0, 0, 0];
    // SAFETY: the kernel reads the request, and writes no more than the answer has room for.
    if unsafe { raw::call(raw::number::STATMOUNT, words) } != 0 || answer.given & STATMOUNT_SB_BASIC == 0 {
        return None;
    }
    if answer.magic != raw::FUSE_SUPER_MAGIC {
        return Some(false);
    }
    if answer.given & STATMOUNT_FS_SUBTYPE == 0 {
        return None;
    }
    Some(answer.strings.get(answer.subtype as usize..).is_some_and(|name| name.starts_with(NAME)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_other_types_are_recognised() {
        for path in [c"/proc", c"/", c"/dev"] {
            assert_ne!(ask(raw::AT_FDCWD, path), Some(true));
            assert!(!is_union(
                raw::AT_FDCWD,
                path,
                attributes::at(raw::AT_FDCWD, path, 0, 0).unwrap().device()
            ));
        }
        assert_eq!(ask(raw::AT_FDCWD, c"/proc/self/missing"), None);
    }
}
