//! Weighted, streamed, bit-reproducible averaging of model parameters on the CPU.
//!
#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

mod apply;
mod codec;
mod consensus;
mod digest;
pub mod kernel;
mod layout;
mod mass;
mod outer;
mod rooms;
mod round;
#[cfg(all(feature = "shm", target_os = "linux"))]
pub mod shm;
mod source;

pub use apply::{Pull, PullError, apply_result};
pub use codec::{Base, Codec, Coded, Coder, DecodeError, UnknownCodec, decode, decode_into};
pub use consensus::{CommitError, Consensus, ConsensusError};
pub use digest::Digest;
pub use layout::{CHUNK_BYTES, CHUNKS_MAX, ChunkSpec, LAYOUT_BYTES_MAX, Layout, LayoutError, Section};
pub use mass::{Mass, MassError};
pub use outer::{
    Average, Momentum, MomentumError, Nesterov, Outer, OuterRule, OuterRuleError, OuterStateError, SlowMomentum,
};
pub use rooms::Rooms;
pub use round::{
    AHEAD_BYTES_MAX, Absence, Contributor, Fold, FoldError, Folded, Outcome, Record, Reject, Summed, Work,
};
pub use source::{AverageError, DivergenceMeter, LengthMismatch, average, contribution_chunk, integer_chunk};
