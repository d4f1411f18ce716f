//! One side of a comparison: a mounted tree, and the hands that do operations there.

use super::executor::Executor;
use super::library::Program;
use super::ops::Op;
use crate::harness::{Mount, Outcome};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::fs::MetadataExt;

/// A mounted tree.
pub(super) struct Side {
    pub(super) mount: Mount,
    by: Runner,
}

/// Where operations are done.
enum Runner {
    This(Executor),
    /// In a process with the preload library.
    Program(Box<Program>),
}

impl Side {
    /// Operations are done by this process.
    pub(super) fn new(mount: Mount, since: i64, early_copy_up: bool, without_setid: bool) -> Self {
        let hands = Executor::new(mount.root().to_owned(), since, early_copy_up, without_setid);
        Self { mount, by: Runner::This(hands) }
    }

    /// Operations are done by a program.
    pub(super) fn of_program(mount: Mount, program: Program) -> Self {
        Self { mount, by: Runner::Program(Box::new(program)) }
    }

    /// Does the operation that has this number in the plan, and says what it has come to.
    pub(super) fn act(&mut self, number: usize, op: &Op, as_user: bool) -> Outcome<String> {
        match &mut self.by {
            Runner::This(hands) => {
                let done = hands.act(op, as_user);
                hands.be_root();
                Ok(done)
            }
            Runner::Program(program) => program.act(number),
        }
    }

    /// Whether two names are the same, or names of one file.
    pub(super) fn are_one_file(&self, one: &str, other: &str) -> bool {
        let number =
            |path: &str| fs::symlink_metadata(self.mount.root().join(path)).map(|meta| meta.ino()).ok();
        one == other || number(one).is_some_and(|ino| number(other) == Some(ino))
    }

    /// Closes every descriptor. A program is begun once more.
    pub(super) fn close_all(&mut self) -> Outcome {
        match &mut self.by {
            Runner::This(hands) => {
                hands.close_all();
                Ok(())
            }
            Runner::Program(program) => program.begin_again(),
        }
    }

    /// Makes what was written durable.
    pub(super) fn sync(&self) -> Outcome {
        Ok(rustix::fs::syncfs(rustix::fs::open(self.mount.root(), OFlags::DIRECTORY, Mode::empty())?)?)
    }

    /// Nothing more is done. How many calls went by a ring.
    pub(super) fn end(self) -> Outcome<(Mount, u64)> {
        Ok(match self.by {
            Runner::This(_) => (self.mount, 0),
            Runner::Program(program) => (self.mount, program.end()?),
        })
    }
}
