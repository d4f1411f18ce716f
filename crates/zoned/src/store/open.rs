//! Making a store, and finding one again.

use super::change::Class;
use super::core::{Core, LOG_ACTIVE, Lane};
use super::error::{Error, Result};
use super::format::{Placement, Root};
use super::log::{NO_ZONE, replay};
use super::roots::{self, ROOT_ZONES};
use super::state::State;
use super::zones::{Role, Zones};
use crate::device::ZonedDevice;
use std::sync::Arc;

/// Fewest zones of a device that a store fits on: roots, log, one lane each, and what is kept back.
const ZONES_LEAST: u32 = 16;
/// Fewest bytes that a zone must hold.
const ZONE_BYTES_LEAST: u64 = 16 << 10;
/// Fewest active zones of a device that has a limit: roots, log, a checkpoint of it, two lanes, one zone of a writer.
const ACTIVE_LEAST: u32 = 2 + 2 + LOG_ACTIVE as u32 + 2 + 1;

/// Makes a store on a device. What it held is lost.
pub(super) fn format(device: Arc<dyn ZonedDevice>, placement: Placement) -> Result<Core> {
    let geometry = device.geometry().clone();
    placement.check()?;
    let reported = device.report_all()?;
    let smallest =
        reported.iter().map(|zone| zone.capacity).min().unwrap_or(0) * u64::from(geometry.block_size);
    if geometry.zones < ZONES_LEAST || smallest < ZONE_BYTES_LEAST {
        return Error::damaged(format!(
            "{} zones of {smallest} bytes; a store needs {ZONES_LEAST} of {ZONE_BYTES_LEAST}",
            geometry.zones
        ));
    }
    if geometry.active_max != 0 && geometry.active_max < ACTIVE_LEAST {
        return Error::damaged(format!("{} active zones; a store needs {ACTIVE_LEAST}", geometry.active_max));
    }
    for (number, zone) in reported.iter().enumerate() {
        if zone.condition.is_usable() && zone.pointer > 0 {
            device.reset(number as u32)?;
        }
    }
    device.flush()?;
    let reported = device.report_all()?;
    let mut zones = Zones::new(&reported, geometry.active_max);
    for zone in 0..geometry.zones {
        if zones.get(zone).role == Role::Data {
            zones.set_role(zone, Role::Free);
        }
    }
    for zone in 0..ROOT_ZONES {
        if !zones.get(zone).is_usable {
            return Error::damaged(format!("zone {zone}, which is for roots, cannot be written"));
        }
        zones.set_role(zone, Role::Root);
    }
    let mut uuid = [0; 16];
    let random = rustix::rand::getrandom(&mut uuid, rustix::rand::GetRandomFlags::empty());
    random.map_err(|errno| Error::Device(errno.into()))?;
    let root = Root {
        uuid,
        generation: 0,
        log: [NO_ZONE; 2],
        log_id: 0,
        block_size: geometry.block_size,
        zones: geometry.zones,
        zone_blocks: geometry.zone_blocks,
        placement,
    };
    let state = State::new(reported.iter().map(|zone| zone.capacity).collect(), geometry.block_size);
    let mut core = Core::new(device, root, state, zones, &[]);
    core.roots_sound = [false; 2];
    core.checkpoint()?;
    Ok(core)
}

/// Reads what is on a device. Nothing is written.
pub(super) fn read(device: Arc<dyn ZonedDevice>) -> Result<Core> {
    let root = roots::find(&*device)?;
    let reported = device.report_all()?;
    let new = || State::new(reported.iter().map(|zone| zone.capacity).collect(), root.block_size);
    let (mut state, replayed) = replay(&*device, &root, new)?;
    if replayed.damaged() > 0 {
        tracing::warn!("{} records of the log have one whole copy only", replayed.damaged());
    }
    state.drop_nameless();
    let zones = roles(Zones::new(&reported, root_limit(&*device)), &state, &replayed.parts);
    let mut core = Core::new(Arc::clone(&device), root, state, zones, &replayed.parts);
    for zone in 0..ROOT_ZONES {
        let last = roots::last_in(&*device, zone).ok().flatten();
        core.roots_sound[zone as usize] = last == Some(root);
    }
    Ok(core)
}

fn root_limit(device: &dyn ZonedDevice) -> u32 {
    device.geometry().active_max
}

/// What each zone is for, by what is in it.
fn roles(mut zones: Zones, state: &State, log: &[[u32; 2]]) -> Zones {
    for zone in 0..zones.all.len() as u32 {
        let info = zones.get(zone);
        let is_live = state.zones.get(zone as usize).is_some_and(|used| used.live_blocks > 0);
        let role = match info {
            _ if zone < ROOT_ZONES => Role::Root,
            _ if log.iter().flatten().any(|of_log| *of_log == zone) => Role::Log,
            _ if is_live => Role::Data,
            _ if !info.is_usable => Role::Dead,
            _ if info.pointer == 0 => Role::Free,
            // Holds what nobody knows of: it is reset before anything else happens.
            _ => Role::Data,
        };
        zones.set_role(zone, role);
    }
    zones
}

/// Makes a store that was read ready to be written: zones with nothing in them are reset, the log begins anew, and lanes go on where they were.
pub(super) fn begin_writing(core: &mut Core) -> Result<()> {
    core.release_empty();
    core.checkpoint()?;
    let mut lanes = [Lane::Normal, Lane::Collection].into_iter();
    let begun: Vec<u32> = core.zones.with_role(Role::Data).collect();
    for zone in begun {
        let info = core.zones.get(zone);
        let is_begun = info.is_usable && info.pointer > 0 && info.pointer < info.capacity;
        if is_begun && is_of_normal_data(core, zone) {
            let Some(lane) = lanes.next() else { break };
            core.zones.set_role(zone, Role::Lane);
            core.allow_run_ahead(zone);
            core.lanes[lane as usize] = Some(zone);
        }
    }
    Ok(())
}

fn is_of_normal_data(core: &Core, zone: u32) -> bool {
    let Some(used) = core.state.zones.get(zone as usize) else { return false };
    let class = |object: u64| core.state.objects.get(&object).map(|object| object.class);
    used.live.values().next().is_some_and(|live| class(live.object) == Some(Class::Normal))
}
