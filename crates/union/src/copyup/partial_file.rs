//! Partial files in the union: when a file becomes one, how it is opened, and when it is whole again.

use crate::copyup::Upper;
use crate::copyup::full_copy::Need;
use crate::copyup::pending_completion::PendingCompletion;
use crate::extents::{BlockIndex, Holes, Origin, PartialFile, Record};
use crate::layers::Layers;
use crate::layers::marks;
use crate::layers::marks::{GUARD, METACOPY_PARTIAL, OwnMark, Space};
use crate::layers::work_dir::Work;
use crate::nodes::node::{File, FileState, InodeLocation, Io, LowerData, LowerLocation, Node};
use crate::union::Core;
use std::ffi::CStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use vellum_vfs::{BranchDir, BranchFile, Errno, Error, Name, Object, OpenMode, Result, XattrFlags};

/// Size of the blocks of which a sidecar keeps account: a page, since a crash may leave a part of anything larger.
const SIDECAR_SHIFT: u8 = 12;

/// What is said of a file below that is not the one that a file was made from.
const CHANGED: &str = "its origin has other data than when this file was made from it";

impl Layers {
    /// The record of the partial file that a copy-up should make of a lower file of `size` bytes; None: copy it whole.
    pub(crate) fn wanted_record(&self, work: &Work, size: u64, need: Need) -> Option<Record> {
        let Need::Data(keep) = need else { return None };
        let from = self.config.partial_from?;
        if size.min(keep) < from.max(1) || !self.config.metacopy {
            return None;
        }
        let record =
            Record { shift: SIDECAR_SHIFT, limit: size, origin_size: size, sidecar: None, origin: None };
        if self.config.sidecars {
            return self.new_sidecar().ok().map(|number| Record { sidecar: Some(number), ..record });
        }
        work.hole_shift().map(|shift| Record { shift, ..record })
    }

    /// Makes a new file share all blocks of the data below, where the filesystem can: that is as fast as a partial file, and
    /// the file is whole.
    pub(crate) fn try_clone(&self, work: &Work, to: &dyn BranchFile, data: &LowerData) -> Result<bool> {
        if data.next.is_some() || !work.may_clone() {
            return Ok(false);
        }
        let from = self.open_below(data)?;
        match to.clone_from(&*from) {
            Ok(()) => Ok(true),
            // Another filesystem than the upper's says nothing about the upper's.
            Err(e) if e.errno() == Errno::XDEV => Ok(false),
            Err(e) if matches!(e.errno(), Errno::OPNOTSUPP | Errno::INVAL) => {
                work.no_clone();
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// The record, with that by which the data below are known again.
    pub(crate) fn with_origin(&self, record: Record, below: &LowerData) -> Result<Record> {
        Ok(Record { origin: Some(Origin::read(&*self.open_below(below)?)?), ..record })
    }

    /// Opens a file of a layer that is whole.
    pub(crate) fn open_lower(&self, at: &LowerLocation) -> Result<Arc<dyn BranchFile>> {
        let dir = at.dir.open(self)?;
        dir.open_file(Name::new(&at.name)?, OpenMode::READ)
    }

    /// Opens the data below a file, which may be partial in their turn.
    pub(crate) fn open_below(&self, data: &LowerData) -> Result<Arc<dyn BranchFile>> {
        // From the bottom up, without recursion.
        let mut chain = vec![data];
        while let Some(next) = chain.last().and_then(|data| data.next.as_deref()) {
            chain.push(next);
        }
        let mut open: Option<Arc<dyn BranchFile>> = None;
        while let Some(data) = chain.pop() {
            let file = self.open_lower(&data.at)?;
            open = Some(match open {
                None => file,
                Some(below) => match self.assemble(data.at.dir.layer, &file, below, false)? {
                    Some(partial) => Arc::new(partial),
                    None => file,
                },
            });
        }
        open.ok_or(Error::new(Errno::IO, "no data below"))
    }

    /// A partial file of what it holds and what is below. None: it has become whole, as a file of a layer that is completed
    /// while it is a lower one here.
    fn assemble(
        &self,
        layer: u16,
        file: &Arc<dyn BranchFile>,
        below: Arc<dyn BranchFile>,
        writable: bool,
    ) -> Result<Option<PartialFile>> {
        let layer = self.layer(layer).ok_or(Error::new(Errno::IO, "no such layer"))?;
        let space = layer.marking.own.unwrap_or(Space::Trusted);
        let assembled = (|| {
            let record = Record::read(object_of(file), space.partial())?;
            let record = check_origin(record, file, &*below, (space, writable))?;
            let index: Box<dyn BlockIndex> = match record.sidecar {
                Some(number) => Box::new(layer.sidecar(number, writable, self.config.run)?),
                None => Box::new(Holes),
            };
            PartialFile::new(Arc::clone(file), below, index, record, space.partial())
        })();
        // A file of a lower layer may be completed at this moment: it says first that it is whole, and loses what it says of its
        // blocks after that, or keeps it.
        let is_whole = || own_mark(object_of(file), space).map(|own| own.is_some_and(|own| !own.below));
        if (!writable || assembled.is_err()) && is_whole()? {
            return Ok(None);
        }
        assembled.map(Some)
    }

    /// Opens a partial file, or finds it open. The caller holds the file's state.
    pub(crate) fn open_partial(&self, file: &File, state: &FileState, below: &LowerData) -> Result<Io> {
        let mut known = file.partial.lock();
        let writable = !matches!(state.at, InodeLocation::Lower(_));
        let partial = match known.upgrade() {
            Some(partial) => partial,
            None => {
                let (layer, target) = self.target_of(state)?;
                let mode = if writable { OpenMode::READ | OpenMode::WRITE } else { OpenMode::READ };
                let own = state.open(&target, mode)?;
                let assembled =
                    self.open_below(below).and_then(|data| self.assemble(layer, &own, data, writable));
                let assembled = assembled.map_err(|error| {
                    let origin = [below.at.dir.path.to_bytes(), below.at.name.to_bytes()].join(&b'/');
                    let name = state.names.first().map_or(c"", |place| &*place.name);
                    let error = self.in_layer(below.at.dir.layer, error.failure().at(origin));
                    self.in_layer(layer, error.at(name.to_bytes())).doing("opening a partial file")
                })?;
                let Some(partial) = assembled else {
                    return Ok(Io::new(own, writable));
                };
                let partial = Arc::new(partial);
                *known = Arc::downgrade(&partial);
                partial
            }
        };
        let file = Arc::clone(&partial) as Arc<dyn BranchFile>;
        Ok(Io { partial: Some(partial), ..Io::new(file, writable) })
    }
}

impl Core {
    /// Makes a partial file an ordinary one if nothing is missing, and somebody else has not; says whether it is one now.
    pub(crate) fn finish_partial(&self, file: &File, partial: &PartialFile) -> Result<bool> {
        let _one = file.copy.lock();
        let state = file.state.read();
        if !state.partial {
            return Ok(state.below.is_none());
        }
        drop(state);
        let space = self.upper.space();
        let done = partial.finish(!self.layers.config.volatile, |object| unmark(object, space))?;
        if done {
            let mut state = file.state.write();
            state.below = None;
            state.partial = false;
            *file.partial.lock() = Weak::new();
            file.unsynced.change();
            if let Some(number) = partial.sidecar() {
                self.layers.drop_sidecar(number);
            }
            // Others go on with the file in its other form, which is all its own now.
            let last = file.io.replace(None);
            drop(state);
            drop(last);
        }
        Ok(done)
    }

    /// Says on the upper's root that there are files which take data from other layers, and from which ones: to those who complete the
    /// upper later, and to fuse-overlayfs. Before the first such file has a name. What cannot be said has to be known then.
    pub(crate) fn record_lowers(&self) {
        if self.upper.lowers_recorded.swap(true, Relaxed) {
            return;
        }
        let Some((upper, lowers)) = self.layers.all().split_first() else { return };
        let (root, space) = (upper.branch.root(), self.upper.space());
        // A layer that is no directory of this host cannot be found again by a path.
        let paths = lowers.iter().map(|layer| {
            let path = layer.branch.directory().filter(|path| path.is_absolute())?;
            Some(path.as_os_str().as_bytes())
        });
        let list = paths.collect::<Option<Vec<&[u8]>>>().unwrap_or_default().join(&0);
        if let Err(error) = root.set_xattr(space.lowers(), &list, 0) {
            tracing::debug!(%error, "the layers below are not recorded");
        }
        // What is there is a record of owners, which stays.
        if let Err(error) = root.set_xattr(space.guard(), GUARD, XattrFlags::CREATE.bits())
            && error.errno() != Errno::EXIST
        {
            tracing::debug!(%error, "fuse-overlayfs does not refuse the layer");
        }
    }

    /// Whether files of the upper may take data from other layers, as its root says.
    pub(crate) fn needs_lowers(&self) -> bool {
        self.layers.first().is_some_and(|upper| {
            let root = upper.branch.root();
            self.upper.work.is_some() && root.get_xattr(self.upper.space().lowers(), &mut []).is_ok()
        })
    }

    /// Takes that back: no file does any more.
    pub(crate) fn forget_lowers(&self) -> Result<()> {
        let Some(upper) = self.layers.first() else { return Ok(()) };
        let (root, space) = (upper.branch.root(), self.upper.space());
        if marks::read_value(&*root, space.guard(), GUARD.len() + 1)
            .is_ok_and(|v| v.as_deref() == Some(GUARD))
        {
            root.remove_xattr(space.guard())?;
        }
        remove_if_set(&*root, space.lowers())?;
        self.upper.lowers_recorded.store(false, Relaxed);
        Ok(())
    }

    /// The node of a file that was noted, also if the kernel has forgotten it meanwhile.
    pub(crate) fn unfinished(&self, noted: &PendingCompletion) -> Result<Option<Arc<Node>>> {
        if let Some(node) = noted.node.upgrade() {
            return Ok(Some(node));
        }
        let dir = noted.place.parent.as_dir().ok_or(Errno::NOTDIR)?;
        let _names = dir.entries.share();
        self.child(&noted.place.parent, Name::new(&noted.place.name)?)
    }

    /// After a file was made durable or cut: whether it has become whole.
    pub(crate) fn check_completion(&self, node: &Node, io: &Io) {
        if let (Some(partial), Some(file)) = (&io.partial, node.as_file())
            && io.writable
            && partial.is_complete()
            && let Err(error) = self.finish_partial(file, partial)
        {
            tracing::warn!(path = crate::union::path_of(node), %error, "a partial file stays partial");
        }
    }
}

impl Upper {
    /// Remembers a partial file that is being written to, for [`crate::Union::background_fill`].
    pub(crate) fn note_partial(&self, node: &Arc<Node>) {
        /// Beyond so many, the oldest are left as they are.
        const NOTED_MAX: usize = 1024;
        let place = || node.as_file().and_then(|file| file.state.read().names.first().cloned());
        let mut oldest = None;
        let mut noted = self.partials.lock();
        if !noted.iter().any(|known| std::ptr::eq(known.node.as_ptr(), Arc::as_ptr(node)))
            && let Some(place) = place()
        {
            if noted.len() >= NOTED_MAX {
                oldest = noted.pop_front();
            }
            noted.push_back(PendingCompletion { node: Arc::downgrade(node), place });
        }
        // Dropped after the lock: a node may go with it.
        drop(noted);
        drop(oldest);
    }

    /// Takes the file out that was noted first.
    pub(crate) fn next_partial(&self) -> Option<PendingCompletion> {
        self.partials.lock().pop_front()
    }

    /// Puts a file back that was taken out.
    pub(crate) fn put_back(&self, noted: PendingCompletion) {
        self.partials.lock().push_front(noted);
    }

    /// How many files are noted.
    pub(crate) fn partials(&self) -> usize {
        self.partials.lock().len()
    }

    /// Those of them whose nodes are there.
    pub(crate) fn partial_nodes(&self) -> Vec<Arc<Node>> {
        self.partials.lock().iter().filter_map(|noted| noted.node.upgrade()).collect()
    }

    /// Forgets all of them; for the end of a mount: they hold nodes, too.
    pub(crate) fn forget_partials(&self) {
        let noted = std::mem::take(&mut *self.partials.lock());
        drop(noted);
    }
}

/// Looks whether the data below are those that a partial file was made from, and notes how they are known from now on. EIO: they
/// are not.
fn check_origin(
    record: Record,
    file: &Arc<dyn BranchFile>,
    below: &dyn BranchFile,
    (space, writable): (Space, bool),
) -> Result<Record> {
    let Some(origin) = record.origin else { return Ok(record) };
    let seen = origin.look(below)?.ok_or(Error::new(Errno::IO, CHANGED).damage())?;
    let record = Record { origin: Some(seen), ..record };
    if writable
        && seen != origin
        && let Err(error) = file.set_xattr(space.partial(), &record.encode(), 0)
    {
        tracing::debug!(%error, "the file below is looked at again next time");
    }
    Ok(record)
}

/// Says on a file that its data are below, all or those of some blocks. `redirect`: its origin has another path.
pub(crate) fn mark(
    to: &dyn Object,
    space: Space,
    own: &OwnMark,
    redirect: Option<&CStr>,
    record: Option<&Record>,
) -> Result<()> {
    if let Some(path) = redirect {
        to.set_xattr(space.redirect(), path.to_bytes(), 0)?;
    }
    if let Some(record) = record {
        to.set_xattr(space.partial(), &record.encode(), 0)?;
    }
    to.set_xattr(space.metacopy(), if record.is_some() { METACOPY_PARTIAL } else { b"" }, 0)?;
    // Last: this one is what counts here.
    to.set_xattr(space.own(), &OwnMark { below: true, partial: record.is_some(), ..*own }.encode(), 0)
}

/// Says on a file whose data are below that it is about to be cut to `size` bytes. `record`: of the data below.
pub(crate) fn mark_cut(to: &dyn Object, space: Space, own: &OwnMark, record: &Record) -> Result<()> {
    to.set_xattr(space.partial(), &record.encode(), 0)?;
    // Last: this one is what counts here.
    to.set_xattr(space.own(), &OwnMark { below: true, cut: true, ..*own }.encode(), 0)
}

/// Ends the cut of a file of the upper layer that was interrupted: a file that has the new size is whole, any other is as it was before.
/// `size`: of the file. Returns its mark from now on.
pub(crate) fn end_cut(object: &dyn Object, space: Space, own: OwnMark, size: u64) -> Result<OwnMark> {
    if is_cut(&own, size, || Record::read(object, space.partial()))? {
        unmark(object, space)?;
        return Ok(OwnMark { below: false, partial: false, cut: false, ..own });
    }
    let own = OwnMark { cut: false, ..own };
    object.set_xattr(space.own(), &own.encode(), 0)?;
    Ok(own)
}

/// Whether a file that says that its data are below has been cut since, and has all its data itself.
pub(crate) fn is_cut(own: &OwnMark, size: u64, record: impl FnOnce() -> Result<Record>) -> Result<bool> {
    // Files without contents never get such marks.
    Ok(size == 0 || own.cut && size == record()?.limit)
}

/// What a file of the upper layer says of its origin, if it says anything.
pub(crate) fn own_mark(object: &dyn Object, space: Space) -> Result<Option<OwnMark>> {
    let mut value = [0u8; 64];
    match object.get_xattr(space.own(), &mut value) {
        Ok(n) => Ok(OwnMark::decode(value.get(..n).unwrap_or_default()).ok()),
        Err(e) if matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Takes those marks away from a file whose data are all its own. An error says that it still counts as what it was.
pub(crate) fn unmark(object: &dyn Object, space: Space) -> Result<()> {
    let own = own_mark(object, space)?;
    for other in [Space::Trusted, Space::User] {
        remove_if_set(object, other.metacopy())?;
    }
    if let Some(own) = own {
        let whole = OwnMark { below: false, partial: false, cut: false, ..own };
        if let Err(error) = object.set_xattr(space.own(), &whole.encode(), 0) {
            // Others must go on refusing it, or finding its data.
            let metacopy: &[u8] = if own.partial { METACOPY_PARTIAL } else { b"" };
            let _ = object.set_xattr(space.metacopy(), metacopy, 0);
            return Err(error);
        }
    }
    remove_silent(object, space);
    Ok(())
}

/// Marks of a file that takes data from below which say nothing where [`OwnMark::below`] does not say so.
const fn inert_marks(space: Space) -> [&'static CStr; 3] {
    [Space::Trusted.redirect(), Space::User.redirect(), space.partial()]
}

fn remove_silent(object: &dyn Object, space: Space) {
    for name in inert_marks(space) {
        if let Err(error) = remove_if_set(object, name) {
            tracing::debug!(%error, "a mark that says nothing any more stays");
        }
    }
}

/// Ends an [`unmark`] that was interrupted after the mark that counts: a file of the upper layer whose own mark says that its
/// data are its own keeps no others that speak of data below.
pub(crate) fn end_unmark(dir: &dyn BranchDir, name: Name<'_>, space: Space) -> Result<()> {
    let has = |mark| match dir.get_xattr_at(name, mark, &mut []) {
        Err(e) if marks::is_none(&e) => Ok(false),
        other => other.map(|_| true),
    };
    let mut left = false;
    for mark in inert_marks(space) {
        left |= has(mark)?;
    }
    // Taken away first, so this one was set by somebody else since, who means what he says.
    if left && !has(Space::Trusted.metacopy())? && !has(Space::User.metacopy())? {
        remove_silent(&*dir.hold(name)?, space);
    }
    Ok(())
}

/// Takes all marks away from a new file that takes none.
pub(crate) fn unmark_all(to: &dyn Object, space: Space) -> Result<()> {
    for name in [space.metacopy(), space.redirect(), space.partial(), space.own()] {
        remove_if_set(to, name)?;
    }
    Ok(())
}

fn remove_if_set(to: &dyn Object, name: &CStr) -> Result<()> {
    match to.remove_xattr(name) {
        Err(e) if !marks::is_none(&e) => Err(e),
        _ => Ok(()),
    }
}

fn object_of(file: &Arc<dyn BranchFile>) -> &dyn Object {
    &**file
}
