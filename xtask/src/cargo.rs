//! Calls of cargo: one place that knows its command line, its JSON and the environment it leaves behind.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use serde_json::Value;

use crate::failure::Failure;

/// The root of the repository, which is the parent of this crate's folder.
///
/// `cargo run` names the folder in the environment; a program started without cargo uses the one it was built in.
pub(crate) fn root() -> PathBuf {
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .filter(|dir| dir.ends_with("xtask"))
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")));
    manifest_dir.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// A cargo command at the root of the repository.
///
/// `cargo run` describes this very package in the environment of the program it starts. Build scripts that watch those
/// variables (ring's does) would see a change and build again on every call, so they are taken out.
pub(crate) fn command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let describes_a_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_CRATE_", "CARGO_BIN_", "CARGO_PRIMARY_"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
        if describes_a_package || name == "OUT_DIR" {
            command.env_remove(name);
        }
    }
    command
}

/// Runs a cargo command with its output passed through.
///
/// # Errors
///
/// [`Failure::Failed`] where cargo cannot be started.
pub(crate) fn status(args: &[&str]) -> Result<ExitStatus, Failure> {
    command().args(args).status().map_err(no_cargo)
}

/// The sentence for a cargo that cannot be started.
pub(crate) fn no_cargo(error: std::io::Error) -> Failure {
    Failure::failed(format!("cannot start cargo: {error}; is it on the PATH?"))
}

/// The path of the executable called `name` in cargo's JSON messages, one a line.
pub(crate) fn executable_in(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// What cargo knows of the workspace's own packages.
///
/// # Errors
///
/// Those of [`metadata_of`].
pub(crate) fn metadata() -> Result<Value, Failure> {
    metadata_of(&["--no-deps"])
}

/// What cargo knows of packages, own and others', by its options of `metadata`.
///
/// # Errors
///
/// [`Failure::Failed`] where cargo fails, with its message.
pub(crate) fn metadata_of(options: &[&str]) -> Result<Value, Failure> {
    let output = command().args(["metadata", "--format-version", "1"]).args(options).output().map_err(no_cargo)?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(Failure::failed(format!("cargo metadata failed: {why}")));
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| Failure::failed(format!("cargo metadata is no JSON: {error}")))
}

/// The names of the workspace's packages, in alphabetical order.
///
/// # Errors
///
/// Those of [`metadata`].
pub(crate) fn packages() -> Result<Vec<String>, Failure> {
    let metadata = metadata()?;
    let mut names: Vec<String> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|package| package["name"].as_str().map(str::to_owned))
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_the_one_of_that_name() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"flodl_coord"},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","target":{"name":"flodl"},"executable":"/t/release/flodl"}"#,
            "\n",
            r#"{"reason":"build-finished","success":true}"#,
        );
        assert_eq!(executable_in(messages, "flodl"), Some(PathBuf::from("/t/release/flodl")));
        assert_eq!(executable_in(messages, "flodl_coord"), None);
        assert_eq!(executable_in("", "flodl"), None);
    }

    #[test]
    fn the_root_holds_this_crate() {
        assert!(root().join("xtask/src/cargo.rs").is_file());
    }
}
