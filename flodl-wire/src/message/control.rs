//! What the coordinator says to relays and ranks.

use super::commit::CommitRecord;
use super::join::{Admit, RunConfig};
use super::nccl::NewSession;
use super::record::{EpochMetrics, Reason};
use super::report::Evaluation;
use crate::{Epoch, Incarnation, NcclSession, Range, Rank, Round, SessionId, Version, WindowId};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Coordinator -> relay or rank. Broadcasts go once per relay (stream `AllRanks`); the relay acts on
/// those that concern its fold and hands every one to its ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Control {
    /// To a relay: the ranks it may start and speak for.
    Admit(Admit),
    /// To a rank, once the run is formed: its final settings. The relay reads the layout from it.
    Admitted(Box<RunConfig>),
    /// To a rank or a relay: it is not part of this run, and why. It ends.
    Refused {
        /// The sentence to print, with both values where two differ.
        why: Reason,
    },
    /// To a rank: answer with [`super::Report::Manifest`].
    SendManifest,
    /// To a rank: train this.
    Window(WindowPlan),
    /// To a rank: more of the window it is in. Ignored by a rank that has reported that window.
    ExtendPartition {
        /// The window meant.
        window: WindowId,
        /// Further ranges; used after those it has.
        leases: Vec<Range>,
    },
    /// To all: the gate fired. Every rank of the roster snapshots at its next batch boundary, sends `SnapshotReady`, then
    /// its chunks (or `Absent`).
    RequestParams {
        /// The round.
        round: Round,
        /// Everybody taking part, in rank order.
        roster: Vec<RosterEntry>,
    },
    /// To all: the round is over. Ranks apply a committed result (or forget it), then go on.
    RoundDone {
        /// The round.
        round: Round,
        /// What became of it.
        outcome: RoundOutcome,
        /// What follows.
        next: Next,
    },
    /// To all: that rank's life is over; folds go on without it.
    DeclareDead {
        /// Who.
        rank: Rank,
        /// Which of its lives.
        incarnation: Incarnation,
        /// Why.
        why: Reason,
    },
    /// To one rank between two rounds: evaluate the consensus on the test split before anything else, and answer with
    /// `EvalResult`.
    ExecuteEval {
        /// Names this evaluation; echoed in the result.
        schedule: u64,
    },
    /// To all: the coordinator is alive.
    Heartbeat,
    /// To one rank: that life is over, whatever it still believes.
    Fenced {
        /// The life meant.
        incarnation: Incarnation,
    },
    /// To all: the run is over and saved. Ranks answer `Finished` and end with 0.
    Shutdown,
    /// To all: the run ends before its time; what there is gets saved. Ranks answer `Finished` and end.
    ShutdownWithSave {
        /// Why.
        why: Reason,
    },
    /// To a relay that asked for it: start that rank's process again, as this life.
    Restart {
        /// Who.
        rank: Rank,
        /// Its new life.
        incarnation: Incarnation,
    },
    /// From a relay to its ranks: the controller is out of reach. What they have trained stays theirs; they wait.
    ControllerLost,
    /// From a relay to its ranks: the controller is there again.
    ControllerBack,
    /// To one rank between two rounds: save what of the consensus only a rank has, before anything else, and answer with
    /// `CheckpointResult`.
    ExecuteCheckpoint {
        /// Names this order; echoed in the result.
        schedule: u64,
        /// The consensus in force.
        version: Version,
    },
    /// To all: an epoch is over, and how it went.
    EpochAggregated(Box<EpochMetrics>),
    /// To all: what an evaluation found.
    EvalBroadcast {
        /// Of which consensus.
        version: Version,
        /// Where.
        rank: Rank,
        /// What.
        evaluation: Evaluation,
    },
    /// To a relay, ahead of a committed round's `RoundDone`: what has changed with it. The relay keeps it for the day
    /// the controller dies.
    Commit(Box<CommitRecord>),
    /// To a relay: a part of the complete record.
    CommitPart {
        /// Which, from 0; they come in order.
        part: u32,
        /// How many there are.
        parts: u32,
        /// A part of its lists.
        record: Box<CommitRecord>,
    },
    /// To a relay that keeps that consensus: send it up its data connection, as `Contribution` chunks of that round.
    SendConsensus {
        /// Echoed in the chunks.
        round: Round,
        /// Which.
        version: Version,
    },
    /// To a relay: nothing more is waited for of its ranks. It need not come back where its link breaks now, and ends once
    /// they have.
    Dismissed,
    /// To all: the gate fired, and this round is averaged over NCCL. Every rank of the roster copies at its next batch
    /// boundary what the round will overwrite, sends `SnapshotReady` (`steps` 0 where it will contribute nothing), and waits for
    /// `SyncNow`. Folds have no part in it.
    PrepareSync {
        /// The round.
        round: Round,
        /// Everybody taking part, in rank order.
        roster: Vec<RosterEntry>,
    },
    /// To one rank: let the library make an id, and answer with `NewNcclIdGenerated`.
    RequestNewNcclId {
        /// The communicator that it is for; echoed in the answer.
        session: NcclSession,
    },
    /// To all: its members abort what they have and form it.
    NewNcclSession(Box<NewSession>),
    /// To all, once every snapshot is taken: the members of that communicator issue the round's collectives. Whoever issued
    /// them before, on another communicator, first puts back what it copied.
    SyncNow {
        /// The round.
        round: Round,
        /// The communicator, which is ready at every member.
        session: NcclSession,
        /// Whose replica (its place among the members) all others take: round 0, and rounds in which nobody has trained. `None`:
        /// the average by mass.
        root: Option<u32>,
    },
}

/// One rank's part of a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowPlan {
    /// The window.
    pub window: WindowId,
    /// The epoch that the leases are positions of. Positions run on over its end: position `epoch_len + i` of an epoch is
    /// position `i` of the next one.
    pub epoch: Epoch,
    /// What it may train, in order. Empty: it answers at once with a report of 0 batches.
    pub leases: Vec<Range>,
    /// Batches planned for it.
    pub quota: u32,
    /// Batches it must not pass.
    pub quota_max: u32,
    /// Wall time from its first batch; `None`: the lease or `quota_max` ends the window.
    pub budget: Option<Duration>,
    /// Batches committed by all ranks before this window.
    pub global_step: u64,
    /// The sum of all ranks' quotas.
    pub quota_sum: u64,
    /// Where ranks train on while they average: how this window joins the one before. `None`: it begins at once, and nobody
    /// trains between its report and the end of its round.
    pub overlap: Option<Overlap>,
}

/// How windows follow one another where nobody waits for a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlap {
    /// The window begins at the snapshot of this round, and what the one before left of its lease goes back then. `None`: at
    /// once.
    pub begins: Option<Round>,
    /// Batches it may do between its report and its next snapshot.
    pub lead: u32,
    /// How long after its request the last snapshot of a round may be taken, for whoever is in a batch finishes it first: a
    /// result is not overdue before.
    pub late: Duration,
}

/// One member of a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterEntry {
    /// Who.
    pub rank: Rank,
    /// Which of its lives.
    pub incarnation: Incarnation,
    /// The relay's session that it is reached through: the root's contributor.
    pub session: SessionId,
    /// What it does.
    pub part: Part,
}

/// What a rank does in a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Part {
    /// Round 0 only: contributes its parameters with mass 1.
    Source,
    /// Contributes what it trained (or `Absent` where it trained nothing), and receives.
    Contribute,
    /// Holds no consensus yet: contributes `Absent { Joining }` and receives.
    Receive,
}

/// What became of a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RoundOutcome {
    /// The result is the consensus now.
    Committed {
        /// Its version.
        version: Version,
    },
    /// Nothing was folded (or round 0 lost its source): everybody keeps what it has.
    Nothing,
    /// It is run again under a new number, because the controller died in it. Everybody keeps what it has and has trained.
    Again,
}

/// What follows a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// More orders: a window, or another round.
    Window,
    /// That was the final consensus: no more windows.
    Final,
}
