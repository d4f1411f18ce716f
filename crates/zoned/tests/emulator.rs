//! What an emulated device does beyond what every device must: losses of power, failures that are put in, and time.

use vellum_zoned::device::emulator::{
    Command, Fault, LARGE_ZONE, Model, Nanos, Pace, Profile, Random, SMALL_ZONE, Survival, Trigger,
};
use vellum_zoned::device::{Condition, Emulated, Error, ZonedDevice};

const BLOCK: usize = 4096;
const SECOND: Nanos = 1_000_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn small() -> Emulated {
    Emulated::in_memory(SMALL_ZONE.scaled(16, 32), 7).expect("a device")
}

fn block(fill: u8, count: usize) -> Vec<u8> {
    vec![fill; count * BLOCK]
}

fn read(device: &Emulated, zone: u32, at: u64) -> u8 {
    let mut bytes = block(0xee, 1);
    device.read(zone, at, &mut bytes).expect("read");
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a block in two parts");
    bytes[0]
}

#[test]
fn flushed_writes_survive_and_later_ones_in_order() {
    let mut seen = [0; 6];
    for seed in 0..200 {
        let device = small();
        device.write(0, 0, &block(1, 2)).expect("write");
        device.flush().expect("flush");
        device.write(0, 2, &block(2, 3)).expect("write");
        device.write(1, 0, &block(3, 1)).expect("write");
        device.write(0, 5, &block(4, 1)).expect("write");
        let after = device.after_power_loss(Survival::Drawn(seed)).expect("a device");
        let pointer = after.report(0).expect("report").pointer;
        assert!((2..=6).contains(&pointer));
        assert_eq!((read(&after, 0, 0), read(&after, 0, 1)), (1, 1));
        // Zones do not wait for each other.
        if pointer == 2 && after.report(1).expect("report").pointer == 1 {
            seen[5] += 1;
        }
        seen[pointer as usize - 2] += 1;
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

#[test]
fn nothing_and_everything() {
    let device = small();
    device.write(0, 0, &block(1, 2)).expect("write");
    device.flush().expect("flush");
    device.reset(0).expect("reset");
    device.write(0, 0, &block(2, 1)).expect("write");
    device.finish(3).expect("finish");
    let nothing = device.after_power_loss(Survival::Nothing).expect("a device");
    assert_eq!(nothing.report(0).expect("report").pointer, 2);
    assert_eq!(read(&nothing, 0, 1), 1);
    assert_eq!(nothing.report(3).expect("report").condition, Condition::Empty);
    let everything = device.after_power_loss(Survival::Everything).expect("a device");
    assert_eq!(everything.report(0).expect("report").pointer, 1);
    assert_eq!(read(&everything, 0, 0), 2);
    assert_eq!(everything.report(3).expect("report").condition, Condition::Full);
}

#[test]
fn an_unflushed_reset_may_be_undone() {
    let (mut old, mut empty, mut new) = (0, 0, 0);
    for seed in 0..100 {
        let device = small();
        device.write(0, 0, &block(1, 4)).expect("write");
        device.flush().expect("flush");
        device.reset(0).expect("reset");
        device.write(0, 0, &block(2, 1)).expect("write");
        let after = device.after_power_loss(Survival::Drawn(seed)).expect("a device");
        match after.report(0).expect("report").pointer {
            4 => old += u32::from(read(&after, 0, 0) == 1 && read(&after, 0, 3) == 1),
            0 => empty += 1,
            1 => new += 1,
            pointer => panic!("pointer {pointer}"),
        }
    }
    assert!(old > 0 && empty > 0 && new > 0 && old + empty + new == 100, "{old} {empty} {new}");
}

#[test]
fn without_power_nothing_is_answered() {
    let device = small();
    device.write(0, 0, &block(1, 1)).expect("write");
    device.inject(Trigger::Change(1), Fault::PowerLoss);
    device.write(0, 1, &block(1, 1)).expect("write");
    assert_eq!(device.write(0, 2, &block(1, 8)), Err(Error::NoPower));
    assert_eq!(device.flush(), Err(Error::NoPower));
    assert_eq!(device.read(0, 0, &mut block(0, 1)), Err(Error::NoPower));
    assert_eq!(device.report(0), Err(Error::NoPower));
    assert!(!device.has_power());
    let after = device.after_power_loss(Survival::Everything).expect("a device");
    assert!(after.has_power() && after.report(0).expect("report").pointer >= 2);
}

#[test]
fn failures_are_put_in() {
    let device = small();
    device.inject(Trigger::WriteTo(2), Fault::Error);
    device.write(1, 0, &block(1, 4)).expect("write");
    let failed = device.write(2, 0, &block(1, 4));
    assert!(matches!(failed, Err(Error::Io(_))), "{failed:?}");
    let pointer = device.report(2).expect("report").pointer;
    assert!(pointer <= 4);
    device.write(2, pointer, &block(1, 1)).expect("the next one is written");

    device.inject(Trigger::WriteTo(1), Fault::ReadOnly);
    assert_eq!(device.write(1, 4, &block(2, 1)), Err(Error::ReadOnly));
    assert_eq!(device.reset(1), Err(Error::ReadOnly));
    assert_eq!(read(&device, 1, 0), 1);
    device.inject(Trigger::ReadOf(2, 0), Fault::Error);
    assert!(device.read(2, 0, &mut block(0, 1)).is_err());
    assert!(device.read(2, 0, &mut block(0, 1)).is_err());

    device.fail_zone(2, Condition::Offline);
    assert_eq!(device.read(2, 0, &mut block(0, 1)), Err(Error::Offline));
    assert_eq!(device.append(2, &block(1, 1)), Err(Error::Offline));
    device.write(3, 0, &block(5, 1)).expect("write");
    device.corrupt(3, 0);
    let mut bytes = block(0, 1);
    device.read(3, 0, &mut bytes).expect("read");
    assert_ne!(bytes, block(5, 1));
}

#[test]
fn the_same_seed_gives_the_same_device() {
    let run = || {
        let device = small().paced(Pace::Virtual);
        for zone in 0..8 {
            device.write(zone, 0, &block(1, 8)).expect("write");
            device.read(zone, 0, &mut block(0, 4)).expect("read");
        }
        device.flush().expect("flush");
        device.now()
    };
    let once = run();
    assert!(once > 0);
    assert_eq!(once, run());
}

/// Somebody with so many commands under way, each `bytes` long and one after another in a zone; begins the next when one is done.
#[derive(Clone)]
struct Client {
    zone: u32,
    is_reader: bool,
    bytes: u64,
    /// When each command that is under way is done.
    done_at: Vec<Nanos>,
    at: u64,
    moved: u64,
    longest: Nanos,
}

impl Client {
    fn new(zone: u32, is_reader: bool, bytes: u64, depth: usize) -> Self {
        Self { zone, is_reader, bytes, done_at: vec![0; depth], at: 0, moved: 0, longest: 0 }
    }
}

/// Lets clients work for `time`; bytes per second of each.
fn run(profile: &Profile, clients: &mut [Client], time: Nanos) -> Vec<f64> {
    let mut model = Model::new(&profile.timing, 3);
    loop {
        let next = |client: &Client| client.done_at.iter().copied().enumerate().min_by_key(|(_, at)| *at);
        let (number, (slot, now)) = clients
            .iter()
            .enumerate()
            .filter_map(|(number, client)| Some((number, next(client)?)))
            .min_by_key(|(_, (_, at))| *at)
            .expect("a client");
        if now >= time {
            break;
        }
        let client = &mut clients[number];
        let (zone, at, bytes) = (client.zone, client.at, client.bytes);
        let command = if client.is_reader {
            Command::Read { zone, at, bytes }
        } else {
            Command::Write { zone, at, bytes }
        };
        client.done_at[slot] = model.submit(now, command);
        client.longest = client.longest.max(client.done_at[slot] - now);
        client.at += bytes;
        client.moved += bytes;
    }
    clients.iter().map(|client| client.moved as f64 * SECOND as f64 / time as f64).collect()
}

fn near(value: f64, expected: f64, percent: f64) {
    let off = (value / expected - 1.0).abs() * 100.0;
    assert!(off <= percent, "{value:.0} is {off:.1} % off {expected:.0}");
}

#[test]
fn a_small_zone_writes_40_and_reads_200_megabytes_a_second() {
    let written = run(&SMALL_ZONE, &mut [Client::new(0, false, 128 * KIB, 4)], 4 * SECOND);
    near(written[0], 40e6, 6.0);
    let read = run(&SMALL_ZONE, &mut [Client::new(0, true, 128 * KIB, 4)], SECOND);
    near(read[0], 200e6, 6.0);
    // Zones of one channel together write no more than all its dies can.
    let mut eight: Vec<_> = (0..8).map(|die| Client::new(16 * die, false, 128 * KIB, 2)).collect();
    near(run(&SMALL_ZONE, &mut eight, 2 * SECOND).iter().sum(), 320e6, 10.0);
}

#[test]
fn readers_of_a_die_interfere_more_than_of_a_channel() {
    let reader = |zone| Client::new(zone, true, 128 * KIB, 4);
    let alone = run(&SMALL_ZONE, &mut [reader(0)], SECOND)[0];
    let far = run(&SMALL_ZONE, &mut [reader(0), reader(1)], SECOND)[0];
    near(far, alone, 1.0);
    let channel = run(&SMALL_ZONE, &mut [reader(0), reader(16)], SECOND)[0] / alone;
    assert!((0.77..0.85).contains(&channel), "same channel: {channel:.3}");
    let die = run(&SMALL_ZONE, &mut [reader(0), reader(128)], SECOND)[0] / alone;
    assert!((0.25..0.5).contains(&die), "same die: {die:.3}");
    println!(
        "reader beside a reader: other channel {:.2}, same channel {channel:.2}, same die {die:.2}",
        far / alone
    );
}

#[test]
fn a_writer_to_one_die_slows_others_through_the_write_buffer() {
    let others = |narrow: usize| {
        let mut clients: Vec<_> = (1..16).map(|zone| Client::new(zone, false, 64 * KIB, 2)).collect();
        if narrow > 0 {
            clients.push(Client::new(0, false, 512 * KIB, narrow));
        }
        run(&SMALL_ZONE, &mut clients, SECOND)[..15].iter().sum::<f64>()
    };
    let (alone, beside) = (others(0), others(16));
    println!("15 writers beside a writer with 8 MiB ahead on one die: {:.2}", beside / alone);
    assert!(beside < 0.8 * alone);
}

#[test]
fn a_large_zone_uses_the_full_device_bandwidth() {
    let writer = |zone| Client::new(zone, false, 128 * KIB, 8);
    let one = run(&LARGE_ZONE, &mut [writer(0)], SECOND)[0];
    let two: f64 = run(&LARGE_ZONE, &mut [writer(0), writer(5)], SECOND).iter().sum();
    println!("one zone {:.0} MiB/s, two together {:.0}", one / MIB as f64, two / MIB as f64);
    near(one, 1146.0 * MIB as f64, 6.0);
    near(two, 1132.0 * MIB as f64, 6.0);
    let mut model = Model::new(&LARGE_ZONE.timing, 1);
    let write = model.submit(0, Command::Write { zone: 0, at: 0, bytes: 4 * KIB });
    near(write as f64, 11_400.0, 6.0);
    let capacity = LARGE_ZONE.capacity;
    near(model.submit(0, Command::Finish { left: capacity - 1, capacity }) as f64, 908e6, 1.0);
    near(model.submit(0, Command::Finish { left: 1, capacity }) as f64, 2.6e6, 1.0);
    near(model.submit(0, Command::Reset { written: capacity, capacity }) as f64, 16e6, 1.0);
}

#[test]
fn real_time_passes() {
    let device = small().paced(Pace::Real);
    let start = std::time::Instant::now();
    device.finish(0).expect("finish");
    // A finish of an empty zone takes 11 ms on this device.
    assert!(start.elapsed().as_millis() >= 11);
}

#[test]
fn numbers_that_are_drawn_are_spread() {
    let mut random = Random::new(1);
    let mut times = [0; 10];
    (0..10_000).for_each(|_| times[random.below(10) as usize] += 1);
    assert!(times.iter().all(|times| (800..1200).contains(times)), "{times:?}");
}
