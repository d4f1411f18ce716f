//! The mounts that a process sees, by /proc/PID/mountinfo. No mount is asked.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its id, as statx(2) states it.
    pub id: u64,
    /// Device of its filesystem, as MAJOR:MINOR.
    pub device: String,
    /// The directory of its filesystem that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    pub fs_type: String,
    pub source: Vec<u8>,
    /// Options of the mount, then of the filesystem.
    pub options: [Vec<u8>; 2],
}

impl Mount {
    /// Whether ids are mapped by the mount itself.
    #[must_use]
    pub fn is_idmapped(&self) -> bool {
        self.options[0].split(|byte| *byte == b',').any(|option| option == b"idmapped")
    }
}

/// The mounts of a process (its number, or `self`), in their order. None where they cannot be read.
#[must_use]
pub fn mounts(process: &str) -> Vec<Mount> {
    parse_mounts(&std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default())
}

/// What this process sees at `point`: the topmost mount there.
#[must_use]
pub fn top_mount(point: &Path) -> Option<Mount> {
    mounts("self").into_iter().rfind(|mount| mount.point == point)
}

/// The mounts that the text of a mountinfo lists. Lines that cannot be read are left out.
#[must_use]
pub fn parse_mounts(table: &[u8]) -> Vec<Mount> {
    let mount = |line: &[u8]| {
        // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE OPTIONS
        let mut fields = line.split(|byte| *byte == b' ');
        let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
        let path = |field: &[u8]| PathBuf::from(OsStr::from_bytes(&unescape(field)));
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = text(fields.nth(1)?);
        let root = path(fields.next()?);
        let point = path(fields.next()?);
        let own = fields.next()?.to_vec();
        fields.find(|field| *field == b"-")?;
        let fs_type = text(fields.next()?);
        let source = unescape(fields.next()?);
        let fs = fields.next().unwrap_or_default().to_vec();
        Some(Mount { id, device, root, point, fs_type, source, options: [own, fs] })
    };
    table.split(|byte| *byte == b'\n').filter_map(mount).collect()
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [byte, after @ ..] = rest {
        let (byte, after) = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), after)
            }
            _ => (*byte, after),
        };
        plain.push(byte);
        rest = after;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let table = b"36 35 0:50 / /mnt/a\\040b rw,noatime shared:1 - fuse.vellum over\\134lay rw,user_id=0\nrubbish\n";
        let found = parse_mounts(table);
        assert!(!found[0].is_idmapped());
        assert_eq!(
            found,
            [Mount {
                id: 36,
                device: "0:50".to_owned(),
                root: "/".into(),
                point: "/mnt/a b".into(),
                fs_type: "fuse.vellum".to_owned(),
                source: b"over\\lay".to_vec(),
                options: [b"rw,noatime".to_vec(), b"rw,user_id=0".to_vec()],
            }]
        );
        assert!(top_mount(Path::new("/proc")).is_some_and(|mount| mount.fs_type == "proc"));
    }

    #[test]
    fn only_octal_bytes_are_unescaped() {
        assert_eq!(unescape(br"/a\040b\134"), br"/a b\");
        assert_eq!(unescape(br"\377\477\08x\1"), b"\xff\\477\\08x\\1");
    }
}
