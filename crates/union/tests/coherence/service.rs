//! A process that serves the tree, until it dies.

#[path = "../../../branch/tests/support/fault/mod.rs"]
mod fault;

use crate::export::Slow;
use crate::world::{Kernel, Way};
use fault::{FaultBranch, FaultExport, FaultPlan, ObjectExport};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use vellum_branch::MemoryBranch;
use vellum_sys::crash_point;
use vellum_union::{Directory, Generations, Ledger, Union, UnionConfig, UpperConfig};
use vellum_vfs::{Branch, Connection, Duties, Filesystem, Handout, NodeId, Profile};

/// Whether a process lives. What a dead one does reaches nobody: no disk, no kernel, no program.
pub struct Life {
    plan: Arc<FaultPlan>,
    over: AtomicBool,
}

impl Life {
    pub fn is_finished(&self) -> bool {
        self.over.load(SeqCst)
    }
}

pub struct Service {
    pub fs: Union,
    pub life: Arc<Life>,
    ledger: Arc<Ledger>,
    /// The directory, as a program has entered it.
    shared: OnceLock<Directory>,
}

impl Service {
    /// A service of what is on the disk, which goes on with what is in the ledger.
    pub fn begin(
        disk: &MemoryBranch,
        generations: &Arc<Generations>,
        ledger: Arc<Ledger>,
        kernel: &Arc<Kernel>,
    ) -> Self {
        let life = Arc::new(Life { plan: FaultPlan::new(), over: AtomicBool::new(false) });
        let part = |path: &str| disk.subtree(path).unwrap();
        let branch = |path| FaultBranch::new(part(path), Arc::clone(&life.plan)) as Arc<dyn Branch>;
        let mut config = UnionConfig::new();
        config.upper = Some(UpperConfig { branch: branch("upper"), work: branch("work") });
        config.lowers = vec![branch("lower")];
        config.profile = Profile::Passthrough;
        config.background = false;
        let export = FaultExport::new(ObjectExport::new(part("upper")), Arc::clone(&life.plan));
        config.export = Some(Arc::new(Slow(export)));
        config.generations = Some(Arc::clone(generations));
        config.ledger = Some(Arc::clone(&ledger));
        let fs = Union::new(config).unwrap();
        // Objects without names are held by descriptors, which a disk in memory has not; nobody asks for any.
        fs.resume(HashMap::new());
        let duties = Duties::SERVES_FILES | Duties::OPENS_DIRS | Duties::CHECKS_PERMISSION;
        let way = Arc::new(Way(Arc::downgrade(kernel), Arc::clone(&life)));
        fs.start(Connection { duties, notifier: way });
        Self { fs, life, ledger, shared: OnceLock::new() }
    }

    /// The program enters the directory.
    pub fn is_entered(&self, dir: NodeId) {
        assert!(self.shared.set(self.fs.enter(dir).unwrap()).is_ok(), "entered twice");
    }

    pub fn shared(&self) -> &Directory {
        self.shared.get().expect("entered")
    }

    /// It dies now; the ledger that it leaves, to which its threads add nothing any more.
    pub fn dies(&self) -> OwnedFd {
        self.life.over.store(true, SeqCst);
        self.life.plan.kill_at_step(0);
        crash_point::copy(self.ledger.descriptor(), c"copy").unwrap()
    }
}
