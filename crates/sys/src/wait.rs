//! Waiting for what nobody reports: by asking again and again.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Asks every `pause` until there is an answer, at least once, and for no longer than `limit`. None: there was none in time.
pub fn wait_for<T>(limit: Duration, pause: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let begin = Instant::now();
    loop {
        let answer = ask();
        if answer.is_some() || begin.elapsed() >= limit {
            return answer;
        }
        sleep(pause);
    }
}

/// Asks every `pause` until the answer is yes. False: it was no for as long as `limit`.
pub fn wait_until(limit: Duration, pause: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    wait_for(limit, pause, || is_so().then_some(())).is_some()
}
