//! Directories of a layer that have moved, and where the paths of the layers below are by that.
//!
//! What a layer holds may be hostile: deep paths, many redirects, and redirects in many layers that multiply. So paths share their
//! beginnings, and there are limits. Where one is reached, names are not found: a file that is copied up then is not linked with
//! them any more.

use crate::layers::marks::Space;
use smallvec::SmallVec;
use std::collections::{BTreeSet, HashMap};
use std::ffi::CStr;
use std::hash::{BuildHasher, RandomState};
use vellum_vfs::{BranchDir, Errno, FileKind, Name, Result};

/// Deepest directory in a layer that is searched for hard links.
pub(crate) const DEPTH_MAX: usize = 1024;

/// What is kept of a layer.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Directories that have moved.
    moved: usize,
    /// Bytes of their paths.
    bytes: usize,
}

pub(crate) const LIMITS: Limits = Limits { moved: 1 << 15, bytes: 8 << 20 };
/// Bytes of paths that are looked at for the names of one file, besides those that it has in its layer.
pub(crate) const ELSEWHERE_BYTES: usize = 32 << 20;
/// What a path costs besides its length.
const PATH_COST: usize = 128;

/// The root, in [`Paths`].
const ROOT: u32 = 0;

/// Directories of a layer that show through to another path of the layers below it.
pub(crate) struct Moves {
    paths: Paths,
    /// Paths in the layer, by the path in the union of the layers below.
    to: HashMap<u32, SmallVec<[u32; 1]>>,
    count: usize,
    limits: Limits,
    full: bool,
}

/// Paths as a tree of names.
#[derive(Default)]
struct Paths {
    steps: Vec<Step>,
    /// Steps by the hash of parent and name. Its key is random: nobody can choose names that share one.
    at: HashMap<u64, SmallVec<[u32; 2]>>,
    key: RandomState,
    bytes: usize,
}

struct Step {
    parent: u32,
    name: Box<[u8]>,
}

impl Paths {
    /// What a name costs besides its length: its step, and its place in the map.
    const STEP_COST: usize = 80;

    fn hash(&self, parent: u32, name: &[u8]) -> u64 {
        self.key.hash_one((parent, name))
    }

    fn find(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let same =
            |at: &&u32| self.step(**at).is_some_and(|step| step.parent == parent && *step.name == *name);
        self.at.get(&self.hash(parent, name))?.iter().find(same).copied()
    }

    /// The step of a number; the root is none.
    fn step(&self, at: u32) -> Option<&Step> {
        self.steps.get((at as usize).checked_sub(1)?)
    }

    /// The path of a name in a directory; None: that would be more than `most` bytes.
    fn enter(&mut self, parent: u32, name: &[u8], most: usize) -> Option<u32> {
        if let Some(known) = self.find(parent, name) {
            return Some(known);
        }
        let bytes = self.bytes + name.len() + Self::STEP_COST;
        if bytes > most {
            return None;
        }
        self.bytes = bytes;
        let hash = self.hash(parent, name);
        self.steps.push(Step { parent, name: name.into() });
        let at = u32::try_from(self.steps.len()).ok()?;
        self.at.entry(hash).or_default().push(at);
        Some(at)
    }

    /// Forgets all but the first `count` steps.
    fn truncate(&mut self, count: usize) {
        while self.steps.len() > count {
            let at = self.steps.len();
            let Some(step) = self.steps.pop() else { return };
            self.bytes -= step.name.len() + Self::STEP_COST;
            let hash = self.hash(step.parent, &step.name);
            if let Some(same) = self.at.get_mut(&hash) {
                same.retain(|other| *other as usize != at);
                if same.is_empty() {
                    self.at.remove(&hash);
                }
            }
        }
    }

    /// A path, with something behind it.
    fn with(&self, mut at: u32, rest: &[u8]) -> Vec<u8> {
        let mut names = Vec::new();
        while let Some(step) = self.step(at) {
            names.push(&*step.name);
            at = step.parent;
        }
        names.reverse();
        let mut path = names.join(&b'/');
        path.extend_from_slice(rest);
        path
    }
}

impl Moves {
    /// Searches a layer.
    pub(crate) fn find(root: &dyn BranchDir, spaces: &[Space], limits: Limits) -> Result<Self> {
        let (paths, to) = (Paths::default(), HashMap::new());
        let mut moves = Self { paths, to, count: 0, limits, full: false };
        moves.search(root, spaces, (ROOT, ROOT), 0)?;
        // It may be kept for long.
        moves.paths.steps.shrink_to_fit();
        moves.paths.at.shrink_to_fit();
        Ok(moves)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// There are more than are known.
    pub(crate) const fn is_full(&self) -> bool {
        self.full
    }

    /// Notes the directories with a redirect below `dir`, whose path is `path` in the layer and `below` in the union of the
    /// layers below it.
    fn search(
        &mut self,
        dir: &dyn BranchDir,
        spaces: &[Space],
        (path, below): (u32, u32),
        depth: usize,
    ) -> Result<()> {
        if depth > DEPTH_MAX {
            return Ok(());
        }
        let mut inner: Vec<Box<CStr>> = Vec::new();
        dir.list(&mut |item| {
            if matches!(item.kind, None | Some(FileKind::Directory)) {
                inner.push(item.name.as_c_str().into());
            }
            Ok(())
        })?;
        for name in inner {
            let name = Name::new(&name)?;
            let child = match dir.open_dir(name) {
                Ok(child) => child,
                Err(e) if matches!(e.errno(), Errno::NOTDIR | Errno::LOOP) => continue,
                Err(e) => return Err(e),
            };
            let redirect = crate::layers::marks::read_dir_marks(&*child, spaces)?.redirect;
            let (steps, count) = (self.paths.steps.len(), self.count);
            match self.enter((path, below), name.bytes(), redirect.as_deref()) {
                Some(paths) => self.search(&*child, spaces, paths, depth + 1)?,
                None => self.full = true,
            }
            if self.count == count {
                self.paths.truncate(steps);
            }
            if self.full {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Both paths of a directory; None: a limit is reached.
    fn enter(
        &mut self,
        (path, below): (u32, u32),
        name: &[u8],
        redirect: Option<&[u8]>,
    ) -> Option<(u32, u32)> {
        let most = self.limits.bytes;
        let at = self.paths.enter(path, name, most)?;
        let Some(redirect) = redirect else { return Some((at, self.paths.enter(below, name, most)?)) };
        if self.count >= self.limits.moved {
            return None;
        }
        let (mut from, rest) = redirect.strip_prefix(b"/").map_or((below, redirect), |rest| (ROOT, rest));
        for part in rest.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
            from = self.paths.enter(from, part, most)?;
        }
        self.to.entry(from).or_default().push(at);
        self.count += 1;
        Some((at, from))
    }

    /// Where a path of the layers below is in this one, once for each directory that it is in and that has moved. `each` says
    /// whether to go on; false: it did not.
    fn each_place(&self, path: &[u8], each: &mut dyn FnMut(Vec<u8>) -> bool) -> bool {
        let (mut at, mut begin) = (ROOT, 0);
        while let Some(name) = path.get(begin..).and_then(|rest| rest.split(|b| *b == b'/').next()) {
            let end = begin + name.len();
            let Some(next) = self.paths.find(at, name) else { break };
            // What has moved is in the directory, and not the directory itself.
            let Some(rest) = path.get(end..).filter(|rest| !rest.is_empty()) else { break };
            for to in self.to.get(&next).into_iter().flatten() {
                if !each(self.paths.with(*to, rest)) {
                    return false;
                }
            }
            (at, begin) = (next, end + 1);
        }
        true
    }
}

/// Adds to paths of a layer where they may be in the union: each of the layers above, the lowest first, may have moved the
/// directories that they are in. False: there may be more, beyond `room` bytes.
pub(crate) fn add_places<'a>(
    paths: &mut BTreeSet<Vec<u8>>,
    above: impl Iterator<Item = &'a Moves>,
    mut room: usize,
) -> bool {
    for moves in above.filter(|moves| !moves.is_empty()) {
        let mut found = Vec::new();
        let all = paths.iter().all(|path| {
            moves.each_place(path, &mut |place| {
                // Found twice it costs twice, for it takes the time.
                let left = room.checked_sub(place.len() + PATH_COST);
                if let Some(left) = left {
                    room = left;
                    found.push(place);
                }
                left.is_some()
            })
        });
        paths.extend(found);
        if !all {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests;
