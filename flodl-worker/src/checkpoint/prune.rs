//! Keeping the newest sets and removing the others.

use super::read::version_of;
use super::storage::{Disk, Storage};
use core::num::NonZeroU32;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What a set's folder is called while it goes, behind its name.
const GOING: &str = ".removing";

/// Why older sets are still there. The newer ones are as they were.
#[derive(Debug, Error)]
#[error("an older checkpoint was not removed: {doing} {} failed: {source}; remove it by hand if the disk gets full", path.display())]
pub struct PruneError {
    /// What was being done.
    doing: &'static str,
    /// To what.
    path: PathBuf,
    /// What the system says.
    source: std::io::Error,
}

/// Removes all sets of `dir` but the `keep` newest. To be called when the newest one is whole and `latest` names it.
///
/// What goes loses its name first: whatever has the name of a set is whole, also where this is interrupted.
///
/// # Errors
/// See [`PruneError`].
pub fn prune(dir: &Path, keep: NonZeroU32) -> Result<(), PruneError> {
    prune_on(dir, keep, &mut Disk)
}

/// [`prune`] on another file system.
///
/// # Errors
/// As there.
pub fn prune_on(dir: &Path, keep: NonZeroU32, storage: &mut dyn Storage) -> Result<(), PruneError> {
    let failed = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| PruneError { doing, path, source }
    };
    let names = storage.names(dir).map_err(failed("reading", dir))?;
    let mut versions: Vec<u64> = names.iter().filter_map(|name| version_of(Path::new(name))).collect();
    versions.sort_unstable();
    let old = versions.len().saturating_sub(keep.get() as usize);
    let remove = |storage: &mut dyn Storage, name: &str| {
        let path = dir.join(name);
        storage.remove(&path).map_err(failed("removing", &path))
    };
    // What was left when this was interrupted.
    for name in names.iter().filter(|name| name.starts_with(".v") && name.ends_with(GOING)) {
        remove(storage, name)?;
    }
    let old: Vec<(String, String)> =
        versions[..old].iter().map(|version| (format!("v{version}"), format!(".v{version}{GOING}"))).collect();
    // The oldest first: whatever keeps one from being removed, what is left are the newest.
    for (name, going) in &old {
        let path = dir.join(name);
        storage.rename(&path, &dir.join(going)).map_err(failed("removing", &path))?;
    }
    if !old.is_empty() {
        storage.sync_dir(dir).map_err(failed("syncing", dir))?;
    }
    for (_, going) in &old {
        remove(storage, going)?;
    }
    Ok(())
}
