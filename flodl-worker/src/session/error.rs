//! Why a rank ends before its run does.

use core::time::Duration;
use flodl_wire::{Epoch, Incarnation, Range, Round, Version, WindowId};
use thiserror::Error;

/// Why a rank ends with an error.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Failure {
    /// The controller does not take this rank.
    #[error("this rank was refused: {why}")]
    Refused {
        /// Its sentence.
        why: String,
    },
    /// The controller gave this rank up.
    #[error("the coordinator declared this rank dead ({why}); its samples go to others")]
    DeclaredDead {
        /// Its sentence.
        why: String,
    },
    /// The controller counts this life of the rank as over.
    #[error("{incarnation} of this rank is over for the coordinator; start the rank again to take part")]
    Fenced {
        /// The life.
        incarnation: Incarnation,
    },
    /// The coordinator is gone, and it had not said that the run is over.
    #[error("the coordinator is lost: {0}")]
    CoordinatorLost(#[from] Lost),
    /// The run averages over a back end that this rank does not have.
    #[error("the run averages over NCCL, which this rank's program was not built for: run it with --mode cpu-cadence")]
    NoNccl,
    /// The model holds infinite or undefined values at every round.
    #[error("the model was not finite in {rounds} rounds in a row: lower the learning rate or clip gradients")]
    NonFinite {
        /// How many rounds.
        rounds: u32,
    },
    /// The user's model or dataset cannot go on.
    #[error("{during} failed: {error}")]
    User {
        /// What was being done ("a training step", "reading the model's tensors").
        during: &'static str,
        /// The user's own error.
        error: String,
    },
    /// The user's model or dataset panicked.
    #[error("panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// The coordinator or the relay asked for what makes no sense.
    #[error("the coordinator sent what cannot be obeyed: {0}")]
    Protocol(#[from] Violation),
}

/// How the coordinator was lost.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Lost {
    /// A connection to the relay ended although no shutdown was announced.
    #[error(
        "the {channel} connection to the relay ended without a shutdown; see the relay's and the controller's output"
    )]
    Closed {
        /// "control" or "data".
        channel: &'static str,
    },
    /// A connection to the relay gave something that is no frame, or broke.
    #[error("the {channel} connection to the relay broke: {error}")]
    Broken {
        /// "control" or "data".
        channel: &'static str,
        /// What was found.
        error: String,
    },
    /// Nothing came for the patience.
    #[error("nothing came from the relay for {patience:?}, which is all the patience there is")]
    Silent {
        /// The patience.
        patience: Duration,
    },
    /// This process's own input and output ended.
    #[error("the thread that talks to the relay ended: {error}")]
    IoThread {
        /// Why.
        error: String,
    },
}

/// A message that does not fit the state it met.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Violation {
    /// A message for a relay.
    #[error("{message} is a message for relays, not for ranks")]
    NotForRanks {
        /// Its name.
        message: &'static str,
    },
    /// A message at the wrong time.
    #[error("{message} came while this rank {state}")]
    Unexpected {
        /// The message's name.
        message: &'static str,
        /// What the rank was doing.
        state: &'static str,
    },
    /// Settings that cannot be.
    #[error("the run's settings are impossible: {field} is {value}")]
    Settings {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
    },
    /// Settings of another model or dataset than this rank's.
    #[error("the run's {field} is {run}, this rank's is {own}")]
    NotMine {
        /// What differs.
        field: &'static str,
        /// The run's value.
        run: String,
        /// This rank's.
        own: String,
    },
    /// A window that is not newer than the last one.
    #[error("{got} was ordered after {last}")]
    WindowOrder {
        /// The window ordered.
        got: WindowId,
        /// The one before.
        last: WindowId,
    },
    /// An epoch that the run does not have.
    #[error("{window} is of {epoch}, the run has {epochs} (counted from 0)")]
    NoSuchEpoch {
        /// The window.
        window: WindowId,
        /// Its epoch.
        epoch: Epoch,
        /// The run's number of epochs.
        epochs: u64,
    },
    /// A lease of positions that the epoch does not have.
    #[error("{window} leases positions {}..{} of an epoch of {epoch_len}", range.start, range.end)]
    Outside {
        /// The window.
        window: WindowId,
        /// The range.
        range: Range,
        /// Positions in an epoch.
        epoch_len: u64,
    },
    /// The same position leased twice.
    #[error("{window} leases positions {}..{} twice", range.start, range.end)]
    Twice {
        /// The window.
        window: WindowId,
        /// The range, or a part of it.
        range: Range,
    },
    /// Positions to train and no batches to train them in, or a limit below the plan.
    #[error("{window} plans {quota} batches and allows {quota_max}, which trains nothing or contradicts itself")]
    Quota {
        /// The window.
        window: WindowId,
        /// Batches planned.
        quota: u32,
        /// Batches allowed.
        quota_max: u32,
    },
    /// A round that is not newer than the last one.
    #[error("{got} was ordered after {last}")]
    RoundOrder {
        /// The round ordered.
        got: Round,
        /// The one before.
        last: Round,
    },
    /// The end of a round that is not open.
    #[error("the end of {got} came while {open:?} is open here")]
    OtherRound {
        /// The round that ended.
        got: Round,
        /// The round that is open at this rank.
        open: Option<Round>,
    },
    /// A commit of an older version than the one held.
    #[error("version {} was committed after version {}", got.0, held.0)]
    VersionOrder {
        /// The version committed.
        got: Version,
        /// The version held.
        held: Version,
    },
    /// The replica of a member that the communicator does not have.
    #[error("{round} takes the replica at place {root} of a communicator of {size}")]
    Root {
        /// The round.
        round: Round,
        /// The place.
        root: u32,
        /// Number of members.
        size: usize,
    },
    /// Messages pile up behind one order.
    #[error("{limit} messages came while this rank was busy with one order")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// A result that is none.
    #[error("chunk {chunk} of the result of {round} {problem}")]
    Result {
        /// The round.
        round: Round,
        /// The chunk.
        chunk: u32,
        /// What is wrong with it.
        problem: &'static str,
    },
}
