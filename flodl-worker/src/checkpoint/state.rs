//! Where a run stood when it was saved.

use serde::{Deserialize, Serialize};

/// The version of `state.json` and `manifest.json`. Fields are only ever added under it.
pub const SCHEMA: u32 = 1;

/// The contents of `state.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The run, as 32 hexadecimal digits.
    pub run_id: String,
    /// The version of the consensus in `model.safetensors`: committed rounds after the first.
    pub version: u64,
    /// The oldest epoch that is not complete, from 0; the number of epochs where all are.
    pub epoch: u64,
    /// Epochs that the run was to have.
    pub epochs: u64,
    /// Batches committed by all ranks.
    pub global_step: u64,
    /// The seed of everything random.
    pub seed: u64,
    /// Samples in the dataset.
    pub dataset_len: u64,
    /// Positions in an epoch.
    pub epoch_len: u64,
    /// Samples a batch.
    pub batch_size: u32,
    /// What is committed of each epoch that is not complete.
    pub coverage: Vec<EpochCoverage>,
    /// The scheduler's own state.
    pub scheduler: serde_json::Value,
    /// The guard's own state.
    pub guard: serde_json::Value,
    /// Why it was saved, for people.
    pub why: String,
}

/// The committed positions of one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochCoverage {
    /// The epoch.
    pub epoch: u64,
    /// Ranges `[start, end)`, ascending and disjoint.
    pub committed: Vec<(u64, u64)>,
}

impl Default for State {
    /// Nothing trained, nothing known.
    fn default() -> State {
        State {
            schema: SCHEMA,
            run_id: String::new(),
            version: 0,
            epoch: 0,
            epochs: 0,
            global_step: 0,
            seed: 0,
            dataset_len: 0,
            epoch_len: 0,
            batch_size: 0,
            coverage: Vec::new(),
            scheduler: serde_json::Value::Null,
            guard: serde_json::Value::Null,
            why: String::new(),
        }
    }
}
