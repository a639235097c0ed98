//! Bytes to frames: a decoder without IO.

use super::Frame;
use super::buffer::{Buffer, Pool};
use super::header::{Header, HeaderError};
use super::keys::Keys;
use crate::fields::pour;
use crate::handshake::Channel;
use crate::limits::FRAME_HEADER;
use core::fmt;
use thiserror::Error;

/// Why bytes are not the next frame. The connection is over: what comes after cannot be trusted, and the decoder gives the
/// same error again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// The header is not one that could come here.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Not the frame that must come next: one is missing, repeated or out of order.
    #[error("expected frame number {expected}, got {got}: a frame is missing, repeated or out of order")]
    Sequence {
        /// The next frame's number.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// The key changes where it must not, or does not where it must.
    #[error("frame number {seq} must {}change the key", if *.due { "" } else { "not " })]
    Rekey {
        /// The frame's number.
        seq: u64,
        /// Whether the change was due.
        due: bool,
    },
    /// The frame was altered on its way, or sealed with another key.
    #[error("frame number {seq} is not authentic: it was altered on its way or sealed with another key")]
    Forged {
        /// The frame's number.
        seq: u64,
    },
    /// Every frame number of the connection is spent.
    #[error("this connection has carried all the frames it can")]
    Exhausted,
}

/// Opens the frames of one direction, in order, from bytes in any portions.
///
/// Nothing of a payload is given out before its tag was verified, and nothing is allocated before the header was found
/// plausible. Large payloads get buffers that are used again once the frame (and every slice of it) is dropped.
pub struct Opener {
    keys: Keys,
    channel: Channel,
    pool: Pool,
    state: State,
}

enum State {
    Header { bytes: [u8; FRAME_HEADER], have: usize },
    Body { raw: [u8; FRAME_HEADER], header: Header, body: Buffer, have: usize },
    Failed(OpenError),
}

const START: State = State::Header { bytes: [0; FRAME_HEADER], have: 0 };

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = self.missing();
        let mut debug = f.debug_struct("Opener");
        debug.field("channel", &self.channel).field("seq", &self.keys.seq()).field("missing", &missing);
        debug.finish_non_exhaustive()
    }
}

impl Opener {
    pub(crate) fn new(keys: Keys, channel: Channel) -> Opener {
        Opener { keys, channel, pool: Pool::default(), state: START }
    }

    /// Takes bytes from the front of `input`, at most to the end of the current frame, and gives that frame once it is
    /// whole. `None`: all of `input` was taken and more is needed.
    ///
    /// # Errors
    ///
    /// Where the bytes are not the next frame; from then on always.
    pub fn feed(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, OpenError> {
        loop {
            let n = pour(input, self.space());
            if let Some(frame) = self.filled(n)? {
                return Ok(Some(frame));
            }
            if input.is_empty() {
                return Ok(None);
            }
        }
    }

    /// Where the next bytes belong: the rest of the header or of the payload and tag. Write any number of bytes to its
    /// beginning and tell [`Opener::filled`]. Empty once the decoder has failed.
    pub fn space(&mut self) -> &mut [u8] {
        match &mut self.state {
            State::Header { bytes, have } => bytes.get_mut(*have..).unwrap_or_default(),
            State::Body { body, have, .. } => body.bytes_mut().get_mut(*have..).unwrap_or_default(),
            State::Failed(_) => &mut [],
        }
    }

    /// How many bytes [`Opener::space`] has room for: what is missing of the header, then of payload and tag.
    #[must_use]
    pub fn missing(&self) -> usize {
        match &self.state {
            State::Header { have, .. } => FRAME_HEADER.saturating_sub(*have),
            State::Body { header, have, .. } => header.sealed_len().saturating_sub(*have),
            State::Failed(_) => 0,
        }
    }

    /// Whether the end of the bytes would be a clean one here: no part of a frame has come.
    #[must_use]
    pub fn between_frames(&self) -> bool {
        matches!(self.state, State::Header { have: 0, .. })
    }

    /// `n` bytes were written to the beginning of [`Opener::space`] (more than it has room for count as all of it).
    ///
    /// # Errors
    ///
    /// Where the bytes are not the next frame; from then on always.
    pub fn filled(&mut self, n: usize) -> Result<Option<Frame>, OpenError> {
        let n = n.min(self.missing());
        match self.advance(n) {
            Ok(frame) => Ok(frame),
            Err(error) => {
                self.state = State::Failed(error);
                Err(error)
            }
        }
    }

    fn advance(&mut self, n: usize) -> Result<Option<Frame>, OpenError> {
        match &mut self.state {
            State::Header { have, .. } | State::Body { have, .. } => *have = have.saturating_add(n),
            State::Failed(error) => return Err(*error),
        }
        if self.missing() > 0 {
            return Ok(None);
        }
        match core::mem::replace(&mut self.state, START) {
            State::Header { bytes, .. } => {
                let header = self.expect(&bytes)?;
                let body = self.pool.take(header.sealed_len());
                self.state = State::Body { raw: bytes, header, body, have: 0 };
                Ok(None)
            }
            State::Body { raw, header, mut body, .. } => {
                self.keys.open(&raw, body.bytes_mut()).ok_or(OpenError::Forged { seq: header.seq })?;
                let Header { kind, stream, incarnation, payload_len, .. } = header;
                Ok(Some(Frame { kind, stream, incarnation, payload: self.pool.freeze(body, payload_len) }))
            }
            State::Failed(error) => Err(error),
        }
    }

    /// The header, where it is that of the next frame.
    fn expect(&self, bytes: &[u8; FRAME_HEADER]) -> Result<Header, OpenError> {
        let header = Header::parse(bytes, self.channel, self.keys.direction())?;
        let expected = self.keys.seq().ok_or(OpenError::Exhausted)?;
        if header.seq != expected {
            return Err(OpenError::Sequence { expected, got: header.seq });
        }
        let due = self.keys.rekey_due(header.payload_len);
        if header.rekey != due {
            return Err(OpenError::Rekey { seq: header.seq, due });
        }
        Ok(header)
    }
}
