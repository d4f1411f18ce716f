//! What a session has in view, and what it has found out about that.

use crate::session::dirs::Place;
use crate::thresholds::view::FEW;
use core::ffi::CStr;
use vellum_ring::files::{KNOWN_MAX, name_hash};

/// What a session has in view, and what it has found out about that.
pub(crate) struct View {
    pub(super) given: Option<Given>,
    /// Lookups in the directory that were asked for.
    pub(super) asked: u32,
    /// After so many of them there is to be a view.
    pub(super) due: u32,
    /// Looks by the view.
    pub(super) used: u32,
    /// Hashes of names that the kernel knows.
    pub(super) known: [u32; KNOWN_MAX],
    pub(super) known_count: usize,
}

#[derive(Clone, Copy)]
pub(super) struct Given {
    pub(super) place: Place,
    /// The mount of the view.
    pub(super) mount: u64,
    /// Address of the directory's word, and what its upper half says while the view holds.
    pub(super) word: usize,
    pub(super) upper: u64,
}

impl View {
    /// Whether the kernel may know a name.
    pub(super) fn is_known(&self, name: &CStr) -> bool {
        let known = self.known.get(..self.known_count).unwrap_or_default();
        !known.is_empty() && known.contains(&name_hash(name.to_bytes()))
    }

    pub(crate) const fn new() -> Self {
        Self { given: None, asked: 0, due: FEW, used: 0, known: [0; KNOWN_MAX], known_count: 0 }
    }
}
