//! Directories and files of the host in a container: `SRC:DST[:ro]`.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// What is shown where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Volume {
    /// On the host; absolute, without symbolic links.
    pub(super) from: PathBuf,
    /// In the container; absolute.
    pub(super) to: PathBuf,
    /// Whether it can only be read there.
    pub(super) read_only: bool,
}

impl Volume {
    /// Where it is on the host.
    pub(super) fn source(&self) -> &Path {
        &self.from
    }

    /// Whether it still is.
    pub(super) fn exists(&self) -> bool {
        self.from.symlink_metadata().is_ok()
    }

    /// Reads the value of `--volume`.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let bad = |why: &str| Failure::input(format!("option --volume {text}: {why}"));
        let mut words = text.split(':');
        let (Some(from), Some(to), options, None) = (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad("give SRC:DST or SRC:DST:ro"));
        };
        if from.is_empty() {
            return Err(bad("no source; give a path of this host"));
        }
        let to = Path::new(to);
        let above = to.components().any(|part| part == std::path::Component::ParentDir);
        if !to.is_absolute() || to == Path::new("/") || above {
            return Err(bad(
                "the place in the container has to be an absolute path other than / and without ..",
            ));
        }
        let read_only = match options {
            None | Some("rw") => false,
            Some("ro") => true,
            Some(_) => return Err(bad("after the second colon there can be ro or rw only")),
        };
        let failed = |e| Failure::input(format!("option --volume {text}")).because(e).remedy("make it first");
        let from = Path::new(from).canonicalize().map_err(failed)?;
        if from.to_str().is_none() {
            return Err(bad("the path has to be UTF-8"));
        }
        Ok(Self { from, to: to.to_owned(), read_only })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_source_place_and_option() {
        let dir = tempfile::tempdir().unwrap();
        let from = dir.path().canonicalize().unwrap();
        let shown = from.display();
        for (text, to, read_only) in [
            (format!("{shown}:/a/b"), "/a/b", false),
            (format!("{shown}/.:/a:ro"), "/a", true),
            (format!("{shown}:/a:rw"), "/a", false),
        ] {
            let volume = Volume { from: from.clone(), to: to.into(), read_only };
            assert_eq!(Volume::parse(&text), Ok(volume));
        }
        let there = |rest: &str| format!("{shown}{rest}");
        for bad in [
            "".into(),
            "x".into(),
            ":/a".into(),
            there(""),
            there(":"),
            there(":a"),
            there(":/"),
            there(":/a:z"),
            there(":/a:ro:x"),
            there(":/a/../b"),
            there("/nothing:/a"),
        ] {
            let failure = Volume::parse(&bad).unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains("--volume"), "{failure}");
        }
    }
}
