//! A guard that watches whether the largest divergence keeps rising.
//!
//! Divergence has no scale of its own: it depends on model, learning rate and the length of windows. What speaks against
//! longer windows is a *trend*: replicas that are further apart round after round, once they are apart far enough to
//! matter at all.

use super::{Grounds, Guard, GuardInput, Judgement, Verdict};

/// The divergence that matters where replicas take the whole consensus.
const THRESHOLD: f64 = 0.05;
/// The same where they go only part of the way, and so stay apart by design.
const THRESHOLD_PULLED: f64 = 0.3;
/// So many rising maxima suppress growth...
const SUPPRESS_FROM: u32 = 3;
/// ...and so many shorten the window...
const NUDGE_FROM: u32 = 5;
/// ...by this factor.
const NUDGE: f64 = 0.5;

/// Suppresses growth after three rising maxima of the divergence of which the last is above the threshold, and halves the
/// window after five. A round in which nobody reports a divergence neither continues nor breaks the trend.
#[derive(Clone, Debug, PartialEq)]
pub struct TrendGuard {
    threshold: f64,
    last: Option<f64>,
    rising: u32,
}

impl TrendGuard {
    /// With a threshold of its own for the last of the rising maxima; one that is not a finite number of at least 0
    /// counts as the default of 0.05.
    pub fn new(threshold: f64) -> Self {
        let threshold = if threshold.is_finite() && threshold >= 0.0 { threshold } else { THRESHOLD };
        Self { threshold, last: None, rising: 0 }
    }

    /// With the default threshold for replicas that go `pull` of the way to the consensus: 0.05 for all of it, else 0.3.
    pub fn for_pull(pull: f64) -> Self {
        Self::new(if pull < 1.0 { THRESHOLD_PULLED } else { THRESHOLD })
    }
}

impl Default for TrendGuard {
    fn default() -> Self {
        Self::new(THRESHOLD)
    }
}

impl Guard for TrendGuard {
    fn judge(&mut self, round: &GuardInput) -> Judgement {
        let Some(divergence) = round.max_divergence() else { return Judgement::CONTENT };
        self.rising = match self.last.replace(divergence) {
            Some(last) if divergence > last => self.rising.saturating_add(1),
            _ => 1,
        };
        let verdict = match self.rising {
            rising if rising < SUPPRESS_FROM || divergence <= self.threshold => return Judgement::CONTENT,
            rising if rising < NUDGE_FROM => Verdict::SuppressGrowth,
            _ => Verdict::NudgeDown { factor: NUDGE },
        };
        Judgement::new(verdict, Grounds::Rising { rounds: self.rising, divergence, threshold: self.threshold })
    }

    fn name(&self) -> &str {
        "trend"
    }

    fn memory(&self) -> Vec<f64> {
        self.last.map_or(Vec::new(), |last| vec![last, f64::from(self.rising)])
    }

    fn recall(&mut self, memory: &[f64]) -> bool {
        match *memory {
            [] => (self.last, self.rising) = (None, 0),
            [last, rising] if last.is_finite() && last >= 0.0 => match super::count(rising) {
                Some(rising) => (self.last, self.rising) = (Some(last), rising),
                None => return false,
            },
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::{letters, round};
    use crate::span::Slot;
    use proptest::prelude::*;

    #[test]
    fn three_rising_suppress_and_five_nudge() {
        for (maxima, verdicts) in [
            (vec![0.06, 0.07, 0.08], "..s"),
            (vec![0.06, 0.07, 0.07], "..."),
            (vec![0.06, 0.07, 0.08, 0.09, 0.10, 0.11], "..ssnn"),
            (vec![0.01, 0.02, 0.03, 0.04, 0.05, 0.051], ".....n"),
            (vec![0.01, 0.02, 0.051, 0.04, 0.052, 0.053], "..s..s"),
            (vec![0.9, 0.8, 0.7, 0.6], "...."),
            (vec![0.0, 0.0, 0.0, 0.0], "...."),
        ] {
            let rounds: Vec<GuardInput> = maxima.iter().map(|&d| round(d, 4)).collect();
            assert_eq!(letters(&mut TrendGuard::default(), &rounds), verdicts, "{maxima:?}");
        }
    }

    #[test]
    fn replicas_that_stay_apart_by_design_may_be_further_apart() {
        let rounds: Vec<GuardInput> = [0.28, 0.29, 0.30, 0.31].map(|d| round(d, 4)).into();
        assert_eq!(letters(&mut TrendGuard::for_pull(0.5), &rounds), "...s");
        assert_eq!(letters(&mut TrendGuard::new(f64::NAN), &rounds), "..ss", "the default instead of no number");
    }

    #[test]
    fn the_member_that_is_furthest_away_counts_and_a_silent_round_does_not() {
        let silent = GuardInput::default();
        let rounds = [round(0.06, 4), silent.clone(), round(0.07, 4), silent, round(0.08, 4)];
        assert_eq!(letters(&mut TrendGuard::default(), &rounds), "....s");
        let both = |d: f64| GuardInput { divergence: vec![(Slot(0), 0.01), (Slot(1), d)], ..round(0.0, 4) };
        assert_eq!(letters(&mut TrendGuard::default(), &[both(0.06), both(0.07), both(0.08)]), "..s");
    }

    proptest! {
        #[test]
        fn no_verdict_without_three_rising_in_sight(maxima in prop::collection::vec(0.0f64..1.0, 1..40)) {
            let mut guard = TrendGuard::default();
            for (i, &maximum) in maxima.iter().enumerate() {
                let verdict = guard.judge(&round(maximum, 4)).verdict;
                let rising = |n: usize| i + 1 >= n && maxima[i + 1 - n..=i].windows(2).all(|w| w[1] > w[0]);
                let expected = match maximum > THRESHOLD {
                    true if rising(5) => Verdict::NudgeDown { factor: NUDGE },
                    true if rising(3) => Verdict::SuppressGrowth,
                    _ => Verdict::Stable,
                };
                prop_assert_eq!(verdict, expected);
            }
        }
    }
}
