//! The outer optimizer: what the root makes of an average before it becomes the consensus.

mod momentum;

pub use momentum::{Momentum, MomentumError, Nesterov, SlowMomentum};

use crate::{ChunkSpec, Layout};
use core::fmt;
use core::str::FromStr;
use thiserror::Error;

/// A step from the previous consensus towards the average of a round, chunk by chunk.
///
/// Local training is an optimizer of its own kind: `previous - average` acts as its gradient, and an outer optimizer
/// decides how far to follow it. Implementations with state (a momentum as large as the parameters) keep what a round
/// changes apart until [`Outer::commit`], because a round can be abandoned after any chunk.
pub trait Outer: fmt::Debug + Send {
    /// Turns the average of a parameter chunk into its new consensus, in place. Both slices are little-endian `f32` of
    /// the chunk's length. Called once a round and chunk, in chunk order, and not for chunks that nobody contributed to
    /// or that have no previous consensus. A result with a value that is not finite is not taken.
    fn step(&mut self, chunk: &ChunkSpec, previous: &[u8], average: &mut [u8]);

    /// The chunk keeps its previous consensus in this round: so must its state.
    fn keep(&mut self, _chunk: &ChunkSpec) {}

    /// The round is committed: what its steps changed is the state now.
    fn commit(&mut self) {}

    /// The round is abandoned: the state is what it was before.
    fn abandon(&mut self) {}

    /// The state after the last committed round, for a checkpoint; empty without any.
    fn state(&self, _layout: &Layout) -> Vec<u8> {
        Vec::new()
    }

    /// Takes up a state that [`Outer::state`] gave, of the same model in chunks of any size.
    ///
    /// # Errors
    /// [`OuterStateError`]; the state is what it was then.
    fn restore(&mut self, _layout: &Layout, state: &[u8]) -> Result<(), OuterStateError> {
        if state.is_empty() { Ok(()) } else { Err(OuterStateError::Kind) }
    }
}

/// Why a state cannot be taken up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum OuterStateError {
    /// It is not a state of this outer optimizer.
    #[error("the state is that of another outer optimizer: use the one that the checkpoint was made with")]
    Kind,
    /// It belongs to a model of another size.
    #[error("the outer state has {got} bytes where this model needs {expected}: check that it belongs to this model")]
    Length {
        /// Bytes of a state of this model.
        expected: u64,
        /// Bytes that came.
        got: usize,
    },
    /// It was damaged.
    #[error("the outer state was damaged: its digest is another one")]
    Digest,
    /// A value is infinite or not a number.
    #[error("the outer state holds a value that is not finite")]
    NonFinite,
}

/// The average itself becomes the consensus. Has no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Average;

impl Outer for Average {
    fn step(&mut self, _chunk: &ChunkSpec, _previous: &[u8], _average: &mut [u8]) {}
}

/// Which outer optimizer a run has: `average`, `slow-momentum:LEARNING_RATE,MOMENTUM` or `nesterov:LEARNING_RATE,MOMENTUM`
/// when read or shown.
///
/// ```
/// use flodl_cpureduce::{Momentum, OuterRule};
/// let rule: OuterRule = "nesterov:0.7,0.9".parse()?;
/// assert_eq!(rule, OuterRule::Nesterov(Momentum::new(0.7, 0.9)?));
/// assert_eq!(rule.to_string(), "nesterov:0.7,0.9");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum OuterRule {
    /// [`Average`].
    #[default]
    Average,
    /// [`SlowMomentum`].
    SlowMomentum(Momentum),
    /// [`Nesterov`].
    Nesterov(Momentum),
}

impl OuterRule {
    /// The optimizer, without a past.
    #[must_use]
    pub fn optimizer(self) -> Box<dyn Outer> {
        match self {
            OuterRule::Average => Box::new(Average),
            OuterRule::SlowMomentum(momentum) => Box::new(SlowMomentum::new(momentum)),
            OuterRule::Nesterov(momentum) => Box::new(Nesterov::new(momentum)),
        }
    }
}

impl fmt::Display for OuterRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OuterRule::Average => f.write_str("average"),
            OuterRule::SlowMomentum(momentum) => write!(f, "slow-momentum:{momentum}"),
            OuterRule::Nesterov(momentum) => write!(f, "nesterov:{momentum}"),
        }
    }
}

/// Why a text names no outer optimizer.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum OuterRuleError {
    /// Another form.
    #[error(
        "\"{text}\" is no outer optimizer: use average, slow-momentum:RATE,MOMENTUM or nesterov:RATE,MOMENTUM, such as \
         nesterov:0.7,0.9"
    )]
    Form {
        /// The text.
        text: String,
    },
    /// Numbers out of range.
    #[error(transparent)]
    Momentum(#[from] MomentumError),
}

impl FromStr for OuterRule {
    type Err = OuterRuleError;

    fn from_str(text: &str) -> Result<Self, OuterRuleError> {
        let form = || OuterRuleError::Form { text: text.to_owned() };
        if text == "average" {
            return Ok(OuterRule::Average);
        }
        let (name, numbers) = text.split_once(':').ok_or_else(form)?;
        let (rate, momentum) = numbers.split_once(',').ok_or_else(form)?;
        let number = |text: &str| text.parse::<f32>().map_err(|_| form());
        let rule = match name {
            "slow-momentum" => OuterRule::SlowMomentum,
            "nesterov" => OuterRule::Nesterov,
            _ => return Err(form()),
        };
        Ok(rule(Momentum::new(number(rate)?, number(momentum)?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_as_they_are_shown_and_others_refused() {
        let momentum = Momentum::new(0.7, 0.9).unwrap();
        for rule in [OuterRule::Average, OuterRule::SlowMomentum(momentum), OuterRule::Nesterov(momentum)] {
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
        for text in ["", "Average", "average:1,0", "nesterov", "nesterov:1", "nesterov:1,x", "adam:1,0.9"] {
            assert_eq!(text.parse::<OuterRule>(), Err(OuterRuleError::Form { text: text.to_owned() }));
        }
        let error = "nesterov:0,0.9".parse::<OuterRule>();
        assert_eq!(error, Err(OuterRuleError::Momentum(MomentumError::LearningRate { value: 0.0 })));
    }
}
