//! The tasks, as data: what they need, what they do untimed, what is timed.

mod blocks;
mod groups;
mod large;
mod list;
mod memory;
mod names;
pub(crate) mod private;
mod rocksdb;
pub(crate) mod shares;
mod small;
mod sources;
mod task;
mod tenants;
mod work;

pub use groups::{group, group_named, named};
pub use list::TASKS;
pub(crate) use private::PRIVATE;
pub use task::{Cache, Env, Metric, Step, Task};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{Contender, Kind};
    use crate::mounts::Mounts;
    use crate::testbed::{Lower, Testbed};

    #[test]
    fn tasks_have_unique_names_and_say_what_they_are() {
        for task in TASKS {
            assert_eq!(TASKS.iter().filter(|other| other.name == task.name).count(), 1, "{}", task.name);
            assert!(!task.title.is_empty() && !task.state.is_empty() && task.passes > 0, "{}", task.name);
        }
    }

    #[test]
    fn the_library_is_in_tasks_on_one_mount() {
        let testbed = Testbed::new(&std::env::temp_dir(), None, 1.0).unwrap();
        for task in TASKS.iter().filter(|task| task.library) {
            assert_eq!((task.clones)(&testbed), 1, "{}", task.name);
        }
        let takes_part = |name| Kind::VellumLibrary.takes_part(named(name).unwrap());
        assert!(["s1-oltp", "untar", "private-create", "s2-rocksdb-put-1"].into_iter().all(takes_part));
        assert!(!["s2-append", "s2-start-up-1", "s2-rocksdb-get-4"].into_iter().any(takes_part));
        let shares =
            |kind: Kind| TASKS.iter().filter(|task| kind.takes_part(task) && task.cache.is_some()).count();
        assert_eq!((shares(Kind::VellumShares), shares(Kind::VellumCached), shares(Kind::Host)), (7, 0, 0));
        assert!(!Kind::VellumShares.takes_part(named("grep").unwrap()));
    }

    /// Every task that is for one does its work on a plain directory, at a small scale. Those in a Debian tree take minutes to prepare; they are
    /// run on every filesystem by a case of their own.
    #[test]
    fn tasks_run_on_a_directory() {
        let testbed = Testbed::new(&std::env::temp_dir(), None, 0.005).unwrap();
        let host = Contender::find(Kind::Host, &Vec::new()).unwrap();
        let small =
            |task: &&Task| !task.drops_caches && task.lower != Lower::Debian && task.lacks().is_none();
        for task in TASKS.iter().filter(small).filter(|task| host.kind.takes_part(task)) {
            let mounts = Mounts::mount(&host, &testbed, task).unwrap();
            assert_eq!(mounts.roots().len(), (task.clones)(&testbed));
            let mut client = mounts.client(&testbed, task).unwrap();
            let sample = client.run().unwrap();
            client.end().unwrap();
            assert!(sample.seconds > 0.0 && sample.service_switches.is_none(), "{}: {sample:?}", task.name);
            assert!((task.operations)(&testbed) > 0);
            mounts.unmount().unwrap();
        }
    }
}
