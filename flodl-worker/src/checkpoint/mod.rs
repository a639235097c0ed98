//! Checkpoint sets: what a run leaves so that it can be looked at, used and gone on with.
//!
//! ```text
//! checkpoints/
//!   v12/model.safetensors   every tensor by name, as it was averaged: f32 and i64
//!   v12/state.json          where the run stood: see State
//!   v12/outer.safetensors   the momentum of its outer optimizer, where it has one
//!   v12/manifest.json       length and SHA-256 of the others; written last
//!   latest -> v12
//! ```
//!
//! A set is written into a directory beside its place and renamed into it when every byte of it is on the disk, so a set that
//! has its name is whole, and a crash at any moment leaves the sets before it as they were. `latest` is switched last. A reader
//! trusts neither the name nor the link: it takes the newest set whose hashes hold ([`read_latest`]).
//!
//! ```
//! use flodl_worker::checkpoint::{CheckpointSet, State, Tensor, read_latest};
//! use flodl_worker::{Dtype, Section, TensorSpec};
//!
//! let dir = tempfile::tempdir()?;
//! let shape = vec![2];
//! let spec = TensorSpec { name: "bias".to_owned(), dtype: Dtype::F32, shape, section: Section::Parameters };
//! let tensors = [Tensor { spec: &spec, bytes: &[0, 0, 128, 63, 0, 0, 0, 64] }]; // 1.0, 2.0
//! let state = State { version: 12, why: "the run is done".to_owned(), ..State::default() };
//! let path = CheckpointSet { tensors: &tensors, state: &state, outer: &[] }.save(dir.path())?;
//! assert!(path.ends_with("v12"));
//! let found = read_latest(dir.path())?;
//! assert_eq!((found.path, found.state), (path, state));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod manifest;
mod outer;
mod prune;
mod read;
mod safetensors;
mod state;
mod storage;
#[cfg(test)]
mod tests;
mod write;

pub use manifest::{FileEntry, Manifest};
pub use outer::{OUTER_FILE, read_outer, write_outer};
pub use prune::{PruneError, prune, prune_on};
pub use read::{Flaw, Found, ReadError, read_latest, verify};
pub use safetensors::{Tensor, TensorError, tensors_of};
pub use state::{EpochCoverage, SCHEMA, State};
pub use storage::{Disk, Storage};
pub use write::{CheckpointSet, SaveError};

/// The file of the tensors.
pub const MODEL_FILE: &str = "model.safetensors";

/// The file of the run's state.
pub const STATE_FILE: &str = "state.json";

/// The file that vouches for the others.
pub const MANIFEST_FILE: &str = "manifest.json";

/// The link to the newest set.
pub const LATEST: &str = "latest";
