//! The end of a run, for people and programs.

use super::controller::Setup;
use super::look::Tone;
use super::sink::Seen;
use super::tell;
use flodl_monitor::Summary;
use std::path::PathBuf;

/// The file in the run directory.
const NAME: &str = "summary.json";

/// Writes the summary of a run that was formed to the run directory and where `--summary` says, and prints it.
pub(crate) fn leave(seen: &Seen, exit: i32, setup: &Setup) {
    let mut summary = Summary::of(&seen.store);
    summary.exit = Some(exit);
    summary.wire = Some(setup.wire.to_string());
    if seen.store.formed().is_none() {
        return;
    }
    summary.files.timeline = Some(seen.timeline.display().to_string());
    let paths = [Some(setup.dir.file(NAME)), setup.summary.clone()];
    let failed = |path: PathBuf| summary.write_json(&path).err();
    // One that cannot be written does not keep the other from being written, nor the run from having been one.
    paths
        .into_iter()
        .flatten()
        .filter_map(failed)
        .for_each(|error| setup.console.tell(Tone::Warning, &error.to_string()));
    setup.console.settle();
    tell(summary.to_string().trim_end());
}
