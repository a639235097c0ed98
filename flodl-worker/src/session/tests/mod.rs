//! A session alone, with a driver that answers its orders: what it says, in which order, and that no message makes it lose a
//! position or panic.

use super::*;
use crate::trainee::StepOutcome;
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::join::{Admit, DatasetInfo, Dtype, LayoutSizes, Section, TrainerSettings};
use flodl_wire::message::nccl::{NcclAck, NcclId, NewSession, Standing};
use flodl_wire::message::record::{EpochMetrics, Reason};
use flodl_wire::message::report::{Evaluation, Intent, Received, SyncOutcome, WindowReport};
use flodl_wire::{Epoch, NcclSession, Range, RunId, SessionId};

mod hostile;
mod life;
mod nccl;
mod order;
mod overlap;

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
        step: None,
        scalars: Vec::new(),
        saves: false,
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
        deterministic: false,
        pass_len: EPOCH_LEN,
        epoch_splits: 1,
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
        overlap: None,
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
    /// Comes in during the next evaluation.
    during_evaluation: Vec<Control>,
    batches: usize,
    finite: bool,
    /// Results come whole as soon as the contribution is out.
    results: bool,
    log: Vec<String>,
    reports: Vec<Report>,
    trained: Vec<Range>,
    warm_ups: Vec<Option<WarmUp>>,
    end: Option<End>,
}

impl Driver {
    fn new() -> Driver {
        let mut driver = Driver {
            session: Session::new(identity(), PATIENCE, Time::ZERO),
            now: Time::ZERO,
            batch_times: VecDeque::new(),
            during_batch: Vec::new(),
            during_evaluation: Vec::new(),
            batches: 0,
            finite: true,
            results: true,
            log: Vec::new(),
            reports: Vec::new(),
            trained: Vec::new(),
            warm_ups: Vec::new(),
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
                Output::Forget { .. }
                | Output::MakeNcclId { .. }
                | Output::OpenSession(_)
                | Output::Collective(_)
                | Output::AbortCollective { .. }
                | Output::PeerDied { .. } => continue,
                Output::End(end) => {
                    self.end = Some(end);
                    continue;
                }
                Output::Train(order) => {
                    self.warm_ups.push(order.warm_up);
                    self.train(&order)
                }
                Output::Snapshot { round } | Output::Prepare { round } => {
                    Input::SnapshotTaken(SnapshotTaken { round, finite: self.finite, took: ms(1) })
                }
                Output::Contribute { round, .. } => {
                    self.session.handle(Input::Contributed { round, took: ms(2) }, self.now);
                    if self.results { whole(round) } else { continue }
                }
                Output::Apply { how: Application::InPlace, .. } => Input::Applied { digest: Some(77) },
                Output::Apply { how: Application::OnTop, .. } => Input::Applied { digest: None },
                Output::Evaluate { schedule, .. } => {
                    for message in std::mem::take(&mut self.during_evaluation) {
                        self.session.handle(Input::Control(message), self.now);
                    }
                    Input::Evaluated { schedule, outcome: Err("no".to_owned()) }
                }
                Output::Save { schedule, .. } => Input::Saved { schedule, outcome: Ok(()) },
                Output::EpochDone(_) | Output::Evaluation(_) => continue,
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
        Output::Report(Report::NcclSession { session, standing }) => format!("{session}: {standing:?}"),
        Output::Report(Report::NcclAck(NcclAck { session, ack })) => format!("ack {:?} on {session}", ack.outcome),
        Output::Report(Report::SyncAck(ack)) => match ack.outcome {
            SyncOutcome::Whole(_) => "ack Whole".to_owned(),
            incomplete => format!("ack {incomplete:?}"),
        },
        Output::Report(Report::Failed { .. }) => "failed".to_owned(),
        Output::Report(Report::Ready(_)) => "ready".to_owned(),
        Output::Report(Report::EvalResult { schedule, .. }) => format!("evaluated {schedule}"),
        Output::Report(Report::Finished { version, .. }) => format!("finished with {version:?}"),
        Output::Report(report) => format!("{report:?}"),
        Output::Train(order) => {
            format!("train {} at {}", flodl_wire::id::samples(&order.positions), order.lr_position)
        }
        Output::Snapshot { round } => format!("take {round}"),
        Output::Prepare { round } => format!("prepare {round}"),
        Output::MakeNcclId { session } => format!("make an id for {session}"),
        Output::OpenSession(part) => format!("form {} at place {}", part.session, part.place),
        Output::Collective(Collective { round, session, root, mass, again }) => {
            format!("collective of {round} on {session}, root {root:?}, mass {mass}, again {again}")
        }
        Output::AbortCollective { session } => format!("abort {session}"),
        Output::PeerDied { rank, incarnation } => format!("{incarnation} of {rank} died"),
        Output::Contribute { what: Contribution::Chunks { mass }, .. } => format!("contribute {mass}"),
        Output::Contribute { what: Contribution::Absent(why), .. } => format!("absent {why:?}"),
        Output::Apply { how: Application::OnTop, .. } => "apply on top".to_owned(),
        Output::Apply { reset_optimizer, .. } => format!("apply, reset {reset_optimizer}"),
        Output::Forget { round } => format!("forget {round}"),
        Output::Evaluate { schedule, aside: true } => format!("evaluate {schedule} aside"),
        Output::Evaluate { schedule, .. } => format!("evaluate {schedule}"),
        Output::Save { schedule, version, aside: true } => format!("save {version} by {schedule} aside"),
        Output::Save { schedule, version, .. } => format!("save {version} by {schedule}"),
        Output::EpochDone(metrics) => format!("told of {}", metrics.epoch),
        Output::Evaluation(found) => format!("told of the evaluation of {}", found.version),
        Output::Digest => "digest".to_owned(),
        Output::End(End::Failed(_)) => "end in failure".to_owned(),
        Output::End(end) => format!("{end:?}"),
    }
}

fn extend(window: u64, leases: &[Range]) -> Control {
    Control::ExtendPartition { window: WindowId(window), leases: leases.to_vec() }
}
