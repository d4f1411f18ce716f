//! Checkpoints that need others: what has not changed since an earlier one is only there.

use super::object::{Known, Looked, Map, PARENTS_MAX, Parent};
use super::record::Listed;
use std::collections::HashSet;
use vellum_service::Failure;

/// Finds a checkpoint's object by its name, at one place. None: there is none of this name.
pub(super) type Look<'a> = &'a dyn Fn(&str) -> Result<Option<Looked>, Failure>;

/// Finds those that one needs, in the order of its map. `shown`: what it is called.
pub(super) fn needed(map: Option<&Map>, shown: &str, look: Look<'_>) -> Result<Vec<Looked>, Failure> {
    let mut found = Vec::new();
    for Parent { name, id } in map.into_iter().flat_map(|map| &map.parents) {
        let parent = look(name)?.ok_or_else(|| {
            Failure::input(format!("checkpoint {shown}: it needs {name}, which is not there any more"))
        })?;
        if parent.map()?.is_none_or(|map| map.id != *id) {
            return Err(Failure::input(format!(
                "checkpoint {shown}: it needs {name} as it was, and another one is there now"
            )));
        }
        found.push(parent);
    }
    Ok(found)
}

/// Why one that is no object, or was made by an older version, can be nobody's parent.
pub(super) fn plain(parent: &str) -> Failure {
    Failure::input(format!(
        "option --parent {parent}: it is kept in a form that no other one can need; take one with --compress zstd, and name that"
    ))
}

/// What a new one of this name finds in the one that is to be its parent, and in those that this one needs.
pub(super) fn known(parent: &str, name: &str, look: Look<'_>) -> Result<Known, Failure> {
    let refused = |why: String| Failure::input(format!("option --parent {parent}: {why}"));
    let other = || {
        refused(format!("the new one would take the place of {name}, which it needs; give another --name"))
    };
    if parent == name {
        return Err(other());
    }
    let looked =
        look(parent)?.ok_or_else(|| refused("no checkpoint of this name at the same place".to_owned()))?;
    let map = looked.map()?.ok_or_else(|| {
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
    for (parent, looked) in map.parents.iter().zip(older) {
        // Looked at a moment ago.
        all.extend(looked.map()?.map(|map| (parent.clone(), map)));
    }
    Ok(Known::of(all))
}

/// Whether these can go, or be replaced: no other one needs them. In the order in which none is left behind without those that it needs.
pub(super) fn free(all: &[Listed], going: &[String]) -> Result<Vec<String>, Failure> {
    let parents = |one: &Listed| one.record.as_ref().map(|record| record.parents.clone()).unwrap_or_default();
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
