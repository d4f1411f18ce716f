//! What layers record on files and directories: whiteouts, opaque directories, redirects, origins.
//!
//! Read are the formats of the kernel's overlayfs (`trusted.overlay.*`, `user.overlay.*`, 0:0 devices), of
//! fuse-overlayfs (`user.fuseoverlayfs.opaque`) and of AUFS (`.wh.` names). Written are the kernel's, and one
//! mark of our own, `vellum.o`, that tells the origin of a copied-up file. It is kept short: in ext4's 256-byte
//! inodes 92 bytes are left for attributes, and what fits there costs no block.

use crate::layers::layer::c_string;
use std::ffi::CStr;
use vellum_vfs::{Attr, Errno, Error, FileKind, Object, Result, Timestamp};

/// Names that begin like this are AUFS whiteouts.
pub(crate) const WHITEOUT_PREFIX: &[u8] = b".wh.";
/// A directory with this entry is opaque (AUFS).
pub(crate) const OPAQUE_NAME: &CStr = c".wh..wh..opq";

/// Longest list of attribute names, and longest value, that Linux allows (XATTR_LIST_MAX, XATTR_SIZE_MAX).
pub(crate) const XATTR_MAX: usize = 65_536;
/// Longest redirect: a path.
const REDIRECT_MAX: usize = 4096;

/// Which namespace of extended attributes carries the marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// `trusted.*`: only a privileged process can set it.
    Trusted,
    /// `user.*`: on regular files and directories only.
    User,
}

/// Every namespace.
pub(crate) const ANY: &[Space] = &[Space::Trusted, Space::User];

/// On a directory of a lower layer that the layer itself says nothing about, as a layer's archive does of `a` when it has `a/b` alone: its
/// mode, owner and attributes are those of the directory below it. The first name is for a privileged unpacker, the second for others.
pub const IMPLIED: [&CStr; 2] = [c"trusted.vellum.implied", c"user.vellum.implied"];

/// Value of [`Space::format`] on a layer that was empty when it became ours.
const FORMAT_OURS: &[u8] = b"1";
/// Value of [`Space::format`] on a layer that held something before, whose marks may be in any namespace.
const FORMAT_ADOPTED: &[u8] = b"1a";

/// What the root of a layer says of the marks in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkFormat {
    /// Where its files carry marks of our own; None: they carry none.
    pub(crate) own: Option<Space>,
    /// Which namespaces are believed. Users may put attributes of theirs on any file of theirs; so where everything was
    /// made by a privileged service, its namespace alone counts, in whatever way the layer is mounted.
    pub(crate) spaces: &'static [Space],
    /// It is ours, and others had put something into it before.
    pub(crate) adopted: bool,
}

impl MarkFormat {
    /// A layer that is not ours.
    const FOREIGN: Self = Self { own: None, spaces: ANY, adopted: false };

    const fn own_format(space: Space, adopted: bool) -> Self {
        let spaces: &[Space] = match space {
            Space::Trusted if !adopted => &[Space::Trusted],
            _ => ANY,
        };
        Self { own: Some(space), spaces, adopted }
    }

    /// Reads what the root says. The privileged namespace is looked at first, so no attribute of users makes a layer another.
    pub(crate) fn read(root: &dyn Object) -> Self {
        let said = |space: &Space| match read_value(root, space.format(), 16) {
            Ok(Some(value)) if !value.is_empty() => Some(Self::own_format(*space, *value != *FORMAT_OURS)),
            _ => None,
        };
        ANY.iter().find_map(said).unwrap_or(Self::FOREIGN)
    }

    /// Says on a root that the layer is ours from now on.
    pub(crate) fn write(root: &dyn Object, space: Space, adopted: bool) -> Result<Self> {
        root.set_xattr(space.format(), if adopted { FORMAT_ADOPTED } else { FORMAT_OURS }, 0)?;
        Ok(Self::own_format(space, adopted))
    }

    /// Whether its files may be handed to programs, which can put attributes of users on them.
    pub(crate) fn may_be_handed_out(&self) -> bool {
        self.own == Some(Space::Trusted) && !self.spaces.contains(&Space::User)
    }
}

impl Space {
    pub(crate) const fn opaque(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.overlay.opaque",
            Self::User => c"user.overlay.opaque",
        }
    }
    pub(crate) const fn redirect(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.overlay.redirect",
            Self::User => c"user.overlay.redirect",
        }
    }
    pub(crate) const fn metacopy(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.overlay.metacopy",
            Self::User => c"user.overlay.metacopy",
        }
    }
    pub(crate) const fn whiteout(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.overlay.whiteout",
            Self::User => c"user.overlay.whiteout",
        }
    }
    /// The mark of our own.
    pub(crate) const fn own(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.vellum.o",
            Self::User => c"user.vellum.o",
        }
    }
    /// The record of a partial file.
    pub(crate) const fn partial(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.vellum.p",
            Self::User => c"user.vellum.p",
        }
    }
    /// On the root of an upper with partial files: the layers below it, as paths ended by NUL.
    pub(crate) const fn lowers(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.vellum.lowers",
            Self::User => c"user.vellum.lowers",
        }
    }
    /// On the root of an upper with files that take data from below: [`GUARD`].
    pub(crate) const fn guard(self) -> &'static CStr {
        match self {
            Self::Trusted => c"security.fuseoverlayfs.override_stat",
            Self::User => c"user.fuseoverlayfs.override_stat",
        }
    }
    /// On the root of a layer: its files may carry [`Space::own`].
    pub(crate) const fn format(self) -> &'static CStr {
        match self {
            Self::Trusted => c"trusted.vellum.format",
            Self::User => c"user.vellum.format",
        }
    }
}

/// What `overlay.metacopy` says on a partial file: a value too short for the kernel's overlayfs, so that it refuses the file
/// (EIO since Linux 6.6, EPERM without `metacopy=on`) instead of showing the lower's data.
pub(crate) const METACOPY_PARTIAL: &[u8] = b"p";

/// Value of [`Space::guard`]. fuse-overlayfs, which would show zeros, reads the owner of the root from that attribute, and refuses
/// the layer when there is something else; the attribute means nothing to others.
pub(crate) const GUARD: &[u8] = b"vellum: some files take data from the layers below";

/// Namespaces of attributes that belong to a union.
const PRIVATE: [&[u8]; 6] = [
    b"trusted.overlay.",
    b"user.overlay.",
    b"trusted.vellum.",
    b"user.vellum.",
    b"user.fuseoverlayfs.",
    b"security.fuseoverlayfs.",
];

/// Splits a name in a union's namespace: the namespace, its last word with its dot, and the rest.
fn split(name: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = PRIVATE.iter().find(|space| name.starts_with(space))?;
    let dot = space.iter().position(|byte| *byte == b'.')? + 1;
    Some((name.get(..space.len())?, space.get(dot..)?, name.get(space.len()..)?))
}

/// Attributes that belong to this union and that its users neither see nor set.
pub(crate) fn is_private(name: &[u8]) -> bool {
    split(name).is_some_and(|(_, word, rest)| !rest.starts_with(word))
        || name == b"user.containers.override_stat"
}

/// The name by which a layer has an attribute that users call `name` and that would be a mark: those of a union whose upper layer lies in
/// this one. The kernel's overlayfs does the same (`trusted.overlay.overlay.opaque`). None: it has the same name.
pub(crate) fn escape(name: &CStr) -> Option<Box<CStr>> {
    let (space, word, rest) = split(name.to_bytes())?;
    Some(c_string([space, word, rest].concat()))
}

/// The two parts of the name by which users know an attribute of a layer that is no mark of this union.
pub(crate) fn unescape(name: &[u8]) -> [&[u8]; 2] {
    match split(name) {
        Some((space, word, rest)) => [space, rest.strip_prefix(word).unwrap_or(rest)],
        None => [name, b""],
    }
}

/// Whether these are the attributes of a whiteout in the kernel's format.
pub(crate) fn is_whiteout_device(attr: &Attr) -> bool {
    attr.kind() == FileKind::CharDevice && attr.rdev == 0
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirMarks {
    /// Nothing shows through from below.
    pub(crate) opaque: bool,
    /// Its empty files may be whiteouts by attribute (the kernel's "xwhiteouts").
    pub(crate) xwhiteouts: bool,
    /// The kernel has copied files up into it; some may be without data.
    pub(crate) impure: bool,
    /// Of itself it says nothing: [`IMPLIED`].
    pub(crate) implied: bool,
    /// Where it shows through to: a sibling's name, or a path from the root with a leading slash.
    pub(crate) redirect: Option<Box<[u8]>>,
}

/// Reads a directory's marks in the namespaces that count, except the AUFS one, which is an entry.
pub(crate) fn read_dir_marks(dir: &dyn Object, spaces: &[Space]) -> Result<DirMarks> {
    let mut marks = DirMarks::default();
    let mut small = [0u8; 1024];
    let mut large;
    let list: &[u8] = match dir.list_xattr(&mut small) {
        Ok(n) => small.get(..n).unwrap_or_default(),
        Err(e) if e.errno() == Errno::RANGE => {
            large = vec![0; XATTR_MAX];
            let n = dir.list_xattr(&mut large)?;
            large.get(..n).unwrap_or_default()
        }
        Err(e) if e.errno() == Errno::OPNOTSUPP => return Ok(marks),
        Err(e) => return Err(e.doing("marks of a directory")),
    };
    for name in list.split_inclusive(|b| *b == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else { continue };
        let space = if name.to_bytes().starts_with(b"user.") { Space::User } else { Space::Trusted };
        if !spaces.contains(&space) {
            continue;
        }
        match name.to_bytes() {
            b"trusted.overlay.opaque" | b"user.overlay.opaque" | b"user.fuseoverlayfs.opaque" => {
                let mut value = [0u8; 4];
                match dir.get_xattr(name, &mut value) {
                    Ok(1) if value[0] == b'y' => marks.opaque = true,
                    Ok(1) if value[0] == b'x' => marks.xwhiteouts = true,
                    Ok(_) => {}
                    Err(e) if matches!(e.errno(), Errno::NODATA | Errno::RANGE) => {}
                    Err(e) => return Err(e),
                }
            }
            b"trusted.overlay.impure" | b"user.overlay.impure" => marks.impure = true,
            b"trusted.vellum.implied" | b"user.vellum.implied" => marks.implied = true,
            b"trusted.overlay.redirect" | b"user.overlay.redirect" => {
                let value = read_value(dir, name, REDIRECT_MAX)?;
                marks.redirect = value.map(|v| check_redirect(&v).map(|()| v)).transpose()?;
            }
            _ => {}
        }
    }
    Ok(marks)
}

/// A whole attribute value of at most `max` bytes; None if there is none.
pub(crate) fn read_value(object: &dyn Object, name: &CStr, max: usize) -> Result<Option<Box<[u8]>>> {
    let mut value = vec![0; max];
    match object.get_xattr(name, &mut value) {
        Ok(n) => {
            value.truncate(n);
            Ok(Some(value.into()))
        }
        Err(e) if matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(e) => Err(e),
    }
}

/// A redirect comes from a layer and is not to be trusted: each component must be a name.
pub(crate) fn check_redirect(value: &[u8]) -> Result<()> {
    let bad = || Error::new(Errno::IO, "bad redirect").damage().at(value);
    let path = value.strip_prefix(b"/").unwrap_or(value);
    let absolute = path.len() != value.len();
    if path.is_empty() || (!absolute && path.contains(&b'/')) || path.contains(&0) {
        return Err(bad());
    }
    for part in path.split(|b| *b == b'/') {
        if part.is_empty() || part == b"." || part == b".." || part.len() > vellum_vfs::NAME_MAX {
            return Err(bad());
        }
    }
    Ok(())
}

/// Our own mark on a file: flags, and where a copied-up file comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OwnMark {
    /// The file shows the inode number `ino`, its origin's.
    pub(crate) origin: bool,
    /// Only attributes have been copied up; the data are the origin's.
    pub(crate) below: bool,
    /// Some blocks of the data are the file's own, as its record says; `below` is set too.
    pub(crate) partial: bool,
    /// A cut is under way; `below` is set too. The record says to which size: a file of that size is whole, any other is as it was before.
    pub(crate) cut: bool,
    /// A user's own character device 0:0, stored as an empty file.
    pub(crate) null_device: bool,
    /// A user's own file whose name looks like an AUFS whiteout.
    pub(crate) literal: bool,
    /// The filesystem of the origin, folded to 32 bits.
    pub(crate) fsid: u32,
    /// The origin's own inode number.
    pub(crate) ino: u64,
    /// The origin's modification time: tells a lower that has changed.
    pub(crate) mtime: Timestamp,
}

/// Length of an encoded [`OwnMark`].
pub(crate) const OWN_LEN: usize = 28;
const OWN_VERSION: u8 = 1;

impl OwnMark {
    /// Whether a cut of its file may have been interrupted. Versions before 0.2 cut to nothing without a word beforehand.
    pub(crate) fn may_be_truncating(&self, attr: &Attr) -> bool {
        self.below && (self.cut || attr.size == 0) && attr.is_file()
    }

    /// The mark as it is stored: version, flags, checksum, fsid, inode number, mtime (little endian).
    pub(crate) fn encode(&self) -> [u8; OWN_LEN] {
        let flags = u8::from(self.origin)
            | u8::from(self.below) << 1
            | u8::from(self.null_device) << 2
            | u8::from(self.literal) << 3
            | u8::from(self.partial) << 4
            | u8::from(self.cut) << 5;
        let mut out = [0u8; OWN_LEN];
        out[0] = OWN_VERSION;
        out[1] = flags;
        out[4..8].copy_from_slice(&self.fsid.to_le_bytes());
        out[8..16].copy_from_slice(&self.ino.to_le_bytes());
        out[16..24].copy_from_slice(&self.mtime.secs.to_le_bytes());
        out[24..28].copy_from_slice(&self.mtime.nanos.to_le_bytes());
        let sum = checksum(&out);
        out[2..4].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads a stored mark. EIO: not a mark that this version knows, or damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = || Error::new(Errno::IO, "damaged vellum.o attribute").damage();
        let raw: [u8; OWN_LEN] = bytes.try_into().map_err(|_| bad())?;
        let mut unsummed = raw;
        unsummed[2..4].fill(0);
        let le32 = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let le64 = |at: usize| u64::from(le32(at)) | u64::from(le32(at + 4)) << 32;
        if raw[0] != OWN_VERSION
            || raw[1] & !0x3f != 0
            || [raw[2], raw[3]] != checksum(&unsummed).to_le_bytes()
        {
            return Err(bad());
        }
        Ok(Self {
            origin: raw[1] & 1 != 0,
            below: raw[1] & 2 != 0,
            null_device: raw[1] & 4 != 0,
            literal: raw[1] & 8 != 0,
            partial: raw[1] & 16 != 0,
            cut: raw[1] & 32 != 0,
            fsid: le32(4),
            ino: le64(8),
            mtime: Timestamp { secs: le64(16) as i64, nanos: le32(24) },
        })
    }
}

/// FNV-1a over the mark with its checksum field zero, folded to 16 bits: against torn or foreign values, not
/// against an attacker.
pub(crate) fn checksum(bytes: &[u8]) -> u16 {
    let hash = bytes.iter().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 16)) as u16
}

/// A filesystem's identity in 32 bits.
pub(crate) const fn fold_fsid(fsid: u64) -> u32 {
    (fsid ^ (fsid >> 32)) as u32
}

/// Whether an error of looking for a mark, or of removing it, says that there is none: or none that may be seen, or could be.
pub(crate) fn is_none(error: &Error) -> bool {
    matches!(error.errno(), Errno::NODATA | Errno::OPNOTSUPP | Errno::PERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_mark_survives_its_encoding(o: bool, b: bool, p: bool, c: bool, n: bool, l: bool, fsid: u32, ino: u64, secs: i64, nanos: u32) {
            let own = OwnMark { origin: o, below: b, partial: p, cut: c, null_device: n, literal: l, fsid, ino, mtime: Timestamp { secs, nanos } };
            prop_assert_eq!(OwnMark::decode(&own.encode()).unwrap(), own);
        }

        #[test]
        fn damage_is_detected_without_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64), at in 0..OWN_LEN, bit in 0..8u8) {
            let _ = OwnMark::decode(&bytes);
            let _ = check_redirect(&bytes);
            let mut raw = OwnMark { origin: true, ino: 7, ..OwnMark::default() }.encode();
            raw[at] ^= 1 << bit;
            prop_assert!(OwnMark::decode(&raw).is_err());
        }
    }

    #[test]
    fn redirects_stay_inside() {
        for good in [&b"/a/b"[..], b"name", b"/x"] {
            assert!(check_redirect(good).is_ok());
        }
        for bad in [&b""[..], b"/", b"a/b", b"/a//b", b"/../x", b"..", b"/a/.", b"/a\0b"] {
            assert!(check_redirect(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn private_attributes_are_hidden() {
        assert!(is_private(b"trusted.overlay.opaque") && is_private(b"user.vellum.o"));
        assert!(!is_private(b"user.comment") && !is_private(b"trusted.overlayx"));
        assert!(escape(c"user.comment").is_none());
        for name in
            [c"trusted.overlay.opaque", c"user.vellum.o", c"trusted.overlay.overlay.x", c"user.overlay."]
        {
            let stored = escape(name).unwrap();
            assert!(!is_private(stored.to_bytes()) && stored.to_bytes() != name.to_bytes());
            assert_eq!(unescape(stored.to_bytes()).concat(), name.to_bytes());
        }
        assert_eq!(&*escape(c"trusted.overlay.opaque").unwrap(), c"trusted.overlay.overlay.opaque");
    }
}
