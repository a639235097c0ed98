//! What a run is told before it starts, and the deadlines that follow from its patience.

use crate::id;
use crate::{Duties, Elect, MaxFailure};
use core::fmt;
use core::time::Duration;
use flodl_elche::{AnchorSettings, GuardKind, Mode, Settings, SettingsError, Windowing};
use flodl_wire::limits::RANKS_MAX;
use flodl_wire::message::join::Emulation;
use flodl_wire::{Rank, RunId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A run's settings as its command line gives them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// The run.
    pub run_id: RunId,
    /// Ranks expected; at least 1 and at most [`RANKS_MAX`].
    pub world_size: u32,
    /// Ranks it starts with at least, where the others ended or were refused first; 1..=`world_size`.
    pub min_ranks: u32,
    /// Policy and back end.
    pub mode: Mode,
    /// Epochs; `None`: what the trainers ask for, else 1.
    pub epochs: Option<u64>,
    /// Epochs of a pass over the samples; at least 1.
    pub epoch_splits: u32,
    /// Samples a batch; `None`: what the trainers ask for, else 64.
    pub batch_size: Option<u32>,
    /// Seed of everything random.
    pub seed: u64,
    /// The knob that every deadline derives from.
    pub patience: Duration,
    /// Ranks to make slower on purpose.
    pub slow: Slowing,
    /// Who may be missing, and how one leaves.
    pub membership: Membership,
    /// How windows are planned.
    pub scheduling: Scheduling,
    /// Who evaluates and saves, and how often.
    pub duties: Duties,
}

/// What a person may say of how windows are planned; what is unset the policy decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scheduling {
    /// What watches the replicas' divergence, where the program brings no guard of its own.
    pub guard: GuardKind,
    /// Relative speeds known beforehand; larger is faster, the unit does not matter.
    pub speeds: BTreeMap<Rank, f64>,
    /// Where the anchor starts and what bounds it.
    pub anchor: AnchorSettings,
    /// How many batches more than the slowest a rank may do in a window.
    pub max_batch_diff: Option<u32>,
    /// Under Async, how many batches a rank may run ahead of its window.
    pub overshoot: Option<u32>,
    /// How a rank knows that its window is over; counts are there to compare budgets with.
    pub windowing: Windowing,
    /// Two runs with the same settings are bit-equal, whatever the timing.
    pub deterministic: bool,
}

/// Who may be missing, and how one leaves.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The losses that end the run.
    pub max_failure: MaxFailure,
    /// How long a rank that leaves by plan may take to the end of its round; then it is let go without.
    pub leave_grace: Duration,
}

impl Default for Membership {
    fn default() -> Membership {
        Membership { max_failure: MaxFailure::None, leave_grace: LEAVE_GRACE }
    }
}

/// The time of a planned leave where nobody says otherwise.
const LEAVE_GRACE: Duration = Duration::from_secs(20);

/// Emulated slowness, so that unequal devices can be had on one machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slowing {
    /// A step takes at least so long, on every rank.
    pub step_at_least: Option<Duration>,
    /// Then each step of these ranks is stretched by this factor (>= 1).
    pub factors: BTreeMap<Rank, f64>,
}

impl Slowing {
    /// What `rank` is told, if anything.
    #[must_use]
    pub fn of(&self, rank: Rank) -> Option<Emulation> {
        let factor = self.factors.get(&rank).copied();
        if factor.is_none() && self.step_at_least.is_none() {
            return None;
        }
        Some(Emulation { step_at_least: self.step_at_least.unwrap_or(Duration::ZERO), slowdown: factor.unwrap_or(1.0) })
    }

    /// How long a step lasts at `rank` that would take so long without emulation.
    #[must_use]
    pub fn step(&self, rank: Rank, step: Duration) -> Duration {
        self.of(rank).map_or(step, |emulation| emulation.stretch(step))
    }
}

/// Settings that contradict each other or lie out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// No rank, or more than a run can have.
    #[error("a run has 1 to {max} ranks, not {got}: give another number with -n")]
    WorldSize {
        /// Asked for.
        got: u32,
        /// The limit.
        max: u32,
    },
    /// More ranks demanded than expected.
    #[error("--min-ranks {min} is not within 1..={world}, the ranks of the run (-n {world})")]
    MinRanks {
        /// Asked for.
        min: u32,
        /// Ranks expected.
        world: u32,
    },
    /// No sample a batch.
    #[error("--batch-size must be at least 1")]
    BatchSize,
    /// Nothing to do.
    #[error("--epochs must be at least 1")]
    Epochs,
    /// No epoch in a pass.
    #[error("--epoch-splits must be at least 1")]
    EpochSplits,
    /// A patience that no deadline can be derived from.
    #[error("--patience {got:?} is not within {min:?}..={max:?}")]
    Patience {
        /// Asked for.
        got: Duration,
        /// The least.
        min: Duration,
        /// The most.
        max: Duration,
    },
    /// A limit of losses that cannot be meant.
    #[error("--max-failure {got} is not a number of ranks from 1 on or a percentage from 1% to 100%")]
    MaxFailure {
        /// Asked for.
        got: MaxFailure,
    },
    /// A rank that the run does not have.
    #[error("--slow {rank}={factor} names a rank that a run of {world} ranks does not have: ranks are 0..={last}", rank = rank.0)]
    SlowRank {
        /// Named.
        rank: Rank,
        /// Its factor.
        factor: f64,
        /// Ranks of the run.
        world: u32,
        /// The last rank.
        last: u32,
    },
    /// A speed for a rank that the run does not have.
    #[error("--speed {rank}={speed} names a rank that a run of {world} ranks does not have: ranks are 0..={last}", rank = rank.0)]
    SpeedRank {
        /// Named.
        rank: Rank,
        /// Its speed.
        speed: f64,
        /// Ranks of the run.
        world: u32,
        /// The last rank.
        last: u32,
    },
    /// What the scheduler cannot follow, in the words of its options.
    #[error(transparent)]
    Scheduling(#[from] SettingsError),
    /// A guard where windows keep their length.
    #[error(
        "--guard {guard} contradicts --deterministic, under which windows keep their length: leave one of the two out"
    )]
    GuardOfFixed {
        /// Asked for.
        guard: GuardKind,
    },
    /// Bit-equal runs by a library that adds in whatever order it finds fastest.
    #[error("--deterministic contradicts --mode {mode}: NCCL adds in an order of its own; take --mode {instead}")]
    OrderOfNccl {
        /// Asked for.
        mode: Mode,
        /// The same over the CPU.
        instead: Mode,
    },
    /// A duty for a rank that the run does not have.
    #[error("{option} {rank} names a rank that a run of {world} ranks does not have: ranks are 0..={last}", rank = rank.0)]
    DutyRank {
        /// The option.
        option: &'static str,
        /// Named.
        rank: Rank,
        /// Ranks of the run.
        world: u32,
        /// The last rank.
        last: u32,
    },
    /// A factor that would make a rank faster, or is no number.
    #[error("--slow {rank}={factor}: the factor stretches each step and must be within 1..=1000", rank = rank.0)]
    SlowFactor {
        /// Named.
        rank: Rank,
        /// Its factor.
        factor: f64,
    },
}

/// The least patience: below it scheduling jitter looks like silence.
pub const PATIENCE_MIN: Duration = Duration::from_millis(200);
/// The most patience.
pub const PATIENCE_MAX: Duration = Duration::from_secs(24 * 3600);

impl Config {
    /// Checks the settings against each other.
    ///
    /// # Errors
    /// The first contradiction found, with both values.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.world_size == 0 || self.world_size > RANKS_MAX {
            return Err(ConfigError::WorldSize { got: self.world_size, max: RANKS_MAX });
        }
        if self.min_ranks == 0 || self.min_ranks > self.world_size {
            return Err(ConfigError::MinRanks { min: self.min_ranks, world: self.world_size });
        }
        if self.batch_size == Some(0) {
            return Err(ConfigError::BatchSize);
        }
        if self.epochs == Some(0) {
            return Err(ConfigError::Epochs);
        }
        if self.epoch_splits == 0 {
            return Err(ConfigError::EpochSplits);
        }
        if self.patience < PATIENCE_MIN || self.patience > PATIENCE_MAX {
            return Err(ConfigError::Patience { got: self.patience, min: PATIENCE_MIN, max: PATIENCE_MAX });
        }
        let got = self.membership.max_failure;
        if !got.is_possible() {
            return Err(ConfigError::MaxFailure { got });
        }
        self.slow.factors.iter().try_for_each(|(&rank, &factor)| self.check_slow(rank, factor))?;
        if let Some((&rank, &speed)) = self.scheduling.speeds.iter().find(|(rank, _)| rank.0 >= self.world_size) {
            let (world, last) = (self.world_size, self.world_size - 1);
            return Err(ConfigError::SpeedRank { rank, speed, world, last });
        }
        let guard = self.scheduling.guard;
        if self.scheduling.deterministic && guard != GuardKind::None {
            return Err(ConfigError::GuardOfFixed { guard });
        }
        if self.scheduling.deterministic && !self.mode.is_cpu() {
            let instead = if self.mode == Mode::NcclSync { Mode::CpuSync } else { Mode::CpuCadence };
            return Err(ConfigError::OrderOfNccl { mode: self.mode, instead });
        }
        for (option, duty) in [("--eval-rank", self.duties.evaluation), ("--checkpoint-rank", self.duties.checkpoint)] {
            let (world, last) = (self.world_size, self.world_size - 1);
            if let Elect::Rank(rank) = duty.by
                && rank.0 >= world
            {
                return Err(ConfigError::DutyRank { option, rank, world, last });
            }
        }
        Ok(self.settings(self.batch_size.unwrap_or(1)).validate()?)
    }

    /// The scheduler's settings for a run with batches of this size.
    #[must_use]
    pub fn settings(&self, batch_size: u32) -> Settings {
        let Scheduling { guard: _, speeds, anchor, max_batch_diff, overshoot, windowing, deterministic } =
            &self.scheduling;
        Settings {
            policy: self.mode.policy(),
            batch_size,
            anchor: *anchor,
            max_batch_diff: *max_batch_diff,
            overshoot: *overshoot,
            windowing: *windowing,
            deterministic: *deterministic,
            speed_hints: speeds.iter().map(|(&rank, &speed)| (id::slot(rank), speed)).collect(),
        }
    }

    fn check_slow(&self, rank: Rank, factor: f64) -> Result<(), ConfigError> {
        if rank.0 >= self.world_size {
            let (world, last) = (self.world_size, self.world_size - 1);
            return Err(ConfigError::SlowRank { rank, factor, world, last });
        }
        if !(1.0..=1000.0).contains(&factor) {
            return Err(ConfigError::SlowFactor { rank, factor });
        }
        Ok(())
    }
}

/// Every deadline of the coordinator, derived from the patience.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Between two signs of life.
    pub heartbeat: Duration,
    /// Silence after which a rank or a link counts as dead; also: no movement after which a stall is reported.
    pub silence: Duration,
    /// An evaluation or a checkpoint at most, where its cost is not known.
    pub callback: Duration,
    /// From `Shutdown` to the last rank's end.
    pub shutdown: Duration,
    /// How long a rank whose host's link is broken may stay out of reach.
    pub detached: Duration,
    /// From a rank's lost connection to its counting as dead, so that its exit status can name the cause.
    pub exit_grace: Duration,
}

impl Deadlines {
    /// The deadlines that follow from `patience`.
    #[must_use]
    pub fn from_patience(patience: Duration) -> Deadlines {
        Deadlines {
            heartbeat: patience / 10,
            silence: patience,
            callback: patience.saturating_mul(30),
            shutdown: patience,
            detached: patience,
            exit_grace: (patience / 20).min(Duration::from_millis(250)),
        }
    }
}

impl Deadlines {
    /// How long a rank may train without a step before it is named: three times its expected window, or ten times the
    /// patience where that is not known. Steps are known from heartbeats, two of which are added.
    #[must_use]
    pub fn stall(&self, expected: Option<Duration>) -> Duration {
        match expected {
            Some(window) => window.saturating_mul(3).saturating_add(self.heartbeat * 2),
            None => self.silence.saturating_mul(10),
        }
    }

    /// How long a rank may train without a step before it counts as dead: at least three times the patience, and never
    /// shorter than [`Deadlines::stall`].
    #[must_use]
    pub fn stall_ceiling(&self, expected: Option<Duration>) -> Duration {
        self.stall(expected).max(self.silence.saturating_mul(3))
    }

    /// How long an evaluation or a checkpoint may take: three times what is expected, at least thirty times the patience.
    #[must_use]
    pub fn callback_ceiling(&self, expected: Option<Duration>) -> Duration {
        self.callback.max(expected.unwrap_or_default().saturating_mul(3))
    }

    /// How long a round may wait for a living rank's snapshot, contribution or answer: ten times the longest round so far,
    /// at least thirty times the patience.
    #[must_use]
    pub fn round_ceiling(&self, longest: Duration) -> Duration {
        self.silence.saturating_mul(30).max(longest.saturating_mul(10))
    }
}

impl fmt::Display for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "patience {:?}: heartbeat every {:?}, dead after {:?} of silence or {:?} (at least) without a step, evaluation and saving within {:?}, end within {:?}",
            self.silence,
            self.heartbeat,
            self.silence,
            self.stall_ceiling(Some(Duration::ZERO)),
            self.callback,
            self.shutdown
        )
    }
}
