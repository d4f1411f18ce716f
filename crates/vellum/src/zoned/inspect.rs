//! `vellum zoned inspect`: a device, its zones, and the store on it.

use super::args::InspectArgs;
use super::calibration::{Calibration, Calibrations};
use super::device::refused;
use super::signature::find_signature;
use crate::{inspect::size, json};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use vellum_service::Failure;
use vellum_zoned::device::emulator::Pace;
use vellum_zoned::device::{
    Access, Condition, Kind, OpenDevice, find_in, has_zone_file, is_zoned, open_locked,
};
use vellum_zoned::store::{Class, Placement, Store};

#[derive(Serialize)]
struct Report {
    device: String,
    kind: &'static str,
    /// The profile of an emulated device.
    emulates: Option<&'static str>,
    identity: Option<String>,
    /// Bytes of a file or a disk without zones.
    size: Option<u64>,
    /// What such a one holds instead.
    holds: Option<String>,
    zones: Option<Zones>,
    calibration: Option<Calibration>,
    store: Option<StoreReport>,
    /// Why there is a store that cannot be opened.
    damaged: Option<String>,
}

#[derive(Serialize)]
struct Zones {
    count: u32,
    zone_bytes: u64,
    capacity_bytes: u64,
    block_bytes: u32,
    /// 0: any number.
    open_max: u32,
    active_max: u32,
    conditions: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct StoreReport {
    uuid: String,
    generation: u64,
    groups: u32,
    checkpoint_groups: u32,
    stripe: u32,
    normal_objects: u64,
    checkpoint_objects: u64,
    live_bytes: u64,
    free_zones: u64,
    kept_back_zones: u64,
    log_zones: u64,
    dead_zones: u64,
    least_resets: u32,
    most_resets: u32,
}

/// Looks; what is to be printed.
pub(super) fn run(arguments: &InspectArgs) -> Result<String, Failure> {
    let report = look(arguments)?;
    if arguments.json { json::pretty(&report) } else { Ok(text(&report)) }
}

fn look(arguments: &InspectArgs) -> Result<Report, Failure> {
    let path = arguments.device.as_path();
    let calibrations = Calibrations::at(arguments.state.state.as_deref())?;
    let (file, is_block) = open_locked(path, Access::Read).map_err(|error| refused(path, error))?;
    let has_zones = has_zone_file(&file) || (is_block && is_zoned(&file));
    if !has_zones {
        return without_zones(path, &file, is_block);
    }
    let found = find_in(file, is_block, path, Pace::None).map_err(|error| refused(path, error))?;
    let (kind, emulates) = match found.kind {
        Kind::Zoned => ("zoned", None),
        Kind::Emulated(profile) => ("emulated", Some(profile)),
        Kind::Conventional => ("conventional", None),
    };
    let (store, damaged) = match Store::open_read_only(Arc::clone(&found.device)) {
        Ok(store) => (Some(store_report(&found, &store)), None),
        Err(_) if !Store::is_on(&*found.device) => (None, None),
        Err(error) => (None, Some(error.to_string())),
    };
    Ok(Report {
        device: path.display().to_string(),
        kind,
        emulates,
        size: None,
        holds: None,
        zones: Some(zones(path, &found)?),
        calibration: calibrations.find(found.identity.as_deref())?,
        identity: found.identity,
        store,
        damaged,
    })
}

fn without_zones(path: &Path, mut file: &File, is_block: bool) -> Result<Report, Failure> {
    let looked = file.seek(SeekFrom::End(0)).and_then(|length| Ok((length, find_signature(file, length)?)));
    let failed = |e| Failure::system(format!("{}: cannot be read", path.display())).because(e);
    let (length, holds) = looked.map_err(failed)?;
    Ok(Report {
        device: path.display().to_string(),
        kind: if is_block { "disk" } else { "file" },
        emulates: None,
        identity: None,
        size: Some(length),
        holds: holds.map(str::to_owned),
        zones: None,
        calibration: None,
        store: None,
        damaged: None,
    })
}

fn zones(path: &Path, found: &OpenDevice) -> Result<Zones, Failure> {
    let geometry = found.device.geometry();
    let all = found.device.report_all().map_err(|error| refused(path, error.into()))?;
    let mut conditions = BTreeMap::new();
    for zone in &all {
        *conditions.entry(condition_name(zone.condition)).or_insert(0) += 1;
    }
    let capacity = all.iter().map(|zone| zone.capacity).min().unwrap_or(0);
    Ok(Zones {
        count: geometry.zones,
        zone_bytes: geometry.byte_at(1, 0),
        capacity_bytes: capacity * u64::from(geometry.block_size),
        block_bytes: geometry.block_size,
        open_max: geometry.open_max,
        active_max: geometry.active_max,
        conditions,
    })
}

fn condition_name(condition: Condition) -> &'static str {
    match condition {
        Condition::Empty => "empty",
        Condition::ImplicitOpen => "opened by a write",
        Condition::ExplicitOpen => "opened",
        Condition::Closed => "closed",
        Condition::Full => "full",
        Condition::ReadOnly => "read-only",
        Condition::Offline => "offline",
    }
}

fn store_report(found: &OpenDevice, store: &Store) -> StoreReport {
    let stats = store.stats();
    let objects = store.list();
    let of = |class: Class| objects.iter().filter(|object| object.class == class).count() as u64;
    StoreReport {
        uuid: stats.uuid.iter().map(|byte| format!("{byte:02x}")).collect(),
        generation: stats.generation,
        groups: stats.placement.groups,
        checkpoint_groups: stats.placement.checkpoint_groups,
        stripe: stats.placement.stripe,
        normal_objects: of(Class::Normal),
        checkpoint_objects: of(Class::Checkpoint),
        live_bytes: stats.live_blocks * u64::from(found.device.geometry().block_size),
        free_zones: stats.free_zones,
        kept_back_zones: stats.kept_back_zones,
        log_zones: stats.log_zones,
        dead_zones: stats.dead_zones,
        least_resets: stats.resets[0],
        most_resets: stats.resets[1],
    }
}

/// A placement, in words.
pub(super) fn placement_text(placement: Placement) -> String {
    if placement.checkpoint_groups == 0 {
        return "no groups of zones are known: images can only be paced".to_owned();
    }
    let Placement { groups, checkpoint_groups, stripe } = placement;
    format!("images have {checkpoint_groups} of {groups} groups of zones, {stripe} zones side by side")
}

/// What a calibration means for a store.
pub(super) fn groups_text(calibration: &Calibration) -> String {
    if calibration.groups < 2 {
        return "none".to_owned();
    }
    let groups = calibration.groups;
    let die = calibration.zones_to_same_die;
    let die = die.map_or(String::new(), |zones| format!(" (of one die: by {zones})"));
    format!("{groups}: zones disturb each other when their numbers differ by a multiple of {groups}{die}")
}

fn text(report: &Report) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<13}{value}");
    };
    line("device", &report.device);
    let kind = match (report.kind, report.emulates) {
        ("zoned", _) => "a zoned block device".to_owned(),
        (_, Some(profile)) => format!("a file that emulates a {profile} device"),
        ("conventional", _) => "a file or disk without zones of its own, used in zones".to_owned(),
        (kind, _) => format!("a {kind} without zones"),
    };
    line("kind", &kind);
    if let Some(bytes) = report.size {
        line("size", &size(bytes));
        line("holds", report.holds.as_deref().unwrap_or("nothing"));
    }
    if let Some(identity) = &report.identity {
        line("identity", identity);
    }
    if let Some(zones) = &report.zones {
        let capacity = if zones.capacity_bytes == zones.zone_bytes {
            String::new()
        } else {
            format!(" ({} can be written)", size(zones.capacity_bytes))
        };
        let blocks = zones.block_bytes;
        line(
            "zones",
            &format!("{} of {}{capacity}, blocks of {blocks} bytes", zones.count, size(zones.zone_bytes)),
        );
        let most = |limit: u32| if limit == 0 { "any number".to_owned() } else { limit.to_string() };
        line("at once", &format!("{} open, {} active", most(zones.open_max), most(zones.active_max)));
        let conditions: Vec<String> =
            zones.conditions.iter().map(|(name, count)| format!("{count} {name}")).collect();
        line("conditions", &conditions.join(", "));
        match &report.calibration {
            Some(calibration) => line("calibration", &calibration.text),
            None => line("calibration", "none; vellum zoned calibrate"),
        }
    }
    if let Some(damaged) = &report.damaged {
        line("store", &format!("cannot be opened: {damaged}"));
    }
    match &report.store {
        Some(store) => store_text(store, &mut line),
        None if report.zones.is_some() && report.damaged.is_none() => {
            line("store", "none; vellum zoned format")
        }
        None => {}
    }
    text
}

fn store_text(store: &StoreReport, line: &mut dyn FnMut(&str, &str)) {
    line("store", &format!("{}, generation {}", store.uuid, store.generation));
    let StoreReport { groups, checkpoint_groups, stripe, .. } = *store;
    line("placement", &placement_text(Placement { groups, checkpoint_groups, stripe }));
    line("objects", &format!("{} normal, {} of checkpoints", store.normal_objects, store.checkpoint_objects));
    line(
        "space",
        &format!(
            "{} used; {} zones free, of which {} are kept back; {} of the log, {} that cannot be written any more",
            size(store.live_bytes),
            store.free_zones,
            store.kept_back_zones,
            store.log_zones,
            store.dead_zones
        ),
    );
    line("wear", &format!("zones were emptied {} to {} times", store.least_resets, store.most_resets));
}
