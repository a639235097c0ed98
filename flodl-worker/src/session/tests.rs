//! A session alone, with a driver that answers its orders: what it says, in which order, and that no message makes it lose a
//! position or panic.

use super::*;
use crate::trainee::StepOutcome;
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::join::{Admit, DatasetInfo, Dtype, LayoutSizes, Section, TrainerSettings};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::{SyncOutcome, WindowReport};
use flodl_wire::{Epoch, Range, RunId, SessionId};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(10);
const EPOCH_LEN: u64 = 1000;
const CHUNKS: u32 = 3;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn range(start: u64, end: u64) -> Range {
    Range { start, end }
}

fn identity() -> Identity {
    let layout = LayoutSizes { parameters: 4, buffers: 0, integers: 0 };
    let spec = |name: usize| TensorSpec {
        name: name.to_string(),
        dtype: Dtype::F32,
        shape: vec![1],
        section: Section::Parameters,
    };
    let ready = Ready {
        manifest_digest: [1; 32],
        layout,
        dataset: DatasetInfo { len: EPOCH_LEN, signature: [2; 32] },
        trainer: TrainerSettings::default(),
        device: "cpu".to_owned(),
        memory: None,
        libraries: String::new(),
    };
    Identity { rank: Rank(2), incarnation: Incarnation(1), ready, manifest: (0..2500).map(spec).collect() }
}

fn run_config() -> RunConfig {
    RunConfig {
        run_id: RunId([0; 16]),
        world_size: 3,
        mode: "cpu-cadence".to_owned(),
        epochs: 5,
        batch_size: 10,
        seed: 1,
        dataset_len: EPOCH_LEN,
        epoch_len: EPOCH_LEN,
        layout: identity().ready.layout,
        patience: PATIENCE,
        emulation: None,
    }
}

fn window(window: u64, leases: &[Range]) -> WindowPlan {
    WindowPlan {
        window: WindowId(window),
        epoch: Epoch(0),
        leases: leases.to_vec(),
        quota: 10,
        quota_max: 10,
        budget: None,
        global_step: 100,
        quota_sum: 30,
    }
}

fn request(round: u64, part: Part) -> Control {
    let entry = |rank, incarnation| RosterEntry {
        rank: Rank(rank),
        incarnation: Incarnation(incarnation),
        session: SessionId(1),
        part,
    };
    Control::RequestParams { round: Round(round), roster: vec![entry(0, 1), entry(2, 1)] }
}

fn committed(round: u64, version: u64) -> Control {
    let outcome = RoundOutcome::Committed { version: Version(version) };
    Control::RoundDone { round: Round(round), outcome, next: Next::Window }
}

fn nothing(round: u64) -> Control {
    Control::RoundDone { round: Round(round), outcome: RoundOutcome::Nothing, next: Next::Window }
}

/// Answers orders as a replica would, and writes down what the session did.
struct Driver {
    session: Session,
    now: Time,
    /// What the next batches take; 10 ms after them.
    batch_times: VecDeque<Duration>,
    /// Comes in while the nth batch from now is trained.
    during_batch: Vec<(usize, Control)>,
    batches: usize,
    finite: bool,
    /// Results come whole as soon as the contribution is out.
    results: bool,
    log: Vec<String>,
    reports: Vec<Report>,
    trained: Vec<Range>,
    end: Option<End>,
}

impl Driver {
    fn new() -> Driver {
        let mut driver = Driver {
            session: Session::new(identity(), PATIENCE, Time::ZERO),
            now: Time::ZERO,
            batch_times: VecDeque::new(),
            during_batch: Vec::new(),
            batches: 0,
            finite: true,
            results: true,
            log: Vec::new(),
            reports: Vec::new(),
            trained: Vec::new(),
            end: None,
        };
        driver.drain();
        driver
    }

    /// Admitted, and holding version 0.
    fn formed() -> Driver {
        let mut driver = Driver::new();
        driver.order(Control::Admitted(Box::new(run_config())));
        driver.order(request(0, Part::Receive));
        driver.order(committed(0, 0));
        assert_eq!(driver.session.version(), Some(Version(0)));
        driver.log.clear();
        driver.reports.clear();
        driver
    }

    fn order(&mut self, message: Control) {
        self.give(Input::Control(message));
    }

    fn give(&mut self, input: Input) {
        self.session.handle(input, self.now);
        self.drain();
    }

    fn wait(&mut self, time: Duration) {
        self.now = self.now.plus(time);
    }

    fn drain(&mut self) {
        while let Some(output) = self.session.poll() {
            assert_eq!(self.end, None, "nothing comes after the end: {output:?}");
            self.log.push(describe(&output));
            let answer = match output {
                Output::Report(report) => {
                    self.reports.push(report);
                    continue;
                }
                Output::Forget { .. } => continue,
                Output::End(end) => {
                    self.end = Some(end);
                    continue;
                }
                Output::Train(order) => self.train(&order),
                Output::Snapshot { round } => {
                    Input::SnapshotTaken(SnapshotTaken { round, finite: self.finite, took: ms(1) })
                }
                Output::Contribute { round, .. } => {
                    self.session.handle(Input::Contributed { round, took: ms(2) }, self.now);
                    if self.results { whole(round) } else { continue }
                }
                Output::Apply { .. } => Input::Applied { digest: 77 },
                Output::Evaluate { schedule } => Input::Evaluated { schedule, outcome: Err("no".to_owned()) },
                Output::Digest => Input::Digested { digest: 78 },
            };
            self.session.handle(answer, self.now);
        }
    }

    fn train(&mut self, order: &BatchOrder) -> Input {
        self.trained.extend(&order.positions);
        for (_, message) in self.during_batch.extract_if(.., |(batch, _)| *batch == self.batches).collect::<Vec<_>>() {
            self.session.handle(Input::Control(message), self.now);
        }
        self.batches += 1;
        let took = self.batch_times.pop_front().unwrap_or(ms(10));
        self.now = self.now.plus(took);
        let samples = flodl_wire::id::samples(&order.positions);
        let outcome = StepOutcome { loss_sum: 2.0 * samples as f64, samples };
        Input::Trained(Trained { outcome, lr: 0.5, data_wait: ms(1) })
    }

    fn window_reports(&self) -> Vec<&WindowReport> {
        self.reports
            .iter()
            .filter_map(|report| match report {
                Report::WindowReport(report) => Some(&**report),
                _ => None,
            })
            .collect()
    }

    fn failure(&self) -> String {
        match &self.end {
            Some(End::Failed(failure)) => failure.to_string(),
            other => panic!("no failure: {other:?}"),
        }
    }
}

fn whole(round: Round) -> Input {
    Input::ResultWhole(ResultWhole { round, digest: 99, divergence: 0.5, pre_norm: 2.0, post_norm: 1.0 })
}

/// One line an output.
fn describe(output: &Output) -> String {
    match output {
        Output::Report(Report::WindowReport(report)) => format!("report {} batches", report.batches),
        Output::Report(Report::SnapshotReady { steps, ranges, .. }) => {
            format!("snapshot of {steps} steps, {} samples", flodl_wire::id::samples(ranges))
        }
        Output::Report(Report::SyncAck(ack)) => format!("ack {:?}", ack.outcome),
        Output::Report(Report::Failed { .. }) => "failed".to_owned(),
        Output::Report(Report::Ready(_)) => "ready".to_owned(),
        Output::Report(Report::EvalResult { schedule, .. }) => format!("evaluated {schedule}"),
        Output::Report(Report::Finished { version, .. }) => format!("finished with {version:?}"),
        Output::Report(report) => format!("{report:?}"),
        Output::Train(order) => {
            format!("train {} at {}", flodl_wire::id::samples(&order.positions), order.lr_position)
        }
        Output::Snapshot { round } => format!("take {round}"),
        Output::Contribute { what: Contribution::Chunks { mass }, .. } => format!("contribute {mass}"),
        Output::Contribute { what: Contribution::Absent(why), .. } => format!("absent {why:?}"),
        Output::Apply { reset_optimizer, .. } => format!("apply, reset {reset_optimizer}"),
        Output::Forget { round } => format!("forget {round}"),
        Output::Evaluate { schedule } => format!("evaluate {schedule}"),
        Output::Digest => "digest".to_owned(),
        Output::End(End::Failed(_)) => "end in failure".to_owned(),
        Output::End(end) => format!("{end:?}"),
    }
}

#[test]
fn a_rank_lives_from_ready_to_finished() {
    let mut driver = Driver::new();
    driver.order(Control::Admitted(Box::new(run_config())));
    driver.order(request(0, Part::Source));
    driver.order(committed(0, 0));
    driver.order(Control::Window(window(1, &[range(0, 15), range(40, 48)])));
    driver.order(request(1, Part::Contribute));
    let next = Next::Final;
    let outcome = RoundOutcome::Committed { version: Version(1) };
    driver.order(Control::RoundDone { round: Round(1), outcome, next });
    driver.order(Control::ExecuteEval { schedule: 5 });
    driver.order(Control::Shutdown);
    driver.give(Input::Lost(Lost::Closed { channel: "control" }));
    assert_eq!(
        driver.log,
        [
            "ready",
            "take round 0",
            "snapshot of 0 steps, 0 samples",
            "contribute 1",
            "ack Whole",
            "apply, reset false",
            "train 10 at 100",
            "train 10 at 103",
            "train 3 at 106",
            "report 3 batches",
            "take round 1",
            "snapshot of 3 steps, 23 samples",
            "contribute 3",
            "ack Whole",
            "apply, reset false",
            "evaluate 5",
            "evaluated 5",
            "digest",
            "finished with Some(Version(1))",
            "Finished { version: Some(Version(1)) }",
        ]
    );
}

#[test]
fn a_window_report_holds_the_figures_of_its_batches() {
    let mut driver = Driver::formed();
    driver.wait(ms(50));
    driver.batch_times = [ms(20), ms(7), ms(9)].into();
    driver.order(Control::Window(window(1, &[range(10, 35)])));
    driver.wait(ms(4));
    driver.order(request(1, Part::Contribute));
    let expect = WindowReport {
        window: WindowId(1),
        epoch: Epoch(0),
        batches: 3,
        samples: 25,
        first: ms(20),
        rest: ms(16),
        data_wait: ms(3),
        idle: ms(50),
        loss_sum: 50.0,
        loss_count: 25,
        lr: 0.5,
        used: vec![range(10, 35)],
        replica_digest: Some((Version(0), 77)),
        scalars: Vec::new(),
    };
    assert_eq!(driver.window_reports(), [&expect]);
    let ack = driver.reports.iter().find_map(|report| match report {
        Report::SyncAck(ack) => Some(*ack),
        _ => None,
    });
    let ack = ack.unwrap();
    assert_eq!((ack.waited, ack.copied, ack.divergence), (ms(4), ms(3), Some(0.5)));
    assert_eq!((ack.consensus_digest, ack.pre_norm, ack.post_norm), (99, 2.0, 1.0));

    driver.order(committed(1, 1));
    driver.order(Control::Window(window(2, &[range(35, 40)])));
    assert_eq!(driver.window_reports()[1].idle, ms(4));
    driver.order(Control::Window(window(3, &[range(40, 45)])));
    let digests: Vec<_> = driver.window_reports().iter().map(|report| report.replica_digest).collect();
    assert_eq!(digests, [Some((Version(0), 77)), Some((Version(1), 77)), None], "each version is reported once");
}

#[test]
fn windows_end_where_they_must() {
    let budget = |budget: u64| WindowPlan { budget: Some(ms(budget)), ..window(1, &[range(0, 500)]) };
    for (name, plan, during, expect) in [
        ("the lease", window(1, &[range(0, 30)]), None, 3),
        ("the largest quota", WindowPlan { quota: 2, quota_max: 4, ..window(1, &[range(0, 500)]) }, None, 4),
        ("the budget, at the nearest batch", budget(34), None, 3),
        ("the budget, not before the first batch", budget(0), None, 1),
        ("a request", window(1, &[range(0, 500)]), Some(request(1, Part::Contribute)), 3),
        ("more ranges", window(1, &[range(0, 30)]), Some(extend(1, &[range(90, 96)])), 4),
        ("ranges of another window", window(1, &[range(0, 30)]), Some(extend(0, &[range(90, 96)])), 3),
        ("the shutdown", window(1, &[range(0, 500)]), Some(Control::Shutdown), 3),
        ("nothing to train", window(1, &[]), None, 0),
        ("empty ranges", window(1, &[range(7, 7)]), None, 0),
    ] {
        let mut driver = Driver::formed();
        driver.during_batch = during.map(|message| (2, message)).into_iter().collect();
        driver.order(Control::Window(plan));
        let reports = driver.window_reports();
        assert_eq!(reports.iter().map(|report| report.batches).collect::<Vec<_>>(), [expect], "{name}");
        assert_eq!(reports[0].used.iter().map(Range::len).sum::<u64>(), reports[0].samples, "{name}");
    }
}

fn extend(window: u64, leases: &[Range]) -> Control {
    Control::ExtendPartition { window: WindowId(window), leases: leases.to_vec() }
}

#[test]
fn a_request_in_mid_window_meets_the_rank_at_a_batch_boundary() {
    let mut driver = Driver::formed();
    driver.during_batch = vec![(1, request(1, Part::Contribute))];
    driver.order(Control::Window(window(1, &[range(0, 90)])));
    let expect = ["train 10 at 100", "train 10 at 103", "report 2 batches", "take round 1"];
    assert_eq!(driver.log[..4], expect);
    assert_eq!(driver.log[4], "snapshot of 2 steps, 20 samples");
}

#[test]
fn long_windows_tell_their_progress() {
    let mut driver = Driver::formed();
    driver.batch_times = [ms(600), ms(600), ms(600), ms(1200)].into();
    driver.order(Control::Window(window(1, &[range(0, 50)])));
    let told: Vec<_> = driver.log.iter().filter(|line| line.starts_with("Progress")).collect();
    assert_eq!(
        told,
        [
            "Progress { window: WindowId(1), batches: 2, samples: 20 }",
            "Progress { window: WindowId(1), batches: 4, samples: 40 }"
        ]
    );
}

#[test]
fn an_evaluation_waits_for_the_window() {
    let mut driver = Driver::formed();
    driver.during_batch = vec![(0, Control::ExecuteEval { schedule: 9 })];
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    assert_eq!(driver.log[2..], ["report 2 batches", "evaluate 9", "evaluated 9"]);
}

#[test]
fn a_result_that_stays_away_makes_a_joiner() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    driver.results = false;
    driver.order(request(1, Part::Contribute));
    driver.wait(ms(6000));
    driver.give(Input::ResultGrew { round: Round(1), chunks: CHUNKS - 1 });
    driver.give(Input::Heard);
    driver.wait(PATIENCE - ms(1));
    driver.give(Input::Heard);
    driver.give(Input::Tick);
    assert!(!driver.log.iter().any(|line| line.starts_with("ack")), "a byte came within the patience");
    driver.wait(ms(1));
    assert_eq!(driver.session.next_deadline(), Some(driver.now));
    driver.give(Input::Tick);
    assert_eq!(driver.log.last().unwrap(), "ack Incomplete { from_chunk: 2 }");
    driver.give(whole(Round(1)));
    assert_eq!(driver.log.last().unwrap(), "ack Incomplete { from_chunk: 2 }", "what was answered stands");
    driver.order(committed(1, 1));
    assert_eq!(driver.session.version(), None);
    driver.results = true;
    driver.log.clear();
    driver.order(request(2, Part::Receive));
    driver.order(committed(2, 2));
    assert_eq!(
        driver.log,
        ["take round 2", "snapshot of 0 steps, 0 samples", "absent Joining", "ack Whole", "apply, reset false"]
    );
    assert_eq!(driver.session.version(), Some(Version(2)));
}

#[test]
fn a_round_with_nothing_keeps_the_steps_and_not_the_ranges() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    driver.order(request(1, Part::Contribute));
    driver.order(nothing(1));
    driver.order(request(2, Part::Contribute));
    let last = &driver.log[driver.log.len() - 3..];
    assert_eq!(last, ["snapshot of 2 steps, 0 samples", "contribute 2", "ack Whole"]);
}

#[test]
fn the_same_version_again_is_taken_again() {
    let mut driver = Driver::formed();
    driver.order(request(1, Part::Contribute));
    driver.order(committed(1, 0));
    assert_eq!(driver.log[2..], ["absent NothingTrained", "ack Whole", "apply, reset false"]);
    assert_eq!((driver.session.version(), driver.end), (Some(Version(0)), None));
}

#[test]
fn a_round_without_this_rank_is_missed() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    driver.order(Control::RequestParams { round: Round(1), roster: Vec::new() });
    driver.order(committed(1, 1));
    assert_eq!(driver.session.version(), None);
    driver.order(request(2, Part::Receive));
    assert!(driver.log.contains(&"snapshot of 0 steps, 20 samples".to_owned()), "{:?}", driver.log);
    assert!(driver.log.contains(&"absent Joining".to_owned()));
}

#[test]
fn a_replica_that_is_not_finite_takes_the_consensus_and_ends_at_the_third() {
    let mut driver = Driver::formed();
    driver.finite = false;
    driver.order(Control::Window(window(1, &[range(0, 10)])));
    driver.order(request(1, Part::Contribute));
    driver.order(committed(1, 1));
    assert_eq!(
        driver.log[3..],
        ["snapshot of 1 steps, 10 samples", "absent NonFinite", "ack Whole", "apply, reset true"]
    );
    // Alone, nothing is folded: the result is the consensus before, which is what this replica needs.
    driver.order(Control::Window(window(2, &[range(10, 20)])));
    driver.order(request(2, Part::Contribute));
    driver.order(nothing(2));
    assert_eq!(driver.log.last().unwrap(), "apply, reset true");
    assert_eq!(driver.session.version(), Some(Version(1)));
    driver.order(request(3, Part::Contribute));
    assert!(driver.failure().contains("not finite in 3 rounds in a row"), "{}", driver.failure());
    assert_eq!(driver.log[driver.log.len() - 2..], ["failed", "end in failure"]);

    let mut driver = Driver::formed();
    for (place, finite) in [false, false, true, false, false].into_iter().enumerate() {
        driver.finite = finite;
        let round = place as u64 + 1;
        driver.order(request(round, Part::Contribute));
        driver.order(committed(round, round));
    }
    assert_eq!(driver.end, None, "two in a row, twice");
}

#[test]
fn silence_and_ends_of_connections_are_told_apart() {
    let mut driver = Driver::formed();
    driver.wait(PATIENCE - ms(1));
    driver.give(Input::Tick);
    driver.order(Control::Heartbeat);
    driver.wait(PATIENCE);
    driver.give(Input::Tick);
    assert_eq!(
        driver.failure(),
        "the coordinator is lost: nothing came from the relay for 10s, which is all the patience there is"
    );
    assert_eq!(driver.log, ["end in failure"], "there is nobody to tell");
    assert_eq!(driver.session.next_deadline(), None);

    let mut driver = Driver::formed();
    driver.during_batch = vec![(1, Control::Shutdown)];
    driver.order(Control::Window(window(1, &[range(0, 90)])));
    assert_eq!(driver.end, Some(End::Finished { version: Some(Version(0)) }));

    // The end of the connection is in line behind the batch, and behind a shutdown that came before it.
    for (first, second, finished) in [(true, true, true), (false, true, false)] {
        let mut driver = Driver::formed();
        driver.session.handle(Input::Control(Control::Window(window(1, &[range(0, 90)]))), driver.now);
        if first {
            driver.session.handle(Input::Control(Control::Shutdown), driver.now);
        }
        if second {
            driver.session.handle(Input::Lost(Lost::Closed { channel: "control" }), driver.now);
        }
        driver.drain();
        assert_eq!(matches!(driver.end, Some(End::Finished { .. })), finished);
    }
}

#[test]
fn a_shutdown_is_answered_in_any_state() {
    let why = Reason::new("test", "the disk is full");
    let states: Vec<(&str, Vec<Control>)> = vec![
        ("forming", vec![]),
        ("idle", vec![Control::Admitted(Box::new(run_config()))]),
        ("in a round", vec![Control::Admitted(Box::new(run_config())), request(0, Part::Source)]),
    ];
    for (name, before) in states {
        let mut driver = Driver::new();
        before.into_iter().for_each(|message| driver.order(message));
        driver.order(Control::ShutdownWithSave { why: why.clone() });
        let version = None;
        assert_eq!(driver.end, Some(End::Stopped { why: "the disk is full".to_owned(), version }), "{name}");
        assert!(
            matches!(driver.reports.last(), Some(Report::Finished { version: None, replica_digest: 78 })),
            "{name}"
        );
    }
}

#[test]
fn the_manifest_is_told_in_parts() {
    let mut driver = Driver::new();
    driver.order(Control::SendManifest);
    let parts: Vec<(u32, u32, usize)> = driver
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::Manifest { part, parts, tensors } => Some((*part, *parts, tensors.len())),
            _ => None,
        })
        .collect();
    assert_eq!(parts, [(0, 3, 1024), (1, 3, 1024), (2, 3, 452)]);
}

#[test]
fn the_end_of_others_is_not_ours() {
    let mut driver = Driver::formed();
    let why = Reason::new("x", "gone");
    for (rank, incarnation) in [(1, 1), (2, 0), (2, 2)] {
        let (rank, incarnation) = (Rank(rank), Incarnation(incarnation));
        driver.order(Control::DeclareDead { rank, incarnation, why: why.clone() });
        driver.order(Control::Fenced { incarnation: Incarnation(7) });
    }
    assert_eq!(driver.end, None);
    driver.order(Control::DeclareDead { rank: Rank(2), incarnation: Incarnation(1), why });
    assert_eq!(driver.failure(), "the coordinator declared this rank dead (gone); its samples go to others");
    let mut driver = Driver::formed();
    driver.order(Control::Fenced { incarnation: Incarnation(1) });
    assert!(driver.failure().starts_with("incarnation 1 of this rank is over"), "{}", driver.failure());
}

/// A driver in some state.
type Start = fn() -> Driver;

#[test]
fn what_cannot_be_obeyed_is_named() {
    let fresh: Start = Driver::new;
    let formed: Start = Driver::formed;
    let acked: Start = || {
        let mut driver = Driver::formed();
        driver.order(request(1, Part::Contribute));
        driver.order(committed(1, 1));
        driver.order(request(2, Part::Contribute));
        driver
    };
    let settings = |change: fn(&mut RunConfig)| {
        let mut run = run_config();
        change(&mut run);
        Control::Admitted(Box::new(run))
    };
    let plan = |change: fn(&mut WindowPlan)| {
        let mut plan = window(1, &[range(0, 10)]);
        change(&mut plan);
        Control::Window(plan)
    };
    let cases: Vec<(Start, Control, &str)> = vec![
        (
            formed,
            Control::Admit(Admit { session: SessionId(1), ids: vec![], world_size: 1 }),
            "Admit is a message for relays",
        ),
        (formed, settings(|_| {}), "Admitted came while this rank had nothing to do"),
        (fresh, settings(|run| run.batch_size = 0), "the run's settings are impossible: batch_size is 0"),
        (fresh, settings(|run| run.epoch_len = 0), "the run's settings are impossible: epoch_len is 0"),
        (fresh, settings(|run| run.patience = ms(0)), "the run's settings are impossible: patience is 0"),
        (fresh, settings(|run| run.dataset_len = 999), "the run's dataset length is 999, this rank's is 1000"),
        (fresh, settings(|run| run.layout.parameters = 5), "the run's layout is LayoutSizes { parameters: 5"),
        (fresh, plan(|_| {}), "Window came while this rank was not admitted yet"),
        (fresh, request(0, Part::Source), "RequestParams came while this rank was not admitted yet"),
        (fresh, committed(0, 0), "RoundDone came while this rank was not admitted yet"),
        (fresh, extend(0, &[]), "ExtendPartition came while this rank was not admitted yet"),
        (fresh, Control::ExecuteEval { schedule: 0 }, "ExecuteEval came while this rank was not admitted yet"),
        (acked, plan(|_| {}), "Window came while this rank waited for a round's end"),
        (acked, request(3, Part::Contribute), "RequestParams came while this rank waited for a round's end"),
        (acked, committed(3, 2), "the end of round 3 came while Some(Round(2)) is open here"),
        (acked, committed(2, 0), "version 0 was committed after version 1"),
        (formed, committed(4, 4), "the end of round 4 came while None is open here"),
        (formed, request(0, Part::Source), "round 0 was ordered after round 0"),
        (formed, plan(|plan| plan.epoch = Epoch(5)), "window 1 is of epoch 5, the run has 5"),
        (formed, plan(|plan| plan.quota = 0), "window 1 plans 0 batches and allows 10"),
        (formed, plan(|plan| plan.quota_max = 9), "window 1 plans 10 batches and allows 9"),
        (
            formed,
            plan(|plan| plan.leases = vec![range(990, 1001)]),
            "window 1 leases positions 990..1001 of an epoch of 1000",
        ),
        (formed, plan(|plan| plan.leases = vec![range(9, 3)]), "window 1 leases positions 9..3 of an epoch of 1000"),
        (
            formed,
            plan(|plan| plan.leases = vec![range(500, 510), range(0, 10), range(509, 600)]),
            "window 1 leases positions 509..600 twice",
        ),
    ];
    for (driver, message, expect) in cases {
        let mut driver = driver();
        driver.order(message.clone());
        let error = driver.failure();
        let expect = format!("the coordinator sent what cannot be obeyed: {expect}");
        assert!(error.starts_with(&expect), "{message:?}:\n{error}\n{expect}");
        assert!(matches!(driver.reports.last(), Some(Report::Failed { error: told }) if *told == error));
    }
}

#[test]
fn windows_are_only_ordered_forwards_and_never_after_the_last() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(7, &[])));
    driver.order(Control::Window(window(7, &[])));
    assert!(driver.failure().ends_with("window 7 was ordered after window 7"), "{}", driver.failure());

    let mut driver = Driver::formed();
    driver.order(request(1, Part::Contribute));
    let outcome = RoundOutcome::Committed { version: Version(1) };
    driver.order(Control::RoundDone { round: Round(1), outcome, next: Next::Final });
    driver.order(Control::Window(window(8, &[])));
    assert!(driver.failure().contains("Window came while"), "{}", driver.failure());
}

#[test]
fn a_lease_may_not_be_extended_over_itself() {
    let mut driver = Driver::formed();
    driver.during_batch = vec![(1, extend(1, &[range(5, 6)]))];
    driver.order(Control::Window(window(1, &[range(0, 30)])));
    assert!(driver.failure().ends_with("window 1 leases positions 5..6 twice"), "{}", driver.failure());
}

#[test]
fn messages_do_not_pile_up_without_bound() {
    let mut session = Driver::formed().session;
    session.handle(Input::Control(Control::Window(window(1, &[range(0, 30)]))), Time::ZERO);
    assert!(matches!(session.poll(), Some(Output::Train(_))));
    for _ in 0..=BACKLOG_MAX {
        session.handle(Input::Control(Control::ExecuteEval { schedule: 0 }), Time::ZERO);
    }
    let end = std::iter::from_fn(|| session.poll()).last();
    let expect = Violation::TooMany { limit: BACKLOG_MAX };
    assert_eq!(end, Some(Output::End(End::Failed(Failure::Protocol(expect)))));
}

#[test]
fn a_joiner_contributes_nothing_whatever_it_is_asked() {
    let mut driver = Driver::new();
    driver.order(Control::Admitted(Box::new(run_config())));
    driver.order(request(4, Part::Contribute));
    assert!(driver.log.contains(&format!("absent {:?}", AbsentWhy::Joining)), "{:?}", driver.log);
    assert!(driver.reports.iter().any(|report| {
        matches!(report, Report::SyncAck(ack) if ack.outcome == SyncOutcome::Whole && ack.divergence.is_none())
    }));
}

/// What a coordinator may do next.
#[derive(Clone, Debug)]
enum Move {
    /// A window of a lease that long, in so many pieces, extended by that much at a batch, cut short by a request at another.
    Window { len: u64, pieces: u64, extend: Option<(usize, u64)>, cut: Option<usize>, budget: Option<u64> },
    /// A round, and whether it commits.
    Round { commits: bool, result: bool },
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let window = (
        0u64..60,
        1u64..4,
        prop::option::of((0usize..4, 0u64..30)),
        prop::option::of(0usize..4),
        prop::option::of(0u64..60),
    )
        .prop_map(|(len, pieces, extend, cut, budget)| Move::Window { len, pieces, extend, cut, budget });
    let round = (any::<bool>(), any::<bool>()).prop_map(|(commits, result)| Move::Round { commits, result });
    prop::collection::vec(prop_oneof![3 => window, 2 => round], 0..20)
}

/// Plays moves; every round that a cut opened is ended too.
struct Play {
    driver: Driver,
    next: u64,
    window: u64,
    round: u64,
    version: u64,
}

impl Play {
    fn lease(&mut self, len: u64, pieces: u64) -> Vec<Range> {
        let each = len.div_ceil(pieces).max(1);
        let end = (self.next + len).min(EPOCH_LEN);
        let mut leases = Vec::new();
        while self.next < end {
            let to = (self.next + each).min(end);
            leases.insert(0, range(self.next, to));
            self.next = to;
        }
        leases
    }

    fn play(&mut self, step: &Move) {
        match *step {
            Move::Window { len, pieces, extend: more, cut, budget } => {
                self.window += 1;
                let leases = self.lease(len, pieces);
                let start = self.driver.batches;
                if let Some((at, len)) = more {
                    let leases = self.lease(len, 1);
                    self.driver.during_batch.push((start + at, extend(self.window, &leases)));
                }
                if let Some(at) = cut {
                    self.driver.during_batch.push((start + at, request(self.round, Part::Contribute)));
                }
                let budget = budget.map(ms);
                self.driver.order(Control::Window(WindowPlan { budget, ..window(self.window, &leases) }));
                // What came to a batch that was never trained does not come at all.
                let asked = cut.is_some() && !self.driver.during_batch.iter().any(|(_, message)| is_request(message));
                self.driver.during_batch.clear();
                if asked {
                    self.end_round(true);
                }
            }
            Move::Round { commits, result } => {
                self.driver.results = result;
                self.driver.order(request(self.round, Part::Contribute));
                self.driver.results = true;
                self.end_round(commits);
            }
        }
    }

    fn end_round(&mut self, commits: bool) {
        self.version += u64::from(commits);
        self.driver.order(if commits { committed(self.round, self.version) } else { nothing(self.round) });
        self.round += 1;
    }
}

fn is_request(message: &Control) -> bool {
    matches!(message, Control::RequestParams { .. })
}

proptest! {
    #[test]
    fn no_order_of_legal_messages_loses_a_position(moves in moves()) {
        let mut play = Play { driver: Driver::formed(), next: 0, window: 0, round: 1, version: 0 };
        moves.iter().for_each(|step| play.play(step));
        play.driver.order(request(play.round, Part::Contribute));
        prop_assert_eq!(&play.driver.end, &None, "{:?}", play.driver.log);
        let positions = |ranges: &mut dyn Iterator<Item = &Range>| -> Vec<u64> {
            let mut all: Vec<u64> = ranges.flat_map(|range| range.start..range.end).collect();
            all.sort_unstable();
            all
        };
        let trained = positions(&mut play.driver.trained.iter());
        prop_assert!(trained.windows(2).all(|pair| pair[0] < pair[1]), "each once: {:?}", trained);
        let used = positions(&mut play.driver.window_reports().iter().flat_map(|report| &report.used));
        prop_assert_eq!(&used, &trained);
        let snapshots: Vec<&Range> = play.driver.reports.iter().flat_map(|report| match report {
            Report::SnapshotReady { ranges, .. } => &ranges[..],
            _ => &[],
        }).collect();
        prop_assert_eq!(positions(&mut snapshots.into_iter()), trained);
        let batches: u32 = play.driver.window_reports().iter().map(|report| report.batches).sum();
        prop_assert_eq!(u64::from(batches), play.driver.session.steps_ever());
    }

    #[test]
    fn no_order_of_any_messages_panics(messages in prop::collection::vec(any_message(), 0..40), ticks in any::<u64>()) {
        let mut driver = Driver::new();
        for (place, message) in messages.into_iter().enumerate() {
            if ticks >> (place % 64) & 1 == 1 {
                driver.wait(ms(700));
                driver.give(Input::Tick);
            }
            driver.order(message);
        }
        prop_assert_eq!(driver.session.ended(), driver.end.is_some());
    }
}

fn any_message() -> impl Strategy<Value = Control> {
    let small = || 0u64..4;
    let part = prop_oneof![Just(Part::Source), Just(Part::Contribute), Just(Part::Receive)];
    let lease = prop::collection::vec((0u64..1100, 0u64..1100).prop_map(|(a, b)| range(a, b)), 0..3);
    let honest = (0u64..900, 0u64..60).prop_map(|(start, len)| vec![range(start, start + len)]);
    let lease = prop_oneof![lease, honest];
    let extended = lease.clone();
    prop_oneof![
        4 => Just(Control::Admitted(Box::new(run_config()))),
        4 => (small(), lease, 0u32..12).prop_map(|(id, leases, quota)| {
            Control::Window(WindowPlan { quota, ..window(id, &leases) })
        }),
        2 => (small(), extended).prop_map(|(id, leases)| extend(id, &leases)),
        4 => (small(), part).prop_map(|(round, part)| request(round, part)),
        4 => (small(), small()).prop_map(|(round, version)| committed(round, version)),
        1 => small().prop_map(nothing),
        1 => Just(Control::ExecuteEval { schedule: 1 }),
        1 => Just(Control::SendManifest),
        1 => Just(Control::Heartbeat),
        1 => Just(Control::Shutdown),
    ]
}
