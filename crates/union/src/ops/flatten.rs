//! An upper layer becomes whole: everything that its files still take from below is copied.

use crate::copyup::full_copy::Need;
use crate::copyup::partial_file;
use crate::layers::Layers;
use crate::layers::layer::{c_string, join};
use crate::layers::marks::Space;
use crate::nodes::node::Node;
use crate::union::{Core, Union, path_of};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Branch, BranchDir, Errno, Error, FileKind, Name, Result};

/// Deepest directory that is searched.
const DEPTH_MAX: usize = 4096;

/// How often a file is completed of which a write that fails takes a block back meanwhile.
const TRIES: usize = 8;

/// Most bytes that stay free.
const SPARE_MAX: u64 = 4 << 30;

/// Most files that are named when they cannot be completed.
const FAILED_MAX: usize = 100;

/// What is to be done to make an upper layer whole, and what has been done.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FlattenRun {
    /// Files that take data from below.
    pub files: u64,
    /// Files of them that are whole now.
    pub files_done: u64,
    /// Files of them that are left as they are, for they are more than was asked for.
    pub files_left: u64,
    /// Files of them that cannot be completed, and why.
    pub failed: Vec<(String, Error)>,
    /// How many those are.
    pub files_failed: u64,
    /// Bytes that may have to be copied; holes turn out not to.
    pub bytes: u64,
    /// Bytes of them that are done with.
    pub bytes_done: u64,
    /// The file that is being worked on, as a path in the tree.
    pub path: String,
    /// What has been copied is being made durable, which may take long: until the next step nothing is changed.
    pub syncing: bool,
}

/// How much may be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub bytes: u64,
    /// Hundredths of the filesystem that stay free, but not more than 4 GiB.
    pub spare: u64,
    /// After so many bytes of a file, what has been copied is made durable.
    pub synced_after: u64,
}

/// A step of completing a file.
pub(crate) enum Step {
    /// So many of its bytes are done with.
    Copied(u64),
    /// They are made durable now. Until the next step nothing is changed.
    Syncing,
}

impl Extent {
    /// Whatever is missing.
    pub const ALL: Self = Self { bytes: u64::MAX, spare: 0, synced_after: u64::MAX };
}

/// A file that takes data from below.
struct DependentFile {
    path: Box<CStr>,
    bytes: u64,
}

impl Union {
    /// Whether files of the upper layer take data from other layers, as far as is known without looking at them.
    #[must_use]
    pub fn needs_lowers(&self) -> bool {
        self.0.needs_lowers()
    }

    /// Copies what files of the upper layer still take from below, those first of which least is missing, as far as `extent` goes.
    /// `watch` sees every step; when it says false, the work ends there, and can be taken up again at any time. EROFS: there
    /// is no upper layer. Files that cannot be completed are named in the result; ENOSPC and its like end the work.
    pub fn flatten(&self, extent: Extent, watch: &mut dyn FnMut(&FlattenRun) -> bool) -> Result<FlattenRun> {
        let core = &self.0;
        let space = core.upper.work()?.space;
        let upper = core.layers.first().ok_or(Error::new(Errno::ROFS, "no upper layer"))?;
        let mut wanting = Vec::new();
        let search =
            |found: &mut Vec<DependentFile>| core.layers.find_incomplete(&upper.branch.root(), space, found);
        let searched = search(&mut wanting)?;
        wanting.sort_by_key(|file| file.bytes);
        let found = wanting.len();
        let within = extent.within(&*upper.branch)?;
        let mut bytes = 0_u64;
        wanting.retain(|file| {
            let fits = bytes.saturating_add(file.bytes) <= within;
            bytes += if fits { file.bytes } else { 0 };
            fits
        });
        let mut state = FlattenRun {
            files: found as u64,
            files_left: (found - wanting.len()) as u64,
            bytes,
            ..FlattenRun::default()
        };
        for file in wanting {
            let before = state.bytes_done;
            if let Some(node) = core.walk(file.path.to_bytes())? {
                state.path = path_of(&node);
                let completed = core.complete(&node, extent.synced_after, &mut |step| {
                    state.syncing = matches!(step, Step::Syncing);
                    if let Step::Copied(bytes) = step {
                        state.bytes_done = before + bytes.min(file.bytes);
                    }
                    watch(&state)
                });
                match completed {
                    Ok(true) => state.files_done += 1,
                    Ok(false) => return Ok(state),
                    Err(e) if is_layer_error(e.errno()) => return Err(e),
                    Err(e) => state.fails(e),
                }
            }
            state.bytes_done = before + file.bytes;
            if !watch(&state) {
                return Ok(state);
            }
        }
        let mut left = Vec::new();
        // Once more, for what the tree does not show was not completed.
        if searched && (found == 0 || search(&mut left)? && left.is_empty()) {
            core.layers.sidecars()?.into_iter().for_each(|number| core.layers.drop_sidecar(number));
            core.forget_lowers()?;
        }
        Ok(state)
    }

    /// Copies up to `bytes` that partial files miss which have been written to in this mount; says how many it copied. For
    /// times when there is nothing else to do.
    pub fn background_fill(&self, bytes: u64) -> u64 {
        let core = &self.0;
        let mut copied = 0;
        while copied < bytes {
            let Some(noted) = core.upper.next_partial() else { break };
            // Removed, or moved while nobody had it: the next write notes it again.
            let Ok(Some(node)) = core.unfinished(&noted) else { continue };
            let budget = bytes - copied;
            let mut here = 0;
            let done = core.complete(&node, u64::MAX, &mut |step| {
                if let Step::Copied(so_far) = step {
                    here = so_far;
                }
                here < budget
            });
            copied += here;
            match done {
                Ok(true) => {}
                Ok(false) => core.upper.put_back(noted),
                Err(error) => tracing::warn!(path = path_of(&node), %error, "completing a partial file"),
            }
        }
        copied
    }
}

impl FlattenRun {
    fn fails(&mut self, why: Error) {
        self.files_failed += 1;
        if self.failed.len() < FAILED_MAX {
            self.failed.push((self.path.clone(), why));
        }
    }
}

impl Extent {
    /// How many bytes that is now.
    fn within(self, upper: &dyn Branch) -> Result<u64> {
        if self.spare == 0 {
            return Ok(self.bytes);
        }
        let fs = upper.statfs()?;
        let bytes = |blocks: u64| blocks.saturating_mul(fs.frsize.into());
        let spare = (bytes(fs.blocks) / 100).saturating_mul(self.spare).min(SPARE_MAX);
        Ok(self.bytes.min(bytes(fs.bavail).saturating_sub(spare)))
    }
}

/// Whether an error says something of the layer and not of the file.
fn is_layer_error(errno: Errno) -> bool {
    matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::NOMEM | Errno::MFILE | Errno::NFILE)
}

impl Layers {
    /// Files of the upper layer whose own mark says that data are below. Those that have become whole lose what else was to
    /// be taken from them then. False: some directories are too deep to be searched.
    fn find_incomplete(
        &self,
        root: &Arc<dyn BranchDir>,
        space: Space,
        found: &mut Vec<DependentFile>,
    ) -> Result<bool> {
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
                } else if attr.is_file()
                    && let Some(own) = self.own_mark_at(0, &*dir, name)?
                {
                    if own.below {
                        let own = attr.blocks.saturating_mul(512);
                        found.push(DependentFile { path: at, bytes: attr.size.saturating_sub(own) });
                    } else {
                        partial_file::end_unmark(&*dir, name, space)?;
                    }
                }
            }
        }
        Ok(all)
    }
}

impl Core {
    /// Copies what a file of the upper layer takes from below, piece by piece, and makes it an ordinary one. `watch` sees each
    /// step; false: it has had enough.
    pub(crate) fn complete(
        &self,
        node: &Arc<Node>,
        synced_after: u64,
        watch: &mut dyn FnMut(Step) -> bool,
    ) -> Result<bool> {
        let Some(file) = node.as_file() else { return Ok(true) };
        {
            let state = file.state.read();
            if state.lost_data {
                return Err(Error::new(
                    Errno::IO,
                    "the file below is not the one that it was made from, or not there",
                ));
            }
            if state.below.is_none() {
                return Ok(true);
            }
        }
        // Where only attributes were copied, it becomes a partial file first, so that every piece counts.
        self.copy_up(node, file, Need::Data(u64::MAX))?;
        let io = self.layers.readable(file)?;
        let Some(partial) = &io.partial else { return Ok(true) };
        let (mut copied, mut synced) = (0, 0);
        // What is durable already is finished in a moment. The end of a file with a map of its own writes that, whoever has the layer then.
        let syncs = !self.layers.config.volatile && partial.sidecar().is_none();
        let sync = |copied: u64, watch: &mut dyn FnMut(Step) -> bool| -> Result<bool> {
            if !syncs {
                return Ok(true);
            }
            if !watch(Step::Syncing) {
                return Ok(false);
            }
            partial.sync_blocks()?;
            Ok(watch(Step::Copied(copied)))
        };
        for _ in 0..TRIES {
            let mut at = 0;
            loop {
                let times = file.times.read();
                let Some((next, bytes)) = partial.fill(at)? else { break };
                drop(times);
                at = next;
                copied += bytes;
                if !watch(Step::Copied(copied)) {
                    return Ok(false);
                }
                if copied - synced >= synced_after {
                    synced = copied;
                    if !sync(copied, watch)? {
                        return Ok(false);
                    }
                }
            }
            if !sync(copied, watch)? {
                return Ok(false);
            }
            if self.finish_partial(file, partial)? {
                return Ok(true);
            }
        }
        Err(Error::new(Errno::AGAIN, "blocks of it go missing again"))
    }
}
