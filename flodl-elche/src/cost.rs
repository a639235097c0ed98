//! What something that interrupts training costs, learned from what it cost.

use std::time::Duration;

use crate::speed::Window;

/// Nothing that interrupts training takes longer than this; what says so is a stopped machine or a broken clock.
const COST_MAX: Duration = Duration::from_secs(24 * 3600);

/// The expected cost of one kind of callback (an evaluation, a checkpoint) on one member: the median of its last five, so
/// that one slow disk flush does not take work away for the rest of the run.
///
/// A window planned for a member that has a callback before it is shorter by this much (see
/// [`Demand::callbacks`](crate::Demand::callbacks)).
///
/// ```
/// use std::time::Duration;
/// use flodl_elche::CostEstimate;
///
/// let mut evaluation = CostEstimate::default();
/// assert_eq!(evaluation.expected(), None);
/// [300, 310, 9000].into_iter().for_each(|ms| evaluation.observe(Duration::from_millis(ms)));
/// assert_eq!(evaluation.expected(), Some(Duration::from_millis(310)));
/// ```
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct CostEstimate {
    seconds: Window,
}

impl CostEstimate {
    /// It took so long. More than a day was not measured and is ignored.
    pub fn observe(&mut self, cost: Duration) {
        if cost <= COST_MAX {
            self.seconds.push(cost.as_secs_f64());
        }
    }

    /// What it will probably take; none before it was observed.
    pub fn expected(&self) -> Option<Duration> {
        Duration::try_from_secs_f64(self.seconds.median()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_five_count_and_what_cannot_be_does_not() {
        let mut cost = CostEstimate::default();
        cost.observe(Duration::MAX);
        assert_eq!(cost.expected(), None);
        for (seconds, expected) in [(1, 1.0), (2, 1.5), (3, 2.0), (4, 2.5), (5, 3.0), (6, 4.0), (9, 5.0)] {
            cost.observe(Duration::from_secs(seconds));
            assert_eq!(cost.expected(), Some(Duration::from_secs_f64(expected)));
        }
    }
}
