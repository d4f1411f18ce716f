//! Processors of each tenant of an experiment: his processes run on his own, whatever filesystem they use.

use crate::failure::{Result, While};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors of tenant `number` of `count`: equal parts of those that this process may use. None when there are fewer than
/// tenants; then all use all.
#[must_use]
pub fn share(number: usize, count: usize) -> Option<Vec<usize>> {
    let here = sched_getaffinity(None).ok()?;
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| here.is_set(*cpu)).collect();
    part(&all, number, count)
}

fn part(all: &[usize], number: usize, count: usize) -> Option<Vec<usize>> {
    let each = all.len().checked_div(count).filter(|each| *each > 0)?;
    all.chunks(each).nth(number).filter(|_| number < count).map(<[usize]>::to_vec)
}

/// Processors as control groups list them.
#[must_use]
pub fn list(cpus: &[usize]) -> String {
    cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// A thread that stays on some processors as long as this lives; so do threads that it starts meanwhile.
#[derive(Debug)]
pub struct CpuAffinity {
    before: CpuSet,
}

impl CpuAffinity {
    /// Binds the calling thread.
    pub fn to(cpus: &[usize]) -> Result<Self> {
        let before = sched_getaffinity(None).doing(|| "looking for processors")?;
        let mut set = CpuSet::new();
        cpus.iter().for_each(|cpu| set.set(*cpu));
        sched_setaffinity(None, &set).doing(|| "staying on some processors")?;
        Ok(Self { before })
    }

    /// Binds it to a tenant's processors, where there are enough for all tenants.
    pub fn to_share(number: usize, count: usize) -> Result<Option<Self>> {
        share(number, count).map(|cpus| Self::to(&cpus)).transpose()
    }
}

impl Drop for CpuAffinity {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.before) {
            eprintln!("vellum-bench: this thread stays on some processors: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_processors_are_equal_and_disjoint() {
        let all = [0, 1, 2, 5, 6];
        assert_eq!(part(&all, 0, 2), Some(vec![0, 1]));
        assert_eq!(part(&all, 1, 2), Some(vec![2, 5]));
        assert_eq!((part(&all, 2, 2), part(&all, 0, 6), part(&all, 0, 0)), (None, None, None));
        assert_eq!(list(&[2, 5]), "2,5");
    }

    #[test]
    fn a_thread_is_bound_for_a_while() {
        let before = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
        let bound = CpuAffinity::to(&[first]).unwrap();
        let now = sched_getaffinity(None).unwrap();
        assert!(now.count() == 1 && now.is_set(first));
        drop(bound);
        assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
    }
}
