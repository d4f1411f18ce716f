//! Checkpoints that need others: what has not changed since an earlier one is only there.

use super::object::{Map, ObjectInfo, PARENTS_MAX, Parent, ParentGranules};
use super::record::CheckpointEntry;
use std::collections::HashSet;
use vellum_service::Failure;

/// Finds a checkpoint's object by its name, at one place. None: there is none of this name.
pub(super) type FindObject<'a> = &'a dyn Fn(&str) -> Result<Option<ObjectInfo>, Failure>;

/// Finds those that one needs, in the order of its map. `display`: what it is called.
pub(super) fn needed(
    map: Option<&Map>,
    display: &str,
    look: FindObject<'_>,
) -> Result<Vec<ObjectInfo>, Failure> {
    open_parents(map.map(|map| &*map.parents).unwrap_or_default(), display, look)
}

/// As [`needed`], of one that needs these.
pub(super) fn open_parents(
    parents: &[Parent],
    display: &str,
    look: FindObject<'_>,
) -> Result<Vec<ObjectInfo>, Failure> {
    let mut found = Vec::new();
    for Parent { name, id } in parents {
        let parent = look(name)?.ok_or_else(|| {
            Failure::input(format!("checkpoint {display}: it needs {name}, which is not there any more"))
        })?;
        if parent.map()?.is_none_or(|map| map.id != *id) {
            return Err(Failure::input(format!(
                "checkpoint {display}: it needs {name} as it was, and another one is there now"
            )));
        }
        found.push(parent);
    }
    Ok(found)
}

/// What a new one of this name finds in the one that is to be its parent, and in those that this one needs.
pub(super) fn parent_granules(
    parent: &str,
    name: &str,
    look: FindObject<'_>,
) -> Result<ParentGranules, Failure> {
    let refused = |why: String| Failure::input(format!("option --parent {parent}: {why}"));
    let other = || {
        refused(format!("the new one would take the place of {name}, which it needs; give another --name"))
    };
    if parent == name {
        return Err(other());
    }
    let object_info =
        look(parent)?.ok_or_else(|| refused("no checkpoint of this name at the same place".to_owned()))?;
    let map = object_info.map()?.ok_or_else(|| {
        refused(
            "it is kept in a form that no other one can need; take one with --compress zstd, and name that"
                .to_owned(),
        )
    })?;
    if map.parents.len() >= PARENTS_MAX {
        return Err(refused(format!(
            "it needs {PARENTS_MAX} others already, and that is the most; take one without --parent"
        )));
    }
    if map.parents.iter().any(|parent| parent.name == name) {
        return Err(other());
    }
    let older = needed(Some(&map), parent, look)?;
    let mut all = vec![(Parent { name: parent.to_owned(), id: map.id }, map.clone())];
    for (parent, object_info) in map.parents.iter().zip(older) {
        // Looked at a moment ago.
        all.extend(object_info.map()?.map(|map| (parent.clone(), map)));
    }
    Ok(ParentGranules::from_parents(all))
}

/// Whether these can go, or be replaced: no other one needs them. In the order in which none is left behind without those that it needs.
pub(super) fn free(all: &[CheckpointEntry], going: &[String]) -> Result<Vec<String>, Failure> {
    let parents =
        |one: &CheckpointEntry| one.record.as_ref().map(|record| record.parents.clone()).unwrap_or_default();
    for name in going {
        let needing = all.iter().filter(|one| !going.contains(&one.name) && parents(one).contains(name));
        let needing: Vec<&str> = needing.map(|one| one.name.as_str()).collect();
        if !needing.is_empty() {
            let needing = needing.join(", ");
            return Err(Failure::input(format!(
                "checkpoint {name}: {needing} cannot be restored without it; delete {needing} first"
            )));
        }
    }
    let mut seen = HashSet::new();
    let mut order: Vec<String> = going.iter().filter(|name| seen.insert(*name)).cloned().collect();
    let depth = |name: &String| all.iter().find(|one| one.name == *name).map_or(0, |one| parents(one).len());
    order.sort_by_key(|name| std::cmp::Reverse(depth(name)));
    Ok(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::{ObjectInfo, tests::object};
    use crate::record::{Record, tests::of_podman};
    use std::collections::HashMap;

    /// Checkpoints by name: their objects, each with those that it needs.
    struct There(HashMap<String, (Vec<u8>, Map)>);

    impl There {
        fn look(&self, name: &str) -> Result<Option<ObjectInfo>, Failure> {
            self.0.get(name).map(|(bytes, _)| ObjectInfo::in_memory(bytes.clone(), name)).transpose()
        }

        /// Makes one, as a command does.
        fn make(&mut self, name: &str, parent: Option<&str>) -> Result<(), Failure> {
            let known =
                parent.map(|parent| parent_granules(parent, name, &|name| self.look(name))).transpose()?;
            let made = object(name.as_bytes(), known.unwrap_or_default(), &of_podman());
            self.0.insert(name.to_owned(), made);
            Ok(())
        }

        fn needed(&self, name: &str) -> Result<usize, Failure> {
            let map = &self.0[name].1;
            needed(Some(map), name, &|name| self.look(name)).map(|all| all.len())
        }
    }

    fn assert_says<T: std::fmt::Debug>(result: Result<T, Failure>, words: &str) {
        let failure = result.unwrap_err();
        assert!(failure.exit_status() == 2 && failure.to_string().contains(words), "{failure}");
    }

    #[test]
    fn chains_are_bounded_and_acyclic() {
        let mut there = There(HashMap::new());
        there.make("n0", None).unwrap();
        for at in 1..=PARENTS_MAX {
            there.make(&format!("n{at}"), Some(&format!("n{}", at - 1))).unwrap();
        }
        let last = format!("n{PARENTS_MAX}");
        assert_eq!(there.needed(&last).unwrap(), PARENTS_MAX);
        assert_says(there.make("more", Some(&last)), "that is the most");
        assert_says(there.make("n3", Some("n3")), "another --name");
        assert_says(there.make("n1", Some("n3")), "another --name");
        assert_says(there.make("x", Some("nothing")), "no checkpoint of this name");
        // One that was made again is another one, and one that is gone is none.
        there.make("n2", None).unwrap();
        assert_says(there.needed("n3"), "another one is there now");
        there.0.remove("n2");
        assert_says(there.needed("n3"), "not there any more");
        assert_says(there.make("x", Some("n3")), "not there any more");
        assert_eq!(there.needed("n1").unwrap(), 1);
    }

    #[test]
    fn needed_parents_are_not_deleted() {
        let one = |name: &str, parents: &[&str]| {
            let parents = parents.iter().map(|name| (*name).to_owned()).collect();
            CheckpointEntry { name: name.to_owned(), record: Ok(Record { parents, ..of_podman() }) }
        };
        let unclear = CheckpointEntry { name: "unclear".to_owned(), record: Err(Failure::input("x")) };
        let all = [one("a", &[]), one("b", &["a"]), one("c", &["b", "a"]), one("d", &[]), unclear];
        let free = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            free(&all, &names)
        };
        assert_eq!(free(&["c"]).unwrap(), ["c"]);
        assert_eq!(free(&["a", "d", "b", "c", "a"]).unwrap(), ["c", "b", "a", "d"]);
        assert_eq!(free(&["unclear"]).unwrap(), ["unclear"]);
        assert_says(free(&["a"]), "b, c cannot be restored without it");
        assert_says(free(&["a", "c"]), "b cannot be restored without it");
        assert_says(free(&["b", "d"]), "c cannot be restored without it");
    }
}
