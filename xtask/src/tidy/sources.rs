//! The files of the source tree.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file larger than this is data, not a source.
const SOURCE_MAX_BYTES: u64 = 1 << 20;
/// Directories that hold no sources, where git cannot be asked.
const SKIPPED: &[&str] = &["target", ".git", ".cache", "bench-results"];

/// A text file, by its path from the root of the tree.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The directory of the crate that it belongs to, by the layout of this tree: `crates/x`, `tests`, `xtask`.
    pub(crate) fn crate_dir(&self) -> &str {
        let mut parts = self.path.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some("crates"), Some(name), _) => {
                self.path.get(.."crates/".len() + name.len()).unwrap_or_default()
            }
            (Some(first), Some(_), _) => first,
            _ => "",
        }
    }
}

/// All text files.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) sources: Vec<Source>,
}

impl Tree {
    /// Reads what git tracks or would track; all files where there is no git.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let paths = match git_files(root) {
            Some(paths) => paths,
            None => {
                let mut paths = Vec::new();
                walk(root, Path::new(""), &mut paths)?;
                paths.sort();
                paths
            }
        };
        let mut sources = Vec::new();
        for path in paths {
            let full = root.join(&path);
            // A file that is in the index but was removed, or no file at all.
            let Ok(meta) = full.symlink_metadata() else { continue };
            if !meta.is_file() || meta.len() > SOURCE_MAX_BYTES {
                continue;
            }
            if let Ok(text) = String::from_utf8(std::fs::read(&full)?) {
                sources.push(Source { path: path.to_string_lossy().into_owned(), text });
            }
        }
        Ok(Self { sources })
    }

    pub(crate) fn find(&self, path: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.path == path)
    }
}

fn git_files(root: &Path) -> Option<Vec<PathBuf>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .ok()
        .filter(|output| output.status.success() && !output.stdout.is_empty())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut paths: Vec<PathBuf> = text.split_terminator('\0').map(PathBuf::from).collect();
    paths.sort();
    paths.dedup();
    Some(paths)
}

fn walk(root: &Path, dir: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(dir))? {
        let entry = entry?;
        let name = entry.file_name();
        let path = dir.join(&name);
        if entry.file_type()?.is_dir() {
            if !SKIPPED.iter().any(|skipped| name == *skipped) {
                walk(root, &path, paths)?;
            }
        } else {
            paths.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_are_known_by_their_directories() {
        let of = |path: &str| Source::new(path, "").crate_dir().to_owned();
        assert_eq!(of("crates/sys/src/lib.rs"), "crates/sys");
        assert_eq!(of("crates/sys/Cargo.toml"), "crates/sys");
        assert_eq!(of("xtask/src/main.rs"), "xtask");
        assert_eq!(of("Cargo.toml"), "");
    }

    #[test]
    fn this_tree_can_be_read_with_and_without_git() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert!(Tree::read(root).unwrap().find("xtask/src/tidy/sources.rs").is_some());
        let mut paths = Vec::new();
        walk(&root.join("xtask"), Path::new(""), &mut paths).unwrap();
        assert!(paths.contains(&PathBuf::from("src/main.rs")));
    }
}
