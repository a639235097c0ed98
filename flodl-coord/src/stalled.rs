//! Whether a rank that trains still makes steps.
//!
//! Slow is not dead: a step at any rate begins the wait anew. What is measured is the coordinator's own time between two
//! changes of the step that a rank's heartbeats tell, so two heartbeats' worth is allowed before silence means anything.

use crate::Deadlines;
use core::time::Duration;
use flodl_wire::Time;

/// How a rank gets on in its window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// When it was given its window, or told of another step than before.
    since: Time,
    /// How long its window should take; `None` where its speed is not known.
    expected: Option<Duration>,
    told: bool,
}

/// What the pace of a rank says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It steps, or may yet.
    Goes,
    /// It has not made a step for so long, and was not named for it before.
    Stalled { still: Duration },
    /// It counts as dead.
    Dead { still: Duration },
}

impl Pace {
    /// The pace of a rank that is given a window now.
    pub(crate) fn start(now: Time, expected: Option<Duration>) -> Pace {
        Pace { since: now, expected, told: false }
    }

    /// It has made a step, or begins anew.
    pub(crate) fn stepped(&mut self, now: Time) {
        *self = Pace::start(now, self.expected);
    }

    /// Looks at it. A stall is told once.
    pub(crate) fn look(&mut self, deadlines: &Deadlines, now: Time) -> Verdict {
        let still = now.since(self.since);
        if still >= deadlines.stall_ceiling(self.expected) {
            return Verdict::Dead { still };
        }
        if !self.told && still >= deadlines.stall(self.expected) {
            self.told = true;
            return Verdict::Stalled { still };
        }
        Verdict::Goes
    }

    /// When to look next.
    pub(crate) fn deadline(&self, deadlines: &Deadlines) -> Time {
        let ceiling = deadlines.stall_ceiling(self.expected);
        let wait = if self.told { ceiling } else { ceiling.min(deadlines.stall(self.expected)) };
        self.since.plus(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn deadlines() -> Deadlines {
        Deadlines::from_patience(Duration::from_secs(10))
    }

    #[test]
    fn a_rank_without_a_step_is_named_once_and_dead_at_the_ceiling() {
        // (expected window, named after, dead after), in seconds; two heartbeats are 2 s.
        for (expected, named, dead) in [(Some(1), 5, 30), (Some(4), 14, 30), (Some(40), 122, 122), (None, 100, 100)] {
            let mut pace = Pace::start(Time(SECOND), expected.map(Duration::from_secs));
            let at = |after: u64| Time(SECOND + after * SECOND);
            assert_eq!(pace.look(&deadlines(), at(named - 1)), Verdict::Goes);
            assert_eq!(pace.deadline(&deadlines()), at(named.min(dead)));
            if named < dead {
                let still = Duration::from_secs(named);
                assert_eq!(pace.look(&deadlines(), at(named)), Verdict::Stalled { still });
                assert_eq!(pace.look(&deadlines(), at(dead - 1)), Verdict::Goes);
                assert_eq!(pace.deadline(&deadlines()), at(dead));
            }
            assert_eq!(pace.look(&deadlines(), at(dead)), Verdict::Dead { still: Duration::from_secs(dead) });
        }
    }

    #[test]
    fn a_step_at_any_rate_keeps_it_alive() {
        let mut pace = Pace::start(Time::ZERO, Some(Duration::from_secs(1)));
        for second in (0..1000).step_by(25) {
            let now = Time(second * SECOND);
            assert!(!matches!(pace.look(&deadlines(), now), Verdict::Dead { .. }), "after {second} s");
            pace.stepped(now);
        }
    }
}
