//! A guard that watches how fast the divergence grows with the steps between two averages.
//!
//! Replicas that train apart and are pulled together again and again are coupled systems. Whether they stay together is
//! asked of such systems by the sign of the transversal exponent (the *master stability function*: Pecora and Carroll,
//! "Master Stability Functions for Synchronized Coupled Systems", Physical Review Letters 80, 1998): a small distance
//! between them grows as `exp(lambda k)` over `k` steps. From two rounds in a row, with the largest divergences `D`, the
//! exponent per step is estimated as
//!
//! ```text
//!     lambda_t = ln(D_t / D_(t-1)) / k_max        both D at least 1e-8, k_max at least 1
//!     m_t = 0.9 m_(t-1) + 0.1 lambda_t            smoothed = m_t / (1 - 0.9^t)
//! ```
//!
//! where the division corrects the bias towards 0 of the first values (Kingma and Ba, "Adam", 2015).

use super::{Grounds, Guard, GuardInput, Judgement, Verdict};

/// Divergences below this are noise of the arithmetic.
const DIVERGENCE_MIN: f64 = 1e-8;
/// How much of the average the past keeps.
const KEEP: f64 = 0.9;
/// So many rounds in a row above a limit count.
const ROUNDS: u32 = 3;
/// An exponent above this suppresses growth...
const SUPPRESS_ABOVE: f64 = 1e-3;
/// ...and above this shortens the window...
const NUDGE_ABOVE: f64 = 1e-2;
/// ...by this factor.
const NUDGE: f64 = 0.5;

/// Suppresses growth while the smoothed exponent of the divergence has been above 1e-3 a step for at least three rounds,
/// and halves the window while it has been above 1e-2. A round in which nobody reports a divergence changes nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MsfGuard {
    last: Option<f64>,
    average: f64,
    rounds: u32,
    above_suppress: u32,
    above_nudge: u32,
}

impl MsfGuard {
    /// The smoothed exponent; none before two rounds reported a divergence.
    pub fn rate(&self) -> Option<f64> {
        let exponent = i32::try_from(self.rounds).unwrap_or(i32::MAX);
        (self.rounds > 0).then(|| self.average / (1.0 - KEEP.powi(exponent)))
    }

    fn take(&mut self, divergence: f64, k_max: u32) -> Option<f64> {
        let divergence = divergence.max(DIVERGENCE_MIN);
        let last = self.last.replace(divergence)?;
        // Not the logarithm of the quotient, which may overflow.
        let exponent = (divergence.ln() - last.ln()) / f64::from(k_max.max(1));
        self.average = KEEP * self.average + (1.0 - KEEP) * exponent;
        self.rounds = self.rounds.saturating_add(1);
        self.rate()
    }
}

impl Guard for MsfGuard {
    fn judge(&mut self, round: &GuardInput) -> Judgement {
        let Some(divergence) = round.max_divergence() else { return Judgement::CONTENT };
        let Some(rate) = self.take(divergence, round.k_max) else { return Judgement::CONTENT };
        let run = |run: u32, limit: f64| if rate > limit { run.saturating_add(1) } else { 0 };
        self.above_suppress = run(self.above_suppress, SUPPRESS_ABOVE);
        self.above_nudge = run(self.above_nudge, NUDGE_ABOVE);
        let (verdict, limit, rounds) = if self.above_nudge >= ROUNDS {
            (Verdict::NudgeDown { factor: NUDGE }, NUDGE_ABOVE, self.above_nudge)
        } else if self.above_suppress >= ROUNDS {
            (Verdict::SuppressGrowth, SUPPRESS_ABOVE, self.above_suppress)
        } else {
            return Judgement::CONTENT;
        };
        Judgement::new(verdict, Grounds::Growing { rate, limit, rounds })
    }

    fn name(&self) -> &str {
        "msf"
    }

    fn memory(&self) -> Vec<f64> {
        let counts = [self.rounds, self.above_suppress, self.above_nudge].map(f64::from);
        self.last.map_or(Vec::new(), |last| vec![last, self.average, counts[0], counts[1], counts[2]])
    }

    fn recall(&mut self, memory: &[f64]) -> bool {
        let recalled = match *memory {
            [] => Some(Self::default()),
            [last, average, rounds, suppress, nudge] if last.is_finite() && average.is_finite() => (|| {
                Some(Self {
                    last: Some(last).filter(|&last| last >= DIVERGENCE_MIN)?.into(),
                    average,
                    rounds: super::count(rounds)?,
                    above_suppress: super::count(suppress)?,
                    above_nudge: super::count(nudge)?,
                })
            })(),
            _ => None,
        };
        recalled.map(|recalled| *self = recalled).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::tests::{letters, round};
    use proptest::prelude::*;

    /// Rounds whose divergence grows by `exp(rate)` a step, of `steps` steps each.
    fn growing(rate: f64, steps: u32, rounds: u32) -> Vec<GuardInput> {
        let growth = |i: u32| 1e-3 * (rate * f64::from(steps) * f64::from(i)).exp();
        (0..rounds).map(|i| round(growth(i), steps)).collect()
    }

    #[test]
    fn a_steady_exponent_is_found_from_the_second_round_on() {
        for rate in [-0.05, -1e-3, 0.0, 2e-3, 0.02] {
            let mut guard = MsfGuard::default();
            for (i, round) in growing(rate, 20, 12).iter().enumerate() {
                guard.judge(round);
                match guard.rate() {
                    None => assert_eq!(i, 0),
                    Some(found) => assert!((found - rate).abs() < 1e-9, "{found} for {rate} in round {i}"),
                }
            }
        }
    }

    #[test]
    fn three_rounds_above_a_limit_and_as_long_as_it_lasts() {
        for (rate, verdicts) in [(0.9e-3, "........"), (1.1e-3, "...sssss"), (1.1e-2, "...nnnnn"), (-0.1, "........")] {
            assert_eq!(letters(&mut MsfGuard::default(), &growing(rate, 20, 8)), verdicts, "{rate}");
        }
        let mut rounds = growing(1.1e-2, 20, 6);
        let top = rounds[5].divergence[0].1;
        rounds.extend((0..4).map(|_| round(top, 20)));
        // The average stays above the lower limit for long, and falls below the upper one at once.
        assert_eq!(letters(&mut MsfGuard::default(), &rounds), "...nnnssss");
    }

    #[test]
    fn nothing_is_divided_by_zero() {
        let mut guard = MsfGuard::default();
        for (divergence, steps) in [(0.0, 0), (0.0, 5), (f64::MAX, 0), (0.0, 1), (f64::MAX, u32::MAX)] {
            guard.judge(&round(divergence, steps));
        }
        assert!(guard.rate().is_some_and(f64::is_finite), "{guard:?}");
        assert_eq!(guard.judge(&GuardInput::default()), Judgement::CONTENT);
    }

    proptest! {
        #[test]
        fn the_rate_stays_between_the_extremes_seen(
            rounds in prop::collection::vec((1e-9f64..10.0, 1u32..100), 2..60),
        ) {
            let mut guard = MsfGuard::default();
            let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
            let mut last: Option<f64> = None;
            for &(divergence, steps) in &rounds {
                let floored = divergence.max(DIVERGENCE_MIN);
                if let Some(last) = last.replace(floored) {
                    let exponent = (floored / last).ln() / f64::from(steps);
                    (low, high) = (low.min(exponent), high.max(exponent));
                }
                guard.judge(&round(divergence, steps));
                if let Some(rate) = guard.rate() {
                    prop_assert!((low - 1e-9..=high + 1e-9).contains(&rate), "{} not in {}..{}", rate, low, high);
                }
            }
        }
    }
}
