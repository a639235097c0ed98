//! What both sides say about themselves when a rank joins.

use crate::{Incarnation, Rank, RunId, SessionId};
use core::time::Duration;
use serde::{Deserialize, Serialize};

/// Controller -> relay: what it may start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admit {
    /// The relay's session.
    pub session: SessionId,
    /// The ranks it starts and from now on speaks for, in its local order.
    pub ids: Vec<(Rank, Incarnation)>,
    /// Ranks expected in the whole run.
    pub world_size: u32,
}

/// Rank -> coordinator: what it would train, on what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ready {
    /// SHA-256 of the manifest (every tensor's name, dtype, shape, section).
    pub manifest_digest: [u8; 32],
    /// The sizes behind it.
    pub layout: LayoutSizes,
    /// What it trains on.
    pub dataset: DatasetInfo,
    /// What the trainer's builder asked for.
    pub trainer: TrainerSettings,
    /// The device, for people ("cpu", "cuda:0 NVIDIA ...").
    pub device: String,
    /// The device's memory in bytes, where known.
    pub memory: Option<u64>,
    /// Library versions, for people.
    pub libraries: String,
    /// How long a step took when the model warmed up, with a core to itself; absent where that was not measured. A first
    /// idea of how fast ranks are to each other, and no more.
    pub step: Option<Duration>,
    /// The figures of the user's own that it reports with each window, at most `limits::SCALARS`. Ranks of a run declare
    /// the same.
    pub scalars: Vec<ScalarSpec>,
    /// Whether its program has something to save with a checkpoint that is not in the set.
    pub saves: bool,
}

/// A figure of the user's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalarSpec {
    /// Its name, unique among a rank's; at most `limits::SCALAR_NAME` bytes.
    pub name: String,
    /// How the values of windows and ranks are put together.
    pub reduction: Reduction,
}

/// How values of many windows and ranks become one.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduction {
    /// Their mean, weighted by the samples behind them.
    Mean,
    /// Their sum.
    Sum,
    /// The smallest.
    Min,
    /// The largest.
    Max,
    /// The one that was reported last.
    Last,
}

/// Elements of each typed section of the flattened model.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutSizes {
    /// f32 parameters.
    pub parameters: u64,
    /// f32 buffers (running statistics).
    pub buffers: u64,
    /// i64 integers (counters).
    pub integers: u64,
}

/// A dataset, as far as ranks must agree on it.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetInfo {
    /// Training samples.
    pub len: u64,
    /// SHA-256 that two ranks share exactly when they hold the same samples in the same order.
    pub signature: [u8; 32],
}

/// What a trainer's builder asks for; `None`: it does not care. Ranks of a run must ask for the same.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrainerSettings {
    /// Samples a batch.
    pub batch_size: Option<u32>,
    /// Epochs.
    pub epochs: Option<u64>,
    /// Passes' worth of picks in one epoch (1: each sample once).
    pub augment: Option<u32>,
}

/// The run's final settings, for one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The run.
    pub run_id: RunId,
    /// Ranks that start in it.
    pub world_size: u32,
    /// The mode's name as the scheduler prints it ("cpu-cadence").
    pub mode: String,
    /// Epochs.
    pub epochs: u64,
    /// Samples a batch.
    pub batch_size: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// Training samples in the dataset.
    pub dataset_len: u64,
    /// Positions in an epoch, the longest one where they differ. Positions of two epochs count on so far from the one to the
    /// other.
    pub epoch_len: u64,
    /// The flattened model.
    pub layout: LayoutSizes,
    /// The knob that all deadlines derive from.
    pub patience: Duration,
    /// Makes this rank slower on purpose, where the user asked for it.
    pub emulation: Option<Emulation>,
    /// Two runs with the same settings are to be bit-equal, whatever the timing.
    pub deterministic: bool,
    /// Positions in a pass (`dataset_len` times `augment`).
    pub pass_len: u64,
    /// Epochs of a pass, at least 1.
    pub epoch_splits: u32,
}

/// Makes a rank behave like a slower device.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    /// A step takes at least so long before it is stretched.
    pub step_at_least: Duration,
    /// Then each step is stretched to this many times its length (>= 1).
    #[serde(deserialize_with = "super::float::or_nan")]
    pub slowdown: f64,
}

impl Emulation {
    /// How long a step lasts that would take so long without: `max(step, step_at_least) * slowdown`. A slowdown that is no
    /// number or below 1 counts as 1.
    #[must_use]
    pub fn stretch(&self, step: Duration) -> Duration {
        let factor = if self.slowdown.is_finite() { self.slowdown.max(1.0) } else { 1.0 };
        let seconds = step.max(self.step_at_least).as_secs_f64() * factor;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

/// One tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorSpec {
    /// Its name, unique in the model.
    pub name: String,
    /// Its element type as the model holds it.
    pub dtype: Dtype,
    /// Its shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// The section it travels in.
    pub section: Section,
}

impl TensorSpec {
    /// Elements: the product of the shape; `None` where it overflows.
    #[must_use]
    pub fn elements(&self) -> Option<u64> {
        self.shape.iter().try_fold(1u64, |product, &side| product.checked_mul(side))
    }
}

/// Element types.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// 64-bit integer.
    I64,
    /// 64-bit float.
    F64,
    /// 16-bit brain float.
    Bf16,
    /// 16-bit float.
    F16,
}

/// Typed sections of the flattened model; each begins a new chunk.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Section {
    /// Averaged by mass; the outer optimizer acts on them.
    Parameters,
    /// Running statistics: averaged with mass 1 per mover.
    Buffers,
    /// Counters: the largest value wins.
    Integers,
}
