//! `vellum zoned format`: a store on a device. Everything is looked at before anything is changed.

use super::args::FormatArgs;
use super::calibration::Calibrations;
use super::device::refused;
use super::layout::Layout;
use super::signature::find_signature;
use crate::inspect::size;
use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use vellum_service::Failure;
use vellum_zoned::device::emulator::Pace;
use vellum_zoned::device::{Access, OpenDevice, find_in, has_zone_file, is_zoned, open_locked};
use vellum_zoned::store::{Placement, Store};

/// Makes the store; says what it is like.
pub(super) fn run(arguments: &FormatArgs) -> Result<String, Failure> {
    let path = arguments.device.as_path();
    let layout = Layout::asked(arguments)?;
    let calibrations = Calibrations::at(arguments.state.state.as_deref())?;
    let is_there = std::fs::metadata(path).map(|_| true).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(false),
        _ => Err(Failure::input(path.display().to_string()).because(error)),
    })?;
    if is_there {
        return existing(arguments, &layout, &calibrations);
    }
    let Some(length) = layout.size else {
        let line = format!("{}: no such file or device", path.display());
        return Err(Failure::input(line).remedy("give --size SIZE to make a file"));
    };
    layout.geometry(length).map_err(|why| too_small(path, &why))?;
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|e| Failure::input(path.display().to_string()).because(e))?;
    let made = flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|errno| Failure::at(path, errno))
        .and_then(|()| format_file(file, false, path, &layout, length))
        .and_then(|found| create_store(path, &found, &calibrations));
    if made.is_err() {
        // Nothing is left of what did not come to be.
        let _ = std::fs::remove_file(path);
    }
    made
}

/// On a file that is there, or on a block device.
fn existing(arguments: &FormatArgs, layout: &Layout, calibrations: &Calibrations) -> Result<String, Failure> {
    let path = arguments.device.as_path();
    let (file, is_block) = open_locked(path, Access::Write).map_err(|error| refused(path, error))?;
    let refuse = |option: &str, why: &str, remedy: &str| {
        Err(Failure::input(format!("option {option}: {} {why}", path.display())).remedy(remedy.to_owned()))
    };
    if is_block && is_zoned(&file) {
        if !layout.is_default() {
            return refuse(
                "--size, --zone-size, --block-size or --emulate",
                "has zones of its own",
                "leave it out",
            );
        }
        return reformat(file, true, arguments, calibrations);
    }
    if is_block && layout.is_emulated() {
        return refuse("--emulate", "is a block device", "give a file");
    }
    if has_zone_file(&file) && layout.is_default() {
        return reformat(file, is_block, arguments, calibrations);
    }
    let found = length_of(&file).and_then(|length| Ok((length, find_signature(&file, length)?)));
    let (length, held) =
        found.map_err(|e| Failure::system(format!("{}: cannot be read", path.display())).because(e))?;
    let length = match layout.size {
        Some(_) if is_block => return refuse("--size", "is a block device", "leave it out"),
        Some(_) if length > 0 && !arguments.force => {
            return refuse("--size", "has a size", "leave the option out, or add --force to change it");
        }
        Some(size) => size,
        None if length == 0 => {
            let line = format!("{}: empty", path.display());
            return Err(Failure::input(line).remedy("give --size SIZE"));
        }
        None => length,
    };
    if let Some(held) = held.filter(|_| !arguments.force) {
        return Err(occupied(path, held));
    }
    layout.geometry(length).map_err(|why| too_small(path, &why))?;
    let found = format_file(file, is_block, path, layout, length)?;
    create_store(path, &found, calibrations)
}

/// On zones that are there.
fn reformat(
    file: File,
    is_block: bool,
    arguments: &FormatArgs,
    calibrations: &Calibrations,
) -> Result<String, Failure> {
    let path = arguments.device.as_path();
    let found = find_in(file, is_block, path, Pace::None).map_err(|error| refused(path, error))?;
    if !arguments.force {
        if Store::is_on(&*found.device) {
            return Err(occupied(path, "a store"));
        }
        let zones = found.device.report_all().map_err(|error| refused(path, error.into()))?;
        if zones.iter().any(|zone| zone.pointer > 0 && zone.condition.is_usable()) {
            return Err(occupied(path, "data"));
        }
    }
    create_store(path, &found, calibrations)
}

fn format_file(
    file: File,
    is_block: bool,
    path: &Path,
    layout: &Layout,
    length: u64,
) -> Result<OpenDevice, Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::system(format!("{}: cannot be laid out: {error}", path.display()))
    };
    let geometry = layout.geometry(length).map_err(|why| too_small(path, &why))?;
    if !is_block {
        // What was there beyond the zones goes.
        file.set_len(0).map_err(|e| failed(&e))?;
    }
    let clone = file.try_clone().map_err(|e| failed(&e))?;
    layout.write_zones(clone, &geometry).map_err(|e| failed(&e))?;
    find_in(file, is_block, path, Pace::None).map_err(|error| refused(path, error))
}

/// The store itself.
fn create_store(path: &Path, found: &OpenDevice, calibrations: &Calibrations) -> Result<String, Failure> {
    let calibrated = calibrations.find(found.identity.as_deref())?;
    let placement =
        calibrated.as_ref().map_or(Ok(Placement::NONE), |calibration| calibration.placement(path))?;
    let store = Store::format(Arc::clone(&found.device), placement);
    let store =
        store.map_err(|e| Failure::system(format!("{}: no store can be made", path.display())).because(e))?;
    let geometry = found.device.geometry();
    Ok(format!(
        "{}: a store on {} zones of {}; {}\n",
        path.display(),
        geometry.zones,
        size(geometry.byte_at(1, 0)),
        super::inspect::placement_text(store.stats().placement)
    ))
}

fn length_of(mut file: &File) -> std::io::Result<u64> {
    file.seek(SeekFrom::End(0))
}

fn occupied(path: &Path, held: &str) -> Failure {
    Failure::input(format!("{}: holds {held}", path.display())).remedy("add --force to lose it")
}

fn too_small(path: &Path, why: &str) -> Failure {
    Failure::input(format!("{}: {why}", path.display())).remedy("give more, or smaller zones by --zone-size")
}
