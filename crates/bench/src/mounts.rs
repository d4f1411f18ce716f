//! A subject mounted for a task: once, or as several clones over one lower layer.

use crate::ceph::Tenants;
use crate::contender::{Contender, MountedSubject};
use crate::descendants;
use crate::failure::Result;
use crate::pools::Pools;
use crate::service::Service;
use crate::task_process::Client;
use crate::tasks::{self, Task};
use crate::testbed::{Lower, Testbed};
use crate::workload::job::{Job, Part};
use crate::workload::worker::{Variables, Worker};
use std::path::PathBuf;

/// The mounts of a task. Dropping it unmounts them.
#[derive(Debug)]
pub struct Mounts {
    mounts: Vec<MountedSubject>,
    // After the mounts, whose services are in them.
    pools: Option<Pools>,
    // After the mounts, whose layers they show.
    tenants: Option<Tenants>,
    /// The clients that show layers on CephFS, for all but Vellum.
    clients: Vec<Service>,
    variables: Variables,
    roots: Vec<PathBuf>,
    uppers: Vec<PathBuf>,
}

impl Mounts {
    /// Mounts `subject` as often as `task` wants it, on fresh upper layers.
    pub fn mount(subject: &Contender, testbed: &Testbed, task: &Task) -> Result<Self> {
        let mut clones = testbed.clones(task.lower, (task.clones)(testbed))?;
        testbed.begin_anew()?;
        let tenants =
            subject.kind.has_own_clients().then(|| testbed.tenants(clones.len())).transpose()?.flatten();
        if let Some(tenants) = &tenants {
            clones =
                clones.iter().enumerate().map(|(number, layers)| tenants.layers(number, layers)).collect();
        }
        let clients = match &tenants {
            Some(tenants) => tenants.services().collect(),
            None if subject.kind.is_vellum() => Vec::new(),
            None => testbed.remote_service().into_iter().collect(),
        };
        // Clones of an image on CephFS are in one pool, which has one client and one cache, unless each is a tenant's.
        let together = task.cache.is_some()
            || (testbed.is_remote() && subject.kind.is_vellum() && clones.len() > 1 && !task.tenants);
        let uppers = clones.iter().map(|layers| layers.upper.clone()).collect();
        let pools = match &subject.program {
            Some(program) if subject.kind.has_pools() || together => {
                let tenants = if together { 1 } else { clones.len() };
                Some(Pools::make(program, testbed.top(), tenants, testbed.is_remote())?)
            }
            _ => None,
        };
        // All that are together are in the first pool.
        let tenant = |number: usize| {
            let number = if together { 0 } else { number };
            pools.as_ref().map(|pools| (number, pools))
        };
        let cache = |number: usize| {
            let cache = task.cache.as_ref()?;
            let (bytes, weight) = ((cache.bytes)(testbed), cache.weights.get(number)?);
            Some(format!(",cache=immutable,cache_size={bytes},weight={weight}"))
        };
        let mut mounts = clones
            .iter()
            .enumerate()
            .map(|(number, layers)| {
                subject.mount(layers, task, tenant(number), &cache(number).unwrap_or_default())
            })
            .collect::<Result<Vec<MountedSubject>>>()?;
        if together && let Some((_, others)) = mounts.split_last_mut() {
            // One service for all: it ends after the last.
            others.iter_mut().for_each(|mounted| mounted.service = None);
        }
        let roots = mounts.iter().map(|mounted| mounted.root.clone()).collect();
        let mut variables = Variables::new();
        if let (Some(library), Some(pools)) = (&subject.library, &pools) {
            variables.push(("LD_PRELOAD", library.into()));
            variables.push(("VELLUM_SOCKET", pools.socket(0)?.into()));
        }
        Ok(Self { mounts, pools, tenants, clients, variables, roots, uppers })
    }

    /// Mounts, does `what`, unmounts.
    pub fn during<T>(
        subject: &Contender,
        testbed: &Testbed,
        task: &Task,
        what: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let mounts = Self::mount(subject, testbed, task)?;
        let done = what(&mounts);
        mounts.unmount()?;
        done
    }

    /// Fails where a subject has a library that does nothing.
    pub fn check_library(subject: &Contender, testbed: &Testbed) -> Result<()> {
        let Some(task) = tasks::TASKS.iter().find(|task| task.library && task.lower == Lower::Empty) else {
            return Ok(());
        };
        if subject.library.is_none() {
            return Ok(());
        }
        Self::during(subject, testbed, task, |mounts| {
            let root = mounts.roots.first().cloned().unwrap_or_default();
            Worker::ready(Job::Probe { root }, &mounts.variables).map(drop)
        })
    }

    /// A process that has prepared the task here, to be measured.
    pub fn client(&self, testbed: &Testbed, task: &Task) -> Result<Client> {
        let services = self.processes().iter().map(|service| service.pid).collect();
        self.prepared(testbed, task, Some(services))
    }

    /// A process that has prepared the task here, to be counted: it does nothing but the task.
    pub fn client_unmeasured(&self, testbed: &Testbed, task: &Task) -> Result<Client> {
        self.prepared(testbed, task, None)
    }

    fn prepared(&self, testbed: &Testbed, task: &Task, services: Option<Vec<u32>>) -> Result<Client> {
        Client::start(Part { services, ..self.part(testbed, task) }, &self.variables)
    }

    /// What it takes to do the task here, without measuring it.
    #[must_use]
    pub fn part(&self, testbed: &Testbed, task: &Task) -> Part {
        Part {
            task: task.name.to_owned(),
            place: (testbed.top().to_owned(), testbed.scale()),
            roots: self.roots.clone(),
            uppers: self.uppers.clone(),
            services: None,
        }
    }

    #[must_use]
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Their upper layers.
    #[must_use]
    pub fn uppers(&self) -> &[PathBuf] {
        &self.uppers
    }

    /// The processes behind the mounts, each once.
    #[must_use]
    pub fn services(&self) -> Vec<Service> {
        let mut services: Vec<Service> = self.mounts.iter().filter_map(|mounted| mounted.service).collect();
        services.sort_unstable_by_key(|service| service.pid);
        services.dedup();
        services
    }

    /// All that are at work for the mounts: their services, and the clients that show them what lies on CephFS.
    #[must_use]
    pub fn processes(&self) -> Vec<Service> {
        self.services().into_iter().chain(self.clients.iter().copied()).collect()
    }

    /// Unmounts everything; the first failure counts, the others are said. Where a service lives on, all are killed: the others would not end
    /// either, if another mount namespace has a copy of the mounts, and each would be waited for.
    pub fn unmount(self) -> Result<()> {
        let Self { mounts, pools, tenants, .. } = self;
        let mut result = Ok(());
        for mounted in mounts {
            match mounted.unmount() {
                Err(failure) if result.is_ok() => {
                    result = Err(failure);
                    descendants::kill();
                }
                Err(failure) => eprintln!("vellum-bench: {failure}"),
                Ok(()) => {}
            }
        }
        drop(pools);
        result.and(tenants.map_or(Ok(()), |tenants| tenants.end()))
    }
}
