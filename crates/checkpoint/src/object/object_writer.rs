//! A checkpoint that is being made: an object of a container's images, its layer and its files, on its way to a [`ByteSink`].

use super::format::{self, Contents, Index};
use super::from_files::put_file;
use super::image_files::{Files, serve};
use super::layer::LayerWriter;
use super::map::Map;
use super::sink::{WriteOptions, WritePipeline};
use super::storage::ByteSink;
use crate::detached_mount::DetachedMount;
use crate::layer_walk::{Amount, Upper};
use crate::record::Record;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use vellum_service::Failure;

/// Bytes of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) images: u64,
    /// Of the upper layer, as far as they are its own.
    pub(crate) upper: u64,
    /// What both take where they are.
    pub(crate) stored: u64,
    /// The checkpoints that have the rest, the nearest first.
    pub(crate) parents: Vec<String>,
}

/// How far it has come.
enum Progress {
    Writing(WritePipeline),
    /// All was put.
    Packed(Box<dyn ByteSink>, Map),
}

/// A checkpoint that is being made. When it is dropped without [`finish`](Self::finish), it was none.
pub(crate) struct ObjectWriter {
    mount: DetachedMount,
    files: Arc<Files>,
    layer: LayerWriter,
    etc: BTreeMap<String, Contents>,
    /// None: it has failed.
    progress: Option<Progress>,
    unfinished: PathBuf,
}

impl ObjectWriter {
    /// Begins one of the upper layer in a directory. `scratch`: a directory where something may be made for a moment.
    pub(crate) fn begin(
        out: Box<dyn ByteSink>,
        how: WriteOptions,
        upper: Upper<'_>,
        scratch: &Path,
    ) -> Result<Self, Failure> {
        // There never is such a path.
        let unfinished = out.unfinished().unwrap_or_else(|| scratch.join("unfinished"));
        let writing = WritePipeline::begin(out, how)?;
        let sink = writing.sink().clone();
        let files = Arc::new(Files::to(sink.clone()));
        Ok(Self {
            mount: serve(&files, scratch)?,
            files,
            layer: LayerWriter::new(upper, sink)?,
            etc: BTreeMap::new(),
            progress: Some(Progress::Writing(writing)),
            unfinished,
        })
    }

    /// The directory that CRIU writes into.
    pub(crate) fn images(&self) -> &Path {
        self.mount.path()
    }

    /// A path that is to be removed, and nothing else, when this process is killed.
    pub(crate) fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// Takes the upper layer while it is being changed.
    pub(crate) fn first_pass(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.first_pass();
        self.explained(done)
    }

    /// Takes what has changed of it since. Nothing changes it any more.
    pub(crate) fn final_pass(&mut self) -> Result<Amount, Failure> {
        let done = self.layer.final_pass();
        self.explained(done)
    }

    /// Waits until half of what may wait in memory does not: there is room for what comes while the container stands still.
    pub(crate) fn wait_for_space(&self) {
        if let Some(Progress::Writing(writing)) = &self.progress {
            writing.sink().wait_for_space();
        }
    }

    /// Takes a file of this name, if it is there.
    pub(crate) fn file(&mut self, name: &str, from: &Path) -> Result<(), Failure> {
        let file = match File::open(from) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(|e| Failure::at(from, e))?,
        };
        let Some(Progress::Writing(writing)) = &self.progress else { return Err(complete()) };
        let put = put_file(file, writing.sink()).map_err(|e| Failure::at(from, e));
        let contents = self.explained(put)?;
        self.etc.insert(name.to_owned(), contents);
        Ok(())
    }

    /// What failed because nothing more is taken says so.
    fn explained<T>(&self, done: Result<T, Failure>) -> Result<T, Failure> {
        let Some(Progress::Writing(writing)) = &self.progress else { return done };
        done.map_err(|why| writing.sink().failed().unwrap_or(why))
    }

    /// All has been taken, the container may go on. Waits until it was written: how much that is.
    pub(crate) fn sizes(&mut self) -> Result<Sizes, Failure> {
        let Some(Progress::Writing(writing)) = self.progress.take() else { return Err(complete()) };
        let (out, map) = writing.finish()?;
        let images = self.files.contents().values().map(|file| file.size).sum();
        let upper = self.layer.items().values().filter_map(|item| item.contents().bytes()).sum();
        let sizes = Sizes { images, upper, stored: map.stored(), parents: map.names() };
        self.progress = Some(Progress::Packed(out, map));
        Ok(sizes)
    }

    /// Writes what ends it, and waits until all of it is where it stays, the record too.
    pub(crate) fn sync(&mut self, record: &Record) -> Result<(), Failure> {
        let Some(Progress::Packed(out, map)) = &mut self.progress else { return Err(complete()) };
        let (images, files) = (self.files.contents(), std::mem::take(&mut self.etc));
        let index = Index { images, files, layer: self.layer.items().clone() };
        let tail = format::tail(map.stored(), &index, map, record)?;
        out.write(&tail, true).map_err(|e| out.explain(&e))?;
        out.sync(record)
    }

    /// Gives it its name, durably, in place of an older one. Where it is.
    pub(crate) fn finish(self) -> Result<PathBuf, Failure> {
        match self.progress {
            Some(Progress::Packed(out, _)) => out.commit(),
            _ => Err(complete()),
        }
    }
}

fn complete() -> Failure {
    Failure::system("a checkpoint takes nothing more")
}
