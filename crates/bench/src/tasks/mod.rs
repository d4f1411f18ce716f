//! The tasks, as data: what they need, what they do untimed, what is timed.

mod blocks;
mod large;
mod list;
mod names;
pub(crate) mod private;
mod rocksdb;
pub(crate) mod shares;
mod small;
mod sources;
mod task;
mod tenants;
mod work;

pub use list::TASKS;
pub(crate) use private::PRIVATE;
pub use task::{Cache, Env, Metric, Step, Task};

/// All tasks whose names begin so, but for those that want more cores than there are.
pub fn group(prefix: &str) -> impl Iterator<Item = &'static Task> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    TASKS.iter().filter(move |task| task.name.starts_with(prefix) && task.cores <= cores)
}

/// The tasks of a group by its name on the command line.
#[must_use]
pub fn group_named(name: &str) -> Option<impl Iterator<Item = &'static Task>> {
    let prefix = match name {
        "all" => "",
        "blocks" => "block-",
        "s1" => "s1-",
        "s2" => "s2-",
        "s3" => "s3-",
        "private" => PRIVATE,
        "work" => work::PREFIX,
        _ => return None,
    };
    Some(group(prefix))
}

#[must_use]
pub fn named(name: &str) -> Option<&'static Task> {
    TASKS.iter().find(|task| task.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::{Contender, Kind};
    use crate::mounts::Mounts;
    use crate::testbed::{Lower, Testbed};

    #[test]
    fn tasks_have_unique_names_and_descriptions() {
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
        let takes_part = |name| Kind::VellumLibrary.applies_to(named(name).unwrap());
        assert!(["s1-oltp", "untar", "private-create", "s2-rocksdb-put-1"].into_iter().all(takes_part));
        assert!(!["s2-append", "s2-start-up-1", "s2-rocksdb-get-4"].into_iter().any(takes_part));
        let shares =
            |kind: Kind| TASKS.iter().filter(|task| kind.applies_to(task) && task.cache.is_some()).count();
        assert_eq!((shares(Kind::VellumShares), shares(Kind::VellumCached), shares(Kind::Host)), (7, 0, 0));
        assert!(!Kind::VellumShares.applies_to(named("grep").unwrap()));
    }

    /// Every task that is for one does its work on a plain directory, at a small scale. Those in a Debian tree take minutes to prepare; they are
    /// run on every filesystem by a case of their own.
    #[test]
    fn tasks_run_on_a_directory() {
        let testbed = Testbed::new(&std::env::temp_dir(), None, 0.005).unwrap();
        let host = Contender::find(Kind::Host, &Vec::new()).unwrap();
        let small = |task: &&Task| {
            !task.drops_caches && task.lower != Lower::Debian && task.missing_requirement().is_none()
        };
        for task in TASKS.iter().filter(small).filter(|task| host.kind.applies_to(task)) {
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

    #[test]
    fn groups_are_found_by_name() {
        let of = |name| group_named(name).unwrap().map(|task| task.name).collect::<Vec<_>>();
        assert!(of("s1").contains(&"s1-oltp") && of("s1").contains(&"s1-dwol-4"));
        assert!(["s1-create-1", "s1-stat-2", "s1-unlink-4"].iter().all(|name| of("s1").contains(name)));
        assert!(of("s2").contains(&"s2-append") && !of("s2").contains(&"s1-oltp"));
        assert!(of("s2").contains(&"s2-rocksdb-put-1") && of("s2").contains(&"s2-rocksdb-get-4"));
        assert!(of("s3").len() == 7 && of("s3").iter().all(|name| name.starts_with("s3-")));
        assert_eq!(of("private").len(), 5);
        assert!(of("work").contains(&"work-dpkg") && of("work").iter().all(|name| name.starts_with("work-")));
        assert!(of("blocks").iter().all(|name| name.starts_with("block-")));
        assert!(of("all").contains(&"grep") && group_named("grep").is_none());
    }
}
