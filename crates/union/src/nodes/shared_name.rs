//! A name, or a path in a layer, in one piece of memory that several tables share.

use std::borrow::Borrow;
use std::ffi::CStr;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use triomphe::ThinArc;
use vellum_vfs::Name;

/// A name: one pointer wide.
#[derive(Clone)]
pub(crate) struct SharedName(ThinArc<(), u8>);

impl Deref for SharedName {
    type Target = CStr;

    fn deref(&self) -> &CStr {
        CStr::from_bytes_with_nul(&self.0.slice).unwrap_or_default()
    }
}

impl From<&CStr> for SharedName {
    fn from(name: &CStr) -> Self {
        Self(ThinArc::from_header_and_slice((), name.to_bytes_with_nul()))
    }
}

impl From<Box<CStr>> for SharedName {
    fn from(name: Box<CStr>) -> Self {
        Self::from(&*name)
    }
}

impl From<Name<'_>> for SharedName {
    fn from(name: Name<'_>) -> Self {
        Self::from(name.as_c_str())
    }
}

impl AsRef<CStr> for SharedName {
    fn as_ref(&self) -> &CStr {
        self
    }
}

impl Borrow<CStr> for SharedName {
    fn borrow(&self) -> &CStr {
        self
    }
}

impl Hash for SharedName {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        CStr::hash(self, hasher);
    }
}

impl PartialEq for SharedName {
    fn eq(&self, other: &Self) -> bool {
        self.0.slice == other.0.slice
    }
}

impl Eq for SharedName {}

impl fmt::Debug for SharedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_shared_name_is_found_by_its_bytes() {
        let name = SharedName::from(c"some name");
        let table = HashMap::from([(name.clone(), 1)]);
        assert_eq!(table.get(c"some name"), Some(&1));
        assert_eq!(table.get(c"some"), None);
        assert_eq!((&*name, size_of::<SharedName>()), (c"some name", size_of::<usize>()));
    }
}
