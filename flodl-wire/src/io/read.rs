//! Frames from a stream.

use crate::frame::{Frame, OpenError, Opener};
use crate::limits::{FRAME_TIMEOUT, READ_AHEAD};
use async_io::Timer;
use core::fmt;
use core::time::Duration;
use futures_lite::future::or;
use futures_lite::io::{AsyncRead, AsyncReadExt};
use std::io::{self, ErrorKind};
use std::time::Instant;
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
    /// A frame began and did not arrive whole in time.
    #[error("a frame did not arrive whole within {} s, {missing} bytes of its current part are missing", limit.as_secs_f64())]
    Slow {
        /// How long it may take.
        limit: Duration,
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
///
/// A frame must be whole [`FRAME_TIMEOUT`] after its first byte, however its bytes trickle in. How long the connection may be
/// silent between frames is its user's.
pub struct FrameReader<R> {
    stream: R,
    opener: Opener,
    ahead: Box<[u8]>,
    /// What of `ahead` is read and not yet given to the decoder.
    staged: core::ops::Range<usize>,
    frame_limit: Duration,
    /// When the frame that has begun must be whole.
    due: Option<Instant>,
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
        let ahead = vec![0; READ_AHEAD].into();
        FrameReader { stream, opener, ahead, staged: 0..0, frame_limit: FRAME_TIMEOUT, due: None }
    }

    /// The same, with another limit to how long a frame may take.
    #[must_use]
    pub fn with_frame_limit(self, frame_limit: Duration) -> FrameReader<R> {
        FrameReader { frame_limit, ..self }
    }
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// The next frame; `None` where the stream ended between frames.
    ///
    /// Cancel-safe: dropping the future loses nothing, the next call goes on where it was.
    ///
    /// # Errors
    ///
    /// Where the bytes are not the next frame, the stream ends inside one or is too slow with it, or fails.
    pub async fn next(&mut self) -> Result<Option<Frame>, RecvError> {
        loop {
            let mut staged = self.ahead.get(self.staged.clone()).unwrap_or_default();
            let frame = self.opener.feed(&mut staged);
            self.staged.start = self.staged.end.saturating_sub(staged.len());
            if let Some(frame) = frame? {
                self.due = None;
                return Ok(Some(frame));
            }
            if !self.opener.between_frames() {
                self.due = self.due.or_else(|| now().checked_add(self.frame_limit));
            }
            let due = self.due;
            // Everything staged is taken. Small frames are read many at a time, the rest of a large one straight into place.
            let straight = self.opener.missing() >= READ_AHEAD;
            let target = if straight { self.opener.space() } else { &mut self.ahead[..] };
            let n = match read_by(&mut self.stream, target, due).await {
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::TimedOut && due.is_some_and(|due| due <= now()) => {
                    return Err(RecvError::Slow { limit: self.frame_limit, missing: self.opener.missing() });
                }
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
                self.due = None;
                return Ok(Some(frame));
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the deadline of a frame is by the clock of whoever reads it")]
fn now() -> Instant {
    Instant::now()
}

/// Reads what there is; [`ErrorKind::TimedOut`] where there is nothing by `due`.
async fn read_by<R: AsyncRead + Unpin>(stream: &mut R, target: &mut [u8], due: Option<Instant>) -> io::Result<usize> {
    let Some(due) = due else { return stream.read(target).await };
    // Asked first: a timer costs nothing where there is something to read, and what is there counts also when it is late.
    let late = async {
        Timer::at(due).await;
        Err(ErrorKind::TimedOut.into())
    };
    or(stream.read(target), late).await
}
