//! The wrapped face by which files are handed out. What is handed out is wrapped no more: faults are the service's, and by such a file it is
//! the client who reads and writes.

use super::FaultPlan;
use std::sync::Arc;
use vellum_vfs::{Export, ExportDir, ExportFile, ExportedFile, HandoutFlags, Name, Result};

/// A face of a branch that does what its plan lets through.
pub struct FaultExport {
    inner: Arc<dyn Export>,
    plan: Arc<FaultPlan>,
}

impl FaultExport {
    /// Wraps such a face.
    #[must_use]
    pub fn new(inner: Arc<dyn Export>, plan: Arc<FaultPlan>) -> Arc<Self> {
        Arc::new(Self { inner, plan })
    }
}

struct FaultExportDir {
    inner: Arc<dyn ExportDir>,
    plan: Arc<FaultPlan>,
}

impl FaultExportDir {
    fn wrap(inner: Arc<dyn ExportDir>, plan: &Arc<FaultPlan>) -> Arc<dyn ExportDir> {
        Arc::new(Self { inner, plan: Arc::clone(plan) })
    }
}

impl Export for FaultExport {
    fn open_dir(&self, path: &[u8], ino: u64) -> Result<Arc<dyn ExportDir>> {
        self.plan.look()?;
        Ok(FaultExportDir::wrap(self.inner.open_dir(path, ino)?, &self.plan))
    }

    fn open_file(&self, path: &[u8], flags: HandoutFlags) -> Result<ExportedFile> {
        self.plan.look()?;
        self.inner.open_file(path, flags)
    }

    fn set_flags(&self, file: &ExportFile, flags: HandoutFlags) -> Result<()> {
        self.plan.look()?;
        self.inner.set_flags(file, flags)
    }

    fn set_owner(&self, file: &ExportFile, uid: u32, gid: u32) -> Result<()> {
        self.plan.change()?;
        self.inner.set_owner(file, uid, gid)
    }

    fn truncate_to_zero(&self, file: &ExportFile) -> Result<()> {
        self.plan.change()?;
        self.inner.truncate_to_zero(file)
    }
}

impl ExportDir for FaultExportDir {
    fn create(&self, name: Name<'_>, flags: HandoutFlags, mode: u32) -> Result<ExportedFile> {
        self.plan.change()?;
        self.inner.create(name, flags, mode)
    }

    fn open(&self, name: Name<'_>, flags: HandoutFlags) -> Result<ExportedFile> {
        self.plan.look()?;
        self.inner.open(name, flags)
    }

    fn remove(&self, name: Name<'_>) -> Result<()> {
        self.plan.change()?;
        self.inner.remove(name)
    }

    fn open_dir(&self, name: Name<'_>, ino: u64) -> Result<Arc<dyn ExportDir>> {
        self.plan.look()?;
        Ok(Self::wrap(self.inner.open_dir(name, ino)?, &self.plan))
    }
}
