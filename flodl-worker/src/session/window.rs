//! An open window: what is leased, what is trained, and the figures of its report.

use super::message::{BatchOrder, Trained, WarmUp};
use super::stock::{Positions, Stock};
use core::time::Duration;
use flodl_elche::{StopRule, lr_position};
use flodl_wire::message::Report;
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::join::RunConfig;
use flodl_wire::message::report::WindowReport;
use flodl_wire::{Range, Time};

/// In long windows progress is told this often.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A window that is being trained.
#[derive(Clone, Debug)]
pub(super) struct OpenWindow {
    pub(super) plan: WindowPlan,
    stock: Stock,
    stop: StopRule,
    /// When it began.
    started: Time,
    /// Batches since then.
    batches: u32,
    /// When the batch that is out was ordered.
    at: Time,
    told: Time,
    phase: Phase,
    /// The learning rate grows over its batches.
    warms_up: bool,
    figures: Figures,
}

/// How far a window is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// It goes on.
    On,
    /// The stop rule has spoken.
    Over,
    /// It is reported; so many batches may still be done before its round's snapshot.
    Lead { left: u32 },
}

/// What was done since the last report.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    report: WindowReport,
    used: Positions,
}

impl OpenWindow {
    /// The window of `plan`, which begins `now`, `idle` after the last batch. `before`: what was done since the last report.
    pub(super) fn new(plan: WindowPlan, run: &RunConfig, before: Figures, (idle, now): (Duration, Time)) -> OpenWindow {
        let report = WindowReport { window: plan.window, epoch: plan.epoch, idle, ..before.report };
        let mut stock = Stock::new(run.epoch_len, run.batch_size);
        stock.add(plan.epoch, &plan.leases);
        OpenWindow {
            stock,
            stop: StopRule::new(plan.budget, plan.quota_max),
            started: now,
            batches: 0,
            at: now,
            told: now,
            phase: Phase::On,
            warms_up: false,
            plan,
            figures: Figures { report, used: before.used },
        }
    }

    /// The same, with a learning rate that grows over its batches or not.
    pub(super) fn warming_up(self, warms_up: bool) -> OpenWindow {
        OpenWindow { warms_up, ..self }
    }

    /// More positions, to be trained after those there are.
    pub(super) fn extend(&mut self, more: &[Range]) {
        self.plan.leases.extend(more);
        self.stock.add(self.plan.epoch, more);
    }

    /// Whether another batch may be trained.
    pub(super) fn has_more(&self) -> bool {
        let may = match self.phase {
            Phase::On => true,
            Phase::Over => false,
            Phase::Lead { left } => left > 0,
        };
        may && !self.stock.is_empty()
    }

    /// Whether its report is out.
    pub(super) fn is_reported(&self) -> bool {
        matches!(self.phase, Phase::Lead { .. })
    }

    /// The next batch, unless the window is over.
    pub(super) fn next_batch(&mut self, now: Time) -> Option<BatchOrder> {
        if !self.has_more() {
            return None;
        }
        let (epoch, positions) = self.stock.next_batch()?;
        if let Phase::Lead { left } = &mut self.phase {
            *left -= 1;
        }
        self.at = now;
        let (global_step, i) = (self.plan.global_step, self.batches);
        let lr_position = lr_position(global_step, i, self.plan.quota, self.plan.quota_sum);
        let warm_up = self.warms_up.then_some(WarmUp { batch: i, of: self.plan.quota.max(1) });
        Some(BatchOrder { window: self.plan.window, epoch, positions, lr_position, warm_up })
    }

    /// Takes the batch that was ordered last as done. Answers with the progress to tell, where it is time to.
    pub(super) fn trained(&mut self, done: &Trained, order: &BatchOrder, now: Time) -> Option<Report> {
        let took = now.since(self.at);
        self.figures.add(done, order, took);
        self.batches += 1;
        if self.phase == Phase::On && self.stop.after_batch(took, now.since(self.started)).is_some() {
            self.phase = Phase::Over;
        }
        if now.since(self.told) < PROGRESS_EVERY {
            return None;
        }
        self.told = now;
        let (batches, samples) = (self.figures.report.batches, self.figures.report.samples);
        Some(Report::Progress { window: self.plan.window, batches, samples })
    }

    /// The window's report. To be called once, when no batch is out.
    pub(super) fn report(&mut self, epoch_len: u64) -> WindowReport {
        self.phase = Phase::Lead { left: self.plan.overlap.map_or(0, |overlap| overlap.lead) };
        let Figures { report, used } = std::mem::take(&mut self.figures);
        WindowReport { used: used.counted_from(report.epoch, epoch_len), ..report }
    }

    /// What was done since its report.
    pub(super) fn into_figures(self) -> Figures {
        self.figures
    }
}

impl Figures {
    fn add(&mut self, done: &Trained, order: &BatchOrder, took: Duration) {
        let report = &mut self.report;
        if report.batches == 0 {
            report.first = took;
        } else {
            report.rest += took;
        }
        report.batches += 1;
        report.samples += flodl_wire::id::samples(&order.positions);
        report.data_wait += done.data_wait.min(took);
        report.loss_sum += done.outcome.loss_sum;
        report.loss_count += done.outcome.samples;
        report.lr = done.lr;
        self.used.push(order.epoch, &order.positions);
    }
}
