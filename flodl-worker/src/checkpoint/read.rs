//! Finding the newest set that is whole.

use super::manifest::{FileEntry, Manifest, hex};
use super::state::{SCHEMA, State};
use super::{MANIFEST_FILE, MODEL_FILE, STATE_FILE};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes of a manifest or a state that is still believed to be one.
const JSON_MAX: u64 = 64 << 20;

/// Bytes hashed at a time.
const READ_BYTES: usize = 256 << 10;

/// What is wrong with a set.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Flaw {
    /// A file that should be there cannot be read.
    #[error("{file} cannot be read: {kind}")]
    Unreadable {
        /// The file.
        file: String,
        /// How.
        kind: ErrorKind,
    },
    /// A file that is no JSON of its kind.
    #[error("{file} cannot be understood: {error}")]
    Malformed {
        /// The file.
        file: String,
        /// Why.
        error: String,
    },
    /// Written by a newer flodl.
    #[error("{file} has schema {found}, this flodl reads {SCHEMA}")]
    Schema {
        /// The file.
        file: String,
        /// Its schema.
        found: u32,
    },
    /// The manifest does not vouch for a file of the set.
    #[error("{MANIFEST_FILE} does not list {file}")]
    Unlisted {
        /// The file.
        file: String,
    },
    /// The manifest names a file that no set has.
    #[error("{MANIFEST_FILE} lists {file:?}, which is no file of a set")]
    Foreign {
        /// The name.
        file: String,
    },
    /// A file of another length than the manifest says.
    #[error("{file} has {found} bytes, {MANIFEST_FILE} says {expected}")]
    Length {
        /// The file.
        file: String,
        /// What the manifest says.
        expected: u64,
        /// What is there.
        found: u64,
    },
    /// A file with other contents than the manifest says.
    #[error("{file} has another SHA-256 than {MANIFEST_FILE} says")]
    Hash {
        /// The file.
        file: String,
    },
    /// Directory, manifest and state name different versions.
    #[error("the set is called version {named}, {MANIFEST_FILE} says {manifest} and {STATE_FILE} {state}")]
    Version {
        /// By the directory's name.
        named: u64,
        /// By the manifest.
        manifest: u64,
        /// By the state.
        state: u64,
    },
}

/// A set that is whole, and those that were passed over.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The set.
    pub path: PathBuf,
    /// Where its run stood.
    pub state: State,
    /// Newer sets that are not whole, newest first, and why.
    pub passed_over: Vec<(PathBuf, Flaw)>,
}

/// Why there is no set to go on from.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The directory cannot be read.
    #[error("the checkpoints in {} cannot be read: {kind}", dir.display())]
    Unreadable {
        /// The directory.
        dir: PathBuf,
        /// How.
        kind: ErrorKind,
    },
    /// No set is whole.
    #[error("{} holds no checkpoint that is whole{}", dir.display(), Listed(passed_over))]
    None {
        /// The directory.
        dir: PathBuf,
        /// The sets there are, newest first, and what is wrong with them.
        passed_over: Vec<(PathBuf, Flaw)>,
    },
}

struct Listed<'a>(&'a [(PathBuf, Flaw)]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(path, flaw)| write!(f, "; {}: {flaw}", path.display()))
    }
}

/// The newest set of `dir` whose hashes hold, and why newer ones were passed over. Sets may come and go meanwhile.
///
/// # Errors
/// No such directory, or no whole set in it.
pub fn read_latest(dir: &Path) -> Result<Found, ReadError> {
    let mut versions = versions_in(dir)?;
    loop {
        let mut passed_over = Vec::new();
        for version in versions.iter().rev() {
            let path = dir.join(format!("v{version}"));
            match verify(&path) {
                Ok(state) => return Ok(Found { path, state, passed_over }),
                Err(flaw) => passed_over.push((path, flaw)),
            }
        }
        // An older set may have gone while it was looked at, because a newer one had come.
        let now = versions_in(dir)?;
        if now.last() <= versions.last() {
            return Err(ReadError::None { dir: dir.to_owned(), passed_over });
        }
        versions = now;
    }
}

/// The versions of the sets in `dir`, the oldest first.
fn versions_in(dir: &Path) -> Result<Vec<u64>, ReadError> {
    let unreadable = |error: std::io::Error| ReadError::Unreadable { dir: dir.to_owned(), kind: error.kind() };
    let mut versions = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        versions.extend(version_of(&entry.map_err(unreadable)?.path()));
    }
    versions.sort_unstable();
    Ok(versions)
}

/// The version that a set's directory is named after.
pub(super) fn version_of(path: &Path) -> Option<u64> {
    let digits = path.file_name()?.to_str()?.strip_prefix('v')?;
    digits.parse().ok().filter(|version: &u64| version.to_string() == digits)
}

/// Whether the set in `path` is whole: every file has the length and the hash that its manifest says.
///
/// # Errors
/// What is wrong with it.
pub fn verify(path: &Path) -> Result<State, Flaw> {
    let manifest: Manifest = read_json(path, MANIFEST_FILE)?;
    if manifest.schema != SCHEMA {
        return Err(Flaw::Schema { file: MANIFEST_FILE.to_owned(), found: manifest.schema });
    }
    for file in [MODEL_FILE, STATE_FILE] {
        if !manifest.files.contains_key(file) {
            return Err(Flaw::Unlisted { file: file.to_owned() });
        }
    }
    for (file, entry) in &manifest.files {
        check_file(path, file, entry)?;
    }
    let state: State = read_json(path, STATE_FILE)?;
    if state.schema != SCHEMA {
        return Err(Flaw::Schema { file: STATE_FILE.to_owned(), found: state.schema });
    }
    let named = version_of(path).unwrap_or(manifest.version);
    if named != manifest.version || named != state.version {
        return Err(Flaw::Version { named, manifest: manifest.version, state: state.version });
    }
    Ok(state)
}

fn unreadable(file: &str) -> impl Fn(std::io::Error) -> Flaw {
    let file = file.to_owned();
    move |error| Flaw::Unreadable { file: file.clone(), kind: error.kind() }
}

fn read_json<T: DeserializeOwned>(path: &Path, file: &str) -> Result<T, Flaw> {
    let mut bytes = Vec::new();
    let opened = File::open(path.join(file)).map_err(unreadable(file))?;
    opened.take(JSON_MAX).read_to_end(&mut bytes).map_err(unreadable(file))?;
    serde_json::from_slice(&bytes).map_err(|error| Flaw::Malformed { file: file.to_owned(), error: error.to_string() })
}

fn check_file(path: &Path, file: &str, entry: &FileEntry) -> Result<(), Flaw> {
    // A set's files lie in its own directory: a manifest that points elsewhere is not followed.
    if file.contains(['/', '\\', '\0']) || file.starts_with('.') || file == MANIFEST_FILE {
        return Err(Flaw::Foreign { file: file.to_owned() });
    }
    let mut opened = File::open(path.join(file)).map_err(unreadable(file))?;
    let found = opened.metadata().map_err(unreadable(file))?.len();
    if found != entry.bytes {
        return Err(Flaw::Length { file: file.to_owned(), expected: entry.bytes, found });
    }
    let mut hash = Sha256::new();
    let mut piece = vec![0; READ_BYTES];
    loop {
        match opened.read(&mut piece).map_err(unreadable(file))? {
            0 => break,
            n => hash.update(&piece[..n]),
        }
    }
    if hex(&hash.finalize()) == entry.sha256 { Ok(()) } else { Err(Flaw::Hash { file: file.to_owned() }) }
}
