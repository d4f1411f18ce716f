//! Memory that begins at a page, as direct I/O needs it.

use std::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

pub(super) const PAGE: usize = 4096;

#[derive(Clone, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Bytes that begin at a page.
#[derive(Clone)]
pub struct AlignedBuf {
    pages: Vec<Page>,
    len: usize,
}

impl AlignedBuf {
    /// `len` zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self { pages: vec![Page([0; PAGE]); len.div_ceil(PAGE)], len }
    }

    /// A copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut new = Self::zeroed(bytes.len());
        new.as_mut_slice().copy_from_slice(bytes);
        new
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.pages.as_slice().as_bytes()[..self.len]
    }

    /// The bytes, to be changed.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.pages.as_mut_slice().as_mut_bytes()[..len]
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// Whether direct I/O can use `bytes` as they are.
pub(crate) fn is_aligned(bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(PAGE)
}
