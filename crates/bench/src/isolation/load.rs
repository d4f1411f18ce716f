//! One experiment in virtual time: somebody reads or writes at a given rate on an emulated zoned device, and images of checkpoints are
//! written beside that.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use vellum_zoned::device::emulator::{Command, Model, Nanos, Profile, Random};
use vellum_zoned::pace::{Budget, Direction, PaceDecision, Pacer};

const SECOND: Nanos = 1_000_000_000;
/// So many calls of others are done before images begin, which are not measured: buffers fill, and a pacer sees them undisturbed.
const CALLS_BEFORE: u64 = 1000;
/// How long others are measured at least.
const LEAST: Nanos = SECOND;
/// After so long an experiment ends, whatever images lack.
const MOST: Nanos = 120 * SECOND;
/// Calls of others that are under way at once at the most, as fio's `iodepth`; later ones wait, and that counts.
const DEPTH: usize = 32;

/// What somebody does: calls of one size, at random times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct OtherLoad {
    pub(super) direction: Direction,
    /// Bytes of a call.
    pub(super) bytes: u64,
    /// Bytes per second.
    pub(super) rate: u64,
}

/// What images are like, and how they are written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Images {
    pub(super) count: usize,
    pub(super) bytes: u64,
    /// Bytes of a write.
    pub(super) piece: u64,
    /// Writes of an image that are under way at once at the most.
    pub(super) depth: usize,
    pub(super) budget: Option<Budget>,
}

/// Which zones are written to, and read from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Zones {
    pub(super) others: Vec<u32>,
    pub(super) images: Vec<u32>,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadResult {
    /// Of others' calls that began while images were written, in nanoseconds.
    pub(super) latencies: Vec<Nanos>,
    /// Bytes of others' calls that ended in that time, per second.
    pub(super) bandwidth: f64,
    /// From the beginning to the last image's end; None: not all ended.
    pub(super) images_took: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Others begin a call.
    Call,
    /// A call of others is done that began then.
    CallDone(Nanos),
    /// A piece of an image is done, of so many bytes.
    PieceDone(usize, u64),
    /// Images may go on.
    Wake,
}

struct Run<'a> {
    profile: &'a Profile,
    others: Option<OtherLoad>,
    images: &'a Images,
    zones: &'a Zones,
    model: Model,
    /// When images begin.
    begins: Nanos,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    events_made: u64,
    random: Random,
    /// Calls of others that wait for one of their own.
    waiting: VecDeque<Nanos>,
    calls_under_way: usize,
    /// Calls of others so far, which go to their zones in turn.
    calls: u64,
    pacer: Option<Pacer>,
    left: Vec<u64>,
    under_way: Vec<usize>,
    pieces: u64,
    /// The next time at which images are looked at, whatever is done until then.
    wakes_at: Option<Nanos>,
    seen: LoadResult,
    bytes_seen: u64,
}

/// Lets it happen. `until`: others are measured for so long; None: as long as images are written.
pub(super) fn run(
    profile: &Profile,
    others: Option<OtherLoad>,
    images: &Images,
    zones: &Zones,
    until: Option<Nanos>,
) -> LoadResult {
    let before = |others: OtherLoad| CALLS_BEFORE * others.bytes * SECOND / others.rate;
    let mut run = Run {
        begins: others.map_or(0, before).max(SECOND),
        profile,
        others,
        images,
        zones,
        model: Model::new(&profile.timing, 11),
        events: BinaryHeap::new(),
        events_made: 0,
        random: Random::new(5),
        waiting: VecDeque::new(),
        calls_under_way: 0,
        calls: 0,
        pacer: images.budget.map(Pacer::new),
        left: vec![images.bytes; images.count],
        under_way: vec![0; images.count],
        pieces: 0,
        wakes_at: None,
        seen: LoadResult::default(),
        bytes_seen: 0,
    };
    run.put(0, Event::Call);
    run.put(run.begins, Event::Wake);
    let end = run.run_until(until);
    let time = end - run.begins;
    run.seen.bandwidth = run.bytes_seen as f64 * SECOND as f64 / time.max(1) as f64;
    run.seen
}

impl Run<'_> {
    /// Runs to the end, and says when that was.
    fn run_until(&mut self, until: Option<Nanos>) -> Nanos {
        let most = self.begins + until.unwrap_or(MOST);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= most {
                return most;
            }
            self.handle_event(now, event);
            let images_done =
                self.left.iter().all(|left| *left == 0) && self.under_way.iter().all(|n| *n == 0);
            if images_done && now >= self.begins {
                if self.seen.images_took.is_none() {
                    self.seen.images_took = Some(now - self.begins);
                }
                if until.is_none() && now >= self.begins + LEAST {
                    return now;
                }
            }
        }
        most
    }

    fn put(&mut self, at: Nanos, event: Event) {
        // Of two at one time the earlier one made is first.
        self.events_made += 1;
        self.events.push(Reverse((at, self.events_made, event)));
    }

    fn handle_event(&mut self, now: Nanos, event: Event) {
        match event {
            Event::Call => {
                let Some(others) = self.others else { return };
                // Poisson: the time to the next call is drawn from an exponential distribution.
                let drawn = (self.random.below(1 << 53) as f64 + 1.0) / (1_u64 << 53) as f64;
                let mean = others.bytes as f64 * SECOND as f64 / others.rate as f64;
                self.put(now + (-drawn.ln() * mean) as Nanos, Event::Call);
                self.waiting.push_back(now);
                self.call(now);
            }
            Event::CallDone(began) => {
                let Some(others) = self.others else { return };
                self.calls_under_way -= 1;
                let latency = now - began;
                if now >= self.begins {
                    self.bytes_seen += others.bytes;
                }
                if began >= self.begins {
                    self.seen.latencies.push(latency);
                }
                if let Some(pacer) = &mut self.pacer {
                    pacer.note_other_call(now, others.direction, others.bytes, latency);
                }
                self.call(now);
            }
            Event::PieceDone(image, bytes) => {
                self.under_way[image] -= 1;
                if let Some(pacer) = &mut self.pacer {
                    pacer.done(now, bytes);
                }
                self.write_images(now);
            }
            Event::Wake => {
                self.wakes_at = self.wakes_at.filter(|at| *at > now);
                if now >= self.begins {
                    self.write_images(now);
                }
            }
        }
    }

    /// Begins calls of others that wait, as many as may be under way.
    fn call(&mut self, now: Nanos) {
        let Some(others) = self.others else { return };
        while self.calls_under_way < DEPTH
            && let Some(began) = self.waiting.pop_front()
        {
            let command = self.next_call(others);
            let done_at = self.model.submit(now, command);
            self.calls_under_way += 1;
            self.put(done_at, Event::CallDone(began));
        }
    }

    /// Writes go to the zones in turn, each at its write pointer; reads go anywhere in them.
    fn next_call(&mut self, others: OtherLoad) -> Command {
        let bytes = others.bytes;
        let zones = self.zones.others.len() as u64;
        let room = self.profile.capacity * u64::from(self.profile.geometry.block_size) / bytes;
        let call = self.calls;
        self.calls += 1;
        match others.direction {
            Direction::Write => {
                let zone = self.zones.others[(call % zones) as usize];
                Command::Write { zone, at: call / zones % room * bytes, bytes }
            }
            Direction::Read => {
                let zone = self.zones.others[self.random.below(zones) as usize];
                Command::Read { zone, at: self.random.below(room) * bytes, bytes }
            }
        }
    }

    /// Sends what may go of the images, which take turns.
    fn write_images(&mut self, now: Nanos) {
        loop {
            let may = |image: &usize| self.left[*image] > 0 && self.under_way[*image] < self.images.depth;
            let count = self.images.count;
            let first = self.pieces as usize;
            let Some(image) = (0..count).map(|turn| (first + turn) % count).find(may) else { return };
            let bytes = self.images.piece.min(self.left[image]);
            match self.pacer.as_ref().map(|pacer| pacer.ask(now, bytes)) {
                Some(PaceDecision::At(at)) => {
                    if self.wakes_at.is_none_or(|wakes| at < wakes) {
                        self.wakes_at = Some(at);
                        self.put(at, Event::Wake);
                    }
                    return;
                }
                Some(PaceDecision::AfterDone) => return,
                None | Some(PaceDecision::Now) => {}
            }
            let zones = self.zones.images.len() as u64;
            let room = self.profile.capacity * u64::from(self.profile.geometry.block_size) / bytes;
            let zone = self.zones.images[(self.pieces % zones) as usize];
            let at = self.pieces / zones % room * bytes;
            self.pieces += 1;
            let done_at = self.model.submit(now, Command::Write { zone, at, bytes });
            self.left[image] -= bytes;
            self.under_way[image] += 1;
            if let Some(pacer) = &mut self.pacer {
                pacer.sent(now, bytes);
            }
            self.put(done_at, Event::PieceDone(image, bytes));
        }
    }
}
