//! Services that die one after the other: when that says that the next one would die as well.

use std::time::Duration;

/// A service that has served for so long was able to.
pub(super) const SHORT_LIFE: Duration = Duration::from_secs(1);
/// The next service waits for so much longer after each death.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// So many deaths of their own in a row end the mounts.
const DEATHS_MAX: u32 = 10;
/// So many kills count as one such death. A kill from outside says nothing about what is mounted. But where the
/// kernel's kills for want of memory cannot be counted, they look like that, and must end some time.
const KILLS_PER_DEATH: u32 = 10;

/// How a service has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Death {
    Own,
    /// From outside.
    Killed,
}

/// Services in a row that were not able to serve, counted in kills.
#[derive(Debug, Default)]
pub(super) struct ShortLives(u32);

impl ShortLives {
    /// What is mounted can be served.
    pub(super) fn reset(&mut self) {
        self.0 = 0;
    }

    /// A service has ended, in whatever way, after it had served for so long, if at all.
    pub(super) fn end(&mut self, served: Option<Duration>) {
        if served >= Some(SHORT_LIFE) {
            self.reset();
        }
    }

    /// Counts a service that has died after it had served for so long, if at all. The pause before the next one;
    /// None: the next one would not serve either.
    pub(super) fn count(&mut self, death: Death, served: Option<Duration>) -> Option<Duration> {
        self.end(served);
        if death == Death::Killed && served.is_some() {
            self.reset();
        }
        let pause = PAUSE * (self.0 / KILLS_PER_DEATH);
        self.0 += match death {
            Death::Own => KILLS_PER_DEATH,
            Death::Killed => u32::from(served.is_none()),
        };
        (self.0 < DEATHS_MAX * KILLS_PER_DEATH).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEFLY: Option<Duration> = Some(Duration::from_millis(999));

    /// So many of these deaths until the mounts end.
    fn deaths_until_the_end(lives: &mut ShortLives, death: Death, served: Option<Duration>) -> u32 {
        1 + (0..1000).take_while(|_| lives.count(death, served).is_some()).count() as u32
    }

    #[test]
    fn ten_crashes_or_a_hundred_kills_end_the_mounts() {
        let mut lives = ShortLives::default();
        assert_eq!(deaths_until_the_end(&mut lives, Death::Own, None), 10);
        lives.reset();
        assert_eq!(deaths_until_the_end(&mut lives, Death::Own, BRIEFLY), 10);
        lives.reset();
        assert_eq!(deaths_until_the_end(&mut lives, Death::Killed, None), 100);
        lives.reset();
        (0..50).for_each(|_| assert!(lives.count(Death::Killed, None).is_some()));
        assert_eq!(deaths_until_the_end(&mut lives, Death::Own, None), 5, "both count");
    }

    #[test]
    fn a_serving_service_resets_the_count() {
        let mut lives = ShortLives::default();
        for (death, served) in [(Death::Killed, BRIEFLY), (Death::Own, Some(SHORT_LIFE))] {
            (0..90).for_each(|_| assert!(lives.count(Death::Killed, None).is_some()));
            assert_eq!(lives.count(death, served), Some(Duration::ZERO), "{death:?}");
        }
        assert_eq!(deaths_until_the_end(&mut lives, Death::Own, None), 9, "its own death counts for itself");
        // However often.
        lives.reset();
        (0..1000).for_each(|_| assert_eq!(lives.count(Death::Killed, BRIEFLY), Some(Duration::ZERO)));
    }

    #[test]
    fn a_long_life_resets_the_count_however_it_ends() {
        let mut lives = ShortLives::default();
        for (served, left) in [(None, 1), (BRIEFLY, 1), (Some(SHORT_LIFE), 10)] {
            (0..9).for_each(|_| assert!(lives.count(Death::Own, None).is_some()));
            lives.end(served);
            assert_eq!(deaths_until_the_end(&mut lives, Death::Own, None), left, "{served:?}");
            lives.reset();
        }
    }

    #[test]
    fn restart_delays_grow_from_zero() {
        let mut lives = ShortLives::default();
        for death in 0..9 {
            assert_eq!(lives.count(Death::Own, None), Some(PAUSE * death));
        }
    }
}
