//! Frames: what travels on a connection after the handshake.
//!
//! [`Frame`] is one message in the clear, [`Sealer`] makes ciphertext of frames in one direction of a connection, [`Opener`]
//! takes bytes as they come and gives back frames that are whole, untouched and exactly the next. None of them does IO.

mod buffer;
mod chunk;
mod header;
mod keys;
mod open;
mod seal;

pub use header::{HeaderError, Kind, Stream};
pub use open::{OpenError, Opener};
pub use seal::{SealError, Sealer};

pub(crate) use keys::{Direction, Keys};

use crate::codec::{self, DecodeError, EncodeError};
use crate::message::{Check, Control, Data, HostReport, Report};
use crate::{Incarnation, Rank};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// One message in the clear, with whom it is for or from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Which type of message the payload is.
    pub kind: Kind,
    /// Going down: whom it is for. Going up: whom it is from.
    pub stream: Stream,
    /// Of the rank that `stream` names; 0 where it names none.
    pub incarnation: Incarnation,
    /// The message's bytes.
    pub payload: Bytes,
}

impl Frame {
    /// A frame that carries `message` down.
    ///
    /// # Errors
    ///
    /// As [`codec::encode`].
    pub fn control(stream: Stream, incarnation: Incarnation, message: &Control) -> Result<Frame, EncodeError> {
        Frame::coded(Kind::Control, stream, incarnation, message)
    }

    /// A frame that carries `message` up from a rank.
    ///
    /// # Errors
    ///
    /// As [`codec::encode`].
    pub fn report(rank: Rank, incarnation: Incarnation, message: &Report) -> Result<Frame, EncodeError> {
        Frame::coded(Kind::Report, Stream::Rank(rank), incarnation, message)
    }

    /// A frame that carries `message` up from a relay.
    ///
    /// # Errors
    ///
    /// As [`codec::encode`].
    pub fn host_report(message: &HostReport) -> Result<Frame, EncodeError> {
        Frame::coded(Kind::HostReport, Stream::Host, Incarnation(0), message)
    }

    /// A frame that carries `data`. Copies a chunk's elements once; [`Sealer::seal_data`] does not.
    #[must_use]
    pub fn data(stream: Stream, incarnation: Incarnation, data: &Data) -> Frame {
        let head = chunk::Head::of(data);
        let mut payload = Vec::with_capacity(head.payload_len());
        head.write(&mut payload);
        payload.extend_from_slice(chunk::elements(data));
        Frame { kind: head.kind(), stream, incarnation, payload: payload.into() }
    }

    fn coded<T: Serialize + Check>(
        kind: Kind,
        stream: Stream,
        incarnation: Incarnation,
        message: &T,
    ) -> Result<Frame, EncodeError> {
        Ok(Frame { kind, stream, incarnation, payload: codec::encode(message)?.into() })
    }

    /// The control message in it.
    ///
    /// # Errors
    ///
    /// Where the frame is of another kind or the payload no valid message.
    pub fn to_control(&self) -> Result<Control, DecodeError> {
        self.decoded(Kind::Control)
    }

    /// The report in it.
    ///
    /// # Errors
    ///
    /// Where the frame is of another kind or the payload no valid message.
    pub fn to_report(&self) -> Result<Report, DecodeError> {
        self.decoded(Kind::Report)
    }

    /// The host report in it.
    ///
    /// # Errors
    ///
    /// Where the frame is of another kind or the payload no valid message.
    pub fn to_host_report(&self) -> Result<HostReport, DecodeError> {
        self.decoded(Kind::HostReport)
    }

    /// The data message in it. A chunk's elements share the frame's buffer; where the frame comes from an [`Opener`] and is of
    /// [`limits::POOLED_FROM`](crate::limits::POOLED_FROM) bytes or more, they are aligned to 64 bytes.
    ///
    /// # Errors
    ///
    /// Where the frame is of another kind or the payload no valid message.
    pub fn to_data(&self) -> Result<Data, DecodeError> {
        chunk::decode(self.kind, &self.payload)
    }

    fn decoded<T: DeserializeOwned + Check>(&self, kind: Kind) -> Result<T, DecodeError> {
        if self.kind != kind {
            return Err(DecodeError::WrongKind { expected: kind.name(), got: self.kind.name() });
        }
        codec::decode(&self.payload)
    }
}
