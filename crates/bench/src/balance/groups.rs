//! Four control groups with weights, below one that may have so much memory.

use crate::failure::{Failure, Result, While};
use crate::memcg;
use std::fs;
use std::path::{Path, PathBuf};

const TOP: &str = "/sys/fs/cgroup";

/// The groups. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Groups {
    name: String,
    /// Where they are made: one hierarchy, or in version 1 one for memory and one for processors.
    tops: Vec<PathBuf>,
    weights: Vec<u32>,
}

impl Groups {
    /// Makes them. Fails without root, and where the kernel does not count memory.
    pub(super) fn new(memory: u64, weights: &[u32]) -> Result<Self> {
        let top = Path::new(TOP);
        let is_one = top.join("cgroup.controllers").exists();
        let tops = if is_one { vec![top.to_owned()] } else { vec![top.join("memory"), top.join("cpu")] };
        if let Some(missing) = tops.iter().find(|top| !top.is_dir()) {
            return Err(Failure::new(format!("there are no control groups at {}", missing.display())));
        }
        let name = format!("vellum-bench-balance-{}", std::process::id());
        let groups = Self { name, tops, weights: weights.to_vec() };
        groups.make(is_one, memory)?;
        Ok(groups)
    }

    fn make(&self, is_one: bool, memory: u64) -> Result<()> {
        let write = |path: PathBuf, text: String| {
            fs::write(&path, text).doing(|| format!("writing to {}", path.display()))
        };
        let children =
            |parent: &Path| write(parent.join("cgroup.subtree_control"), "+memory +cpu".to_owned());
        for top in &self.tops {
            let parent = top.join(&self.name);
            if is_one {
                children(top)?;
            }
            fs::create_dir(&parent).doing(|| format!("making {}", parent.display()))?;
            if is_one {
                children(&parent)?;
            }
            for number in 0..self.weights.len() {
                let group = parent.join(number.to_string());
                fs::create_dir(&group).doing(|| format!("making {}", group.display()))?;
            }
        }
        let [first, last] =
            [self.tops.first(), self.tops.last()].map(|top| top.map(|top| top.join(&self.name)));
        let (Some(for_memory), Some(for_processors)) = (first, last) else { return Ok(()) };
        let limit = if is_one { "memory.max" } else { "memory.limit_in_bytes" };
        write(for_memory.join(limit), memory.to_string())?;
        for (number, weight) in self.weights.iter().enumerate() {
            let group = for_processors.join(number.to_string());
            // What engines set: 1024 shares are the weight 100.
            match is_one {
                true => write(group.join("cpu.weight"), weight.to_string())?,
                false => write(group.join("cpu.shares"), (weight * 1024 / 100).to_string())?,
            }
        }
        Ok(())
    }

    /// What `vellum balance` is told.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Puts a process into one of them.
    pub(super) fn put(&self, number: usize, process: u32) -> Result<()> {
        self.tops.iter().try_for_each(|top| {
            let group = top.join(&self.name).join(number.to_string());
            fs::write(group.join("cgroup.procs"), process.to_string())
                .doing(|| format!("putting a process into {}", group.display()))
        })
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for top in &self.tops {
            let parent = top.join(&self.name);
            let groups = (0..self.weights.len()).map(|number| parent.join(number.to_string()));
            for group in groups.chain([parent.clone()]) {
                if !memcg::remove(&group, top) {
                    eprintln!("vellum-bench: cannot remove {}", group.display());
                }
            }
        }
    }
}
