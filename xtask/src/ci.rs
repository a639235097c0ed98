//! `cargo xtask ci`: everything a change must pass, in stages, each with its name, its time and a way to repeat it.
//!
//! A failing stage does not stop the ones behind it: one run shows everything there is to repair. The closing line of
//! the tests is printed again as the very last line.

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use crate::build::Build;
use crate::cargo;
use crate::failure::Failure;
use crate::summary::{self, Expected};
use crate::tally::Tally;
use crate::test::{self, Selection};
use crate::{disk, licences, setup, sim, tidy, train};

/// One stage.
struct Stage {
    name: &'static str,
    what: &'static str,
    run: fn(&mut Option<Tally>) -> Result<(), Failure>,
}

const STAGES: [Stage; 11] = [
    Stage { name: "fmt", what: "rustfmt finds nothing to change", run: |_| fmt() },
    Stage { name: "tidy", what: "the rules of the repository hold", run: |_| tidy::run(&[]) },
    Stage { name: "licences", what: "deny.toml allows every licence", run: |_| licences::check() },
    Stage { name: "setup", what: "libtorch is there, or fetched", run: |_| setup::run(&[]) },
    Stage { name: "features", what: "each crate builds with no features and with all", run: |_| features() },
    Stage { name: "clippy", what: "clippy is silent, with no features and with all", run: |_| clippy() },
    Stage { name: "docs", what: "the documentation builds without a warning", run: |_| docs() },
    Stage { name: "package", what: "each crate packages", run: |_| package() },
    Stage { name: "test", what: "every test passes (cargo xtask test)", run: tests },
    Stage { name: "sim", what: "300 simulated runs with faults break no rule", run: |_| simulations() },
    Stage { name: "train", what: "training runs are exact and accurate", run: |_| short_trains() },
];

/// A training run that CI does.
struct Run {
    /// Arguments of `cargo xtask train`.
    args: &'static [&'static str],
    /// What comes out of it.
    expected: Expected,
}

/// Runs that CI does: the default one whole, and the quick example in lockstep.
const RUNS: [Run; 2] = [
    Run { args: &[], expected: Expected { samples: 5 * 8000, accuracy: 0.96 } },
    Run {
        args: &["--example", "softmax", "--mode", "cpu-sync", "--epochs", "3"],
        expected: Expected { samples: 3 * 8000, accuracy: 0.85 },
    },
];
/// How long a run may take; a healthy one takes less than half a minute.
const TRAIN_DEADLINE: Duration = Duration::from_secs(300);

/// Runs the command.
///
/// # Errors
///
/// A usage error for an unknown stage; exit status 1 where a stage failed.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    if args == ["--list"] {
        for stage in &STAGES {
            println!("{:<10} {}", stage.name, stage.what);
        }
        return Ok(());
    }
    let stages = choose(args)?;
    let place = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
    if let Some(warning) = disk::look(&place)? {
        println!("{warning}");
    }
    let mut tally = None;
    let mut times = Vec::new();
    for stage in stages {
        println!("\n=== {}: {}", stage.name, stage.what);
        let started = Instant::now();
        let result = (stage.run)(&mut tally);
        let took = started.elapsed();
        let passed = result.is_ok();
        if let Err(failure) = result {
            if let Some(message) = failure.message() {
                println!("{message}");
            }
            println!("=== {} failed", stage.name);
        }
        times.push((stage.name, took, passed));
    }
    report(&times);
    if let Some(tally) = tally {
        println!("{tally}");
    }
    if times.iter().all(|(_, _, passed)| *passed) { Ok(()) } else { Err(Failure::Status(1)) }
}

/// The stages of these names in their own order; all where none is named.
fn choose(names: &[String]) -> Result<Vec<&'static Stage>, Failure> {
    if let Some(unknown) = names.iter().find(|name| STAGES.iter().all(|stage| stage.name != name.as_str())) {
        let known = STAGES.map(|stage| stage.name).join(", ");
        return Err(Failure::usage(format!("unknown stage `{unknown}`: the stages are {known}")));
    }
    Ok(STAGES.iter().filter(|stage| names.is_empty() || names.iter().any(|name| name == stage.name)).collect())
}

fn report(times: &[(&str, Duration, bool)]) {
    println!("\n{:<10} {:>8}", "stage", "seconds");
    for (name, took, passed) in times {
        let verdict = if *passed { String::new() } else { format!("  FAILED, again with `cargo xtask ci {name}`") };
        println!("{name:<10} {:>8.1}{verdict}", took.as_secs_f64());
    }
    let total: Duration = times.iter().map(|(_, took, _)| *took).sum();
    println!("{:<10} {:>8.1}", "all", total.as_secs_f64());
}

fn fmt() -> Result<(), Failure> {
    expect(cargo::status(&["fmt", "--all", "--check"])?, "run `cargo fmt --all`")
}

fn features() -> Result<(), Failure> {
    for_each_crate(|build, name, set| {
        let args = [&["check", "--quiet", "--package", name][..], set].concat();
        expect(build.status(&args)?, "see the errors above")
    })
}

fn clippy() -> Result<(), Failure> {
    for_each_crate(|build, name, set| {
        let args =
            [&["clippy", "--quiet", "--package", name, "--all-targets"][..], set, &["--", "-D", "warnings"]].concat();
        expect(build.status(&args)?, "see the warnings above (no clippy: `rustup component add clippy`)")
    })
}

/// Calls `check` for each crate with the two feature sets it must stand with, alone, and names those that failed.
fn for_each_crate(check: impl Fn(&Build, &str, &[&str]) -> Result<(), Failure>) -> Result<(), Failure> {
    let build = Build::with_libtorch()?;
    let mut failed = Vec::new();
    for name in cargo::packages()? {
        for set in [vec!["--no-default-features".to_owned()], build.every_feature(&name)?] {
            let title = format!("{name} {}", set.join(" "));
            println!("{title}");
            let set: Vec<&str> = set.iter().map(String::as_str).collect();
            if check(&build, &name, &set).is_err() {
                failed.push(title);
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::failed(format!("failed: {}", failed.join("; ")))) }
}

fn docs() -> Result<(), Failure> {
    let build = Build::with_libtorch()?;
    let mut failed = Vec::new();
    for name in cargo::packages()? {
        let mut command = build.cargo();
        command.args(["doc", "--quiet", "--no-deps", "--package", &name]).args(build.every_feature(&name)?);
        if !command.env("RUSTDOCFLAGS", "-D warnings").status().map_err(cargo::no_cargo)?.success() {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        Err(Failure::failed(format!("see the warnings above: {}", failed.join(", "))))
    }
}

/// Packages without building once more, and without asking the registry: what is needed is here after the stages before.
fn package() -> Result<(), Failure> {
    let args = ["package", "--quiet", "--workspace", "--exclude", "xtask", "--no-verify", "--allow-dirty", "--offline"];
    expect(cargo::status(&args)?, "see the errors above")
}

fn tests(tally: &mut Option<Tally>) -> Result<(), Failure> {
    let outcome = test::run_suite(&Build::with_libtorch()?, &Selection::default())?;
    outcome.print_details();
    *tally = Some(outcome.tally);
    println!("{}", outcome.tally);
    if outcome.tally.failed == 0 { Ok(()) } else { Err(Failure::failed("tests failed, see above")) }
}

fn simulations() -> Result<(), Failure> {
    sim::run(&["--seeds", "0..300", "--ranks", "3..64"].map(str::to_owned))
}

fn short_trains() -> Result<(), Failure> {
    let mut found = Vec::new();
    for Run { args, expected } in &RUNS {
        let line = ["cargo xtask train", &args.join(" ")].join(" ");
        println!("{line}");
        if let Err(failure) = short_train(args, *expected) {
            found.push(format!("{line}: {}", failure.message().unwrap_or("failed")));
        }
    }
    if found.is_empty() { Ok(()) } else { Err(Failure::failed(found.join("\n"))) }
}

fn short_train(args: &[&str], expected: Expected) -> Result<(), Failure> {
    let folder = scratch()?;
    let file = folder.join("summary.json");
    let run = folder.join("run");
    let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    for (name, path) in [("--summary", &file), ("--run-dir", &run)] {
        args.extend([name.to_owned(), path.to_string_lossy().into_owned()]);
    }
    let status = wait(train::command(&args)?, TRAIN_DEADLINE)?;
    expect(status, "the training run failed, see its lines above")?;
    let text = std::fs::read(&file)
        .map_err(|error| Failure::failed(format!("the run left no summary at {}: {error}", file.display())))?;
    let summary = serde_json::from_slice(&text)
        .map_err(|error| Failure::failed(format!("{} is no JSON: {error}", file.display())))?;
    println!("{}", summary::line(&summary));
    let found = summary::shortfalls(&summary, expected);
    if found.is_empty() { Ok(()) } else { Err(Failure::failed(found.join("\n"))) }
}

/// An empty folder for the short run, in the target folder.
fn scratch() -> Result<PathBuf, Failure> {
    let metadata = cargo::metadata()?;
    let target = metadata["target_directory"].as_str().map_or_else(|| cargo::root().join("target"), PathBuf::from);
    let folder = target.join("ci-train");
    let denied = |error: std::io::Error| Failure::failed(format!("cannot empty {}: {error}", folder.display()));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(denied)?;
    }
    std::fs::create_dir_all(&folder).map_err(denied)?;
    Ok(folder)
}

/// Waits for a program, and ends it where it outlives the deadline.
fn wait(mut command: std::process::Command, deadline: Duration) -> Result<ExitStatus, Failure> {
    let lost = |error: std::io::Error| Failure::failed(format!("the training run was lost: {error}"));
    let mut child = command.spawn().map_err(lost)?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(lost)? {
            return Ok(status);
        }
        if started.elapsed() > deadline {
            child.kill().map_err(lost)?;
            child.wait().map_err(lost)?;
            return Err(Failure::failed(format!("the training run was still going after {deadline:?} and was ended")));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn expect(status: ExitStatus, advice: &str) -> Result<(), Failure> {
    if status.success() { Ok(()) } else { Err(Failure::failed(format!("{status}: {advice}"))) }
}

#[cfg(test)]
mod stage_tests {
    use super::*;

    fn names(typed: &[&str]) -> Result<Vec<&'static str>, Failure> {
        let typed: Vec<String> = typed.iter().map(|name| (*name).to_owned()).collect();
        Ok(choose(&typed)?.into_iter().map(|stage| stage.name).collect())
    }

    #[test]
    fn stages_run_in_their_own_order() {
        assert_eq!(names(&["train", "fmt"]), Ok(vec!["fmt", "train"]));
        assert_eq!(names(&[]).map(|all| all.len()), Ok(STAGES.len()));
    }

    #[test]
    fn an_unknown_stage_names_the_known() {
        let Err(Failure::Usage(message)) = names(&["lint"]) else { panic!("unknown stages are refused") };
        assert!(
            message.contains("fmt, tidy, licences, setup, features, clippy, docs, package, test, sim, train"),
            "{message}"
        );
    }
}
