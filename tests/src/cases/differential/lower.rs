//! Random layers to put below, the same from the same seed.

use super::ops;
use crate::harness::{Layers, Outcome, Rng};
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Most objects of one layer.
const OBJECTS: u64 = 30;

/// Fills the lowers, the bottom one first.
pub(super) fn fill(layers: &Layers, rng: &mut Rng) -> Outcome {
    let mut below = BTreeSet::new();
    for (depth, dir) in layers.lowers.iter().rev().enumerate() {
        // In the topmost layer alone, nothing hides one name of a file and leaves the others: what the number of
        // links is then, is a matter of taste.
        let links = depth + 1 == layers.lowers.len();
        layer(dir, &mut below, links, rng)?;
    }
    Ok(())
}

/// `below` are the paths that the layers below show. A whiteout is only made of one of them: kernel overlayfs lists
/// a whiteout that hides nothing.
fn layer(root: &Path, below: &mut BTreeSet<PathBuf>, links: bool, rng: &mut Rng) -> Outcome {
    let mut gone: BTreeSet<PathBuf> = BTreeSet::new();
    let mut opaque: BTreeSet<PathBuf> = BTreeSet::new();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut all: Vec<PathBuf> = vec![root.to_owned()];
    for _ in 0..rng.below(OBJECTS) + 5 {
        let name = ops::path(rng);
        // Every choice is made before anything can go wrong, so that both sides draw the same numbers.
        let kind = rng.below(20);
        let (number, data) = (rng.next(), {
            let len = ops::amount(rng) as usize;
            rng.bytes(len)
        });
        let path = root.join(&name);
        if fs::symlink_metadata(&path).is_ok() || !make_parents(root, &path, &mut all) {
            continue;
        }
        match kind {
            0..=7 => {
                fs::write(&path, &data)?;
                files.push(path.clone());
            }
            8..=12 => fs::create_dir(&path)?,
            13 => symlink(["a", "b/c", "nowhere", "d/e/f"][(number % 4) as usize], &path)?,
            14 => rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o644), 0)?,
            15 => {
                let dev = rustix::fs::makedev(61, 7);
                rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::from_raw_mode(0o600), dev)?;
            }
            16 if links && !files.is_empty() => {
                let from = &files[(number % files.len() as u64) as usize];
                fs::hard_link(from, &path)?;
            }
            17 | 18
                if below.contains(Path::new(&name)) && !opaque.iter().any(|dir| path.starts_with(dir)) =>
            {
                // A whiteout.
                rustix::fs::mknodat(CWD, &path, FileType::CharacterDevice, Mode::empty(), 0)?;
                gone.insert(name.into());
                continue;
            }
            19 if !below.is_empty() => {
                fs::create_dir(&path)?;
                opaque.insert(path.clone());
                rustix::fs::lsetxattr(&path, "trusted.overlay.opaque", b"y", XattrFlags::empty())?;
            }
            _ => {
                let file = fs::File::create(&path)?;
                // Mostly a hole.
                file.set_len(100_000)?;
                rustix::io::pwrite(&file, &data, 50_000)?;
                files.push(path.clone());
            }
        }
        dress(&path, number)?;
        all.push(path);
    }
    for path in all.iter().filter_map(|path| path.strip_prefix(root).ok()) {
        let is_dir = fs::symlink_metadata(root.join(path))?.is_dir();
        if !is_dir || opaque.contains(&root.join(path)) {
            gone.insert(path.to_owned());
        }
    }
    below.retain(|path| !gone.iter().any(|gone| path.starts_with(gone)));
    below.extend(all.iter().filter_map(|path| path.strip_prefix(root).ok()).map(Path::to_owned));
    // Times last, the deepest first, since making an entry changes those of its directory.
    all.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    for (at, path) in all.iter().enumerate() {
        let time = Timespec { tv_sec: 1_000_000_000 + at as i64 * 1000, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    Ok(())
}

fn make_parents(root: &Path, path: &Path, all: &mut Vec<PathBuf>) -> bool {
    let Some(parent) = path.parent() else { return false };
    if parent == root || fs::symlink_metadata(parent).is_ok_and(|meta| meta.is_dir()) {
        return true;
    }
    if fs::symlink_metadata(parent).is_ok() || !make_parents(root, parent, all) {
        return false;
    }
    all.push(parent.to_owned());
    fs::create_dir(parent).is_ok()
}

/// Owner, mode and attributes that `number` decides.
fn dress(path: &Path, number: u64) -> Outcome {
    let meta = fs::symlink_metadata(path)?;
    if number.is_multiple_of(3) {
        let id = Uid::from_raw(ops::USER);
        rustix::fs::chownat(CWD, path, Some(id), Some(Gid::from_raw(ops::USER)), AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if meta.file_type().is_symlink() {
        return Ok(());
    }
    if number.is_multiple_of(5) {
        let mode = [0o600, 0o777, 0o4755, 0o2755, 0o1777][(number / 5 % 5) as usize];
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    if (meta.is_file() || meta.is_dir()) && number.is_multiple_of(7) {
        rustix::fs::lsetxattr(path, "user.one", &number.to_le_bytes(), XattrFlags::empty())?;
        rustix::fs::lsetxattr(path, "trusted.three", b"below", XattrFlags::empty())?;
    }
    if meta.is_file() && number.is_multiple_of(11) {
        rustix::fs::lsetxattr(path, "system.posix_acl_access", &ops::ACL, XattrFlags::empty())?;
    }
    Ok(())
}
