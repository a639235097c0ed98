//! The journal's bytes.
//!
//! ```text
//! file    "flodl-journal" | 0 | version u16          then records
//! record  mark "jrn\x01" | len u32 | number u64 | checksum u64 | entry, `len` bytes
//! ```
//!
//! Numbers are little-endian. Records are numbered from 0; the checksum is xxh3 over mark, length, number and entry. A file
//! may end anywhere in a record: that is what a controller that dies leaves. A record that is not whole with others behind
//! it is damage, which is never passed over: what comes after it was written by somebody who knew what is missing.

use super::Entry;
use flodl_wire::codec::{DecodeError, EncodeError, decode, encode};
use flodl_wire::limits::CONTROL_MAX;
use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 14] = *b"flodl-journal\0";
const VERSION: u16 = 1;
/// Bytes in front of the first record.
const FILE_HEADER: usize = MAGIC.len() + 2;
const MARK: [u8; 4] = *b"jrn\x01";
/// Bytes in front of an entry.
const RECORD_HEADER: usize = 24;
/// The part of them that the checksum is over.
const CHECKED: usize = 16;

/// What a journal's bytes say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Found {
    /// The entries of all whole records, in order.
    pub entries: Vec<Entry>,
    /// Bytes of them and what precedes them.
    pub whole: usize,
    /// Bytes of a record that its writer did not finish.
    pub torn: usize,
}

/// Why a journal's bytes cannot be gone on with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Damage {
    /// It does not begin as one.
    #[error("it is not a journal: name the run directory of `flodl serve`")]
    NotAJournal,
    /// Of another version.
    #[error("it is of version {got} and this flodl reads version {VERSION}: go on with the flodl that wrote it")]
    Version {
        /// The version.
        got: u16,
    },
    /// Something is wrong before its end.
    #[error(
        "record {number}, at byte {at}, is damaged and others follow it: to go on from what precedes it cut the file there \
         (truncate -s {at} JOURNAL) and try again; what is newer comes from the hosts"
    )]
    Middle {
        /// The record.
        number: u64,
        /// Where it begins.
        at: usize,
    },
    /// A whole record says nothing known.
    #[error(
        "record {number}, at byte {at}, is not one that this flodl knows ({why}): go on with the flodl that wrote it"
    )]
    Unknown {
        /// The record.
        number: u64,
        /// Where it begins.
        at: usize,
        /// Why.
        why: DecodeError,
    },
}

/// The bytes in front of the first record.
pub(super) fn header() -> Vec<u8> {
    [&MAGIC[..], &VERSION.to_le_bytes()].concat()
}

/// The bytes of a record.
pub(super) fn record(number: u64, entry: &Entry) -> Result<Vec<u8>, EncodeError> {
    let payload = encode(entry)?;
    // A message's length fits: it is at most `CONTROL_MAX`.
    let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
    let mut bytes = [&MARK[..], &len.to_le_bytes(), &number.to_le_bytes()].concat();
    let sum = checksum(&bytes, &payload);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes.extend_from_slice(&payload);
    Ok(bytes)
}

fn checksum(checked: &[u8], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(checked);
    hash.update(payload);
    hash.digest()
}

/// The entry's bytes of the record that `bytes` begin with, and its number, where it is whole.
fn whole(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<RECORD_HEADER>()?;
    let (checked, sum) = header.split_at(CHECKED);
    let (mark, numbers) = checked.split_at(MARK.len());
    let (len, number) = numbers.split_at(4);
    let len = usize::try_from(u32::from_le_bytes(len.try_into().ok()?)).ok()?;
    if mark != MARK || len > CONTROL_MAX {
        return None;
    }
    let payload = rest.get(..len)?;
    let number = u64::from_le_bytes(number.try_into().ok()?);
    (u64::from_le_bytes(sum.try_into().ok()?) == checksum(checked, payload)).then_some((number, payload))
}

/// Whether a whole record of that number or a later one begins anywhere in `bytes`.
fn follows(bytes: &[u8], number: u64) -> bool {
    let marks = bytes.windows(MARK.len()).enumerate().filter(|(_, mark)| *mark == MARK);
    marks.into_iter().any(|(at, _)| whole(&bytes[at..]).is_some_and(|(found, _)| found >= number))
}

/// Reads a journal.
///
/// # Errors
///
/// [`Damage`] where it is none, or where a record other than the last one is not whole.
pub fn read(bytes: &[u8]) -> Result<Found, Damage> {
    let start = header();
    if bytes.len() < FILE_HEADER && start.starts_with(bytes) {
        return Ok(Found { torn: bytes.len(), ..Found::default() });
    }
    if !bytes.starts_with(&MAGIC) {
        return Err(Damage::NotAJournal);
    }
    if !bytes.starts_with(&start) {
        let version = bytes.get(MAGIC.len()..FILE_HEADER).and_then(|version| version.try_into().ok());
        return Err(Damage::Version { got: u16::from_le_bytes(version.unwrap_or_default()) });
    }
    let mut found = Found { whole: FILE_HEADER, ..Found::default() };
    while found.whole < bytes.len() {
        let (at, number) = (found.whole, found.entries.len() as u64);
        let Some((_, payload)) = whole(&bytes[at..]).filter(|&(is, _)| is == number) else {
            if follows(&bytes[at + 1..], number) {
                return Err(Damage::Middle { number, at });
            }
            found.torn = bytes.len() - at;
            break;
        };
        found.entries.push(decode(payload).map_err(|why| Damage::Unknown { number, at, why })?);
        found.whole = at + RECORD_HEADER + payload.len();
    }
    Ok(found)
}
