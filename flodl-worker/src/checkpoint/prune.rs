//! Keeping the newest sets and removing the others.

use super::read::version_of;
use super::storage::{Disk, Storage};
use core::num::NonZeroU32;
use std::path::{Path, PathBuf};
use thiserror::Error;

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
    // The oldest first: whatever keeps one from being removed, what is left are the newest.
    for version in &versions[..old] {
        let path = dir.join(format!("v{version}"));
        storage.remove(&path).map_err(failed("removing", &path))?;
    }
    Ok(())
}
