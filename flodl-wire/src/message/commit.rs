//! What a committed round makes true, apart from the tensors: enough to go on from when the controller has died.
//!
//! A record goes to every relay ahead of the round's `RoundDone`, so nobody applies a version whose record no relay holds.
//! It tells what has changed since the record before it; a complete one goes in parts (see [`crate::commit`]).

use crate::{Epoch, HostId, Incarnation, Range, Rank, Round, Version, WindowId};
use serde::{Deserialize, Serialize};

/// The record of a round, or a part of one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitRecord {
    /// What is true now, of constant size.
    pub head: CommitHead,
    /// The lists below are changes since the record of that commit; `None`: they are (a part of) all there is.
    pub since: Option<Moment>,
    /// Lives that are not what they were.
    pub lives: Vec<LifeRecord>,
    /// Positions that are committed or set aside now, of epochs that are not over. What is known of older epochs is to be
    /// forgotten.
    pub epochs: Vec<EpochRecord>,
}

/// Which commit a record is of. A later controller's are above an earlier one's.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Moment {
    /// The controller's generation: how often the run's controller was started, from 0.
    pub generation: u64,
    /// The round.
    pub round: Round,
}

/// The part of a record that does not grow with the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommitHead {
    /// Which commit it is.
    pub moment: Moment,
    /// The consensus in force since.
    pub version: Version,
    /// Its digest: xxh3 over its chunks in order.
    pub digest: u64,
    /// Whether that is the final consensus.
    pub is_final: bool,
    /// The newest window whose work is settled.
    pub window: WindowId,
    /// The oldest epoch that is not over.
    pub epoch: Epoch,
    /// Batches committed by all.
    pub global_step: u64,
    /// Samples committed in all epochs, each once.
    pub committed: u64,
    /// Samples of the run whose work is in the consensus although it was (partly) there before.
    pub repeats: u64,
    /// The scheduler's memory, as its owner writes it: at most [`crate::limits::SCHEDULER_STATE`] bytes.
    pub scheduler: Vec<u8>,
}

/// A rank's newest life, as the controller knows it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeRecord {
    /// Who.
    pub rank: Rank,
    /// Which life.
    pub incarnation: Incarnation,
    /// Where.
    pub host: HostId,
    /// What has become of it.
    pub standing: Standing,
    /// Lives of this rank that were lost.
    pub losses: u32,
    /// Whether the run misses it: a life was lost in the run, and no other has come into it since.
    pub missing: bool,
}

/// What has become of a life.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// Admitted, and not in the run yet.
    Coming,
    /// In the run.
    InRun,
    /// It did what it was told to the end.
    Finished,
    /// It left by plan.
    Left,
    /// It was not taken in.
    Refused,
    /// It ended before its time.
    Lost,
}

/// The positions of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochRecord {
    /// Which.
    pub epoch: Epoch,
    /// Committed, ascending; no two ranges touch.
    pub committed: Vec<Range>,
    /// Set aside, ascending; no two ranges touch.
    pub aside: Vec<Range>,
}
