//! Tasks by name, one or a group of them.

use super::list::TASKS;
use super::private::PRIVATE;
use super::task::Task;
use super::work;

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

/// The task of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Task> {
    TASKS.iter().find(|task| task.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

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
