//! Windows: opening, extending and closing them, and the batches between.

use super::error::Violation;
use super::message::Trained;
use super::window::{Figures, OpenWindow};
use super::{Session, State, checks};
use core::time::Duration;
use flodl_wire::message::Report;
use flodl_wire::message::control::{Overlap, WindowPlan};
use flodl_wire::message::report::WindowReport;
use flodl_wire::{Range, Round, Time, WindowId};

impl Session {
    pub(super) fn open_window(&mut self, plan: WindowPlan, now: Time) -> Result<(), Violation> {
        let run = self.admitted_run("Window")?;
        let fits = match plan.overlap {
            // Nobody has a window while a round is open.
            None => self.work.window.is_none() && self.work.flight.is_none(),
            Some(Overlap { begins: None, .. }) => self.work.window.as_ref().is_none_or(|open| !open.has_more()),
            Some(Overlap { begins: Some(_), .. }) => true,
        };
        if !matches!(self.state, State::Idle) || !fits || self.newest.last {
            return Err(self.unexpected("Window"));
        }
        if let Some(last) = self.newest.window.filter(|&last| last >= plan.window) {
            return Err(Violation::WindowOrder { got: plan.window, last });
        }
        checks::plan(&plan, run)?;
        self.newest.window = Some(plan.window);
        self.newest.epoch = plan.epoch;
        self.newest.late = plan.overlap.map_or(Duration::ZERO, |overlap| overlap.late);
        match plan.overlap.and_then(|overlap| overlap.begins) {
            Some(round) if self.newest.round.is_none_or(|newest| newest < round) => {
                self.work.next = Some(Box::new(plan));
            }
            Some(_) | None => self.begin_window(plan, now),
        }
        Ok(())
    }

    fn begin_window(&mut self, plan: WindowPlan, now: Time) {
        let Some(run) = &self.run else { return };
        if let Some(before) = self.work.window.take() {
            self.work.carry = before.into_figures();
        }
        if plan.leases.iter().all(|range| range.is_empty()) {
            // What was done in a lead before it goes into the report of a window that is trained.
            let nothing = WindowReport { window: plan.window, epoch: plan.epoch, ..WindowReport::default() };
            return self.report_window(nothing, now);
        }
        let idle = now.since(self.marks.last_batch_end);
        let warm_up = std::mem::take(&mut self.warm_up);
        let before = std::mem::take(&mut self.work.carry);
        let window = OpenWindow::new(plan, run, before, (idle, now)).warming_up(warm_up);
        self.work.window = Some(Box::new(window));
    }

    /// The snapshot of `round` is taken: the window before is over, and the next one begins, where there is one.
    pub(super) fn pass_snapshot(&mut self, round: Round, now: Time) {
        if let Some(before) = self.work.window.take() {
            self.work.carry = before.into_figures();
        }
        let begins = |plan: &mut Box<WindowPlan>| {
            plan.overlap.and_then(|overlap| overlap.begins).is_some_and(|begins| begins <= round)
        };
        if let Some(plan) = self.work.next.take_if(begins) {
            self.begin_window(*plan, now);
        }
    }

    /// What this rank may train is no longer its own: it has lost the consensus.
    pub(super) fn drop_windows(&mut self) {
        self.work.window = None;
        self.work.next = None;
        self.work.ended = None;
        self.work.carry = Figures::default();
    }

    pub(super) fn extend_window(&mut self, window: WindowId, leases: &[Range]) -> Result<(), Violation> {
        let run = self.admitted_run("ExtendPartition")?;
        let open = self.work.window.as_ref().map(|open| &open.plan).filter(|plan| plan.window == window);
        let next = self.work.next.as_deref().filter(|plan| plan.window == window);
        if let Some(plan) = open.or(next) {
            checks::ranges(plan, &[&plan.leases, leases].concat(), run)?;
        }
        // One for a window that is reported already crossed the report on its way.
        if let Some(open) = self.work.window.as_mut().filter(|open| open.plan.window == window) {
            open.extend(leases);
        } else if let Some(next) = self.work.next.as_mut().filter(|plan| plan.window == window) {
            next.leases.extend(leases);
        }
        Ok(())
    }

    pub(super) fn trained(&mut self, done: &Trained, now: Time) {
        let order = match std::mem::replace(&mut self.state, State::Idle) {
            State::Training(order) => order,
            other => {
                self.state = other;
                return;
            }
        };
        self.ledger.trained(order.epoch, &order.positions);
        self.marks.last_batch_end = now;
        let Some(window) = &mut self.work.window else { return };
        if window.is_reported() {
            self.marks.window_end = now;
        }
        if let Some(progress) = window.trained(done, &order, now) {
            self.report(progress);
        }
    }

    /// Reports the open window, unless it is reported. Where nobody trains on after that, it is over.
    pub(super) fn close_window(&mut self, now: Time) {
        let epoch_len = self.run.as_ref().map_or(0, |run| run.epoch_len);
        let Some(window) = self.work.window.as_mut().filter(|window| !window.is_reported()) else { return };
        let report = window.report(epoch_len);
        if window.plan.overlap.is_none() {
            self.work.window = None;
        }
        self.report_window(report, now);
    }

    fn report_window(&mut self, report: WindowReport, now: Time) {
        self.marks.window_end = now;
        let replica_digest = self.ledger.replica_digest.take();
        self.report(Report::WindowReport(Box::new(WindowReport { replica_digest, ..report })));
    }
}
