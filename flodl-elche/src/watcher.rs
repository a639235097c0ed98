//! What the learning rate says about the length of windows.
//!
//! When the learning rate drops, replicas take smaller steps towards nearby optima of their own: what a longer window
//! gains is worth less, and the averages of the rounds after the drop count most. So a drop asks for shorter windows. And
//! a guard that stays discontent is taken more seriously the further the schedule has come: during the warm-up replicas
//! are expected to move apart, near the end they are not.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::guard::{Grounds, Judgement, Verdict};

/// A learning rate below this part of the last round's is a drop.
const DROP_BELOW: f64 = 0.7;
/// What a drop asks for.
const DROP_NUDGE: f64 = 0.5;
/// A learning rate above the last one by more than this is still warming up.
const RISING_ABOVE: f64 = 1.001;
/// A learning rate below this part of the highest one is late in the schedule.
const LATE_BELOW: f64 = 0.7;

/// Where the learning-rate schedule stands, judged by what it did so far.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LrPhase {
    /// It is rising.
    WarmingUp,
    /// It is at its height (also where it never changes or is not reported).
    #[default]
    Steady,
    /// It has come down from there by more than 30 %.
    Late,
}

impl LrPhase {
    /// So many verdicts in a row that are not Stable ask for a nudge, and for which.
    const fn patience(self) -> (u32, f64) {
        match self {
            Self::WarmingUp => (5, 0.3),
            Self::Steady => (3, 0.5),
            Self::Late => (2, 0.7),
        }
    }
}

impl fmt::Display for LrPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WarmingUp => "is warming up",
            Self::Steady => "is at its height",
            Self::Late => "is coming down",
        })
    }
}

/// Watches the learning rate from round to round.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LrWatcher {
    last: Option<f64>,
    highest: f64,
    phase: LrPhase,
    discontent: u32,
}

impl LrWatcher {
    /// What the round's learning rate and the guard's verdict on it ask for together. `lr`: the median over the members,
    /// none where nobody reported one.
    pub(crate) fn judge(&mut self, lr: Option<f64>, guard: Verdict) -> Judgement {
        let dropped = lr.and_then(|lr| self.take(lr));
        let sustained = self.count(guard);
        // A drop asks for as much as the strictest wait, and explains itself better.
        match (dropped, sustained) {
            (Some(drop), Some(wait)) => {
                if factor(&wait) < DROP_NUDGE {
                    wait
                } else {
                    drop
                }
            }
            (one, other) => one.or(other).unwrap_or(Judgement::CONTENT),
        }
    }

    fn take(&mut self, lr: f64) -> Option<Judgement> {
        let last = self.last.replace(lr);
        self.highest = self.highest.max(lr);
        self.phase = match last {
            Some(last) if lr > last * RISING_ABOVE => LrPhase::WarmingUp,
            _ if lr < self.highest * LATE_BELOW => LrPhase::Late,
            _ => LrPhase::Steady,
        };
        let from = last.filter(|last| lr < last * DROP_BELOW)?;
        let verdict = Verdict::NudgeDown { factor: DROP_NUDGE };
        Some(Judgement::new(verdict, Grounds::RateDropped { from, to: lr }))
    }

    fn count(&mut self, guard: Verdict) -> Option<Judgement> {
        self.discontent = if guard == Verdict::Stable { 0 } else { self.discontent.saturating_add(1) };
        let (needed, factor) = self.phase.patience();
        if self.discontent < needed {
            return None;
        }
        let verdicts = std::mem::take(&mut self.discontent);
        Some(Judgement::new(Verdict::NudgeDown { factor }, Grounds::Sustained { verdicts, phase: self.phase }))
    }

    /// Whether its numbers can be, where they come from a file.
    pub(crate) fn is_sound(&self) -> bool {
        let usable = |x: f64| x.is_finite() && x >= 0.0;
        self.last.is_none_or(usable) && usable(self.highest)
    }
}

fn factor(judgement: &Judgement) -> f64 {
    match judgement.verdict {
        Verdict::NudgeDown { factor } => factor,
        Verdict::Stable | Verdict::SuppressGrowth => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What rounds ask for, a word each: learning rate (negative: not reported), the guard's discontent; the factor asked
    /// for, 1 for none.
    fn asked(rounds: &[(f64, bool)]) -> Vec<f64> {
        let mut watcher = LrWatcher::default();
        let judge = |&(lr, discontent): &(f64, bool)| {
            let guard = if discontent { Verdict::SuppressGrowth } else { Verdict::Stable };
            factor(&watcher.judge(Some(lr).filter(|&lr| lr >= 0.0), guard))
        };
        rounds.iter().map(judge).collect()
    }

    #[test]
    fn drops_ask_once() {
        for (rates, factors) in [
            (vec![0.1, 0.1, 0.01, 0.01], vec![1.0, 1.0, 0.5, 1.0]),
            (vec![0.1, 0.071, 0.0498, 0.04], vec![1.0, 1.0, 1.0, 1.0]),
            (vec![0.1, 0.069], vec![1.0, 0.5]),
            (vec![0.1, -1.0, 0.05], vec![1.0, 1.0, 0.5]),
            (vec![0.1, 0.0, 0.0], vec![1.0, 0.5, 1.0]),
            (vec![-1.0, -1.0], vec![1.0, 1.0]),
        ] {
            let rounds: Vec<(f64, bool)> = rates.iter().map(|&lr| (lr, false)).collect();
            assert_eq!(asked(&rounds), factors, "{rates:?}");
        }
    }

    #[test]
    fn sustained_discontent_waits_less_the_later_it_is() {
        let with = |rates: &[f64]| asked(&rates.iter().map(|&lr| (lr, true)).collect::<Vec<_>>());
        assert_eq!(with(&[0.1; 7]), [1.0, 1.0, 0.5, 1.0, 1.0, 0.5, 1.0]);
        assert_eq!(with(&[-1.0; 3]), [1.0, 1.0, 0.5], "without a learning rate as at its height");
        let mut watcher = LrWatcher::default();
        let mut factors = |rates: &[f64]| -> Vec<f64> {
            rates.iter().map(|&lr| factor(&watcher.judge(Some(lr), Verdict::SuppressGrowth))).collect()
        };
        // The first round shows no direction yet.
        assert_eq!(factors(&[0.01, 0.02, 0.03, 0.04, 0.05]), [1.0, 1.0, 1.0, 1.0, 0.3]);
        assert_eq!(factors(&[0.04, 0.0345, 0.034, 0.033, 0.032]), [1.0, 0.7, 1.0, 0.7, 1.0]);
    }

    #[test]
    fn content_rounds_start_the_wait_again() {
        let rounds = [(0.1, true), (0.1, true), (0.1, false), (0.1, true), (0.1, true), (0.1, true)];
        assert_eq!(asked(&rounds), [1.0, 1.0, 1.0, 1.0, 1.0, 0.5]);
    }
}
