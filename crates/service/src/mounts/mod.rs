//! The mount of an instance: the directory that it is on, what is agreed on with the kernel, taking it away, and what is done after it.

pub(crate) mod flatten_after_unmount;
pub mod mount_copies;
pub mod mountpoint;
pub mod session_setup;
pub mod unmount;
