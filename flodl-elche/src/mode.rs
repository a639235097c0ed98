//! What a run is asked for: a policy (how ranks wait for each other) over a back end (how their replicas are averaged).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How ranks wait for each other.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Policy {
    /// One batch a rank, then a round.
    Sync,
    /// Windows of many batches; all wait at the round.
    Cadence,
    /// Windows of many batches; a rank goes on training while its round is reduced.
    Async,
}

/// What ranks wait for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Barrier {
    /// All of them, after every batch.
    EveryStep,
    /// All of them, at the end of each window.
    EachRound,
    /// Nobody, as long as no more than one round is being averaged.
    None,
}

impl fmt::Display for Barrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EveryStep => "every step",
            Self::EachRound => "at each round",
            Self::None => "none: a rank trains on while its round is averaged",
        })
    }
}

/// How a policy begins where nothing else is said.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PolicyDefaults {
    /// Batches of the slowest rank in the first window.
    pub anchor: u32,
    /// Whether windows grow and shrink.
    pub moves: bool,
    /// What ranks wait for.
    pub barrier: Barrier,
}

impl Policy {
    /// How the policy begins where nothing else is said.
    pub const fn defaults(self) -> PolicyDefaults {
        match self {
            Self::Sync => PolicyDefaults { anchor: 1, moves: false, barrier: Barrier::EveryStep },
            Self::Cadence => PolicyDefaults { anchor: 4, moves: true, barrier: Barrier::EachRound },
            Self::Async => PolicyDefaults { anchor: 4, moves: true, barrier: Barrier::None },
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync => "sync",
            Self::Cadence => "cadence",
            Self::Async => "async",
        })
    }
}

/// How a rank knows that its window is over.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Windowing {
    /// By its own time: it ends within half a batch of the others, however its speed drifts inside the window.
    #[default]
    Budget,
    /// By a number of batches in proportion to its speed; kept to compare with.
    Count,
}

/// A policy with its back end.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Every step averaged over NCCL.
    NcclSync,
    /// Windows averaged over NCCL.
    NcclCadence,
    /// Every step averaged over the CPU.
    CpuSync,
    /// Windows averaged over the CPU.
    CpuCadence,
    /// Windows averaged over the CPU while training goes on.
    CpuAsync,
}

impl Mode {
    /// All modes, in the order in which help texts list them.
    pub const ALL: [Self; 5] = [Self::CpuSync, Self::CpuCadence, Self::CpuAsync, Self::NcclSync, Self::NcclCadence];

    /// The policy of the mode.
    pub const fn policy(self) -> Policy {
        match self {
            Self::NcclSync | Self::CpuSync => Policy::Sync,
            Self::NcclCadence | Self::CpuCadence => Policy::Cadence,
            Self::CpuAsync => Policy::Async,
        }
    }

    /// Whether replicas are averaged over the CPU (otherwise over NCCL).
    pub const fn is_cpu(self) -> bool {
        matches!(self, Self::CpuSync | Self::CpuCadence | Self::CpuAsync)
    }

    /// What a run takes where no mode is given: windows, over NCCL where at least two GPUs can average among themselves.
    pub const fn preferred(gpus: u32) -> Self {
        if gpus >= 2 { Self::NcclCadence } else { Self::CpuCadence }
    }

    /// All modes and how they begin, as a table in Markdown (the one in the crate's README).
    pub fn table() -> String {
        let mut table = String::from("| mode | policy | averaged over | anchor | barrier |\n|---|---|---|---|---|\n");
        for mode in Self::ALL {
            let PolicyDefaults { anchor, moves, barrier } = mode.policy().defaults();
            let over = if mode.is_cpu() { "CPU" } else { "NCCL" };
            let anchor = if moves { format!("{anchor}, then as the overhead asks") } else { anchor.to_string() };
            table += &format!("| `{mode}` | {} | {over} | {anchor} | {barrier} |\n", mode.policy());
        }
        table
    }

    const fn name(self) -> &'static str {
        match self {
            Self::NcclSync => "nccl-sync",
            Self::NcclCadence => "nccl-cadence",
            Self::CpuSync => "cpu-sync",
            Self::CpuCadence => "cpu-cadence",
            Self::CpuAsync => "cpu-async",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no mode.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no mode {word:?}: take cpu-sync, cpu-cadence, cpu-async, nccl-sync or nccl-cadence")]
pub struct UnknownMode {
    /// The word.
    pub word: String,
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(word: &str) -> Result<Self, UnknownMode> {
        let mode = Self::ALL.into_iter().find(|mode| mode.name() == word);
        mode.ok_or_else(|| UnknownMode { word: word.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_this_table() {
        assert!(include_str!("../README.md").contains(&Mode::table()), "put this in:\n{}", Mode::table());
    }

    #[test]
    fn names_go_both_ways() {
        for (name, mode, policy, cpu) in [
            ("cpu-sync", Mode::CpuSync, Policy::Sync, true),
            ("cpu-cadence", Mode::CpuCadence, Policy::Cadence, true),
            ("cpu-async", Mode::CpuAsync, Policy::Async, true),
            ("nccl-sync", Mode::NcclSync, Policy::Sync, false),
            ("nccl-cadence", Mode::NcclCadence, Policy::Cadence, false),
        ] {
            assert_eq!(name.parse(), Ok(mode));
            assert_eq!(mode.to_string(), name);
            assert_eq!((mode.policy(), mode.is_cpu()), (policy, cpu));
        }
        assert_eq!((Mode::preferred(1), Mode::preferred(2)), (Mode::CpuCadence, Mode::NcclCadence));
        assert_eq!("CPU".parse::<Mode>(), Err(UnknownMode { word: "CPU".into() }));
    }
}
