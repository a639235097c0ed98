//! What a puppet does where windows overlap: it goes on over its lease after its report, and its next window begins at the
//! snapshot of a round that is averaged meanwhile.

use super::puppet::{Since, prefix};
use super::{Event, World};
use flodl_wire::message::Report;
use flodl_wire::message::control::{Part, RosterEntry, WindowPlan};
use flodl_wire::{Range, Rank, Round, Time};

/// A puppet's work beside the window that it will report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ahead {
    /// The window that begins at its next snapshot.
    pub(crate) next: Option<WindowPlan>,
    /// What its last snapshot holds.
    pub(crate) sent: Since,
    /// All that it might have held: the lease of the window before it.
    pub(crate) lease: Vec<Range>,
    /// The word of that snapshot has not arrived.
    pub(crate) unheard: bool,
    /// When its window was over.
    pub(crate) over: Time,
}

impl World {
    /// A window that begins at a snapshot, or at once.
    pub(crate) fn takes_plan(&mut self, rank: Rank, plan: WindowPlan) {
        let begins = plan.overlap.expect("a run in which windows overlap").begins;
        let puppet = self.puppet(rank);
        if begins.is_some() {
            assert_eq!(puppet.ahead.next, None, "{rank} has a next window");
            puppet.ahead.next = Some(plan);
        } else {
            self.window(rank, plan);
        }
    }

    /// What it has is no longer its own.
    pub(crate) fn drop_windows(&mut self, rank: Rank) {
        self.unsent(rank);
        let puppet = self.puppet(rank);
        (puppet.window, puppet.since, puppet.ahead.next) = (None, Since::default(), None);
    }

    /// Ends its window, says what is in its snapshot, sends it to the root, and begins the next window.
    pub(crate) fn snapshot_ahead(&mut self, rank: Rank, round: Round, entry: &RosterEntry) {
        if entry.part == Part::Receive {
            self.drop_windows(rank);
        } else if let Some(report) = self.unsent(rank) {
            self.cut_short(rank, *report);
        } else {
            self.lead(rank);
        }
        let puppet = self.puppet(rank);
        let since = std::mem::take(&mut puppet.since);
        let window = puppet.window.take();
        let lease = window.map(|plan| plan.leases).unwrap_or_default();
        let next = puppet.ahead.next.take();
        let steps = if entry.part == Part::Source { 1 } else { since.steps };
        let Since { epoch, ranges, .. } = since.clone();
        puppet.ahead = Ahead { next: None, sent: since, lease, unheard: true, over: puppet.ahead.over };
        let (control, data) = (self.way(), self.way());
        self.say(control, rank, Report::SnapshotReady { round, steps, ranges, epoch });
        self.post(data, Event::Data { rank, round });
        if let Some(next) = next {
            self.window(rank, next);
        }
    }

    /// What it has trained since its report, as far as it may.
    fn lead(&mut self, rank: Rank) {
        let (now, batch_size) = (self.now, u64::from(self.scenario.batch_size));
        let batch_ns = self.scenario.batch_ms[rank.0 as usize] * super::MS;
        let puppet = self.puppet(rank);
        let Some(plan) = &puppet.window else { return };
        let lead = u64::from(plan.overlap.map_or(0, |overlap| overlap.lead));
        let batches = lead.min(now.0.saturating_sub(puppet.ahead.over.0) / batch_ns.max(1));
        let done = flodl_wire::id::samples(&puppet.since.ranges);
        let all = prefix(&plan.leases, done + batches * batch_size);
        let more = flodl_wire::id::samples(&all) - done;
        if more > 0 {
            puppet.since.epoch = plan.epoch;
            puppet.since.ranges = all;
            puppet.since.steps += more.div_ceil(batch_size);
        }
    }
}
