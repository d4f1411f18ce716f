//! The directory that is mounted on. It is resolved before the mount and never again: afterwards the path leads to
//! ourselves.

use crate::failure::Failure;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The kernel's type of our mounts.
pub const FS_TYPE: &str = "fuse.vellum";

/// The absolute path of `path`, without symbolic links. A mount of ours whose service is dead is taken away first.
pub fn resolve(path: &Path) -> Result<PathBuf, Failure> {
    match directory(path) {
        Err(e) if is_dead(&e) => {
            remove_dead(path)?;
            directory(path).map_err(|e| refused(path, &e))
        }
        other => other.map_err(|e| refused(path, &e)),
    }
}

/// Whether an error says that a mount's service has died, before the question or while it was being answered.
#[must_use]
pub fn is_dead(e: &io::Error) -> bool {
    let errno = rustix::io::Errno::from_io_error(e);
    matches!(errno, Some(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
}

fn directory(path: &Path) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    if !path.metadata()?.is_dir() {
        return Err(rustix::io::Errno::NOTDIR.into());
    }
    Ok(path)
}

fn refused(path: &Path, e: &io::Error) -> Failure {
    let shown = path.display();
    match e.kind() {
        io::ErrorKind::NotFound => {
            Failure::input(format!("mount point {shown}: no such directory; create it first"))
        }
        io::ErrorKind::NotADirectory => {
            Failure::input(format!("mount point {shown}: not a directory; give one"))
        }
        _ if is_dead(e) => Failure::system(format!(
            "mount point {shown}: a mount whose service has died is in the way; run umount {shown}"
        )),
        _ => Failure::input(format!("mount point {shown}"))
            .because(e)
            .remedy("give a directory that can be entered"),
    }
}

fn remove_dead(path: &Path) -> Result<(), Failure> {
    let at = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let found = mounts(&table).filter(|mount| mount.point == at).last();
    let e = rustix::io::Errno::NOTCONN.into();
    match found {
        Some(mount) if mount.fs_type == FS_TYPE.as_bytes() => {
            tracing::warn!(mountpoint = %at.display(), "taking away a mount whose service has died");
            crate::mounts::unmount::unmount(&at, true)
        }
        _ => Err(refused(path, &e)),
    }
}

/// A line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its id, as statx(2) states it.
    pub id: u64,
    /// Device of its filesystem, as MAJOR:MINOR.
    pub device: Vec<u8>,
    /// The directory of its filesystem that is mounted.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Its filesystem's type.
    pub fs_type: Vec<u8>,
    pub source: Vec<u8>,
    /// Options of the mount, then of the filesystem.
    pub options: [Vec<u8>; 2],
}

/// The mounts that the text of /proc/PID/mountinfo lists, in their order; lines that cannot be read are left out.
pub fn mounts(table: &[u8]) -> impl Iterator<Item = Mount> + '_ {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        // ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [FIELDS...] - TYPE SOURCE OPTIONS
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = fields.nth(1)?.to_vec();
        let root = path(fields.next()?);
        let point = path(fields.next()?);
        let own = fields.next()?.to_vec();
        fields.find(|field| *field == b"-")?;
        let fs_type = fields.next()?.to_vec();
        let source = unescape(fields.next()?);
        let fs = fields.next().unwrap_or_default().to_vec();
        Some(Mount { id, device, root, point, fs_type, source, options: [own, fs] })
    })
}

impl Mount {
    /// Whether ids are mapped by the mount itself.
    #[must_use]
    pub fn is_idmapped(&self) -> bool {
        self.options[0].split(|byte| *byte == b',').any(|option| option == b"idmapped")
    }
}

fn path(field: &[u8]) -> PathBuf {
    std::ffi::OsStr::from_bytes(&unescape(field)).into()
}

/// The kernel writes blanks and backslashes as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, after)) = rest.split_first() {
        let octal = match (byte, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        plain.push(octal.unwrap_or(*byte));
        rest = if octal.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    plain
}

/// Where the FUSE filesystems are mounted whose connections a process (its number, or `self`) holds: by the numbers of the connections,
/// which are those of the devices. In the order, and by the names, in which the process sees them: it may be in another mount
/// namespace.
#[must_use]
pub fn held_by(process: &str) -> Vec<PathBuf> {
    let connections = connections_of(process);
    let table = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
    mounts(&table).filter(|mount| connections.contains(&mount.device)).map(|mount| mount.point).collect()
}

/// The FUSE connections that a process holds, as the devices that their filesystems have.
pub(super) fn connections_of(process: &str) -> Vec<Vec<u8>> {
    let held = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
    let texts = held.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
    let device = |text: String| {
        let number = text.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?;
        Some(format!("0:{}", number.trim()).into_bytes())
    };
    texts.filter_map(device).collect()
}

/// Waits until a process has closed its last descriptor of the connection with this number, but not for ever: false then.
#[must_use]
pub fn is_let_go(process: u32, connection: &str, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let is_it = |text: String| {
        text.lines().any(|line| line.strip_prefix("fuse_connection:").is_some_and(|n| n.trim() == connection))
    };
    loop {
        let held = std::fs::read_dir(format!("/proc/{process}/fdinfo")).into_iter().flatten().flatten();
        if !held.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).any(is_it) {
            return true;
        }
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let table = b"36 35 0:50 / /mnt/a\\040b rw,noatime shared:1 - fuse.vellum over\\134lay rw,user_id=0\nrubbish\n";
        let found: Vec<_> = mounts(table).collect();
        assert!(!found[0].is_idmapped());
        assert_eq!(
            found,
            [Mount {
                id: 36,
                device: b"0:50".to_vec(),
                root: "/".into(),
                point: "/mnt/a b".into(),
                fs_type: b"fuse.vellum".to_vec(),
                source: b"over\\lay".to_vec(),
                options: [b"rw,noatime".to_vec(), b"rw,user_id=0".to_vec()],
            }]
        );
    }

    #[test]
    fn what_is_no_directory_is_bad_input() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for (path, word) in [(dir.path().join("missing/x"), "create it"), (file, "not a directory")] {
            let failure = resolve(&path).unwrap_err();
            assert_eq!(failure.exit_status(), 2);
            assert!(failure.to_string().contains(word), "{failure}");
        }
    }
}
