//! Frames to bytes.

use super::chunk::{self, Head};
use super::header::Header;
use super::keys::Keys;
use super::{Frame, Kind, Stream};
use crate::Incarnation;
use crate::codec::Flaw;
use crate::handshake::Channel;
use crate::limits::{FRAME_HEADER, FRAME_TAG};
use crate::message::{Data, check};
use core::fmt;
use thiserror::Error;

/// Why a frame was not sealed. Nothing was written, and the next frame can be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SealError {
    /// The kind does not travel that way.
    #[error("a {kind} frame does not belong on this {channel} connection in this direction")]
    Misplaced {
        /// The kind.
        kind: Kind,
        /// The connection's channel.
        channel: Channel,
    },
    /// The payload's length is not one that the kind can have.
    #[error("a {kind} frame cannot carry {len} bytes: send them in parts")]
    Length {
        /// The kind.
        kind: Kind,
        /// Payload bytes.
        len: usize,
    },
    /// That kind of frame is never for or from that stream.
    #[error("a {kind} frame cannot be for or from {stream}")]
    Unsuited {
        /// The kind.
        kind: Kind,
        /// The stream.
        stream: Stream,
    },
    /// The data message's values contradict each other.
    #[error("the data message is not valid: {0}")]
    Invalid(Flaw),
    /// Every frame number of the connection is spent.
    #[error("this connection has carried all the frames it can: open a new one")]
    Exhausted,
}

/// Seals the frames of one direction, in order.
pub struct Sealer {
    keys: Keys,
    channel: Channel,
}

/// A frame without its payload.
struct Envelope {
    kind: Kind,
    stream: Stream,
    incarnation: Incarnation,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("channel", &self.channel).field("seq", &self.keys.seq()).finish_non_exhaustive()
    }
}

impl Sealer {
    pub(crate) fn new(keys: Keys, channel: Channel) -> Sealer {
        Sealer { keys, channel }
    }

    /// Appends header, ciphertext and tag of `frame` to `out`.
    ///
    /// # Errors
    ///
    /// Where the other side would refuse it; `out` is as it was.
    pub fn seal(&mut self, frame: &Frame, out: &mut Vec<u8>) -> Result<(), SealError> {
        let Frame { kind, stream, incarnation, ref payload } = *frame;
        self.append(out, Envelope { kind, stream, incarnation }, payload.len(), |out| out.extend_from_slice(payload))
    }

    /// The same for a data message, without a frame in between: a chunk's elements are copied once, to where they are sealed.
    ///
    /// # Errors
    ///
    /// Where the other side would refuse it; `out` is as it was.
    pub fn seal_data(
        &mut self,
        stream: Stream,
        incarnation: Incarnation,
        data: &Data,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        let head = Head::of(data);
        head.check().map_err(SealError::Invalid)?;
        let envelope = Envelope { kind: head.kind(), stream, incarnation };
        self.append(out, envelope, head.payload_len(), |out| {
            head.write(out);
            out.extend_from_slice(chunk::elements(data));
        })
    }

    fn append(
        &mut self,
        out: &mut Vec<u8>,
        envelope: Envelope,
        payload_len: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SealError> {
        let Envelope { kind, stream, incarnation } = envelope;
        if kind.channel() != self.channel || kind.direction() != self.keys.direction() {
            return Err(SealError::Misplaced { kind, channel: self.channel });
        }
        if !kind.payload_len().contains(&payload_len) {
            return Err(SealError::Length { kind, len: payload_len });
        }
        let no_rank = matches!(stream, Stream::Rank(rank) if check::rank(rank).is_err());
        if !kind.suits(stream) || no_rank {
            return Err(SealError::Unsuited { kind, stream });
        }
        let seq = self.keys.seq().ok_or(SealError::Exhausted)?;
        let rekey = self.keys.rekey_due(payload_len);
        let header = Header { kind, rekey, seq, stream, incarnation, payload_len }.to_bytes();
        let start = out.len();
        out.reserve(FRAME_HEADER.saturating_add(payload_len).saturating_add(FRAME_TAG));
        out.extend_from_slice(&header);
        let body = out.len();
        write(out);
        debug_assert_eq!(out.len().checked_sub(body), Some(payload_len));
        match out.get_mut(body..).and_then(|payload| self.keys.seal(&header, payload)) {
            Some(tag) => out.extend_from_slice(&tag),
            None => {
                out.truncate(start);
                return Err(SealError::Exhausted);
            }
        }
        Ok(())
    }
}
