//! Tests of the workers of a session, without a device.

use super::*;
use crate::workers::slot::{BACKLOG, NEEDED, WINDOW};
use std::time::Instant;
use zerocopy::IntoBytes;

/// A worker takes a request and answers it.
fn serve(pool: &Pool, slot: &Slot, client: u32, at_once: bool) -> Need {
    let need = pool.begin(slot, Some(client), at_once);
    assert!(pool.done(slot));
    need
}

#[test]
fn a_backlog_requests_one_more_reader() {
    let pool = Pool::new(2, 2);
    let slot = pool.hire();
    for i in 1..=3 * BACKLOG {
        let need = serve(&pool, &slot, 7 + i % 2, true);
        assert_eq!(need == Need::Worker, i % BACKLOG == 0, "request {i}");
    }
    for i in 0..1000 {
        assert_eq!(serve(&pool, &slot, 7 + i % 2, false), Need::Nothing);
    }
    let other = pool.hire();
    assert_eq!(pool.readers(), 2);
    for i in 0..2 * BACKLOG {
        assert_eq!(serve(&pool, &slot, 7 + i % 2, true), Need::Nothing, "no more than the limit");
    }
    pool.dismiss(&other);
    assert_eq!(pool.readers(), 1);
}

#[test]
fn one_client_thread_never_asks_for_a_second_reader() {
    let pool = Pool::new(8, 8);
    let slot = pool.hire();
    for i in 0..10_000 {
        assert_eq!(serve(&pool, &slot, 7, true), Need::Nothing);
        // What nobody waits for comes in between, and is no other client.
        if i % 9 == 0 {
            assert_eq!(pool.begin(&slot, None, true), Need::Nothing);
            assert!(pool.done(&slot));
        }
    }
    // One client after another is no backlog either, as with a shell script.
    for i in 0..10_000 {
        assert_eq!(serve(&pool, &slot, 7 + i / 3, true), Need::Nothing);
    }
}

#[test]
fn requests_without_a_client_are_not_counted_as_backlog() {
    let pool = Pool::new(2, 2);
    let slot = pool.hire();
    for i in 1..BACKLOG {
        assert_eq!(serve(&pool, &slot, i, true), Need::Nothing);
        for at_once in [true, false] {
            assert_eq!(pool.begin(&slot, None, at_once), Need::Nothing);
            assert!(pool.done(&slot));
        }
    }
    assert_eq!(serve(&pool, &slot, BACKLOG, true), Need::Worker);
}

#[test]
fn a_reader_stays_while_it_finds_backlog() {
    let pool = Pool::new(2, 2);
    let (slot, _other) = (pool.hire(), pool.hire());
    // Windows with just enough backlog: begin and done by turns, so that parking would hang.
    for i in 0..10 * WINDOW {
        let _ = serve(&pool, &slot, i + 1, i % (WINDOW / NEEDED) == 0);
        assert_eq!(pool.readers(), 2);
    }
    // One less is too few.
    for i in 0..WINDOW {
        let _ = pool.begin(&slot, Some(i), i % (WINDOW / NEEDED) == 0 && i > 0);
        assert_eq!(slot.window.load(Ordering::Relaxed), i + 1);
        if i + 1 < WINDOW {
            assert!(pool.done(&slot));
        }
    }
    pool.close();
    assert!(!pool.done(&slot), "parked, and sent home");
    assert_eq!(pool.readers(), 1);
}

#[test]
fn the_last_reader_always_stays() {
    let pool = Pool::new(2, 2);
    let slot = pool.hire();
    for _ in 0..10 * WINDOW {
        let _ = serve(&pool, &slot, 7, false);
    }
    assert_eq!(pool.readers(), 1);
    // And what it saw while it was alone does not count when there are two again.
    let _other = pool.hire();
    for _ in 0..WINDOW - 1 {
        let _ = serve(&pool, &slot, 7, false);
    }
    assert_eq!(pool.readers(), 2);
}

#[test]
fn a_worker_that_stepped_aside_reads_again_when_needed() {
    let pool = Pool::new(2, 2);
    let slot = pool.hire();
    // Two clients.
    assert_eq!(serve(&pool, &slot, 6, false), Need::Nothing);
    assert_eq!(pool.begin(&slot, Some(7), false), Need::Nothing);
    assert_eq!(pool.step_aside(&slot), Need::Worker);
    assert_eq!(pool.readers(), 0);
    // The other one could not be started.
    assert!(pool.done(&slot));
    assert_eq!(pool.readers(), 1);
}

#[test]
fn a_single_client_causes_no_stepping_aside() {
    let pool = Pool::new(2, 2);
    let slot = pool.hire();
    let aside = |client| {
        let _ = pool.begin(&slot, Some(client), false);
        let need = pool.step_aside(&slot);
        assert!(pool.done(&slot));
        need == Need::Worker
    };
    assert!(!aside(7));
    pool.clients.pass(1);
    assert!(aside(8));
}

#[test]
fn parked_workers_are_called_and_sent_home() {
    let pool = Arc::new(Pool::new(2, 2));
    let (first, second) = (pool.hire(), pool.hire());
    let parked = {
        let (pool, second) = (Arc::clone(&pool), Arc::clone(&second));
        std::thread::spawn(move || {
            let mut rounds = 0;
            loop {
                // Nothing but waits, and another reader: it is parked.
                let _ = pool.begin(&second, Some(7), false);
                if !pool.done(&second) {
                    return rounds;
                }
                rounds += 1;
            }
        })
    };
    let begin = Instant::now();
    while pool.readers() > 1 {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::yield_now();
    }
    let _ = pool.begin(&first, Some(8), false);
    assert_eq!(pool.step_aside(&first), Need::Nothing, "the parked one is called");
    assert_eq!(pool.readers(), 1);
    pool.close();
    assert!(!pool.done(&first), "another one reads");
    // The second is the only reader now; it is sent home by the device, not by the pool. Here: by parking.
    let _ = pool.hire();
    assert!(parked.join().unwrap() >= u64::from(WINDOW) - 1);
}

#[test]
fn a_tick_replaces_a_sleeping_worker() {
    let pool = Pool::new(2, 2);
    let slot = pool.hire();
    let (mut seen, mut books) = (Vec::new(), pool.books.lock());
    let mut tick = |asleep: bool| pool.tick(&mut books, &mut seen, |_| asleep);
    assert!(tick(true).progress, "a new worker");
    assert!(!tick(true).progress, "it waits for requests");
    let _ = pool.begin(&slot, Some(7), false);
    let first = tick(true);
    assert_eq!((first.requests, first.hires), (1, 0), "it may have begun just now");
    let second = tick(true);
    assert_eq!((second.requests, second.hires), (0, 1));
    assert!(second.progress);
    assert_eq!(pool.readers(), 0, "the one that is being hired reads");
    assert_eq!(tick(true).hires, 0, "once");
}

#[test]
fn a_tick_tolerates_a_runnable_worker_for_a_while() {
    let pool = Pool::new(2, 2);
    let slot = pool.hire();
    let (mut seen, mut books) = (Vec::new(), pool.books.lock());
    let mut tick = |asleep: bool| pool.tick(&mut books, &mut seen, |_| asleep).hires;
    for round in 0..3 {
        let _ = pool.begin(&slot, Some(7), false);
        for i in 0..RUNNING_TICKS {
            assert_eq!(tick(false), 0, "round {round}, tick {i}");
        }
        if round < 2 {
            assert!(pool.done(&slot));
        }
    }
    assert_eq!(tick(false), 1, "it computes, it seems");
}

#[test]
fn extra_workers_start_while_all_sleep() {
    let pool = Pool::new(2, 4);
    let mut slots = Vec::new();
    let mut seen = Vec::new();
    // Looks until one hires somebody; None: none of some looks does.
    let mut hired = |slots: &mut Vec<Arc<Slot>>, asleep: bool| {
        let look = (1..=4).find(|_| {
            let tick = pool.tick(&mut pool.books.lock(), &mut seen, |_| asleep);
            assert!(tick.hires <= 1, "one at a time");
            tick.hires == 1
        });
        look.inspect(|_| slots.push(pool.hire()))
    };
    slots.push(pool.hire());
    for _ in 0..2 {
        let _ = pool.begin(slots.last().unwrap(), Some(7), false);
        // The first one makes room for the second.
        let _ = hired(&mut slots, true);
    }
    let last = Arc::clone(slots.last().unwrap());
    let _ = pool.begin(&last, Some(7), false);
    let _ = pool.step_aside(&last);
    let before = slots.len();
    assert_eq!(hired(&mut slots, false), None, "somebody computes");
    while slots.len() < 4 {
        let _ = pool.begin(slots.last().unwrap(), Some(7), false);
        assert!(hired(&mut slots, true).is_some(), "all sleep, of {}", slots.len());
    }
    assert!(before <= 3);
    let _ = pool.begin(slots.last().unwrap(), Some(7), false);
    assert_eq!(hired(&mut slots, true), None, "never more than that");
    assert_eq!(pool.readers(), 0);
    // Who is first to be done reads.
    assert!(pool.done(&slots[0]));
    assert_eq!(pool.readers(), 1);
}

#[test]
fn surplus_workers_end_when_idle() {
    let pool = Arc::new(Pool { linger: Duration::from_millis(20), ..Pool::new(1, 3) });
    let reader = pool.hire();
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (pool, slot) = (Arc::clone(&pool), pool.hire());
            std::thread::spawn(move || {
                let _ = pool.begin(&slot, Some(7), false);
                let _ = pool.relieve(&slot, &mut pool.books.lock());
                assert!(!pool.done(&slot), "it ends");
                pool.dismiss(&slot);
            })
        })
        .collect();
    others.into_iter().for_each(|other| other.join().unwrap());
    let books = pool.books.lock();
    assert_eq!((books.alive, pool.readers(), books.parked, books.closing), (1, 1, 0, false));
    drop(books);
    pool.dismiss(&reader);
}

#[test]
fn the_watchdog_replaces_a_stuck_worker() {
    let pool = Arc::new(Pool::new(2, 2));
    let slot = pool.hire();
    // This thread computes while it waits below: it is relieved all the same, in the end.
    slot.take();
    let watchdog = {
        let pool = Arc::clone(&pool);
        std::thread::spawn(move || {
            let mut hired = Vec::new();
            pool.watch(|| hired.push(pool.hire()), |_, _| false, || ());
            hired.len()
        })
    };
    let _ = pool.begin(&slot, Some(7), false);
    let begin = Instant::now();
    while pool.books.lock().alive < 2 {
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::yield_now();
    }
    let others: Vec<_> =
        pool.books.lock().slots.iter().filter(|other| !Arc::ptr_eq(other, &slot)).cloned().collect();
    pool.close();
    pool.dismiss(&slot);
    others.iter().for_each(|slot| pool.dismiss(slot));
    assert_eq!(watchdog.join().unwrap(), 1);
}

#[test]
fn the_watchdog_sleeps_through_no_request() {
    let pool = Arc::new(Pool::new(2, 2));
    let slot = pool.hire();
    slot.take();
    let watchdog = {
        let (pool, slot) = (Arc::clone(&pool), Arc::clone(&slot));
        std::thread::spawn(move || {
            let (mut hired, mut quiet, mut looks) = (0, 0, 0);
            let hire = || {
                hired += 1;
                drop(pool.hire());
            };
            pool.watch(
                hire,
                |_, ticks| {
                    quiet += if looks == 0 { 0 } else { ticks };
                    looks += 1;
                    // The last look before it sleeps has been: a request comes now.
                    if quiet >= QUIET_TICKS && quiet - ticks < QUIET_TICKS {
                        let _ = pool.begin(&slot, Some(7), false);
                    }
                    false
                },
                || (),
            );
            hired
        })
    };
    let begin = Instant::now();
    while pool.books.lock().alive < 2 {
        assert!(begin.elapsed() < Duration::from_secs(10), "nobody reads any more");
        std::thread::yield_now();
    }
    let all = pool.books.lock().slots.clone();
    pool.close();
    all.iter().for_each(|slot| pool.dismiss(slot));
    assert_eq!(watchdog.join().unwrap(), 1);
}

#[test]
fn the_watchdog_ends_with_the_last_worker() {
    for delay in 0..12 {
        let pool = Arc::new(Pool::new(2, 2));
        let slot = pool.hire();
        let watchdog = {
            let pool = Arc::clone(&pool);
            std::thread::spawn(move || pool.watch(|| (), |_, _| false, || ()))
        };
        // From when it says that it sleeps on: it looks once more, and then sleeps.
        while !pool.watchdog_asleep.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        std::thread::sleep(TICK * delay);
        pool.close();
        pool.dismiss(&slot);
        let begin = Instant::now();
        while !watchdog.is_finished() {
            assert!(begin.elapsed() < Duration::from_secs(10), "after {delay} ticks it sleeps for ever");
            std::thread::yield_now();
        }
    }
}

#[test]
fn clients_are_threads_that_wait() {
    let of = |opcode: Opcode, pid| {
        let header = wire::InHeader { opcode: opcode as u32, pid, ..Default::default() };
        client(header.as_bytes())
    };
    assert_eq!(of(Opcode::Lookup, 7), Some(7));
    assert_eq!(of(Opcode::Write, 0), None, "the kernel writes back");
    for opcode in [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt, Opcode::Release] {
        assert_eq!(of(opcode, 7), None);
    }
    assert_eq!(client(&[1; 20]), None, "not even a header");
}

#[test]
fn idle_workers_end_and_a_request_starts_one() {
    let pool = Arc::new(Pool { linger: Duration::from_millis(1), ..Pool::new(4, 4) });
    let slots: Vec<_> = (0..3).map(|_| pool.hire()).collect();
    let (asked, ask) = std::sync::mpsc::channel();
    let watchdog = {
        let pool = Arc::clone(&pool);
        std::thread::spawn(move || {
            let mut hired = Vec::new();
            pool.watch(
                || hired.push(pool.hire()),
                |_, _| false,
                || {
                    let _ = ask.recv();
                },
            );
            hired.len()
        })
    };
    let _ = pool.begin(&slots[0], Some(7), false);
    assert!(pool.should_end(&slots[1]) && pool.should_end(&slots[2]), "others read");
    assert!(pool.done(&slots[0]) && pool.should_end(&slots[0]), "nobody has to");
    assert_eq!((pool.books.lock().alive, pool.readers()), (0, 0));
    asked.send(()).unwrap();
    let begin = Instant::now();
    while pool.books.lock().alive == 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "nobody reads");
        std::thread::yield_now();
    }
    assert_eq!(pool.readers(), 1);
    let slot = Arc::clone(&pool.books.lock().slots[0]);
    pool.close();
    pool.dismiss(&slot);
    assert_eq!(watchdog.join().unwrap(), 1);
}
