//! What is built and with what: the workspace with libtorch, or what of it needs none.
//!
//! Everything goes through one profile, `dev`: the C++ under libtorch's bindings takes minutes, and cargo compiles it once
//! per profile.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use serde_json::Value;

use crate::cargo;
use crate::failure::Failure;
use crate::setup;

/// Features that link libtorch.
const LINK_LIBTORCH: [&str; 1] = ["torch"];

/// Cargo with libtorch, or without.
#[derive(Debug, Clone)]
pub(crate) struct Build {
    /// For cargo and for the programs it starts.
    environment: Vec<(String, OsString)>,
    /// Whether the features that link libtorch are built.
    libtorch: bool,
}

impl Build {
    /// Leaves out what links libtorch. Needs a C compiler.
    pub(crate) fn without_libtorch() -> Self {
        Self { environment: Vec::new(), libtorch: false }
    }

    /// Builds everything; finds libtorch first, or fetches it. Needs a C++ compiler.
    ///
    /// # Errors
    ///
    /// No C++ compiler; those of [`setup::libtorch`].
    pub(crate) fn with_libtorch() -> Result<Self, Failure> {
        check_compiler()?;
        Ok(Self { environment: setup::environment(&setup::libtorch()?), libtorch: true })
    }

    /// Whether what links libtorch is built.
    pub(crate) fn has_libtorch(&self) -> bool {
        self.libtorch
    }

    /// Cargo at the root of the repository.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = cargo::command();
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a cargo command with its output passed through.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] where cargo cannot be started.
    pub(crate) fn status(&self, args: &[&str]) -> Result<ExitStatus, Failure> {
        self.cargo().args(args).status().map_err(cargo::no_cargo)
    }

    /// Cargo's options for every feature of a package that this builds.
    ///
    /// # Errors
    ///
    /// Those of [`cargo::metadata`].
    pub(crate) fn every_feature(&self, package: &str) -> Result<Vec<String>, Failure> {
        Ok(features_of(&cargo::metadata()?, package, self.libtorch))
    }

    /// Builds one executable and returns the path cargo put it at, wherever the target folder is.
    ///
    /// # Errors
    ///
    /// [`Failure::Failed`] where the build fails (cargo has said why) or names no such executable.
    pub(crate) fn executable(&self, wanted: Executable) -> Result<PathBuf, Failure> {
        let Executable { package, kind, name, features } = wanted;
        let output = self
            .cargo()
            .args(["build", "--package", package, kind, name, "--features", features])
            .arg("--message-format=json-render-diagnostics")
            .stderr(Stdio::inherit())
            .output()
            .map_err(cargo::no_cargo)?;
        if !output.status.success() {
            return Err(Failure::failed(format!("`{name}` of {package} does not build, see above")));
        }
        cargo::executable_in(&String::from_utf8_lossy(&output.stdout), name)
            .ok_or_else(|| Failure::failed(format!("cargo built {package} but named no executable `{name}`")))
    }
}

fn features_of(metadata: &Value, package: &str, libtorch: bool) -> Vec<String> {
    let all = metadata["packages"].as_array().into_iter().flatten().find(|found| found["name"] == package);
    let all = all.and_then(|found| found["features"].as_object());
    let names: Vec<&str> = all.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    if libtorch || names.iter().all(|name| !LINK_LIBTORCH.contains(name)) {
        return vec!["--all-features".to_owned()];
    }
    let rest: Vec<&str> = names.into_iter().filter(|name| !LINK_LIBTORCH.contains(name)).collect();
    vec!["--features".to_owned(), rest.join(",")]
}

/// The bindings of libtorch are C++, and what their build says without a compiler helps nobody.
fn check_compiler() -> Result<(), Failure> {
    let name = std::env::var_os("CXX").filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".into());
    // CXX may hold options or a wrapper in front.
    let text = name.to_string_lossy();
    let mut words = text.split_whitespace();
    let program = words.next().unwrap_or("c++");
    let found = Command::new(program).args(words).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    match found {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Failure::failed(format!(
            "there is no C++ compiler (`{text}`), and the bindings of libtorch need one: install g++ or clang, or name \
             one in CXX; `train --example softmax` and `test --fast` do without"
        ))),
    }
}

/// One executable of the workspace and what it needs to be built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Executable {
    /// The package that has it.
    pub(crate) package: &'static str,
    /// `--bin` or `--example`.
    pub(crate) kind: &'static str,
    /// Its name.
    pub(crate) name: &'static str,
    /// The package's features it needs, as cargo takes them; empty for none.
    pub(crate) features: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_that_link_libtorch_need_one() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "plain", "features": { "a": [] } },
            { "name": "models", "features": { "cpu": [], "default": ["cpu"], "torch": [] } },
        ] });
        for (package, libtorch, expected) in [
            ("plain", false, &["--all-features"][..]),
            ("models", true, &["--all-features"]),
            ("models", false, &["--features", "cpu,default"]),
        ] {
            assert_eq!(features_of(&metadata, package, libtorch), expected, "{package} {libtorch}");
        }
    }
}
