//! What ranks, relays and the root say to the coordinator.

use super::commit::{CommitRecord, Moment};
use super::control::WindowPlan;
use super::float;
use super::join::{Ready, TensorSpec};
use super::nccl::{NcclAck, NcclId, Standing};
use crate::{Epoch, Incarnation, NcclSession, Range, Rank, Round, Version, WindowId};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Rank -> coordinator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// The first message: what this rank would train, on what.
    Ready(Box<Ready>),
    /// The list behind `Ready`'s manifest digest, in parts of at most `limits::MANIFEST_PART` tensors.
    Manifest {
        /// Which part, from 0.
        part: u32,
        /// How many parts.
        parts: u32,
        /// The tensors of this part, in manifest order.
        tensors: Vec<TensorSpec>,
    },
    /// Once a window: what was done in it. After it the rank waits.
    WindowReport(Box<WindowReport>),
    /// Every second in long windows.
    Progress {
        /// The window.
        window: WindowId,
        /// Batches done in it.
        batches: u32,
        /// Samples done in it.
        samples: u64,
    },
    /// A snapshot is taken; its chunks follow on the data channel.
    SnapshotReady {
        /// The round.
        round: Round,
        /// Optimizer steps since the snapshot of the last folded contribution. 0: it contributes nothing.
        steps: u64,
        /// The ranges trained in those steps, as positions of `epoch` (see [`WindowPlan`]).
        ranges: Vec<Range>,
        /// The epoch that the ranges count from.
        epoch: Epoch,
    },
    /// The round's result is here (or is not coming). Nothing is applied yet.
    SyncAck(SyncAck),
    /// Alive.
    Heartbeat {
        /// Steps done in this life: optimizer steps, and batches evaluated. A change is movement.
        step: u64,
    },
    /// The answer to `ExecuteEval`.
    EvalResult {
        /// Which evaluation.
        schedule: u64,
        /// What came of it; an error is a sentence.
        outcome: Result<Evaluation, String>,
    },
    /// The last message of a rank that was told to shut down. An end of file without it is a failure.
    Finished {
        /// The consensus it holds, if any.
        version: Option<Version>,
        /// xxh3 of its live tensors.
        replica_digest: u64,
    },
    /// The last message of a rank that cannot go on.
    Failed {
        /// A sentence that says what to do.
        error: String,
    },
    /// The rank's program asks for something that one rank does for all, at the next round's end.
    Intent(Intent),
    /// The answer to `ExecuteCheckpoint`.
    CheckpointResult {
        /// Which order.
        schedule: u64,
        /// Whether it is saved; an error is a sentence.
        outcome: Result<(), String>,
    },
    /// The answer to `RequestNewNcclId`.
    NewNcclIdGenerated {
        /// For which communicator.
        session: NcclSession,
        /// The id; an error is a sentence.
        outcome: Result<Box<NcclId>, String>,
    },
    /// Where this rank stands with a communicator that it is a member of.
    NcclSession {
        /// Which.
        session: NcclSession,
        /// Where.
        standing: Standing,
    },
    /// `SyncAck` of a round that was averaged over NCCL.
    NcclAck(NcclAck),
}

impl Report {
    /// The answer to a round, whichever way it was averaged.
    #[must_use]
    pub fn sync_ack(&self) -> Option<&SyncAck> {
        match self {
            Report::SyncAck(ack) | Report::NcclAck(NcclAck { ack, .. }) => Some(ack),
            _ => None,
        }
    }
}

/// What a rank's program may ask for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Intent {
    /// An evaluation.
    EvalNow,
    /// A checkpoint.
    CheckpointNow,
}

/// What a rank did in a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowReport {
    /// The window.
    pub window: WindowId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Batches done, each one optimizer step.
    pub batches: u32,
    /// Samples in them.
    pub samples: u64,
    /// Time of the first batch, waiting for data included.
    pub first: Duration,
    /// Time of batches 2..n together, waiting for data included.
    pub rest: Duration,
    /// How much of both was waiting for data.
    pub data_wait: Duration,
    /// From the end of the previous window's last batch (or from admission) to this window's first batch.
    pub idle: Duration,
    /// Sum of the losses over samples.
    pub loss_sum: f64,
    /// Samples behind `loss_sum`.
    pub loss_count: u64,
    /// The learning rate of the last batch.
    pub lr: f64,
    /// The ranges trained; what else was leased goes back.
    pub used: Vec<Range>,
    /// Digest of the live tensors right after the last committed result was applied, and that result's version.
    pub replica_digest: Option<(Version, u64)>,
    /// The user's own figures over the window, of those declared in `Ready`: what is not there was not measured.
    pub scalars: Vec<(String, f64)>,
}

/// A rank's answer to a round.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SyncAck {
    /// The round.
    pub round: Round,
    /// Whether the whole result is here.
    pub outcome: SyncOutcome,
    /// From the end of its window to the round's `RequestParams`.
    pub waited: Duration,
    /// Spent copying and sending its contribution.
    pub copied: Duration,
}

impl SyncAck {
    /// What was received, where it is whole.
    #[must_use]
    pub fn received(&self) -> Option<&Received> {
        match &self.outcome {
            SyncOutcome::Whole(received) => Some(received),
            SyncOutcome::Incomplete { .. } => None,
        }
    }
}

/// A whole result, as a rank measured it while it came in. Norms are over the parameters.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// xxh3 over its chunks in order.
    pub digest: u64,
    /// |theta - average| / |average|; `None` for a rank that contributed nothing.
    pub divergence: Option<f64>,
    /// |theta| at the snapshot.
    pub pre_norm: f64,
    /// |average|.
    pub post_norm: f64,
}

/// Whether a rank received a round's whole result.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SyncOutcome {
    /// Yes.
    Whole(Received),
    /// No; it becomes a joiner.
    Incomplete {
        /// The first chunk that is missing.
        from_chunk: u32,
    },
}

/// What an evaluation found.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean loss per sample.
    #[serde(deserialize_with = "float::or_nan")]
    pub loss: f64,
    /// Fraction of samples classified rightly, 0..=1; `None` where that has no meaning.
    pub accuracy: Option<f64>,
    /// Samples evaluated.
    pub samples: u64,
}

/// Relay -> coordinator, about its host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum HostReport {
    /// A rank's process was started.
    RankUp {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Its process id on that host.
        pid: u32,
    },
    /// A rank's process has ended.
    RankExited {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// How.
        status: ExitStatus,
        /// The last lines it wrote, at most `limits::LAST_LINES` bytes.
        last_lines: String,
    },
    /// A rank's process could not be started.
    RankNotStarted {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// A sentence.
        error: String,
    },
    /// A rank's connection to its relay ended without `Finished`.
    RankLost {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// A sentence.
        error: String,
    },
    /// The fold waits for one rank while the rest of the chunk is there.
    Waiting {
        /// The round.
        round: Round,
        /// Who is waited for.
        rank: Rank,
        /// Which chunk.
        chunk: u32,
    },
    /// Alive.
    Heartbeat,
    /// When that life ends, this relay starts the rank again as soon as it is told to.
    WillRestart {
        /// Who.
        rank: Rank,
        /// The life that has begun.
        incarnation: Incarnation,
    },
    /// This host goes: its ranks are to bring in what they have trained, and then to end.
    Leaving,
    /// After a lost link, once per rank that lives: where it stands.
    RankState(Box<RankState>),
    /// After a lost link, to another controller than the one it was lost to: a part of the newest record kept here.
    CommitPart {
        /// Which, from 0; they come in order.
        part: u32,
        /// How many there are.
        parts: u32,
        /// A part of its lists.
        record: Box<CommitRecord>,
    },
    /// After a lost link, last: all is said.
    Back {
        /// The newest record kept here.
        record: Option<Moment>,
        /// The consensus kept here whole.
        consensus: Option<Version>,
        /// The round whose result is here whole, and may have been committed since.
        result: Option<Round>,
    },
}

/// Where a rank stands, as its relay knows it from both directions.
///
/// Nothing is sent twice over a link. What the rank said since it last began something new is repeated in `words`,
/// because it is not known which of it arrived; whoever has heard a word already passes over it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankState {
    /// Who.
    pub rank: Rank,
    /// Which life.
    pub incarnation: Incarnation,
    /// The newest window that it was given.
    pub window: Option<WindowId>,
    /// The newest round that it was asked to take part in.
    pub round: Option<Round>,
    /// Whether it knows how that round ended.
    pub round_done: bool,
    /// Whether it has the run's settings.
    pub admitted: bool,
    /// What it said since its last window began or its last round ended, in order: no heartbeats, no progress.
    pub words: Vec<Report>,
    /// The consensus that its replica comes from.
    pub version: Option<Version>,
    /// Its orders for that newest window, with all leases that were added.
    pub plan: Option<Box<WindowPlan>>,
    /// How fast it was in the last window that it reported.
    pub pace: Option<Pace>,
}

/// How long batches took: a rank's last measured window.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// Batches done.
    pub batches: u32,
    /// Time of the first batch, waiting for data included.
    pub first: Duration,
    /// Time of batches 2..n together, waiting for data included.
    pub rest: Duration,
    /// How much of both was waiting for data.
    pub data_wait: Duration,
}

/// How a process ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// By itself, with this status.
    Code(i32),
    /// By this signal.
    Signal(i32),
    /// The system did not say.
    Unknown,
}

/// Root -> coordinator: whose work is in the round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Folded {
    /// The round.
    pub round: Round,
    /// Every rank of the roster.
    pub ranks: Vec<(Rank, Incarnation, FoldedPart)>,
    /// xxh3 over the result's chunks in order.
    pub digest: u64,
    /// Whether any parameter mass was folded at all.
    pub any_mass: bool,
}

/// How much of a rank's contribution was folded.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FoldedPart {
    /// All of it.
    Whole,
    /// Its first `n` chunks (at least one).
    Chunks(u32),
    /// Nothing.
    None,
}
