//! How many ranks may be missing before the run ends.

use core::fmt;
use core::str::FromStr;
use flodl_wire::message::record::Reason;
use serde::{Deserialize, Serialize};

/// The losses that a run bears. What counts is who is missing at the same time: a rank that is back in the run does not.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MaxFailure {
    /// The run goes on while anybody is left.
    #[default]
    None,
    /// So many missing ranks end it; at least 1.
    Absolute(u32),
    /// So many percent of the largest world so far, rounded up and at least one rank, end it; 1..=100.
    Percent(u8),
}

/// More ranks are missing than the run bears.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct TooManyLost {
    /// Ranks that are missing.
    pub missing: u32,
    /// The number at which the run ends.
    pub limit: u32,
    /// What was asked for.
    pub max_failure: MaxFailure,
}

/// A text that is no such limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write none, a number of ranks from 1 on, or a percentage of the run's ranks from 1% to 100%, not \"{given}\"")]
pub struct MaxFailureError {
    /// What was given.
    pub given: String,
}

impl MaxFailure {
    /// Whether it can be meant: no limit is 0, no percentage above 100.
    #[must_use]
    pub fn is_possible(self) -> bool {
        match self {
            MaxFailure::None => true,
            MaxFailure::Absolute(ranks) => ranks >= 1,
            MaxFailure::Percent(percent) => (1..=100).contains(&percent),
        }
    }

    /// The number of missing ranks at which a run ends whose world was `largest` ranks at its largest.
    #[must_use]
    pub fn limit(self, largest: u32) -> Option<u32> {
        match self {
            MaxFailure::None => None,
            MaxFailure::Absolute(ranks) => Some(ranks.max(1)),
            MaxFailure::Percent(percent) => {
                let share = (u64::from(largest) * u64::from(percent)).div_ceil(100);
                Some(u32::try_from(share).unwrap_or(u32::MAX).max(1))
            }
        }
    }

    /// Whether the run bears it that `missing` ranks are gone.
    ///
    /// # Errors
    /// That it does not.
    pub fn bears(self, missing: u32, largest: u32) -> Result<(), TooManyLost> {
        match self.limit(largest) {
            Some(limit) if missing >= limit => Err(TooManyLost { missing, limit, max_failure: self }),
            _ => Ok(()),
        }
    }
}

impl FromStr for MaxFailure {
    type Err = MaxFailureError;

    fn from_str(text: &str) -> Result<MaxFailure, MaxFailureError> {
        let parsed = match text.strip_suffix('%') {
            _ if text == "none" => Some(MaxFailure::None),
            Some(percent) => percent.parse().ok().map(MaxFailure::Percent),
            None => text.parse().ok().map(MaxFailure::Absolute),
        };
        parsed.filter(|limit| limit.is_possible()).ok_or_else(|| MaxFailureError { given: text.to_owned() })
    }
}

impl fmt::Display for MaxFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MaxFailure::None => f.write_str("none"),
            MaxFailure::Absolute(ranks) => write!(f, "{ranks}"),
            MaxFailure::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl fmt::Display for TooManyLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TooManyLost { missing, limit, max_failure } = self;
        let ranks = if *missing == 1 { "rank is" } else { "ranks are" };
        write!(f, "{missing} {ranks} missing, and the run ends at {limit} (--max-failure {max_failure})")
    }
}

impl From<&TooManyLost> for Reason {
    fn from(lost: &TooManyLost) -> Reason {
        Reason::new("max-failure", lost.to_string())
            .with("missing", f64::from(lost.missing))
            .with("limit", f64::from(lost.limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_largest_world() {
        let cases = [
            (MaxFailure::None, 8, None),
            (MaxFailure::Absolute(1), 8, Some(1)),
            (MaxFailure::Absolute(9), 8, Some(9)),
            (MaxFailure::Percent(25), 8, Some(2)),
            (MaxFailure::Percent(26), 8, Some(3)),
            (MaxFailure::Percent(1), 8, Some(1)),
            (MaxFailure::Percent(100), 8, Some(8)),
            (MaxFailure::Percent(10), 0, Some(1)),
            (MaxFailure::Percent(100), u32::MAX, Some(u32::MAX)),
        ];
        for (max_failure, largest, limit) in cases {
            assert_eq!(max_failure.limit(largest), limit, "{max_failure} of {largest}");
        }
        assert_eq!(MaxFailure::Absolute(2).bears(1, 8), Ok(()));
        assert_eq!(MaxFailure::None.bears(u32::MAX, 8), Ok(()));
        let lost = MaxFailure::Percent(25).bears(2, 8).expect_err("that is too many");
        assert_eq!(lost.to_string(), "2 ranks are missing, and the run ends at 2 (--max-failure 25%)");
    }

    #[test]
    fn texts() {
        for (text, limit) in [
            ("none", MaxFailure::None),
            ("1", MaxFailure::Absolute(1)),
            ("4294967295", MaxFailure::Absolute(u32::MAX)),
            ("30%", MaxFailure::Percent(30)),
        ] {
            assert_eq!(text.parse(), Ok(limit));
            assert_eq!(limit.to_string(), text);
        }
        for text in ["", "0", "0%", "101%", "-1", "%", "1.5", "some", "4294967296", "1 %"] {
            let error = text.parse::<MaxFailure>().expect_err(text).to_string();
            assert!(error.ends_with(&format!("not \"{text}\"")), "{error}");
        }
    }
}
