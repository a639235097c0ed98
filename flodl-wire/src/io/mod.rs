//! Handshakes and frames over any futures-style stream (feature `io`).
//!
//! [`connect`] and [`accept`] make a [`Link`] of a stream; [`Link::split`] makes a [`FrameReader`] and a [`FrameWriter`] of it, which
//! never wait for each other.

mod duplex;
mod read;
mod shake;
mod write;

pub use crate::connection::Deadlines;
pub use duplex::{Duplex, duplex};
pub use read::{FrameReader, RecvError};
pub use shake::{accept, accept_within, connect, connect_within};
pub use write::{FrameWriter, SendError};

use crate::SessionId;
use crate::handshake::{Capabilities, Established};
use core::fmt;
use core::time::Duration;
use futures_lite::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf, split};

/// A connection whose both sides have proven who they are.
pub struct Link<S> {
    /// The connection's session, given by the accepting side.
    pub session: SessionId,
    /// The knob that all deadlines derive from.
    pub patience: Duration,
    /// How often the controller has been restarted.
    pub generation: u64,
    /// The membership epoch in force when the link was made.
    pub membership_epoch: u64,
    /// What the accepting side has chosen of what was offered.
    pub capabilities: Capabilities,
    stream: S,
    established: Parts,
}

struct Parts {
    sealer: crate::frame::Sealer,
    opener: crate::frame::Opener,
}

impl<S> fmt::Debug for Link<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Link");
        debug.field("session", &self.session).field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl<S> Link<S> {
    fn new(stream: S, established: Established) -> Link<S> {
        let Established { session, patience, generation, membership_epoch, capabilities, sealer, opener } = established;
        let established = Parts { sealer, opener };
        Link { session, patience, generation, membership_epoch, capabilities, stream, established }
    }

    /// The two directions, for a stream that can be used from two places by itself (`Clone`, or `&S` that reads and writes).
    pub fn split_with<R, W>(self, halves: impl FnOnce(S) -> (R, W)) -> (FrameReader<R>, FrameWriter<W>) {
        let (read, write) = halves(self.stream);
        (FrameReader::new(read, self.established.opener), FrameWriter::new(write, self.established.sealer))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Link<S> {
    /// The two directions, each for a task of its own.
    pub fn split(self) -> (FrameReader<ReadHalf<S>>, FrameWriter<WriteHalf<S>>) {
        self.split_with(split)
    }
}
