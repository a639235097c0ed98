//! Whole programs that are compared: started, waited for, and read.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::failure::Failure;
use crate::train;

/// A run of `cargo xtask train` with these options and variables; its summary.
///
/// # Errors
///
/// A build or a run that fails; a run that leaves no summary.
pub(super) fn train(options: &[&str], variables: &[(&str, &str)]) -> Result<Value, Failure> {
    let scratch = Scratch::new()?;
    let mut args: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    args.extend(["--run-dir".to_owned(), scratch.run().display().to_string()]);
    output(train::command(&args)?.envs(variables.iter().copied()))?;
    scratch.summary()
}

/// A folder for one run, gone with this.
pub(super) struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> Result<Scratch, Failure> {
        let folder = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        match std::fs::create_dir_all(&folder) {
            Ok(()) => Ok(Scratch { folder }),
            Err(error) => Err(Failure::failed(format!("{}: {error}", folder.display()))),
        }
    }

    /// The run's own folder in it.
    pub(super) fn run(&self) -> PathBuf {
        self.folder.join("run")
    }

    /// What the run has summed up.
    pub(super) fn summary(&self) -> Result<Value, Failure> {
        let summary = std::fs::read(self.run().join("summary.json")).ok();
        summary
            .and_then(|text| serde_json::from_slice(&text).ok())
            .ok_or_else(|| Failure::failed("the run left no summary"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed from the folder for temporary files is not worth an end.
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// Samples per second of a run, from the first window to the end of the last round.
pub(super) fn throughput(summary: &Value) -> Result<f64, Failure> {
    summary["throughput"]
        .as_f64()
        .filter(|throughput| *throughput > 0.0)
        .ok_or_else(|| Failure::failed("the summary of a run has no throughput"))
}

/// What a program prints.
///
/// # Errors
///
/// A program that cannot be started, or fails, with what it says.
pub(super) fn output(command: &mut Command) -> Result<String, Failure> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::failed(format!("cannot start {program}: {error}")))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(Failure::failed(format!("{program} failed, {}: {why}", output.status)))
    }
}

/// The median; of an even number the upper of the two in the middle. `None` of nothing.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, expected) in [(&[][..], None), (&[3.0], Some(3.0)), (&[9.0, 1.0, 2.0], Some(2.0))] {
            assert_eq!(median(values.iter().copied()), expected, "{values:?}");
        }
    }

    #[test]
    fn a_summary_without_a_throughput_is_an_error() {
        assert_eq!(throughput(&serde_json::json!({ "throughput": 12.5 })), Ok(12.5));
        for summary in [serde_json::json!({}), serde_json::json!({ "throughput": null })] {
            assert!(throughput(&summary).is_err(), "{summary}");
        }
    }
}
