//! A client that does to its memory what it likes: the service goes on, touches nothing outside (the memory lies between
//! pages that nobody may touch), and serves others.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use common::{Mapping, epoch, memory};
use fastrand::Rng;
use rustix::fs::{FallocateFlags, fallocate};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use vellum_ring::{
    CORE_UNKNOWN, Call, CallError, Caller, Client, Layout, Linux, Platform, Request, Response, Session,
};

const SECOND: u64 = 1_000_000_000;

fn caller(key: u64) -> Caller {
    Caller { key, core: CORE_UNKNOWN }
}

/// A value that may well mean something.
fn plausible(random: &mut Rng) -> u64 {
    let word = |random: &mut Rng| (1 << 16 | random.u64(..2) << 8 | random.u64(..9)) as u32;
    match random.u64(..6) {
        0 => 0,
        1 => u64::MAX,
        2 => random.u64(..),
        3 => random.u64(..1 << 16) << random.u64(..48),
        // A state word, and how long to spin.
        _ => u64::from(word(random)) | random.u64(..) << 32,
    }
}

/// Does something with a call that a service might do.
fn answer<'r>(mut call: Call<'r, Linux>, random: &mut Rng, kept: &mut Vec<Call<'r, Linux>>) {
    let request = *call.request();
    assert!(request.len as usize <= call.capacity());
    let mut data = vec![0; random.u64(..3 * call.capacity() as u64) as usize];
    let offset = random.u64(..2 * call.capacity() as u64) as usize;
    assert!(call.read_data(offset, &mut data) <= request.len as usize);
    assert!(call.write_data(offset, &data) <= call.capacity());
    let len = random.u64(..) as u32;
    match random.u64(..4) {
        0 => drop(call),
        1 if kept.len() < 8 => kept.push(call),
        _ => {
            call.reply(Response { status: 0, len, values: [random.u64(..); 6] });
        }
    }
}

#[test]
fn a_corrupted_ring_does_not_affect_other_rings() {
    let seed = common::seed();
    let layout = Layout::new(16, 256).unwrap();
    let (bad_fd, good_fd) = (memory(&layout), memory(&layout));
    let maps = [&bad_fd, &bad_fd, &good_fd, &good_fd].map(|fd| Mapping::new(fd, layout.bytes()));
    let [bad_ours, bad_theirs, good_ours, good_theirs] = &maps;
    let bad = Session::create(bad_ours.region(), layout, epoch(1), Linux).unwrap();
    let good = Session::create(good_ours.region(), layout, epoch(1), Linux).unwrap();
    let honest = Client::attach(good_theirs.region(), Linux).unwrap();
    let accomplice = Client::attach(bad_theirs.region(), Linux).unwrap();
    let (stop, all_asked) = (AtomicBool::new(false), AtomicBool::new(false));
    let stopped = || stop.load(Ordering::Relaxed);
    let (polls, taken, asked) = thread::scope(|scope| {
        // Two that scribble, one of which also makes the memory disappear, and one that calls in between.
        for number in 0..2 {
            let fd = &bad_fd;
            scope.spawn(move || {
                let mut random = Rng::with_seed(seed + number);
                while !stopped() {
                    for _ in 0..200 {
                        let words = bad_theirs.words();
                        // Where the control words are rather than among the data, most of the time.
                        let limit = if random.u64(..4) == 0 { words.len() } else { 700 };
                        let word = &words[random.u64(..limit as u64) as usize];
                        word.store(plausible(&mut random), Ordering::Relaxed);
                    }
                    futexes(bad_theirs, &layout, &mut random);
                    if number == 0 && random.u64(..20) == 0 {
                        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                        fallocate(fd, flags, 0, layout.bytes() as u64).unwrap();
                    }
                }
            });
        }
        scope.spawn(|| {
            let mut random = Rng::with_seed(seed + 2);
            while !stopped() {
                let data = [1; 256];
                let n = random.u64(..257) as usize;
                let mut out = [0; 300];
                let _ = accomplice.call(
                    caller(random.u64(..)),
                    Request::default(),
                    &data[..n],
                    &mut out,
                    Some(1000),
                );
            }
        });
        let asker = scope.spawn(|| {
            let mut asked = 0;
            while !stopped() {
                let request = Request { args: [asked; 5], ..Request::default() };
                let answer = honest.call(caller(1), request, b"honest", &mut [], Some(20 * SECOND));
                assert_eq!(answer.unwrap().0.values, [asked; 6]);
                asked += 1;
            }
            all_asked.store(true, Ordering::Relaxed);
            asked
        });
        let service = scope.spawn(|| serve_both(&bad, &good, seed + 3, &all_asked));
        thread::sleep(Duration::from_millis(1500));
        stop.store(true, Ordering::Relaxed);
        let asked = asker.join().unwrap();
        let (polls, taken) = service.join().unwrap();
        (polls, taken, asked)
    });
    println!("{polls} polls, {taken} calls of the hostile client, {asked} of the honest one");
    assert!(polls > 1000 && taken > 0 && asked > 10);
    // Also after all that, turning its epoch ends.
    bad.close();
}

/// One thread of the service for a hostile and an honest client. How often it polled the first, and what it got.
fn serve_both(
    bad: &Session<'_, Linux>,
    good: &Session<'_, Linux>,
    seed: u64,
    all_asked: &AtomicBool,
) -> (u64, u64) {
    let (bad_ring, good_ring) = (bad.ring().unwrap(), good.ring().unwrap());
    let mut pollers = [bad_ring.poller(), good_ring.poller()];
    let (mut polls, mut taken) = (0, 0);
    let mut random = Rng::with_seed(seed);
    let mut kept = Vec::new();
    while !all_asked.load(Ordering::Relaxed) {
        polls += 1;
        if let Some(call) = pollers[0].poll() {
            taken += 1;
            answer(call, &mut random, &mut kept);
        }
        assert!(bad_ring.pending_calls() <= bad.layout().slots());
        if random.u64(..8) == 0
            && let Some(call) = kept.pop()
        {
            call.reply(Response::status(1));
        }
        while let Some(call) = pollers[1].poll() {
            let mut data = [0; 6];
            call.read_data(0, &mut data);
            assert_eq!(&data, b"honest");
            let asked = call.request().args[0];
            call.reply(Response { status: 0, len: 0, values: [asked; 6] });
        }
        if random.u64(..50) == 0 {
            pollers[0].sleep(Some(100_000));
        }
    }
    (polls, taken)
}

/// Wakes and sleeps a little on words that are the service's.
fn futexes(map: &Mapping, layout: &Layout, random: &mut Rng) {
    let line = 128 + random.u64(..u64::from(layout.slots())) as usize * 64;
    let word = common::low_half(&map.words()[line / 8]);
    Linux.wake(word);
    Linux.wait(word, word.load(Ordering::Relaxed), Some(1000));
}

#[test]
fn a_poll_is_one_look_at_each_slot_at_most() {
    let layout = Layout::new(256, 64).unwrap();
    let fd = memory(&layout);
    let (ours, theirs) = (Mapping::new(&fd, layout.bytes()), Mapping::new(&fd, layout.bytes()));
    let session = Session::create(ours.region(), layout, epoch(1), Linux).unwrap();
    let ring = session.ring().unwrap();
    let mut poller = ring.poller();
    let words = theirs.words();
    let hints = || words[24..28].iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    hints();
    assert!(poller.poll().is_none(), "hints without calls");
    // Every slot says that it has a call, of which half have more data than fit.
    for slot in 0..256 {
        let at = 32 + slot * 32;
        words[at].store(1 << 16 | 3, Ordering::Relaxed);
        words[at + 8].store(if slot % 2 == 0 { 65 << 32 } else { 64 << 32 }, Ordering::Relaxed);
    }
    hints();
    let calls: Vec<Call<'_, Linux>> = std::iter::from_fn(|| poller.poll()).collect();
    assert_eq!((calls.len(), ring.pending_calls()), (128, 128));
    // Saying so again of slots that are in hand makes no second call of them.
    for slot in 0..256 {
        words[32 + slot * 32].store(1 << 16 | 3, Ordering::Relaxed);
    }
    hints();
    assert_eq!(std::iter::from_fn(|| poller.poll()).count(), 0);
    // Those are scribbled over, so nobody gets the answers; the others were refused again.
    for call in calls {
        assert!(!call.reply(Response::status(0)));
    }
    assert_eq!(ring.pending_calls(), 0);
    // An unclaimed slot without a hint is found by going round, within as many polls as there are slots.
    for slot in 0..256 {
        words[32 + slot * 32].store(1 << 16 | if slot == 77 { 3 } else { 1 }, Ordering::Relaxed);
    }
    assert_eq!((0..256).filter_map(|_| poller.poll()).count(), 1);
}

#[test]
fn a_client_without_calls_is_polled_rarely() {
    let layout = Layout::new(4, 64).unwrap();
    let fd = memory(&layout);
    let (ours, theirs) = (Mapping::new(&fd, layout.bytes()), Mapping::new(&fd, layout.bytes()));
    let session = Session::create(ours.region(), layout, epoch(1), Linux).unwrap();
    let ring = session.ring().unwrap();
    let mut poller = ring.poller();
    let stop = AtomicBool::new(false);
    let mut sleeps = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                theirs.words()[16].store(0, Ordering::Relaxed);
                Linux.wake(common::low_half(&theirs.words()[16]));
            }
        });
        let until = Instant::now() + Duration::from_millis(500);
        while Instant::now() < until {
            poller.sleep(Some(SECOND));
            assert!(poller.poll().is_none());
            sleeps += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(poller.is_distrusted());
    assert!(sleeps <= 16 + 500, "{sleeps} times awake");
    // It is served all the same, and then believed again.
    let client = Client::attach(theirs.region(), Linux).unwrap();
    let asked = thread::scope(|scope| {
        let asked =
            scope.spawn(|| client.call(caller(1), Request::default(), &[], &mut [], Some(20 * SECOND)));
        while !asked.is_finished() {
            poller.sleep(Some(SECOND / 100));
            drop(poller.poll());
        }
        asked.join().unwrap()
    });
    assert_eq!(asked.map(|(response, _)| response.status), Ok(5));
    assert!(!poller.is_distrusted());
}

#[test]
fn a_forged_header_is_refused() {
    let seed = common::seed();
    let mut random = Rng::with_seed(seed);
    let layout = Layout::new(4, 64).unwrap();
    let fd = memory(&layout);
    let (ours, theirs) = (Mapping::new(&fd, layout.bytes()), Mapping::new(&fd, layout.bytes()));
    let larger = Layout::new(256, 4096).unwrap();
    assert!(Session::create(ours.region(), larger, epoch(1), Linux).is_err());
    for _ in 0..2000 {
        let session = Session::create(ours.region(), layout, epoch(1), Linux).unwrap();
        for _ in 0..=random.u64(..3) {
            theirs.words()[random.u64(..9) as usize].store(plausible(&mut random), Ordering::Relaxed);
        }
        // Whatever it says, what the client believes lies inside.
        if let Ok(client) = Client::attach(theirs.region(), Linux) {
            assert!(client.layout().bytes() <= layout.bytes());
            let call = client.call(caller(random.u64(..)), Request::default(), &[1; 64], &mut [], Some(0));
            assert!(matches!(call, Err(CallError::Gone | CallError::Full | CallError::TooLarge)));
        }
        // The service does not look there.
        assert_eq!(session.layout(), layout);
        assert_eq!(session.ring().map(|ring| ring.pending_calls()), Some(0));
    }
}
