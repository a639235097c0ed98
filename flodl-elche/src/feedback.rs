//! What a committed round tells, checked: a figure that cannot be is missing, not 0, and its rejection is an event.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cadence::RoundFeedback;
use crate::change::{Change, Figure};
use crate::growth::Costs;
use crate::guard::GuardInput;
use crate::span::Slot;
use crate::speed::Speed;

/// No window and no reduce is longer than this; what says so is a broken clock.
const ROUND_MAX: Duration = Duration::from_secs(24 * 3600);

/// The checked figures of one round, in buffers that are used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feedback {
    /// What the guard may see.
    pub(crate) round: GuardInput,
    /// The members' learning rates.
    pub(crate) rates: Vec<f64>,
}

impl Feedback {
    /// The round's timing in seconds, or nothing where its figures cannot be. `reduce_counts`: members wait while it is
    /// reduced. `slowest`: seconds a batch of the elected member.
    pub(crate) fn costs(
        &self,
        (outcome, reduce_counts): (&RoundFeedback, bool),
        members: &BTreeMap<Slot, Speed>,
        slowest: Option<f64>,
        changes: &mut Vec<Change>,
    ) -> Costs {
        let (wall, reduce) = (outcome.window_wall, outcome.reduce);
        if reduce.is_zero() || wall < reduce || wall > ROUND_MAX {
            changes.push(Change::FeedbackRejected { what: Figure::Timing, slot: None });
            return Costs::default();
        }
        let mut waits = Mean::default();
        for &(slot, wait) in &outcome.waits {
            if wait > wall {
                changes.push(Change::FeedbackRejected { what: Figure::Wait, slot: Some(slot) });
            } else {
                waits.add(wait.as_secs_f64());
            }
        }
        // What this window's fills took counts as its overhead; what a window's fill usually takes says how long windows
        // should be.
        let (mut filled, mut fill) = (Mean::default(), Mean::default());
        for speed in members.values().filter(|speed| speed.is_fresh()) {
            filled.add(speed.last_fill());
            fill.add(speed.fill());
        }
        let (wall, reduce) = (wall.as_secs_f64(), reduce.as_secs_f64());
        let waited = if reduce_counts { waits.get() + reduce } else { waits.get() };
        let overhead = ((waited + filled.get()) / wall).min(1.0);
        Costs { overhead: Some(overhead), reduce: Some(reduce), fill: fill.get(), batch: slowest }
    }

    /// Keeps the figures that can be.
    pub(crate) fn check(&mut self, outcome: &RoundFeedback, changes: &mut Vec<Change>) {
        let Self { round, rates } = self;
        let mut reject = |what, slot| changes.push(Change::FeedbackRejected { what, slot: Some(slot) });
        round.steps.clone_from(&outcome.steps);
        round.k_max = outcome.steps.iter().map(|&(_, steps)| steps).max().unwrap_or(0);
        round.divergence.clear();
        for &(slot, divergence) in &outcome.divergence {
            if usable(divergence) {
                round.divergence.push((slot, divergence));
            } else {
                reject(Figure::Divergence, slot);
            }
        }
        round.norms.clear();
        for &(slot, norms) in &outcome.norms {
            if usable(norms.pre) && usable(norms.post) {
                round.norms.push((slot, norms));
            } else {
                reject(Figure::Norm, slot);
            }
        }
        rates.clear();
        for &(slot, rate) in &outcome.rates {
            if usable(rate) {
                rates.push(rate);
            } else {
                reject(Figure::Rate, slot);
            }
        }
    }
}

/// Whether a measured quantity can be.
fn usable(x: f64) -> bool {
    x.is_finite() && x >= 0.0
}

/// The mean, 0 of nothing.
#[derive(Copy, Clone, Debug, Default)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn get(self) -> f64 {
        if self.count == 0 { 0.0 } else { self.sum / f64::from(self.count) }
    }
}
