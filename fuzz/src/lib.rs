//! What is fed with arbitrary bytes, target by target. `scripts/fuzz` lets libFuzzer look for bytes that make one panic, hang or
//! take too much memory; what it has found to be worth trying is kept in `corpus`, which every run of the unit tests goes through.

#![forbid(unsafe_code)]

mod checkpoint;
mod command_line;
mod dirty_log;
mod image;
mod layer;
mod library;
mod mount_record;
mod request;
mod ring;
mod store_server;
mod zoned;

/// Something that bytes can be fed to.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of the directory of its corpus.
    pub name: &'static str,
    /// Takes bytes; panics when something does not hold. True: they were accepted, and not only refused without harm.
    pub feed: fn(&[u8]) -> bool,
}

pub const TARGETS: &[Target] = &[
    Target { name: "request", feed: request::feed },
    Target { name: "options", feed: command_line::feed },
    Target { name: "mount_record", feed: mount_record::feed },
    Target { name: "marks", feed: layer::marks },
    Target { name: "record", feed: layer::record },
    Target { name: "ring", feed: ring::feed },
    Target { name: "archive", feed: image::archive },
    Target { name: "layout", feed: image::layout },
    Target { name: "dirty_log", feed: dirty_log::feed },
    Target { name: "zoned", feed: zoned::feed },
    Target { name: "store_server", feed: store_server::feed },
    Target { name: "library", feed: library::feed },
    Target { name: "checkpoint", feed: checkpoint::feed },
];

/// Their names.
#[must_use]
pub fn names() -> Vec<&'static str> {
    TARGETS.iter().map(|target| target.name).collect()
}

/// Bytes that are taken from the front.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (some, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        some
    }

    /// Bytes behind one that says how many.
    fn part(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte());
        self.bytes(len)
    }

    fn number(&mut self) -> u64 {
        self.bytes(8).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn every_corpus_input_still_passes() {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        for target in TARGETS {
            let mut accepted = 0;
            for entry in fs::read_dir(corpus.join(target.name)).expect(target.name) {
                let bytes = fs::read(entry.expect("an entry").path()).expect("a file");
                accepted += usize::from((target.feed)(&bytes));
            }
            // One of which everything is refused at its first field, as that of an older format is, tries nothing behind that.
            assert!(accepted > 0, "nothing in the corpus of {} is accepted", target.name);
            (target.feed)(&[]);
        }
    }

    #[test]
    fn every_corpus_is_of_a_target() {
        for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")).expect("corpora") {
            let name = entry.expect("an entry").file_name();
            assert!(names().iter().any(|target| name == *target), "{name:?}");
        }
    }
}
