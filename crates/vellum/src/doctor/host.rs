//! The files of the host, as a user sees them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The host as a user sees it. Tests put a directory in place of `/`.
#[derive(Clone, Debug)]
pub(super) struct Host {
    pub(super) root: PathBuf,
    /// The user's number.
    pub(super) uid: u32,
    pub(super) config: Option<PathBuf>,
    pub(super) data: Option<PathBuf>,
    pub(super) path: OsString,
    pub(super) storage_conf: Option<PathBuf>,
}

impl Host {
    pub(super) fn detect() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let home = variable("HOME").map(PathBuf::from);
        let below_home = |name: &str, default: &str| {
            variable(name).map(PathBuf::from).or_else(|| home.as_ref().map(|home| home.join(default)))
        };
        Self {
            root: "/".into(),
            uid: rustix::process::geteuid().as_raw(),
            config: below_home("XDG_CONFIG_HOME", ".config"),
            data: below_home("XDG_DATA_HOME", ".local/share"),
            path: variable("PATH").unwrap_or_default(),
            storage_conf: variable("CONTAINERS_STORAGE_CONF").map(PathBuf::from),
        }
    }

    pub(super) fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// The place of an absolute path.
    pub(super) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        std::fs::read_to_string(self.at(path)).ok()
    }

    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(&self.path).map(|dir| dir.join(name)).find(|path| self.at(path).is_file())
    }

    /// Whether a program is Vellum, by its own name or by that of the file that it is a link to.
    pub(super) fn is_vellum(&self, program: &Path) -> bool {
        let path = self.at(program);
        let path = path.canonicalize().unwrap_or(path);
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vellum"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A host of a few files, of the user `uid`.
    pub(in crate::doctor) fn host(uid: u32, files: &[(&str, &str)]) -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let host = Host {
            root: dir.path().to_owned(),
            uid,
            config: Some("/srv/ann/.config".into()),
            data: Some("/srv/ann/.local/share".into()),
            path: "/usr/bin:/bin".into(),
            storage_conf: None,
        };
        for (path, text) in files {
            let path = host.at(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        (dir, host)
    }
}
