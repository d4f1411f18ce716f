//! What the kernel has of files itself: those that it reads and writes without asking, and pages of the others.

pub(crate) mod backing;
pub(crate) mod pages;
