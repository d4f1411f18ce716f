//! A directory of one command, for what other programs are to find for a moment. What killed commands have left goes with the next one.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use vellum_container::{State, random_name};
use vellum_pool::locked_dir::LockedDir;
use vellum_service::Failure;
use vellum_sys::remove_tree;

/// The directory of those, beside containers.
const NAME: &str = "engines";

/// One. It goes when this is dropped.
#[derive(Debug)]
pub(crate) struct ScratchDir(LockedDir);

impl ScratchDir {
    pub(crate) fn new(state: Option<&Path>) -> Result<Self, Failure> {
        let all = State::open(state)?.directory().join(NAME);
        let failed = |e: std::io::Error| Failure::at(&all, e);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&all).map_err(failed)?;
        for entry in fs::read_dir(&all).map_err(failed)?.flatten() {
            if let Ok(Some(dead)) = LockedDir::adopt(&entry.path()) {
                let _ = remove_tree(dead.path());
            }
        }
        let made = LockedDir::make(&all.join(random_name()?)).map_err(failed)?;
        made.map(Self).ok_or_else(|| Failure::system(format!("{}: somebody has it", all.display())))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        if let Err(e) = remove_tree(self.path()) {
            tracing::warn!("{}: cannot be removed: {e}", self.path().display());
        }
    }
}
