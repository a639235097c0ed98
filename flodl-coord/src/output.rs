//! What the coordinator wants done.

use crate::journal::Entry;
use flodl_wire::message::Control;
use flodl_wire::message::join::{LayoutSizes, TensorSpec};
use flodl_wire::message::record::Body;
use flodl_wire::{Epoch, Incarnation, Range, Rank, Round, SessionId, Version};

/// Everything a coordinator asks its shell to do. After each input all of them are taken, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Send to a relay itself (`Stream::Host`).
    ToHost {
        /// Through which session.
        session: SessionId,
        /// What.
        control: Control,
    },
    /// Send to one rank (`Stream::Rank`).
    ToRank {
        /// Through which session.
        session: SessionId,
        /// Who.
        rank: Rank,
        /// Which of its lives.
        incarnation: Incarnation,
        /// What.
        control: Control,
    },
    /// Send to every session's ranks (`Stream::AllRanks`), and to the root.
    Broadcast(Control),
    /// Tell the root the sizes of the model, once, before round 0.
    Layout(LayoutSizes),
    /// Close a relay's connections, once what was sent to it before has gone out.
    CloseHost {
        /// Its session.
        session: SessionId,
    },
    /// Write a checkpoint set of the root's consensus, then answer with [`crate::Input::Saved`].
    Save(Box<SaveRequest>),
    /// After a restart: tell the root that this session's relay is asked for the consensus in force, then answer with
    /// [`crate::Input::Restored`].
    Restore {
        /// The relay's session.
        session: SessionId,
        /// The number that its chunks will have.
        round: Round,
        /// The consensus.
        version: Version,
        /// Its digest.
        digest: u64,
    },
    /// Write this down behind the run. Nothing waits for it.
    Journal(Entry),
    /// A record for the monitor.
    Record(Body),
    /// The run is over; nothing follows.
    End {
        /// The exit status: 0 done, 1 failed, 3 done but degraded, 4 stopped early and saved.
        exit: i32,
    },
}

/// What a checkpoint set says beside the tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct SaveRequest {
    /// The consensus to save.
    pub version: Version,
    /// The tensors behind it, in manifest order.
    pub tensors: Vec<TensorSpec>,
    /// The open epoch (or the last one).
    pub epoch: Epoch,
    /// Epochs of the run.
    pub epochs: u64,
    /// Batches committed by all.
    pub global_step: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Training samples.
    pub dataset_len: u64,
    /// Positions in an epoch.
    pub epoch_len: u64,
    /// Samples a batch.
    pub batch_size: u32,
    /// Committed positions of each open epoch.
    pub coverage: Vec<(Epoch, Vec<Range>)>,
    /// The scheduler's anchor.
    pub anchor: u32,
    /// Why it is saved.
    pub why: String,
}
