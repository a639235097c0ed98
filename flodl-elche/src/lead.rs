//! How far a rank may run ahead of its window while its round is averaged (Async).
//!
//! Batches beyond the window are trained from parameters that lack the others' work, so they are worth a little less each.
//! The limit begins low and grows by one for each round that the judges find stable; a nudge takes it back at once.

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::guard::Verdict;
use crate::mode::Policy;

/// Where the limit starts, and where a nudge takes it back to.
const START: u32 = 3;
/// Where it stops growing.
const MOST: u32 = 15;

/// The limit in force.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lead {
    limit: u32,
    fixed: bool,
}

impl Lead {
    /// The limit of a run: none but under Async, the user's where there is one.
    pub(crate) fn new(policy: Policy, overshoot: Option<u32>) -> Self {
        match (policy, overshoot) {
            (Policy::Async, None) => Self { limit: START, fixed: false },
            (Policy::Async, Some(limit)) => Self { limit, fixed: true },
            (Policy::Sync | Policy::Cadence, _) => Self { limit: 0, fixed: true },
        }
    }

    /// In batches.
    pub(crate) fn limit(self) -> u32 {
        self.limit
    }

    /// A round was judged.
    pub(crate) fn judged(&mut self, verdict: Verdict, changes: &mut Vec<Change>) {
        let to = match verdict {
            _ if self.fixed => return,
            Verdict::Stable => self.limit.saturating_add(1).min(MOST),
            Verdict::SuppressGrowth => return,
            Verdict::NudgeDown { .. } => START,
        };
        if to != self.limit {
            changes.push(Change::Lead { from: self.limit, to });
            self.limit = to;
        }
    }

    /// Goes on from a limit of before, where the settings do not say another.
    pub(crate) fn recall(&mut self, limit: u32) {
        if !self.fixed {
            self.limit = limit.clamp(START, MOST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_stable_and_a_nudge_takes_it_back() {
        let verdicts = |lead: &mut Lead, verdict, rounds: usize| -> Vec<u32> {
            let mut judged = || {
                lead.judged(verdict, &mut Vec::new());
                lead.limit()
            };
            (0..rounds).map(|_| judged()).collect()
        };
        let mut lead = Lead::new(Policy::Async, None);
        assert_eq!(verdicts(&mut lead, Verdict::Stable, 14), [4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 15, 15]);
        assert_eq!(verdicts(&mut lead, Verdict::SuppressGrowth, 2), [15, 15]);
        assert_eq!(verdicts(&mut lead, Verdict::NudgeDown { factor: 0.9 }, 2), [3, 3]);
        for (policy, overshoot, limit) in
            [(Policy::Async, Some(0), 0), (Policy::Async, Some(40), 40), (Policy::Cadence, None, 0)]
        {
            let mut lead = Lead::new(policy, overshoot);
            assert_eq!(verdicts(&mut lead, Verdict::Stable, 2), [limit; 2]);
            assert_eq!(verdicts(&mut lead, Verdict::NudgeDown { factor: 0.5 }, 1), [limit]);
        }
    }
}
