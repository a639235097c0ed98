//! Frames to a stream.

use crate::Incarnation;
use crate::connection::Outbox;
use crate::frame::{Frame, SealError, Sealer, Stream};
use crate::limits::WRITE_BEHIND;
use crate::message::Data;
use core::fmt;
use futures_lite::io::{AsyncWrite, AsyncWriteExt};
use std::io::ErrorKind;
use thiserror::Error;

/// Why a frame was not sent.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// The other side would refuse it. The connection is unharmed.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The stream failed. The connection is over.
    #[error("writing to the connection failed: {kind}")]
    Io {
        /// How.
        kind: ErrorKind,
    },
}

/// Writes frames to one connection, in order.
///
/// Frames gather until [`WRITE_BEHIND`] bytes are sealed or [`FrameWriter::flush`] is called: **call it whenever nothing more is
/// to be sent at once**. Every method is cancel-safe: a frame is sealed whole or not at all, and bytes that were not written stay
/// for the next call.
pub struct FrameWriter<W> {
    stream: W,
    sealer: Sealer,
    outbox: Outbox,
}

impl<W> fmt::Debug for FrameWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("FrameWriter");
        debug.field("sealer", &self.sealer).field("pending", &self.pending()).finish_non_exhaustive()
    }
}

impl<W> FrameWriter<W> {
    /// A writer of the frames that `sealer` seals.
    pub fn new(stream: W, sealer: Sealer) -> FrameWriter<W> {
        FrameWriter { stream, sealer, outbox: Outbox::default() }
    }

    /// Bytes that are sealed and not yet written.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.outbox.len()
    }
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Queues `frame`; writes what is queued already where that is much. A future that is dropped has not queued it.
    ///
    /// # Errors
    ///
    /// Where the other side would refuse the frame, or the stream fails.
    pub async fn send(&mut self, frame: &Frame) -> Result<(), SendError> {
        self.make_room().await?;
        Ok(self.sealer.seal(frame, self.outbox.end())?)
    }

    /// The same for a data message: a chunk's elements are copied once, to where they are sealed.
    ///
    /// # Errors
    ///
    /// Where the other side would refuse the frame, or the stream fails.
    pub async fn send_data(&mut self, stream: Stream, incarnation: Incarnation, data: &Data) -> Result<(), SendError> {
        self.make_room().await?;
        Ok(self.sealer.seal_data(stream, incarnation, data, self.outbox.end())?)
    }

    /// Writes all that is queued, and flushes the stream.
    ///
    /// # Errors
    ///
    /// Where the stream fails.
    pub async fn flush(&mut self) -> Result<(), SendError> {
        self.write_out().await?;
        self.stream.flush().await.map_err(|error| SendError::Io { kind: error.kind() })
    }

    /// Writes all that is queued, and closes the stream: the other side sees the end between two frames.
    ///
    /// # Errors
    ///
    /// Where the stream fails.
    pub async fn close(&mut self) -> Result<(), SendError> {
        self.flush().await?;
        self.stream.close().await.map_err(|error| SendError::Io { kind: error.kind() })
    }

    async fn make_room(&mut self) -> Result<(), SendError> {
        if self.pending() >= WRITE_BEHIND {
            self.write_out().await?;
        }
        Ok(())
    }

    async fn write_out(&mut self) -> Result<(), SendError> {
        while self.pending() > 0 {
            match self.stream.write(self.outbox.waiting()).await {
                Ok(0) => return Err(SendError::Io { kind: ErrorKind::WriteZero }),
                Ok(n) => self.outbox.written(n),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(SendError::Io { kind: error.kind() }),
            }
        }
        Ok(())
    }
}
