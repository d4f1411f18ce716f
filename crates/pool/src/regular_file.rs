//! Opening files that somebody else has put there: a pipe has nobody wait for its other end, and a device is none.

use rustix::fs::{FileType, Mode, OFlags, fstat, open as open_at};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// With these no open waits, and none makes a terminal this process's own.
pub const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a regular file to read.
pub fn open(path: &Path) -> io::Result<File> {
    checked(open_at(path, FLAGS, Mode::empty())?)
}

/// What has been opened with [`FLAGS`], if it is a regular file.
pub fn checked(file: OwnedFd) -> io::Result<File> {
    match FileType::from_raw_mode(fstat(file.as_fd())?.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        FileType::Directory => Err(io::Error::other("a directory, and no regular file")),
        _ => Err(io::Error::other("not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mknodat};

    #[test]
    fn only_regular_files_are_opened_without_blocking() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("file"), "words").unwrap();
        assert_eq!(io::read_to_string(open(&path("file")).unwrap()).unwrap(), "words");
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        for bad in [path("pipe"), path("socket"), path("nothing"), dir.path().into(), "/dev/zero".into()] {
            assert!(open(&bad).is_err(), "{}", bad.display());
        }
    }
}
