//! How one name is found through lower layers.

use crate::layers::Layers;
use crate::layers::layer::{LowerDir, aufs_name, c_string, described, join};
use crate::layers::marks::{self, DirMarks, OPAQUE_NAME, WHITEOUT_PREFIX};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Attr, BranchDir, Errno, Error, Name, Result};

/// Longest chain of redirects that is followed for one name; a longer one is a loop.
const REDIRECTS_MAX: usize = 32;

/// Directories that are looked into because of redirects, for one name. Redirects that lead through redirects double the work
/// with each layer, so that a chain of 32 is no limit; an honest one needs a few for each layer.
const REDIRECTED_LOOKUPS_MAX: u32 = 1 << 17;

/// How far redirects are still followed.
#[derive(Clone, Copy)]
struct Limit<'a> {
    /// One after the other.
    depth: usize,
    /// Directories, of the whole search.
    lookups: &'a Cell<u32>,
}

impl Limit<'_> {
    /// Does a search within a limit of its own.
    fn within<R>(search: impl FnOnce(Limit<'_>) -> R) -> R {
        search(Limit { depth: REDIRECTS_MAX, lookups: &Cell::new(REDIRECTED_LOOKUPS_MAX) })
    }

    /// One redirect further. ELOOP.
    fn follow(self, redirect: &[u8]) -> Result<Self> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Self { depth, ..self }),
            None => Err(Error::new(Errno::LOOP, "redirects form a loop").at(redirect)),
        }
    }

    /// Looks into so many directories. ELOOP.
    fn spend(self, directories: usize) -> Result<()> {
        let left = u32::try_from(directories).ok().and_then(|n| self.lookups.get().checked_sub(n));
        self.lookups.set(left.ok_or(Error::new(Errno::LOOP, "redirects lead through too many directories"))?);
        Ok(())
    }
}

/// What a name leads to in a stack of lower directories.
pub(crate) enum LayerLookup {
    /// Nothing, or a whiteout.
    Nothing,
    /// Something that is not a directory.
    File {
        /// The lower directory that holds it.
        dir: Arc<LowerDir>,
        name: Box<CStr>,
        /// Its attributes, as stored.
        attr: Attr,
        /// The parts of the same directory in the layers below.
        rest: Vec<Arc<LowerDir>>,
    },
    /// A directory: its parts, uppermost first (at least one).
    Dir(Vec<Arc<LowerDir>>),
}

/// Whether an error means that a name is not there.
pub(crate) fn is_absent(error: &Error) -> bool {
    matches!(error.errno(), Errno::NOENT | Errno::NOTDIR)
}

impl Layers {
    /// Namespaces of the marks that count in a layer.
    pub(crate) fn mark_spaces(&self, layer: u16) -> &'static [marks::Space] {
        self.layer(layer).map_or(&[], |layer| layer.marking.spaces)
    }

    /// A directory's marks. The AUFS one, which is a name that is nearly never there, is asked for where it could hide something: `covers`,
    /// or a redirect. On a cluster that is a round trip.
    pub(crate) fn all_dir_marks(&self, layer: u16, dir: &dyn BranchDir, covers: bool) -> Result<DirMarks> {
        let mut marks = marks::read_dir_marks(dir, self.mark_spaces(layer))?;
        if !marks.opaque && (covers || marks.redirect.is_some()) {
            let name = Name::new(OPAQUE_NAME)?;
            match dir.stat_at(name) {
                // A whiteout may have this name, too; it hides a user's file that has it below.
                Ok(attr) => {
                    marks.opaque = attr.is_file() && self.is_hidden(dir, layer, false, name, &attr)?
                }
                Err(e) if is_absent(&e) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(marks)
    }

    /// Whether `name` is whited out in `dir` in the AUFS way.
    pub(crate) fn has_aufs_whiteout(&self, layer: u16, dir: &dyn BranchDir, name: Name<'_>) -> Result<bool> {
        let Some(whiteout) = aufs_name(name) else { return Ok(false) };
        let whiteout = Name::new(&whiteout)?;
        match dir.stat_at(whiteout) {
            Ok(attr) if attr.is_file() => {
                Ok(!self.own_mark_at(layer, dir, whiteout)?.is_some_and(|own| own.literal))
            }
            Ok(_) => Ok(false),
            Err(e) if is_absent(&e) || e.errno() == Errno::NAMETOOLONG => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Finds `name` in a stack of lower directories.
    pub(crate) fn find(&self, stack: &[Arc<LowerDir>], name: Name<'_>) -> Result<LayerLookup> {
        Limit::within(|limit| self.find_deep(stack, name, limit))
    }

    fn find_deep(&self, stack: &[Arc<LowerDir>], name: Name<'_>, limit: Limit<'_>) -> Result<LayerLookup> {
        let mut parts: Vec<Arc<LowerDir>> = Vec::new();
        for (at, dir) in stack.iter().enumerate() {
            // Where nothing lies below, no mark can hide anything.
            let covers = at + 1 < stack.len();
            let handle = dir.open(self)?;
            let attr = match handle.stat_at(name) {
                Ok(attr) => attr,
                Err(e) if is_absent(&e) => {
                    if covers && dir.may_have_aufs() && self.has_aufs_whiteout(dir.layer, &*handle, name)? {
                        break;
                    }
                    continue;
                }
                Err(e) => return Err(e.at(dir.path_of(name).to_bytes())),
            };
            if self.is_hidden(&*handle, dir.layer, dir.xwhiteouts, name, &attr)? {
                break;
            }
            if !attr.is_dir() {
                if parts.is_empty() {
                    let rest = stack.get(at + 1..).unwrap_or_default().to_vec();
                    return Ok(LayerLookup::File {
                        dir: Arc::clone(dir),
                        name: name.as_c_str().into(),
                        attr,
                        rest,
                    });
                }
                break;
            }
            let child = handle.open_dir(name)?;
            let marks = self.all_dir_marks(dir.layer, &*child, covers);
            let marks = marks.map_err(|e| e.at(dir.path_of(name).to_bytes()))?;
            let ino = self.shown_ino(dir.layer, attr.ino);
            let mut part = LowerDir::new(dir.layer, dir.path_of(name), ino, &marks);
            let is_silent = marks.opaque && marks.implied && parts.iter().all(|part| part.implied);
            let is_whited_out = || -> Result<bool> {
                Ok(dir.may_have_aufs() && self.has_aufs_whiteout(dir.layer, &*handle, name)?)
            };
            if is_silent && covers && !is_whited_out()? {
                // The stack is shorter each time.
                let rest = stack.get(at + 1..).unwrap_or_default();
                if let LayerLookup::Dir(beneath) = self.find_deep(rest, name, limit)? {
                    part.beneath = described(&beneath).filter(|part| !part.implied).cloned();
                }
            }
            let part = Arc::new(part);
            part.keep(child, self);
            parts.push(part);
            if marks.opaque {
                break;
            }
            if let Some(redirect) = marks.redirect {
                let rest = stack.get(at + 1..).unwrap_or_default();
                if let LayerLookup::Dir(more) = self.follow(&redirect, dir.layer, rest, limit)? {
                    parts.extend(more);
                }
                break;
            }
            // A whiteout beside the directory hides what is below, and not the directory.
            if covers && is_whited_out()? {
                break;
            }
        }
        Ok(if parts.is_empty() { LayerLookup::Nothing } else { LayerLookup::Dir(parts) })
    }

    /// Follows a redirect of a directory in layer `layer`, whose parent's parts in the layers below are `siblings`.
    pub(crate) fn follow_redirect(
        &self,
        redirect: &[u8],
        layer: u16,
        siblings: &[Arc<LowerDir>],
    ) -> Result<LayerLookup> {
        Limit::within(|limit| self.follow(redirect, layer, siblings, limit))
    }

    fn follow(
        &self,
        redirect: &[u8],
        layer: u16,
        siblings: &[Arc<LowerDir>],
        limit: Limit<'_>,
    ) -> Result<LayerLookup> {
        let limit = limit.follow(redirect)?;
        match redirect.strip_prefix(b"/") {
            Some(path) => self.resolve_deep(layer + 1, path, limit),
            None => {
                limit.spend(siblings.len())?;
                self.find_deep(siblings, Name::new(&c_string(redirect.to_vec()))?, limit)
            }
        }
    }

    /// Finds a path (no leading slash) in the union of the layers from `layer` downwards.
    fn resolve_deep(&self, layer: u16, path: &[u8], limit: Limit<'_>) -> Result<LayerLookup> {
        let mut stack: Vec<_> = self.lower_roots.iter().filter(|root| root.layer >= layer).cloned().collect();
        let mut names = path.split(|b| *b == b'/').filter(|n| !n.is_empty()).peekable();
        while let Some(name) = names.next() {
            let name = c_string(name.to_vec());
            limit.spend(stack.len())?;
            match self.find_deep(&stack, Name::new(&name)?, limit)? {
                LayerLookup::Dir(parts) => stack = parts,
                file @ LayerLookup::File { .. } if names.peek().is_none() => return Ok(file),
                LayerLookup::File { .. } | LayerLookup::Nothing => return Ok(LayerLookup::Nothing),
            }
        }
        Ok(if stack.is_empty() { LayerLookup::Nothing } else { LayerLookup::Dir(stack) })
    }

    /// Whether an entry that exists in a layer is not shown: a whiteout in any format, or an AUFS mark.
    pub(crate) fn is_hidden(
        &self,
        dir: &dyn BranchDir,
        layer: u16,
        xwhiteouts: bool,
        name: Name<'_>,
        attr: &Attr,
    ) -> Result<bool> {
        if marks::is_whiteout_device(attr) {
            return Ok(true);
        }
        if attr.is_file() && name.bytes().starts_with(WHITEOUT_PREFIX) {
            return Ok(!self.own_mark_at(layer, dir, name)?.is_some_and(|own| own.literal));
        }
        if xwhiteouts && attr.is_file() && attr.size == 0 {
            for space in self.mark_spaces(layer) {
                if dir.get_xattr_at(name, space.whiteout(), &mut []).is_ok() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The path of `name` in a directory whose path in the union of the lower layers is `parent`.
pub(crate) fn lower_path(parent: Option<&CStr>, name: Name<'_>) -> Option<Box<CStr>> {
    parent.map(|path| join(path, name))
}
