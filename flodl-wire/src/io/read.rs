//! Frames from a stream.

use crate::frame::{Frame, OpenError, Opener};
use crate::limits::READ_AHEAD;
use core::fmt;
use futures_lite::io::{AsyncRead, AsyncReadExt};
use std::io::ErrorKind;
use thiserror::Error;

/// Why there is no further frame. The connection is over.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum RecvError {
    /// The bytes are not the next frame.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream ended inside a frame.
    #[error("the connection closed inside a frame, {missing} bytes before the end of its current part")]
    Truncated {
        /// Bytes missing of the frame's header or of its payload and tag.
        missing: usize,
    },
    /// The stream failed.
    #[error("reading from the connection failed: {kind}")]
    Io {
        /// How.
        kind: ErrorKind,
    },
}

/// Reads the frames of one connection, in order.
pub struct FrameReader<R> {
    stream: R,
    opener: Opener,
    ahead: Box<[u8]>,
    /// What of `ahead` is read and not yet given to the decoder.
    staged: core::ops::Range<usize>,
}

impl<R> fmt::Debug for FrameReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("FrameReader");
        debug.field("opener", &self.opener).field("staged", &self.staged.len()).finish_non_exhaustive()
    }
}

impl<R> FrameReader<R> {
    /// A reader of the frames that `opener` opens.
    pub fn new(stream: R, opener: Opener) -> FrameReader<R> {
        FrameReader { stream, opener, ahead: vec![0; READ_AHEAD].into(), staged: 0..0 }
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// The next frame; `None` where the stream ended between frames.
    ///
    /// Cancel-safe: dropping the future loses nothing, the next call goes on where it was.
    ///
    /// # Errors
    ///
    /// Where the bytes are not the next frame, the stream ends inside one, or fails.
    pub async fn next(&mut self) -> Result<Option<Frame>, RecvError> {
        loop {
            let mut staged = self.ahead.get(self.staged.clone()).unwrap_or_default();
            let frame = self.opener.feed(&mut staged);
            self.staged.start = self.staged.end.saturating_sub(staged.len());
            if let Some(frame) = frame? {
                return Ok(Some(frame));
            }
            // Everything staged is taken. Small frames are read many at a time, the rest of a large one straight into place.
            let straight = self.opener.missing() >= READ_AHEAD;
            let target = if straight { self.opener.space() } else { &mut self.ahead[..] };
            let n = match self.stream.read(target).await {
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(RecvError::Io { kind: error.kind() }),
            };
            if n == 0 && self.opener.between_frames() {
                return Ok(None);
            }
            if n == 0 {
                return Err(RecvError::Truncated { missing: self.opener.missing() });
            }
            if !straight {
                self.staged = 0..n;
            } else if let Some(frame) = self.opener.filled(n)? {
                return Ok(Some(frame));
            }
        }
    }
}
