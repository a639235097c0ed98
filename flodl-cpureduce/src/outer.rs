//! The outer optimizer: what the root makes of an average before it becomes the consensus.

use crate::ChunkSpec;
use core::fmt;

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
}

/// The average itself becomes the consensus. Has no state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Average;

impl Outer for Average {
    fn step(&mut self, _chunk: &ChunkSpec, _previous: &[u8], _average: &mut [u8]) {}
}
