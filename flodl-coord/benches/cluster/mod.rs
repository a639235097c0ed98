//! A run of any size that does what it is told at once: the coordinator with obedient ranks around it, eight on a host, and
//! a clock that only counts what the coordinator itself takes.

#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::{Duration, Instant};

use flodl_coord::{Config, Coordinator, Duties, Input, Membership, Output, Scheduling, Slowing};
use flodl_elche::{AnchorSettings, Mode};
use flodl_wire::codec::manifest_digest;
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::join::{DatasetInfo, Dtype, LayoutSizes, Ready, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::report::{Folded, FoldedPart, Received, SyncAck, SyncOutcome, WindowReport};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{Epoch, HostId, Incarnation, Range, Rank, Round, RunId, SessionId, Time, Version};

const RANKS_A_HOST: u32 = 8;
const LIFE: Incarnation = Incarnation(1);
const BATCH: u64 = 64;
const DIGEST: u64 = 7;

/// What the inputs of a kind took.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) inputs: u64,
    pub(crate) took: Duration,
}

/// What a window and its round took the coordinator.
#[derive(Clone, Debug, Default)]
pub(crate) struct RoundCost {
    pub(crate) reports: Cost,
    pub(crate) snapshots: Cost,
    /// The last one also closes the round and plans the next window.
    pub(crate) acks: Cost,
    pub(crate) all: Cost,
}

/// The coordinator and its ranks.
pub(crate) struct Cluster {
    coordinator: Coordinator,
    ranks: u32,
    now: Time,
    round: u64,
    held: Option<Version>,
    plans: Vec<Option<WindowPlan>>,
    outputs: Vec<Output>,
    cost: Cost,
}

impl Cluster {
    /// A run of so many ranks that has planned its first window.
    pub(crate) fn training(ranks: u32) -> Cluster {
        let config = Config {
            run_id: RunId([7; 16]),
            world_size: ranks,
            min_ranks: 1,
            mode: Mode::CpuCadence,
            epochs: Some(1),
            epoch_splits: 1,
            batch_size: Some(BATCH as u32),
            seed: 0,
            patience: Duration::from_secs(10),
            slow: Slowing::default(),
            membership: Membership::default(),
            // Windows that do not grow, so that the epoch lasts for as many rounds as a benchmark makes.
            scheduling: Scheduling { anchor: AnchorSettings::fixed(4), ..Scheduling::default() },
            duties: Duties::default(),
        };
        let coordinator = Coordinator::new(config, Time::ZERO).expect("valid settings");
        let plans = vec![None; ranks as usize];
        let (outputs, cost) = (Vec::new(), Cost::default());
        let mut cluster = Cluster { coordinator, ranks, now: Time::ZERO, round: 0, held: None, plans, outputs, cost };
        for host in 0..ranks.div_ceil(RANKS_A_HOST) {
            let rank_count = (ranks - host * RANKS_A_HOST).min(RANKS_A_HOST);
            let (session, host) = (SessionId(u64::from(host)), HostId::from_name(&format!("h{host}")).expect("a name"));
            cluster.take(Input::HostConnected { session, host, rank_count });
        }
        let ready = cluster.ready();
        cluster.all_say(|_| ready.clone());
        cluster.say(Rank(0), Report::Manifest { part: 0, parts: 1, tensors: tensors() });
        cluster.average();
        assert!(cluster.plans.iter().all(Option::is_some), "every rank has its first window");
        cluster
    }

    /// Every rank trains its window and the round after it; what that took.
    pub(crate) fn round(&mut self) -> RoundCost {
        self.cost = Cost::default();
        let plans: Vec<Option<WindowPlan>> = std::mem::take(&mut self.plans);
        self.plans = vec![None; self.ranks as usize];
        let reports = self.measured(|cluster| {
            for (rank, plan) in (0..).map(Rank).zip(&plans) {
                let plan = plan.as_ref().expect("a window");
                let report = report(rank, plan, cluster.held.map(|version| (version, DIGEST)));
                cluster.say(rank, Report::WindowReport(Box::new(report)));
            }
        });
        let used = |rank: Rank| plans[rank.0 as usize].as_ref().map(|plan| prefix(&plan.leases, plan.quota));
        let snapshots = self.measured(|cluster| {
            let round = Round(cluster.round);
            for rank in (0..cluster.ranks).map(Rank) {
                let ranges = used(rank).expect("a window");
                let epoch = plans[rank.0 as usize].as_ref().map_or(Epoch(0), |plan| plan.epoch);
                let steps = flodl_wire::id::samples(&ranges).div_ceil(BATCH);
                cluster.say(rank, Report::SnapshotReady { round, steps, ranges, epoch });
            }
        });
        let acks = self.measured(Cluster::end_round);
        assert!(self.plans.iter().all(Option::is_some), "every rank has its next window");
        RoundCost { reports, snapshots, acks, all: self.cost }
    }

    /// Holds nothing of its own but the plans.
    #[allow(dead_code, reason = "only who counts memory needs it")]
    pub(crate) fn tidy(&mut self) {
        self.outputs = Vec::new();
    }

    /// So many signs of life of one rank after the other, each with a step more; what they took.
    pub(crate) fn heartbeats(&mut self, count: u64) -> Cost {
        self.measured(|cluster| {
            for beat in 0..count {
                let rank = Rank((beat % u64::from(cluster.ranks)) as u32);
                cluster.say(rank, Report::Heartbeat { step: beat + 1 });
            }
        })
    }

    /// So many ranks disconnect and their processes end; what that took.
    pub(crate) fn deaths(&mut self, count: u32) -> Cost {
        self.measured(|cluster| {
            for rank in (0..count).map(Rank) {
                let session = session(rank);
                let report = HostReport::RankLost { rank, incarnation: LIFE, error: "reset".into() };
                cluster.take(Input::FromHost { session, report });
            }
            // The grace in which an exit status may come is over for the last one too.
            cluster.now = Time(cluster.now.0 + 10_000_000_000 / 20);
            cluster.tick();
        })
    }

    /// Time passes up to the next deadline.
    pub(crate) fn tick(&mut self) {
        let at = self.coordinator.next_deadline().expect("a run that goes on");
        self.now = self.now.max(at);
        self.timed(Coordinator::tick);
    }

    fn measured(&mut self, act: impl FnOnce(&mut Cluster)) -> Cost {
        let before = self.cost;
        act(self);
        Cost { inputs: self.cost.inputs - before.inputs, took: self.cost.took - before.took }
    }

    /// Round 0, in which nobody has trained.
    fn average(&mut self) {
        let round = Round(self.round);
        self.all_say(|_| Report::SnapshotReady { round, steps: 0, ranges: Vec::new(), epoch: Epoch(0) });
        self.end_round();
    }

    fn end_round(&mut self) {
        let round = Round(self.round);
        let whole = |rank| (Rank(rank), LIFE, FoldedPart::Whole);
        let ranks = (0..self.ranks).map(whole).collect();
        self.take(Input::Folded(Folded { round, ranks, digest: DIGEST, any_mass: true }));
        let received = Received { digest: DIGEST, divergence: Some(0.01), pre_norm: 1.0, post_norm: 1.0 };
        let (waited, copied) = (Duration::from_millis(2), Duration::from_millis(1));
        let ack = SyncAck { round, outcome: SyncOutcome::Whole(received), waited, copied };
        self.held = Some(self.held.map_or(Version(0), Version::next));
        self.all_say(|_| Report::SyncAck(ack));
        self.round += 1;
    }

    fn ready(&self) -> Report {
        Report::Ready(Box::new(Ready {
            manifest_digest: manifest_digest(&tensors()),
            layout: LayoutSizes { parameters: 10, buffers: 0, integers: 0 },
            // Enough for as many windows as a benchmark makes.
            dataset: DatasetInfo { len: u64::from(self.ranks) * BATCH * 100_000_000, signature: [7; 32] },
            trainer: TrainerSettings::default(),
            device: "cpu".into(),
            memory: None,
            libraries: String::new(),
            step: None,
            scalars: Vec::new(),
            saves: false,
        }))
    }

    fn all_say(&mut self, report: impl Fn(Rank) -> Report) {
        (0..self.ranks).map(Rank).for_each(|rank| self.say(rank, report(rank)));
    }

    fn say(&mut self, rank: Rank, report: Report) {
        self.take(Input::FromRank { session: session(rank), rank, incarnation: LIFE, report });
    }

    fn take(&mut self, input: Input) {
        self.now = Time(self.now.0 + 1_000);
        self.timed(|coordinator, now| coordinator.handle(input, now));
    }

    /// What a shell does for an input: hand it in, take every output, ask when to tick.
    fn timed(&mut self, act: impl FnOnce(&mut Coordinator, Time)) {
        let started = Instant::now();
        act(&mut self.coordinator, self.now);
        self.outputs.extend(std::iter::from_fn(|| self.coordinator.poll()));
        std::hint::black_box(self.coordinator.next_deadline());
        self.cost.took += started.elapsed();
        self.cost.inputs += 1;
        for output in self.outputs.drain(..) {
            if let Output::ToRank { rank, control: Control::Window(plan), .. } = output {
                self.plans[rank.0 as usize] = Some(plan);
            }
        }
    }
}

fn session(rank: Rank) -> SessionId {
    SessionId(u64::from(rank.0 / RANKS_A_HOST))
}

fn tensors() -> Vec<TensorSpec> {
    vec![TensorSpec { name: "w".into(), section: Section::Parameters, dtype: Dtype::F32, shape: vec![10] }]
}

/// A window of exactly its quota. Devices differ by a factor of up to four.
fn report(rank: Rank, plan: &WindowPlan, replica_digest: Option<(Version, u64)>) -> WindowReport {
    let used = prefix(&plan.leases, plan.quota);
    let samples = flodl_wire::id::samples(&used);
    let batches = samples.div_ceil(BATCH) as u32;
    let batch = Duration::from_micros(8_000 + u64::from(rank.0 * 7919 % 24_000));
    WindowReport {
        window: plan.window,
        epoch: plan.epoch,
        batches,
        samples,
        first: batch,
        rest: batch * batches.saturating_sub(1),
        loss_sum: samples as f64,
        loss_count: samples,
        lr: 0.1,
        used,
        replica_digest,
        ..WindowReport::default()
    }
}

/// The first batches of a lease.
fn prefix(leases: &[Range], batches: u32) -> Vec<Range> {
    let mut left = u64::from(batches) * BATCH;
    let mut used = Vec::new();
    for range in leases {
        let end = range.end.min(range.start + left);
        left -= end - range.start;
        if end > range.start {
            used.push(Range { start: range.start, end });
        }
    }
    used
}
