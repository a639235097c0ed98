//! What is written down.

use crate::Config;
use core::num::NonZeroU32;
use flodl_elche::Passes;
use flodl_wire::RunId;
use flodl_wire::codec::Flaw;
use flodl_wire::message::Check;
use flodl_wire::message::commit::{CommitRecord, LifeRecord};
use flodl_wire::message::join::{DatasetInfo, LayoutSizes, ScalarSpec, TensorSpec, TrainerSettings};
use flodl_wire::{Rank, limits};
use serde::{Deserialize, Serialize};

/// One thing that is written down. Variants are only ever appended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry {
    /// A controller of the run begins.
    Start(Box<Start>),
    /// Tensors of the model, in manifest order, behind those that were written before.
    Tensors(Vec<TensorSpec>),
    /// The run is formed.
    Formed(Box<Formed>),
    /// What has become of lives since the newest commit.
    Lives(Vec<LifeRecord>),
    /// What has changed with a commit.
    Commit(Box<CommitRecord>),
    /// A part of the complete record of a commit.
    CommitPart {
        /// Which, from 0.
        part: u32,
        /// How many there are.
        parts: u32,
        /// A part of its lists.
        record: Box<CommitRecord>,
    },
    /// The run is over.
    Ended {
        /// With this exit status.
        exit: i32,
    },
}

/// What a controller knows before anybody has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The run.
    pub run_id: RunId,
    /// How often the run's controller was started before.
    pub generation: u64,
    /// Where it listens, `HOST:PORT`: relays look for the next one there.
    pub address: String,
    /// Checkpoint sets that are kept.
    pub keep_checkpoints: NonZeroU32,
    /// The run's settings.
    pub config: Config,
}

/// What the run's ranks have agreed on, apart from the list of tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Formed {
    /// Digest of the list of tensors.
    pub manifest: [u8; 32],
    /// The dataset.
    pub dataset: DatasetInfo,
    /// What the trainer's program asks for.
    pub trainer: TrainerSettings,
    /// Figures of the user's own.
    pub scalars: Vec<ScalarSpec>,
    /// Whether its program has something to save with a checkpoint that is not in the set.
    pub saves: bool,
    /// Sizes of the model.
    pub layout: LayoutSizes,
    /// How epochs cut the passes over the samples.
    pub passes: Passes,
    /// Epochs of the run.
    pub epochs: u64,
    /// Samples a batch.
    pub batch_size: u32,
    /// How fast devices should be relative to each other, where that is known.
    pub speeds: Vec<(Rank, f64)>,
}

impl Check for Entry {
    fn check(&self) -> Result<(), Flaw> {
        match self {
            Entry::Tensors(tensors) if tensors.len() > limits::MANIFEST_PART => {
                let (what, len, max) = ("a part of the list of tensors", tensors.len(), limits::MANIFEST_PART);
                Err(Flaw::TooMany { what, len, max })
            }
            Entry::Lives(lives) => lives.iter().try_for_each(Check::check),
            Entry::Commit(record) => record.check(),
            Entry::CommitPart { part, parts, .. } if part >= parts => {
                Err(Flaw::Number { what: "the record's part number" })
            }
            Entry::CommitPart { record, .. } => record.check(),
            Entry::Start(_) | Entry::Tensors(_) | Entry::Formed(_) | Entry::Ended { .. } => Ok(()),
        }
    }
}
