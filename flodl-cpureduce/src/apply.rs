//! How a replica takes the result of a round.

use crate::kernel;
use core::fmt;
use thiserror::Error;

/// How far a replica goes to the consensus: above 0, up to 1, which is all the way.
///
/// Less than 1 is elastic averaging: replicas keep a part of what they are and explore around the consensus (S. Zhang,
/// A. Choromanska, Y. LeCun, "Deep learning with elastic averaging SGD", NIPS 2015, arXiv:1412.6651, where it is `alpha`).
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct Pull(f32);

/// A number that is no pull.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[error("{value} is no pull: use a number above 0, up to 1")]
pub struct PullError {
    /// The number.
    pub value: f32,
}

impl Pull {
    /// All the way.
    pub const FULL: Pull = Pull(1.0);

    /// A pull of that strength.
    ///
    /// # Errors
    /// [`PullError`] unless it is above 0 and at most 1.
    pub fn new(value: f32) -> Result<Self, PullError> {
        if value > 0.0 && value <= 1.0 { Ok(Self(value)) } else { Err(PullError { value }) }
    }

    /// The strength.
    #[must_use]
    pub const fn value(self) -> f32 {
        self.0
    }
}

impl Default for Pull {
    fn default() -> Self {
        Self::FULL
    }
}

impl fmt::Display for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Takes a chunk of the result into a replica's parameters: `values += pull * (consensus - snapshot)`.
///
/// `snapshot` is what the replica contributed where it has trained on meanwhile (the result is applied late, and what was
/// trained since stays), and `None` where it has not: then a full pull gives the bits of the consensus.
///
/// # Panics
/// Where the lengths do not belong together.
///
/// ```
/// use flodl_cpureduce::{Mass, Pull, apply_result, contribution_chunk};
/// let (consensus, _) = contribution_chunk(&[8.0], Mass::ONE);
/// let snapshot = [4.0];
/// let mut late = [5.0]; // one more has been trained since the snapshot
/// apply_result(&mut late, &consensus, Some(&snapshot), Pull::FULL);
/// assert_eq!(late, [9.0]);
///
/// let mut elastic = snapshot;
/// apply_result(&mut elastic, &consensus, None, Pull::new(0.25)?);
/// assert_eq!(elastic, [5.0]);
/// # Ok::<(), flodl_cpureduce::PullError>(())
/// ```
pub fn apply_result(values: &mut [f32], consensus: &[u8], snapshot: Option<&[f32]>, pull: Pull) {
    match snapshot {
        Some(snapshot) => kernel::pull_towards(values, consensus, snapshot, pull.0),
        None if pull == Pull::FULL => kernel::read_f32(consensus, values),
        None => kernel::pull(values, consensus, pull.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mass, contribution_chunk};

    #[test]
    fn only_usable_numbers_are_pulls() {
        assert_eq!(Pull::new(1.0), Ok(Pull::FULL));
        assert!(Pull::new(1e-3).is_ok());
        for value in [0.0, -0.5, 1.001, f32::INFINITY] {
            assert_eq!(Pull::new(value), Err(PullError { value }));
        }
        assert!(Pull::new(f32::NAN).is_err());
    }

    #[test]
    fn a_full_pull_is_the_consensus_bit_by_bit() {
        let consensus = [0.1, -0.0, 1e-42, f32::MAX];
        let mut values = [3e7, 5.0, 1.0, f32::MIN];
        apply_result(&mut values, &contribution_chunk(&consensus, Mass::ONE).0, None, Pull::FULL);
        assert_eq!(values.map(f32::to_bits), consensus.map(f32::to_bits));
    }

    #[test]
    fn pulled_again_and_again_a_replica_comes_near() {
        let (consensus, _) = contribution_chunk(&[16.0, -16.0], Mass::ONE);
        let mut values = [0.0, 0.0];
        for left in [8.0, 4.0, 2.0, 1.0] {
            apply_result(&mut values, &consensus, None, Pull::new(0.5).unwrap());
            assert_eq!(values, [16.0 - left, left - 16.0]);
        }
    }

    #[test]
    fn what_was_trained_since_the_snapshot_stays_whenever_the_result_comes() {
        let (consensus, _) = contribution_chunk(&[10.0], Mass::ONE);
        let snapshot = [2.0];
        for trained in [0.0, 0.5, -3.0] {
            for pull in [0.25, 1.0] {
                let mut values = [snapshot[0] + trained];
                apply_result(&mut values, &consensus, Some(&snapshot), Pull::new(pull).unwrap());
                assert_eq!(values, [2.0 + pull * 8.0 + trained]);
            }
        }
    }
}
