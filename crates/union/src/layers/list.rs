//! The names of a directory in all layers, merged.

use crate::layers::Layers;
use crate::layers::layer::c_string;
use crate::layers::marks::{OPAQUE_NAME, WHITEOUT_PREFIX};
use crate::layers::sidecar::MAPS;
use crate::nodes::listing::Listing;
use crate::nodes::node::Dir;
use std::collections::HashSet;
use std::ffi::CStr;
use vellum_vfs::{BranchDir, Errno, FileKind, Name, Result};

/// A name and its kind and number, as one part of a directory has it.
struct Item {
    name: Box<CStr>,
    ino: u64,
    kind: Option<FileKind>,
}

/// Whether there is nothing in a directory of a layer, not even a whiteout.
pub(crate) fn holds_nothing(dir: &dyn BranchDir) -> Result<bool> {
    let mut empty = true;
    dir.list(&mut |_| {
        empty = false;
        Ok(())
    })?;
    Ok(empty)
}

impl Layers {
    /// Lists a directory's names, unless that has been done and they are the same. The caller holds its `ops`.
    pub(crate) fn ensure_listing(&self, dir: &Dir) -> Result<()> {
        if !dir.entries.is_listed() || !self.is_current(dir) {
            let version = self.version(dir);
            dir.entries.keep(self.list(dir)?, version);
        }
        Ok(())
    }

    /// Whether a directory of the union has no entries. The caller holds its `ops`.
    pub(crate) fn is_empty_dir(&self, dir: &Dir) -> Result<bool> {
        self.ensure_listing(dir)?;
        Ok(dir.entries.listed(Listing::is_empty).unwrap_or(false))
    }

    fn list(&self, dir: &Dir) -> Result<Listing> {
        let mut listing = Listing::default();
        // Names that a higher part hides from the parts below it.
        let mut hidden: HashSet<Box<CStr>> = HashSet::new();
        if let Some(handle) = self.upper_of(dir)? {
            let xwhiteouts = dir.upper.lock().as_ref().is_some_and(|u| u.xwhiteouts);
            self.list_part(&mut listing, &mut hidden, 0, &*handle, xwhiteouts, true)?;
        }
        for part in &dir.lowers {
            let handle = part.open(self)?;
            let some =
                self.list_part(&mut listing, &mut hidden, part.layer, &*handle, part.xwhiteouts, false)?;
            part.set_aufs(some);
        }
        if self.is_maps(dir, MAPS.to_bytes()) {
            listing.remove(MAPS.to_bytes());
        }
        Ok(listing)
    }

    /// Adds the names of one part; true if some of them look like AUFS whiteouts.
    fn list_part(
        &self,
        listing: &mut Listing,
        hidden: &mut HashSet<Box<CStr>>,
        layer: u16,
        handle: &dyn BranchDir,
        xwhiteouts: bool,
        upper: bool,
    ) -> Result<bool> {
        let mut doubtful: Vec<Item> = Vec::new();
        let mut whiteouts: Vec<Box<CStr>> = Vec::new();
        let marked = self.layer(layer).is_some_and(|l| l.marking.own.is_some());
        let add = |listing: &mut Listing, name: &CStr, ino: u64, kind: Option<FileKind>| {
            if hidden.contains(name) {
                return;
            }
            let is_dir = kind == Some(FileKind::Directory);
            match listing.get(name.to_bytes()) {
                // A directory may be opaque, or moved; then what has its name below does not belong to it.
                None => listing.put(name, ino, kind, !is_dir || !marked),
                Some(above) if above.kind == Some(FileKind::Directory) && is_dir => {
                    listing.put(name, ino, kind, false);
                }
                Some(_) => {}
            }
        };
        handle.list(&mut |item| {
            let name = item.name.bytes();
            let unclear = match item.kind {
                None | Some(FileKind::CharDevice) => true,
                Some(FileKind::Regular) => name.starts_with(WHITEOUT_PREFIX) || xwhiteouts || upper || marked,
                Some(FileKind::Directory) => false,
                Some(_) => upper || marked,
            };
            if unclear {
                doubtful.push(Item { name: item.name.as_c_str().into(), ino: item.ino, kind: item.kind });
            } else {
                add(listing, item.name.as_c_str(), self.shown_ino(layer, item.ino), item.kind);
            }
            Ok(())
        })?;
        let mut aufs = false;
        for item in doubtful {
            let name = Name::new(&item.name)?;
            let looks_aufs = name.bytes().starts_with(WHITEOUT_PREFIX);
            aufs |= looks_aufs;
            let needs_stat =
                looks_aufs || xwhiteouts || matches!(item.kind, None | Some(FileKind::CharDevice));
            let mut kind = item.kind;
            if needs_stat {
                let attr = match handle.stat_at(name) {
                    Ok(attr) => attr,
                    Err(e) if e.errno() == Errno::NOENT => continue,
                    Err(e) => return Err(e),
                };
                if self.is_hidden(handle, layer, xwhiteouts, name, &attr)? {
                    if looks_aufs && attr.is_file() && item.name.as_ref() != OPAQUE_NAME {
                        let hides = name.bytes().get(WHITEOUT_PREFIX.len()..).unwrap_or_default();
                        whiteouts.push(c_string(hides.to_vec()));
                    }
                    whiteouts.push(item.name);
                    continue;
                }
                kind = Some(attr.kind());
            }
            let own = self.own_mark_at(layer, handle, name).ok().flatten();
            if own.is_some_and(|o| o.null_device) {
                kind = Some(FileKind::CharDevice);
            }
            let ino = own.and_then(|o| self.origin_ino(&o));
            add(listing, &item.name, ino.unwrap_or_else(|| self.shown_ino(layer, item.ino)), kind);
        }
        // They hide from the parts below, not from their own.
        hidden.extend(whiteouts);
        Ok(aufs)
    }
}
