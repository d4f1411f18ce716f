//! An upper layer of a filesystem that has no whiteouts of the kernel's kind and shows no holes (CephFS), seen as it would lie on a filesystem of
//! this host: for whoever copies it there.
//!
//! A name `.wh.NAME` is the whiteout NAME, one beside a directory is that directory's mark that nothing shows through, and what a sidecar says of
//! a partial file's blocks are the file's holes. The sidecars stay, and go on to count.

use crate::extents::{OwnBlocks, Record};
use crate::layers::layer::{aufs_name, c_string};
use crate::layers::marks::{MarkFormat, OwnMark, Space, WHITEOUT_PREFIX};
use crate::layers::sidecar;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Attr, BranchDir, BranchFile, DirItem, Errno, FileKind, Name, Object, Result};

/// An upper layer that is seen so.
pub struct HostView {
    /// Where its files carry marks of our own; None: they carry none.
    own: Option<Space>,
    /// Its directory of block maps.
    maps: Option<Arc<dyn BranchDir>>,
    /// Its whiteouts are names. Those of a layer that others had put something into before stay as they are: it is read so everywhere.
    has_names: bool,
}

/// What is under a name.
#[derive(Clone)]
pub enum HostEntry {
    /// A directory, and whether a whiteout beside it hides what is below.
    Directory(Arc<dyn BranchDir>, bool),
    /// A whiteout, by the file that it is there.
    Whiteout(Arc<dyn Object>),
    /// Anything else.
    Other(Arc<dyn Object>),
}

impl HostEntry {
    #[must_use]
    pub fn object(&self) -> &dyn Object {
        match self {
            Self::Directory(dir, _) => &**dir,
            Self::Whiteout(object) | Self::Other(object) => &**object,
        }
    }
}

/// A name, the inode number, and what it is.
type HostListing = BTreeMap<Box<CStr>, (u64, Option<FileKind>)>;

impl HostView {
    #[must_use]
    pub fn with_root(root: &dyn BranchDir) -> Self {
        let marking = MarkFormat::read(root);
        let has_names = marking.own.is_some() && !marking.adopted;
        Self { own: marking.own, maps: sidecar::open(root, marking.own), has_names }
    }

    /// What is under a name in a directory; None: nothing.
    pub fn find(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<Option<HostEntry>> {
        let attr = match dir.stat_at(name) {
            Err(e) if e.errno() == Errno::NOENT => return self.whiteout(dir, name),
            attr => attr?,
        };
        if attr.is_dir() {
            let hides = self.whiteout(dir, name)?.is_some();
            return Ok(Some(HostEntry::Directory(dir.open_dir(name)?, hides)));
        }
        let object = dir.hold(name)?;
        Ok((!self.is_whiteout(name, &attr, &*object)?).then_some(HostEntry::Other(object)))
    }

    fn whiteout(&self, dir: &dyn BranchDir, name: Name<'_>) -> Result<Option<HostEntry>> {
        let Some(beside) = aufs_name(name).filter(|_| self.has_names) else { return Ok(None) };
        let beside = Name::new(&beside)?;
        let attr = match dir.stat_at(beside) {
            Err(e) if matches!(e.errno(), Errno::NOENT | Errno::NAMETOOLONG) => return Ok(None),
            attr => attr?,
        };
        let object = dir.hold(beside)?;
        Ok(self.is_whiteout(beside, &attr, &*object)?.then_some(HostEntry::Whiteout(object)))
    }

    /// Whether a file is a whiteout by its name, and not one that a user has called so.
    fn is_whiteout(&self, name: Name<'_>, attr: &Attr, object: &dyn Object) -> Result<bool> {
        if !self.has_names || !attr.is_file() || !name.bytes().starts_with(WHITEOUT_PREFIX) {
            return Ok(false);
        }
        let mut value = [0; 64];
        match object.get_xattr(self.own.unwrap_or(Space::Trusted).own(), &mut value) {
            Ok(len) => Ok(!OwnMark::decode(value.get(..len).unwrap_or_default())?.literal),
            Err(e) if matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Ok(true),
            Err(e) => Err(e),
        }
    }

    pub fn list(
        &self,
        dir: &dyn BranchDir,
        each: &mut dyn FnMut(&CStr, u64, Option<FileKind>),
    ) -> Result<()> {
        let (mut all, mut doubtful) = (HostListing::new(), Vec::new());
        dir.list(&mut |item: DirItem<'_>| {
            let looks_so = self.has_names && item.name.bytes().starts_with(WHITEOUT_PREFIX);
            let name = Box::<CStr>::from(item.name.as_c_str());
            if looks_so && matches!(item.kind, None | Some(FileKind::Regular)) {
                doubtful.push((name, item.ino, item.kind));
            } else {
                all.insert(name, (item.ino, item.kind));
            }
            Ok(())
        })?;
        for (text, ino, kind) in doubtful {
            let name = Name::new(&text)?;
            let attr = match dir.stat_at(name) {
                Err(e) if e.errno() == Errno::NOENT => continue,
                attr => attr?,
            };
            if self.is_whiteout(name, &attr, &*dir.hold(name)?)? {
                let hides = name.bytes().get(WHITEOUT_PREFIX.len()..).unwrap_or_default();
                all.entry(c_string(hides.to_vec())).or_insert((ino, Some(FileKind::CharDevice)));
            } else {
                all.insert(text, (ino, kind));
            }
        }
        all.iter().for_each(|(name, (ino, kind))| each(name, *ino, *kind));
        Ok(())
    }

    /// Its attributes. A partial file has changed when its map has: a block may be written before it counts.
    pub fn attr(&self, seen: &HostEntry) -> Result<Attr> {
        let mut attr = seen.object().stat()?;
        match seen {
            HostEntry::Whiteout(_) => {
                attr.mode = FileKind::CharDevice.mode_bits();
                (attr.rdev, attr.size, attr.blocks) = (0, 0, 0);
            }
            HostEntry::Other(object) if attr.is_file() => {
                if let Some(record) = self.record(&**object)? {
                    for file in self.sidecars(&record)? {
                        attr.ctime = attr.ctime.max(file.stat()?.ctime);
                    }
                }
            }
            _ => {}
        }
        Ok(attr)
    }

    /// The record of a partial file whose blocks a sidecar lists.
    fn record(&self, object: &dyn Object) -> Result<Option<Record>> {
        let (Some(space), Some(_)) = (self.own, &self.maps) else { return Ok(None) };
        match object.get_xattr(space.partial(), &mut []) {
            Err(e) if matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
            Err(e) => Err(e),
            // One that makes no sense goes along as it is.
            Ok(_) => Ok(Record::read(object, space.partial()).ok().filter(|record| record.sidecar.is_some())),
        }
    }

    /// The files that list blocks, as far as they are there: the map, and what is not durable of it.
    fn sidecars(&self, record: &Record) -> Result<Vec<Arc<dyn BranchFile>>> {
        let maps = self.maps.as_ref().zip(record.sidecar);
        maps.map_or_else(|| Ok(Vec::new()), |(maps, number)| sidecar::both(&**maps, number))
    }

    /// Which blocks of a file are its own, if it is a partial one; all others are to be holes. Also blocks are said to be own of which nobody knows yet
    /// whether they count: what they hold does no harm.
    pub fn own_blocks(&self, object: &dyn Object) -> Result<Option<OwnBlocks>> {
        let Some(record) = self.record(object)? else { return Ok(None) };
        let sidecars = self.sidecars(&record)?;
        if sidecars.is_empty() { Ok(None) } else { OwnBlocks::read(&record, &sidecars).map(Some) }
    }

    /// The names of an object's extended attributes, each ended by NUL.
    pub fn xattrs(&self, seen: &HostEntry) -> Result<Vec<u8>> {
        if matches!(seen, HostEntry::Whiteout(_)) {
            return Ok(Vec::new());
        }
        let mut names = vec![0; crate::layers::marks::XATTR_MAX];
        let len = seen.object().list_xattr(&mut names)?;
        names.truncate(len);
        if let Some(opaque) = self.opaque(seen)
            && !names.split_inclusive(|byte| *byte == 0).any(|name| name == opaque.to_bytes_with_nul())
        {
            names.extend(opaque.to_bytes_with_nul());
        }
        Ok(names)
    }

    /// The value of an extended attribute, if it is another one than the object itself has.
    #[must_use]
    pub fn xattr(&self, seen: &HostEntry, name: &CStr) -> Option<Result<&'static [u8]>> {
        match seen {
            HostEntry::Whiteout(_) => Some(Err(Errno::NODATA.into())),
            _ => self.opaque(seen).filter(|opaque| *opaque == name).map(|_| Ok(&b"y"[..])),
        }
    }

    /// What a directory is marked with that a whiteout beside it hides. One that has moved shows what its mark says in any case.
    fn opaque(&self, seen: &HostEntry) -> Option<&'static CStr> {
        let space = self.own.unwrap_or(Space::Trusted);
        match seen {
            HostEntry::Directory(dir, true) if dir.get_xattr(space.redirect(), &mut []).is_err() => {
                Some(space.opaque())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::sidecar::MAPS;
    use std::ffi::CString;
    use vellum_branch::MemoryBranch;
    use vellum_vfs::{Branch, OpenMode, Seek};

    fn n(text: &'static CStr) -> Name<'static> {
        Name::new(text).unwrap()
    }

    fn layer(format: &[u8]) -> Arc<dyn BranchDir> {
        let root = MemoryBranch::new().root();
        root.set_xattr(Space::Trusted.format(), format, 0).unwrap();
        for dir in [c"dir", c"moved", MAPS] {
            root.make_dir(n(dir), 0o755).unwrap();
        }
        for file in [c"file", c".wh.gone", c".wh.dir", c".wh.moved", c".wh.file", c".wh.mine"] {
            drop(root.create(n(file), 0o644).unwrap());
        }
        root.open_dir(n(c"moved")).unwrap().set_xattr(Space::Trusted.redirect(), b"/x", 0).unwrap();
        let literal = OwnMark { literal: true, ..OwnMark::default() };
        root.hold(n(c".wh.mine")).unwrap().set_xattr(Space::Trusted.own(), &literal.encode(), 0).unwrap();
        root
    }

    fn listed(hosted: &HostView, root: &dyn BranchDir) -> Vec<(CString, Option<FileKind>)> {
        let mut all = Vec::new();
        hosted.list(root, &mut |name, _, kind| all.push((name.to_owned(), kind))).unwrap();
        all
    }

    #[test]
    fn whiteouts_are_devices() {
        let root = layer(b"1");
        let hosted = HostView::with_root(&*root);
        let names: Vec<CString> = listed(&hosted, &*root).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, [MAPS, c".wh.mine", c"dir", c"file", c"gone", c"moved"].map(CStr::to_owned));
        let found = |name| hosted.find(&*root, n(name)).unwrap();
        let attr = |name| hosted.attr(&found(name).unwrap()).unwrap();
        assert_eq!((attr(c"gone").mode, attr(c"gone").rdev), (0o020_000, 0));
        assert!(hosted.xattrs(&found(c"gone").unwrap()).unwrap().is_empty());
        assert!(found(c".wh.gone").is_none() && found(c".wh.file").is_none() && found(c"nothing").is_none());
        assert!(attr(c".wh.mine").is_file() && attr(c"file").is_file());
        // A directory beside a whiteout hides what is below, unless it shows something else.
        let opaque = |name| hosted.xattr(&found(name).unwrap(), Space::Trusted.opaque());
        assert!(matches!(opaque(c"dir"), Some(Ok(b"y"))) && opaque(c"moved").is_none());
        let names = hosted.xattrs(&found(c"dir").unwrap()).unwrap();
        assert_eq!(names, Space::Trusted.opaque().to_bytes_with_nul());
    }

    #[test]
    fn foreign_mark_formats_are_preserved() {
        let root = layer(b"1a");
        let hosted = HostView::with_root(&*root);
        assert_eq!(listed(&hosted, &*root).len(), 9);
        assert!(hosted.find(&*root, n(c".wh.gone")).unwrap().is_some());
        assert!(hosted.find(&*root, n(c"gone")).unwrap().is_none());
    }

    #[test]
    fn holes_follow_the_sidecar() {
        let root = layer(b"1");
        let (maps, file) =
            (root.open_dir(n(MAPS)).unwrap(), root.open_file(n(c"file"), OpenMode::WRITE).unwrap());
        file.truncate(100 * 4096 + 5).unwrap();
        let record =
            Record { shift: 12, limit: 90 * 4096, origin_size: 1 << 20, sidecar: Some(7), origin: None };
        file.set_xattr(Space::Trusted.partial(), &record.encode(), 0).unwrap();
        let hosted = HostView::with_root(&*root);
        let seen = hosted.find(&*root, n(c"file")).unwrap().unwrap();
        let size = hosted.attr(&seen).unwrap().size;
        // Without its map, all of it is taken.
        assert!(hosted.own_blocks(seen.object()).unwrap().is_none());
        let sidecar = maps.create(n(c"0000000000000007"), 0o600).unwrap();
        sidecar.write_at(&[0b110, 0, 0, 0, 0, 0, 0, 0, 1], 0).unwrap();
        let extents = |hosted: &HostView| {
            let own = hosted.own_blocks(seen.object()).unwrap().unwrap();
            let (mut found, mut at) = (Vec::new(), 0);
            while let Ok(data) = own.seek(at, Seek::Data, size) {
                at = own.seek(data, Seek::Hole, size).unwrap();
                found.push((data / 4096, at.div_ceil(4096)));
            }
            found
        };
        assert_eq!(extents(&hosted), [(1, 3), (64, 65), (90, 101)]);
        let before = hosted.attr(&seen).unwrap().ctime;
        // A block that is written, and of which nothing is durable yet: the file is newer, and the block its own.
        let recent = maps.create(n(c"0000000000000007.recent"), 0o600).unwrap();
        recent.write_at(&[0; 24], 0).unwrap();
        recent.write_at(&[0, 1], 24).unwrap();
        assert_eq!(extents(&hosted), [(1, 3), (8, 9), (64, 65), (90, 101)]);
        assert!(hosted.attr(&seen).unwrap().ctime > before);
    }
}
