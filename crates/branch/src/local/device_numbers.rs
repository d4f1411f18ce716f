//! What tells the objects of a directory apart that lie on several devices.
//!
//! btrfs and bcachefs give each subvolume a device and numbers of its own, so a snapshot has its original's numbers. A mount of the
//! kernel's overlayfs shows files with the device and the number that they have in its layers. None of these is a mount, so nothing
//! stops a walk there.

use crate::convert::attr;
use vellum_sys::{FsStat, Stat};
use vellum_vfs::Attr;

/// Where numbers of other devices begin: above those that filesystems give.
const ELSEWHERE: u64 = 1 << 62;
/// f_type of a mount of the kernel's overlayfs.
const OVERLAYFS: u64 = 0x794c_7630;

/// The device of a branch's root.
#[derive(Clone, Copy, Debug)]
pub(super) struct Home {
    device: u64,
    mount: u64,
    /// A directory here names files of other devices.
    is_stacked: bool,
}

impl Home {
    pub(super) const fn new(root: &Stat, fs: &FsStat) -> Self {
        Self { device: root.dev, mount: root.mount, is_stacked: fs.kind == OVERLAYFS }
    }

    /// Attributes, with a number that no other object of the branch has.
    #[inline]
    pub(super) fn attr(&self, stat: &Stat) -> Attr {
        let found = attr(stat);
        if stat.dev == self.device { found } else { Attr { ino: self.foreign_ino(stat), ..found } }
    }

    /// Whether numbers in the listing of a directory may be those of other devices.
    pub(super) const fn may_list_foreign_inodes(&self, dir: &Stat) -> bool {
        self.is_stacked || dir.dev != self.device
    }

    /// The number of an object of another device: the same in each process and after each mount, as far as the kernel has a lasting name for
    /// the device. That of a subvolume holds in its filesystem only, so it does where no mount lies between.
    fn foreign_ino(&self, stat: &Stat) -> u64 {
        let is_here = stat.subvolume != 0 && stat.mount != 0 && stat.mount == self.mount;
        let (kind, device) = if is_here { (1, stat.subvolume) } else { (2, stat.dev) };
        let hash = [device, stat.ino].into_iter().fold(kind, |hash, word| mix(hash ^ word));
        ELSEWHERE | hash >> 2
    }
}

/// The finalizer of SplitMix64, and its step: all bits in all others.
const fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const ROOT: Stat = Stat { dev: 7, mount: 3, ino: 256, subvolume: 5, ..EMPTY };
    const EMPTY: Stat = Stat {
        ino: 0,
        dev: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 0,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        atime: NEVER,
        mtime: NEVER,
        ctime: NEVER,
        btime: NEVER,
        mount: 0,
        subvolume: 0,
    };
    const NEVER: vellum_sys::Time = vellum_sys::Time { secs: 0, nanos: 0 };

    fn home() -> Home {
        Home::new(&ROOT, &FsStat::default())
    }

    #[test]
    fn own_inode_numbers_are_unchanged_and_foreign_ones_unique() {
        let number = |stat: Stat| home().attr(&stat).ino;
        let mut seen = HashSet::new();
        for ino in (0..2000).chain([u64::MAX, 1 << 62]) {
            assert_eq!(number(Stat { ino, ..ROOT }), ino);
            assert!(seen.insert(ino));
        }
        for dev in 8..300 {
            for ino in 256..300 {
                let stat = Stat { dev, ino, subvolume: 0, ..ROOT };
                // By a mount of its own the number of a subvolume says nothing.
                let mounted = Stat { mount: 4, subvolume: 9, ..stat };
                assert_eq!(number(mounted), number(stat));
                assert!(seen.insert(number(stat)) && number(stat) >> 62 == 1);
            }
        }
    }

    #[test]
    fn a_subvolume_keeps_its_numbers_when_its_device_gets_another() {
        let number = |dev, subvolume| home().attr(&Stat { dev, subvolume, ..ROOT }).ino;
        assert_eq!(number(8, 257), number(9, 257));
        assert_ne!(number(8, 257), number(8, 258));
    }
}
