//! How a file of the upper layer comes to a name in the work directory when it loses its last one.

use crate::layers::kept::{KeptName, named};
use crate::layers::target::Target;
use crate::layers::work::Work;
use crate::nodes::node::{At, FileState, Inherit};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Attr, BranchDir, BranchFile, Name, Object, RenameFlags, Result};

/// How a file comes to its name in the work directory.
pub(crate) enum Keep<'a> {
    /// A name of the upper layer is about to be taken by another file.
    Beside(&'a dyn BranchDir, Name<'a>),
    /// A name of the upper layer is to be taken away; true: it hides something below.
    Instead(&'a dyn BranchDir, Name<'a>, bool),
    /// It has a name in the work directory already.
    There(&'a CStr),
    /// It has no name at all.
    Held(&'a dyn Object),
}

/// A new file, and its only name.
type NewKept = (Arc<dyn BranchFile>, Arc<KeptName>);

impl Work {
    /// The name that the file `object` will have in the work directory, and whether it is there already; None: a descriptor holds it, or no
    /// process comes after this one.
    pub(crate) fn kept_name(&self, object: &dyn Object) -> Result<Option<(Arc<KeptName>, bool)>> {
        let Some(kept) = &self.kept else { return Ok(None) };
        Ok(Some(kept.take(object.stat()?.ino)))
    }

    /// A new file that has no other name. None: a storage with descriptors makes one without any, and so does one where it would inherit.
    pub(crate) fn make_kept(&self, inherit: &Inherit, mode: u32) -> Result<Option<NewKept>> {
        if self.kept.is_none() || inherit.default_acl {
            return Ok(None);
        }
        let temp = self.temp_name();
        let file = self.dir().create(Name::new(&temp)?, mode)?;
        let Some((kept, _)) = self.kept_name(&*file)? else { return Ok(None) };
        if let Err(error) = self.keep(&kept, Keep::There(&temp)) {
            let _ = self.dir().remove(Name::new(&temp)?);
            return Err(error);
        }
        Ok(Some((file, kept)))
    }

    /// Gives a file the name, which the ledger has.
    pub(crate) fn keep(&self, kept: &KeptName, how: Keep<'_>) -> Result<()> {
        let name = named(kept.number);
        let name = Name::new(&name)?;
        match how {
            Keep::Beside(dir, old) => dir.link(old, self.dir(), name),
            Keep::Instead(dir, old, covered) if covered && self.exchanges => {
                dir.link(old, self.dir(), name)?;
                self.replace_by_whiteout(dir, old)
            }
            Keep::Instead(dir, old, covered) => {
                if covered {
                    self.whiteout(dir, old)?;
                }
                dir.rename(old, self.dir(), name, RenameFlags::empty())
            }
            Keep::Held(object) => self.dir().link_object(object, name),
            Keep::There(temp) => self.dir().rename(Name::new(temp)?, self.dir(), name, RenameFlags::empty()),
        }
    }

    /// What a predecessor has kept under that name.
    pub(crate) fn kept_by_predecessor(&self, number: u64) -> Result<(Attr, Arc<dyn Object>)> {
        let name = named(number);
        let object = self.dir().hold(Name::new(&name)?)?;
        Ok((object.stat()?, object))
    }

    /// A file has been made again for a predecessor's record, and has its name from now on.
    pub(crate) fn adopt_kept(&self, number: u64) -> Option<Arc<KeptName>> {
        let all = self.kept.as_ref()?;
        let (kept, _) = all.take(number);
        all.release(number);
        Some(kept)
    }
}

impl FileState {
    /// Takes the last name of a file in the upper layer: it lives on as `object`. Whether a name in the work directory is to be made for it;
    /// the caller writes that down first.
    pub(crate) fn hold(&mut self, work: &Work, object: Arc<dyn Object>) -> Result<bool> {
        let mut is_new = false;
        if self.kept().is_none()
            && let Some((kept, is_there)) = work.kept_name(&*object)?
        {
            if self.below.is_some() {
                // Its data are found by the name that it has lost.
                let name = named(kept.number);
                work.mark_moved(self, &Target::Held(Arc::clone(&object)), Name::new(&name)?)?;
            }
            is_new = !is_there;
            self.set_kept(Some(kept));
        }
        self.at = At::Held(object);
        Ok(is_new)
    }

    /// It was not removed after all.
    pub(crate) fn unhold(&mut self) {
        if self.set_kept(None).is_some() {
            self.at = At::Upper;
        }
    }

    /// Links of the file besides the name in the work directory.
    pub(crate) fn links(&self, nlink: u32) -> u32 {
        nlink.saturating_sub(u32::from(self.kept().is_some()))
    }
}
