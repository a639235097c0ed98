//! Data messages as payloads: fixed binary headers, elements behind them as they are.

use super::Kind;
use crate::codec::{DecodeError, Flaw};
use crate::fields::Reader;
use crate::limits::{ABSENCE_LEN, CHUNK_HEADER, CHUNK_MAX};
use crate::message::data::{AbsentWhy, Chunk, Codec};
use crate::message::{Data, check};
use crate::{Incarnation, Rank, Round, Version};
use bytes::Bytes;

/// The fixed part of a data payload.
pub(super) enum Head<'a> {
    Chunk { kind: Kind, chunk: &'a Chunk },
    Absent { round: Round, from_chunk: u32, why: AbsentWhy },
    Dropped { round: Round, rank: Rank, incarnation: Incarnation, from_chunk: u32, why: AbsentWhy },
    Holds { round: Round, version: Version, digest: u64 },
    LeftOut { round: Round, from_chunk: u32, why: AbsentWhy },
}

/// The variable part: a chunk's elements.
pub(super) fn elements(data: &Data) -> &[u8] {
    match data {
        Data::Contribution(chunk) | Data::Consensus(chunk) => &chunk.bytes,
        Data::Absent { .. } | Data::Dropped { .. } | Data::Holds { .. } | Data::LeftOut { .. } => &[],
    }
}

impl<'a> Head<'a> {
    pub(super) fn of(data: &'a Data) -> Head<'a> {
        match *data {
            Data::Contribution(ref chunk) => Head::Chunk { kind: Kind::Contribution, chunk },
            Data::Consensus(ref chunk) => Head::Chunk { kind: Kind::Consensus, chunk },
            Data::Absent { round, from_chunk, why } => Head::Absent { round, from_chunk, why },
            Data::Dropped { round, rank, incarnation, from_chunk, why } => {
                Head::Dropped { round, rank, incarnation, from_chunk, why }
            }
            Data::Holds { round, version, digest } => Head::Holds { round, version, digest },
            Data::LeftOut { round, from_chunk, why } => Head::LeftOut { round, from_chunk, why },
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match self {
            Head::Chunk { kind, .. } => *kind,
            Head::Absent { .. } => Kind::Absent,
            Head::Dropped { .. } => Kind::Dropped,
            Head::Holds { .. } => Kind::Holds,
            Head::LeftOut { .. } => Kind::LeftOut,
        }
    }

    /// Bytes of header and elements.
    pub(super) fn payload_len(&self) -> usize {
        match self {
            Head::Chunk { chunk, .. } => CHUNK_HEADER.saturating_add(chunk.bytes.len()),
            Head::Absent { .. } | Head::Dropped { .. } | Head::Holds { .. } | Head::LeftOut { .. } => ABSENCE_LEN,
        }
    }

    /// What a receiver would refuse, found where it is made.
    pub(super) fn check(&self) -> Result<(), Flaw> {
        match *self {
            Head::Chunk { chunk, .. } => check_chunk(chunk),
            Head::Dropped { rank, .. } => check::rank(rank),
            Head::Absent { .. } | Head::Holds { .. } | Head::LeftOut { .. } => Ok(()),
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Head::Chunk { chunk, .. } => {
                out.extend_from_slice(&chunk.round.0.to_le_bytes());
                out.extend_from_slice(&chunk.version.0.to_le_bytes());
                out.extend_from_slice(&chunk.mass.to_le_bytes());
                out.extend_from_slice(&chunk.chunk.to_le_bytes());
                out.extend_from_slice(&u32::try_from(chunk.bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
                out.extend_from_slice(&[codec_number(chunk.codec), 0, 0, 0]);
                out.extend_from_slice(&back(chunk).unwrap_or(u32::MAX).to_le_bytes());
            }
            Head::Holds { round, version, digest } => {
                out.extend_from_slice(&round.0.to_le_bytes());
                out.extend_from_slice(&version.0.to_le_bytes());
                out.extend_from_slice(&digest.to_le_bytes());
            }
            Head::Absent { round, from_chunk, why } | Head::LeftOut { round, from_chunk, why } => {
                write_absence(out, round, from_chunk, why);
                out.extend_from_slice(&[0; 8]);
            }
            Head::Dropped { round, rank, incarnation, from_chunk, why } => {
                write_absence(out, round, from_chunk, why);
                out.extend_from_slice(&rank.0.to_le_bytes());
                out.extend_from_slice(&incarnation.0.to_le_bytes());
            }
        }
    }
}

fn write_absence(out: &mut Vec<u8>, round: Round, from_chunk: u32, why: AbsentWhy) {
    out.extend_from_slice(&round.0.to_le_bytes());
    out.extend_from_slice(&from_chunk.to_le_bytes());
    out.extend_from_slice(&[why_number(why), 0, 0, 0]);
}

fn check_chunk(chunk: &Chunk) -> Result<(), Flaw> {
    if !(chunk.mass.is_finite() && chunk.mass >= 0.0) {
        return Err(Flaw::Number { what: "a chunk's mass" });
    }
    if back(chunk).is_none() {
        return Err(Flaw::Number { what: "the base of a chunk" });
    }
    let len = chunk.bytes.len();
    if len > CHUNK_MAX { Err(Flaw::TooMany { what: "a chunk", len, max: CHUNK_MAX }) } else { Ok(()) }
}

fn codec_number(codec: Codec) -> u8 {
    match codec {
        Codec::Exact => 0,
        Codec::Bf16 { .. } => 1,
        Codec::Int8 { .. } => 2,
    }
}

/// How many versions before the chunk's own its base is, as far as that can be said.
fn back(chunk: &Chunk) -> Option<u32> {
    chunk.codec.base().map_or(Some(0), |base| u32::try_from(chunk.version.0.checked_sub(base.0)?).ok())
}

fn read_codec(number: u8, version: Version, back: u32) -> Result<Codec, Flaw> {
    let base =
        || version.0.checked_sub(u64::from(back)).map(Version).ok_or(Flaw::Number { what: "the base of a chunk" });
    match number {
        0 if back == 0 => Ok(Codec::Exact),
        0 => Err(Flaw::Header { what: "reserved", value: u64::from(back) }),
        1 => Ok(Codec::Bf16 { base: base()? }),
        2 => Ok(Codec::Int8 { base: base()? }),
        _ => Err(Flaw::Header { what: "codec", value: u64::from(number) }),
    }
}

fn why_number(why: AbsentWhy) -> u8 {
    match why {
        AbsentWhy::Joining => 0,
        AbsentWhy::NothingTrained => 1,
        AbsentWhy::NonFinite => 2,
        AbsentWhy::Dead => 3,
        AbsentWhy::LinkLost => 4,
        AbsentWhy::Stale => 5,
        AbsentWhy::Empty => 6,
    }
}

fn why_from_number(number: u8) -> Option<AbsentWhy> {
    let all = [
        AbsentWhy::Joining,
        AbsentWhy::NothingTrained,
        AbsentWhy::NonFinite,
        AbsentWhy::Dead,
        AbsentWhy::LinkLost,
        AbsentWhy::Stale,
        AbsentWhy::Empty,
    ];
    all.into_iter().find(|why| why_number(*why) == number)
}

/// The data message that the payload of a frame of `kind` is.
pub(super) fn decode(kind: Kind, payload: &Bytes) -> Result<Data, DecodeError> {
    match kind {
        Kind::Contribution => decode_chunk(payload).map(Data::Contribution).map_err(DecodeError::Invalid),
        Kind::Consensus => decode_chunk(payload).map(Data::Consensus).map_err(DecodeError::Invalid),
        Kind::Absent | Kind::Dropped | Kind::LeftOut => decode_absence(kind, payload).map_err(DecodeError::Invalid),
        Kind::Holds => decode_holds(payload).map_err(DecodeError::Invalid),
        Kind::Control | Kind::Report | Kind::HostReport => {
            Err(DecodeError::WrongKind { expected: "data", got: kind.name() })
        }
    }
}

fn header<const N: usize>(payload: &Bytes) -> Result<&[u8; N], Flaw> {
    payload.first_chunk().ok_or(Flaw::Length { expected: N, got: payload.len() })
}

fn zero(bytes: &[u8]) -> Result<(), Flaw> {
    match bytes.iter().find(|byte| **byte != 0) {
        None => Ok(()),
        Some(byte) => Err(Flaw::Header { what: "reserved", value: u64::from(*byte) }),
    }
}

fn decode_chunk(payload: &Bytes) -> Result<Chunk, Flaw> {
    let head: &[u8; CHUNK_HEADER] = header(payload)?;
    let mut fields = Reader::new(head);
    let (round, version, mass) = (Round(fields.u64()), Version(fields.u64()), f64::from_bits(fields.u64()));
    let (chunk, len) = (fields.u32(), fields.u32());
    let ([codec], reserved, back) = (fields.take(), fields.take::<3>(), fields.u32());
    let expected = CHUNK_HEADER.saturating_add(len as usize);
    if payload.len() != expected {
        return Err(Flaw::Length { expected, got: payload.len() });
    }
    zero(&reserved)?;
    let codec = read_codec(codec, version, back)?;
    let bytes = payload.slice(CHUNK_HEADER..);
    let chunk = Chunk { round, version, mass, chunk, codec, bytes };
    check_chunk(&chunk).map(|()| chunk)
}

fn short(payload: &Bytes) -> Result<&[u8; ABSENCE_LEN], Flaw> {
    let head = header(payload)?;
    let fits = payload.len() == ABSENCE_LEN;
    if fits { Ok(head) } else { Err(Flaw::Length { expected: ABSENCE_LEN, got: payload.len() }) }
}

fn decode_holds(payload: &Bytes) -> Result<Data, Flaw> {
    let mut fields = Reader::new(short(payload)?);
    Ok(Data::Holds { round: Round(fields.u64()), version: Version(fields.u64()), digest: fields.u64() })
}

fn decode_absence(kind: Kind, payload: &Bytes) -> Result<Data, Flaw> {
    let mut fields = Reader::new(short(payload)?);
    let (round, from_chunk) = (Round(fields.u64()), fields.u32());
    let ([why], reserved) = (fields.take(), fields.take::<3>());
    let why = why_from_number(why).ok_or(Flaw::Header { what: "why", value: u64::from(why) })?;
    zero(&reserved)?;
    if kind != Kind::Dropped {
        zero(&fields.take::<8>())?;
        return Ok(match kind {
            Kind::LeftOut => Data::LeftOut { round, from_chunk, why },
            _ => Data::Absent { round, from_chunk, why },
        });
    }
    let (rank, incarnation) = (Rank(fields.u32()), Incarnation(fields.u32()));
    check::rank(rank)?;
    Ok(Data::Dropped { round, rank, incarnation, from_chunk, why })
}
