//! A checkpoint as Vellum 0.2 wrote it into a directory: images, files and the upper layer, each a file. An
//! object is made of them, in a file without a name, and read like any other.

use super::format::{Contents, Index, Piece};
use super::layer::LayerWriter;
use super::object_reader::ObjectReader;
use super::sink::{Sink, WriteOptions, WritePipeline};
use super::storage::{ByteSink, FileSource};
use super::unpack::ObjectBytes;
use crate::compression::Compress;
use crate::record::Record;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use vellum_service::Failure;

/// Bytes that are moved at once: whole granules.
const PART: usize = 1 << 20;

/// The one in a directory. `scratch`: a directory where the object is as long as it is read.
pub(crate) fn from_files(dir: &Path, scratch: &Path) -> Result<ObjectReader, Failure> {
    let failed = |e: io::Error| Failure::at(scratch, e);
    let file = tempfile::tempfile_in(scratch).map_err(failed)?;
    let out = Box::new(ScratchFile(file.try_clone().map_err(failed)?, scratch.to_owned()));
    let how = WriteOptions { compress: Compress::None, ..WriteOptions::default() };
    let writing = WritePipeline::begin(out, how)?;
    let sink = writing.sink();
    let put = || {
        let mut layer = LayerWriter::new(&dir.join("upper"), sink.clone())?;
        layer.final_pass()?;
        let (images, files) = (directory(&dir.join("images"), sink)?, directory(&dir.join("files"), sink)?);
        Ok(Index { images, files, layer: layer.items().clone() })
    };
    let index = put().map_err(|why| sink.failed().unwrap_or(why))?;
    let (_, map) = writing.finish()?;
    let source = Box::new(FileSource::new(file).map_err(failed)?);
    let bytes = ObjectBytes::new((source, &map), Vec::new());
    let bytes = bytes.ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
    Ok(ObjectReader::of(index, bytes, &dir.display().to_string()))
}

/// A file without a name.
struct ScratchFile(File, PathBuf);

impl ByteSink for ScratchFile {
    fn write(&mut self, bytes: &[u8], _: bool) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn explain(&self, error: &io::Error) -> Failure {
        Failure::system(self.1.display().to_string()).because(error)
    }

    fn sync(&mut self, _: &Record) -> Result<(), Failure> {
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<PathBuf, Failure> {
        Ok(self.1)
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
        let put = vellum_pool::regular_file::open(&path).and_then(|file| put_file(file, sink));
        all.insert(name, put.map_err(|e| Failure::at(&path, e))?);
    }
    Ok(all)
}

/// Puts a file in parts, so that little of it is in memory at a time.
pub(super) fn put_file(mut file: File, sink: &Sink) -> io::Result<Contents> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::layer::tests::listing;
    use std::os::unix::fs::symlink;
    use vellum_container::SavedContainer;

    #[test]
    fn what_an_earlier_version_wrote_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let (old, to) = (dir.path().join("old"), dir.path().join("to"));
        for path in ["images/parent", "files", "upper/dir"] {
            fs::create_dir_all(old.join(path)).unwrap();
        }
        fs::create_dir(&to).unwrap();
        let pages: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 100) as u8).collect();
        fs::write(old.join("images/pages-1.img"), &pages).unwrap();
        fs::write(old.join("images/parent/pagemap-1.img"), "map").unwrap();
        fs::write(old.join("files/hosts"), "localhost").unwrap();
        fs::write(old.join("upper/dir/file"), "words").unwrap();
        fs::hard_link(old.join("upper/dir/file"), old.join("upper/other")).unwrap();
        symlink("other", old.join("upper/link")).unwrap();
        let reader = from_files(&old, dir.path()).unwrap();
        assert_eq!(reader.file("hosts").unwrap().as_deref(), Some(&b"localhost"[..]));
        assert_eq!(reader.file("hostname").unwrap(), None);
        reader.upper(&to).unwrap();
        assert_eq!(listing(&to), listing(&old.join("upper")));
        let image = |name: &str| reader.image(name).unwrap();
        assert!(image("pages-1.img") == pages && image("parent/pagemap-1.img") == b"map");
        // Of the object nothing is left but what is open.
        let names = fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name());
        assert_eq!(names.count(), 2);
    }

    #[test]
    fn a_scratch_directory_without_room_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("upper")).unwrap();
        let why = from_files(dir.path(), Path::new("/x/scratch")).unwrap_err().to_string();
        assert!(why.contains("/x/scratch"), "{why}");
    }
}
