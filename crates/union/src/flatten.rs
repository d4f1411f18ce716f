//! An upper layer becomes whole: everything that its files still take from below is copied.

use crate::copyup::Need;
use crate::layer::{c_string, join};
use crate::node::Node;
use crate::union::{Core, Union, path_of};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{BranchDir, Errno, Error, FileKind, Name, Result};

/// Deepest directory that is searched.
const DEPTH_MAX: usize = 4096;

/// What is to be done to make an upper layer whole, and what has been done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flattening {
    /// Files that take data from below.
    pub files: u64,
    /// Files of them that are whole now.
    pub files_done: u64,
    /// Bytes that may have to be copied; holes turn out not to.
    pub bytes: u64,
    /// Bytes of them that are done with.
    pub bytes_done: u64,
    /// The file that is being worked on, as a path in the tree.
    pub path: String,
}

/// A file that takes data from below.
struct Wanting {
    path: Box<CStr>,
    bytes: u64,
}

impl Union {
    /// Copies everything from below that files of the upper layer still take from there. `watch` sees every step; when it says
    /// false, the work ends there, and can be taken up again at any time. EROFS: there is no upper layer.
    pub fn flatten(&self, watch: &mut dyn FnMut(&Flattening) -> bool) -> Result<Flattening> {
        let core = &self.0;
        core.work()?;
        let upper = core.layers.first().ok_or(Error::new(Errno::ROFS, "no upper layer"))?;
        let mut wanting = Vec::new();
        core.find_wanting(&upper.branch.root(), &mut wanting)?;
        let mut state = Flattening {
            files: wanting.len() as u64,
            bytes: wanting.iter().map(|file| file.bytes).sum(),
            ..Flattening::default()
        };
        for file in wanting {
            let before = state.bytes_done;
            if let Some(node) = core.walk(file.path.to_bytes())? {
                state.path = path_of(&node);
                if !core.complete(&node, &mut |bytes| {
                    state.bytes_done = before + bytes.min(file.bytes);
                    watch(&state)
                })? {
                    return Ok(state);
                }
            }
            state.bytes_done = before + file.bytes;
            state.files_done += 1;
            if !watch(&state) {
                return Ok(state);
            }
        }
        core.drop_unused_sidecars(&upper.branch.root())?;
        Ok(state)
    }

    /// Copies up to `bytes` that partial files miss which have been written to in this mount; says how many it copied. For
    /// times when there is nothing else to do.
    pub fn tend(&self, bytes: u64) -> u64 {
        let core = &self.0;
        let mut copied = 0;
        while copied < bytes {
            let Some(noted) = core.partials.lock().pop_front() else { break };
            // Removed, or moved while nobody had it: the next write notes it again.
            let Ok(Some(node)) = core.unfinished(&noted) else { continue };
            let budget = bytes - copied;
            let mut here = 0;
            let done = core.complete(&node, &mut |so_far| {
                here = so_far;
                so_far < budget
            });
            copied += here;
            match done {
                Ok(true) => {}
                Ok(false) => core.partials.lock().push_front(noted),
                Err(error) => tracing::warn!(path = path_of(&node), %error, "completing a partial file"),
            }
        }
        copied
    }
}

impl Core {
    /// Takes all sidecars away if no file of the upper layer is partial any more: a service that was killed may have left some.
    fn drop_unused_sidecars(&self, upper: &Arc<dyn BranchDir>) -> Result<()> {
        let sidecars = self.sidecars()?;
        let mut wanting = Vec::new();
        // Files that could not be completed need theirs.
        if !sidecars.is_empty() && self.find_wanting(upper, &mut wanting)? && wanting.is_empty() {
            sidecars.into_iter().for_each(|number| self.drop_sidecar(number));
        }
        Ok(())
    }

    /// Files of the upper layer whose own mark says that data are below. False: some directories are too deep to be searched.
    fn find_wanting(&self, root: &Arc<dyn BranchDir>, found: &mut Vec<Wanting>) -> Result<bool> {
        let mut all = true;
        let mut to_list: Vec<(Arc<dyn BranchDir>, Box<CStr>, usize)> =
            vec![(Arc::clone(root), c_string(Vec::new()), 0)];
        while let Some((dir, path, depth)) = to_list.pop() {
            let mut names = Vec::new();
            dir.list(&mut |item| {
                if matches!(item.kind, None | Some(FileKind::Directory | FileKind::Regular)) {
                    names.push(Box::<CStr>::from(item.name.as_c_str()));
                }
                Ok(())
            })?;
            for name in names {
                let name = Name::new(&name)?;
                let attr = dir.stat_at(name)?;
                let at = join(&path, name);
                if attr.is_dir() {
                    if depth < DEPTH_MAX {
                        to_list.push((dir.open_dir(name)?, at, depth + 1));
                    } else {
                        all = false;
                    }
                } else if attr.is_file() && self.own_mark_at(0, &*dir, name)?.is_some_and(|own| own.below) {
                    let own = attr.blocks.saturating_mul(512);
                    found.push(Wanting { path: at, bytes: attr.size.saturating_sub(own) });
                }
            }
        }
        Ok(all)
    }

    /// Copies what a file of the upper layer takes from below, piece by piece, and makes it an ordinary one. `watch` gets the
    /// bytes that are done with; false: it has had enough.
    pub(crate) fn complete(&self, node: &Arc<Node>, watch: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let Some(file) = node.as_file() else { return Ok(true) };
        if file.state.read().below.is_none() {
            return Ok(true);
        }
        // Where only attributes were copied, it becomes a partial file first, so that every piece counts.
        self.copy_up(node, file, Need::Data(u64::MAX))?;
        let io = self.readable(file)?;
        let Some(partial) = &io.partial else { return Ok(true) };
        let (mut at, mut copied) = (0, 0);
        loop {
            let times = file.times.read();
            let Some((next, bytes)) = partial.fill(at)? else { break };
            drop(times);
            at = next;
            copied += bytes;
            if !watch(copied) {
                return Ok(false);
            }
        }
        self.finish_partial(file, partial)
    }
}
