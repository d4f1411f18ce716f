//! A subject mounted for a task: once, or as several clones over one lower layer.

use crate::failure::{Failure, Result};
use crate::ground::Ground;
use crate::pools::Pools;
use crate::service::Service;
use crate::subject::{Mounted, Subject};
use crate::tasks::{Env, Task};
use crate::workload::worker::Workers;
use std::path::PathBuf;

/// The mounts of a task and what runs in them. Dropping it ends everything.
#[derive(Debug)]
pub struct Stage {
    // First, so that nothing runs in a mount any more when it is taken down.
    workers: Workers,
    mounts: Vec<Mounted>,
    // After the mounts, whose services are in them.
    pools: Option<Pools>,
    roots: Vec<PathBuf>,
    uppers: Vec<PathBuf>,
}

impl Stage {
    /// Mounts `subject` as often as `task` wants it, on fresh upper layers.
    pub fn mount(subject: &Subject, ground: &Ground, task: &Task) -> Result<Self> {
        let clones = ground.clones(task.lower, (task.clones)(ground))?;
        let uppers = clones.iter().map(|layers| layers.upper.clone()).collect();
        let pools = match &subject.program {
            Some(program) if subject.kind.has_pools() => {
                Some(Pools::make(program, ground.top(), clones.len())?)
            }
            _ => None,
        };
        let mounts = clones
            .iter()
            .enumerate()
            .map(|(number, layers)| {
                subject.mount(layers, task.alters, pools.as_ref().map(|pools| (number, pools)))
            })
            .collect::<Result<Vec<Mounted>>>()?;
        let roots = mounts.iter().map(|mounted| mounted.root.clone()).collect();
        Ok(Self { workers: Workers::default(), mounts, pools, roots, uppers })
    }

    /// Mounts, does `what`, unmounts.
    pub fn during<T>(
        subject: &Subject,
        ground: &Ground,
        task: &Task,
        what: impl FnOnce(&Env<'_>, &Self) -> Result<T>,
    ) -> Result<T> {
        let stage = Self::mount(subject, ground, task)?;
        let done = stage.env(ground).and_then(|env| what(&env, &stage));
        stage.unmount()?;
        done
    }

    /// Where the task's steps happen.
    pub fn env<'a>(&'a self, ground: &'a Ground) -> Result<Env<'a>> {
        match (self.roots.first(), self.uppers.first()) {
            (Some(root), Some(upper)) => Ok(Env {
                root,
                upper,
                roots: &self.roots,
                uppers: &self.uppers,
                workers: &self.workers,
                ground,
            }),
            _ => Err(Failure::new("nothing is mounted")),
        }
    }

    /// The processes behind the mounts, each once.
    #[must_use]
    pub fn services(&self) -> Vec<Service> {
        let mut services: Vec<Service> = self.mounts.iter().filter_map(|mounted| mounted.service).collect();
        services.sort_unstable_by_key(|service| service.pid);
        services.dedup();
        services
    }

    /// Ends the workers, then unmounts everything; the first failure counts, the others are said.
    pub fn unmount(self) -> Result<()> {
        let Self { workers, mounts, pools, .. } = self;
        drop(workers);
        let mut result = Ok(());
        for mounted in mounts {
            match mounted.unmount() {
                Err(failure) if result.is_ok() => result = Err(failure),
                Err(failure) => eprintln!("vellum-bench: {failure}"),
                Ok(()) => {}
            }
        }
        drop(pools);
        result
    }
}
