//! The library that programs in a container may have loaded before their own ones, and the way to the service of their pool.
//!
//! Both are shown below one directory that is a filesystem of its own, so that nothing is written into the image.

use oci_spec::runtime::Mount;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// Names the library; empty: none.
const LIBRARY_VARIABLE: &str = "VELLUM_LIBRARY";
/// The library's name beside the program.
pub const LIBRARY: &str = "libvellum.so";
/// Where packages put it.
const INSTALLED: &str = "/usr/lib/vellum";
/// Where both are in a container.
pub const INSIDE: &str = "/.vellum";
const SOCKET: &str = "socket";
/// Tells the library where the socket is.
const SOCKET_VARIABLE: &str = "VELLUM_SOCKET";

/// What is shown to the container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Preload {
    pub(super) library: Option<PathBuf>,
    pub(super) socket: Option<PathBuf>,
}

impl Preload {
    /// The library that the environment names, or that lies beside `program` or where packages put it; and the `socket`.
    pub(super) fn find(program: &Path, socket: Option<&Path>) -> Result<Self, Failure> {
        let named = std::env::var_os(LIBRARY_VARIABLE).map(PathBuf::from);
        Ok(Self {
            library: library(named, program)?,
            socket: socket.filter(|path| path.exists()).map(Path::to_owned),
        })
    }

    /// What a container goes on with: the library that it had, and a socket, or what is shown in the place of one.
    pub(super) fn restored(library: Option<PathBuf>, socket: Option<PathBuf>) -> Self {
        Self { library, socket }
    }

    /// The mounts that it takes.
    pub(super) fn mounts(&self) -> Vec<Mount> {
        let mut mounts = Vec::new();
        if self.library.is_none() && self.socket.is_none() {
            return mounts;
        }
        mounts.push(super::spec::mount(INSIDE, "tmpfs", "tmpfs", "nosuid,nodev,mode=755,size=64k"));
        for (from, name, options) in [
            (&self.library, LIBRARY, "bind,ro,nosuid,nodev,rprivate"),
            (&self.socket, SOCKET, "bind,nosuid,nodev,noexec,rprivate"),
        ] {
            let from = from.iter().filter_map(|path| path.to_str());
            mounts.extend(
                from.map(|from| super::spec::mount(&format!("{INSIDE}/{name}"), "bind", from, options)),
            );
        }
        mounts
    }

    /// The variables that it takes. A library that somebody else has loaded comes after it.
    pub(super) fn apply(&self, env: &mut Vec<String>) {
        if self.library.is_some() {
            let ours = format!("LD_PRELOAD={INSIDE}/{LIBRARY}");
            match env.iter_mut().find(|one| one.starts_with("LD_PRELOAD=")) {
                Some(theirs) => *theirs = theirs.replacen("LD_PRELOAD=", &format!("{ours}:"), 1),
                None => env.push(ours),
            }
        }
        if self.socket.is_some() {
            env.push(format!("{SOCKET_VARIABLE}={INSIDE}/{SOCKET}"));
        }
    }
}

fn library(named: Option<PathBuf>, program: &Path) -> Result<Option<PathBuf>, Failure> {
    if let Some(named) = named {
        if named.as_os_str().is_empty() {
            return Ok(None);
        }
        let there = named.canonicalize().ok().filter(|path| path.is_file() && path.to_str().is_some());
        let bad = || {
            let shown = named.display();
            Failure::input(format!(
                "variable {LIBRARY_VARIABLE} {shown}: no such file; name the library, or unset it"
            ))
        };
        return there.map(Some).ok_or_else(bad);
    }
    let beside = program.parent().map(|dir| dir.join(LIBRARY));
    let places = beside.into_iter().chain([Path::new(INSTALLED).join(LIBRARY)]);
    Ok(places.into_iter().find(|path| path.is_file() && path.to_str().is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("vellum");
        let beside = dir.path().join(LIBRARY);
        assert_ne!(library(None, &program).unwrap().as_deref(), Some(beside.as_path()));
        std::fs::write(&beside, "").unwrap();
        assert_eq!(library(None, &program).unwrap().as_deref(), Some(beside.as_path()));
        assert_eq!(library(Some(PathBuf::new()), &program).unwrap(), None);
        assert_eq!(library(Some(dir.path().join("missing")), &program).unwrap_err().exit_status(), 2);
    }

    #[test]
    fn a_missing_library_adds_no_mounts() {
        let mut env = vec!["A=b".to_owned()];
        assert_eq!(Preload::default().mounts(), []);
        Preload::default().apply(&mut env);
        assert_eq!(env, ["A=b"]);
        let both = Preload { library: Some("/l/x.so".into()), socket: Some("/run/s".into()) };
        assert_eq!(both.mounts().len(), 3);
        both.apply(&mut env);
        assert_eq!(env, ["A=b", "LD_PRELOAD=/.vellum/libvellum.so", "VELLUM_SOCKET=/.vellum/socket"]);
        let mut theirs = vec!["LD_PRELOAD=/x.so".to_owned()];
        Preload { socket: None, ..both }.apply(&mut theirs);
        assert_eq!(theirs, ["LD_PRELOAD=/.vellum/libvellum.so:/x.so"]);
    }
}
