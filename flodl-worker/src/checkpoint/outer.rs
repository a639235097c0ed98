//! The state of the outer optimizer (its momentum) as a file: one tensor of bytes, which only that optimizer can read.

use super::read::Flaw;
use serde::Deserialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

/// The file of the outer optimizer's state.
pub const OUTER_FILE: &str = "outer.safetensors";

/// The tensor in it.
const STATE: &str = "state";

/// Bytes of a header at the most: it names one tensor.
const HEADER_MAX: usize = 4096;

#[derive(Deserialize)]
struct Header {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<String, String>,
    state: Entry,
}

#[derive(Deserialize)]
struct Entry {
    data_offsets: (usize, usize),
}

/// What stands before the state's bytes in its file.
pub(super) fn header(version: u64, state: &[u8]) -> Vec<u8> {
    let metadata = json!({ "flodl.version": version.to_string() });
    let entry = json!({ "dtype": "U8", "shape": [state.len()], "data_offsets": [0, state.len()] });
    let text = json!({ "__metadata__": metadata, STATE: entry }).to_string();
    let padded = (text.len() + 8).next_multiple_of(64) - 8;
    let mut header = Vec::with_capacity(padded + 8);
    header.extend((padded as u64).to_le_bytes());
    header.extend(text.as_bytes());
    header.resize(padded + 8, b' ');
    header
}

/// Writes the state of an outer optimizer after that version as the file `path`: whole and on the disk, or not at all.
///
/// # Errors
/// The system's.
pub fn write_outer(path: &Path, version: u64, state: &[u8]) -> std::io::Result<()> {
    let beside = path.with_extension("writing");
    let mut file = File::create(&beside)?;
    file.write_all(&header(version, state))?;
    file.write_all(state)?;
    file.sync_all()?;
    fs::rename(&beside, path)
}

/// Reads such a file, be it in a checkpoint set or alone: the version, and the state after it. Whether the state is whole and
/// belongs to the model says the optimizer.
///
/// # Errors
/// A file that cannot be read or is none of these.
pub fn read_outer(path: &Path) -> Result<(u64, Vec<u8>), Flaw> {
    let file = || OUTER_FILE.to_owned();
    let mut bytes = fs::read(path).map_err(|error| Flaw::Unreadable { file: file(), kind: error.kind() })?;
    let malformed = |error: &str| Flaw::Malformed { file: file(), error: error.to_owned() };
    let short = || malformed("it ends too early");
    let length = u64::from_le_bytes(*bytes.first_chunk().ok_or_else(short)?);
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length > HEADER_MAX {
        return Err(malformed("its header is too long"));
    }
    let header = bytes.get(8..8 + length).ok_or_else(short)?;
    let header: Header = serde_json::from_slice(header).map_err(|error| malformed(&error.to_string()))?;
    let version = header.metadata.get("flodl.version").and_then(|version| version.parse().ok());
    let version = version.ok_or_else(|| malformed("it names no version"))?;
    if header.state.data_offsets != (0, bytes.len() - 8 - length) {
        return Err(malformed("its state has another length than its header says"));
    }
    Ok((version, bytes.split_off(8 + length)))
}
