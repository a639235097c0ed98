//! Whole runs of the coordinator in virtual time, against ranks and a root that answer as the protocol says, with deaths
//! at any moment. An independent ledger of every (epoch, position) says whether samples are exact.

use flodl_coord::{Config, Coordinator, Input, Output, Slowing};
use flodl_elche::Mode;
use flodl_wire::codec::manifest_digest;
use flodl_wire::message::Control;
use flodl_wire::message::control::{Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::join::{DatasetInfo, Dtype, LayoutSizes, Ready, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::record::{Body, EventKind};
use flodl_wire::message::report::{Evaluation, ExitStatus, Folded, FoldedPart, SyncAck, SyncOutcome, WindowReport};
use flodl_wire::message::{HostReport, Report};
use flodl_wire::{Epoch, HostId, Incarnation, Range, Rank, Round, RunId, SessionId, Time, Version};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const SESSION: SessionId = SessionId(1);
const LIFE: Incarnation = Incarnation(1);
const DIGEST: u64 = 0xd16e;
const MS: u64 = 1_000_000;

/// What a test wants to happen.
#[derive(Clone, Debug)]
struct Scenario {
    mode: Mode,
    epochs: u64,
    batch_size: u32,
    samples: u64,
    /// Time of a batch, per rank.
    batch_ms: Vec<u64>,
    /// (time in ms, rank, how its open contribution is folded: 0 not, 1 in part, 2 whole, its signal)
    deaths: Vec<(u64, u32, u8, i32)>,
    stop_at_ms: Option<u64>,
}

/// What came of it.
#[derive(Debug, Default)]
struct Outcome {
    exit: Option<i32>,
    committed: BTreeMap<(Epoch, u64), u32>,
    told_committed: u64,
    told_repeats: u64,
    told_quarantined: u64,
    rounds: u64,
    version: Option<Version>,
    evaluated_by: Vec<Rank>,
    saved: Option<Version>,
    deaths: Vec<(Rank, String)>,
    ended: Time,
    sentences: Vec<String>,
}

/// A rank that does as it is told.
#[derive(Default)]
struct Puppet {
    alive: bool,
    window: Option<WindowPlan>,
    /// Trained since its last folded snapshot.
    since: (Epoch, u64, Vec<Range>),
}

struct Open {
    round: Round,
    roster: Vec<RosterEntry>,
    /// What was folded of whom, once it is.
    folded: Option<Vec<(Rank, Incarnation, FoldedPart)>>,
}

struct World {
    scenario: Scenario,
    coordinator: Coordinator,
    now: Time,
    queue: BTreeMap<(Time, u64), Input>,
    posted: u64,
    puppets: Vec<Puppet>,
    open: Option<Open>,
    outcome: Outcome,
}

fn tensors() -> Vec<TensorSpec> {
    vec![TensorSpec { name: "w".into(), dtype: Dtype::F32, shape: vec![10], section: Section::Parameters }]
}

fn ready(samples: u64) -> Report {
    Report::Ready(Box::new(Ready {
        manifest_digest: manifest_digest(&tensors()),
        layout: LayoutSizes { parameters: 10, buffers: 0, integers: 0 },
        dataset: DatasetInfo { len: samples, signature: [7; 32] },
        trainer: TrainerSettings::default(),
        device: "cpu".into(),
        memory: None,
        libraries: String::new(),
    }))
}

impl World {
    fn new(scenario: Scenario) -> World {
        let ranks = scenario.batch_ms.len() as u32;
        let config = Config {
            run_id: RunId([1; 16]),
            world_size: ranks,
            min_ranks: 1,
            mode: scenario.mode,
            epochs: Some(scenario.epochs),
            batch_size: Some(scenario.batch_size),
            seed: 0,
            patience: Duration::from_secs(10),
            slow: Slowing::default(),
        };
        let coordinator = Coordinator::new(config, Time::ZERO).expect("a valid configuration");
        let puppets = (0..ranks).map(|_| Puppet { alive: true, ..Puppet::default() }).collect();
        World {
            scenario,
            coordinator,
            now: Time::ZERO,
            queue: BTreeMap::new(),
            posted: 0,
            puppets,
            open: None,
            outcome: Outcome::default(),
        }
    }

    fn post(&mut self, after_ns: u64, input: Input) {
        self.posted += 1;
        self.queue.insert((Time(self.now.0 + after_ns), self.posted), input);
    }

    fn say(&mut self, after_ns: u64, rank: Rank, report: Report) {
        self.post(after_ns, Input::FromRank { session: SESSION, rank, incarnation: LIFE, report });
    }

    fn run(mut self) -> Outcome {
        let host = HostId::from_name("a").expect("a name");
        let ranks = self.puppets.len() as u32;
        self.post(0, Input::HostConnected { session: SESSION, host, rank_count: ranks });
        for (rank, samples) in (0..ranks).map(|rank| (Rank(rank), self.scenario.samples)).collect::<Vec<_>>() {
            self.say(MS, rank, ready(samples));
        }
        for &(at_ms, rank, _, signal) in &self.scenario.deaths.clone() {
            let status = ExitStatus::Signal(signal);
            let report =
                HostReport::RankExited { rank: Rank(rank), incarnation: LIFE, status, last_lines: String::new() };
            self.post(at_ms * MS, Input::FromHost { session: SESSION, report });
        }
        if let Some(at_ms) = self.scenario.stop_at_ms {
            self.post(at_ms * MS, Input::Stop);
        }
        for _ in 0..2_000_000 {
            if self.outcome.exit.is_some() {
                self.outcome.ended = self.now;
                return self.outcome;
            }
            self.step();
        }
        panic!("the run does not end: {:?}", self.outcome);
    }

    fn step(&mut self) {
        let next = self.queue.keys().next().map(|key| key.0);
        let tick = self.coordinator.next_deadline();
        match (next, tick) {
            (Some(at), tick) if tick.is_none_or(|tick| at <= tick) => {
                let (_, mut input) = self.queue.pop_first().expect("an input");
                self.now = at;
                if self.heed(&mut input) {
                    self.coordinator.handle(input, at);
                }
            }
            (_, Some(tick)) => {
                self.now = self.now.max(tick);
                // Ranks and relay give their signs of life while time passes.
                self.keep_alive();
                self.coordinator.tick(self.now);
            }
            (None, None) => panic!("nothing is due and the run has not ended"),
            (Some(_), None) => unreachable!("covered by the first arm"),
        }
        while let Some(output) = self.coordinator.poll() {
            self.obey(output);
        }
    }

    fn keep_alive(&mut self) {
        let report = HostReport::Heartbeat;
        self.coordinator.handle(Input::FromHost { session: SESSION, report }, self.now);
        for rank in (0..self.puppets.len() as u32).map(Rank) {
            if self.puppets[rank.0 as usize].alive {
                let report = Report::Heartbeat { step: 0 };
                let input = Input::FromRank { session: SESSION, rank, incarnation: LIFE, report };
                self.coordinator.handle(input, self.now);
            }
        }
    }

    /// Whether an input still comes to pass: the dead say nothing. What it says is as of now.
    fn heed(&mut self, input: &mut Input) -> bool {
        match input {
            Input::FromRank { rank, report, .. } => {
                let puppet = &mut self.puppets[rank.0 as usize];
                match report {
                    Report::WindowReport(report) if puppet.alive => puppet.keep(report),
                    Report::SnapshotReady { steps, ranges, .. } if *steps == 0 => {
                        (_, *steps, *ranges) = puppet.since.clone();
                    }
                    _ => {}
                }
                puppet.alive
            }
            Input::FromHost { report: HostReport::RankExited { rank, .. }, .. } => {
                std::mem::take(&mut self.puppets[rank.0 as usize].alive)
            }
            Input::Folded(folded) => self.fold(folded),
            _ => true,
        }
    }

    /// Fills in whose work is in the round. The living answer to its result a little later.
    fn fold(&mut self, folded: &mut Folded) -> bool {
        let Some(open) = self.open.as_mut().filter(|open| open.round == folded.round) else { return false };
        for entry in &open.roster {
            let puppet = &self.puppets[entry.rank.0 as usize];
            let contributes = match entry.part {
                Part::Source => true,
                Part::Contribute => puppet.since.1 > 0,
                Part::Receive => false,
            };
            let death = self.scenario.deaths.iter().find(|death| death.1 == entry.rank.0 && !puppet.alive);
            let part = match (contributes, death.map(|death| death.2)) {
                (false, _) | (true, Some(0)) => FoldedPart::None,
                (true, Some(1)) => FoldedPart::Chunks(1),
                (true, _) => FoldedPart::Whole,
            };
            folded.ranks.push((entry.rank, entry.incarnation, part));
        }
        folded.any_mass = folded.ranks.iter().any(|&(_, _, part)| part != FoldedPart::None);
        open.folded = Some(folded.ranks.clone());
        let ack = SyncAck {
            round: folded.round,
            outcome: SyncOutcome::Whole,
            consensus_digest: DIGEST,
            divergence: Some(0.01),
            pre_norm: 1.0,
            post_norm: 1.0,
            waited: Duration::from_millis(2),
            copied: Duration::from_millis(1),
        };
        for entry in open.roster.clone() {
            self.say(MS, entry.rank, Report::SyncAck(ack));
        }
        true
    }

    fn obey(&mut self, output: Output) {
        match output {
            Output::ToRank { rank, control, .. } => self.rank(rank, control),
            Output::Broadcast(control) => {
                self.root(&control);
                for rank in (0..self.puppets.len() as u32).map(Rank) {
                    self.rank(rank, control.clone());
                }
            }
            Output::Save(request) => {
                self.outcome.saved = Some(request.version);
                let result = Ok("checkpoints/v1".to_owned());
                self.post(MS, Input::Saved { version: request.version, result });
            }
            Output::Record(Body::Event(event)) => self.note(event.kind, event.reason),
            Output::Record(_) | Output::ToHost { .. } | Output::Layout(_) | Output::CloseHost { .. } => {}
            Output::End { exit } => self.outcome.exit = Some(exit),
        }
    }

    fn note(&mut self, kind: EventKind, reason: Option<flodl_wire::message::record::Reason>) {
        let text = reason.map(|reason| reason.text).unwrap_or_default();
        match kind {
            EventKind::RoundCommitted { committed, repeats, version, .. } => {
                self.outcome.told_committed += committed.iter().map(|&(_, samples)| samples).sum::<u64>();
                self.outcome.told_repeats += repeats;
                self.outcome.rounds += 1;
                self.outcome.version = Some(version);
            }
            EventKind::Quarantined { samples, .. } => self.outcome.told_quarantined += samples,
            EventKind::Death { rank, .. } => self.outcome.deaths.push((rank, text)),
            EventKind::Alert | EventKind::Stall | EventKind::RankRefused { .. } => self.outcome.sentences.push(text),
            EventKind::RunEnded { .. } => self.outcome.sentences.push(text),
            _ => {}
        }
    }

    fn rank(&mut self, rank: Rank, control: Control) {
        if !self.puppets[rank.0 as usize].alive {
            return;
        }
        match control {
            Control::SendManifest => {
                self.say(MS, rank, Report::Manifest { part: 0, parts: 1, tensors: tensors() });
            }
            Control::Window(plan) => self.window(rank, plan),
            Control::ExtendPartition { window, leases } => self.extend(rank, (window, leases)),
            Control::RequestParams { round, roster } => self.snapshot(rank, round, &roster),
            Control::RoundDone { outcome: RoundOutcome::Committed { .. }, .. } => {
                self.puppets[rank.0 as usize].since = Default::default();
            }
            Control::ExecuteEval { schedule } => {
                self.outcome.evaluated_by.push(rank);
                let outcome = Ok(Evaluation { loss: 0.1, accuracy: Some(0.9), samples: 10 });
                self.say(MS, rank, Report::EvalResult { schedule, outcome });
            }
            Control::Shutdown | Control::ShutdownWithSave { .. } => {
                self.say(MS, rank, Report::Finished { version: None, replica_digest: DIGEST });
                let status = ExitStatus::Code(0);
                let report = HostReport::RankExited { rank, incarnation: LIFE, status, last_lines: String::new() };
                self.post(2 * MS, Input::FromHost { session: SESSION, report });
            }
            _ => {}
        }
    }

    fn window(&mut self, rank: Rank, plan: WindowPlan) {
        let batch = Duration::from_millis(self.scenario.batch_ms[rank.0 as usize]);
        let batches = flodl_wire::id::samples(&plan.leases).div_ceil(u64::from(self.scenario.batch_size));
        let fits = plan.budget.map_or(u64::MAX, |budget| (budget.as_nanos() / batch.as_nanos().max(1)) as u64).max(1);
        let done = batches.min(fits).min(u64::from(plan.quota_max));
        let used = prefix(&plan.leases, done * u64::from(self.scenario.batch_size));
        let report = WindowReport {
            window: plan.window,
            epoch: plan.epoch,
            batches: done as u32,
            samples: flodl_wire::id::samples(&used),
            first: if done == 0 { Duration::ZERO } else { batch },
            rest: batch * (done.saturating_sub(1)) as u32,
            used,
            replica_digest: None,
            ..WindowReport::default()
        };
        self.puppets[rank.0 as usize].window = Some(plan);
        self.say(batch.as_nanos() as u64 * done + 1000, rank, Report::WindowReport(Box::new(report)));
    }

    /// More of the window it is in: its report, which is on its way, gets later and longer.
    fn extend(&mut self, rank: Rank, (window, leases): (flodl_wire::WindowId, Vec<Range>)) {
        let mine = |input: &Input| match input {
            Input::FromRank { rank: from, report: Report::WindowReport(report), .. } => {
                *from == rank && report.window == window
            }
            _ => false,
        };
        let Some(key) = self.queue.iter().find(|(_, input)| mine(input)).map(|(key, _)| *key) else { return };
        let Some(mut plan) = self.puppets[rank.0 as usize].window.clone() else { return };
        self.queue.remove(&key);
        plan.leases.extend(leases);
        self.window(rank, plan);
    }

    /// Ends a window that is open, then says what is in the snapshot.
    fn snapshot(&mut self, rank: Rank, round: Round, roster: &[RosterEntry]) {
        let Some(entry) = roster.iter().find(|entry| entry.rank == rank) else { return };
        let pending = self.queue.iter().find_map(|(key, input)| match input {
            Input::FromRank { rank: from, report: Report::WindowReport(_), .. } if *from == rank => Some(*key),
            _ => None,
        });
        if let Some(Input::FromRank { report: Report::WindowReport(mut report), .. }) =
            pending.and_then(|key| self.queue.remove(&key))
        {
            // A stop in mid-window: half of its batches are done.
            report.batches /= 2;
            report.used = prefix(&report.used, u64::from(report.batches) * u64::from(self.scenario.batch_size));
            report.samples = flodl_wire::id::samples(&report.used);
            self.say(MS, rank, Report::WindowReport(report));
        }
        let steps = u64::from(entry.part == Part::Source);
        self.say(2 * MS, rank, Report::SnapshotReady { round, steps, ranges: Vec::new() });
    }

    /// The root: folds a round 5 ms after it began, with what the dead left as the scenario says.
    fn root(&mut self, control: &Control) {
        match control {
            Control::RequestParams { round, roster } => {
                self.open = Some(Open { round: *round, roster: roster.clone(), folded: None });
                let folded = Folded { round: *round, ranks: Vec::new(), digest: DIGEST, any_mass: false };
                self.post(5 * MS, Input::Folded(folded));
            }
            Control::RoundDone { outcome, .. } => {
                let open = self.open.take().expect("a round ended that had not begun");
                let folded = open.folded.expect("a round was closed before its fold");
                if matches!(outcome, RoundOutcome::Committed { .. }) {
                    self.count(&folded);
                }
            }
            _ => {}
        }
    }

    /// The independent ledger.
    fn count(&mut self, folded: &[(Rank, Incarnation, FoldedPart)]) {
        for (rank, _, part) in folded {
            let (epoch, _, ranges) = &self.puppets[rank.0 as usize].since;
            if *part == FoldedPart::Whole {
                for position in ranges.iter().flat_map(|range| range.start..range.end) {
                    *self.outcome.committed.entry((*epoch, position)).or_default() += 1;
                }
            }
        }
    }
}

impl Puppet {
    fn keep(&mut self, report: &WindowReport) {
        self.since.0 = report.epoch;
        self.since.1 += u64::from(report.batches);
        self.since.2.extend(report.used.iter().copied());
    }
}

/// The first `samples` positions of the ranges.
fn prefix(ranges: &[Range], samples: u64) -> Vec<Range> {
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

fn scenario(batch_ms: &[u64]) -> Scenario {
    Scenario {
        mode: Mode::CpuCadence,
        epochs: 3,
        batch_size: 64,
        samples: 8000,
        batch_ms: batch_ms.to_vec(),
        deaths: Vec::new(),
        stop_at_ms: None,
    }
}

/// Every sample of every epoch exactly once, by both ledgers.
fn assert_exact(outcome: &Outcome, (epochs, samples): (u64, u64)) {
    let twice: Vec<_> = outcome.committed.iter().filter(|(_, times)| **times != 1).take(5).collect();
    assert!(twice.is_empty(), "committed more than once: {twice:?}");
    let committed = outcome.committed.len() as u64;
    assert_eq!(committed + outcome.told_quarantined, epochs * samples, "{outcome:?}");
    assert_eq!(outcome.told_committed, committed);
}

#[test]
fn unequal_ranks_train_everything_once_and_end_in_order() {
    let outcome = World::new(scenario(&[8, 20, 32])).run();
    assert_exact(&outcome, (3, 8000));
    assert_eq!((outcome.exit, outcome.told_repeats), (Some(0), 0));
    assert_eq!(outcome.evaluated_by, [Rank(0)], "the fastest evaluates");
    assert_eq!(outcome.saved, outcome.version);
    assert_eq!(outcome.sentences, [String::new()], "nothing to complain of");
}

#[test]
fn three_unequal_ranks_reach_nearly_the_sum_of_their_speeds() {
    let outcome = World::new(Scenario { epochs: 8, ..scenario(&[8, 20, 32]) }).run();
    let ideal = 1000.0 / (1000.0 / 8.0 + 1000.0 / 20.0 + 1000.0 / 32.0);
    let fraction = ideal / outcome.ended.as_secs_f64();
    assert!(fraction > 0.9, "fraction of the ceiling {fraction:.3}, rounds {}", outcome.rounds);
}

#[test]
fn world_size_one_sync_and_odd_sizes() {
    for (mode, batch_ms, samples, batch_size) in [
        (Mode::CpuCadence, vec![10], 1000, 64),
        (Mode::CpuSync, vec![10], 130, 64),
        (Mode::CpuSync, vec![8, 20, 32], 1009, 17),
        (Mode::CpuCadence, vec![8, 20, 32, 9, 11], 1009, 17),
        (Mode::CpuCadence, vec![8, 20, 32], 1, 64),
        (Mode::CpuCadence, vec![8, 20, 32], 65, 64),
        (Mode::CpuCadence, vec![1, 64], 100, 1),
    ] {
        let scenario = Scenario { mode, samples, batch_size, epochs: 2, ..scenario(&batch_ms) };
        let outcome = World::new(scenario.clone()).run();
        assert_exact(&outcome, (2, samples));
        assert_eq!(outcome.exit, Some(0), "{scenario:?}");
    }
}

#[test]
fn a_killed_rank_is_named_and_its_samples_are_trained_by_others() {
    let outcome = World::new(Scenario { deaths: vec![(900, 1, 0, 9)], ..scenario(&[8, 20, 32]) }).run();
    assert_exact(&outcome, (3, 8000));
    assert_eq!(outcome.exit, Some(3));
    assert_eq!(outcome.deaths, [(Rank(1), "its process was killed by signal 9 (SIGKILL)".to_owned())]);
}

#[test]
fn the_last_ranks_end_decides_the_exit_and_what_there_is_gets_saved() {
    for (signal, exit) in [(9, 4), (15, 4), (11, 1), (6, 1)] {
        let deaths = vec![(500, 0, 0, 9), (600, 1, 0, signal)];
        let outcome = World::new(Scenario { deaths, ..scenario(&[8, 20]) }).run();
        assert_eq!(outcome.exit, Some(exit), "signal {signal}");
        assert!(outcome.saved.is_some());
    }
}

#[test]
fn a_source_that_dies_in_round_0_is_replaced() {
    let outcome = World::new(Scenario { deaths: vec![(4, 0, 1, 9)], ..scenario(&[8, 20, 32]) }).run();
    assert_exact(&outcome, (3, 8000));
    assert_eq!((outcome.exit, outcome.deaths.len()), (Some(3), 1));
}

#[test]
fn a_stop_averages_evaluates_saves_and_says_so() {
    let outcome = World::new(Scenario { stop_at_ms: Some(700), ..scenario(&[8, 20, 32]) }).run();
    assert_eq!(outcome.exit, Some(4));
    assert_eq!(outcome.saved, outcome.version);
    assert_eq!(outcome.evaluated_by.len(), 1);
    assert!(outcome.ended < Time(1_000 * MS), "{:?}", outcome.ended);
    assert!(outcome.committed.values().all(|times| *times == 1));
    assert_eq!(outcome.committed.len() as u64, outcome.told_committed);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Deaths at any moment, in any number, however much of the dead ranks' last contribution was folded.
    #[test]
    fn d1_no_death_loses_a_sample_or_counts_one_twice(
        batch_ms in prop::collection::vec(1u64..40, 1..6),
        samples in 1u64..1500,
        batch_size in 1u32..80,
        deaths in prop::collection::vec((0u64..1500, 0u32..6, 0u8..3, prop::sample::select(vec![9, 11])), 0..5),
        sync in any::<bool>(),
    ) {
        let ranks = batch_ms.len() as u32;
        let deaths: Vec<_> = deaths.into_iter().filter(|death| death.1 < ranks).collect();
        let mode = if sync { Mode::CpuSync } else { Mode::CpuCadence };
        let scenario = Scenario { mode, epochs: 2, batch_size, samples, batch_ms, deaths, stop_at_ms: None };
        let outcome = World::new(scenario).run();
        prop_assert!(outcome.committed.values().all(|times| *times == 1));
        prop_assert_eq!(outcome.committed.len() as u64, outcome.told_committed);
        match outcome.exit {
            Some(0 | 3) => assert_exact(&outcome, (2, samples)),
            exit => prop_assert_eq!(outcome.deaths.len() as u32, ranks, "{:?} with ranks left", exit),
        }
    }
}
