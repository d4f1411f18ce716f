//! What is known of descriptors: mappings of files that the program reads, companions of those that it writes to, descriptors that the
//! service has handed out, and the library's own.

pub(crate) mod closing;
pub(crate) mod companion;
pub(crate) mod exclusive_fd;
pub(crate) mod handed_fds;
pub(crate) mod handed_numbers;
pub(crate) mod map;
pub(crate) mod own_fds;
pub(crate) mod reads;
pub(crate) mod table;
