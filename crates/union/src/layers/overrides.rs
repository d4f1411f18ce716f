//! Owner, group, mode and type that are recorded in an extended attribute instead of the inode, so that a layer
//! can be stored by an unprivileged user.
//!
//! The formats are those of fuse-overlayfs and of the container tools that prepare layers for it:
//! `uid:gid:mode[:type]`, numbers in decimal, mode in octal, type one of `file`, `dir`, `symlink`, `pipe`,
//! `socket`, `block-MAJOR-MINOR`, `char-MAJOR-MINOR`.

use crate::config::OverrideStat;
use crate::layers::marks::{self, MarkFormat};
use std::ffi::CStr;
use vellum_vfs::{Attr, Errno, Error, FileKind, Object, Result};

/// The attribute that a layer uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// None: the inode says it all.
    #[default]
    Inode,
    /// `user.containers.override_stat`.
    Containers,
    /// `user.fuseoverlayfs.override_stat`.
    User,
    /// `security.fuseoverlayfs.override_stat`.
    Privileged,
}

impl Format {
    /// The attribute's name; None for [`Format::Inode`].
    pub(crate) const fn xattr(self) -> Option<&'static CStr> {
        match self {
            Self::Inode => None,
            Self::Containers => Some(c"user.containers.override_stat"),
            Self::User => Some(c"user.fuseoverlayfs.override_stat"),
            Self::Privileged => Some(c"security.fuseoverlayfs.override_stat"),
        }
    }

    /// The format of a layer: the one that its root directory uses, sought in the order of fuse-overlayfs.
    pub(crate) fn detect(root: &dyn Object) -> Self {
        [Self::Privileged, Self::User, Self::Containers]
            .into_iter()
            .find(|f| {
                let value = f.xattr().and_then(|name| marks::read_value(root, name, LEN_MAX).ok().flatten());
                value.is_some_and(|value| Override::parse(&value).is_some())
            })
            .unwrap_or_default()
    }

    /// The format that an upper layer is to have which has `self` so far. EINVAL: its files are recorded in another way.
    ///
    /// An attribute of users on a file of a layer that was handed out is no record, so such a layer does not become one with
    /// records. Earlier versions did not mark the root: what an ordinary user's service has written is taken to be theirs.
    pub(crate) fn wanted(self, wanted: OverrideStat, marking: MarkFormat, empty: bool) -> Result<Self> {
        let refused = |why| Err(Error::new(Errno::INVAL, why));
        match (wanted, self) {
            (OverrideStat::Privileged, Self::Inode | Self::Privileged) => Ok(Self::Privileged),
            (OverrideStat::User, Self::User | Self::Containers) => Ok(self),
            (OverrideStat::User, Self::Inode) if empty || marking.own.is_none() => Ok(Self::User),
            (OverrideStat::User, Self::Inode) if !marking.may_be_handed_out() => Ok(Self::Containers),
            (OverrideStat::User, Self::Inode) => refused(
                "option xattr_permissions: the files of this upperdir have their owners in the inode, and attributes of users \
                 on them are no owners; leave the option out, or give another upperdir",
            ),
            _ => refused(
                "option xattr_permissions: the files of this upperdir have their owners in the other kind of attribute; leave \
                 the option out, its root says which",
            ),
        }
    }

    /// Says on a layer's root that this is its format, as fuse-overlayfs does: whoever mounts the layer, however, knows then.
    pub(crate) fn mark(self, root: &dyn Object) -> Result<()> {
        let Some(name) = self.xattr() else { return Ok(()) };
        if Self::detect(root) == self {
            return Ok(());
        }
        let attr = root.stat()?;
        let own = Override { uid: attr.uid, gid: attr.gid, mode: attr.perm(), kind: None };
        root.set_xattr(name, own.format().as_bytes(), 0)
            .map_err(|e| e.doing("option xattr_permissions: marking the root of the upperdir"))
    }
}

/// Longest value that makes sense.
pub(crate) const LEN_MAX: usize = 128;

/// What is recorded of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Override {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Type and device number, where they differ from the inode's.
    pub(crate) kind: Option<(FileKind, u64)>,
}

/// A device number in makedev form (Linux's 64-bit layout).
pub(crate) const fn makedev(major: u64, minor: u64) -> u64 {
    (major & 0xfff) << 8 | (major & !0xfff) << 32 | minor & 0xff | (minor & 0xffff_ff00) << 12
}

const fn major(dev: u64) -> u64 {
    dev >> 8 & 0xfff | dev >> 32 & !0xfff
}

const fn minor(dev: u64) -> u64 {
    dev & 0xff | dev >> 12 & 0xffff_ff00
}

impl Override {
    /// Reads a value; None if it is not of the format.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0');
        let mut fields = text.splitn(4, ':');
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let mode = u32::from_str_radix(fields.next()?, 8).ok()? & 0o7777;
        let kind = match fields.next() {
            None | Some("") => None,
            Some("file") => Some((FileKind::Regular, 0)),
            Some("dir") => Some((FileKind::Directory, 0)),
            Some("symlink") => Some((FileKind::Symlink, 0)),
            Some("pipe") => Some((FileKind::Fifo, 0)),
            Some("socket") => Some((FileKind::Socket, 0)),
            Some(device) => {
                let mut parts = device.splitn(3, '-');
                let kind = match parts.next()? {
                    "block" => FileKind::BlockDevice,
                    "char" => FileKind::CharDevice,
                    _ => return None,
                };
                Some((kind, makedev(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?)))
            }
        };
        Some(Self { uid, gid, mode, kind })
    }

    /// The value to store.
    pub(crate) fn format(&self) -> String {
        let kind = match self.kind {
            None | Some((FileKind::Regular, _)) => String::new(),
            Some((FileKind::Directory, _)) => ":dir".into(),
            Some((FileKind::Symlink, _)) => ":symlink".into(),
            Some((FileKind::Fifo, _)) => ":pipe".into(),
            Some((FileKind::Socket, _)) => ":socket".into(),
            Some((FileKind::BlockDevice, dev)) => format!(":block-{}-{}", major(dev), minor(dev)),
            Some((FileKind::CharDevice, dev)) => format!(":char-{}-{}", major(dev), minor(dev)),
        };
        format!("{}:{}:0{:o}{kind}", self.uid, self.gid, self.mode)
    }

    /// Changes attributes to what is recorded. A directory stays one, and nothing else becomes one: that cannot be
    /// pretended.
    pub(crate) fn apply(&self, attr: &mut Attr) {
        attr.uid = self.uid;
        attr.gid = self.gid;
        let mut bits = attr.mode & !0o7777;
        if let Some((kind, rdev)) = self.kind
            && (kind == FileKind::Directory) == attr.is_dir()
            && attr.kind() != FileKind::Symlink
        {
            bits = kind.mode_bits();
            attr.rdev = rdev;
        }
        attr.mode = bits | self.mode;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::marks::Space;
    use proptest::prelude::*;

    #[test]
    fn the_known_forms_are_read() {
        let plain = Override { uid: 0, gid: 12, mode: 0o4755, kind: None };
        assert_eq!(Override::parse(b"0:12:04755"), Some(plain));
        assert_eq!(plain.format(), "0:12:04755");
        let device = Override::parse(b"1:2:0660:char-1-3").unwrap();
        assert_eq!(device.kind, Some((FileKind::CharDevice, makedev(1, 3))));
        assert_eq!(device.format(), "1:2:0660:char-1-3");
        for bad in [&b""[..], b"1:2", b"a:b:c", b"1:2:9", b"1:2:7:what-1-1", b"1:2:7:char-x-1", b"\xff"] {
            assert_eq!(Override::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_layer_keeps_its_format() {
        use OverrideStat::{Privileged, User};
        let foreign = MarkFormat { own: None, spaces: marks::ANY, adopted: false };
        let roots = MarkFormat { own: Some(Space::Trusted), spaces: &[Space::Trusted], adopted: false };
        let users = MarkFormat { own: Some(Space::User), ..foreign };
        for (before, wanted, marking, empty, after) in [
            (Format::Inode, User, foreign, false, Some(Format::User)),
            (Format::Inode, User, roots, true, Some(Format::User)),
            (Format::Inode, User, roots, false, None),
            (Format::Inode, User, users, false, Some(Format::Containers)),
            (Format::Containers, User, roots, false, Some(Format::Containers)),
            (Format::Privileged, User, roots, false, None),
            (Format::Inode, Privileged, roots, false, Some(Format::Privileged)),
            (Format::User, Privileged, users, false, None),
        ] {
            assert_eq!(before.wanted(wanted, marking, empty).ok(), after, "{before:?} {wanted:?} {empty}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Override::parse(&value);
        }

        #[test]
        fn device_numbers_survive(maj in 0..1u64 << 20, min in 0..1u64 << 20) {
            let dev = makedev(maj, min);
            prop_assert_eq!((major(dev), minor(dev)), (maj, min));
        }
    }
}
