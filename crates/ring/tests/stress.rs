//! Many threads at once, and one call at a time, in one process with two mappings of the memory.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

mod common;

use common::{Mapping, epoch, memory, sum};
use fastrand::Rng;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use vellum_ring::{
    AttachError, CORE_UNKNOWN, CallError, Caller, Client, Layout, Linux, Poller, Request, Response,
    ServiceProgress, Session, WaitError,
};

const SECOND: u64 = 1_000_000_000;

fn caller(key: u64) -> Caller {
    Caller { key, core: CORE_UNKNOWN }
}

/// Answers with the data's bytes the other way round, and their checksum.
fn mirror(mut call: vellum_ring::Call<'_, Linux>) {
    let mut data = vec![0; call.request().len as usize];
    assert_eq!(call.read_data(0, &mut data), data.len());
    let values = [call.request().args[0], sum(&data), 0, 0, 0, 0];
    data.reverse();
    call.write_data(0, &data);
    call.reply(Response { status: 0, len: data.len() as u32, values });
}

fn serve(poller: &mut Poller<'_, Linux>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        poller.note_core(Linux.core());
        match poller.poll_for(20_000) {
            Some(call) => mirror(call),
            None => {
                poller.sleep(Some(SECOND / 100));
            }
        }
    }
}

#[test]
fn eight_threads_with_data_both_ways() {
    const THREADS: u64 = 8;
    let seed = common::seed();
    let layout = Layout::new(8, 8192).unwrap();
    let fd = memory(&layout);
    let (ours, theirs) = (Mapping::new(&fd, layout.bytes()), Mapping::new(&fd, layout.bytes()));
    let session = Session::create(ours.region(), layout, epoch(1), Linux).unwrap();
    let client = Client::attach(theirs.region(), Linux).unwrap();
    let ring = session.ring().unwrap();
    let (stop, full) = (AtomicBool::new(false), AtomicU64::new(0));
    let calls: u64 = thread::scope(|scope| {
        scope.spawn(|| serve(&mut ring.poller(), &stop));
        let clients: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (client, full) = (&client, &full);
                scope.spawn(move || {
                    let mut random = Rng::with_seed(seed ^ thread);
                    let until = Instant::now() + Duration::from_secs(2);
                    let mut calls = 0;
                    while Instant::now() < until {
                        let data: Vec<u8> =
                            (0..random.u64(..8193)).map(|n| (n ^ random.get_seed() ^ thread) as u8).collect();
                        let mut out = vec![0; 8192];
                        let number = random.u64(..);
                        let request = Request {
                            opcode: 1,
                            tag: number,
                            args: [number, 0, 0, 0, 0],
                            ..Request::default()
                        };
                        let from = Caller { core: Linux.core(), ..caller(thread) };
                        match client.call(from, request, &data, &mut out, Some(10 * SECOND)) {
                            Ok((response, n)) => {
                                assert_eq!(response.values[..2], [number, sum(&data)]);
                                assert!(n == data.len() && out[..n].iter().eq(data.iter().rev()));
                                calls += 1;
                            }
                            Err(CallError::Full) => {
                                full.fetch_add(1, Ordering::Relaxed);
                                thread::yield_now();
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    calls
                })
            })
            .collect();
        let calls = clients.into_iter().map(|client| client.join().unwrap()).sum();
        stop.store(true, Ordering::Relaxed);
        calls
    });
    println!("{calls} calls, {} times full", full.into_inner());
    assert!(calls > 100);
    assert_eq!(ring.pending_calls(), 0);
}

#[test]
fn one_call_at_a_time() {
    let layout = Layout::new(2, 128).unwrap();
    let fd = memory(&layout);
    let (ours, theirs) = (Mapping::new(&fd, layout.bytes()), Mapping::new(&fd, layout.bytes()));
    assert_eq!(Client::attach(theirs.region(), Linux).unwrap_err(), AttachError::Layout);
    let session = Session::create(ours.region(), layout, epoch(7), Linux).unwrap();
    let ring = session.ring().unwrap();
    let mut poller = ring.poller();
    let client = Client::attach(theirs.region(), Linux).unwrap();
    assert_eq!((client.layout(), client.is_gone()), (layout, false));
    assert!(poller.poll().is_none());

    // A claim that is dropped; then as many calls as there are slots, and one more.
    drop(client.claim(caller(1)).unwrap());
    let send = |tag, len| {
        let mut slot = client.claim(caller(tag))?;
        assert_eq!(slot.write_data(0, &[tag as u8; 200]), 128);
        slot.send(Request { tag, len, ..Request::default() })
    };
    let (one, two) = (send(1, 100).unwrap(), send(2, 128).unwrap());
    assert_eq!(send(3, 0).unwrap_err(), CallError::Full);
    let large = client.call(caller(1), Request::default(), &[0; 129], &mut [], None);
    assert_eq!(large.unwrap_err(), CallError::TooLarge);

    // The data end where the request's do, and answers are of the call that they are to.
    let (first, second) = (poller.poll().unwrap(), poller.poll().unwrap());
    assert_eq!(ring.pending_calls(), 2);
    assert!(poller.poll().is_none());
    let (mut first, second) = if first.request().tag == 1 { (first, second) } else { (second, first) };
    let mut data = [0; 128];
    assert_eq!((first.read_data(90, &mut data), first.read_data(100, &mut data)), (10, 0));
    assert_eq!(first.write_data(8, b"answer"), 6);
    assert!(first.reply(Response { status: 5, len: u32::MAX, values: [9; 6] }));
    assert!(thread::scope(|scope| { scope.spawn(|| second.reply(Response::status(0))).join().unwrap() }));
    let answer = one.wait(None).unwrap();
    assert_eq!(answer.response(), Response { status: 5, len: 128, values: [9; 6] });
    let mut out = [0; 6];
    assert_eq!((answer.read_data(8, &mut out), &out), (6, b"answer"));
    drop(answer);
    assert_eq!(two.wait(Some(0)).unwrap().response(), Response::status(0));

    // A call that the service drops, one that says that it has more data than fit, one that nobody answers in time.
    let dropped = send(4, 0).unwrap();
    drop(poller.poll().unwrap());
    assert_eq!(dropped.wait(None).unwrap().response().status, 5);
    let wrong = send(5, 129).unwrap();
    assert!(poller.poll().is_none());
    assert_eq!(wrong.wait(None).unwrap().response().status, 71);
    let begin = Instant::now();
    let Err(WaitError::TimedOut(late)) = send(6, 0).unwrap().wait(Some(SECOND / 100)) else { panic!() };
    assert!(begin.elapsed() >= Duration::from_millis(10));
    let taken = poller.poll().unwrap();
    drop(late);
    assert!(!taken.reply(Response::status(0)));
    assert_eq!(ring.pending_calls(), 0);
    // Both slots are free again, after a call was taken back as well.
    drop(send(7, 0).unwrap());
    assert!(poller.poll().is_none());
    let both = (send(8, 0).unwrap(), send(9, 0).unwrap());
    assert!(poller.poll().is_some() && poller.poll().is_some());
    drop(both);

    // How far a service that has gone had come.
    assert_eq!(send(11, 0).unwrap().abandon(), ServiceProgress::NotBegun);
    let mut in_hand = |announced: &[bool]| {
        let pending = send(12, 0).unwrap();
        let call = poller.poll().unwrap();
        announced.iter().for_each(|changes| call.announce(*changes));
        let left = pending.abandon();
        call.reply(Response::status(0));
        left
    };
    assert_eq!(in_hand(&[]), ServiceProgress::NothingChanged);
    assert_eq!(in_hand(&[true]), ServiceProgress::Unknown);
    assert_eq!(in_hand(&[true, false]), ServiceProgress::NothingChanged);

    // The end.
    let pending = send(10, 0).unwrap();
    session.close();
    assert!(matches!(pending.wait(None), Err(WaitError::Gone)));
    assert!(client.is_gone());
    assert_eq!(client.claim(caller(1)).unwrap_err(), CallError::Gone);
    assert_eq!(Client::attach(theirs.region(), Linux).unwrap_err(), AttachError::Closed);
}

#[test]
fn slots_take_turns() {
    let layout = Layout::new(64, 64).unwrap();
    let fd = memory(&layout);
    let ours = Mapping::new(&fd, layout.bytes());
    let session = Session::create(ours.region(), layout, epoch(1), Linux).unwrap();
    let client = Client::attach(ours.region(), Linux).unwrap();
    let ring = session.ring().unwrap();
    let mut poller = ring.poller();
    let send = |tag| {
        Ok::<_, CallError>(client.claim(caller(tag))?.send(Request { tag, ..Request::default() }).unwrap())
    };
    let mut greedy = Some(send(u64::MAX).unwrap());
    let mut pending = Vec::new();
    for key in 1.. {
        pending.extend(send(key).ok());
        if pending.len() == 32 {
            break;
        }
    }
    // One that is sent again as soon as it is answered does not keep the others waiting.
    let mut others = 0;
    for _ in 0..33 {
        let call = poller.poll().unwrap();
        let tag = call.request().tag;
        call.reply(Response::status(0));
        if tag == u64::MAX {
            drop(greedy.take().unwrap().wait(None).unwrap());
            greedy = Some(send(u64::MAX).unwrap());
        } else {
            others += 1;
        }
    }
    assert_eq!(others, 32);
}
