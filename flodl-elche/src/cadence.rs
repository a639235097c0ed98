//! The scheduler's interface: what it is told, what it is asked, and what it answers.

use std::time::Duration;

use crate::change::Change;
use crate::guard::Norms;
use crate::span::Slot;
use crate::state::State;

/// Decides how long each member trains, on how much, before the next average.
///
/// The order of calls: `join` for each member, then per window `plan`, one `observe` per report, and `round_done` once
/// the round is committed. All of it is pure: equal calls give equal answers.
pub trait Cadence: Send {
    /// `slot` can be planned for from now on. It has no estimate yet, beyond what the settings' hints say; one that joins
    /// again begins anew.
    fn join(&mut self, slot: Slot);

    /// What is known of the relative speed of `slot`'s device before anything is measured (see
    /// [`DeviceSpec`](crate::DeviceSpec)); larger is faster. A hint of the user's wins. To be told before it joins.
    fn expect(&mut self, slot: Slot, speed: f64);

    /// `slot` is gone and leaves every computation at once.
    fn leave(&mut self, slot: Slot);

    /// One window report. Numbers that cannot be are ignored; the rejection is among the next changes.
    fn observe(&mut self, slot: Slot, sample: WindowSample);

    /// A round was committed: moves the anchor. What changed since the last plan, and why, replaces what is in `changes`.
    fn round_done_into(&mut self, outcome: &RoundFeedback, changes: &mut Vec<Change>);

    /// The next window replaces what is in `plan`. With the same members and the same `plan` again and again nothing is
    /// allocated.
    fn plan_into(&mut self, demand: &Demand<'_>, plan: &mut Plan);

    /// [`round_done_into`](Self::round_done_into) a new list.
    fn round_done(&mut self, outcome: &RoundFeedback) -> Vec<Change> {
        let mut changes = Vec::new();
        self.round_done_into(outcome, &mut changes);
        changes
    }

    /// [`plan_into`](Self::plan_into) a new plan.
    fn plan(&mut self, demand: &Demand<'_>) -> Plan {
        let mut plan = Plan::default();
        self.plan_into(demand, &mut plan);
        plan
    }

    /// Batches of the slowest member in a window.
    fn anchor(&self) -> u32;

    /// The present estimate of one batch of `slot`, computing and waiting for data; none before it was measured.
    fn batch_time(&self, slot: Slot) -> Option<Duration>;

    /// The member with the shortest batch time.
    fn fastest(&self) -> Option<Slot>;

    /// The member whose batch time the anchor counts: the elected slowest one.
    fn slowest(&self) -> Option<Slot>;

    /// Relative speeds of `live` for [`Pool::reserve`](crate::Pool::reserve); those without an estimate count with the
    /// median of the others.
    fn weights(&self, live: &[Slot]) -> Vec<(Slot, f64)>;

    /// Everything worth keeping over a restart of the run, whoever takes part in it then.
    fn state(&self) -> State;
}

/// What a member measured in one window.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowSample {
    /// Batches trained; 0 says nothing about speed and is no fault.
    pub batches: u32,
    /// The first batch, waiting for its data included.
    pub first: Duration,
    /// Batches 2 to n together, waiting for their data included.
    pub rest: Duration,
    /// The part of the two that was waiting for data. A member that waits for its data is as slow as one that computes for
    /// so long, so plans do not tell the two apart.
    pub data_wait: Duration,
}

impl WindowSample {
    /// What one batch took: the mean of batches 2 to n, or the one there was; none without a batch.
    pub fn batch(&self) -> Option<Duration> {
        match self.batches {
            0 => None,
            1 => Some(self.first),
            n => Some(self.rest / (n - 1)),
        }
    }

    /// What the first batch took beyond that: filling pipelines, compiling, cold caches.
    pub fn fill(&self) -> Duration {
        self.first.saturating_sub(self.batch().unwrap_or_default())
    }
}

/// What is known of a committed round. Lists hold those that reported, in any order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoundFeedback {
    /// From the window's first batch to the round's end.
    pub window_wall: Duration,
    /// From the request for contributions to the commit.
    pub reduce: Duration,
    /// From each member's own end of the window to the request for contributions.
    pub waits: Vec<(Slot, Duration)>,
    /// |replica - consensus| / |consensus|.
    pub divergence: Vec<(Slot, f64)>,
    /// Optimizer steps contributed.
    pub steps: Vec<(Slot, u32)>,
    /// Norms before and after.
    pub norms: Vec<(Slot, Norms)>,
    /// Learning rate of each member's last batch.
    pub rates: Vec<(Slot, f64)>,
}

/// What the next window is for.
#[derive(Copy, Clone, Debug)]
pub struct Demand<'a> {
    /// Members to plan for, ascending.
    pub live: &'a [Slot],
    /// Samples that can be leased now: those of the open epoch, and under Async those of the next ones too.
    pub remaining: u64,
    /// Samples in the epoch.
    pub epoch_len: u64,
    /// What callbacks before this window will cost which member; usually empty.
    pub callbacks: &'a [(Slot, Duration)],
}

/// One window for all members.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Batches of the slowest member in a full window.
    pub anchor: u32,
    /// Whether the window is one of the last two of its epoch: counts instead of budgets, so that it ends together.
    pub tail: bool,
    /// One for each live member, ascending.
    pub shares: Vec<Share>,
    /// The sum of all quotas.
    pub quota_sum: u64,
    /// What changed since the last round, and why the plan is as it is.
    pub reasons: Vec<Change>,
}

/// One member's part of a window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// The member.
    pub slot: Slot,
    /// Batches expected of it.
    pub quota: u32,
    /// Batches after which it stops in any case.
    pub quota_max: u32,
    /// Batches it may do after its window, while its round is averaged; 0 but under Async.
    pub lead: u32,
    /// Samples to lease to it now, `quota_max + lead` batches; 0: it has no work in this window.
    pub lease: u64,
    /// Its own time, from its first batch, after which it stops (see [`StopRule`](crate::StopRule)); none: the lease
    /// ends its window.
    pub budget: Option<Duration>,
}
