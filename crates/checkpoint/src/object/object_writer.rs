//! An object that is being made of a container: its images, its layer, its files, and what ends it.

use super::format::{Contents, Index, Piece};
use super::from_directory::UnsealedObject;
use super::image_files::{Files, serve};
use super::layer::LayerWriter;
use super::map::Map;
use super::sink::{Sink, WriteOptions, WritePipeline};
use super::storage::{ByteSink, Refusal};
use crate::delta::{Amount, Upper};
use crate::detached_mount::DetachedMount;
use crate::record::Record;
use crate::writer::Sizes;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_service::Failure;

/// What says why bytes are not taken any more.
pub(crate) type ExplainRefusal = Box<dyn Fn(&Refusal) -> Failure>;

/// What it has come to.
enum Progress<O> {
    Writing(WritePipeline<O>),
    /// All was put.
    Packed(O, Map),
    Whole(O),
}

/// An object that is being made.
pub(crate) struct ObjectWriter<O> {
    mount: DetachedMount,
    files: Arc<Files>,
    layer: LayerWriter,
    etc: BTreeMap<String, Contents>,
    sink: Sink,
    state: Option<Progress<O>>,
    display: PathBuf,
    explain: ExplainRefusal,
}

impl<O: ByteSink> ObjectWriter<O> {
    /// Begins one of the upper layer in a directory. `scratch`: a directory where something may be made for a moment. `display`: what it is called.
    pub(crate) fn begin(
        out: O,
        how: WriteOptions,
        (upper, scratch): (Upper<'_>, &Path),
        display: &Path,
        explain: ExplainRefusal,
    ) -> Result<Self, Failure> {
        let writing = WritePipeline::begin(out, how).map_err(|e| explain(&Refusal::new(e)))?;
        let sink = writing.sink().clone();
        let files = Arc::new(Files::to(sink.clone()));
        Ok(Self {
            mount: serve(&files, scratch)?,
            files,
            layer: LayerWriter::new(upper, sink.clone())?,
            etc: BTreeMap::new(),
            sink,
            state: Some(Progress::Writing(writing)),
            display: display.to_owned(),
            explain,
        })
    }

    /// What failed because nothing more is taken says so.
    fn explained<T>(&self, done: Result<T, Failure>) -> Result<T, Failure> {
        done.map_err(|why| self.sink.failed().map_or(why, |refusal| (self.explain)(&refusal)))
    }

    /// The directory that CRIU writes into.
    pub(crate) fn images(&self) -> &Path {
        self.mount.path()
    }

    /// Takes the upper layer while it is being changed.
    pub(crate) fn first_pass(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.first_pass();
        self.explained(done)
    }

    /// Waits until half of what may wait in memory does not.
    pub(crate) fn wait_for_space(&self) {
        self.sink.wait_for_space();
    }

    /// Takes what has changed of it since.
    pub(crate) fn final_pass(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.final_pass();
        self.explained(done)
    }

    /// Takes a file of this name, if it is there.
    pub(crate) fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure> {
        let bytes = match fs::read(from) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            read => read.map_err(|e| Failure::at(from, e))?,
        };
        let contents = put(&self.sink, &bytes).map_err(|e| Failure::at(&self.display, e));
        let contents = self.explained(contents)?;
        self.etc.insert(name.to_owned(), contents);
        Ok(())
    }

    /// Waits until all was written: how much that is.
    pub(crate) fn sizes(&mut self) -> Result<Sizes, Failure> {
        if let Some(Progress::Writing(writing)) = self.state.take() {
            let (out, map) = writing.finish().map_err(|refusal| (self.explain)(&refusal))?;
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
    pub(crate) fn sync(&mut self, record: &Record) -> Result<(), Failure> {
        let Some(Progress::Packed(out, map)) = self.state.take() else {
            return Err(Failure::at(&self.display, Errno::INVAL));
        };
        let index = Index {
            images: self.files.contents(),
            files: std::mem::take(&mut self.etc),
            layer: self.layer.items().clone(),
        };
        let mut unsealed = UnsealedObject::new(out, index, map);
        unsealed.end(record)?.map_err(|e| (self.explain)(&Refusal::new(e)))?;
        self.state = Some(Progress::Whole(unsealed.into_out()));
        Ok(())
    }

    /// Where it went. Err: not all of it is there.
    pub(crate) fn take_sink(&mut self) -> Result<O, Failure> {
        match self.state.take() {
            Some(Progress::Whole(out)) => Ok(out),
            _ => Err(Failure::at(&self.display, Errno::INVAL)),
        }
    }

    /// Gives it up. Nothing writes any more afterwards.
    pub(crate) fn discard(&mut self) {
        self.state = None;
    }
}

/// Puts a file's bytes.
fn put(sink: &Sink, bytes: &[u8]) -> rustix::io::Result<Contents> {
    let (from, len) = (sink.put(bytes)?, bytes.len() as u64);
    let pieces = if len == 0 { Vec::new() } else { vec![Piece { at: 0, from, len }] };
    Ok(Contents { size: len, pieces })
}
