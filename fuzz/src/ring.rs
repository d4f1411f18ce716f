//! Memory of a ring that the other side has written what it likes to, before each look at it.

use crate::Input;
use rustix::io::pwrite;
use std::num::NonZeroU16;
use vellum_ring::{Client, Layout, Linux, Response, Session};
use vellum_sys::SharedRegion;

/// Bytes of control words, and of the data behind them.
const WORDS: u64 = 4096;

/// A service that looks into memory which a client scribbles over, and clients that attach to it.
pub(crate) fn feed(bytes: &[u8]) -> bool {
    let mut input = Input(bytes);
    let Ok(layout) = Layout::new(4, 512) else { return false };
    let Ok(memory) = SharedRegion::create(c"fuzz", layout.bytes()) else { return false };
    let Some(region) = memory.region() else { return false };
    let scribble = |input: &mut Input<'_>| {
        let at = input.number() % (layout.bytes() as u64).min(WORDS);
        let _ = pwrite(&memory, input.part(), at);
    };
    scribble(&mut input);
    let Ok(session) = Session::create(region, layout, NonZeroU16::MIN, Linux) else { return false };
    let Some(ring) = session.ring() else { return false };
    let mut poller = ring.poller();
    let mut has_called = false;
    for _ in 0..8 {
        scribble(&mut input);
        if let Ok(client) = Client::attach(region, Linux) {
            assert!(client.layout().bytes() <= layout.bytes().next_multiple_of(4096));
        }
        let Some(mut call) = poller.poll() else { continue };
        has_called = true;
        let len = call.request().len as usize;
        assert!(len <= call.capacity());
        let _ = format!("{:?}", call.request());
        let mut data = vec![0; usize::from(input.byte()) * 4];
        assert!(call.read_data(usize::from(input.byte()), &mut data) <= len);
        scribble(&mut input);
        assert!(call.write_data(usize::from(input.byte()), &data) <= call.capacity());
        call.announce(input.byte() & 1 != 0);
        call.reply(Response { status: 0, len: input.number() as u32, values: [input.number(); 6] });
    }
    session.close();
    has_called
}
