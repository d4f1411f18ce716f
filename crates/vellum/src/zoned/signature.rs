//! What a file or a disk holds already: so that nobody's data are lost by a mistyped name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Looked at from the start on, in bytes,
const HEAD: u64 = 1 << 20;
/// and up to the end.
const TAIL: u64 = 64 << 10;

/// Where something says what it is.
const KNOWN: &[(u64, &[u8], &str)] = &[
    (0, b"vlmzones", "zones of a store of Vellum's"),
    (1080, &[0x53, 0xef], "an ext2, ext3 or ext4 filesystem"),
    (0, b"XFSB", "an XFS filesystem"),
    (0x10040, b"_BHRfS_M", "a btrfs filesystem"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS filesystem"),
    (0, b"hsqs", "a squashfs image"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "an EROFS image"),
    (3, b"NTFS    ", "an NTFS filesystem"),
    (54, b"FAT1", "a FAT filesystem"),
    (82, b"FAT32", "a FAT filesystem"),
    (0x8001, b"CD001", "an ISO 9660 filesystem"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (512, b"LABELONE", "a volume of LVM"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a part of a RAID"),
    (0, b"bluestore block device", "an OSD of Ceph"),
    (512, b"EFI PART", "a partition table"),
    (510, &[0x55, 0xaa], "a partition table"),
];

/// What `file`, of so many bytes, holds, in words; None when nothing was ever written to its beginning or its end.
pub(super) fn find_signature(file: &File, length: u64) -> io::Result<Option<&'static str>> {
    let mut head = vec![0; length.min(HEAD) as usize];
    file.read_exact_at(&mut head, 0)?;
    let is_there = |(at, magic, _): &&(u64, &[u8], &str)| {
        head.get(*at as usize..).is_some_and(|rest| rest.starts_with(magic))
    };
    if let Some((_, _, name)) = KNOWN.iter().find(is_there) {
        return Ok(Some(name));
    }
    let start = length.saturating_sub(TAIL);
    let mut tail = vec![0; (length - start) as usize];
    file.read_exact_at(&mut tail, start)?;
    let is_blank = head.iter().chain(&tail).all(|byte| *byte == 0);
    Ok(if is_blank { None } else { Some("data") })
}
