//! The protocol on ordinary memory, small enough for Miri, which looks for undefined behaviour and for orderings that are
//! too weak: `cargo +nightly miri test -p vellum-ring --lib --test heap`
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
#![allow(unsafe_code, reason = "a region of memory of its own")]

use std::num::NonZeroU16;
use std::ptr::NonNull;
use std::thread;
use vellum_ring::{
    CORE_UNKNOWN, CallError, Caller, Client, Layout, Linux, Region, Request, Response, Session, WaitError,
};

#[derive(Clone, Copy)]
#[repr(align(4096))]
struct Page([u64; 512]);

/// Gives a region of zeros to `body`.
fn with_region(layout: &Layout, body: impl FnOnce(Region<'_>)) {
    let mut pages = vec![Page([0; 512]); layout.bytes() / size_of::<Page>()];
    assert_eq!(pages[0].0[0], 0);
    let base = NonNull::new(pages.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: the pages live until the end of this function, and are not touched otherwise until then.
    body(unsafe { Region::new(base, layout.bytes()) }.unwrap());
}

#[test]
fn calls_of_two_threads() {
    const CALLS: u64 = if cfg!(miri) { 12 } else { 5000 };
    let layout = Layout::new(2, 64).unwrap();
    with_region(&layout, |region| {
        let session = Session::create(region, layout, NonZeroU16::MIN, Linux).unwrap();
        let ring = session.ring().unwrap();
        let client = Client::attach(region, Linux).unwrap();
        thread::scope(|scope| {
            let clients = [1, 2].map(|key| {
                let client = &client;
                scope.spawn(move || {
                    let mut done = 0;
                    while done < CALLS {
                        // Some spin, some sleep at once.
                        let core = if done % 2 == 0 { 0 } else { CORE_UNKNOWN };
                        let request = Request { tag: done, args: [key; 5], ..Request::default() };
                        let mut out = [0; 64];
                        let len = (done % 65) as usize;
                        let data = [key as u8; 64];
                        let caller = Caller { key, core };
                        match client.call(caller, request, &data[..len], &mut out, None) {
                            Ok((response, n)) => {
                                assert_eq!((response.values[0], n), (key + 1, len));
                                assert!(out[..n].iter().all(|byte| u64::from(*byte) == key + 1));
                                done += 1;
                            }
                            Err(CallError::Full) => thread::yield_now(),
                            Err(error) => panic!("{error}"),
                        }
                    }
                })
            });
            let mut poller = ring.poller();
            poller.note_core(0);
            let mut answered = 0;
            while answered < 2 * CALLS {
                let Some(mut call) = poller.poll() else {
                    poller.sleep(None);
                    continue;
                };
                let (key, len) = (call.request().args[0], call.request().len);
                let mut data = [0; 64];
                let n = call.read_data(0, &mut data);
                assert!(data[..n].iter().all(|byte| u64::from(*byte) == key));
                data.fill(key as u8 + 1);
                call.write_data(0, &data[..n]);
                assert!(call.reply(Response { status: 0, len, values: [key + 1; 6] }));
                answered += 1;
            }
            for client in clients {
                client.join().unwrap();
            }
        });
    });
}

#[test]
fn giving_up_and_the_end() {
    let layout = Layout::new(1, 64).unwrap();
    with_region(&layout, |region| {
        let session = Session::create(region, layout, NonZeroU16::MIN, Linux).unwrap();
        let ring = session.ring().unwrap();
        let client = Client::attach(region, Linux).unwrap();
        let caller = Caller { key: 0, core: CORE_UNKNOWN };
        let send = || client.claim(caller)?.send(Request::default());
        let pending = send().unwrap();
        let call = ring.poller().poll().unwrap();
        drop(pending);
        assert_eq!(send().unwrap_err(), CallError::Full);
        assert!(!call.reply(Response::status(0)));
        let pending = send().unwrap();
        session.close();
        assert!(matches!(pending.wait(None), Err(WaitError::Gone)));
        assert_eq!(send().unwrap_err(), CallError::Gone);
    });
}
