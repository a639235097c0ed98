//! What goes into a session and what comes out of it.

use super::error::{Failure, Lost};
use crate::trainee::StepOutcome;
use core::time::Duration;
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::nccl::{NcclId, Standing};
use flodl_wire::message::record::EpochMetrics;
use flodl_wire::message::report::{Evaluation, Intent};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Epoch, Incarnation, NcclSession, Range, Rank, Round, Version, WindowId};

/// What a session is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A message from the coordinator, decoded.
    Control(Control),
    /// Any sign of life from the relay, on either connection, at that time.
    Heard,
    /// The connection is gone.
    Lost(Lost),
    /// A deadline ([`Session::next_deadline`](super::Session::next_deadline)) may have passed. To be given only when
    /// everything that had arrived by then was given before.
    Tick,
    /// [`Output::Train`] is done.
    Trained(Trained),
    /// [`Output::Snapshot`] or [`Output::Prepare`] is done.
    SnapshotTaken(SnapshotTaken),
    /// [`Output::Contribute`] is done: its last message is handed over.
    Contributed {
        /// The round.
        round: Round,
        /// Spent copying and sending.
        took: Duration,
    },
    /// More of a round's result is here.
    ResultGrew {
        /// The round.
        round: Round,
        /// Chunks that are here by now, all from the first on.
        chunks: u32,
    },
    /// A round's whole result is here.
    ResultWhole(ResultWhole),
    /// [`Output::Apply`] is done.
    Applied {
        /// xxh3 of the live tensors, read back, where they are the result ([`Application::InPlace`]).
        digest: Option<u64>,
    },
    /// [`Output::Evaluate`] is done.
    Evaluated {
        /// Which evaluation.
        schedule: u64,
        /// What came of it; an error is a sentence.
        outcome: Result<Evaluation, String>,
    },
    /// [`Output::Save`] is done.
    Saved {
        /// Which order.
        schedule: u64,
        /// Whether it is saved; an error is a sentence.
        outcome: Result<(), String>,
    },
    /// This rank's program asks for something that one rank does for all. At any time.
    Asked(Intent),
    /// [`Output::Digest`] is done.
    Digested {
        /// xxh3 of the live tensors.
        digest: u64,
    },
    /// [`Output::MakeNcclId`] is done; an error is a sentence.
    NcclIdMade {
        /// For which communicator.
        session: NcclSession,
        /// What came of it.
        outcome: Result<NcclId, String>,
    },
    /// Where this rank stands with the communicator of the newest [`Output::OpenSession`]. What is said of an older one is
    /// passed over.
    NcclStands {
        /// Which communicator.
        session: NcclSession,
        /// Where.
        standing: Standing,
    },
    /// [`Output::Collective`] is done, and so is all that it put on the stream: the replica is the round's result.
    Collected {
        /// On which communicator.
        session: NcclSession,
        /// The result.
        result: ResultWhole,
    },
    /// An order could not be carried out; the rank ends.
    Failed(Failure),
}

/// A batch is trained.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Trained {
    /// What the step came to.
    pub outcome: StepOutcome,
    /// The learning rate it took.
    pub lr: f64,
    /// How much of the batch's time was waiting for data.
    pub data_wait: Duration,
}

/// A snapshot is taken.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct SnapshotTaken {
    /// The round it is for.
    pub round: Round,
    /// Whether every float of it is finite.
    pub finite: bool,
    /// Spent on it.
    pub took: Duration,
}

/// A round's whole result is here, and what was measured as it passed.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct ResultWhole {
    /// The round.
    pub round: Round,
    /// xxh3 over its chunks in order, whichever way it came: one consensus has one digest.
    pub digest: u64,
    /// |theta - average| / |average| over the parameters, theta being the snapshot.
    pub divergence: f64,
    /// |theta| over the parameters.
    pub pre_norm: f64,
    /// |average| over the parameters.
    pub post_norm: f64,
}

/// What an evaluation found, wherever it was made.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Found {
    /// Of which consensus.
    pub version: Version,
    /// On which rank.
    pub rank: Rank,
    /// What.
    pub evaluation: Evaluation,
}

/// What a session wants. Orders (those that say what answers them) come one at a time: the next one only after the answer
/// to the last. The exception are those about a communicator, from [`Output::MakeNcclId`] to [`Output::PeerDied`]: they go on
/// beside everything else, and none of them may hold up the thread that takes them.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send this on the control connection.
    Report(Report),
    /// Train a batch; answer [`Input::Trained`].
    Train(BatchOrder),
    /// Copy the tensors out; answer [`Input::SnapshotTaken`]. From here on result chunks of that round are welcome.
    Snapshot {
        /// The round it is for.
        round: Round,
    },
    /// Send the contribution on the data connection; answer [`Input::Contributed`].
    Contribute {
        /// The round.
        round: Round,
        /// The consensus that the replica started from (version 0 where it has none).
        base: Version,
        /// What to send.
        what: Contribution,
    },
    /// A round over NCCL begins: say whether the replica is finite, and keep a copy of what the round will overwrite, now or
    /// at the first [`Output::Collective`]; answer [`Input::SnapshotTaken`]. The copy is kept until [`Output::Apply`] or
    /// [`Output::Forget`], and no batch is trained until then.
    Prepare {
        /// The round.
        round: Round,
    },
    /// Let the library make an id; answer [`Input::NcclIdMade`].
    MakeNcclId {
        /// The communicator that it is for.
        session: NcclSession,
    },
    /// Abort what there is of a communicator, within the patience, and form this one, within half of it. Say
    /// [`Input::NcclStands`] when that has begun (the former one is gone then), and again when it is ready or will not be; from
    /// then on, say it when it is lost, in a collective or between two. Where an abort does not come back the process
    /// ends with the status [`STUCK_EXIT`](flodl_wire::message::nccl::STUCK_EXIT).
    OpenSession(Membership),
    /// Issue the round's collectives on that communicator; answer [`Input::Collected`], or [`Input::NcclStands`] where it is
    /// lost on the way. They are ended by force at a ceiling of thirty times the patience or ten times the longest round, as
    /// lost.
    Collective(Collective),
    /// End by force what goes on on that communicator: nobody waits for it. No answer.
    AbortCollective {
        /// Which.
        session: NcclSession,
    },
    /// That life is over: a communicator with it in it will come to nothing. Abort it, and say that it is lost.
    PeerDied {
        /// Who.
        rank: Rank,
        /// Which of its lives.
        incarnation: Incarnation,
    },
    /// Take the round's result into the replica; answer [`Input::Applied`]. After a round over NCCL it is there already: only
    /// the copy is let go of.
    Apply {
        /// The round.
        round: Round,
        /// What becomes of what was trained since the snapshot.
        how: Application,
        /// The replica was not finite: optimizer state that is not must be reset.
        reset_optimizer: bool,
    },
    /// The round is over and its result is not wanted. After a round over NCCL the replica gets back what was copied, where
    /// collectives were issued.
    Forget {
        /// The round.
        round: Round,
    },
    /// Evaluate on the test split; answer [`Input::Evaluated`].
    Evaluate {
        /// Which evaluation.
        schedule: u64,
        /// The replica was trained since it took the consensus: it is set aside for the evaluation, which is the consensus's.
        aside: bool,
    },
    /// Save what of the replica no checkpoint set has, aside as for an evaluation; answer [`Input::Saved`].
    Save {
        /// Which order.
        schedule: u64,
        /// The consensus that the replica holds.
        version: Version,
        /// The replica was trained since it took the consensus.
        aside: bool,
    },
    /// Tell the program: an epoch is over, and how it went.
    EpochDone(Box<EpochMetrics>),
    /// Tell the program: what an evaluation found.
    Evaluation(Found),
    /// Take the digest of the live tensors; answer [`Input::Digested`].
    Digest,
    /// This rank's life is over. Nothing comes after it.
    End(End),
}

/// This rank's part in a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// The communicator's number.
    pub session: NcclSession,
    /// What all members bring.
    pub id: NcclId,
    /// This rank's place among the members.
    pub place: u32,
    /// All members, by place.
    pub members: Vec<(Rank, Incarnation)>,
}

/// One round's collectives.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Collective {
    /// The round.
    pub round: Round,
    /// On which communicator.
    pub session: NcclSession,
    /// The place whose replica all others take. `None`: the average, by mass.
    pub root: Option<u32>,
    /// This rank's mass; 0 for one that contributes nothing, which sends zeros and not its replica times 0.
    pub mass: f64,
    /// The round was issued before, on another communicator: the replica first gets back what was copied.
    pub again: bool,
}

/// How a result is taken into the replica.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Application {
    /// It takes the replica's place.
    InPlace,
    /// The replica moves by the difference between the result and its snapshot: what was trained since then stays.
    OnTop,
}

/// One batch to train.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOrder {
    /// The window it is part of.
    pub window: WindowId,
    /// The epoch that `positions` are of.
    pub epoch: Epoch,
    /// The positions, in order; together at least one and at most a batch.
    pub positions: Vec<Range>,
    /// Where it stands on the learning-rate schedule: batches of all ranks before it.
    pub lr_position: u64,
    /// In the first window of a rank that came into a run that had begun.
    pub warm_up: Option<WarmUp>,
}

/// Where a batch stands in a window over which the learning rate grows linearly, from nothing to what the schedule says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WarmUp {
    /// Which batch of the window, from 0.
    pub batch: u32,
    /// Batches planned for the window, at least 1.
    pub of: u32,
}

impl WarmUp {
    /// What the learning rate is multiplied by, within 0..=1.
    #[must_use]
    pub fn factor(self) -> f64 {
        (f64::from(self.batch) + 1.0).min(f64::from(self.of)) / f64::from(self.of.max(1))
    }
}

/// What a rank gives to a round.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Contribution {
    /// All its chunks, the parameters multiplied by this mass, buffers and integers by 1.
    Chunks {
        /// The mass, above 0.
        mass: f64,
    },
    /// Nothing, and why.
    Absent(AbsentWhy),
}

impl Contribution {
    /// Its weight; 0 for nothing.
    #[must_use]
    pub const fn mass(self) -> f64 {
        match self {
            Contribution::Chunks { mass } => mass,
            Contribution::Absent(_) => 0.0,
        }
    }
}

/// How a rank's life ended.
#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// The run is over.
    Finished {
        /// The consensus held, if any.
        version: Option<Version>,
    },
    /// The run ended before its time, and what there was got saved.
    Stopped {
        /// Why.
        why: String,
        /// The consensus held, if any.
        version: Option<Version>,
    },
    /// It could not go on.
    Failed(Failure),
}
