//! Ranks that do as they are told, as far as the odds let them.

use super::overlap::Ahead;
use super::{DIGEST, Event, LIFE, MS, World};
use flodl_coord::Input;
use flodl_elche::Mode;
use flodl_wire::codec::manifest_digest;
use flodl_wire::message::control::{Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::join::{DatasetInfo, Dtype, LayoutSizes, Ready, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::report::{Evaluation, ExitStatus, Received, SyncAck, SyncOutcome, WindowReport};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Epoch, Incarnation, Range, Rank, Round, SessionId, Time, Version, WindowId};
use std::time::Duration;

/// One rank's side of the run.
pub(crate) struct Puppet {
    pub(crate) session: SessionId,
    pub(crate) life: Incarnation,
    pub(crate) alive: bool,
    pub(crate) silent: bool,
    pub(crate) hangs: bool,
    /// It is in the run.
    pub(crate) admitted: bool,
    /// What it says while it is silent.
    pub(crate) held: Vec<Input>,
    /// When the last thing it said arrives.
    pub(crate) said: Time,
    pub(crate) window: Option<WindowPlan>,
    pub(crate) since: Since,
    /// Its newest window report has not arrived.
    pub(crate) unheard: bool,
    /// The newest window whose report's work is in `since`: the next one may begin before that report arrives.
    kept: WindowId,
    pub(crate) ahead: Ahead,
    /// The version it holds, and the result it has that may become the next.
    pub(crate) holds: Option<Version>,
    pub(crate) has_result: bool,
}

/// Trained since the last snapshot that was folded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Since {
    pub(crate) epoch: Epoch,
    pub(crate) steps: u64,
    pub(crate) ranges: Vec<Range>,
}

impl Puppet {
    pub(crate) fn new(session: SessionId) -> Puppet {
        Puppet {
            session,
            life: LIFE,
            alive: true,
            silent: false,
            hangs: false,
            admitted: false,
            held: Vec::new(),
            said: Time::ZERO,
            window: None,
            since: Since::default(),
            unheard: false,
            kept: WindowId(0),
            ahead: Ahead::default(),
            holds: None,
            has_result: false,
        }
    }

    pub(crate) fn speaks(&self) -> bool {
        self.alive && !self.silent
    }
}

pub(crate) fn tensors() -> Vec<TensorSpec> {
    vec![TensorSpec { name: "w".into(), dtype: Dtype::F32, shape: vec![10], section: Section::Parameters }]
}

pub(crate) fn ready(samples: u64, step: Option<Duration>) -> Report {
    Report::Ready(Box::new(Ready {
        manifest_digest: manifest_digest(&tensors()),
        layout: LayoutSizes { parameters: 10, buffers: 0, integers: 0 },
        dataset: DatasetInfo { len: samples, signature: [7; 32] },
        trainer: TrainerSettings::default(),
        device: "cpu".into(),
        memory: None,
        libraries: String::new(),
        step,
        scalars: Vec::new(),
        saves: false,
    }))
}

/// An answer to a round as a rank gives it that has the whole result.
pub(crate) fn ack(round: Round) -> SyncAck {
    SyncAck {
        round,
        outcome: SyncOutcome::Whole(received(DIGEST)),
        waited: Duration::from_millis(2),
        copied: Duration::from_millis(1),
    }
}

/// A whole result of that digest.
pub(crate) fn received(digest: u64) -> Received {
    Received { digest, divergence: Some(0.01), pre_norm: 1.0, post_norm: 1.0 }
}

impl World {
    pub(crate) fn hears(&mut self, rank: Rank, control: Control) {
        match control {
            Control::SendManifest => {
                let way = self.way();
                self.say(way, rank, Report::Manifest { part: 0, parts: 1, tensors: tensors() });
            }
            Control::Admitted(_) => self.puppet(rank).admitted = true,
            Control::Window(plan) => {
                let holds = self.puppet(rank).holds;
                assert_eq!(holds, self.oracle.version, "{rank} is to train without the consensus");
                if plan.overlap.is_some() { self.takes_plan(rank, plan) } else { self.window(rank, plan) }
            }
            Control::ExtendPartition { window, leases } => self.extend(rank, (window, leases)),
            Control::RequestParams { round, roster } => self.snapshot(rank, round, &roster),
            Control::RoundDone { outcome: RoundOutcome::Committed { version }, .. } => {
                let overlaps = self.overlaps();
                let puppet = self.puppet(rank);
                puppet.holds = std::mem::take(&mut puppet.has_result).then_some(version);
                if puppet.holds.is_some() && !overlaps {
                    puppet.since = Since::default();
                }
                if puppet.holds.is_none() && overlaps {
                    self.drop_windows(rank);
                }
            }
            Control::RoundDone { outcome: RoundOutcome::Nothing, .. } => self.puppet(rank).has_result = false,
            Control::ExecuteEval { schedule } => {
                self.oracle.outcome.evaluated_by.push(rank);
                let fails = self.happens(self.scenario.odds.evaluation);
                let found = Evaluation { loss: 0.1, accuracy: Some(0.9), samples: 10 };
                let outcome = if fails { Err("no test split".to_owned()) } else { Ok(found) };
                self.say(MS, rank, Report::EvalResult { schedule, outcome });
            }
            Control::Shutdown | Control::ShutdownWithSave { .. } => {
                self.say(MS, rank, Report::Finished { version: None, replica_digest: DIGEST });
                let after = self.puppet(rank).said.0 - self.now.0 + MS;
                self.exits(after, rank, ExitStatus::Code(0));
            }
            Control::Refused { .. } | Control::DeclareDead { .. } => self.is_out(rank, &control),
            Control::Fenced { .. } => self.oracle.outcome.fenced.push(rank),
            _ => {}
        }
    }

    /// It is no longer in the run: its relay ends its process.
    fn is_out(&mut self, rank: Rank, control: &Control) {
        let life = self.puppet(rank).life;
        let named = match control {
            Control::DeclareDead { rank: named, incarnation, .. } => (*named, *incarnation) == (rank, life),
            _ => true,
        };
        // A silent one does not hear it, and goes on when it wakes up.
        if named && !self.puppet(rank).silent {
            self.puppet(rank).alive = false;
            self.cut_off(rank, 0);
        }
    }

    pub(crate) fn overlaps(&self) -> bool {
        self.scenario.mode == Mode::CpuAsync
    }

    pub(crate) fn window(&mut self, rank: Rank, plan: WindowPlan) {
        for position in plan.leases.iter().flat_map(|range| range.start..range.end) {
            let at = (plan.epoch.0 + position / self.scenario.samples, position % self.scenario.samples);
            let before = self.oracle.outcome.committed.get(&(Epoch(at.0), at.1));
            assert_eq!(before, None, "{position} of {} is leased though committed", plan.epoch);
        }
        let batch = Duration::from_millis(self.scenario.batch_ms[rank.0 as usize]);
        let batches = flodl_wire::id::samples(&plan.leases).div_ceil(u64::from(self.scenario.batch_size));
        let fits = plan.budget.map_or(u64::MAX, |budget| (budget.as_nanos() / batch.as_nanos().max(1)) as u64).max(1);
        let done = batches.min(fits).min(u64::from(plan.quota_max));
        let used = prefix(&plan.leases, done * u64::from(self.scenario.batch_size));
        let wrong = self.happens(self.scenario.odds.replica);
        let held = self.puppet(rank).holds;
        let report = WindowReport {
            window: plan.window,
            epoch: plan.epoch,
            batches: done as u32,
            samples: flodl_wire::id::samples(&used),
            first: if done == 0 { Duration::ZERO } else { batch },
            rest: batch * (done.saturating_sub(1)) as u32,
            used,
            replica_digest: held.map(|version| (version, if wrong { 1 } else { DIGEST })),
            ..WindowReport::default()
        };
        self.puppet(rank).window = Some(plan);
        let after = batch.as_nanos() as u64 * done + 1000;
        self.puppet(rank).ahead.over = Time(self.now.0 + after);
        self.report(rank, after, report);
    }

    fn report(&mut self, rank: Rank, after_ns: u64, report: WindowReport) {
        self.puppet(rank).unheard = true;
        self.say(after_ns, rank, Report::WindowReport(Box::new(report)));
    }

    /// A window report that is not sent yet, taken back; it is changed and said anew.
    pub(crate) fn unsent(&mut self, rank: Rank) -> Option<Box<WindowReport>> {
        let mine = |event: &Event| match event {
            Event::Input(Input::FromRank { rank: from, report: Report::WindowReport(_), .. }) => *from == rank,
            _ => false,
        };
        let key = self.queue.iter().find(|(_, event)| mine(event)).map(|(key, _)| *key)?;
        match self.queue.remove(&key)? {
            Event::Input(Input::FromRank { report: Report::WindowReport(report), .. }) => {
                let now = self.now;
                self.puppet(rank).said = now;
                Some(report)
            }
            _ => None,
        }
    }

    /// More of the window it is in: its report gets later and longer.
    fn extend(&mut self, rank: Rank, (window, leases): (WindowId, Vec<Range>)) {
        let Some(mut plan) = self.puppet(rank).window.clone().filter(|plan| plan.window == window) else { return };
        plan.leases.extend(leases);
        if self.unsent(rank).is_some() {
            self.window(rank, plan);
        } else {
            self.puppet(rank).window = Some(plan);
        }
    }

    /// Ends a window that is open, then says what is in the snapshot and sends it to the root.
    fn snapshot(&mut self, rank: Rank, round: Round, roster: &[RosterEntry]) {
        let Some(entry) = roster.iter().find(|entry| entry.rank == rank) else { return };
        if entry.incarnation != self.puppet(rank).life {
            return;
        }
        if self.overlaps() {
            return self.snapshot_ahead(rank, round, entry);
        }
        if let Some(report) = self.unsent(rank) {
            self.cut_short(rank, *report);
        }
        let since = self.puppet(rank).since.clone();
        let steps = if entry.part == Part::Source { 1 } else { since.steps };
        let (control, data) = (self.way(), self.way());
        self.say(control, rank, Report::SnapshotReady { round, steps, ranges: since.ranges, epoch: since.epoch });
        self.post(data, Event::Data { rank, round });
    }
}

impl World {
    /// A stop in mid-window: half of its batches are done.
    pub(crate) fn cut_short(&mut self, rank: Rank, mut report: WindowReport) {
        report.batches /= 2;
        report.used = prefix(&report.used, u64::from(report.batches) * u64::from(self.scenario.batch_size));
        report.samples = flodl_wire::id::samples(&report.used);
        let way = self.way();
        self.report(rank, way, report.clone());
        self.puppet(rank).keep(&report);
    }
}

impl Puppet {
    /// A window is over: its work is what the next snapshot holds.
    pub(crate) fn keep(&mut self, report: &WindowReport) {
        if report.window <= self.kept {
            return;
        }
        self.kept = report.window;
        self.since.epoch = report.epoch;
        self.since.steps += u64::from(report.batches);
        self.since.ranges.extend(report.used.iter().copied());
    }
}

/// The first `samples` positions of the ranges.
pub(crate) fn prefix(ranges: &[Range], samples: u64) -> Vec<Range> {
    let mut left = samples;
    let mut taken = Vec::new();
    for range in ranges {
        let len = range.len().min(left);
        if len > 0 {
            taken.push(Range { start: range.start, end: range.start + len });
        }
        left -= len;
    }
    taken
}
