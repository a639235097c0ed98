//! The 24 bytes in front of every payload: in the clear, but authenticated with it.

use super::keys::Direction;
use crate::handshake::Channel;
use crate::limits::{ABSENCE_LEN, CHUNK_HEADER, CHUNK_MAX, CONTROL_MAX, FRAME_HEADER, FRAME_TAG, RANKS_MAX};
use crate::{Incarnation, Rank};
use core::fmt;
use core::ops::RangeInclusive;
use thiserror::Error;

/// What a frame carries. The numbers are the wire format.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Kind {
    /// [`Control`](crate::message::Control), down.
    Control = 1,
    /// [`Report`](crate::message::Report), up.
    Report = 2,
    /// [`HostReport`](crate::message::HostReport), up.
    HostReport = 3,
    /// [`Data::Contribution`](crate::message::Data::Contribution), up.
    Contribution = 16,
    /// [`Data::Absent`](crate::message::Data::Absent), up.
    Absent = 17,
    /// [`Data::Dropped`](crate::message::Data::Dropped), up.
    Dropped = 18,
    /// [`Data::Consensus`](crate::message::Data::Consensus), down.
    Consensus = 19,
    /// [`Data::Holds`](crate::message::Data::Holds), up.
    Holds = 20,
    /// [`Data::LeftOut`](crate::message::Data::LeftOut), down.
    LeftOut = 21,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 9] = [
        Kind::Control,
        Kind::Report,
        Kind::HostReport,
        Kind::Contribution,
        Kind::Absent,
        Kind::Dropped,
        Kind::Consensus,
        Kind::Holds,
        Kind::LeftOut,
    ];

    pub(super) fn from_number(number: u16) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| *kind as u16 == number)
    }

    /// Its name, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Control => "control",
            Kind::Report => "report",
            Kind::HostReport => "host report",
            Kind::Contribution => "contribution",
            Kind::Absent => "absent",
            Kind::Dropped => "dropped",
            Kind::Consensus => "consensus",
            Kind::Holds => "holds",
            Kind::LeftOut => "left out",
        }
    }

    /// How long its payload may be, in bytes.
    #[must_use]
    pub fn payload_len(self) -> RangeInclusive<usize> {
        match self {
            Kind::Control | Kind::Report | Kind::HostReport => 1..=CONTROL_MAX,
            Kind::Contribution | Kind::Consensus => CHUNK_HEADER..=CHUNK_HEADER + CHUNK_MAX,
            Kind::Absent | Kind::Dropped | Kind::Holds | Kind::LeftOut => ABSENCE_LEN..=ABSENCE_LEN,
        }
    }

    /// The channel it travels on.
    #[must_use]
    pub fn channel(self) -> Channel {
        match self {
            Kind::Control | Kind::Report | Kind::HostReport => Channel::Control,
            Kind::Contribution | Kind::Absent | Kind::Dropped | Kind::Consensus | Kind::Holds | Kind::LeftOut => {
                Channel::Data
            }
        }
    }

    pub(super) fn direction(self) -> Direction {
        match self {
            Kind::Control | Kind::Consensus | Kind::LeftOut => Direction::Down,
            Kind::Report | Kind::HostReport | Kind::Contribution | Kind::Absent | Kind::Dropped | Kind::Holds => {
                Direction::Up
            }
        }
    }

    /// Whether a frame of this kind can be for or from `stream`.
    #[must_use]
    pub fn suits(self, stream: Stream) -> bool {
        match self {
            Kind::Control | Kind::Consensus | Kind::LeftOut => true,
            Kind::Report => matches!(stream, Stream::Rank(_)),
            Kind::HostReport | Kind::Dropped | Kind::Holds => stream == Stream::Host,
            Kind::Contribution | Kind::Absent => stream != Stream::AllRanks,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whom a frame is for (going down) or from (going up).
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// The relay itself.
    Host,
    /// Every rank behind the connection.
    AllRanks,
    /// One rank; its number is below [`RANKS_MAX`].
    Rank(Rank),
}

impl Stream {
    pub(super) fn to_number(self) -> u32 {
        match self {
            Stream::Host => u32::MAX,
            Stream::AllRanks => u32::MAX - 1,
            Stream::Rank(rank) => rank.0,
        }
    }

    fn from_number(number: u32) -> Option<Stream> {
        match number {
            u32::MAX => Some(Stream::Host),
            n if n == u32::MAX - 1 => Some(Stream::AllRanks),
            n if n < RANKS_MAX => Some(Stream::Rank(Rank(n))),
            _ => None,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stream::Host => f.write_str("the relay"),
            Stream::AllRanks => f.write_str("all ranks"),
            Stream::Rank(rank) => rank.fmt(f),
        }
    }
}

/// What is wrong with a frame's header.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// No kind has that number.
    #[error("no frame has kind {number}: the peer speaks another protocol version")]
    Kind {
        /// The number.
        number: u16,
    },
    /// The kind does not travel that way.
    #[error("a {kind} frame does not belong on this connection in this direction")]
    Misplaced {
        /// The kind.
        kind: Kind,
    },
    /// The payload's length is not one that the kind can have.
    #[error("a {kind} frame of {len} bytes is outside its limits of {min}..={max} bytes")]
    Length {
        /// The kind.
        kind: Kind,
        /// Payload bytes announced (0 where not even the tag fits).
        len: usize,
        /// The least it may have.
        min: usize,
        /// The most it may have.
        max: usize,
    },
    /// A flag that has no meaning.
    #[error("the frame's flags are {flags:#06x}, of which some have no meaning")]
    Flags {
        /// All flags.
        flags: u16,
    },
    /// A stream number that is neither a rank nor one of the two special ones.
    #[error("stream {number:#010x} is no rank, no relay and not all ranks")]
    Stream {
        /// The number.
        number: u32,
    },
    /// That kind of frame is never for or from that stream.
    #[error("a {kind} frame cannot be for or from {stream}")]
    Unsuited {
        /// The kind.
        kind: Kind,
        /// The stream.
        stream: Stream,
    },
}

/// The frame is the first under the key that follows the one before it.
pub(super) const FLAG_REKEY: u16 = 1;

/// A frame's header, parsed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) rekey: bool,
    pub(super) seq: u64,
    pub(super) stream: Stream,
    pub(super) incarnation: Incarnation,
    /// Without the tag.
    pub(super) payload_len: usize,
}

impl Header {
    /// Bytes of payload and tag.
    pub(super) const fn sealed_len(&self) -> usize {
        self.payload_len.saturating_add(FRAME_TAG)
    }

    /// Where the fields lie; `docs/PROTOCOL.md` shows the same table.
    pub(super) fn to_bytes(self) -> [u8; FRAME_HEADER] {
        let mut bytes = [0; FRAME_HEADER];
        let len = u32::try_from(self.sealed_len()).unwrap_or(u32::MAX);
        bytes[0..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..6].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[6..8].copy_from_slice(&(if self.rekey { FLAG_REKEY } else { 0 }).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.stream.to_number().to_le_bytes());
        bytes[20..24].copy_from_slice(&self.incarnation.0.to_le_bytes());
        bytes
    }

    /// Everything that can be checked without a key and without the payload. Nothing may be allocated before it.
    pub(super) fn parse(
        bytes: &[u8; FRAME_HEADER],
        channel: Channel,
        direction: Direction,
    ) -> Result<Header, HeaderError> {
        let [l0, l1, l2, l3, k0, k1, f0, f1, rest @ ..] = *bytes;
        let [q0, q1, q2, q3, q4, q5, q6, q7, s0, s1, s2, s3, i0, i1, i2, i3] = rest;
        let number = u16::from_le_bytes([k0, k1]);
        let kind = Kind::from_number(number).ok_or(HeaderError::Kind { number })?;
        if kind.channel() != channel || kind.direction() != direction {
            return Err(HeaderError::Misplaced { kind });
        }
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        let limits = kind.payload_len();
        let payload_len = len.checked_sub(FRAME_TAG).filter(|len| limits.contains(len)).ok_or(HeaderError::Length {
            kind,
            len: len.saturating_sub(FRAME_TAG),
            min: *limits.start(),
            max: *limits.end(),
        })?;
        let flags = u16::from_le_bytes([f0, f1]);
        if flags & !FLAG_REKEY != 0 {
            return Err(HeaderError::Flags { flags });
        }
        let number = u32::from_le_bytes([s0, s1, s2, s3]);
        let stream = Stream::from_number(number).ok_or(HeaderError::Stream { number })?;
        if !kind.suits(stream) {
            return Err(HeaderError::Unsuited { kind, stream });
        }
        Ok(Header {
            kind,
            rekey: flags & FLAG_REKEY != 0,
            seq: u64::from_le_bytes([q0, q1, q2, q3, q4, q5, q6, q7]),
            stream,
            incarnation: Incarnation(u32::from_le_bytes([i0, i1, i2, i3])),
            payload_len,
        })
    }
}
