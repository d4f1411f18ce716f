//! Where a pool's service is reached: a socket for the owner, who mounts, and one for programs.
//!
//! The socket for programs lies in a directory of the service's user; a program in a container reaches it where somebody has mounted
//! that there.

use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The sockets of a pool.
#[derive(Debug)]
pub(super) struct Listeners {
    /// For the owner, who mounts.
    pub(super) control: UnixListener,
    /// For programs.
    pub(super) session: UnixListener,
}

/// The directory of the socket for programs, beside the pool's. It is what is mounted into containers: it stays when services, and
/// sockets with them, come and go.
#[must_use]
pub fn directory(socket: &Path) -> PathBuf {
    socket.with_extension("session")
}

/// Where the socket for programs is.
#[must_use]
pub fn path(socket: &Path) -> PathBuf {
    directory(socket).join("socket")
}

/// Makes the directory of the socket for programs, where it is not there yet.
pub fn make_directory(socket: &Path) -> io::Result<()> {
    let dir = directory(socket);
    match dir.symlink_metadata() {
        Ok(there) if there.is_dir() => return Ok(()),
        // Older versions had the socket itself there.
        Ok(_) => fs::remove_file(&dir)?,
        Err(_) => {}
    }
    if let Some(above) = dir.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(above)?;
    }
    match fs::create_dir(&dir) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.and_then(|()| fs::set_permissions(&dir, fs::Permissions::from_mode(0o755))),
    }
}

/// Makes a socket that `mode` lets use, in the place of what an earlier service may have left. It is bound by another name first:
/// whoever finds it can talk to it, and nobody else can at any time.
pub(crate) fn bind_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push("-new");
    let fresh = PathBuf::from(fresh);
    for left in [path, &fresh] {
        match fs::remove_file(left) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    let listener = UnixListener::bind(&fresh)?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(mode))?;
    fs::rename(&fresh, path)?;
    Ok(listener)
}

/// Makes the socket for programs.
pub(super) fn bind(socket: &Path) -> io::Result<UnixListener> {
    make_directory(socket)?;
    let listener = bind_at(&path(socket), 0o666)?;
    // A client that goes away between a look and the accept must not be waited for.
    listener.set_nonblocking(true)?;
    refuse_rights(&listener);
    Ok(listener)
}

/// No program sends descriptors, where the kernel knows how to refuse them.
pub(super) fn refuse_rights(listener: &UnixListener) {
    if let Err(error) = vellum_sys::refuse_rights(listener.as_fd()) {
        tracing::debug!(%error, "programs may send descriptors");
    }
}

/// Whether it takes descriptors or memory to hear a client, who waits until there are some.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_new_socket_replaces_an_old_one() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("p.sock");
        drop(bind(&socket).unwrap());
        let listener = bind(&socket).unwrap();
        let _client = UnixStream::connect(path(&socket)).unwrap();
        assert!(listener.accept().is_ok());
        assert_eq!(fs::metadata(path(&socket)).unwrap().permissions().mode() & 0o777, 0o666);
    }
}
