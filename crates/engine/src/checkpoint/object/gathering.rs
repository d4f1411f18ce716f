//! An object that is being made of a container: its images, its layer, its files, and what ends it.

use super::files::{Files, serve};
use super::format::{Contents, Index, Piece};
use super::lay::Laid;
use super::layer::Packed;
use super::map::Map;
use super::sink::{How, Sink, Writing};
use super::stored::{Out, Refusal};
use crate::checkpoint::apart::Apart;
use crate::checkpoint::delta::{Amount, Upper};
use crate::checkpoint::making::Sizes;
use crate::checkpoint::record::Record;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_service::Failure;

/// What says why bytes are not taken any more.
pub(in crate::checkpoint) type Says = Box<dyn Fn(&Refusal) -> Failure>;

/// What it has come to.
enum Progress<O> {
    Writing(Writing<O>),
    /// All was put.
    Packed(O, Map),
    /// All is there.
    Whole(O),
}

/// An object that is being made.
pub(in crate::checkpoint) struct Gathering<O> {
    mount: Apart,
    files: Arc<Files>,
    layer: Packed,
    etc: BTreeMap<String, Contents>,
    sink: Sink,
    state: Option<Progress<O>>,
    shown: PathBuf,
    says: Says,
}

impl<O: Out> Gathering<O> {
    /// Begins one of the upper layer in a directory. `beside`: a directory where something may be made for a moment. `shown`: what it is called.
    pub(in crate::checkpoint) fn begin(
        out: O,
        how: How,
        (upper, beside): (Upper<'_>, &Path),
        shown: &Path,
        says: Says,
    ) -> Result<Self, Failure> {
        let writing = Writing::begin(out, how).map_err(|e| says(&Refusal::new(e)))?;
        let sink = writing.sink().clone();
        let files = Arc::new(Files::to(sink.clone()));
        Ok(Self {
            mount: serve(&files, beside)?,
            files,
            layer: Packed::new(upper, sink.clone())?,
            etc: BTreeMap::new(),
            sink,
            state: Some(Progress::Writing(writing)),
            shown: shown.to_owned(),
            says,
        })
    }

    /// What failed because nothing more is taken says so.
    fn explained<T>(&self, done: Result<T, Failure>) -> Result<T, Failure> {
        done.map_err(|why| self.sink.failed().map_or(why, |refusal| (self.says)(&refusal)))
    }

    /// The directory that CRIU writes into.
    pub(in crate::checkpoint) fn images(&self) -> &Path {
        self.mount.path()
    }

    /// Takes the upper layer while it is being changed.
    pub(in crate::checkpoint) fn ahead(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.ahead();
        self.explained(done)
    }

    /// Waits until half of what may wait in memory does not.
    pub(in crate::checkpoint) fn room(&self) {
        self.sink.room();
    }

    /// Takes what has changed of it since.
    pub(in crate::checkpoint) fn still(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.still();
        self.explained(done)
    }

    /// Takes a file of this name, if it is there.
    pub(in crate::checkpoint) fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure> {
        let bytes = match fs::read(from) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|e| Failure::at(from, e))?,
        };
        let contents = put(&self.sink, &bytes).map_err(|e| Failure::at(&self.shown, e));
        let contents = self.explained(contents)?;
        self.etc.insert(name.to_owned(), contents);
        Ok(())
    }

    /// Waits until all was written: how much that is.
    pub(in crate::checkpoint) fn sizes(&mut self) -> Result<Sizes, Failure> {
        if let Some(Progress::Writing(writing)) = self.state.take() {
            let (out, map) = writing.finish().map_err(|refusal| (self.says)(&refusal))?;
            self.state = Some(Progress::Packed(out, map));
        }
        let stored = match &self.state {
            Some(Progress::Packed(_, map)) => Some((map.stored(), map.names())),
            _ => None,
        };
        let images = self.files.contents().values().map(|file| file.size).sum();
        let upper = self.layer.items().values().filter_map(|item| item.contents().bytes()).sum();
        Ok(Sizes { images, upper, stored })
    }

    /// Writes what ends it.
    pub(in crate::checkpoint) fn settle(&mut self, record: &Record) -> Result<(), Failure> {
        let Some(Progress::Packed(out, map)) = self.state.take() else {
            return Err(Failure::at(&self.shown, Errno::INVAL));
        };
        let index = Index {
            images: self.files.contents(),
            files: std::mem::take(&mut self.etc),
            layer: self.layer.items().clone(),
        };
        let mut laid = Laid::new(out, index, map);
        laid.end(record)?.map_err(|e| (self.says)(&Refusal::new(e)))?;
        self.state = Some(Progress::Whole(laid.into_out()));
        Ok(())
    }

    /// Where it went. Err: not all of it is there.
    pub(in crate::checkpoint) fn whole(&mut self) -> Result<O, Failure> {
        match self.state.take() {
            Some(Progress::Whole(out)) => Ok(out),
            _ => Err(Failure::at(&self.shown, Errno::INVAL)),
        }
    }

    /// Gives it up. Nothing writes any more afterwards.
    pub(in crate::checkpoint) fn discard(&mut self) {
        self.state = None;
    }
}

/// Puts a file's bytes.
fn put(sink: &Sink, bytes: &[u8]) -> rustix::io::Result<Contents> {
    let (from, len) = (sink.put(bytes)?, bytes.len() as u64);
    let pieces = if len == 0 { Vec::new() } else { vec![Piece { at: 0, from, len }] };
    Ok(Contents { size: len, pieces })
}
