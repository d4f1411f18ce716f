//! Calibration of emulated devices, whose channels are known.

use super::*;
use crate::device::emulator::{Emulated, LARGE_ZONE, Profile, SMALL_ZONE};
use crate::device::{Conventional, ZonedDevice};
use crate::store::Placement;
use std::sync::Arc;

fn emulated(profile: Profile) -> OpenDevice {
    let device = Arc::new(Emulated::in_memory(profile.clone(), 3).unwrap());
    let kind = Kind::Emulated(profile.name);
    OpenDevice { kind, emulated: Some(Arc::clone(&device)), device, identity: None }
}

fn found(found: &OpenDevice) -> Findings {
    calibrate(found, Duration::from_secs(20), &mut |_, _| ()).unwrap()
}

#[test]
fn channels_and_dies_of_the_small_zone_device_are_found() {
    // 16 channels of 8 dies; with fewer zones than two rounds of all dies, dies are not told.
    for (zones, dies, stripe) in [(40_704, Some(128), 32), (600, Some(128), 32), (100, None, 4)] {
        let mut profile = SMALL_ZONE;
        profile.geometry.zones = zones;
        let device = emulated(profile);
        device.device.write(0, 0, &[1; 4096]).unwrap();
        let findings = found(&device);
        assert_eq!(
            (findings.verdict, findings.groups, findings.dies),
            (Verdict::Groups, 16, dies),
            "{findings:?}"
        );
        assert_eq!(findings.placement(), Placement { groups: 16, checkpoint_groups: 4, stripe });
        let other = findings.beside.last().unwrap();
        assert!(other.readers > 0.95 && other.writers > 0.95 && other.reads_wait < 1.2, "{findings:?}");
        assert!(findings.is_buffer_shared(), "{findings:?}");
        assert!((190_000_000..210_000_000).contains(&findings.read_rate), "{findings:?}");
        assert!((36_000_000..44_000_000).contains(&findings.write_rate), "{findings:?}");
        // Nothing was written.
        assert_eq!(device.device.report_all().unwrap().iter().map(|zone| zone.pointer).sum::<u64>(), 1);
    }
}

#[test]
fn the_large_zone_device_has_no_groups() {
    let findings = found(&emulated(LARGE_ZONE));
    assert_eq!((findings.verdict, findings.groups), (Verdict::AllDisturb, 1), "{findings:?}");
    assert_eq!(findings.placement(), Placement::NONE);
}

#[test]
fn a_file_has_no_groups_and_a_device_in_use_no_zones_to_try() {
    let file = tempfile::tempfile().unwrap();
    let device = Arc::new(Conventional::create(file, 4096, 32, 16).unwrap());
    let conventional = OpenDevice { kind: Kind::Conventional, device, emulated: None, identity: None };
    assert_eq!(found(&conventional).verdict, Verdict::WithoutZones);
    let full = emulated(SMALL_ZONE.scaled(32, 16));
    (0..32).for_each(|zone| full.device.finish(zone).unwrap());
    assert_eq!(found(&full).verdict, Verdict::TooFewEmpty);
}

/// Threads on a device that answers at once: it shows no groups, and its zones are empty again.
#[test]
fn calibrated_zones_are_reset() {
    let device = Arc::new(Emulated::in_memory(SMALL_ZONE.scaled(40, 1024).with_limits(6, 6), 3).unwrap());
    device.write(7, 0, &[1; 4096]).unwrap();
    let real =
        OpenDevice { kind: Kind::Zoned, device: Arc::clone(&device) as _, emulated: None, identity: None };
    let findings = calibrate(&real, Duration::from_secs(1), &mut |_, _| ()).unwrap();
    assert!(findings.pairs > 0 && findings.groups == 1, "{findings:?}");
    assert_eq!(calibrate(&real, Duration::ZERO, &mut |_, _| ()).unwrap().verdict, Verdict::OutOfTime);
    for (number, zone) in device.report_all().unwrap().iter().enumerate() {
        assert_eq!(zone.pointer, u64::from(number == 7), "zone {number}");
    }
}
