//! Windows: opening, extending and closing them, and the batches between.

use super::error::Violation;
use super::message::Trained;
use super::window::OpenWindow;
use super::{Session, State, checks};
use flodl_wire::message::Report;
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::report::WindowReport;
use flodl_wire::{Range, Time, WindowId};

impl Session {
    pub(super) fn open_window(&mut self, plan: WindowPlan, now: Time) -> Result<(), Violation> {
        let run = self.admitted_run("Window")?;
        if !matches!(self.state, State::Idle) || self.newest.last {
            return Err(self.unexpected("Window"));
        }
        if let Some(last) = self.newest.window.filter(|&last| last >= plan.window) {
            return Err(Violation::WindowOrder { got: plan.window, last });
        }
        checks::plan(&plan, run)?;
        let batch_size = run.batch_size;
        self.newest.window = Some(plan.window);
        let idle = now.since(self.marks.last_batch_end);
        if plan.leases.iter().all(|range| range.is_empty()) {
            let nothing = WindowReport { window: plan.window, epoch: plan.epoch, ..WindowReport::default() };
            self.report_window(nothing, now);
        } else {
            let warm_up = std::mem::take(&mut self.warm_up);
            let window = OpenWindow::new(plan, batch_size, idle, now).warming_up(warm_up);
            self.state = State::Window(Box::new(window));
        }
        Ok(())
    }

    pub(super) fn extend_window(&mut self, window: WindowId, leases: &[Range]) -> Result<(), Violation> {
        let run = self.admitted_run("ExtendPartition")?;
        if let State::Window(open) = &self.state
            && open.plan.window == window
        {
            checks::ranges(&open.plan, &open.leases_with(leases), run)?;
        }
        // One for a window that is reported already crossed the report on its way.
        if let State::Window(open) = &mut self.state
            && open.plan.window == window
        {
            open.extend(leases);
        }
        Ok(())
    }

    pub(super) fn trained(&mut self, done: &Trained, now: Time) {
        let State::Training(mut window, order) = std::mem::replace(&mut self.state, State::Idle) else { return };
        self.ledger.trained(&order.positions);
        self.marks.last_batch_end = now;
        if let Some(progress) = window.trained(done, &order.positions, now) {
            self.report(progress);
        }
        self.state = State::Window(window);
    }

    pub(super) fn close_window(&mut self, window: OpenWindow, now: Time) {
        self.report_window(window.report(), now);
        self.state = State::Idle;
    }

    pub(super) fn report_window(&mut self, report: WindowReport, now: Time) {
        self.marks.window_end = now;
        let replica_digest = self.ledger.replica_digest.take();
        self.report(Report::WindowReport(Box::new(WindowReport { replica_digest, ..report })));
    }
}
