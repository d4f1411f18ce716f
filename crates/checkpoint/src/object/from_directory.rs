//! An object of what lies in directories already: images, files and a layer that nobody changes.

use super::format::{self, Contents, Index, Piece};
use super::layer::LayerWriter;
use super::map::Map;
use super::sink::{Sink, WriteOptions, WritePipeline};
use super::storage::{ByteSink, Refusal};
use crate::record::Record;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use vellum_service::Failure;

/// Bytes that are moved at once: whole granules.
const PART: usize = 1 << 20;

/// An object of which nothing but its end is missing.
#[derive(Debug)]
pub(crate) struct UnsealedObject<O> {
    out: O,
    index: Index,
    map: Map,
}

/// Makes one of the files in two directories and the layer in a third one. `explain`: why bytes are not taken.
pub(crate) fn write_from_directories<O: ByteSink>(
    out: O,
    how: WriteOptions,
    (images, files, layer): (&Path, &Path, &Path),
    explain: &dyn Fn(&Refusal) -> Failure,
) -> Result<UnsealedObject<O>, Failure> {
    let writing = WritePipeline::begin(out, how).map_err(|e| explain(&Refusal::new(e)))?;
    let sink = writing.sink().clone();
    let put = || {
        let mut packed = LayerWriter::new(layer, sink.clone())?;
        let (images, files) = (directory(images, &sink)?, directory(files, &sink)?);
        packed.final_pass()?;
        Ok(Index { images, files, layer: packed.items().clone() })
    };
    let index = put().map_err(|why| sink.failed().map_or(why, |refusal| explain(&refusal)))?;
    let (out, map) = writing.finish().map_err(|refusal| explain(&refusal))?;
    Ok(UnsealedObject { out, index, map })
}

impl<O: ByteSink> UnsealedObject<O> {
    pub(crate) fn new(out: O, index: Index, map: Map) -> Self {
        Self { out, index, map }
    }

    pub(crate) fn map(&self) -> &Map {
        &self.map
    }

    /// Writes what ends it, and waits until all of it is there.
    pub(crate) fn end(&mut self, record: &Record) -> Result<io::Result<()>, Failure> {
        let tail = format::tail(self.map.stored(), &self.index, &self.map, record)?;
        Ok(self.out.write(&tail, true).and_then(|()| self.out.sync()))
    }

    pub(crate) fn into_out(self) -> O {
        self.out
    }
}

/// Puts the files of a directory, by name, and those of directories in it, by `DIRECTORY/NAME`.
fn directory(dir: &Path, sink: &Sink) -> Result<BTreeMap<String, Contents>, Failure> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(|e| Failure::at(dir, e))? {
        let entry = entry.map_err(|e| Failure::at(dir, e))?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        names.push((entry.file_name().to_string_lossy().into_owned(), is_directory));
    }
    names.sort();
    let mut all = BTreeMap::new();
    for (name, is_directory) in names {
        let path = dir.join(&name);
        if is_directory {
            let within = directory(&path, sink)?.into_iter();
            all.extend(within.map(|(one, contents)| (format!("{name}/{one}"), contents)));
            continue;
        }
        let put = File::open(&path).and_then(|file| file_of(file, sink));
        all.insert(name, put.map_err(|e| Failure::at(&path, e))?);
    }
    Ok(all)
}

fn file_of(mut file: File, sink: &Sink) -> io::Result<Contents> {
    let mut contents = Contents::default();
    let mut buffer = Vec::with_capacity(PART);
    loop {
        buffer.clear();
        let len = (&mut file).take(PART as u64).read_to_end(&mut buffer)? as u64;
        if len == 0 {
            return Ok(contents);
        }
        let from = sink.put(&buffer)?;
        contents.put(Piece { at: contents.size, from, len });
    }
}
