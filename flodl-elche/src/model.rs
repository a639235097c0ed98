//! A run in computed time: members of given speeds train, report and average through the scheduler's public interface.
//!
//! It answers what a plan leads to without a cluster: `flodl plan` and `flodl replay` use it, and so do the traces in
//! `tests/traces`. It models time, not learning: windows end by the real [`StopRule`], a round costs what it is told to,
//! and nobody dies unless told so. Under Async nobody waits for anybody else, so a window lasts as long as all together take
//! for its batches, each at its own pace, or as long as the round before it is averaged, whichever is longer.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::cadence::{Cadence, Demand, Plan, RoundFeedback, Share, WindowSample};
use crate::change::Change;
use crate::mode::Policy;
use crate::span::Slot;
use crate::stop::StopRule;

/// How long a member's `n`th batch takes, counted from 0 over the whole run.
pub type Pace = Box<dyn Fn(u64) -> Duration>;

/// What happens between windows.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// From the request for contributions to the commit.
    pub reduce: Duration,
    /// What the first batch of a window takes beyond the others.
    pub fill: Duration,
    /// What each member reports of its divergence; none: nothing.
    pub divergence: Option<f64>,
    /// Everybody's learning rate; none: not reported.
    pub rate: Option<f64>,
}

/// What one member did in a window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Who.
    pub slot: Slot,
    /// Batches trained.
    pub batches: u32,
    /// From its first batch to the end of its last.
    pub elapsed: Duration,
}

/// One window and its round.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// What was planned.
    pub plan: Plan,
    /// What was done, ascending by slot.
    pub work: Vec<Work>,
    /// From the first batch to the commit.
    pub wall: Duration,
    /// What the round changed.
    pub changes: Vec<Change>,
}

impl Window {
    /// Batches trained by all.
    pub fn batches(&self) -> u64 {
        self.work.iter().map(|work| u64::from(work.batches)).sum()
    }

    /// The part of the members' time in which they waited for each other or for the average, in [0, 1].
    pub fn waiting(&self) -> f64 {
        let whole = self.wall.as_secs_f64() * self.work.len() as f64;
        let busy: f64 = self.work.iter().map(|work| work.elapsed.as_secs_f64()).sum();
        if whole > 0.0 { (1.0 - busy / whole).max(0.0) } else { 0.0 }
    }
}

struct Member {
    pace: Pace,
    batches: u64,
}

/// A scheduler and the members it plans for.
pub struct Model {
    scheduler: Box<dyn Cadence>,
    policy: Policy,
    members: BTreeMap<Slot, Member>,
    epoch_batches: u64,
    left: u64,
    /// What the next rounds cost and report.
    pub round: Round,
}

impl Model {
    /// A run without members, of epochs of `epoch_batches` whole batches. The scheduler's batch size has to be 1.
    pub fn new(scheduler: Box<dyn Cadence>, policy: Policy, epoch_batches: u64) -> Self {
        let epoch_batches = epoch_batches.max(1);
        let (members, round) = (BTreeMap::new(), Round::default());
        Self { scheduler, policy, members, epoch_batches, left: epoch_batches, round }
    }

    /// A member joins, or gets another pace.
    pub fn join(&mut self, slot: Slot, pace: Pace) {
        match self.members.get_mut(&slot) {
            Some(member) => member.pace = pace,
            None => {
                self.members.insert(slot, Member { pace, batches: 0 });
                self.scheduler.join(slot);
            }
        }
    }

    /// A member is gone.
    pub fn leave(&mut self, slot: Slot) {
        if self.members.remove(&slot).is_some() {
            self.scheduler.leave(slot);
        }
    }

    /// The scheduler.
    pub fn scheduler(&self) -> &dyn Cadence {
        &*self.scheduler
    }

    /// Batches a member has trained.
    pub fn batches(&self, slot: Slot) -> u64 {
        self.members.get(&slot).map_or(0, |member| member.batches)
    }

    /// One window and its round. Without members nothing happens.
    pub fn window(&mut self) -> Window {
        let live: Vec<Slot> = self.members.keys().copied().collect();
        let ahead = if self.policy == Policy::Async { self.epoch_batches } else { 0 };
        let plan = self.scheduler.plan(&Demand {
            live: &live,
            remaining: self.left.saturating_add(ahead),
            epoch_len: self.epoch_batches,
            callbacks: &[],
        });
        let work: Vec<Work> = plan.shares.iter().map(|share| self.train(share)).collect();
        let last = work.iter().map(|work| work.elapsed).max().unwrap_or_default();
        let wall = match self.policy {
            Policy::Sync | Policy::Cadence => last + self.round.reduce,
            Policy::Async => own_pace(&work).max(self.round.reduce),
        };
        let mut window = Window { plan, work, wall, changes: Vec::new() };
        self.left = self.left.saturating_sub(window.batches());
        if self.left == 0 {
            self.left = self.epoch_batches;
        }
        let feedback = self.feedback(&window, last);
        window.changes = self.scheduler.round_done(&feedback);
        window
    }

    fn feedback(&self, window: &Window, last: Duration) -> RoundFeedback {
        let each = |value: Option<f64>| -> Vec<(Slot, f64)> {
            value.into_iter().flat_map(|value| window.work.iter().map(move |work| (work.slot, value))).collect()
        };
        let wait = |work: &Work| if self.policy == Policy::Async { Duration::ZERO } else { last - work.elapsed };
        RoundFeedback {
            window_wall: window.wall.max(self.round.reduce),
            reduce: self.round.reduce,
            waits: window.work.iter().map(|work| (work.slot, wait(work))).collect(),
            divergence: each(self.round.divergence),
            steps: window.work.iter().map(|work| (work.slot, work.batches)).collect(),
            norms: Vec::new(),
            rates: each(self.round.rate),
        }
    }

    fn train(&mut self, share: &Share) -> Work {
        let slot = share.slot;
        let Some(member) = self.members.get_mut(&slot) else {
            return Work { slot, batches: 0, elapsed: Duration::ZERO };
        };
        let mut rule = StopRule::new(share.budget, share.quota_max);
        let (mut first, mut elapsed) = (Duration::ZERO, Duration::ZERO);
        // Batches in whole: the lease is counted in them.
        while u64::from(rule.batches()) < share.lease {
            let mut took = (member.pace)(member.batches);
            if rule.batches() == 0 {
                took += self.round.fill;
                first = took;
            }
            member.batches += 1;
            elapsed += took;
            if rule.after_batch(took, elapsed).is_some() {
                break;
            }
        }
        let batches = rule.batches();
        let rest = elapsed - first;
        self.scheduler.observe(slot, WindowSample { batches, first, rest, data_wait: Duration::ZERO });
        Work { slot, batches, elapsed }
    }
}

/// What all together take for these batches, each at the pace it had.
fn own_pace(work: &[Work]) -> Duration {
    let batches: f64 = work.iter().map(|work| f64::from(work.batches)).sum();
    let seconds = |work: &Work| work.elapsed.as_secs_f64();
    let rate: f64 =
        work.iter().filter(|work| seconds(work) > 0.0).map(|work| f64::from(work.batches) / seconds(work)).sum();
    if rate > 0.0 { Duration::try_from_secs_f64(batches / rate).unwrap_or(Duration::MAX) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AnchorSettings, Settings};
    use crate::elche::Elche;
    use crate::guard::NoGuard;

    fn model(policy: Policy, anchor: AnchorSettings, millis: &[u64]) -> Model {
        let settings = Settings { policy, anchor, batch_size: 1, ..Settings::default() };
        let elche = Elche::new(settings, Box::new(NoGuard)).unwrap();
        let mut model = Model::new(Box::new(elche), policy, 100_000);
        for (slot, &ms) in (0..).map(Slot).zip(millis) {
            model.join(slot, Box::new(move |_| Duration::from_millis(ms)));
        }
        model.round.reduce = Duration::from_millis(50);
        model
    }

    #[test]
    fn steady_members_end_a_window_together() {
        let mut model = model(Policy::Cadence, AnchorSettings::fixed(10), &[8, 20, 32]);
        model.window();
        let window = model.window();
        assert_eq!(window.work.iter().map(|work| work.batches).collect::<Vec<_>>(), [40, 16, 10]);
        assert_eq!(window.wall, Duration::from_millis(320 + 50));
        assert!((window.waiting() - 50.0 / 370.0).abs() < 1e-9);
        assert_eq!((model.batches(Slot(0)), window.batches()), (43, 66));
    }

    #[test]
    fn async_hides_the_reduce() {
        let mut model = model(Policy::Async, AnchorSettings::fixed(10), &[8, 20, 32]);
        model.window();
        let window = model.window();
        assert!(window.wall.abs_diff(Duration::from_millis(320)) < Duration::from_micros(1) && window.waiting() < 1e-6);
        model.round.reduce = Duration::from_secs(1);
        assert_eq!(model.window().wall, Duration::from_secs(1));
    }

    #[test]
    fn an_epoch_ends_whole_and_the_next_begins() {
        let settings = Settings { batch_size: 1, ..Settings::default() };
        let mut model = Model::new(Box::new(Elche::new(settings, Box::new(NoGuard)).unwrap()), Policy::Cadence, 50);
        assert_eq!(model.window().batches(), 0, "nobody is there");
        model.join(Slot(0), Box::new(|_| Duration::from_millis(5)));
        let batches: Vec<u64> = (0..40).map(|_| model.window().batches()).collect();
        assert!(batches.iter().all(|&batches| batches > 0));
        let sums: Vec<u64> = batches
            .iter()
            .scan(0, |sum, b| {
                *sum += b;
                Some(*sum)
            })
            .collect();
        assert!((1..=3).all(|epoch| sums.contains(&(50 * epoch))), "{sums:?}");
    }
}
