//! How long a rank that keeps dying is held back before its next life.
//!
//! The first return waits a second, each further one twice as long as the one before, up to a minute. A life that was long
//! enough clears the record: what dies once a day is not flapping.

use core::time::Duration;
use flodl_wire::Time;

/// The first delay.
const FIRST: Duration = Duration::from_secs(1);
/// The longest delay.
const LONGEST: Duration = Duration::from_secs(60);
/// A life of this length clears the record.
const SETTLED: Duration = Duration::from_secs(120);

/// A rank's record of lives that ended early.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flaps {
    streak: u32,
    born: Time,
    died: Time,
}

impl Flaps {
    /// A life begins.
    pub(crate) fn born(&mut self, now: Time) {
        self.born = now;
    }

    /// A life has ended.
    pub(crate) fn died(&mut self, now: Time) {
        let settled = now.since(self.born) >= SETTLED;
        self.streak = if settled { 1 } else { self.streak.saturating_add(1) };
        self.died = now;
    }

    /// When the next life may begin.
    pub(crate) fn until(&self) -> Time {
        let Some(doublings) = self.streak.checked_sub(1) else { return Time::ZERO };
        self.died.plus(FIRST.saturating_mul(1 << doublings.min(16)).min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn delays_double_up_to_a_minute_and_a_long_life_clears_them() {
        let mut flaps = Flaps::default();
        assert_eq!(flaps.until(), Time::ZERO, "a first life is not held back");
        let mut now = 0;
        for delay in [1, 2, 4, 8, 16, 32, 60, 60] {
            flaps.born(Time(now));
            now += 100 * SECOND;
            flaps.died(Time(now));
            assert_eq!(flaps.until(), Time(now + delay * SECOND));
        }
        flaps.born(Time(now));
        now += 120 * SECOND;
        flaps.died(Time(now));
        assert_eq!(flaps.until(), Time(now + SECOND));
    }
}
