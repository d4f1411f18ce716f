//! What the model checker tries: every order in which two or three threads can meet, and every value that a load may
//! return in it. `RUSTFLAGS="--cfg loom" cargo test -p vellum-ring --release --test loom`
#![cfg(loom)]
#![allow(unsafe_code, reason = "a lifetime that loom wants")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use loom::model::Builder;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::num::NonZeroU16;
use vellum_ring::sync::AtomicU32;
use vellum_ring::{
    AttachError, CallError, Caller, Client, Layout, Model, Platform, Poller, Region, Request, Response, Ring,
    Session, WaitError, WakeReason,
};

/// Futexes: waiters of all words in one queue. A look at the word and going to sleep are one step, as in the kernel.
#[derive(Clone)]
struct Futex(Arc<(Mutex<()>, Condvar)>);

impl Platform for Futex {
    fn wait(&self, word: &AtomicU32, expected: u32, timeout: Option<u64>) -> WakeReason {
        if timeout.is_some() {
            return WakeReason::TimedOut;
        }
        let (queue, bell) = &*self.0;
        let guard = queue.lock().unwrap();
        if word.load(std::sync::atomic::Ordering::Relaxed) == expected {
            drop(bell.wait(guard).unwrap());
        }
        WakeReason::Maybe
    }

    fn wake(&self, _: &AtomicU32) {
        let (queue, bell) = &*self.0;
        drop(queue.lock().unwrap());
        bell.notify_all();
    }

    fn now(&self) -> u64 {
        0
    }

    fn pause(&self) {
        thread::yield_now();
    }
}

const SLOTS_DATA: u32 = 64;

fn epoch(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

/// Everybody is on core 0, so that nobody spins: spinning is waiting, and would have no end here.
fn caller(key: u64) -> Caller {
    Caller { key, core: 0 }
}

fn request(number: u64) -> Request {
    Request { opcode: 7, tag: number, args: [number, 0, 0, 0, !number], ..Request::default() }
}

/// Two words, so that seeing one of them is not seeing both.
fn payload(number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&number.to_ne_bytes());
    bytes[8..].copy_from_slice(&(!number).to_ne_bytes());
    bytes
}

struct World {
    model: Arc<Model>,
    futex: Futex,
    layout: Layout,
}

impl World {
    fn new(slots: u32) -> Self {
        let layout = Layout::new(slots, SLOTS_DATA).unwrap();
        let futex = Futex(Arc::new((Mutex::new(()), Condvar::new())));
        Self { model: Arc::new(Model::new(&layout)), futex, layout }
    }

    fn session(&self) -> Session<'_, &Futex> {
        Session::create(Region::new(&self.model), self.layout, epoch(1), &self.futex).unwrap()
    }

    /// A thread that has the memory and can attach.
    fn client<T: 'static>(&self, body: impl FnOnce(&Model, &Futex) -> T + 'static) -> thread::JoinHandle<T> {
        let (model, futex) = (self.model.clone(), self.futex.clone());
        thread::spawn(move || body(&model, &futex))
    }
}

/// One call with data both ways; what came of it, or panics where something does not fit.
fn ask(model: &Model, futex: &Futex, number: u64, timeout: Option<u64>) -> Result<(), CallError> {
    let client = Client::attach(Region::new(model), futex).map_err(|_| CallError::Gone)?;
    let mut out = [0; 16];
    let (response, n) = client.call(caller(number), request(number), &payload(number), &mut out, timeout)?;
    assert_eq!((response.status, response.values[5]), (0, !number));
    assert_eq!((n, out), (16, payload(number + 100)));
    Ok(())
}

/// Checks a call and answers it.
fn serve(mut call: vellum_ring::Call<'_, &Futex>) -> bool {
    let head = *call.request();
    let number = head.tag;
    assert_eq!((head.opcode, head.len, head.args[0], head.args[4]), (7, 16, number, !number));
    let mut data = [0; 16];
    assert_eq!(call.read_data(0, &mut data), 16);
    assert_eq!(data, payload(number));
    assert_eq!(call.write_data(0, &payload(number + 100)), 16);
    call.reply(Response { status: 0, len: 16, values: [0, 0, 0, 0, 0, !number] })
}

/// Answers so many calls, and sleeps when there are none.
fn serve_all(poller: &mut Poller<'_, &Futex>, calls: usize) {
    let mut answered = 0;
    while answered < calls {
        match poller.poll() {
            Some(call) => {
                serve(call);
                answered += 1;
            }
            None => {
                poller.sleep(None);
            }
        }
    }
}

fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

#[test]
fn published_calls_are_served_and_no_wakeup_is_lost() {
    check(4, || {
        let world = World::new(1);
        let session = world.session();
        let ring = session.ring().unwrap();
        let mut poller = ring.poller();
        poller.note_core(0);
        let client = world.client(|model, futex| {
            // The second uses the same slot.
            ask(model, futex, 1, None).unwrap();
            ask(model, futex, 2, None).unwrap();
        });
        serve_all(&mut poller, 2);
        client.join().unwrap();
        assert_eq!(ring.pending_calls(), 0);
    });
}

#[test]
fn two_threads_never_share_a_slot() {
    check(3, || {
        let world = World::new(1);
        let session = world.session();
        let clients = [1, 2].map(|number| {
            world.client(move |model, futex| {
                let client = Client::attach(Region::new(model), futex).unwrap();
                let mut slot = client.claim(caller(number)).ok()?;
                slot.write_data(0, &payload(number));
                let pending = slot.send(Request { len: 16, ..request(number) }).unwrap();
                // Whoever comes next must find the slot taken.
                std::mem::forget(pending);
                Some(number)
            })
        });
        let won: Vec<u64> = clients.into_iter().filter_map(|client| client.join().unwrap()).collect();
        let ring = session.ring().unwrap();
        let call = ring.poller().poll().unwrap();
        assert_eq!(won, [call.request().tag]);
        let mut data = [0; 16];
        call.read_data(0, &mut data);
        assert_eq!(data, payload(won[0]));
    });
}

#[test]
fn two_threads_are_both_answered() {
    check(2, || {
        let world = World::new(2);
        let session = world.session();
        let ring = session.ring().unwrap();
        let mut poller = ring.poller();
        poller.note_core(0);
        let clients =
            [1, 2].map(|number| world.client(move |model, futex| ask(model, futex, number, None).unwrap()));
        serve_all(&mut poller, 2);
        for client in clients {
            client.join().unwrap();
        }
    });
}

#[test]
fn another_thread_answers_and_no_call_is_missed() {
    check(2, || {
        let world = World::new(1);
        let session = world.session();
        let ring = session.ring().unwrap();
        // SAFETY: loom's threads want what they use to live for ever; this one is joined before the ring ends.
        let shared: &'static Ring<'static, &'static Futex> = unsafe { std::mem::transmute(&ring) };
        let mut poller = shared.poller();
        poller.note_core(0);
        let client = world.client(|model, futex| {
            ask(model, futex, 1, None).unwrap();
            ask(model, futex, 2, None).unwrap();
        });
        let call = loop {
            match poller.poll() {
                Some(call) => break call,
                None => poller.sleep(None),
            };
        };
        let worker = thread::spawn(move || serve(call));
        serve_all(&mut poller, 1);
        client.join().unwrap();
        assert!(worker.join().unwrap());
    });
}

#[test]
fn a_late_answer_meets_no_other_call() {
    check(3, || {
        let world = World::new(1);
        let session = world.session();
        let ring = session.ring().unwrap();
        let mut poller = ring.poller();
        poller.note_core(0);
        let client = world.client(|model, futex| {
            let patient = ask(model, futex, 1, Some(0)).is_ok();
            // Full while the service still has the first one.
            let second = ask(model, futex, 2, Some(0));
            assert!(!patient || !matches!(second, Err(CallError::Full)));
        });
        for _ in 0..3 {
            if let Some(call) = poller.poll() {
                serve(call);
            }
        }
        client.join().unwrap();
        // Whatever happened, the slot is free, and the ring works.
        while let Some(call) = poller.poll() {
            serve(call);
        }
        let client = world.client(|model, futex| ask(model, futex, 3, None).unwrap());
        serve_all(&mut poller, 1);
        client.join().unwrap();
    });
}

#[test]
fn a_call_with_a_timeout_is_answered_or_abandoned() {
    check(3, || {
        let world = World::new(1);
        let session = world.session();
        let ring = session.ring().unwrap();
        let mut poller = ring.poller();
        poller.note_core(0);
        let client = world.client(|model, futex| {
            let client = Client::attach(Region::new(model), futex).unwrap();
            let mut slot = client.claim(caller(1)).unwrap();
            slot.write_data(0, &payload(1));
            let pending = slot.send(Request { len: 16, ..request(1) }).unwrap();
            // A time out is not the end: the same call can be waited for again.
            let answer = match pending.wait(Some(0)) {
                Err(WaitError::TimedOut(pending)) => pending.wait(None).unwrap(),
                answer => answer.unwrap(),
            };
            assert_eq!(answer.response().values[5], !1);
        });
        serve_all(&mut poller, 1);
        client.join().unwrap();
    });
}

#[test]
fn closing_wakes_sleeping_clients() {
    check(4, || {
        let world = World::new(1);
        let session = world.session();
        let ring = session.ring().unwrap();
        let mut poller = ring.poller();
        poller.note_core(0);
        let client = world.client(|model, futex| {
            assert_eq!(ask(model, futex, 1, None), Err(CallError::Gone));
            // Who has seen that it is closed sees it everywhere.
            let again = Client::attach(Region::new(model), futex);
            assert!(matches!(again, Err(AttachError::Closed)));
        });
        let call = poller.poll();
        session.close();
        drop(call);
        client.join().unwrap();
    });
}
