//! A library that goes into no checkpoint, for the container sees it from outside: the very file has to be there again, for what CRIU keeps of
//! it are addresses.

use super::library::{LIBRARY_MAX, Library, digest};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// The library that programs of a container have loaded, where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalLibrary {
    /// On the host.
    pub source: PathBuf,
    /// `sha256` of it, in digits.
    pub digest: String,
}

impl ExternalLibrary {
    /// That of a container that sees `mounts`, each with its place and what of the host is there. None: it is in the container's own tree.
    pub(crate) fn from_mounts<'a>(
        library: &Library,
        mounts: impl Iterator<Item = (&'a Path, &'a Path)>,
    ) -> Option<Self> {
        let over = mounts.filter_map(|(to, from)| Some((to, from, library.place().strip_prefix(to).ok()?)));
        let (_, from, rest) = over.max_by_key(|(to, ..)| to.components().count())?;
        let source = if rest.as_os_str().is_empty() { from.to_owned() } else { from.join(rest) };
        Some(Self { source, digest: library.digest().to_owned() })
    }

    /// Refuses if it is not there, or is another one.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        let read = vellum_pool::regular_file::open(&self.source)
            .and_then(|file| file.take(LIBRARY_MAX).read_to_end(&mut bytes));
        let why = match read {
            Err(_) => "is not there",
            Ok(_) if digest(&bytes) != self.digest => "is another one now",
            Ok(_) => return Ok(()),
        };
        Err(Failure::input(format!("its programs have {} loaded, which {why}", self.source.display()))
            .remedy("put back the very file that it was"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_library_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let needed = ExternalLibrary { source: dir.path().join("libvellum.so"), digest: digest(b"words") };
        let refused = |word: &str| {
            let failure = needed.check().unwrap_err();
            assert!(failure.exit_status() == 2 && failure.to_string().contains(word), "{failure}");
        };
        refused("is not there");
        std::fs::write(&needed.source, "other").unwrap();
        refused("is another one");
        std::fs::write(&needed.source, "words").unwrap();
        assert_eq!(needed.check(), Ok(()));
    }
}
