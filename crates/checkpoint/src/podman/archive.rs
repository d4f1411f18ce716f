//! The archive by which podman hands over a container: of what podman itself exports, that which says what the container is; what is in its
//! `/dev/shm`; and where its memory would be, an empty file, for podman looks whether it is there.

use crate::layer_walk::{directory, names};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, openat, readlinkat, statat};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tar::{Archive, Builder, EntryType, Header};

/// What is kept of podman's own archive: its directory of notices, and these files.
const KEPT: [&str; 4] = ["artifacts", "config.dump", "spec.dump", "network.status"];
/// What podman unpacks into `/dev/shm`.
const SHARED: &str = "devshm-checkpoint.tar";
/// What podman looks for.
const MEMORY: [&str; 2] = ["checkpoint/", "checkpoint/inventory.img"];

/// Makes an archive of what podman has exported, and of the tar file `shared`, if it is there.
pub(super) fn write(exported: &Path, shared: Option<&Path>, to: &Path) -> io::Result<()> {
    let mut made = Builder::new(File::create_new(to)?);
    let mut from = Archive::new(File::open(exported)?);
    for entry in from.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let first = path.components().next().map(|first| first.as_os_str().to_owned());
        if first.is_some_and(|first| KEPT.iter().any(|kept| first == *kept)) {
            let mut header = entry.header().clone();
            made.append_data(&mut header, &path, &mut entry)?;
        }
    }
    if let Some(shared) = shared {
        let mut file = File::open(shared)?;
        let mut header = file_header(EntryType::Regular, 0o600);
        header.set_size(file.metadata()?.len());
        made.append_data(&mut header, SHARED, &mut file)?;
    }
    for (path, kind, mode) in
        [(MEMORY[0], EntryType::Directory, 0o700), (MEMORY[1], EntryType::Regular, 0o600)]
    {
        made.append_data(&mut file_header(kind, mode), path, io::empty())?;
    }
    made.into_inner()?.flush()
}

fn file_header(kind: EntryType, mode: u32) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(0);
    header
}

/// One text file of an archive.
pub(super) fn text(archive: &[u8], name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut archive = Archive::new(archive);
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.path()? == Path::new(name) {
            let mut text = Vec::new();
            entry.read_to_end(&mut text)?;
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// Makes a tar file of a directory of shared memory. Nothing may change it meanwhile. Sockets are left out: who has bound one binds it again.
pub(super) fn shared(dir: &Path, to: &Path) -> io::Result<()> {
    let top = rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut walk = Walk { top, made: Builder::new(File::create_new(to)?), first: HashMap::new() };
    let mut dirs = vec![PathBuf::new()];
    while let Some(dir) = dirs.pop() {
        walk.directory(&dir, &mut dirs)?;
    }
    walk.made.into_inner()?.flush()
}

struct Walk {
    top: OwnedFd,
    made: Builder<File>,
    /// Of files with several names the first one.
    first: HashMap<(u64, u64), PathBuf>,
}

impl Walk {
    fn directory(&mut self, path: &Path, dirs: &mut Vec<PathBuf>) -> io::Result<()> {
        let dir = directory(&self.top, path)?;
        for name in names(dir.as_fd())? {
            let path = path.join(&name);
            let stat = statat(&dir, &name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                self.made.append_data(&mut described(&stat, EntryType::Directory), &path, io::empty())?;
                dirs.push(path);
            } else {
                self.entry(&dir, &name, &path, &stat)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, dir: &OwnedFd, name: &OsStr, path: &Path, stat: &Stat) -> io::Result<()> {
        #[allow(clippy::unnecessary_cast, reason = "types differ between architectures")]
        let (number, device) = ((stat.st_dev as u64, stat.st_ino as u64), stat.st_rdev as u64);
        if let Some(first) = self.first.get(&number).filter(|_| stat.st_nlink > 1) {
            return self.made.append_link(&mut described(stat, EntryType::Link), path, first);
        }
        self.first.insert(number, path.to_owned());
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                let flags = vellum_pool::regular_file::FLAGS | OFlags::NOFOLLOW;
                let mut file = vellum_pool::regular_file::checked(openat(dir, name, flags, Mode::empty())?)?;
                file.seek(SeekFrom::Start(0))?;
                let mut header = described(stat, EntryType::Regular);
                header.set_size(u64::try_from(stat.st_size).unwrap_or(0));
                return self.made.append_data(&mut header, path, &mut file);
            }
            FileType::Symlink => {
                let to = readlinkat(dir, name, Vec::new())?;
                let to = Path::new(OsStr::from_bytes(to.as_bytes()));
                return self.made.append_link(&mut described(stat, EntryType::Symlink), path, to);
            }
            FileType::Fifo => EntryType::Fifo,
            FileType::CharacterDevice => EntryType::Char,
            FileType::BlockDevice => EntryType::Block,
            _ => return Ok(()),
        };
        let mut header = described(stat, kind);
        header.set_device_major(rustix::fs::major(device))?;
        header.set_device_minor(rustix::fs::minor(device))?;
        self.made.append_data(&mut header, path, io::empty())
    }
}

fn described(stat: &Stat, kind: EntryType) -> Header {
    let mut header = file_header(kind, stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_archive_has_the_containers_files_without_memory_images() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["bundle/artifacts", "bundle/checkpoint", "shm/deep"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        for name in ["config.dump", "spec.dump", "ctr.log", "checkpoint/pages-1.img", "artifacts/one"] {
            fs::write(at("bundle").join(name), name).unwrap();
        }
        let mut exported = Builder::new(File::create(at("exported")).unwrap());
        exported.append_dir_all("", at("bundle")).unwrap();
        exported.finish().unwrap();
        fs::write(at("shm/deep/words"), "words").unwrap();
        fs::set_permissions(at("shm/deep/words"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::hard_link(at("shm/deep/words"), at("shm/deep/again")).unwrap();
        symlink("deep/words", at("shm/link")).unwrap();
        let _socket = UnixListener::bind(at("shm/socket")).unwrap();
        shared(&at("shm"), &at("shared")).unwrap();
        write(&at("exported"), Some(&at("shared")), &at("made")).unwrap();
        let made = fs::read(at("made")).unwrap();
        let mut archive = Archive::new(made.as_slice());
        let mut paths: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|entry| entry.unwrap().path().unwrap().display().to_string())
            .collect();
        paths.sort();
        let expected = [
            "artifacts",
            "artifacts/one",
            "checkpoint/",
            "checkpoint/inventory.img",
            "config.dump",
            "devshm-checkpoint.tar",
            "spec.dump",
        ];
        assert_eq!(paths.iter().map(|path| path.trim_start_matches("./")).collect::<Vec<_>>(), expected);
        assert_eq!(text(&made, "spec.dump").unwrap().unwrap(), b"spec.dump");
        assert_eq!(text(&made, "ctr.log").unwrap(), None);
        let packed = text(&made, SHARED).unwrap().unwrap();
        Archive::new(packed.as_slice()).unpack(at("out")).unwrap();
        let words = fs::metadata(at("out/deep/words")).unwrap();
        assert_eq!((words.mode() & 0o777, words.nlink()), (0o640, 2));
        assert_eq!(fs::read_to_string(at("out/link")).unwrap(), "words");
        assert!(!at("out/socket").exists());
    }
}
