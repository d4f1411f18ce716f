//! Looking at everything.

use super::blocks;
use super::core::Core;
use super::error::Result;
use super::log::{LogReplay, NO_ZONE, read_record, replay};
use super::roots::{ROOT_ZONES, last_in};
use super::state::{Object, State};
use super::tree_state::path_of;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Objects that were read.
    pub objects: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Blocks that were compared with their checksums.
    pub blocks: u64,
    /// Records of the log.
    pub records: u64,
    /// Names of objects, and paths of files from `/` on, that cannot be read in full, and why.
    pub unreadable: Vec<(Vec<u8>, String)>,
    /// What is wrong with the metadata, or with a copy of them.
    pub problems: Vec<String>,
    /// What a writer that was killed, or a loss of power, has left half written, as they may: nothing is lost by it.
    pub notes: Vec<String>,
}

impl CheckReport {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.unreadable.is_empty() && self.problems.is_empty()
    }
}

/// What is said of what was being written.
const CUT: &str = "a writer was killed, or lost power, while it wrote that";

/// Reads everything. `progress` is told of blocks: read, and all.
pub(super) fn check(core: &mut Core, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    let all: u64 = core.state.zones.iter().map(|zone| zone.live_blocks).sum();
    let log = check_log(core, &mut report);
    check_roots(core, log.as_ref(), &mut report);
    check_zones(core, &mut report);
    for (name, number) in &core.state.names {
        let Some(object) = core.state.objects.get(number) else {
            report.problems.push(format!("{:?} is the name of no object", String::from_utf8_lossy(name)));
            continue;
        };
        report.objects += 1;
        if let Some(why) = check_object(core, object, &mut |blocks| {
            report.blocks += blocks;
            progress(report.blocks, all);
        }) {
            report.unreadable.push((name.clone(), why));
        }
    }
    check_tree(core, &mut report, all, progress);
    Ok(report)
}

/// The tree makes sense, and its files can be read.
fn check_tree(core: &Core, report: &mut CheckReport, all: u64, progress: &mut dyn FnMut(u64, u64)) {
    let tree = &core.state.tree;
    report.problems.extend(tree.problems());
    let mut places = None;
    for (number, node) in &tree.nodes {
        report.nodes += 1;
        let Some(object) = core.state.objects.get(number).filter(|_| node.is_regular()) else { continue };
        if let Some(why) = check_object(core, object, &mut |blocks| {
            report.blocks += blocks;
            progress(report.blocks, all);
        }) {
            let places = places.get_or_insert_with(|| tree.places());
            report.unreadable.push((path_of(places, *number), why));
        }
        let end = object.extents.last_key_value().map_or(0, |(at, extent)| at + extent.sums.len() as u64);
        if end > object.size.div_ceil(u64::from(core.root.block_size)) {
            report.problems.push(format!("file {number} has blocks beyond its end"));
        }
    }
}

fn check_object(core: &Core, object: &Object, read: &mut dyn FnMut(u64)) -> Option<String> {
    let size = core.root.block_size as usize;
    object.extents.values().find_map(|extent| {
        let mut data = vec![0; extent.sums.len() * size];
        read(extent.sums.len() as u64);
        blocks::read(&*core.device, extent.place, &extent.sums, &mut data)
            .err()
            .map(|error| error.to_string())
    })
}

/// Both zones have the last root. It is written to the first one, and then to the second one; either is emptied before if it is full.
fn check_roots(core: &Core, log: Option<&LogReplay>, report: &mut CheckReport) {
    // What follows the checkpoint in the log was written after both.
    let is_just_begun = core.is_read_only() && log.is_some_and(|log| log.flushed == 0);
    for zone in 0..ROOT_ZONES {
        let written = core.device.report(zone).map_or(u64::MAX, |zone| zone.pointer);
        let was_emptied = core.is_read_only() && written <= 1;
        let (said, is_cut) = match last_in(&*core.device, zone) {
            Ok(Some(root)) if root == core.root => continue,
            Ok(Some(root)) => {
                let (one, last) = (root.generation, core.root.generation);
                let is_cut = is_just_begun && zone > 0 && one < last;
                (format!("the last root is of generation {one}, not {last}"), is_cut)
            }
            Ok(None) => ("no root".to_owned(), was_emptied),
            Err(error) => (error.to_string(), false),
        };
        if is_cut {
            report.notes.push(format!("zone {zone}: {said}; {CUT}"));
        } else {
            report.problems.push(format!("zone {zone}: {said}"));
        }
    }
}

/// Reads the log again, and compares what it comes to with what is in memory.
///
/// What its end says was not flushed yet may be there once, or not at all: a commit writes its records to one zone and the other, and flushes
/// both. So where power is lost, or the writer is killed, nobody was told that it is done.
fn check_log(core: &Core, report: &mut CheckReport) -> Option<LogReplay> {
    let capacities = || core.zones.all.iter().map(|zone| zone.capacity).collect();
    let log = match replay(&*core.device, &core.root, || State::new(capacities(), core.root.block_size)) {
        Ok((state, mut log)) => {
            if !core.has_pending() && !core.is_read_only() && !state.is_as(&core.state) {
                report.problems.push("the log says something else than what is in memory".to_owned());
            }
            log.flushed = log.flushed.max(core.log_flushed());
            log
        }
        Err(error) => {
            report.problems.push(error.to_string());
            return None;
        }
    };
    report.records = log.records;
    let count = |is: &dyn Fn(u64) -> bool| log.single.iter().filter(|record| is(**record)).count();
    match count(&|record| record < log.flushed) {
        0 => {}
        damaged => report.problems.push(format!("{damaged} records of the log have one whole copy only")),
    }
    match count(&|record| record >= log.flushed) {
        0 => {}
        cut => {
            report.notes.push(format!("the last {cut} records of the log have one whole copy only; {CUT}"))
        }
    }
    for (zones, begin) in log.parts.iter().zip(&log.begins) {
        for zone in zones.iter().filter(|zone| **zone != NO_ZONE) {
            if read_record(&*core.device, &core.root, *zone, 0).is_none() {
                let said = format!("zone {zone}: no record of the log at its start");
                if *begin < log.flushed {
                    report.problems.push(said);
                } else {
                    report.notes.push(format!("{said}; {CUT}"));
                }
            }
        }
    }
    Some(log)
}

/// What is live lies below the write pointers, in zones that are not for something else.
fn check_zones(core: &Core, report: &mut CheckReport) {
    for (zone, used) in core.state.zones.iter().enumerate() {
        let Some((block, live)) = used.live.iter().next_back() else { continue };
        let end = u64::from(*block) + u64::from(live.count);
        match core.device.report(zone as u32) {
            Ok(reported) if end <= reported.pointer => {}
            Ok(reported) => report.problems.push(format!(
                "zone {zone}: object {} has blocks up to {end}, but the write pointer is at {}",
                live.object, reported.pointer
            )),
            Err(error) => report.problems.push(format!("zone {zone}: {error}")),
        }
        let sum: u64 = used.live.values().map(|live| u64::from(live.count)).sum();
        if sum != used.live_blocks {
            report
                .problems
                .push(format!("zone {zone}: {sum} blocks are live, and {} were counted", used.live_blocks));
        }
    }
}
