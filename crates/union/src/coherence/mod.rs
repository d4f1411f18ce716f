//! What each party may believe of the union, and how it is taken back when that changes.
//!
//! Parties keep answers: the kernel (names, attributes, lists, pages), readers of mappings, and clients that have
//! files of the upper layer open to write. Each change recalls what somebody may still believe before it is answered.
//!
//! | what | the kernel | mappings | writers (clients with the file itself) | recalled by |
//! | --- | --- | --- | --- | --- |
//! | a file's attributes | until told; for no time while somebody writes past it ([`no_writers`]), for 20 ms where it may be mapped to write ([`mapped`]) | - | change them unseen: a filter says of which files that may be so ([`writers`]) | `inval_inode` without data; the kernel orders answers that are under way itself |
//! | a directory's attributes | until told ([`leases`]) | - | change them with names | the same, by [`names::LockedNames`] when it is dropped |
//! | a list of names | until told ([`leases`]) | - | change it | `expire_data`, by [`names::LockedNames`]; a list that is under way is waited for, by refusing |
//! | one name that is there | until the kernel removes it | - | make names only ([`unknown_to_kernel`]) | the kernel is never contradicted |
//! | one name that is not there | until the kernel makes it ([`negative`]) | - | do not make it | not at all: it is the kernel's to make |
//! | data | one page cache in passthrough; else none of files that are handed out | the same pages | the same pages | - |
//! | a file's length | with its attributes | while the generation stays ([`generations`]) | may cut the file: it is mapped by nobody then | [`generations`], before the file is cut |
//! | when a file was changed (ctime) | states it itself, where it writes back ([`ctimes`]) | - | - | not at all: what it has stated is shown |
//!
//! Names change in one way, [`names`]; what is found out of names that are there is noted in [`entries`].

pub(crate) mod ctimes;
pub(crate) mod entries;
pub(crate) mod generations;
pub(crate) mod leases;
pub(crate) mod mapped;
pub(crate) mod mapped_opens;
pub(crate) mod mappings;
pub(crate) mod names;
pub(crate) mod negative;
pub(crate) mod no_writers;
pub(crate) mod stated;
pub(crate) mod told;
pub(crate) mod unknown_to_kernel;
pub(crate) mod writers;
