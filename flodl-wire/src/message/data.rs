//! What travels on the data channel: chunks of tensors, and who is not in them.

use crate::{Incarnation, Rank, Round, Version};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A message of the data channel. Between the relay and the root of one process it travels as it is; on a connection it is
/// a frame with a fixed header of its own (see `docs/PROTOCOL.md`).
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Up: one chunk of a contribution, already multiplied by its mass.
    Contribution(Chunk),
    /// Up: nothing of this contributor from that chunk on.
    Absent {
        /// The round.
        round: Round,
        /// The first chunk that will not come.
        from_chunk: u32,
        /// Why.
        why: AbsentWhy,
    },
    /// Up, before the first chunk without that rank: whose work is missing.
    Dropped {
        /// The round.
        round: Round,
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// The first chunk without it.
        from_chunk: u32,
        /// Why.
        why: AbsentWhy,
    },
    /// Down: one chunk of the result, divided by its mass.
    Consensus(Chunk),
    /// Up, before anything else of a round: the sender holds that consensus, and reads results that are differences from
    /// it. Who does not say so gets results as they are.
    Holds {
        /// The round.
        round: Round,
        /// Its version.
        version: Version,
        /// xxh3 over its chunks in order.
        digest: u64,
    },
    /// Down, to a relay that says what it holds: nothing of its own is in the round from that chunk on.
    LeftOut {
        /// The round.
        round: Round,
        /// The first chunk without it.
        from_chunk: u32,
        /// Why.
        why: AbsentWhy,
    },
}

/// One chunk of tensors, little-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunk {
    /// The round.
    pub round: Round,
    /// Up: the consensus that the sender holds; down: the version this becomes if it commits.
    pub version: Version,
    /// Which chunk, from 0.
    pub chunk: u32,
    /// The mass folded into it: finite, >= 0. A result chunk of mass 0 is the previous consensus; where its codec names
    /// that as its base, it has no elements.
    pub mass: f64,
    /// How `bytes` are coded.
    pub codec: Codec,
    /// The chunk's elements.
    pub bytes: Bytes,
}

/// How a chunk's elements are coded.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    /// As they are: f32, or i64 in the integer section.
    Exact,
    /// Differences from a consensus, two bytes each: the upper half of an f32.
    Bf16 {
        /// The version of that consensus, at most the chunk's own.
        base: Version,
    },
    /// Differences from a consensus, one byte each, with an f32 scale before each 256 of them.
    Int8 {
        /// The version of that consensus, at most the chunk's own.
        base: Version,
    },
}

impl Codec {
    /// The version of the consensus that differences are from; `None` for elements as they are.
    #[must_use]
    pub const fn base(self) -> Option<Version> {
        match self {
            Codec::Exact => None,
            Codec::Bf16 { base } | Codec::Int8 { base } => Some(base),
        }
    }
}

/// Why a contribution is missing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AbsentWhy {
    /// It holds no consensus yet.
    Joining,
    /// It took no step.
    NothingTrained,
    /// Its replica holds a non-finite value.
    NonFinite,
    /// It is dead.
    Dead,
    /// The link to it is gone.
    LinkLost,
    /// It named another consensus than the one in force.
    Stale,
    /// Nobody below this relay contributes.
    Empty,
}
