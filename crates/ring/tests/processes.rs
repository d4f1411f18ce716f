//! Two processes, one of which is killed in the middle of a call. This program starts itself: the memory is inherited,
//! and the environment says which part to play.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use common::{Mapping, borrow, epoch, memory, sum};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;
use vellum_ring::{
    CORE_UNKNOWN, CallError, Caller, Client, Layout, Linux, Poller, Request, Response, Session,
};

const SECOND: u64 = 1_000_000_000;
const PART: &str = "VELLUM_RING_PART";
const MEMORY: &str = "VELLUM_RING_MEMORY";
/// A request that is to be answered at once, and one that is to be kept.
const ANSWER: u16 = 1;
const KEEP: u16 = 2;

fn layout() -> Layout {
    Layout::new(4, 4096).unwrap()
}

fn caller() -> Caller {
    Caller { key: 1, core: CORE_UNKNOWN }
}

/// Starts this program once more, and waits until it says that it is there.
fn start(part: &str, memory: &OwnedFd) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "part", "--nocapture"])
        .env(PART, part)
        .env(MEMORY, memory.as_raw_fd().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    // The test harness speaks first.
    assert!(lines.any(|line| line.unwrap().ends_with("ready")), "the other process has ended");
    child
}

/// Not a test of its own: what the other process does.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let fd = std::env::var(MEMORY).unwrap().parse().unwrap();
    let mapping = Mapping::new(borrow(fd), layout().bytes());
    if part == "service" {
        let session = Session::create(mapping.region(), layout(), epoch(1), Linux).unwrap();
        println!("ready");
        serve(&mut session.ring().unwrap().poller(), || true);
    }
    let client = Client::attach(mapping.region(), Linux).unwrap();
    println!("ready");
    if part == "client that is killed" {
        let _ = client.call(caller(), Request { opcode: KEEP, ..Request::default() }, &[], &mut [], None);
        unreachable!();
    }
    ask(&client, 500);
}

/// Calls with data both ways.
fn ask(client: &Client<'_, Linux>, calls: usize) {
    for number in 0..calls {
        let data: Vec<u8> = (0..number * 7 % 4097).map(|n| (n * number) as u8).collect();
        let mut out = [0; 4096];
        let request = Request { opcode: ANSWER, tag: number as u64, ..Request::default() };
        let (response, n) = client.call(caller(), request, &data, &mut out, Some(20 * SECOND)).unwrap();
        assert_eq!((response.status, response.values[0]), (0, sum(&data)));
        assert_eq!(&out[..n], data);
    }
}

/// Answers calls while `going`; those that are to be kept are kept, and how many they were.
fn serve(poller: &mut Poller<'_, Linux>, mut going: impl FnMut() -> bool) -> usize {
    let mut kept = Vec::new();
    while going() {
        match poller.poll_for(10_000) {
            None => {
                poller.sleep(Some(SECOND / 100));
            }
            Some(call) if call.request().opcode == KEEP => kept.push(call),
            Some(mut call) => {
                let mut data = vec![0; call.request().len as usize];
                call.read_data(0, &mut data);
                call.write_data(0, &data);
                let values = [sum(&data), 0, 0, 0, 0, 0];
                call.reply(Response { status: 0, len: data.len() as u32, values });
            }
        }
    }
    kept.len()
}

fn wait(child: &mut Child) -> bool {
    child.wait().unwrap().success()
}

#[test]
fn a_client_in_another_process() {
    let memory = memory(&layout());
    let mapping = Mapping::new(&memory, layout().bytes());
    let session = Session::create(mapping.region(), layout(), epoch(1), Linux).unwrap();
    let mut child = start("client", &memory);
    let ring = session.ring().unwrap();
    serve(&mut ring.poller(), || child.try_wait().unwrap().is_none());
    assert!(wait(&mut child));
}

#[test]
fn a_killed_client_affects_no_other() {
    let memories = [memory(&layout()), memory(&layout())];
    let maps = memories.each_ref().map(|fd| Mapping::new(fd, layout().bytes()));
    let sessions =
        maps.each_ref().map(|map| Session::create(map.region(), layout(), epoch(1), Linux).unwrap());
    let rings = sessions.each_ref().map(|session| session.ring().unwrap());
    let mut killed = start("client that is killed", &memories[0]);
    let mut other = start("client", &memories[1]);
    let mut poller = rings[0].poller();
    let call = loop {
        match poller.poll() {
            Some(call) => break call,
            None => poller.sleep(Some(SECOND / 10)),
        };
    };
    killed.kill().unwrap();
    assert!(!wait(&mut killed));
    serve(&mut rings[1].poller(), || other.try_wait().unwrap().is_none());
    assert!(wait(&mut other));
    // An answer to nobody; and the dead one's session still works for another process of it.
    call.reply(Response::status(0));
    assert_eq!(rings[0].pending_calls(), 0);
    let mut child = start("client", &memories[0]);
    serve(&mut poller, || child.try_wait().unwrap().is_none());
    assert!(wait(&mut child));
}

#[test]
fn a_killed_service_leaves_no_client_waiting() {
    let memory = memory(&layout());
    let mapping = Mapping::new(&memory, layout().bytes());
    let mut service = start("service", &memory);
    let client = Client::attach(mapping.region(), Linux).unwrap();
    ask(&client, 50);
    let keep = |timeout| {
        let request = Request { opcode: KEEP, ..Request::default() };
        client.call(caller(), request, &[], &mut [], timeout).map(drop)
    };
    thread::scope(|scope| {
        let impatient = scope.spawn(|| keep(Some(SECOND / 5)));
        thread::sleep(Duration::from_millis(50));
        service.kill().unwrap();
        assert!(!wait(&mut service));
        // The call ends by itself, when its time is over.
        assert_eq!(impatient.join().unwrap(), Err(CallError::Gone));
    });
}
