//! Codecs for links that are slower than memory: fewer bits for each value, with error feedback.
//!
//! What is rounded is the difference from the consensus that both ends hold, never a parameter: rounded to `bf16`, a
//! parameter loses every update smaller than 2^-8 of itself. What rounding takes away stays at the sender and is added to
//! the difference of its next round, so that nothing is lost for good (F. Seide et al., "1-bit stochastic gradient descent",
//! Interspeech 2014; S. P. Karimireddy et al., "Error feedback fixes SignSGD", arXiv:1901.09847; in both directions H. Tang
//! et al., "DoubleSqueeze", arXiv:1905.05957). Differences are those of an average, whatever its mass, so that an error
//! of a heavy round weighs no more than the one that carries it.
//!
//! Decoding is one multiplication and one addition, each rounded, so all who decode a chunk hold the same bits.

use crate::{ChunkSpec, Layout, Mass, Section, kernel};
use bytes::{Bytes, BytesMut};
use core::fmt;
use core::str::FromStr;
use thiserror::Error;

/// How the floats of a chunk travel. Integers always travel as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Codec {
    /// As they are: little-endian `f32`.
    #[default]
    F32,
    /// Differences, two bytes each: the upper half of an `f32`.
    Bf16,
    /// Differences, one byte each, and four for each block of [`kernel::INT8_BLOCK`].
    Int8,
}

impl Codec {
    /// All codecs, the most exact one first.
    pub const ALL: [Codec; 3] = [Codec::F32, Codec::Bf16, Codec::Int8];

    /// Its name: `f32`, `bf16` or `int8`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Codec::F32 => "f32",
            Codec::Bf16 => "bf16",
            Codec::Int8 => "int8",
        }
    }

    /// Bytes of a chunk of floats with so many elements.
    #[must_use]
    pub const fn data_bytes(self, elements: u32) -> usize {
        match self {
            Codec::F32 => 4 * elements as usize,
            Codec::Bf16 => 2 * elements as usize,
            Codec::Int8 => kernel::int8_bytes(elements as usize),
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no codec has.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("there is no codec \"{name}\": use f32, bf16 or int8")]
pub struct UnknownCodec {
    /// The name.
    pub name: String,
}

impl FromStr for Codec {
    type Err = UnknownCodec;

    fn from_str(name: &str) -> Result<Self, UnknownCodec> {
        let found = Codec::ALL.into_iter().find(|codec| codec.name() == name);
        found.ok_or_else(|| UnknownCodec { name: name.to_owned() })
    }
}

/// A chunk of the consensus that both ends of a link hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base<'a> {
    /// Its version.
    pub version: u64,
    /// The chunk's data.
    pub data: &'a [u8],
}

/// A chunk as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coded {
    /// How to read the data.
    pub codec: Codec,
    /// The version of the consensus that differences are relative to; `None` for values as they are.
    pub base: Option<u64>,
    /// [`Codec::data_bytes`] of the chunk.
    pub data: Bytes,
}

/// Why a chunk cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// It is relative to another consensus than the one that is held: [`Absence::Stale`](crate::Absence::Stale).
    #[error("chunk {index} is relative to version {got:?} where {held:?} is held: send it as it is")]
    Stale {
        /// Which chunk.
        index: u32,
        /// The version that is held.
        held: Option<u64>,
        /// The version it is relative to.
        got: Option<u64>,
    },
    /// Data, or a base, that is not as long as the chunk.
    #[error("chunk {index} has {got} bytes where {expected} are needed: check that the models are equal")]
    Length {
        /// Which chunk.
        index: u32,
        /// Bytes of that chunk in its codec.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// Integers that were rounded.
    #[error("chunk {index} holds integers, which are never rounded: send them as they are")]
    Integers {
        /// Which chunk.
        index: u32,
    },
    /// A value is infinite or not a number.
    #[error("chunk {index} holds a value that is not finite")]
    NonFinite {
        /// Which chunk.
        index: u32,
    },
}

/// Decodes a chunk: values as they are, or `mass * (base + difference)`. The sum of a contribution has its mass, a result
/// has mass 1.
///
/// # Errors
/// [`DecodeError`].
pub fn decode(spec: &ChunkSpec, coded: &Coded, mass: Mass, base: Option<Base<'_>>) -> Result<Bytes, DecodeError> {
    decode_into(spec, coded, (mass, base), BytesMut::new())
}

/// [`decode`] with memory that is not used any more, for what is decoded.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_into(
    spec: &ChunkSpec,
    coded: &Coded,
    (mass, base): (Mass, Option<Base<'_>>),
    mut room: BytesMut,
) -> Result<Bytes, DecodeError> {
    let index = spec.index;
    let length =
        |expected, got| if expected == got { Ok(()) } else { Err(DecodeError::Length { index, expected, got }) };
    if coded.codec == Codec::F32 {
        length(spec.bytes as usize, coded.data.len())?;
        return Ok(coded.data.clone());
    }
    if spec.section == Section::Integers {
        return Err(DecodeError::Integers { index });
    }
    let held = base.map(|base| base.version);
    let base = base.filter(|base| coded.base == Some(base.version));
    let base = base.ok_or(DecodeError::Stale { index, held, got: coded.base })?;
    length(coded.codec.data_bytes(spec.elements), coded.data.len())?;
    length(spec.bytes as usize, base.data.len())?;
    room.resize(spec.bytes as usize, 0);
    if add_differences(coded.codec, base.data, &coded.data, &mut room)
        && (mass == Mass::ONE || kernel::scale(&mut room, mass.as_f32()))
    {
        Ok(room.freeze())
    } else {
        Err(DecodeError::NonFinite { index })
    }
}

/// `out = base + differences`. Returns whether all of it is finite.
fn add_differences(codec: Codec, base: &[u8], codes: &[u8], out: &mut [u8]) -> bool {
    match codec {
        Codec::F32 => {
            out.copy_from_slice(codes);
            kernel::all_finite(out)
        }
        Codec::Bf16 => kernel::add_bf16(base, codes, out),
        Codec::Int8 => kernel::add_int8(base, codes, out),
    }
}

/// The sender's side of a link: codes chunks and keeps what rounding took away.
///
/// What a round changes is kept apart until [`Coder::commit`], because a round can be abandoned after any chunk. Memory:
/// two floats for each of the model's, taken in the first round.
///
/// ```
/// use flodl_cpureduce::{Base, Codec, Coder, Layout, Mass, contribution_chunk, decode};
///
/// let layout = Layout::new(2, 0, 0)?;
/// let spec = layout.chunk(0).ok_or("one chunk")?;
/// let (held, _) = contribution_chunk(&[1.0, -2.0], Mass::ONE);
/// let base = Some(Base { version: 7, data: &held });
///
/// let mut relay = Coder::new(Codec::Bf16, layout);
/// let mass = Mass::new(3.0)?;
/// let (sum, _) = contribution_chunk(&[1.5, -2.25], mass);
/// let coded = relay.encode(&spec, &sum, mass, base);
/// assert_eq!(coded.data.len(), 4); // the differences 0.5 and -0.25
/// assert_eq!(decode(&spec, &coded, mass, base)?, sum);
/// relay.commit(1); // the first chunk was folded
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Coder {
    codec: Codec,
    layout: Layout,
    /// By chunk, as far as any was coded.
    errors: Vec<Errors>,
    /// What the receiver makes of the chunk that was coded last.
    applied: Vec<u8>,
}

/// What rounding took away from a chunk.
#[derive(Debug, Clone, Default)]
struct Errors {
    /// Up to the last committed round. Empty stands for zeros.
    kept: Vec<f32>,
    /// With the open round.
    fresh: Vec<f32>,
    /// Whether `fresh` is of the open round.
    coded: bool,
}

impl Coder {
    /// A sender that has lost nothing yet.
    #[must_use]
    pub const fn new(codec: Codec, layout: Layout) -> Self {
        Self { codec, layout, errors: Vec::new(), applied: Vec::new() }
    }

    /// Its codec.
    #[must_use]
    pub const fn codec(&self) -> Codec {
        self.codec
    }

    /// Codes a chunk: the sum of contributions with their mass, or a result with mass 1.
    ///
    /// Values travel as they are where they are integers, have no mass or no base, and where a difference, or what the
    /// receiver would make of it, is not finite.
    ///
    /// # Panics
    /// Where `sum` or `base` is not as long as the chunk.
    pub fn encode(&mut self, spec: &ChunkSpec, sum: &Bytes, mass: Mass, base: Option<Base<'_>>) -> Coded {
        assert_eq!(sum.len(), spec.bytes as usize, "a sum is as long as its chunk");
        let coded = base.filter(|_| self.codec != Codec::F32 && spec.section != Section::Integers && !mass.is_zero());
        coded.and_then(|base| self.round(spec, sum, mass, base)).unwrap_or_else(|| {
            self.applied.clear();
            self.applied.extend_from_slice(sum);
            Coded { codec: Codec::F32, base: None, data: sum.clone() }
        })
    }

    fn round(&mut self, spec: &ChunkSpec, sum: &[u8], mass: Mass, base: Base<'_>) -> Option<Coded> {
        let (place, elements) = (spec.index as usize, spec.elements as usize);
        if self.errors.len() <= place {
            self.errors.resize_with((self.layout.chunks() as usize).max(place + 1), Errors::default);
        }
        let errors = &mut self.errors[place];
        errors.kept.resize(elements, 0.0);
        errors.fresh.clear();
        errors.fresh.extend_from_slice(&errors.kept);
        errors.coded = false;
        if !kernel::difference(sum, mass.as_f32(), base.data, &mut errors.fresh) {
            return None;
        }
        let mut data = vec![0; self.codec.data_bytes(spec.elements)];
        match self.codec {
            Codec::F32 => return None,
            Codec::Bf16 => kernel::to_bf16(&mut errors.fresh, &mut data),
            Codec::Int8 => kernel::to_int8(&mut errors.fresh, &mut data),
        }
        self.applied.resize(spec.bytes as usize, 0);
        if !add_differences(self.codec, base.data, &data, &mut self.applied) {
            return None;
        }
        errors.coded = true;
        Some(Coded { codec: self.codec, base: Some(base.version), data: data.into() })
    }

    /// What the receiver makes of the chunk that was coded last, for mass 1: the next base of both ends.
    #[must_use]
    pub fn applied(&self) -> &[u8] {
        &self.applied
    }

    /// The round is committed and the chunks before `folded` of this sender are in it: what was lost of them counts from
    /// now on. Of the others it is what it was.
    pub fn commit(&mut self, folded: u32) {
        for errors in self.errors.iter_mut().take(folded as usize).filter(|errors| errors.coded) {
            core::mem::swap(&mut errors.kept, &mut errors.fresh);
        }
        self.abandon();
    }

    /// The round is abandoned: what was lost is what it was before.
    pub fn abandon(&mut self) {
        self.errors.iter_mut().for_each(|errors| errors.coded = false);
    }

    /// What rounding has taken away from a chunk and not given back yet; empty stands for nothing.
    #[must_use]
    pub fn errors(&self, index: u32) -> &[f32] {
        self.errors.get(index as usize).map_or(&[], |errors| &errors.kept)
    }
}
