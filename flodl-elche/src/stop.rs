//! When a rank ends its window: the rank's side of a budget.

use std::time::Duration;

/// Why a rank's window is over. (It also is when the lease is used up or the rank is told to stop; those are not this
/// rule's business.)
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Another batch would end further from the budget than this one did.
    Budget {
        /// Time since the window's first batch began.
        elapsed: Duration,
        /// The budget.
        budget: Duration,
        /// The rank's running batch time.
        batch: Duration,
    },
    /// As many batches as it may do.
    QuotaMax {
        /// So many.
        batches: u32,
    },
}

/// Ends a window within half a batch of its budget, however the rank's speed drifts inside the window.
///
/// ```
/// use std::time::Duration;
/// use flodl_elche::StopRule;
///
/// let ms = Duration::from_millis;
/// let mut rule = StopRule::new(Some(ms(100)), 50);
/// let batches = (1..).find(|&n| rule.after_batch(ms(30), ms(30 * n)).is_some());
/// assert_eq!(batches, Some(3)); // 90 ms is nearer to 100 than 120 is
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRule {
    budget: Option<Duration>,
    quota_max: u32,
    batches: u32,
    batch: Duration,
}

impl StopRule {
    /// A window of this budget (none: the lease ends it) and at most `quota_max` batches.
    pub fn new(budget: Option<Duration>, quota_max: u32) -> Self {
        Self { budget, quota_max, batches: 0, batch: Duration::ZERO }
    }

    /// After a batch that took `took`, `elapsed` after the window's first batch began: whether and why to stop.
    pub fn after_batch(&mut self, took: Duration, elapsed: Duration) -> Option<Stop> {
        self.batches = self.batches.saturating_add(1);
        self.batch = match self.batches {
            // The first batch holds the window's fill, so the second replaces it.
            1 | 2 => took,
            // A quarter of the newest follows a throttled device within a few batches and still smooths jitter.
            _ => (self.batch / 4 * 3).saturating_add(took / 4),
        };
        if self.batches >= self.quota_max {
            return Some(Stop::QuotaMax { batches: self.batches });
        }
        let budget = self.budget?;
        (elapsed.saturating_add(self.batch / 2) > budget).then_some(Stop::Budget { elapsed, budget, batch: self.batch })
    }

    /// Batches so far.
    pub fn batches(&self) -> u32 {
        self.batches
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Batches a rank does whose i-th batch takes `took(i)` ms.
    fn run(budget_ms: u64, quota_max: u32, took: impl Fn(u32) -> u64) -> (u32, u64, Stop) {
        let mut rule = StopRule::new(Some(Duration::from_millis(budget_ms)), quota_max);
        let mut elapsed = 0;
        for i in 0.. {
            elapsed += took(i);
            if let Some(stop) = rule.after_batch(Duration::from_millis(took(i)), Duration::from_millis(elapsed)) {
                return (i + 1, elapsed, stop);
            }
        }
        unreachable!("quota_max ends it");
    }

    #[test]
    fn the_first_batch_is_always_done() {
        let (batches, _, stop) = run(1, 9, |_| 50);
        assert_eq!(batches, 1);
        assert!(matches!(stop, Stop::Budget { .. }));
        assert_eq!(run(1000, 1, |_| 50).2, Stop::QuotaMax { batches: 1 });
        assert_eq!(StopRule::new(None, 2).after_batch(Duration::MAX, Duration::MAX), None);
    }

    #[test]
    fn a_rank_that_slows_down_inside_the_window_ends_with_the_others() {
        let (_, elapsed, _) = run(1000, 999, |i| if i < 20 { 20 } else { 60 });
        assert!(elapsed.abs_diff(1000) <= 30, "{elapsed}");
    }

    #[test]
    fn a_slow_first_batch_does_not_end_the_window_early() {
        assert_eq!(run(100, 99, |i| if i == 0 { 60 } else { 10 }).1, 100);
    }

    proptest! {
        #[test]
        fn steady_ranks_end_within_half_a_batch(budget in 1u64..5000, batch in 1u64..500) {
            let (batches, elapsed, _) = run(budget, u32::MAX, |_| batch);
            prop_assert!(batches == 1 || 2 * elapsed.abs_diff(budget) <= batch + 1, "{} of {}", elapsed, budget);
        }

        #[test]
        fn no_duration_panics(budget in any::<Option<Duration>>(), took in prop::collection::vec(any::<Duration>(), 1..9)) {
            let mut rule = StopRule::new(budget, 5);
            let mut elapsed = Duration::ZERO;
            for took in took {
                elapsed = elapsed.saturating_add(took);
                let stop = rule.after_batch(took, elapsed);
                prop_assert!(rule.batches() < 5 || stop.is_some());
            }
        }
    }
}
