//! What a kernel takes away from a program when somebody writes to it: its capability, and set-id bits where the writer has no privilege.
//! Who writes what others have written, or nobody has changed, gives it back.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use vellum_vfs::{Attr, Errno, Object, Result};

/// The attribute that holds a program's capability.
pub(crate) const CAPABILITY: &CStr = c"security.capability";

/// Longest value of it.
const CAPABILITY_MAX: usize = 64;
/// Set-user-id and set-group-id.
const SET_IDS: u32 = 0o6000;

/// What a program has. Whoever takes it away on purpose must not come between asking and giving back.
pub(crate) struct Privileges {
    /// Its mode, if that has set-id bits.
    mode: Option<u32>,
    capability: Option<Box<[u8]>>,
}

impl Privileges {
    /// Those of a file with these attributes in its layer.
    pub(crate) fn read(object: &dyn Object, attr: &Attr) -> Self {
        Self { capability: capability(object), ..Self::by_mode(attr) }
    }

    /// As [`Privileges::read`], of a file that may be known to have no capability.
    pub(crate) fn read_unless_none(object: &dyn Object, attr: &Attr, none: &NoCapability) -> Self {
        if none.is_known() {
            return Self::by_mode(attr);
        }
        let all = Self::read(object, attr);
        if all.capability.is_none() {
            none.note();
        }
        all
    }

    fn by_mode(attr: &Attr) -> Self {
        let has_bits = attr.is_file() && attr.perm() & SET_IDS != 0;
        Self { mode: has_bits.then_some(attr.perm()), capability: None }
    }

    /// Gives back what is gone. A file that has lost some of it can be used, and is better than none.
    pub(crate) fn restore(&self, object: &dyn Object) {
        let done = (|| -> Result<()> {
            if let Some(mode) = self.mode
                && object.stat()?.perm() != mode
            {
                object.set_mode(mode)?;
            }
            self.capability.as_ref().map_or(Ok(()), |value| object.set_xattr(CAPABILITY, value, 0))
        })();
        if let Err(error) = done {
            tracing::warn!(%error, "a program has lost set-id bits or its capability");
        }
    }
}

/// The capability of a program, as it can be set again.
fn capability(object: &dyn Object) -> Option<Box<[u8]>> {
    let mut value = [0; CAPABILITY_MAX];
    match object.get_xattr(CAPABILITY, &mut value) {
        Ok(len) => value.get(..len).filter(|value| !value.is_empty()).map(Into::into),
        Err(e) => {
            if !matches!(e.errno(), Errno::NODATA | Errno::OPNOTSUPP) {
                tracing::debug!(error = %e, "a program's capability cannot be read");
            }
            None
        }
    }
}

/// Whether a file is known to have no capability: so a kernel that writes back need not be followed by a question each time. It changes
/// under the lock of the file's times only, as a capability does.
#[derive(Default)]
pub(crate) struct NoCapability(AtomicBool);

impl NoCapability {
    pub(crate) fn is_known(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(crate) fn note(&self) {
        self.0.store(true, Relaxed);
    }

    /// It is about to get one.
    pub(crate) fn ends(&self) {
        self.0.store(false, Relaxed);
    }
}
