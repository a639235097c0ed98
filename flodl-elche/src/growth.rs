//! How long a window should be: the anchor moves towards the shortest window that meets the overhead target.
//!
//! A window of anchor `a` lasts `a * b` (b: a batch of the slowest) and costs the reduce, the fill and, since a budget
//! ends somewhere inside a batch, half a batch of idling on top. So the overhead meets the target `t` from
//! `a* = ceil((reduce + fill + b/2) (1 - t) / (t b))` on. Without the half batch a cheap reduce would drive the anchor
//! to 1, where idling dominates. Under Async the reduce goes on behind the next window and costs nothing as long as that
//! window lasts: `a* = ceil(reduce / b)`.

use crate::arbiter::Ruling;
use std::time::Duration;

use crate::change::{Aim, AnchorWhy, Change, Hold};
use crate::config::Settings;
use crate::guard::Verdict;
use crate::mode::Policy;
use crate::speed::Window;

/// The anchor moves from this calibration on...
const MOVES_FROM: u32 = 2;
/// ...but before this one only where the overhead is far over the target.
const SETTLED_FROM: u32 = 5;
/// A target within this of the anchor leaves it alone.
pub(crate) const DEAD_BAND: f64 = 0.20;

/// What a round tells about the cost of windows, in seconds.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(crate) struct Costs {
    /// The part of the window's wall time in which members waited, in [0, 1]; none where it was not measured.
    pub(crate) overhead: Option<f64>,
    /// Request to commit; none where it was not measured.
    pub(crate) reduce: Option<f64>,
    /// What the first batch takes beyond the others.
    pub(crate) fill: f64,
    /// One batch of the slowest; none before it was measured.
    pub(crate) batch: Option<f64>,
}

/// The anchor and what moves it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Growth {
    anchor: u32,
    calibrations: u32,
    reduce: Window,
    /// Of the last round, in seconds.
    fill: f64,
    epoch_cap: u32,
}

impl Growth {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            anchor: settings.first_anchor(),
            calibrations: 0,
            reduce: Window::default(),
            fill: 0.0,
            epoch_cap: u32::MAX,
        }
    }

    /// Goes on from an anchor, calibrations and reduce times of before, as far as the settings allow.
    pub(crate) fn restored(settings: &Settings, anchor: u32, calibrations: u32, reduce: &[f64]) -> Self {
        let mut growth = Self { calibrations, ..Self::new(settings) };
        if settings.policy != Policy::Sync {
            // A nudged anchor is below the minimum and stays there until growth is armed again.
            growth.anchor = anchor.clamp(1, settings.anchor.most());
        }
        reduce.iter().filter(|seconds| seconds.is_finite() && **seconds >= 0.0).for_each(|&s| growth.reduce.push(s));
        growth
    }

    /// The last reduce times, in seconds, oldest first.
    pub(crate) fn reduce(&self) -> &[f64] {
        self.reduce.values()
    }

    /// What a window more would cost, in seconds: a reduce and a fill; and the fill of the window before it, which batch
    /// times leave out.
    pub(crate) fn another_round(&self) -> f64 {
        self.reduce.median().unwrap_or(0.0) + 2.0 * self.fill
    }

    pub(crate) fn anchor(&self) -> u32 {
        self.anchor
    }

    pub(crate) fn calibrations(&self) -> u32 {
        self.calibrations
    }

    /// A round with at least one usable speed sample.
    pub(crate) fn calibrated(&mut self) {
        self.calibrations = self.calibrations.saturating_add(1);
    }

    /// No window is longer than an epoch; one that reaches its end is as long as any.
    pub(crate) fn cap_to_epoch(&mut self, cap: u32, changes: &mut Vec<Change>) {
        self.epoch_cap = cap.max(1);
        self.set(self.anchor.min(self.epoch_cap), AnchorWhy::Epoch { cap: self.epoch_cap }, changes);
    }

    /// Moves the anchor after a round, by the ruling on it first and the overhead second.
    pub(crate) fn round(&mut self, settings: &Settings, costs: &Costs, ruling: &Ruling, changes: &mut Vec<Change>) {
        if settings.policy == Policy::Sync {
            return;
        }
        if let Some(reduce) = costs.reduce {
            self.reduce.push(reduce);
            self.fill = costs.fill;
        }
        if let Some(factor) = ruling.nudge {
            let nudged = (f64::from(self.anchor) * factor).ceil().max(1.0);
            self.set(nudged as u32, AnchorWhy::Nudged { factor }, changes);
        }
        if !matches!(ruling.verdict, Verdict::NudgeDown { .. }) {
            self.towards_target(settings, costs, ruling, changes);
        }
    }

    fn towards_target(&mut self, settings: &Settings, costs: &Costs, ruling: &Ruling, changes: &mut Vec<Change>) {
        let (Some(reduce), Some(batch)) = (self.reduce.median(), costs.batch) else { return };
        let target = target(settings, reduce, costs.fill, batch);
        let overhead = costs.overhead.unwrap_or(0.0);
        let (aim, why) = match settings.policy {
            Policy::Async => (
                Aim::Reduce,
                AnchorWhy::Reduce { reduce: Duration::try_from_secs_f64(reduce).unwrap_or_default(), target },
            ),
            Policy::Sync | Policy::Cadence => (Aim::Overhead, AnchorWhy::Overhead { overhead, target }),
        };
        let anchor = f64::from(self.anchor);
        let inside = (f64::from(target) - anchor).abs() <= DEAD_BAND * anchor;
        let stepped = if inside { self.anchor } else { target.clamp(self.anchor.div_ceil(2), self.anchor * 2) };
        let to = self.bounded(settings, stepped, ruling);
        if to == self.anchor {
            return;
        }
        if let Some(hold) = self.hold(settings, to, overhead, ruling) {
            changes.push(Change::AnchorHeld { anchor: self.anchor, target, aim, why: hold });
            return;
        }
        self.set(to, why, changes);
    }

    fn bounded(&self, settings: &Settings, anchor: u32, ruling: &Ruling) -> u32 {
        let min = if ruling.hold.is_some() { 1 } else { settings.anchor.least() };
        anchor.max(min).min(settings.anchor.most()).min(self.epoch_cap).max(1)
    }

    /// What keeps the anchor from moving to `to`.
    fn hold(&self, settings: &Settings, to: u32, overhead: f64, ruling: &Ruling) -> Option<Hold> {
        if self.calibrations < MOVES_FROM
            || (self.calibrations < SETTLED_FROM && overhead <= 2.0 * settings.anchor.target())
        {
            return Some(Hold::Early { calibrations: self.calibrations, overhead });
        }
        if to < self.anchor { None } else { ruling.hold }
    }

    fn set(&mut self, to: u32, why: AnchorWhy, changes: &mut Vec<Change>) {
        if to != self.anchor {
            changes.push(Change::Anchor { from: self.anchor, to, why });
            self.anchor = to;
        }
    }
}

/// The smallest anchor that meets the overhead target; under Async the smallest whose window covers one reduce. The times
/// are in seconds.
fn target(settings: &Settings, reduce: f64, fill: f64, batch: f64) -> u32 {
    let share = settings.anchor.target();
    let exact = if settings.policy == Policy::Async {
        // Hidden behind the next window, where that is as long.
        reduce / batch
    } else {
        (reduce + fill + batch / 2.0) * (1.0 - share) / (share * batch)
    };
    // The tolerance keeps a whole number whole in spite of the division's rounding.
    (exact - 1e-9).ceil().clamp(1.0, f64::from(u32::MAX / 4)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbiter::Arbiter;
    use crate::arbiter::tests::Scripted;
    use crate::guard::GuardInput;

    fn costs(reduce_ms: f64, batch_ms: f64) -> Costs {
        Costs { overhead: Some(0.2), reduce: Some(reduce_ms / 1e3), fill: 0.0, batch: Some(batch_ms / 1e3) }
    }

    /// The anchors after rounds that cost the same and get these verdicts.
    fn anchors(growth: &mut Growth, costs: &Costs, verdicts: &[Verdict]) -> Vec<u32> {
        let settings = Settings::default();
        let mut changes = Vec::new();
        let mut arbiter = Arbiter::new(Box::new(Scripted(verdicts.to_vec())));
        verdicts
            .iter()
            .map(|_| {
                growth.calibrated();
                let ruling = arbiter.rule(&GuardInput::default(), &mut [], &mut changes);
                growth.round(&settings, costs, &ruling, &mut changes);
                growth.anchor()
            })
            .collect()
    }

    const STABLE: Verdict = Verdict::Stable;
    const SUPPRESS: Verdict = Verdict::SuppressGrowth;

    fn started() -> Growth {
        Growth::new(&Settings::default())
    }

    #[test]
    fn it_doubles_up_to_the_target() {
        // (20 + 16) * 0.97 / (0.03 * 32) = 36.4
        assert_eq!(anchors(&mut started(), &costs(20.0, 32.0), &[STABLE; 7]), [4, 8, 16, 32, 32, 32, 32]);
        // (1000 + 16) * 0.97 / 0.96 = 1026.6, above the upper bound
        let ends = anchors(&mut started(), &costs(1000.0, 32.0), &[STABLE; 12]);
        assert_eq!(ends.last(), Some(&1000));
    }

    #[test]
    fn it_halves_down_to_the_half_batch_floor() {
        let mut growth = started();
        anchors(&mut growth, &costs(1000.0, 32.0), &[STABLE; 12]);
        // With a free reduce the half batch alone asks for 0.5 * 0.97 / 0.03 = 16.2.
        // A guard that suppresses growth now and then does not hold it.
        let down = anchors(&mut growth, &costs(0.0, 32.0), &[SUPPRESS, STABLE].repeat(7));
        assert_eq!(down.last(), Some(&17), "{down:?}");
        assert!(down.windows(2).all(|w| w[1] >= w[0].div_ceil(2)));
    }

    #[test]
    fn early_rounds_move_only_far_over_the_target() {
        let calm = Costs { overhead: Some(0.05), ..costs(20.0, 32.0) };
        assert_eq!(anchors(&mut started(), &calm, &[STABLE; 6]), [4, 4, 4, 4, 8, 16]);
    }

    #[test]
    fn growth_needs_a_stable_guard_and_five_more_after_a_bad_one() {
        let mut growth = started();
        let verdicts = [STABLE, SUPPRESS, STABLE, STABLE, STABLE, STABLE, STABLE, STABLE];
        assert_eq!(anchors(&mut growth, &costs(20.0, 32.0), &verdicts), [4, 4, 4, 4, 4, 4, 8, 16]);
    }

    #[test]
    fn a_nudge_goes_below_the_minimum_and_stays_until_rearmed() {
        let mut growth = started();
        let nudge = Verdict::NudgeDown { factor: 0.5 };
        let verdicts = [STABLE, nudge, nudge, nudge, nudge, STABLE, STABLE, STABLE, STABLE, STABLE];
        assert_eq!(anchors(&mut growth, &costs(20.0, 32.0), &verdicts), [4, 2, 2, 2, 1, 1, 1, 1, 1, 4]);
    }

    #[test]
    fn under_async_a_window_covers_one_reduce() {
        let policy = Policy::Async;
        let settings = Settings { policy, ..Settings::default() };
        for (reduce_ms, end) in [(320.0, 10), (20.0, 4), (1e9, 1000)] {
            let mut growth = Growth::new(&settings);
            let mut arbiter = Arbiter::new(Box::new(Scripted(vec![])));
            for _ in 0..12 {
                growth.calibrated();
                let ruling = arbiter.rule(&GuardInput::default(), &mut [], &mut Vec::new());
                growth.round(&settings, &costs(reduce_ms, 32.0), &ruling, &mut Vec::new());
            }
            assert_eq!(growth.anchor(), end, "{reduce_ms} ms");
        }
    }

    #[test]
    fn a_short_epoch_wins_over_the_minimum() {
        let mut growth = started();
        let mut changes = Vec::new();
        growth.cap_to_epoch(2, &mut changes);
        assert_eq!(changes, [Change::Anchor { from: 4, to: 2, why: AnchorWhy::Epoch { cap: 2 } }]);
        assert_eq!(anchors(&mut growth, &costs(20.0, 32.0), &[STABLE; 6]), [2; 6]);
        growth.cap_to_epoch(0, &mut changes);
        assert_eq!(growth.anchor(), 1);
    }
}
