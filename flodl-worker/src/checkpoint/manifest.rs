//! What vouches for a set's files.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The contents of `manifest.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`SCHEMA`](super::SCHEMA).
    pub schema: u32,
    /// The set's version.
    pub version: u64,
    /// Every other file of the set, by name.
    pub files: BTreeMap<String, FileEntry>,
}

/// One file of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its length.
    pub bytes: u64,
    /// Its SHA-256, as 64 hexadecimal digits.
    pub sha256: String,
}

impl FileEntry {
    /// The entry of a file that consists of these parts.
    pub(super) fn of(parts: &[&[u8]]) -> FileEntry {
        let mut hash = Sha256::new();
        let mut bytes = 0;
        for part in parts {
            hash.update(part);
            bytes += part.len() as u64;
        }
        FileEntry { bytes, sha256: hex(&hash.finalize()) }
    }
}

/// Hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
