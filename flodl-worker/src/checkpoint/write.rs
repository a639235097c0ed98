//! Writing a set, so that at any moment it is either not there or whole.

use super::manifest::{FileEntry, Manifest};
use super::outer::{self, OUTER_FILE};
use super::safetensors::{Tensor, TensorError, layout};
use super::state::{SCHEMA, State};
use super::storage::{Disk, Storage};
use super::{LATEST, MANIFEST_FILE, MODEL_FILE, STATE_FILE, verify};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Why a set was not saved. What was saved before is as it was.
#[derive(Debug, Error)]
pub enum SaveError {
    /// The tensors make no file.
    #[error("the checkpoint cannot be written: {0}")]
    Tensors(#[from] TensorError),
    /// A state that cannot be written as JSON.
    #[error("the checkpoint's state cannot be written: {0}")]
    State(serde_json::Error),
    /// A whole set of that version is there.
    #[error("version {version} is saved already, in {}", path.display())]
    Exists {
        /// The version.
        version: u64,
        /// Where.
        path: PathBuf,
    },
    /// The disk is full.
    #[error("the checkpoint was not saved: no space left while {doing} {}; make room, training goes on", path.display())]
    Full {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
    },
    /// The file system refused a step.
    #[error("the checkpoint was not saved: {doing} {} failed: {source}", path.display())]
    Storage {
        /// What was being done.
        doing: &'static str,
        /// To what.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
}

/// A set to save.
#[derive(Copy, Clone, Debug)]
pub struct CheckpointSet<'a> {
    /// The model: names are unique.
    pub tensors: &'a [Tensor<'a>],
    /// Where the run stands; its version names the set.
    pub state: &'a State,
    /// The outer optimizer's state; empty without any.
    pub outer: &'a [u8],
}

impl CheckpointSet<'_> {
    /// Saves the set as `dir/v<version>` and switches `dir/latest` to it. Answers with its path. `dir` is made where it is not there.
    ///
    /// # Errors
    /// See [`SaveError`]. A set of that version that is there and not whole is replaced.
    pub fn save(&self, dir: &Path) -> Result<PathBuf, SaveError> {
        self.save_to(dir, &mut Disk)
    }

    /// [`save`](CheckpointSet::save) on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn save_to(&self, dir: &Path, storage: &mut dyn Storage) -> Result<PathBuf, SaveError> {
        let name = format!("v{}", self.state.version);
        let path = dir.join(&name);
        if verify(&path).is_ok() {
            return Err(SaveError::Exists { version: self.state.version, path });
        }
        let beside = dir.join(format!(".{name}.writing"));
        let written = self.write_beside(dir, &beside, storage);
        if let Err(error) = written {
            // Best effort: whatever is left there has a name that no reader takes, and the next attempt removes it.
            storage.remove(&beside).ok();
            return Err(error);
        }
        let mut steps = Steps { storage };
        steps.remove(&path)?;
        steps.rename(&beside, &path)?;
        steps.sync_dir(dir)?;
        let link = dir.join(format!(".{LATEST}.writing"));
        steps.remove(&link)?;
        steps.symlink(Path::new(&name), &link)?;
        steps.rename(&link, &dir.join(LATEST))?;
        steps.sync_dir(dir)?;
        Ok(path)
    }

    fn write_beside(&self, dir: &Path, beside: &Path, storage: &mut dyn Storage) -> Result<(), SaveError> {
        let metadata = json!({ "flodl.run_id": self.state.run_id, "flodl.version": self.state.version.to_string() });
        let (header, tensors) = layout(self.tensors, metadata)?;
        let mut model: Vec<&[u8]> = vec![&header];
        model.extend(tensors.iter().map(|tensor| tensor.bytes));
        let mut state = serde_json::to_vec_pretty(self.state).map_err(SaveError::State)?;
        state.push(b'\n');
        let state: [&[u8]; 1] = [&state];
        let outer_header = outer::header(self.state.version, self.outer);
        let outer: [&[u8]; 2] = [&outer_header, self.outer];
        let mut files = BTreeMap::from([
            (MODEL_FILE.to_owned(), FileEntry::of(&model)),
            (STATE_FILE.to_owned(), FileEntry::of(&state)),
        ]);
        if !self.outer.is_empty() {
            files.insert(OUTER_FILE.to_owned(), FileEntry::of(&outer));
        }
        let manifest = Manifest { schema: SCHEMA, version: self.state.version, files };
        let mut manifest = serde_json::to_vec_pretty(&manifest).map_err(SaveError::State)?;
        manifest.push(b'\n');

        let mut steps = Steps { storage };
        steps.create_dir_all(dir)?;
        // The folder of the sets is a name like any other: without this a power cut may take it with all sets in it.
        let above = dir.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        steps.sync_dir(above)?;
        steps.remove(beside)?;
        steps.create_dir_all(beside)?;
        steps.write_synced(&beside.join(MODEL_FILE), &model)?;
        steps.write_synced(&beside.join(STATE_FILE), &state)?;
        if !self.outer.is_empty() {
            steps.write_synced(&beside.join(OUTER_FILE), &outer)?;
        }
        steps.write_synced(&beside.join(MANIFEST_FILE), &[&manifest])?;
        steps.sync_dir(beside)
    }
}

/// Each step of the storage, with an error that says which it was.
struct Steps<'a> {
    storage: &'a mut dyn Storage,
}

impl Steps<'_> {
    fn step(result: std::io::Result<()>, doing: &'static str, path: &Path) -> Result<(), SaveError> {
        result.map_err(|source| match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => SaveError::Full { doing, path: path.to_owned() },
            _ => SaveError::Storage { doing, path: path.to_owned(), source },
        })
    }

    fn create_dir_all(&mut self, path: &Path) -> Result<(), SaveError> {
        Steps::step(self.storage.create_dir_all(path), "making", path)
    }

    fn write_synced(&mut self, path: &Path, parts: &[&[u8]]) -> Result<(), SaveError> {
        Steps::step(self.storage.write_new(path, parts), "writing", path)?;
        Steps::step(self.storage.sync_file(path), "syncing", path)
    }

    fn sync_dir(&mut self, path: &Path) -> Result<(), SaveError> {
        Steps::step(self.storage.sync_dir(path), "syncing", path)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<(), SaveError> {
        Steps::step(self.storage.rename(from, to), "renaming to", to)
    }

    fn symlink(&mut self, target: &Path, link: &Path) -> Result<(), SaveError> {
        Steps::step(self.storage.symlink(target, link), "linking", link)
    }

    fn remove(&mut self, path: &Path) -> Result<(), SaveError> {
        Steps::step(self.storage.remove(path), "removing", path)
    }
}
