//! An open window: what is leased, what is trained, and the figures of its report.

use super::message::{BatchOrder, Trained, WarmUp};
use crate::id;
use core::time::Duration;
use flodl_elche::{Batches, StopRule, lr_position};
use flodl_wire::message::Report;
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::report::WindowReport;
use flodl_wire::{Range, Time};

/// In long windows progress is told this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A window that is being trained.
#[derive(Clone, Debug)]
pub(super) struct OpenWindow {
    pub(super) plan: WindowPlan,
    lease: Batches,
    stop: StopRule,
    /// When the first batch was ordered.
    started: Time,
    /// When the last batch was done (or the first ordered).
    at: Time,
    told: Time,
    /// The stop rule has spoken.
    over: bool,
    /// The learning rate grows over its batches.
    warms_up: bool,
    figures: WindowReport,
}

impl OpenWindow {
    /// The window of `plan`, whose first batch is ordered `now`, `idle` after the last one of the window before.
    pub(super) fn new(plan: WindowPlan, batch_size: u32, idle: Duration, now: Time) -> OpenWindow {
        let figures = WindowReport { window: plan.window, epoch: plan.epoch, idle, ..WindowReport::default() };
        OpenWindow {
            lease: Batches::new(id::spans(&plan.leases), batch_size),
            stop: StopRule::new(plan.budget, plan.quota_max),
            started: now,
            at: now,
            told: now,
            over: false,
            warms_up: false,
            plan,
            figures,
        }
    }

    /// The same, with a learning rate that grows over its batches or not.
    pub(super) fn warming_up(self, warms_up: bool) -> OpenWindow {
        OpenWindow { warms_up, ..self }
    }

    /// Every range of the window so far, and those that would come to it.
    pub(super) fn leases_with(&self, more: &[Range]) -> Vec<Range> {
        [&self.plan.leases, more].concat()
    }

    /// More positions, to be trained after those there are.
    pub(super) fn extend(&mut self, more: &[Range]) {
        self.plan.leases.extend(more);
        self.lease.extend(&id::spans(more));
    }

    /// The next batch, unless the window is over.
    pub(super) fn next_batch(&mut self) -> Option<BatchOrder> {
        if self.over {
            return None;
        }
        let positions = id::ranges(&self.lease.next_batch()?);
        let (global_step, i) = (self.plan.global_step, self.figures.batches);
        let lr_position = lr_position(global_step, i, self.plan.quota, self.plan.quota_sum);
        let warm_up = self.warms_up.then_some(WarmUp { batch: i, of: self.plan.quota.max(1) });
        Some(BatchOrder { window: self.plan.window, epoch: self.plan.epoch, positions, lr_position, warm_up })
    }

    /// Takes the batch that was ordered last as done. Answers with the progress to tell, where it is time to.
    pub(super) fn trained(&mut self, done: &Trained, positions: &[Range], now: Time) -> Option<Report> {
        let figures = &mut self.figures;
        let took = now.since(self.at);
        if figures.batches == 0 {
            figures.first = took;
        } else {
            figures.rest += took;
        }
        self.at = now;
        self.over = self.stop.after_batch(took, now.since(self.started)).is_some();
        figures.batches += 1;
        figures.samples += flodl_wire::id::samples(positions);
        figures.data_wait += done.data_wait.min(took);
        figures.loss_sum += done.outcome.loss_sum;
        figures.loss_count += done.outcome.samples;
        figures.lr = done.lr;
        if now.since(self.told) < PROGRESS_EVERY {
            return None;
        }
        self.told = now;
        let (batches, samples) = (figures.batches, figures.samples);
        Some(Report::Progress { window: self.plan.window, batches, samples })
    }

    /// The window's report. To be called when no batch is out.
    pub(super) fn report(self) -> WindowReport {
        WindowReport { used: id::ranges(self.lease.used()), ..self.figures }
    }
}
