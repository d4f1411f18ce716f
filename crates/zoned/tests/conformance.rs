//! What every zoned device must do, tried on each: emulated ones of both profiles and both block sizes in memory and in files, conventional
//! ones, the kernel's in a virtual machine, and the block device that `VELLUM_ZONED_DEVICE` names, whose contents are lost.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use vellum_zoned::device::emulator::{LARGE_ZONE, Profile, Random, SMALL_ZONE};
use vellum_zoned::device::{Condition, Conventional, Emulated, Error, Kernel, ZonedDevice};

/// Zones that the cases use.
const ZONES: u32 = 12;

type Case = fn(&dyn ZonedDevice);

const CASES: &[(&str, Case)] = &[
    ("geometry", geometry),
    ("write_and_read", write_and_read),
    ("write_off_pointer", write_off_pointer),
    ("write_not_whole_blocks", write_not_whole_blocks),
    ("out_of_range", out_of_range),
    ("fill", fill),
    ("append", append),
    ("append_from_threads", append_from_threads),
    ("read_unwritten", read_unwritten),
    ("reset", reset),
    ("finish", finish),
    ("open_and_close", open_and_close),
    ("active_limit", active_limit),
    ("open_limit", open_limit),
    ("random_changes", random_changes),
];

/// Tries all cases on one device, each with empty zones.
fn all(device: &dyn ZonedDevice) {
    for (name, case) in CASES {
        for zone in 0..ZONES.min(device.geometry().zones) {
            device.reset(zone).unwrap_or_else(|error| panic!("before {name}: reset of zone {zone}: {error}"));
        }
        println!("{name}");
        case(device);
    }
    for (number, zone) in device.report_all().expect("a report").iter().enumerate() {
        zone.check(device.geometry()).unwrap_or_else(|error| panic!("zone {number}: {error}"));
    }
}

fn profiles() -> Vec<Profile> {
    let blocks = |profile: Profile| [profile.clone().with_block_size(512), profile];
    [SMALL_ZONE.scaled(32, 64).with_limits(4, 6), LARGE_ZONE.scaled(16, 64).with_limits(14, 14)]
        .into_iter()
        .flat_map(blocks)
        .collect()
}

#[test]
fn emulated_in_memory() {
    for profile in profiles() {
        all(&Emulated::in_memory(profile, 1).expect("a device"));
    }
}

#[test]
fn emulated_in_a_file() {
    for profile in profiles() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        all(&Emulated::create(file.reopen().expect("a file"), profile, 1).expect("a device"));
        found_again(|file| Box::new(Emulated::open_file(file, 1).expect("a device")), file.path());
    }
}

#[test]
fn conventional() {
    for block_size in [512, 4096] {
        let file = tempfile::NamedTempFile::new().expect("a file");
        all(&Conventional::create(file.reopen().expect("a file"), block_size, 1000, 32).expect("a device"));
        found_again(|file| Box::new(Conventional::open(file).expect("a device")), file.path());
    }
}

#[test]
fn kernel() {
    let Some(path) = std::env::var_os("VELLUM_ZONED_DEVICE") else {
        println!("SKIPPED: VELLUM_ZONED_DEVICE names no block device");
        return;
    };
    all(&Kernel::open_path(Path::new(&path)).expect("a zoned device"));
    let device = Kernel::open_path(Path::new(&path)).expect("a zoned device");
    device.reset(1).expect("reset");
    device.write(1, 0, &blocks(&device, 2, 5)).expect("write");
    device.flush().expect("flush");
    drop(device);
    let device = Kernel::open_path(Path::new(&path)).expect("a zoned device");
    assert_eq!(device.report(1).expect("report").pointer, 2);
    assert_eq!(read(&device, 1, 0, 2), blocks(&device, 2, 5));
}

/// On a real zoned block device of a kernel in a virtual machine, which has QEMU's NVMe namespace.
#[test]
fn kernel_in_a_virtual_machine() {
    if std::env::var_os("VELLUM_ZONED_DEVICE").is_some() {
        return;
    }
    let has_qemu = std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|directory| directory.join("qemu-system-x86_64").exists())
    });
    if !has_qemu {
        println!("SKIPPED: no QEMU");
        return;
    }
    let program = std::env::current_exe().expect("this program");
    let name = program.file_name().expect("a name").to_string_lossy().into_owned();
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/vm"))
        .args(["--zoned", "256M", "--limit", "250", "--program"])
        .arg(&program)
        .args(["--", &format!("VELLUM_ZONED_DEVICE=/dev/nvme0n1 /bin/{name} kernel --nocapture")])
        .output()
        .expect("scripts/vm");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // Results in the machine are not counted as those of this program.
    said.lines().for_each(|line| println!("| {line}"));
    match output.status.code() {
        Some(77) => println!("SKIPPED: no virtual machine"),
        code => assert!(code == Some(0) && said.contains("test result: ok. 2 passed"), "{code:?}"),
    }
}

/// What was flushed is there when the file is opened again, also after it was opened, changed and not flushed.
fn found_again(open: impl Fn(File) -> Box<dyn ZonedDevice>, path: &Path) {
    let reopen = || open(File::options().read(true).write(true).open(path).expect("the file"));
    let device = reopen();
    (0..4).for_each(|zone| device.reset(zone).expect("reset"));
    device.write(1, 0, &blocks(&*device, 2, 5)).expect("write");
    device.finish(2).expect("finish");
    device.flush().expect("flush");
    device.write(1, 2, &blocks(&*device, 1, 6)).expect("write");
    // A zone that was reset is not found with its old pointer over what was written to it since.
    device.reset(2).expect("reset");
    device.write(2, 0, &blocks(&*device, 1, 7)).expect("write");
    drop(device);
    let device = reopen();
    assert!(device.report(1).expect("report").pointer >= 2);
    assert_eq!(read(&*device, 1, 0, 2), blocks(&*device, 2, 5));
    assert!(device.report(2).expect("report").pointer <= 1);
    assert_eq!(device.report(0).expect("report").condition, Condition::Empty);
}

fn blocks(device: &dyn ZonedDevice, count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count * device.geometry().block_size as usize).map(|_| random.draw() as u8).collect()
}

fn read(device: &dyn ZonedDevice, zone: u32, block: u64, count: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; count * device.geometry().block_size as usize];
    device.read(zone, block, &mut bytes).expect("read");
    bytes
}

fn pointer(device: &dyn ZonedDevice, zone: u32) -> u64 {
    device.report(zone).expect("report").pointer
}

fn condition(device: &dyn ZonedDevice, zone: u32) -> Condition {
    device.report(zone).expect("report").condition
}

/// Writes a zone full, in commands as large as are allowed.
fn write_full(device: &dyn ZonedDevice, zone: u32) {
    loop {
        let state = device.report(zone).expect("report");
        if state.pointer == state.capacity {
            return;
        }
        let some = (state.capacity - state.pointer).min(device.geometry().write_blocks_max);
        let data = blocks(device, some as usize, state.pointer);
        device.write(zone, state.pointer, &data).expect("write");
    }
}

fn geometry(device: &dyn ZonedDevice) {
    let geometry = device.geometry();
    geometry.check().expect("sound");
    let zones = device.report_all().expect("report");
    assert_eq!(zones.len(), geometry.zones as usize);
    for zone in &zones {
        zone.check(geometry).expect("sound");
    }
    assert!(zones[..ZONES as usize].iter().all(|zone| zone.condition == Condition::Empty));
}

fn write_and_read(device: &dyn ZonedDevice) {
    let (first, second) = (blocks(device, 3, 1), blocks(device, 1, 2));
    device.write(1, 0, &first).expect("write");
    device.write(1, 3, &second).expect("write");
    assert_eq!(pointer(device, 1), 4);
    assert_eq!(condition(device, 1), Condition::ImplicitOpen);
    assert_eq!(read(device, 1, 0, 4), [first.clone(), second].concat());
    assert_eq!(read(device, 1, 2, 1), first[2 * device.geometry().block_size as usize..]);
    assert_eq!(pointer(device, 2), 0);
}

fn write_off_pointer(device: &dyn ZonedDevice) {
    let data = blocks(device, 1, 1);
    assert_eq!(device.write(0, 1, &data), Err(Error::OffPointer { pointer: 0 }));
    assert_eq!(condition(device, 0), Condition::Empty);
    device.write(0, 0, &data).expect("write");
    assert_eq!(device.write(0, 0, &data), Err(Error::OffPointer { pointer: 1 }));
    assert_eq!(device.write(0, 2, &data), Err(Error::OffPointer { pointer: 1 }));
    assert_eq!(pointer(device, 0), 1);
}

fn write_not_whole_blocks(device: &dyn ZonedDevice) {
    let size = device.geometry().block_size as usize;
    for len in [0, 1, size - 1, size + 1] {
        assert_eq!(device.write(0, 0, &vec![1; len]), Err(Error::OutOfRange), "{len}");
        assert_eq!(device.append(0, &vec![1; len]), Err(Error::OutOfRange), "{len}");
    }
    assert_eq!(condition(device, 0), Condition::Empty);
    device.write(0, 0, &blocks(device, 1, 1)).expect("write");
    assert_eq!(device.read(0, 0, &mut vec![0; size - 1]), Err(Error::OutOfRange));
    assert_eq!(device.read(0, 0, &mut []), Err(Error::OutOfRange));
}

fn out_of_range(device: &dyn ZonedDevice) {
    let data = blocks(device, 1, 1);
    for zone in [device.geometry().zones, u32::MAX] {
        assert_eq!(device.write(zone, 0, &data), Err(Error::OutOfRange));
        assert_eq!(device.append(zone, &data), Err(Error::OutOfRange));
        assert_eq!(device.reset(zone), Err(Error::OutOfRange));
        assert_eq!(device.finish(zone), Err(Error::OutOfRange));
        assert_eq!(device.open(zone), Err(Error::OutOfRange));
        assert_eq!(device.close(zone), Err(Error::OutOfRange));
        assert_eq!(device.read(zone, 0, &mut data.clone()), Err(Error::OutOfRange));
        assert_eq!(device.report(zone), Err(Error::OutOfRange));
    }
    if device.geometry().write_blocks_max < device.geometry().zone_blocks {
        let most = device.geometry().write_blocks_max as usize;
        assert_eq!(device.write(0, 0, &blocks(device, most + 1, 1)), Err(Error::OutOfRange));
        device.write(0, 0, &blocks(device, most, 1)).expect("a write of as much as is allowed");
    }
    for block in [device.geometry().zone_blocks, u64::MAX] {
        assert_eq!(device.write(0, block, &data), Err(Error::OutOfRange));
        assert_eq!(device.read(0, block, &mut data.clone()), Err(Error::OutOfRange));
    }
}

fn fill(device: &dyn ZonedDevice) {
    write_full(device, 3);
    assert_eq!(condition(device, 3), Condition::Full);
    let capacity = device.report(3).expect("report").capacity;
    let data = blocks(device, 2, 1);
    assert_eq!(device.append(3, &data), Err(Error::Full));
    assert_eq!(device.write(3, 0, &data), Err(Error::Full));
    // What is one block too long is not written in part.
    let one = blocks(device, 1, 9);
    device.reset(3).expect("reset");
    while pointer(device, 3) + 1 < capacity {
        let some = (capacity - 1 - pointer(device, 3)).min(device.geometry().write_blocks_max);
        device.append(3, &blocks(device, some as usize, 3)).expect("append");
    }
    assert_eq!(device.append(3, &data), Err(Error::Full));
    assert_eq!(pointer(device, 3), capacity - 1);
    device.append(3, &one).expect("append");
    assert_eq!(condition(device, 3), Condition::Full);
    assert_eq!(read(device, 3, capacity - 1, 1), one);
}

fn append(device: &dyn ZonedDevice) {
    assert_eq!(device.append(5, &blocks(device, 2, 1)), Ok(0));
    device.write(5, 2, &blocks(device, 1, 2)).expect("write");
    assert_eq!(device.append(5, &blocks(device, 1, 3)), Ok(3));
    assert_eq!(read(device, 5, 3, 1), blocks(device, 1, 3));
}

fn append_from_threads(device: &dyn ZonedDevice) {
    let places: Vec<(u64, u64)> = std::thread::scope(|scope| {
        let append = |seed| (seed, device.append(4, &blocks(device, 1, seed)).expect("append"));
        let threads: Vec<_> = (0..4)
            .map(|thread| scope.spawn(move || (thread * 4..thread * 4 + 4).map(append).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut found: Vec<u64> = places.iter().map(|(_, block)| *block).collect();
    found.sort_unstable();
    assert_eq!(found, (0..16).collect::<Vec<_>>());
    for (seed, block) in places {
        assert_eq!(read(device, 4, block, 1), blocks(device, 1, seed));
    }
}

fn read_unwritten(device: &dyn ZonedDevice) {
    let mut two = blocks(device, 2, 0);
    assert_eq!(device.read(6, 0, &mut two), Err(Error::Unwritten));
    device.write(6, 0, &blocks(device, 1, 1)).expect("write");
    assert_eq!(device.read(6, 0, &mut two), Err(Error::Unwritten));
    assert_eq!(device.read(6, 1, &mut two), Err(Error::Unwritten));
}

fn reset(device: &dyn ZonedDevice) {
    device.write(7, 0, &blocks(device, 3, 1)).expect("write");
    device.write(8, 0, &blocks(device, 1, 2)).expect("write");
    device.reset(7).expect("reset");
    device.reset(7).expect("an empty zone can be reset");
    assert_eq!((condition(device, 7), pointer(device, 7)), (Condition::Empty, 0));
    assert_eq!(device.read(7, 0, &mut blocks(device, 1, 0)), Err(Error::Unwritten));
    device.write(7, 0, &blocks(device, 1, 3)).expect("write");
    assert_eq!(read(device, 7, 0, 1), blocks(device, 1, 3));
    assert_eq!(read(device, 8, 0, 1), blocks(device, 1, 2));
    write_full(device, 7);
    device.reset(7).expect("a full zone can be reset");
    assert_eq!(condition(device, 7), Condition::Empty);
}

fn finish(device: &dyn ZonedDevice) {
    device.write(9, 0, &blocks(device, 2, 1)).expect("write");
    device.finish(9).expect("finish");
    let capacity = device.report(9).expect("report").capacity;
    assert_eq!((condition(device, 9), pointer(device, 9)), (Condition::Full, capacity));
    assert_eq!(read(device, 9, 0, 2), blocks(device, 2, 1));
    assert_eq!(read(device, 9, 2, 1), vec![0; device.geometry().block_size as usize]);
    assert_eq!(device.append(9, &blocks(device, 1, 1)), Err(Error::Full));
    assert_eq!(device.open(9), Err(Error::BadCondition));
    device.finish(9).expect("a full zone can be finished");
    device.finish(10).expect("an empty zone can be finished");
    assert_eq!(condition(device, 10), Condition::Full);
}

fn open_and_close(device: &dyn ZonedDevice) {
    device.open(2).expect("open");
    assert_eq!(condition(device, 2), Condition::ExplicitOpen);
    device.close(2).expect("close");
    // Empty by the standard of SCSI and ATA (ZBC, ZAC), closed by that of NVMe (ZNS).
    assert!([Condition::Empty, Condition::Closed].contains(&condition(device, 2)));
    assert_eq!(pointer(device, 2), 0);
    device.open(2).expect("open");
    device.write(2, 0, &blocks(device, 1, 1)).expect("write");
    assert_eq!(condition(device, 2), Condition::ExplicitOpen);
    device.close(2).expect("close");
    assert_eq!(condition(device, 2), Condition::Closed);
    device.close(2).expect("a closed zone can be closed");
    device.write(2, 1, &blocks(device, 1, 2)).expect("write");
    assert_eq!(condition(device, 2), Condition::ImplicitOpen);
    assert_eq!(device.close(3), Err(Error::BadCondition));
}

fn active_limit(device: &dyn ZonedDevice) {
    let limit = device.geometry().active_max;
    if limit == 0 || limit >= ZONES {
        return;
    }
    let one = blocks(device, 1, 1);
    (0..limit).for_each(|zone| device.write(zone, 0, &one).expect("write"));
    assert_eq!(device.write(limit, 0, &one), Err(Error::TooManyActive));
    assert_eq!(condition(device, limit), Condition::Empty);
    device.append(0, &one).expect("those that are active can be written to");
    device.finish(0).expect("finish");
    device.write(limit, 0, &one).expect("there is room again");
    assert_eq!(device.write(limit + 1, 0, &one), Err(Error::TooManyActive));
    device.reset(1).expect("reset");
    device.write(limit + 1, 0, &one).expect("there is room again");
}

fn open_limit(device: &dyn ZonedDevice) {
    let (limit, active) = (device.geometry().open_max, device.geometry().active_max);
    if limit == 0 || limit >= ZONES || active == limit {
        return;
    }
    (0..limit).for_each(|zone| device.open(zone).expect("open"));
    let one = blocks(device, 1, 1);
    assert_eq!(device.write(limit, 0, &one), Err(Error::TooManyOpen));
    assert_eq!(device.open(limit), Err(Error::TooManyOpen));
    device.close(0).expect("close");
    device.write(limit, 0, &one).expect("there is room again");
    // One that a write has opened makes room for another.
    device.write(limit + 1, 0, &one).expect("write");
    assert_eq!(condition(device, limit), Condition::Closed);
    assert_eq!(read(device, limit, 0, 1), one);
}

/// Many changes, as drawn, and what is then read.
fn random_changes(device: &dyn ZonedDevice) {
    let seed = 0x5eed;
    println!("seed {seed:#x}");
    let mut random = Random::new(seed);
    let size = device.geometry().block_size as usize;
    let mut held: HashMap<u32, Vec<u8>> = HashMap::new();
    for step in 0..600 {
        let zone = random.below(u64::from(ZONES)) as u32;
        let count = 1 + random.below(5) as usize;
        let is_full = condition(device, zone) == Condition::Full;
        let content = held.entry(zone).or_default();
        match random.below(12) {
            0 => {
                device.reset(zone).expect("reset");
                content.clear();
            }
            1 => {
                let capacity = device.report(zone).expect("report").capacity;
                match device.finish(zone) {
                    Ok(()) => content.resize(capacity as usize * size, 0),
                    Err(error) => assert_eq!(error, Error::TooManyActive, "step {step}"),
                }
            }
            2 => device.flush().expect("flush"),
            _ => {
                let data = blocks(device, count, step);
                let at = (content.len() / size) as u64;
                // Of a full zone there is no block at the pointer.
                match device.write(zone, at.min(device.geometry().zone_blocks - 1), &data) {
                    Ok(()) => content.extend_from_slice(&data),
                    Err(Error::Full) => {
                        let capacity = device.report(zone).expect("report").capacity;
                        assert!(is_full || at + count as u64 > capacity, "step {step}");
                    }
                    Err(error) => assert_eq!(error, Error::TooManyActive, "step {step}"),
                }
            }
        }
        assert_eq!(pointer(device, zone), (content.len() / size) as u64, "step {step}");
        if !content.is_empty() {
            let first = random.below((content.len() / size) as u64);
            let read = read(device, zone, first, content.len() / size - first as usize);
            assert!(
                read == content[first as usize * size..],
                "step {step}: zone {zone} holds something else"
            );
        }
    }
}
