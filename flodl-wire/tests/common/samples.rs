//! One or more messages of every variant, with every nested variant somewhere in them.

use core::time::Duration;
use flodl_wire::message::commit::{CommitHead, CommitRecord, EpochRecord, LifeRecord, Moment, Standing as Stands};
use flodl_wire::message::control::{Next, Overlap, Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::join::{
    Admit, DatasetInfo, Dtype, Emulation, LayoutSizes, Ready, Reduction, RunConfig, ScalarSpec, Section, TensorSpec,
    TrainerSettings,
};
use flodl_wire::message::nccl::{NcclAck, NcclId, NewSession, Standing};
use flodl_wire::message::record::{Divergence, EpochMetrics, RankEpoch, Reason};
use flodl_wire::message::report::{
    Evaluation, ExitStatus, Intent, Pace, RankState, Received, SyncAck, SyncOutcome, WindowReport,
};
use flodl_wire::message::{Control, Data, HostReport, Report};
use flodl_wire::{Epoch, Incarnation, NcclSession, Range, Rank, Round, RunId, SessionId, Version, WindowId};

/// A function that names a value's variant (a variant it does not know does not compile) and the list of all names.
macro_rules! variants {
    ($name:ident, $all:ident, $type:ident: $($variant:ident)*) => {
        pub fn $name(value: &$type) -> &'static str {
            match value {
                $($type::$variant { .. } => stringify!($variant),)*
            }
        }
        pub const $all: &[&str] = &[$(stringify!($variant)),*];
    };
}

variants!(control_name, CONTROL_NAMES, Control: Admit Admitted Refused SendManifest Window ExtendPartition RequestParams
    RoundDone DeclareDead ExecuteEval Heartbeat Fenced Shutdown ShutdownWithSave Restart ControllerLost ControllerBack
    ExecuteCheckpoint EpochAggregated EvalBroadcast Commit CommitPart SendConsensus Dismissed PrepareSync
    RequestNewNcclId NewNcclSession SyncNow);
variants!(report_name, REPORT_NAMES, Report: Ready Manifest WindowReport Progress SnapshotReady SyncAck Heartbeat EvalResult
    Finished Failed Intent CheckpointResult NewNcclIdGenerated NcclSession NcclAck);
variants!(host_report_name, HOST_REPORT_NAMES, HostReport: RankUp RankExited RankNotStarted RankLost Waiting Heartbeat
    WillRestart Leaving RankState CommitPart Back);
variants!(data_name, DATA_NAMES, Data: Contribution Absent Dropped Consensus Holds LeftOut);
variants!(why_name, WHY_NAMES, AbsentWhy: Joining NothingTrained NonFinite Dead LinkLost Stale Empty);

pub const WHYS: [AbsentWhy; 7] = [
    AbsentWhy::Joining,
    AbsentWhy::NothingTrained,
    AbsentWhy::NonFinite,
    AbsentWhy::Dead,
    AbsentWhy::LinkLost,
    AbsentWhy::Stale,
    AbsentWhy::Empty,
];

fn reason() -> Reason {
    Reason::new("process-exited", "rank 3 ended with status 9").about([Rank(3)]).with("status", 9.0)
}

fn window_plan(leases: Vec<Range>, budget: Option<Duration>) -> WindowPlan {
    let (window, epoch, quota, quota_max) = (WindowId(12), Epoch(2), 40, 300);
    let (global_step, quota_sum) = (70_000, 96);
    let overlap = budget.map(|_| Overlap { begins: Some(Round(6)), lead: 3, late: Duration::from_secs(2) });
    WindowPlan { window, epoch, leases, quota, quota_max, budget, global_step, quota_sum, overlap }
}

fn moment() -> Moment {
    Moment { generation: 1, round: Round(5) }
}

pub fn commit(since: Option<Moment>) -> Box<CommitRecord> {
    let range = |start, end| Range { start, end };
    let standings = [Stands::Coming, Stands::InRun, Stands::Finished, Stands::Left, Stands::Refused, Stands::Lost];
    let life = |(rank, standing)| LifeRecord {
        rank: Rank(rank),
        incarnation: Incarnation(2),
        host: super::host(),
        standing,
        losses: 1,
        missing: standing == Stands::Lost,
    };
    Box::new(CommitRecord {
        head: CommitHead {
            moment: moment(),
            version: Version(5),
            digest: 0x1122_3344_5566_7788,
            is_final: false,
            window: WindowId(12),
            epoch: Epoch(2),
            global_step: 70_000,
            committed: 16_250,
            repeats: 64,
            scheduler: b"{}".to_vec(),
        },
        since,
        lives: (0..).zip(standings).map(life).collect(),
        epochs: vec![EpochRecord { epoch: Epoch(2), committed: vec![range(0, 250)], aside: vec![range(300, 364)] }],
    })
}

fn roster() -> Vec<RosterEntry> {
    [(0, Part::Source), (1, Part::Contribute), (300, Part::Receive)]
        .map(|(rank, part)| RosterEntry { rank: Rank(rank), incarnation: Incarnation(1), session: SessionId(2), part })
        .to_vec()
}

fn run_config(emulation: Option<Emulation>) -> Control {
    Control::Admitted(Box::new(RunConfig {
        run_id: super::RUN,
        world_size: 3,
        mode: "cpu-cadence".to_owned(),
        epochs: 8,
        batch_size: 64,
        seed: 0x0123_4567_89ab_cdef,
        dataset_len: 8000,
        epoch_len: 16_000,
        layout: LayoutSizes { parameters: 7850, buffers: 20, integers: 1 },
        patience: Duration::from_millis(10_500),
        emulation,
        deterministic: emulation.is_some(),
        pass_len: 31_999,
        epoch_splits: 2,
    }))
}

pub fn controls() -> Vec<Control> {
    let emulation = Emulation { step_at_least: Duration::from_millis(8), slowdown: 2.5 };
    let leases = vec![Range { start: 0, end: 250 }, Range { start: 251, end: 65_536 }];
    vec![
        Control::Admit(Admit {
            session: SessionId(7),
            ids: vec![(Rank(0), Incarnation(1)), (Rank(1), Incarnation(4))],
            world_size: 3,
        }),
        run_config(None),
        run_config(Some(emulation)),
        Control::Refused { why: Reason::new("other-model", "tensor 3 differs: 10x4 here, 10x5 there") },
        Control::SendManifest,
        Control::Window(window_plan(leases.clone(), Some(Duration::new(1, 500_000_000)))),
        Control::Window(window_plan(Vec::new(), None)),
        Control::ExtendPartition { window: WindowId(12), leases },
        Control::RequestParams { round: Round(5), roster: roster() },
        Control::RoundDone {
            round: Round(5),
            outcome: RoundOutcome::Committed { version: Version(5) },
            next: Next::Window,
        },
        Control::RoundDone { round: Round(6), outcome: RoundOutcome::Nothing, next: Next::Final },
        Control::DeclareDead { rank: Rank(3), incarnation: Incarnation(1), why: reason() },
        Control::ExecuteEval { schedule: 1 },
        Control::Heartbeat,
        Control::Fenced { incarnation: Incarnation(1) },
        Control::Shutdown,
        Control::ShutdownWithSave { why: Reason::new("ctrl-c", "stopped by Ctrl-C") },
        Control::Restart { rank: Rank(3), incarnation: Incarnation(2) },
        Control::ControllerLost,
        Control::ControllerBack,
        Control::ExecuteCheckpoint { schedule: 3, version: Version(5) },
        Control::EpochAggregated(Box::new(epoch())),
        Control::EpochAggregated(Box::default()),
        Control::EvalBroadcast { version: Version(5), rank: Rank(1), evaluation: evaluation() },
        Control::RoundDone { round: Round(7), outcome: RoundOutcome::Again, next: Next::Window },
        Control::Commit(commit(Some(Moment { generation: 0, round: Round(4) }))),
        Control::CommitPart { part: 1, parts: 3, record: commit(None) },
        Control::SendConsensus { round: Round(8), version: Version(5) },
        Control::Dismissed,
        Control::PrepareSync { round: Round(5), roster: roster() },
        Control::RequestNewNcclId { session: NcclSession(3) },
        Control::NewNcclSession(Box::new(new_session())),
        Control::SyncNow { round: Round(0), session: NcclSession(3), root: Some(0) },
        Control::SyncNow { round: Round(5), session: NcclSession(4), root: None },
    ]
}

fn nccl_id() -> NcclId {
    NcclId(core::array::from_fn(|at| at as u8))
}

fn new_session() -> NewSession {
    let members = vec![(Rank(0), Incarnation(1)), (Rank(300), Incarnation(2))];
    NewSession { session: NcclSession(3), id: nccl_id(), members }
}

fn evaluation() -> Evaluation {
    Evaluation { loss: 0.25, accuracy: Some(0.9375), samples: 2000 }
}

fn epoch() -> EpochMetrics {
    let ms = Duration::from_millis;
    let rank = RankEpoch {
        rank: Rank(1),
        batches: 100,
        committed: 6400,
        share: 0.8,
        loss: Some(0.5),
        wait: ms(70),
        data_wait: ms(3),
    };
    EpochMetrics {
        epoch: Epoch(2),
        version: Some(Version(5)),
        wall: ms(2500),
        rounds: 4,
        batches: 125,
        committed: 8000,
        repeats: 64,
        quarantined: 1,
        loss: Some(0.25),
        scalars: vec![("accuracy".to_owned(), 0.75)],
        wait: ms(70),
        reduce: ms(40),
        divergence: Some(Divergence { mean: 0.125, max: 0.5, last: 0.25 }),
        ranks: vec![rank],
    }
}

pub fn tensors() -> Vec<TensorSpec> {
    let tensor = |name: &str, dtype, shape: &[u64], section| TensorSpec {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        section,
    };
    vec![
        tensor("weight", Dtype::F32, &[10, 784], Section::Parameters),
        tensor("half", Dtype::F16, &[3], Section::Parameters),
        tensor("brain", Dtype::Bf16, &[3], Section::Parameters),
        tensor("running_mean", Dtype::F64, &[20], Section::Buffers),
        tensor("steps", Dtype::I64, &[], Section::Integers),
    ]
}

fn window_report() -> WindowReport {
    WindowReport {
        window: WindowId(12),
        epoch: Epoch(2),
        batches: 40,
        samples: 2560,
        first: Duration::from_micros(9_000),
        rest: Duration::from_micros(320_000),
        data_wait: Duration::from_micros(10),
        idle: Duration::from_micros(700),
        loss_sum: 512.25,
        loss_count: 2560,
        lr: 0.05,
        used: vec![Range { start: 0, end: 2560 }],
        replica_digest: Some((Version(4), 0xfeed_f00d_dead_beef)),
        scalars: vec![("accuracy".to_owned(), 0.5)],
    }
}

fn ready() -> Ready {
    Ready {
        manifest_digest: [0xab; 32],
        layout: LayoutSizes { parameters: 7850, buffers: 0, integers: 0 },
        dataset: DatasetInfo { len: 8000, signature: [0xcd; 32] },
        trainer: TrainerSettings { batch_size: Some(64), epochs: Some(8), augment: None },
        device: "cpu".to_owned(),
        memory: Some(8 << 30),
        libraries: "flodl 0.1.0".to_owned(),
        step: Some(Duration::from_micros(18_500)),
        scalars: [Reduction::Mean, Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Last]
            .map(|reduction| ScalarSpec { name: format!("{reduction:?}"), reduction })
            .to_vec(),
        saves: true,
    }
}

fn ack(outcome: SyncOutcome) -> SyncAck {
    let (waited, copied) = (Duration::from_micros(40), Duration::from_micros(50));
    SyncAck { round: Round(5), outcome, waited, copied }
}

fn sync_ack(outcome: SyncOutcome) -> Report {
    Report::SyncAck(ack(outcome))
}

fn received() -> Received {
    Received { digest: 0x1122_3344_5566_7788, divergence: Some(0.015625), pre_norm: 12.5, post_norm: 12.25 }
}

fn standing(standing: Standing) -> Report {
    Report::NcclSession { session: NcclSession(3), standing }
}

pub fn reports() -> Vec<Report> {
    vec![
        Report::Ready(Box::new(ready())),
        Report::Manifest { part: 0, parts: 1, tensors: tensors() },
        Report::WindowReport(Box::new(window_report())),
        Report::WindowReport(Box::default()),
        Report::Progress { window: WindowId(12), batches: 7, samples: 448 },
        Report::SnapshotReady {
            round: Round(5),
            steps: 40,
            ranges: vec![Range { start: 0, end: 2560 }],
            epoch: Epoch(2),
        },
        sync_ack(SyncOutcome::Whole(received())),
        sync_ack(SyncOutcome::Incomplete { from_chunk: 3 }),
        Report::Heartbeat { step: 123_456 },
        Report::EvalResult { schedule: 1, outcome: Ok(evaluation()) },
        Report::EvalResult { schedule: 2, outcome: Err("the test split is empty".to_owned()) },
        Report::Finished { version: Some(Version(9)), replica_digest: 0x99 },
        Report::Finished { version: None, replica_digest: 0 },
        Report::Failed { error: "loss is not finite: lower the learning rate".to_owned() },
        Report::Intent(Intent::EvalNow),
        Report::Intent(Intent::CheckpointNow),
        Report::CheckpointResult { schedule: 3, outcome: Ok(()) },
        Report::CheckpointResult { schedule: 4, outcome: Err("the disk is full".to_owned()) },
        Report::NewNcclIdGenerated { session: NcclSession(3), outcome: Ok(Box::new(nccl_id())) },
        Report::NewNcclIdGenerated { session: NcclSession(3), outcome: Err("there is no NCCL here".to_owned()) },
        standing(Standing::Begun),
        standing(Standing::Ready),
        standing(Standing::NotFormed { why: "a peer did not come".to_owned() }),
        standing(Standing::Lost { why: "unhandled system error".to_owned() }),
        Report::NcclAck(NcclAck { session: NcclSession(3), ack: ack(SyncOutcome::Whole(received())) }),
    ]
}

pub fn host_reports() -> Vec<HostReport> {
    let (rank, incarnation) = (Rank(3), Incarnation(1));
    let exited = |status| HostReport::RankExited { rank, incarnation, status, last_lines: "bye\n".to_owned() };
    vec![
        HostReport::RankUp { rank, incarnation, pid: 4711 },
        exited(ExitStatus::Code(-1)),
        exited(ExitStatus::Signal(9)),
        exited(ExitStatus::Unknown),
        HostReport::RankNotStarted { rank, incarnation, error: "no such program".to_owned() },
        HostReport::RankLost { rank, incarnation, error: "its socket closed".to_owned() },
        HostReport::Waiting { round: Round(5), rank, chunk: 2 },
        HostReport::Heartbeat,
        HostReport::WillRestart { rank, incarnation },
        HostReport::Leaving,
        HostReport::RankState(Box::new(RankState {
            rank,
            incarnation,
            window: Some(WindowId(12)),
            round: Some(Round(5)),
            round_done: false,
            admitted: true,
            words: vec![Report::WindowReport(Box::default()), sync_ack(SyncOutcome::Incomplete { from_chunk: 3 })],
            version: Some(Version(4)),
            plan: Some(Box::new(window_plan(vec![Range { start: 0, end: 250 }], None))),
            pace: Some(Pace {
                batches: 40,
                first: Duration::from_micros(9_000),
                rest: Duration::from_micros(320_000),
                data_wait: Duration::from_micros(10),
            }),
        })),
        HostReport::CommitPart { part: 0, parts: 1, record: commit(None) },
        HostReport::Back { record: Some(moment()), consensus: Some(Version(5)), result: Some(Round(6)) },
        HostReport::Back { record: None, consensus: None, result: None },
    ]
}

pub fn chunk(bytes: Vec<u8>) -> Chunk {
    Chunk { round: Round(5), version: Version(4), chunk: 2, mass: 40.5, codec: Codec::Exact, bytes: bytes.into() }
}

pub fn datas() -> Vec<Data> {
    let mut datas = vec![
        Data::Contribution(chunk(vec![1, 2, 3, 4, 0xf5, 0xf6, 0xf7, 0xf8])),
        Data::Consensus(chunk(Vec::new())),
        Data::Consensus(Chunk { mass: 0.0, ..chunk(vec![0x80; 8]) }),
    ];
    for why in WHYS {
        datas.push(Data::Absent { round: Round(5), from_chunk: 3, why });
    }
    let (rank, incarnation) = (Rank(300), Incarnation(2));
    datas.push(Data::Dropped { round: Round(5), rank, incarnation, from_chunk: 3, why: AbsentWhy::Dead });
    let (older, old) = (Codec::Bf16 { base: Version(4) }, Codec::Int8 { base: Version(3) });
    datas.push(Data::Contribution(Chunk { codec: older, ..chunk(vec![0x80, 0x3f, 0, 0]) }));
    datas.push(Data::Consensus(Chunk { codec: old, ..chunk(vec![0, 0, 0x80, 0x3f, 1, 0xff]) }));
    datas.push(Data::Holds { round: Round(5), version: Version(4), digest: 0x0123_4567_89ab_cdef });
    datas.push(Data::LeftOut { round: Round(5), from_chunk: 3, why: AbsentWhy::Stale });
    datas
}

/// A run id that is not the tests' own.
pub const OTHER_RUN: RunId = RunId([0x22; 16]);
