//! What a person may look at: declared once here, written by the coordinator, stored and shown by the monitor.

use super::float;
use super::join::Emulation;
use super::report::Evaluation;
use crate::{Epoch, HostId, Incarnation, NcclSession, Rank, Round, RunId, Time, Version, WindowId};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// One line of the timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// When, by the coordinator's clock.
    pub at: Time,
    /// What.
    pub body: Body,
}

/// The kinds of record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Body {
    /// The run's settings, once it is formed.
    Meta(Box<Meta>),
    /// A level's figures.
    Node(Node),
    /// Something happened or was decided.
    Event(Box<Event>),
}

/// A decision's why, in a form that log, timeline and page share.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// A stable name for programs ("process-exited").
    pub code: String,
    /// A sentence for people.
    pub text: String,
    /// The ranks it speaks of.
    pub ranks: Vec<Rank>,
    /// Its figures by name.
    #[serde(deserialize_with = "float::pairs_or_nan")]
    pub values: Vec<(String, f64)>,
}

impl Reason {
    /// A reason without ranks and figures.
    #[must_use]
    pub fn new(code: &str, text: impl Into<String>) -> Reason {
        Reason { code: code.to_owned(), text: text.into(), ranks: Vec::new(), values: Vec::new() }
    }

    /// The same, about `ranks`.
    #[must_use]
    pub fn about(mut self, ranks: impl IntoIterator<Item = Rank>) -> Reason {
        self.ranks.extend(ranks);
        self
    }

    /// The same, with a figure.
    #[must_use]
    pub fn with(mut self, name: &str, value: f64) -> Reason {
        self.values.push((name.to_owned(), value));
        self
    }
}

/// The run's settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The run.
    pub run_id: RunId,
    /// The program's version.
    pub flodl: String,
    /// Ranks that start.
    pub world_size: u32,
    /// Mode name.
    pub mode: String,
    /// Epochs.
    pub epochs: u64,
    /// Samples a batch.
    pub batch_size: u32,
    /// Training samples in the dataset.
    pub dataset_len: u64,
    /// Positions in an epoch, the longest one where they differ.
    pub epoch_len: u64,
    /// Positions of all epochs.
    pub samples: u64,
    /// Epochs of a pass over the dataset.
    pub epoch_splits: u32,
    /// Seed.
    pub seed: u64,
    /// Parameters of the model.
    pub parameters: u64,
    /// The knob that deadlines derive from.
    pub patience: Duration,
    /// Ranks that are slowed on purpose.
    pub emulated: Vec<(Rank, Emulation)>,
    /// The hosts and their ranks.
    pub hosts: Vec<(HostId, Vec<Rank>)>,
}

/// Figures of one level. Absent is not zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Node {
    /// One rank, one window.
    Rank(RankWindow),
    /// The run, one round.
    Root(RootRound),
    /// The run, one epoch.
    Epoch(Box<EpochMetrics>),
}

/// One rank's window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankWindow {
    /// Who.
    pub rank: Rank,
    /// The window.
    pub window: WindowId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Batches done.
    pub batches: u32,
    /// Samples done.
    pub samples: u64,
    /// The window's sample of its batch time: mean of batches 2..n, or the one batch; `None` without a batch.
    pub batch_time: Option<Duration>,
    /// First batch's excess over that.
    pub fill: Duration,
    /// Waiting for data.
    pub data_wait: Duration,
    /// From its previous window's last batch to this one's first.
    pub idle: Duration,
    /// Sum of losses over samples.
    #[serde(deserialize_with = "float::or_nan")]
    pub loss_sum: f64,
    /// Samples behind it.
    pub loss_count: u64,
    /// Learning rate of the last batch.
    #[serde(deserialize_with = "float::or_nan")]
    pub lr: f64,
}

/// The run's figures of one committed round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RootRound {
    /// The round.
    pub round: Round,
    /// The window it ended.
    pub window: WindowId,
    /// From the window's orders to `RoundDone`.
    pub wall: Duration,
    /// From `RequestParams` to `RoundDone`.
    pub reduce: Duration,
    /// The anchor in force.
    pub anchor: u32,
    /// Work-weighted mean loss of the window; `None` where nobody trained.
    pub loss: Option<f64>,
    /// Per rank: relative distance of its replica from the average.
    #[serde(deserialize_with = "float::pairs_or_nan")]
    pub divergence: Vec<(Rank, f64)>,
}

/// An epoch that is over. Absent is not zero.
///
/// Losses are weighted by the samples behind them, waits are the longest of any rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochMetrics {
    /// The epoch.
    pub epoch: Epoch,
    /// The consensus at its end; `None` where nothing was ever committed.
    pub version: Option<Version>,
    /// From its first window's orders to its end.
    pub wall: Duration,
    /// Rounds that made a new version in it.
    pub rounds: u64,
    /// Batches trained.
    pub batches: u64,
    /// Samples committed, each position once.
    pub committed: u64,
    /// Samples that are trained again because part of them had been folded.
    pub repeats: u64,
    /// Samples set aside for good.
    pub quarantined: u64,
    /// Mean training loss per sample.
    pub loss: Option<f64>,
    /// The users' own figures, each by its declared reduction.
    #[serde(deserialize_with = "float::pairs_or_nan")]
    pub scalars: Vec<(String, f64)>,
    /// The longest time that a rank was between windows, over the epoch.
    pub wait: Duration,
    /// From requests to commits, over the epoch.
    pub reduce: Duration,
    /// How far replicas were from the averages.
    pub divergence: Option<Divergence>,
    /// Each rank that trained in it, in rank order. Left out of the broadcast to ranks where there are more than
    /// `limits::EPOCH_RANKS`.
    pub ranks: Vec<RankEpoch>,
}

/// How far replicas were from the averages in an epoch's rounds, relative to the averages' norms.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Divergence {
    /// Mean over ranks and rounds.
    #[serde(deserialize_with = "float::or_nan")]
    pub mean: f64,
    /// The largest of any rank in any round.
    #[serde(deserialize_with = "float::or_nan")]
    pub max: f64,
    /// The largest of the last round.
    #[serde(deserialize_with = "float::or_nan")]
    pub last: f64,
}

/// One rank's part of an epoch.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankEpoch {
    /// Who.
    pub rank: Rank,
    /// Batches trained.
    pub batches: u64,
    /// Samples of its own that are committed.
    pub committed: u64,
    /// Their part of all that are, 0..=1.
    #[serde(deserialize_with = "float::or_nan")]
    pub share: f64,
    /// Mean training loss per sample.
    pub loss: Option<f64>,
    /// Between windows.
    pub wait: Duration,
    /// Waiting for data.
    pub data_wait: Duration,
}

/// What one rank does for all.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Role {
    /// Evaluates the consensus.
    Evaluation,
    /// Saves what of a checkpoint only a rank has.
    Checkpoint,
}

/// Something that happened or was decided, with its reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// Why, where there is more to say than the kind does.
    pub reason: Option<Reason>,
}

/// The kinds of event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum EventKind {
    /// A host's relay is connected and may start these ranks.
    HostJoined {
        /// The host.
        host: HostId,
        /// Its ranks.
        ranks: Vec<Rank>,
    },
    /// A host's relay is gone.
    HostLost {
        /// The host.
        host: HostId,
    },
    /// A rank is ready.
    RankReady {
        /// Who.
        rank: Rank,
    },
    /// A rank is not taken into the run.
    RankRefused {
        /// Who.
        rank: Rank,
    },
    /// The run starts with these.
    Formed {
        /// Who.
        ranks: Vec<Rank>,
    },
    /// A window was planned.
    WindowPlanned {
        /// The window.
        window: WindowId,
        /// Its epoch.
        epoch: Epoch,
        /// Batches of the slowest rank.
        anchor: u32,
        /// Batches per rank.
        quotas: Vec<(Rank, u32)>,
    },
    /// The plan changed, for the reason given.
    PlanChanged,
    /// A round began.
    RoundRequested {
        /// The round.
        round: Round,
    },
    /// A round committed.
    RoundCommitted {
        /// The round.
        round: Round,
        /// What it became.
        version: Version,
        /// Samples committed for the first time, per rank.
        committed: Vec<(Rank, u64)>,
        /// Samples given back although they are, or may be, in it: they will be trained again.
        repeats: u64,
        /// Ranks whose contribution is in it in part, or in it while nobody heard what it holds.
        partial: Vec<Rank>,
        /// Whether every rank that received the whole result reported the root's digest.
        digests_equal: bool,
    },
    /// A round ended without a result.
    RoundEmpty {
        /// The round.
        round: Round,
    },
    /// Every sample of an epoch is committed.
    EpochDone {
        /// The epoch.
        epoch: Epoch,
    },
    /// A rank's life is over before the run's end.
    Death {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
    },
    /// Nothing moved for longer than the patience; the reason is the gate's own.
    Stall,
    /// Something a person should look at.
    Alert,
    /// A rank's replica after applying a version.
    ReplicaDigest {
        /// Who.
        rank: Rank,
        /// The version.
        version: Version,
        /// Whether it equals the consensus's digest.
        equal: bool,
    },
    /// An evaluation is done (or failed, for the reason given).
    Evaluated {
        /// Where.
        rank: Rank,
        /// What it found.
        result: Option<Evaluation>,
        /// Of which consensus.
        #[serde(default)]
        version: Option<Version>,
    },
    /// A checkpoint set was written (or not, for the reason given).
    Checkpoint {
        /// Of which version.
        version: Version,
        /// The set's directory; `None`: it was not written.
        path: Option<String>,
    },
    /// A rank ended as it was told to.
    RankFinished {
        /// Who.
        rank: Rank,
    },
    /// The run is over.
    RunEnded {
        /// The exit status.
        exit: i32,
    },
    /// Samples are set aside for good, because every rank that held them came to grief; the reason names them.
    Quarantined {
        /// Of which epoch.
        epoch: Epoch,
        /// How many.
        samples: u64,
    },
    /// A rank came into a run that had begun.
    RankJoined {
        /// Who.
        rank: Rank,
        /// Which of its lives.
        incarnation: Incarnation,
    },
    /// A rank leaves the run by plan; what it trained is averaged.
    RankLeft {
        /// Who.
        rank: Rank,
    },
    /// A lost host is back, and its ranks with it.
    HostBack {
        /// The host.
        host: HostId,
    },
    /// A rank has a role from now on, for the reason given.
    Elected {
        /// Which.
        role: Role,
        /// Who.
        rank: Rank,
    },
    /// A role's rank is to do its part before its next window, for the reason given: what triggered it.
    RoleOrdered {
        /// Which role.
        role: Role,
        /// The order's number.
        schedule: u64,
        /// Who.
        rank: Rank,
        /// The consensus in force.
        version: Version,
    },
    /// That order has taken effect, or has not, for the reason given.
    RoleDone {
        /// Which role.
        role: Role,
        /// The order's number.
        schedule: u64,
        /// Who.
        rank: Rank,
        /// Whether it was done.
        done: bool,
        /// From the order to the answer.
        took: Duration,
    },
    /// The run goes on under another controller than the one before.
    Resumed {
        /// How many controllers were before it.
        generation: u64,
        /// The consensus that it goes on from; `None` before the first average.
        version: Option<Version>,
        /// Samples committed so far, in all epochs.
        committed: u64,
        /// Samples whose work is in the consensus twice.
        repeats: u64,
    },
    /// A communicator of these ranks is ready, in order of their places.
    NcclReady {
        /// Its number.
        session: NcclSession,
        /// Its members.
        ranks: Vec<Rank>,
    },
    /// What was averaged of a round on a communicator came to nothing, for the reason given; it is done again.
    NcclLost {
        /// The communicator.
        session: NcclSession,
        /// The round.
        round: Round,
    },
}
