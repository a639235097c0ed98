//! What one rank does for all, as a run is told: who evaluates and who saves, and how often.

use core::fmt;
use core::num::NonZeroU64;
use core::str::FromStr;
use flodl_wire::Rank;
use serde::{Deserialize, Serialize};

/// The evaluation and the checkpoint of a run. Both are made of the final consensus in any case.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duties {
    /// Evaluations.
    pub evaluation: Duty,
    /// Checkpoint sets, with what a rank's program adds to them.
    pub checkpoint: Duty,
}

/// By whom and how often, beside the end of the run and requests of ranks.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Duty {
    /// By whom.
    pub by: Elect,
    /// After every so many epochs.
    pub epochs: Option<NonZeroU64>,
    /// After every so many rounds that made a new version.
    pub rounds: Option<NonZeroU64>,
}

/// Which rank does it. Where it fails or is gone, another one does.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Elect {
    /// The one with the shortest batch time, as long as it lives.
    #[default]
    Fastest,
    /// That one.
    Rank(Rank),
}

/// A text that names no rank.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write \"fastest\" or the number of a rank, not \"{text}\"")]
pub struct ElectError {
    /// What was given.
    pub text: String,
}

impl FromStr for Elect {
    type Err = ElectError;

    fn from_str(text: &str) -> Result<Elect, ElectError> {
        match text.trim() {
            "fastest" => Ok(Elect::Fastest),
            number => {
                number.parse().map(|rank| Elect::Rank(Rank(rank))).map_err(|_| ElectError { text: text.to_owned() })
            }
        }
    }
}

impl fmt::Display for Elect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Elect::Fastest => f.write_str("fastest"),
            Elect::Rank(rank) => write!(f, "{}", rank.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_it_is_read_as_it_is_written() {
        for elect in [Elect::Fastest, Elect::Rank(Rank(12))] {
            assert_eq!(elect.to_string().parse(), Ok(elect));
        }
        for text in ["", "slowest", "-1", "1.5", "rank 1"] {
            assert_eq!(text.parse::<Elect>(), Err(ElectError { text: text.to_owned() }));
        }
    }
}
