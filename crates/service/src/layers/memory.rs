//! Layers in memory: a second source of layers, by which tests see that services need no directories. Programs for users are built
//! without it.
//!
//! `memory:NAME=TEXT;NAME/NAME=TEXT` is a tree with these files; each process that opens it makes it anew. As an upper layer it has
//! `memory:` as its work directory.

use crate::failure::Failure;
use serde::{Deserialize, Serialize};
use std::ffi::{CString, OsStr};
use std::fmt;
use std::sync::Arc;
use vellum_branch::MemoryBranch;
use vellum_vfs::{Branch, Errno, Name, Result};

/// What names of such layers begin with.
const SCHEME: &str = "memory:";

/// What is in such a layer at first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree(String);

/// An upper layer and its work directory.
type Pair = (Arc<dyn Branch>, Arc<dyn Branch>);

impl Tree {
    pub(crate) fn named(text: &OsStr) -> Option<Self> {
        text.to_str()?.strip_prefix(SCHEME).map(|files| Self(files.to_owned()))
    }

    /// A layer by itself.
    pub(crate) fn branch(&self) -> std::result::Result<Arc<dyn Branch>, Failure> {
        self.build("").map(|(layer, _)| layer).map_err(|e| self.failed(&e))
    }

    /// An upper layer and its work directory, on one disk.
    pub(crate) fn pair(&self) -> std::result::Result<Pair, Failure> {
        let made = self.build("upper").and_then(|(upper, disk)| {
            let work: Arc<dyn Branch> = disk.subtree("work")?;
            Ok((upper, work))
        });
        made.map_err(|e| self.failed(&e))
    }

    fn build(&self, below: &str) -> Result<(Arc<dyn Branch>, Arc<MemoryBranch>)> {
        let disk = MemoryBranch::new();
        let layer = disk.subtree(below)?;
        for file in self.0.split(';').filter(|file| !file.is_empty()) {
            let (path, text) = file.split_once('=').ok_or(Errno::INVAL)?;
            let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
            let name = CString::new(name).map_err(|_| Errno::INVAL)?;
            let file = layer.subtree(dir)?.root().create(Name::new(&name)?, 0o644)?;
            file.write_at(text.as_bytes(), 0)?;
        }
        Ok((layer, disk))
    }

    fn failed(&self, why: &vellum_vfs::Error) -> Failure {
        Failure::input(format!("layer {self}")).because(why).remedy("write memory:NAME=TEXT;NAME=TEXT")
    }
}

impl fmt::Display for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.0)
    }
}
