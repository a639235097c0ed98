//! A run of two ranks, one per host, that a test drives word by word.

use super::puppet::{ack, ready, tensors};
use super::{DIGEST, LIFE, MS, config, scenario};
use core::time::Duration;
use flodl_coord::{Config, Coordinator, Input, Output};
use flodl_elche::{Guard, NoGuard};
use flodl_wire::message::control::{Next, Part, RoundOutcome, WindowPlan};
use flodl_wire::message::record::{Body, EventKind};
use flodl_wire::message::report::{ExitStatus, Folded, FoldedPart, WindowReport};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{HostId, Range, Rank, Round, SessionId, Time, Version, WindowId};

/// Two ranks, each behind the session of its own number.
pub(crate) struct Script {
    pub(crate) coordinator: Coordinator,
    pub(crate) now: Time,
    pub(crate) windows: [WindowPlan; 2],
    pub(crate) outputs: Vec<Output>,
    pub(crate) sessions: [SessionId; 2],
}

fn empty_plan() -> WindowPlan {
    WindowPlan {
        window: WindowId(0),
        epoch: flodl_wire::Epoch(0),
        leases: Vec::new(),
        quota: 0,
        quota_max: 0,
        budget: None,
        global_step: 0,
        quota_sum: 0,
        overlap: None,
    }
}

impl Script {
    /// Ready, with round 0 open.
    pub(crate) fn formed() -> Script {
        Script::guarded(Box::new(NoGuard))
    }

    /// The same, under that guard.
    pub(crate) fn guarded(guard: Box<dyn Guard>) -> Script {
        Script::of(config(&scenario(&[8, 20])), guard, &ready(8000, None))
    }

    /// Of that configuration, with ranks that are ready like this.
    pub(crate) fn of(config: Config, guard: Box<dyn Guard>, ready: &Report) -> Script {
        Script::under(Coordinator::with_guard(config, guard, Time::ZERO).expect("valid"), ready)
    }

    /// Ready, of a run that is to survive its controller.
    pub(crate) fn recorded() -> Script {
        let coordinator = Coordinator::new(config(&scenario(&[8, 20])), Time::ZERO).expect("valid");
        Script::under(coordinator.recording(0), &ready(8000, None))
    }

    fn under(coordinator: Coordinator, ready: &Report) -> Script {
        let windows = [empty_plan(), empty_plan()];
        let mut script = Script {
            coordinator,
            now: Time::ZERO,
            windows,
            outputs: Vec::new(),
            sessions: [SessionId(0), SessionId(1)],
        };
        for rank in [0, 1] {
            let host = HostId::from_name(&format!("host{rank}")).expect("a name");
            script.take(Input::HostConnected { session: SessionId(rank), host, rank_count: 1 });
        }
        script.say(0, ready.clone());
        script.say(1, ready.clone());
        script.say(0, Report::Manifest { part: 0, parts: 1, tensors: tensors() });
        script
    }

    /// In its first window.
    pub(crate) fn training() -> Script {
        let mut script = Script::formed();
        script.spread();
        script
    }

    /// Ends round 0.
    pub(crate) fn spread(&mut self) {
        self.snapshot(0, 0, &[]);
        self.snapshot(1, 0, &[]);
        self.folded(0, [FoldedPart::Whole, FoldedPart::None]);
        self.acks(0);
    }

    /// With round 1 open, both ranks having trained one batch.
    pub(crate) fn averaging() -> (Script, [Vec<Range>; 2]) {
        let mut script = Script::training();
        let used = [0, 1].map(|rank| script.report(rank, 1));
        (script, used)
    }

    /// Hands in one input and takes every output.
    pub(crate) fn take(&mut self, input: Input) {
        self.now = Time(self.now.0 + MS);
        self.coordinator.handle(input, self.now);
        while let Some(output) = self.coordinator.poll() {
            if let Output::ToRank { rank, control: Control::Window(plan), .. } = &output {
                self.windows[rank.0 as usize] = plan.clone();
            }
            self.outputs.push(output);
        }
    }

    pub(crate) fn say(&mut self, rank: u32, report: Report) {
        let session = self.sessions[rank as usize];
        self.take(Input::FromRank { session, rank: Rank(rank), incarnation: LIFE, report });
    }

    /// The report of a rank that did so many batches of its window.
    pub(crate) fn done(&self, rank: u32, batches: u32) -> WindowReport {
        let plan = &self.windows[rank as usize];
        let used = super::puppet::prefix(&plan.leases, u64::from(batches) * 64);
        let samples = flodl_wire::id::samples(&used);
        WindowReport { window: plan.window, epoch: plan.epoch, batches, samples, used, ..WindowReport::default() }
    }

    pub(crate) fn report(&mut self, rank: u32, batches: u32) -> Vec<Range> {
        let report = self.done(rank, batches);
        let used = report.used.clone();
        self.say(rank, Report::WindowReport(Box::new(report)));
        used
    }

    pub(crate) fn snapshot(&mut self, rank: u32, round: u64, ranges: &[Range]) {
        let report = Report::SnapshotReady {
            round: Round(round),
            steps: 1,
            ranges: ranges.to_vec(),
            epoch: flodl_wire::Epoch(0),
        };
        self.say(rank, report);
    }

    pub(crate) fn folded(&mut self, round: u64, parts: [FoldedPart; 2]) {
        let ranks = [0, 1].map(|rank| (Rank(rank), LIFE, parts[rank as usize])).to_vec();
        let any_mass = parts.iter().any(|part| *part != FoldedPart::None);
        self.take(Input::Folded(Folded { round: Round(round), ranks, digest: DIGEST, any_mass }));
    }

    pub(crate) fn acks(&mut self, round: u64) {
        self.say(0, Report::SyncAck(ack(Round(round))));
        self.say(1, Report::SyncAck(ack(Round(round))));
    }

    /// A window of one batch each, which took `first`, and its round, all of which is well.
    pub(crate) fn average(&mut self, round: u64, first: Duration) {
        let used = [0, 1].map(|rank| {
            let report = WindowReport { first, ..self.done(rank, 1) };
            let used = report.used.clone();
            self.say(rank, Report::WindowReport(Box::new(report)));
            used
        });
        for rank in [0u32, 1] {
            self.snapshot(rank, round, &used[rank as usize]);
        }
        self.folded(round, [FoldedPart::Whole, FoldedPart::Whole]);
        self.acks(round);
    }

    pub(crate) fn dies(&mut self, rank: u32, signal: i32) {
        let (status, last_lines) = (ExitStatus::Signal(signal), String::new());
        let report = HostReport::RankExited { rank: Rank(rank), incarnation: LIFE, status, last_lines };
        self.take(Input::FromHost { session: SessionId(u64::from(rank)), report });
    }

    /// Time passes; everybody gives signs of life.
    pub(crate) fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now = Time(self.now.0 + 1000 * MS);
            for rank in [0, 1] {
                self.say(rank, Report::Heartbeat { step: 0 });
            }
            self.coordinator.tick(self.now);
            self.outputs.extend(std::iter::from_fn(|| self.coordinator.poll()));
        }
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = (&EventKind, String)> {
        self.outputs.iter().filter_map(|output| match output {
            Output::Record(Body::Event(event)) => {
                Some((&event.kind, event.reason.as_ref().map(|why| why.text.clone()).unwrap_or_default()))
            }
            _ => None,
        })
    }

    pub(crate) fn deaths(&self) -> Vec<(u32, String)> {
        let death = |(kind, why): (&EventKind, String)| match kind {
            EventKind::Death { rank, .. } => Some((rank.0, why)),
            _ => None,
        };
        self.events().filter_map(death).collect()
    }

    pub(crate) fn stalls(&self) -> Vec<String> {
        self.events().filter(|(kind, _)| **kind == EventKind::Stall).map(|(_, why)| why).collect()
    }

    /// Samples committed by each round that made or handed out a version.
    pub(crate) fn commits(&self) -> Vec<(Version, u64, u64)> {
        let commit = |(kind, _): (&EventKind, String)| match kind {
            EventKind::RoundCommitted { version, committed, repeats, .. } => {
                Some((*version, committed.iter().map(|&(_, samples)| samples).sum(), *repeats))
            }
            _ => None,
        };
        self.events().filter_map(commit).collect()
    }

    pub(crate) fn rounds_done(&self) -> Vec<(u64, RoundOutcome, Next)> {
        let done = |output: &Output| match output {
            Output::Broadcast(Control::RoundDone { round, outcome, next }) => Some((round.0, *outcome, *next)),
            _ => None,
        };
        self.outputs.iter().filter_map(done).collect()
    }

    /// The newest roster's parts.
    pub(crate) fn roster(&self) -> Vec<(u32, Part)> {
        let roster = |output: &Output| match output {
            Output::Broadcast(Control::RequestParams { roster, .. }) => {
                Some(roster.iter().map(|entry| (entry.rank.0, entry.part)).collect())
            }
            _ => None,
        };
        self.outputs.iter().rev().find_map(roster).unwrap_or_default()
    }
}
