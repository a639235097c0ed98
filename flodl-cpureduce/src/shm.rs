//! Memory that the ranks of a host share with their relay, so that no chunk goes through a socket.
//!
//! A relay makes three kinds of segments and hands their descriptors to its ranks:
//!
//! - a [`Lane`] for each life of a rank: a ring of [`SLOTS`] chunks that stays in the cache. The rank scales its contribution
//!   into it ([`LaneWriter`]), the relay folds out of it ([`LaneReader`]) and gives the slots back as it goes;
//! - one [`Board`]: room for two whole results, which only the relay can write. Ranks read a result as it grows
//!   ([`BoardReader`]) and copy it out once its round is committed;
//! - one [`Bells`]: what the relay sleeps on while no lane has anything.
//!
//! Nobody sends a message for a chunk. Whoever finds nothing looks again for a moment, then says that it sleeps and waits on a
//! futex, for [`NAP`] at most; whoever makes something available wakes the other side only where that has said so ([`Bell`]).
//!
//! **What holds whatever the other side does.** A segment is sealed: its size can never change again, so no access faults, and
//! after it was laid out nobody but the relay can map the board for writing. (A process that was handed it could have mapped it
//! before, against the protocol: ranks of one host run as one user and trust each other that far.) Each side checks size and
//! seals of what it is handed and
//! keeps its own counters; of what the other side writes it takes only flags, and numbers that it copies once and checks. All
//! else is the elements of a model, which are valid whatever their bits. A rank that writes where it should not changes its own
//! contribution while it is folded. A segment is memory of its processes and goes with the last of them.
//!
//! **`unsafe`.** Mapping memory, and making slices of it, is in `segment` and in the few lines of the others that say which
//! slot is whose. Rust's memory model has no word for a slice that another process writes meanwhile. The protocol hands each
//! slot and each half of the board to one side at a time; where a rank breaks it, what is read are other numbers.

#![expect(unsafe_code, reason = "memory of several processes is mapped and handed from one to another here")]

mod bell;
mod board;
mod lane;
mod segment;
#[cfg(test)]
mod tests;

pub use bell::{Bell, Bells, NAP};
pub use board::{Board, BoardReader, Whole};
pub use lane::{Lane, LaneReader, LaneWriter, Note, SLOTS, Sent, Slot};

use std::io;
use thiserror::Error;

/// Why memory cannot be shared. Chunks go through the socket then.
#[derive(Debug, Error)]
pub enum ShmError {
    /// The system does not give the memory.
    #[error("the system gives no shared memory of {bytes} bytes: {error}; without it chunks go through sockets")]
    System {
        /// Bytes that were asked for.
        bytes: u64,
        /// Why not.
        error: io::Error,
    },
    /// It has another size than it must have.
    #[error("shared memory has {got} bytes where {expected} are needed: relay and rank are not of one version")]
    Size {
        /// Bytes that are needed.
        expected: u64,
        /// Bytes that it has.
        got: u64,
    },
    /// Its size could still change under whoever uses it.
    #[error("shared memory is not sealed: it is not what a relay hands out")]
    Seals,
    /// It is something else than the segment that it should be.
    #[error(
        "shared memory has the mark {got:#x} where {expected:#x} is expected: relay and rank are not of one version"
    )]
    Mark {
        /// Of the segment that is expected.
        expected: u64,
        /// What is there.
        got: u64,
    },
}

/// What a rank wrote into its lane that no chunk of a model can be. Its lane is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum LaneBreach {
    /// Longer than a slot.
    #[error("its lane holds a chunk of {bytes} bytes, which no chunk has")]
    Length {
        /// The length that it named.
        bytes: u32,
    },
    /// Neither a chunk nor an absence.
    #[error("its lane holds a note of kind {kind}, which there is not")]
    Kind {
        /// The kind that it named.
        kind: u32,
    },
}
