//! Time in which the coordinator itself stood still: a stopped process, a machine that slept, a clock that jumped.
//!
//! What others sent meanwhile waits in queues that nobody read, so their silence is not theirs. That time does not pass for
//! the coordinator: every deadline moves away by it.

use core::time::Duration;
use flodl_wire::Time;

/// The coordinator's own time, beside its surroundings'.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Standstill {
    /// The time that did not pass, in all.
    stood: Duration,
    /// When it was called last, in its own time.
    last: Time,
    /// Being called so much later than it asked for is nothing special.
    slack: Duration,
}

impl Standstill {
    /// A coordinator that is called at least so often while it lives.
    pub(crate) fn new(now: Time, slack: Duration) -> Standstill {
        Standstill { stood: Duration::ZERO, last: now, slack }
    }

    /// It is called now. Its own time; `due` tells when, in that time, it had asked to be called.
    pub(crate) fn passes(&mut self, now: Time, due: impl FnOnce() -> Option<Time>) -> Time {
        let mut own = self.own(now);
        // Most calls follow one another closely, and need no look at deadlines.
        if own.since(self.last) > self.slack
            && let Some(due) = due()
            && own.since(due) > self.slack
        {
            let due = due.max(self.last);
            self.stood += own.since(due);
            own = due;
        }
        self.last = own;
        own
    }

    fn own(&self, now: Time) -> Time {
        Time(now.0.saturating_sub(self.stood.as_nanos().try_into().unwrap_or(u64::MAX)))
    }

    /// A moment of its own time, as its surroundings count.
    pub(crate) fn outside(&self, own: Time) -> Time {
        own.plus(self.stood)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLACK: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::ZERO.plus(Duration::from_secs(seconds))
    }

    #[test]
    fn time_that_it_slept_through_does_not_pass() {
        let mut still = Standstill::new(at(5), SLACK);
        // (called at, had asked for, own time)
        let calls = [(6, 6, 6), (7, 6, 7), (9, 9, 9), (30, 10, 10), (31, 11, 11), (40, 20, 20), (50, 21, 21)];
        for (now, due, own) in calls {
            assert_eq!(still.passes(at(now), || Some(at(due))), at(own), "called at {now}");
            assert_eq!(still.outside(at(own)), at(now));
        }
        assert_eq!(still.passes(at(99), || None), at(70), "it waited for nothing");
    }

    #[test]
    fn what_it_missed_before_its_last_call_is_past() {
        let mut still = Standstill::new(at(5), SLACK);
        assert_eq!(still.passes(at(20), || Some(at(3))), at(5), "own time never goes back");
        assert_eq!(still.passes(at(21), || Some(at(3))), at(6));
    }
}
