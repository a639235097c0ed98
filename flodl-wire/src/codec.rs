//! Messages to bytes and back. The only module that knows which codec that is.
//!
//! Integers are varints, fields and variants go by position, nothing is tagged: a message is readable only by a peer that
//! knows its type, so fields and variants are only ever appended. Bytes behind the message are refused, and so is what
//! [`check`](crate::message::Check) refuses; both sides check, so a bad message fails where it was made.

use crate::limits::CONTROL_MAX;
use crate::message::Check;
use crate::message::join::TensorSpec;
use bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};
use thiserror::Error;

/// Why a message was not encoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EncodeError {
    /// It is too long for a frame.
    #[error("the message has {len} bytes, a control frame holds {max}: send it in parts")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Its values contradict each other.
    #[error("the message is not valid: {0}")]
    Invalid(Flaw),
    /// It has a form that the codec cannot hold.
    #[error("the message cannot be encoded: {0}")]
    Codec(String),
}

/// Why bytes were not a message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The frame is of another kind than the message asked for.
    #[error("expected a {expected} frame, got a {got} frame")]
    WrongKind {
        /// The kind asked for.
        expected: &'static str,
        /// The frame's kind.
        got: &'static str,
    },
    /// Longer than a control frame may be.
    #[error("{len} bytes are longer than any control message ({max})")]
    TooLong {
        /// The length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// Not a message of this type.
    #[error("the bytes are not a message of this type: {0}")]
    Codec(String),
    /// A message, and then more.
    #[error("{extra} bytes follow the message: the peer speaks another protocol version")]
    Trailing {
        /// How many.
        extra: usize,
    },
    /// Its values contradict each other.
    #[error("the message is not valid: {0}")]
    Invalid(Flaw),
}

/// What is wrong with a message's values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Flaw {
    /// A range that ends before it starts.
    #[error("the range {start}..{end} ends before it starts")]
    Range {
        /// Its start.
        start: u64,
        /// Its end.
        end: u64,
    },
    /// A rank that no run has.
    #[error("rank {rank} is not below {}", crate::limits::RANKS_MAX)]
    Rank {
        /// The number.
        rank: u32,
    },
    /// Ranks that must rise and do not.
    #[error("ranks are not in rising order at rank {rank}")]
    RankOrder {
        /// The first that is not above its predecessor.
        rank: u32,
    },
    /// A list or text that is too long.
    #[error("{what} has {len} entries, at most {max} are allowed")]
    TooMany {
        /// Which.
        what: &'static str,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A number outside its meaning.
    #[error("{what} is out of range")]
    Number {
        /// Which.
        what: &'static str,
    },
    /// A field of the fixed data header.
    #[error("the field {what} of the data header holds {value}")]
    Header {
        /// Which.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// A fixed header and the payload's length do not belong together.
    #[error("the payload has {got} bytes, its header asks for {expected}")]
    Length {
        /// What the header asks for.
        expected: usize,
        /// What there is.
        got: usize,
    },
}

/// The codec counts what it decodes by size in memory, where a varint of one byte makes a `u64` of eight; so a limit that
/// lets every message of `n` bytes through is `8 * n`. The claim of a hostile length is bounded by it before anything
/// is allocated: three limits, so that a short payload cannot claim as much as a long one.
const fn limited<const N: usize>() -> Configuration<LittleEndian, Varint, Limit<N>> {
    standard().with_limit::<N>()
}

/// Bytes that most messages stay below.
const SHORT: usize = 256;
const SMALL: usize = 1 << 10;
const MEDIUM: usize = 1 << 16;

/// The bytes of `message`.
///
/// # Errors
///
/// Where it is longer than [`CONTROL_MAX`] or its values contradict each other.
pub fn encode<T: Serialize + Check>(message: &T) -> Result<Vec<u8>, EncodeError> {
    message.check().map_err(EncodeError::Invalid)?;
    let config = limited::<{ 8 * CONTROL_MAX }>();
    // Most messages are short: their bytes are allocated once, when it is known how many there are.
    let mut short = [0; SHORT];
    let bytes = match bincode::serde::encode_into_slice(message, &mut short, config) {
        Ok(len) => Ok(short.get(..len).unwrap_or_default().to_vec()),
        Err(bincode::error::EncodeError::UnexpectedEnd) => bincode::serde::encode_to_vec(message, config),
        Err(error) => Err(error),
    };
    let bytes = bytes.map_err(|error| EncodeError::Codec(error.to_string()))?;
    if bytes.len() > CONTROL_MAX {
        return Err(EncodeError::TooLong { len: bytes.len(), max: CONTROL_MAX });
    }
    Ok(bytes)
}

/// The message that `bytes` are, all of them.
///
/// # Errors
///
/// Where they are not one message, are longer than [`CONTROL_MAX`], or the message's values contradict each other.
pub fn decode<T: DeserializeOwned + Check>(bytes: &[u8]) -> Result<T, DecodeError> {
    let len = bytes.len();
    let decoded = if len <= SMALL {
        bincode::serde::decode_from_slice(bytes, limited::<{ 8 * SMALL }>())
    } else if len <= MEDIUM {
        bincode::serde::decode_from_slice(bytes, limited::<{ 8 * MEDIUM }>())
    } else if len <= CONTROL_MAX {
        bincode::serde::decode_from_slice(bytes, limited::<{ 8 * CONTROL_MAX }>())
    } else {
        return Err(DecodeError::TooLong { len, max: CONTROL_MAX });
    };
    let (message, used): (T, usize) = decoded.map_err(|error| DecodeError::Codec(error.to_string()))?;
    let extra = len.saturating_sub(used);
    if extra > 0 {
        return Err(DecodeError::Trailing { extra });
    }
    message.check().map_err(DecodeError::Invalid)?;
    Ok(message)
}

/// SHA-256 of a manifest: the codec's bytes of the whole list, in manifest order.
///
/// Two ranks share it exactly when every tensor's name, dtype, shape and section agree.
#[must_use]
pub fn manifest_digest(tensors: &[TensorSpec]) -> [u8; 32] {
    struct Hashing(Sha256);
    impl std::io::Write for Hashing {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut hash = Hashing(Sha256::new());
    bincode::serde::encode_into_std_write(tensors, &mut hash, standard())
        .expect("a list of known length with plain fields always encodes, and a hash takes every byte");
    hash.0.finalize().into()
}
