//! Records for the tests: short makers, and one record of each kind.

use core::time::Duration;
use flodl_wire::message::join::Emulation;
use flodl_wire::message::record::{
    Body, Divergence, EpochMetrics, Event, EventKind, Meta, Node, RankEpoch, RankWindow, Reason, Record, Role,
    RootRound,
};
use flodl_wire::message::report::Evaluation;
use flodl_wire::{Epoch, HostId, Incarnation, NcclSession, Rank, Round, RunId, Time, Version, WindowId};

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn record(at: u64, body: Body) -> Record {
    Record { at: Time::ZERO.plus(ms(at)), body }
}

/// Two epochs of 100 positions in batches of 10, for two ranks.
pub(crate) fn meta(at: u64) -> Record {
    let meta = Meta {
        run_id: RunId([7; 16]),
        flodl: "0.1.0".to_owned(),
        world_size: 2,
        mode: "cpu-cadence".to_owned(),
        epochs: 2,
        batch_size: 10,
        dataset_len: 100,
        epoch_len: 100,
        samples: 200,
        epoch_splits: 1,
        seed: 42,
        parameters: 7850,
        patience: Duration::from_secs(10),
        emulated: vec![(Rank(1), Emulation { step_at_least: ms(8), slowdown: 2.5 })],
        hosts: vec![(host(), vec![Rank(0), Rank(1)])],
    };
    record(at, Body::Meta(Box::new(meta)))
}

fn host() -> HostId {
    HostId::from_name("box").unwrap()
}

pub(crate) fn event(at: u64, kind: EventKind) -> Record {
    record(at, Body::Event(Box::new(Event { kind, reason: None })))
}

pub(crate) fn because(at: u64, kind: EventKind, why: &str) -> Record {
    record(at, Body::Event(Box::new(Event { kind, reason: Some(Reason::new("an-example", why)) })))
}

pub(crate) fn formed(at: u64, ranks: &[u32]) -> Record {
    event(at, EventKind::Formed { ranks: ranks.iter().copied().map(Rank).collect() })
}

pub(crate) fn planned(at: u64, window: u64, epoch: u64, quotas: &[(u32, u32)]) -> Record {
    let quotas = quotas.iter().map(|&(rank, batches)| (Rank(rank), batches)).collect();
    event(at, EventKind::WindowPlanned { window: WindowId(window), epoch: Epoch(epoch), anchor: 1, quotas })
}

/// A window of `rank` with batches of `batch` milliseconds and 10 samples after waiting `idle` milliseconds.
pub(crate) fn window(at: u64, rank: u32, batches: u32, batch: u64, idle: u64) -> Record {
    let window = RankWindow {
        rank: Rank(rank),
        window: WindowId(1),
        epoch: Epoch(0),
        batches,
        samples: u64::from(batches) * 10,
        batch_time: (batches > 0).then(|| ms(batch)),
        fill: Duration::ZERO,
        data_wait: Duration::ZERO,
        idle: ms(idle),
        loss_sum: 12.5,
        loss_count: 10,
        lr: 0.05,
    };
    record(at, Body::Node(Node::Rank(window)))
}

pub(crate) fn root(at: u64, round: u64, loss: Option<f64>) -> Record {
    let round = RootRound {
        round: Round(round),
        window: WindowId(round),
        wall: ms(100),
        reduce: ms(4),
        anchor: 1,
        loss,
        divergence: vec![(Rank(0), 0.25), (Rank(1), 0.5)],
    };
    record(at, Body::Node(Node::Root(round)))
}

/// Round `round` commits as the version of the same number.
pub(crate) fn committed(at: u64, round: u64, committed: &[(u32, u64)], repeats: u64) -> Record {
    committed_as(at, round, round, committed, repeats)
}

pub(crate) fn committed_as(at: u64, round: u64, version: u64, committed: &[(u32, u64)], repeats: u64) -> Record {
    let kind = EventKind::RoundCommitted {
        round: Round(round),
        version: Version(version),
        committed: committed.iter().map(|&(rank, samples)| (Rank(rank), samples)).collect(),
        repeats,
        partial: Vec::new(),
        digests_equal: true,
    };
    event(at, kind)
}

pub(crate) fn differing(at: u64, round: u64) -> Record {
    let mut record = committed(at, round, &[], 0);
    if let Body::Event(event) = &mut record.body
        && let EventKind::RoundCommitted { digests_equal, .. } = &mut event.kind
    {
        *digests_equal = false;
    }
    record
}

/// An epoch of 100 samples, all of rank 0, that took a second.
pub(crate) fn epoch(at: u64, epoch: u64, scalars: &[(&str, f64)]) -> Record {
    let rank = RankEpoch {
        rank: Rank(0),
        batches: 10,
        committed: 100,
        share: 1.0,
        loss: Some(0.5),
        wait: ms(7),
        data_wait: ms(1),
    };
    let metrics = EpochMetrics {
        epoch: Epoch(epoch),
        version: Some(Version(1)),
        wall: ms(1000),
        rounds: 1,
        batches: 10,
        committed: 100,
        loss: Some(0.5),
        scalars: scalars.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
        wait: ms(7),
        reduce: ms(4),
        divergence: Some(Divergence { mean: 0.25, max: 0.5, last: 0.125 }),
        ranks: vec![rank],
        ..EpochMetrics::default()
    };
    record(at, Body::Node(Node::Epoch(Box::new(metrics))))
}

pub(crate) fn evaluated(at: u64, loss: f64, accuracy: Option<f64>) -> Record {
    event(
        at,
        EventKind::Evaluated {
            rank: Rank(0),
            result: Some(Evaluation { loss, accuracy, samples: 2000 }),
            version: None,
        },
    )
}

pub(crate) fn died(at: u64, rank: u32, why: &str) -> Record {
    because(at, EventKind::Death { rank: Rank(rank), incarnation: Incarnation(1) }, why)
}

pub(crate) fn saved(at: u64, version: u64) -> Record {
    let path = Some(format!("runs/a/checkpoints/v{version}"));
    event(at, EventKind::Checkpoint { version: Version(version), path })
}

pub(crate) fn ended(at: u64, exit: i32) -> Record {
    event(at, EventKind::RunEnded { exit })
}

/// One record of each kind, in the order of a run; their times are 0, 1, 2, ... ms.
pub(crate) fn one_of_each() -> Vec<Record> {
    let rank = Rank(1);
    let mut records = vec![
        event(0, EventKind::HostJoined { host: host(), ranks: vec![Rank(0), rank] }),
        event(0, EventKind::RankReady { rank }),
        because(0, EventKind::RankRefused { rank: Rank(2) }, "its model has 10 tensors, the run's has 2"),
        formed(0, &[0, 1]),
        meta(0),
        committed(0, 0, &[], 0),
        planned(0, 1, 0, &[(0, 3), (1, 1)]),
        window(0, 1, 3, 20, 2),
        because(0, EventKind::PlanChanged, "rank 1 is 2.5 times slower than planned"),
        event(0, EventKind::RoundRequested { round: Round(1) }),
        committed(0, 1, &[(0, 30), (1, 10)], 0),
        root(0, 1, Some(0.5)),
        event(0, EventKind::ReplicaDigest { rank, version: Version(1), equal: true }),
        because(0, EventKind::RoundEmpty { round: Round(2) }, "nobody trained"),
        because(0, EventKind::Stall, "rank 1 has 2 of 5 batches"),
        because(0, EventKind::Alert, "the disk of the run directory is full"),
        because(0, EventKind::Quarantined { epoch: Epoch(0), samples: 10 }, "positions 40..50 ended 2 ranks"),
        event(0, EventKind::RankJoined { rank, incarnation: Incarnation(2) }),
        event(0, EventKind::HostBack { host: host() }),
        event(0, EventKind::NcclReady { session: NcclSession(2), ranks: vec![Rank(0), rank] }),
        because(0, EventKind::NcclLost { session: NcclSession(2), round: Round(3) }, "rank 2 died"),
        event(0, EventKind::Resumed { generation: 1, version: Some(Version(7)), committed: 7000, repeats: 0 }),
        died(0, 1, "killed by signal 9"),
        because(0, EventKind::HostLost { host: host() }, "nothing heard for 10 s"),
        epoch(0, 0, &[("accuracy", 0.75)]),
        event(0, EventKind::EpochDone { epoch: Epoch(0) }),
        event(0, EventKind::Elected { role: Role::Evaluation, rank: Rank(0) }),
        because(
            0,
            EventKind::RoleOrdered { role: Role::Evaluation, schedule: 0, rank: Rank(0), version: Version(1) },
            "epoch 0 is over",
        ),
        event(0, EventKind::RoleDone { role: Role::Evaluation, schedule: 0, rank: Rank(0), done: true, took: ms(30) }),
        evaluated(0, 0.25, Some(0.9375)),
        saved(0, 1),
        event(0, EventKind::RankLeft { rank: Rank(0) }),
        event(0, EventKind::RankFinished { rank: Rank(0) }),
        ended(0, 3),
    ];
    for (index, record) in records.iter_mut().enumerate() {
        record.at = Time::ZERO.plus(ms(index as u64));
    }
    let last = records
        .iter_mut()
        .rev()
        .find(|record| matches!(&record.body, Body::Event(event) if event.kind == EventKind::Stall));
    if let Some(Record { body: Body::Event(stall), .. }) = last {
        stall.reason = stall.reason.take().map(|reason| reason.about([rank]).with("batches", 2.0));
    }
    records
}
