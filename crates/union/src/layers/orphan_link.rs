//! How a file of the upper layer comes to a name in the work directory when it loses its last one.

use crate::layers::layer_object::Target;
use crate::layers::orphans::{OrphanName, orphan_name};
use crate::layers::work_dir::Work;
use crate::nodes::node::{FileState, Inherit, InodeLocation};
use std::ffi::CStr;
use std::sync::Arc;
use vellum_vfs::{Attr, BranchDir, BranchFile, Name, Object, RenameFlags, Result};

/// How a file comes to its name in the work directory.
pub(crate) enum OrphanLink<'a> {
    /// A name of the upper layer is about to be taken by another file.
    LinkName(&'a dyn BranchDir, Name<'a>),
    /// A name of the upper layer is to be taken away; true: it hides something below.
    MoveName(&'a dyn BranchDir, Name<'a>, bool),
    /// It has a name in the work directory already.
    RenameTemp(&'a CStr),
    /// It has no name at all.
    LinkObject(&'a dyn Object),
}

/// A new file, and its only name.
type NewOrphan = (Arc<dyn BranchFile>, Arc<OrphanName>);

impl Work {
    /// The name that the file `object` will have in the work directory, and whether it is there already; None: a descriptor holds it, or no
    /// process comes after this one.
    pub(crate) fn orphan_name_for(&self, object: &dyn Object) -> Result<Option<(Arc<OrphanName>, bool)>> {
        let Some(orphan) = &self.orphan else { return Ok(None) };
        Ok(Some(orphan.take(object.stat()?.ino)))
    }

    /// A new file that has no other name. None: a storage with descriptors makes one without any, and so does one where it would inherit.
    pub(crate) fn make_orphan(&self, inherit: &Inherit, mode: u32) -> Result<Option<NewOrphan>> {
        if self.orphan.is_none() || inherit.default_acl {
            return Ok(None);
        }
        let temp = self.temp_name();
        let file = self.dir().create(Name::new(&temp)?, mode)?;
        let Some((orphan, _)) = self.orphan_name_for(&*file)? else { return Ok(None) };
        if let Err(error) = self.keep(&orphan, OrphanLink::RenameTemp(&temp)) {
            let _ = self.dir().remove(Name::new(&temp)?);
            return Err(error);
        }
        Ok(Some((file, orphan)))
    }

    /// Gives a file the name, which the ledger has.
    pub(crate) fn keep(&self, orphan: &OrphanName, how: OrphanLink<'_>) -> Result<()> {
        let name = orphan_name(orphan.number);
        let name = Name::new(&name)?;
        match how {
            OrphanLink::LinkName(dir, old) => dir.link(old, self.dir(), name),
            OrphanLink::MoveName(dir, old, covered) if covered && self.exchanges => {
                dir.link(old, self.dir(), name)?;
                self.replace_by_whiteout(dir, old)
            }
            OrphanLink::MoveName(dir, old, covered) => {
                if covered {
                    self.whiteout(dir, old)?;
                }
                dir.rename(old, self.dir(), name, RenameFlags::empty())
            }
            OrphanLink::LinkObject(object) => self.dir().link_object(object, name),
            OrphanLink::RenameTemp(temp) => {
                self.dir().rename(Name::new(temp)?, self.dir(), name, RenameFlags::empty())
            }
        }
    }

    /// What a predecessor has kept under that name.
    pub(crate) fn orphan_of_predecessor(&self, number: u64) -> Result<(Attr, Arc<dyn Object>)> {
        let name = orphan_name(number);
        let object = self.dir().hold(Name::new(&name)?)?;
        Ok((object.stat()?, object))
    }

    /// A file has been made again for a predecessor's record, and has its name from now on.
    pub(crate) fn adopt_orphan(&self, number: u64) -> Option<Arc<OrphanName>> {
        let all = self.orphan.as_ref()?;
        let (orphan, _) = all.take(number);
        all.release(number);
        Some(orphan)
    }
}

impl FileState {
    /// Takes the last name of a file in the upper layer: it lives on as `object`. Whether a name in the work directory is to be made for it;
    /// the caller writes that down first.
    pub(crate) fn hold(&mut self, work: &Work, object: Arc<dyn Object>) -> Result<bool> {
        let mut is_new = false;
        if self.orphan().is_none()
            && let Some((orphan, is_there)) = work.orphan_name_for(&*object)?
        {
            if self.below.is_some() {
                // Its data are found by the name that it has lost.
                let name = orphan_name(orphan.number);
                work.mark_moved(self, &Target::Object(Arc::clone(&object)), Name::new(&name)?)?;
            }
            is_new = !is_there;
            self.set_orphan_name(Some(orphan));
        }
        self.at = InodeLocation::Orphan(object);
        Ok(is_new)
    }

    /// It was not removed after all.
    pub(crate) fn unhold(&mut self) {
        if self.set_orphan_name(None).is_some() {
            self.at = InodeLocation::Upper;
        }
    }

    /// Links of the file besides the name in the work directory.
    pub(crate) fn links(&self, nlink: u32) -> u32 {
        nlink.saturating_sub(u32::from(self.orphan().is_some()))
    }
}
