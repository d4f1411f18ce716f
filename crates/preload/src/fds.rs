//! What is known of descriptors: mappings of files that the program reads, companions of those that it writes to, descriptors that the
//! service has handed out, and the library's own.

pub(crate) mod close;
pub(crate) mod companion;
pub(crate) mod exclusive_fd;
pub(crate) mod map;
pub(crate) mod reads;
pub(crate) mod service_fd_numbers;
pub(crate) mod service_fds;
pub(crate) mod session_fds;
pub(crate) mod table;
