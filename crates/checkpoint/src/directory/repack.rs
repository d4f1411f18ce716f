//! A checkpoint in a directory becomes one object there, when the container goes on already: CRIU has written its images as files, which mostly are
//! in memory still.

use super::file::{ToFile, create};
use crate::compression::Compress;
use crate::object::{Refusal, UnsealedObject, WriteOptions, tried, write_from_directories};
use crate::options::CheckpointOptions;
use rustix::fs::fdatasync;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;
use vellum_service::Failure;
use vellum_sys::remove_tree;

/// The object's file.
pub(super) const OBJECT: &str = "object";
/// With fewer bytes of images nobody waits for the disk, so that `auto` leaves them as they are.
const LEAST: u64 = 16 << 20;
/// Bytes of which is tried what takes longer, at the most,
const TRIED: u64 = 16 << 20;
/// and how often: a disk that is fast may be slow for a moment. So each has to say that packing is faster.
const TRIES: u64 = 3;

/// Makes an object of the directories `parts` (images, files, the layer) in a checkpoint's directory, and takes them away. None: they stay, for
/// packing them would take longer, or there is no room for both.
pub(super) fn pack(
    dir: &Path,
    parts: [&str; 3],
    images: u64,
    how: WriteOptions,
) -> Result<Option<UnsealedObject<ToFile>>, Failure> {
    let path = dir.join(OBJECT);
    let needed = how.compress != Compress::Auto || how.has_parents();
    if how.compress == Compress::None && !how.has_parents() {
        return Ok(None);
    }
    let paths = parts.map(|part| dir.join(part));
    let is_worth_it = || Ok(images >= LEAST && pays(&paths[0], &path).map_err(|e| Failure::at(&path, e))?);
    if !needed && !is_worth_it()? {
        return Ok(None);
    }
    let to = ToFile::create(&path, None).map_err(|e| Failure::at(&path, e))?;
    let unsealed = unsealed(to, &path, &paths, how, needed)?;
    match &unsealed {
        Some(_) => paths.iter().try_for_each(|path| remove_tree(path).map_err(|e| Failure::at(path, e)))?,
        None => fs::remove_file(&path).map_err(|e| Failure::at(&path, e))?,
    }
    Ok(unsealed)
}

/// Makes an object in one directory of what lies in another one, and stays there. It is packed and written in the manner of the one that needs it.
pub(super) fn again(
    from: &Path,
    to: &Path,
    parts: [&str; 3],
    manner: &CheckpointOptions,
) -> Result<UnsealedObject<ToFile>, Failure> {
    let path = to.join(OBJECT);
    let to = ToFile::create(&path, manner.pace).map_err(|e| Failure::at(&path, e))?;
    let how = WriteOptions { compress: manner.compress, ..WriteOptions::default() };
    let unsealed = unsealed(to, &path, &parts.map(|part| from.join(part)), how, true)?;
    unsealed.ok_or_else(|| Failure::at(&path, Errno::NOSPC))
}

/// Makes an object in a file. None: there is no room for it, and it is not needed.
fn unsealed(
    to: ToFile,
    path: &Path,
    [images, files, layer]: &[PathBuf; 3],
    how: WriteOptions,
    needed: bool,
) -> Result<Option<UnsealedObject<ToFile>>, Failure> {
    let full = std::cell::Cell::new(false);
    let says = |refusal: &Refusal| {
        full.set(refusal.raw_os_error() == Some(Errno::NOSPC.raw_os_error()));
        Failure::system(path.display().to_string()).because(refusal)
    };
    match write_from_directories(to, how, (images, files, layer), &says) {
        Err(_) if full.get() && !needed => Ok(None),
        unsealed => unsealed.map(Some),
    }
}

/// Whether packing the images is faster than writing them as they are: both are tried with parts of the largest one, at `path`.
fn pays(images: &Path, path: &Path) -> io::Result<bool> {
    let mut largest: (u64, PathBuf) = (0, PathBuf::new());
    for (path, meta) in super::images(images)?.into_iter().filter(|(_, meta)| meta.is_file()) {
        largest = largest.max((meta.len(), path));
    }
    let (size, image) = largest;
    let (image, part) = (File::open(image)?, TRIED.min(size / TRIES));
    all_agree(|turn| {
        let mut bytes = vec![0; part as usize];
        // From the middle of each third.
        image.read_exact_at(&mut bytes, size / TRIES * turn + (size / TRIES - part) / 2)?;
        pays_for(&bytes, path)
    })
}

/// Whether each of the tries says so. After one that does not, no other one is made.
fn all_agree(mut says: impl FnMut(u64) -> io::Result<bool>) -> io::Result<bool> {
    for turn in 0..TRIES {
        if !says(turn)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether packing these bytes is faster than writing them to a file at `path`.
fn pays_for(part: &[u8], path: &Path) -> io::Result<bool> {
    let begin = Instant::now();
    let packed = tried(part)?;
    let packing = begin.elapsed();
    let mut file = create(path)?;
    let mut write = |bytes: &[u8]| {
        let begin = Instant::now();
        file.write_all(bytes).and_then(|()| Ok(fdatasync(&file)?)).map(|()| begin.elapsed())
    };
    // What a wait for the disk takes in any case is not how fast it is.
    let written = write(&[0; 4096]).and_then(|wait| Ok(write(part)?.saturating_sub(wait)));
    fs::remove_file(path)?;
    let writing = match written {
        // Where there is no room for a part, there is none for packing.
        Err(e) if Errno::from_io_error(&e) == Some(Errno::NOSPC) => return Ok(false),
        writing => writing?,
    };
    let ratio = packed as f64 / part.len().max(1) as f64;
    let is_faster = faster(packing.as_secs_f64(), ratio, writing.as_secs_f64());
    tracing::info!(?packing, ratio, ?writing, is_faster, "whether packing is faster");
    Ok(is_faster)
}

/// Whether packing is faster: it takes so many seconds, for a part of which this ratio is left; so many it takes to write the part. One thread packs while
/// another one writes. A third is for what comes with it: images are read, and taken away.
fn faster(packing: f64, ratio: f64, writing: f64) -> bool {
    packing.max(writing * ratio) < 0.67 * writing
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ParentGranules;

    #[test]
    fn what_takes_longer_is_not_done() {
        // A disk that takes a second for what is packed in half of one, to a third.
        assert!(faster(0.5, 0.33, 1.0));
        // What does not pack, a slow processor, a fast disk.
        assert!(!faster(0.1, 0.9, 1.0));
        assert!(!faster(1.0, 0.1, 1.0));
        assert!(!faster(0.5, 0.33, 0.1));
    }

    /// One that says no is enough, and the last one that is asked.
    #[test]
    fn a_disk_that_is_slow_once_is_not_slow() {
        let asked = |says: &[bool]| {
            let mut turns = Vec::new();
            let agree = all_agree(|turn| {
                turns.push(turn);
                Ok(says[turn as usize])
            });
            (agree.unwrap(), turns.len())
        };
        assert_eq!(asked(&[true, true, true]), (true, 3));
        assert_eq!(asked(&[false, true, true]), (false, 1));
        assert_eq!(asked(&[true, false, true]), (false, 2));
        assert_eq!(asked(&[true, true, false]), (false, 3));
        assert!(all_agree(|_| Err(io::ErrorKind::Other.into())).is_err());
    }

    fn filled(dir: &Path) {
        for name in ["images", "files", "layer"] {
            fs::create_dir(dir.join(name)).unwrap();
            fs::write(dir.join(name).join("x"), vec![7; 1 << 20]).unwrap();
        }
    }

    #[test]
    fn what_is_not_to_be_packed_stays() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let parts = ["images", "files", "layer"];
        let how = |compress| WriteOptions { compress, known: ParentGranules::default() };
        for compress in [Compress::None, Compress::Auto] {
            assert!(pack(dir.path(), parts, 1 << 20, how(compress)).unwrap().is_none());
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        }
        let unsealed = pack(dir.path(), parts, 1 << 20, how(Compress::Zstd(1))).unwrap().unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(unsealed.map().stored() < 4096);
    }

    #[test]
    fn where_there_is_no_room_what_is_there_stays() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        let paths = ["images", "files", "layer"].map(|part| dir.path().join(part));
        let into_full = |needed| {
            let file = File::options().write(true).open("/dev/full").unwrap();
            let how = WriteOptions { compress: Compress::Auto, known: ParentGranules::default() };
            unsealed(ToFile::Cached(file, 0), Path::new("x"), &paths, how, needed)
        };
        assert!(into_full(false).unwrap().is_none());
        assert!(into_full(true).unwrap_err().to_string().contains("pace"));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_is_tried_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        filled(dir.path());
        pays(&dir.path().join("images"), &dir.path().join("object")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
    }
}
