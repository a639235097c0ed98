//! Where verdicts meet: one ruling a round from the guard and the learning rate, with the limits on what it may do.
//!
//! Everything that stands between an opinion and the window is here: the strictest opinion wins; a nudge by no number is
//! no nudge; windows are nudged at most once in three rounds; and after a ruling that was not Stable windows grow again
//! only after five that were.

use serde::{Deserialize, Serialize};

use crate::change::{Change, Hold, Judge};
use crate::guard::{Guard, GuardInput, Judgement, Verdict};
use crate::speed::median_in;
use crate::watcher::LrWatcher;

/// So many Stable rulings in a row and windows may grow again.
pub(crate) const REARM: u32 = 5;
/// At most one nudge in so many rounds.
const NUDGE_EVERY: u32 = 3;
/// The least a nudge leaves of the anchor.
const FACTOR_MIN: f64 = 0.1;

/// What a round's opinions come to.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Ruling {
    /// The strictest opinion.
    pub(crate) verdict: Verdict,
    /// The anchor is to be multiplied by this, in [0.1, 1]; none: no nudge, or not now.
    pub(crate) nudge: Option<f64>,
    /// What keeps windows from growing.
    pub(crate) hold: Option<Hold>,
}

/// What earlier rulings still forbid.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// Stable rulings since the last one that was not; none: growth is armed.
    disarmed: Option<u32>,
    /// Rounds since the last nudge.
    since_nudge: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { disarmed: None, since_nudge: NUDGE_EVERY }
    }
}

/// The guard, the learning rate's watcher, and what limits both.
pub(crate) struct Arbiter {
    pub(crate) guard: Box<dyn Guard>,
    pub(crate) watcher: LrWatcher,
    pub(crate) limits: Limits,
}

impl Arbiter {
    pub(crate) fn new(guard: Box<dyn Guard>) -> Self {
        Self { guard, watcher: LrWatcher::default(), limits: Limits::default() }
    }

    /// The ruling on a committed round. `rates`: the members' learning rates, sorted by this call.
    pub(crate) fn rule(&mut self, round: &GuardInput, rates: &mut [f64], changes: &mut Vec<Change>) -> Ruling {
        let guard = sound(self.guard.judge(round), changes);
        let rate = self.watcher.judge(median_in(rates), guard.verdict);
        let (judge, judgement) = if strictness(rate.verdict) > strictness(guard.verdict) {
            (Judge::LearningRate, rate)
        } else {
            (Judge::Guard, guard)
        };
        let verdict = judgement.verdict;
        if verdict != Verdict::Stable {
            changes.push(Change::Judged { judge, verdict, grounds: judgement.grounds });
        }
        self.limits.apply(verdict, changes)
    }
}

impl Limits {
    fn apply(&mut self, verdict: Verdict, changes: &mut Vec<Change>) -> Ruling {
        self.since_nudge = self.since_nudge.saturating_add(1);
        let nudge = match verdict {
            Verdict::NudgeDown { .. } if self.since_nudge < NUDGE_EVERY => {
                changes.push(Change::NudgeSkipped { since: self.since_nudge });
                None
            }
            Verdict::NudgeDown { factor } => {
                self.since_nudge = 0;
                Some(factor.clamp(FACTOR_MIN, 1.0))
            }
            Verdict::Stable | Verdict::SuppressGrowth => None,
        };
        if verdict != Verdict::Stable {
            self.disarmed = Some(0);
            return Ruling { verdict, nudge, hold: Some(Hold::Guard { verdict }) };
        }
        let stable = self.disarmed.map(|stable| stable.saturating_add(1));
        self.disarmed = stable.filter(|&stable| stable < REARM);
        if stable.is_some() && self.disarmed.is_none() {
            changes.push(Change::Rearmed { stable: REARM });
        }
        Ruling { verdict, nudge, hold: self.disarmed.map(|stable| Hold::Rearming { stable, needed: REARM }) }
    }
}

/// A nudge by no number shortens nothing, but whoever asks for it is not content.
fn sound(judgement: Judgement, changes: &mut Vec<Change>) -> Judgement {
    match judgement.verdict {
        Verdict::NudgeDown { factor } if !factor.is_finite() => {
            changes.push(Change::NudgeRejected);
            Judgement { verdict: Verdict::SuppressGrowth, ..judgement }
        }
        _ => judgement,
    }
}

/// How much a verdict takes away: nothing, growth, or that part of the window.
fn strictness(verdict: Verdict) -> f64 {
    match verdict {
        Verdict::Stable => 0.0,
        Verdict::SuppressGrowth => 1.0,
        Verdict::NudgeDown { factor } => 2.0 + (1.0 - factor.clamp(FACTOR_MIN, 1.0)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::guard::Grounds;
    use proptest::prelude::*;

    /// Says what it is told to, round by round, and is content after that.
    pub(crate) struct Scripted(pub(crate) Vec<Verdict>);

    impl Guard for Scripted {
        fn judge(&mut self, _round: &GuardInput) -> Judgement {
            if self.0.is_empty() {
                return Judgement::CONTENT;
            }
            Judgement::said(self.0.remove(0), "it is written")
        }
    }

    const STABLE: Verdict = Verdict::Stable;
    const SUPPRESS: Verdict = Verdict::SuppressGrowth;

    fn nudge(factor: f64) -> Verdict {
        Verdict::NudgeDown { factor }
    }

    /// The rulings on rounds with these verdicts of the guard and these learning rates.
    fn rulings(rounds: &[(Verdict, &[f64])]) -> (Vec<Ruling>, Vec<Change>) {
        let mut arbiter = Arbiter::new(Box::new(Scripted(rounds.iter().map(|&(verdict, _)| verdict).collect())));
        let mut changes = Vec::new();
        let rule =
            |&(_, rates): &(Verdict, &[f64])| arbiter.rule(&GuardInput::default(), &mut rates.to_vec(), &mut changes);
        (rounds.iter().map(rule).collect(), changes)
    }

    #[test]
    fn the_strictest_wins() {
        let before: (Verdict, &[f64]) = (STABLE, &[0.1]);
        for (guard, rates, verdict, judge) in [
            (STABLE, [0.1].as_slice(), STABLE, None),
            (SUPPRESS, &[0.1], SUPPRESS, Some(Judge::Guard)),
            (STABLE, &[0.01], nudge(0.5), Some(Judge::LearningRate)),
            (SUPPRESS, &[0.01], nudge(0.5), Some(Judge::LearningRate)),
            (nudge(0.8), &[0.01], nudge(0.5), Some(Judge::LearningRate)),
            (nudge(0.5), &[0.01], nudge(0.5), Some(Judge::Guard)),
            (nudge(0.2), &[0.01], nudge(0.2), Some(Judge::Guard)),
            // The members disagree: the median has not dropped.
            (STABLE, &[0.01, 0.1, 0.1], STABLE, None),
            (nudge(f64::NAN), &[0.1], SUPPRESS, Some(Judge::Guard)),
        ] {
            let (rulings, changes) = rulings(&[before, (guard, rates)]);
            assert_eq!(rulings[1].verdict, verdict, "{guard:?} at {rates:?}");
            let judged = changes.iter().find_map(|change| match change {
                Change::Judged { judge, .. } => Some(*judge),
                _ => None,
            });
            assert_eq!(judged, judge);
        }
    }

    #[test]
    fn a_nudge_by_no_number_is_said_and_suppresses_growth() {
        for factor in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let (rulings, changes) = rulings(&[(nudge(factor), &[])]);
            assert_eq!((rulings[0].nudge, rulings[0].verdict), (None, SUPPRESS));
            let grounds = Grounds::Said("it is written".into());
            let judged = Change::Judged { judge: Judge::Guard, verdict: SUPPRESS, grounds };
            assert_eq!(changes, [Change::NudgeRejected, judged]);
        }
    }

    #[test]
    fn factors_are_clamped() {
        for (factor, clamped) in [(0.0, 0.1), (-1e300, 0.1), (0.3, 0.3), (2.0, 1.0), (1e300, 1.0)] {
            assert_eq!(rulings(&[(nudge(factor), &[])]).0[0].nudge, Some(clamped));
        }
    }

    #[test]
    fn growth_re_arms_after_five_stable_rulings() {
        let verdicts = [SUPPRESS, STABLE, STABLE, STABLE, STABLE, STABLE, STABLE];
        let (rulings, changes) = rulings(&verdicts.map(|verdict| (verdict, [].as_slice())));
        let held: Vec<bool> = rulings.iter().map(|ruling| ruling.hold.is_some()).collect();
        assert_eq!(held, [true, true, true, true, true, false, false]);
        assert_eq!(changes.iter().filter(|change| matches!(change, Change::Rearmed { .. })).count(), 1);
    }

    fn verdict() -> impl Strategy<Value = Verdict> {
        prop_oneof![3 => Just(STABLE), 2 => Just(SUPPRESS), 2 => any::<f64>().prop_map(nudge), 1 => (0.0f64..1.5).prop_map(nudge)]
    }

    proptest! {
        #[test]
        fn limits_hold_whatever_is_said(rounds in prop::collection::vec((verdict(), any::<f64>().prop_map(f64::abs)), 1..60)) {
            let mut arbiter = Arbiter::new(Box::new(Scripted(rounds.iter().map(|&(verdict, _)| verdict).collect())));
            let mut changes = Vec::new();
            let (mut last_nudge, mut stable): (Option<usize>, u32) = (None, REARM);
            for (i, &(_, rate)) in rounds.iter().enumerate() {
                let mut rates = if rate.is_finite() { vec![rate] } else { vec![] };
                let ruling = arbiter.rule(&GuardInput::default(), &mut rates, &mut changes);
                stable = if ruling.verdict == STABLE { stable + 1 } else { 0 };
                prop_assert_eq!(ruling.hold.is_none(), stable >= REARM);
                if let Some(factor) = ruling.nudge {
                    prop_assert!((FACTOR_MIN..=1.0).contains(&factor));
                    prop_assert!(last_nudge.is_none_or(|last| i - last >= NUDGE_EVERY as usize));
                    last_nudge = Some(i);
                }
            }
        }
    }
}
