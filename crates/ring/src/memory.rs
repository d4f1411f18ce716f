//! The form of memory that outlives the service which writes it, as far as programs look at it, too.

/// Words before those of the owner: a page. The first says which memory it is, and in which version.
pub const HEADER: usize = 512;

/// First word of the memory of generations, which has a word for each node after the header.
pub const GENERATIONS: u64 = 0x7665_6c6c_6765_0001;
/// Word that says which memory of generations it is.
pub const GENERATIONS_ID: usize = 1;
