//! Guards: whether the replicas drift apart too far for longer windows.

use crate::span::Slot;

/// What a guard says of a round.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Windows may grow.
    Stable,
    /// Windows may not grow for a while.
    SuppressGrowth,
    /// Windows have to become shorter now.
    NudgeDown {
        /// The anchor is multiplied by this, clamped to [0.1, 1].
        factor: f64,
    },
}

/// The norms of a member's parameters before and after it took a round's consensus.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Norms {
    /// Euclidean norm of the replica at its snapshot.
    pub pre: f64,
    /// Euclidean norm of the consensus.
    pub post: f64,
}

/// What a guard sees of a committed round. Values that are not finite have been taken out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuardInput {
    /// |replica - consensus| / |consensus| of each member that reported it; a member that did not is missing, not 0.
    pub divergence: Vec<(Slot, f64)>,
    /// Optimizer steps each member contributed.
    pub steps: Vec<(Slot, u32)>,
    /// The largest of those.
    pub k_max: u32,
    /// Norms of each member that reported them.
    pub norms: Vec<(Slot, Norms)>,
}

/// Looks at each committed round and says whether windows may grow.
pub trait Guard: Send {
    /// The verdict on one round; called once a round, in order.
    fn verdict(&mut self, input: &GuardInput) -> Verdict;
}

/// The guard that is always content.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NoGuard;

impl Guard for NoGuard {
    fn verdict(&mut self, _input: &GuardInput) -> Verdict {
        Verdict::Stable
    }
}
