//! What a call costs: an empty one, and one with 4 KiB of response, beside a UNIX socket pair and a bare futex. Client and
//! service are two processes; this program starts itself.
//!
//! `cargo run --release -p vellum-ring --example call_cost [CALLS]`
//!
//! What else runs on the machine is in the numbers; the medians of several rounds that alternate are printed, and their
//! ratios to the socket pair.
#![allow(clippy::unwrap_used, reason = "a measurement that cannot go on should stop")]
#![allow(unsafe_code, reason = "a mapping, inherited descriptors")]

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use vellum_ring::{Caller, Client, Layout, Linux, Platform, Region, Request, Response, Session};

const PART: &str = "VELLUM_ROUNDTRIP";
const DATA: usize = 4096;
const ROUNDS: usize = 7;
const SECOND: u64 = 1_000_000_000;
/// The opcode that ends the service.
const STOP: u16 = 9;

/// Who carries the calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Rings; the service polls and never sleeps.
    Spinning,
    /// Rings; both sleep as soon as there is nothing.
    Asleep,
    /// Rings; the service polls for 20 us, then sleeps: what a service would do.
    Mixed,
    /// A UNIX socket pair.
    Socket,
    /// A word that each side waits for and wakes.
    Futex,
}

const WAYS: [Way; 5] = [Way::Spinning, Way::Asleep, Way::Mixed, Way::Socket, Way::Futex];

fn map(memory: impl AsFd, bytes: usize) -> NonNull<u8> {
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::SHARED | MapFlags::POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap(null_mut(), bytes, both, flags, memory, 0) }.unwrap();
    NonNull::new(base.cast()).unwrap()
}

fn region(memory: impl AsFd) -> Region<'static> {
    let base = map(memory, layout().bytes());
    // SAFETY: mapped until the process ends, sealed, and touched by way of this region only.
    unsafe { Region::new(base, layout().bytes()) }.unwrap()
}

/// The word of the futex way.
fn word(memory: impl AsFd) -> &'static AtomicU32 {
    // SAFETY: mapped until the process ends, aligned, and only reached by atomics.
    unsafe { AtomicU32::from_ptr(map(memory, 4096).as_ptr().cast()) }
}

fn layout() -> Layout {
    Layout::new(8, DATA as u32).unwrap()
}

/// Binds this process to a processor.
fn bind(core: usize) {
    let mut one = CpuSet::new();
    one.set(core);
    sched_setaffinity(None, &one).unwrap();
}

/// The service's side; ends when it is told to.
fn serve(way: Way, memory: impl AsFd, mut socket: UnixStream) {
    let page = [7_u8; DATA];
    match way {
        Way::Socket => {
            let mut head = [0; 64];
            while socket.read_exact(&mut head).is_ok() && head[0] != STOP as u8 {
                let n = usize::from(u16::from_ne_bytes([head[2], head[3]]));
                let mut answer = [0; 64 + DATA];
                answer[64..64 + n].copy_from_slice(&page[..n]);
                socket.write_all(&answer[..64 + n]).unwrap();
            }
        }
        Way::Futex => {
            let word = word(memory);
            loop {
                match word.load(Ordering::Acquire) {
                    1 => {
                        word.store(2, Ordering::Release);
                        Linux.wake(word);
                    }
                    3 => return,
                    seen => drop(Linux.wait(word, seen, None)),
                }
            }
        }
        Way::Spinning | Way::Asleep | Way::Mixed => {
            let session = Session::create(region(memory), layout(), NonZeroU16::MIN, Linux).unwrap();
            socket.write_all(b"!").unwrap();
            let ring = session.ring().unwrap();
            let mut poller = ring.poller();
            let spin = match way {
                Way::Spinning => SECOND,
                Way::Mixed => 20_000,
                _ => 0,
            };
            loop {
                poller.note_core(Linux.core());
                let Some(mut call) = poller.poll_for(spin) else {
                    poller.sleep(Some(SECOND));
                    continue;
                };
                let request = *call.request();
                let len = call.write_data(0, &page[..request.args[0] as usize]) as u32;
                call.reply(Response { status: 0, len, values: [0; 6] });
                if request.opcode == STOP {
                    return;
                }
            }
        }
    }
}

/// The other side of each way.
struct Asker {
    way: Way,
    socket: UnixStream,
    client: Option<Client<'static, Linux>>,
    word: &'static AtomicU32,
    service: Child,
    /// Where the caller says that it is.
    core: u32,
}

impl Asker {
    /// Starts a service on the processor `there`; this one runs on `here`.
    fn start(way: Way, here: usize, there: usize) -> Self {
        let memory = memfd_create("vellum-ring", MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&memory, layout().bytes() as u64).unwrap();
        fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        let (mut socket, theirs) = UnixStream::pair().unwrap();
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty()).unwrap();
        let index = WAYS.iter().position(|known| *known == way).unwrap();
        let part = format!("{index} {there} {} {}", memory.as_raw_fd(), theirs.as_raw_fd());
        let service = Command::new(std::env::current_exe().unwrap()).env(PART, part).spawn().unwrap();
        drop(theirs);
        let rings = matches!(way, Way::Spinning | Way::Asleep | Way::Mixed);
        let client = rings.then(|| {
            socket.read_exact(&mut [0]).unwrap();
            Client::attach(region(&memory), Linux).unwrap()
        });
        // Who seems to be where the service is does not spin.
        let core = if way == Way::Asleep { there } else { here } as u32;
        Self { way, socket, client, word: word(&memory), service, core }
    }

    fn call(&mut self, opcode: u16, bytes: usize, out: &mut [u8; DATA]) {
        if let Some(client) = &self.client {
            let caller = Caller { key: 1, core: self.core };
            let request = Request { opcode, args: [bytes as u64, 0, 0, 0, 0], ..Request::default() };
            let answer = client.call(caller, request, &[], out, Some(10 * SECOND)).unwrap();
            assert_eq!((answer.0.status, answer.1), (0, bytes));
        } else if self.way == Way::Socket {
            let mut head = [0; 64];
            head[0] = opcode as u8;
            head[2..4].copy_from_slice(&(bytes as u16).to_ne_bytes());
            self.socket.write_all(&head).unwrap();
            if opcode != STOP {
                self.socket.read_exact(&mut head).unwrap();
                self.socket.read_exact(&mut out[..bytes]).unwrap();
            }
        } else {
            self.word.store(if opcode == STOP { 3 } else { 1 }, Ordering::Release);
            Linux.wake(self.word);
            while opcode != STOP && self.word.load(Ordering::Acquire) == 1 {
                Linux.wait(self.word, 1, None);
            }
        }
    }

    fn stop(mut self) {
        self.call(STOP, 0, &mut [0; DATA]);
        assert!(self.service.wait().unwrap().success());
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds of the median call of a round.
fn round(way: Way, (here, there): (usize, usize), bytes: usize, calls: usize) -> f64 {
    bind(here);
    let mut asker = Asker::start(way, here, there);
    let mut out = [0; DATA];
    (0..calls / 10).for_each(|_| asker.call(1, bytes, &mut out));
    let mut times = Vec::with_capacity(calls);
    for _ in 0..calls {
        let begin = Instant::now();
        asker.call(1, bytes, &mut out);
        times.push(begin.elapsed().as_nanos() as f64);
    }
    asker.stop();
    median(times)
}

fn main() {
    if let Ok(part) = std::env::var(PART) {
        let [index, core, memory, socket] =
            part.split(' ').map(|n| n.parse::<i32>().unwrap()).collect::<Vec<_>>()[..]
        else {
            return;
        };
        bind(core as usize);
        // SAFETY: inherited, and nobody else's in this process.
        let memory = unsafe { std::os::fd::OwnedFd::from_raw_fd(memory) };
        // SAFETY: inherited, and nobody else's in this process.
        let socket = unsafe { UnixStream::from_raw_fd(socket) };
        return serve(WAYS[index as usize], memory, socket);
    }
    let calls = std::env::args().nth(1).map_or(20_000, |calls| calls.parse().unwrap());
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    println!("{cores} processors, load before: {}", load.trim());
    println!("what else runs here is in these numbers; medians of {ROUNDS} rounds of {calls} calls, ns\n");
    let may = sched_getaffinity(None).unwrap();
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core));
    let (Some(first), Some(second)) = (cores.next(), cores.next()) else {
        println!("SKIPPED: this needs two processors");
        return;
    };
    for (together, place) in [(false, "two processors"), (true, "one processor")] {
        for bytes in [0, DATA] {
            // A service that never sleeps leaves its only processor to nobody.
            let ways = WAYS.iter().filter(|way| !together || **way != Way::Spinning);
            let ways: Vec<Way> = ways.filter(|way| bytes == 0 || **way != Way::Futex).copied().collect();
            let mut times = vec![Vec::new(); ways.len()];
            for _ in 0..ROUNDS {
                for (way, times) in ways.iter().zip(&mut times) {
                    times.push(round(*way, (first, if together { first } else { second }), bytes, calls));
                }
            }
            let medians: Vec<f64> = times.into_iter().map(median).collect();
            let socket =
                ways.iter().zip(&medians).find(|(way, _)| **way == Way::Socket).map_or(1.0, |(_, m)| *m);
            println!("{place}, {bytes} bytes of response");
            for (way, median) in ways.iter().zip(&medians) {
                println!(
                    "  {:<10} {median:>8.0}   {:>5.2} of the socket pair",
                    format!("{way:?}"),
                    median / socket
                );
            }
        }
    }
}
