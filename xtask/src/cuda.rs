//! `cargo xtask cuda-probe`, `cuda-test`, `cuda-test-nccl` and `cuda-test-all`: what runs on GPUs (docs/CUDA.md).
//!
//! A test that is about a GPU runs in a process of its own: a library that gets stuck takes no other test with it, and
//! one that does not end within its deadline is a failure.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cargo;
use crate::failure::Failure;
use crate::tally::{self, Tally};

/// The crate of the probe, and of most tests.
const PACKAGE: &str = "flodl-nccl";

/// The crate whose ranks are whole workers.
const WORKER: &str = "flodl-worker";

/// How long one test may take.
const DEADLINE: Duration = Duration::from_secs(120);

/// Which tests are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// One GPU: the driver, the kernels, and two ranks on it that average over the CPU.
    Device,
    /// NCCL: loading, communicators, averages, sessions, ranks as processes.
    Nccl,
    /// Both.
    All,
}

/// Tests of one program: its crate and name, and what the names of the tests begin with.
type Tests = (&'static str, &'static str, &'static str);

impl Tier {
    fn tests(self) -> &'static [Tests] {
        const ALL: &[Tests] = &[
            (PACKAGE, "device", "on_gpus::"),
            (PACKAGE, "average", "on_gpus::kernels_"),
            (WORKER, "one_gpu", "on_gpus::"),
            (PACKAGE, "loading", "the_real_library"),
            (PACKAGE, "comm", "on_gpus::"),
            (PACKAGE, "average", "on_gpus::"),
            (PACKAGE, "session", "on_gpus::"),
            (PACKAGE, "processes", "on_gpus::"),
        ];
        match self {
            Self::Device => &ALL[..3],
            Self::Nccl => &ALL[3..],
            Self::All => ALL,
        }
    }
}

/// Says what was found, what will run, and what will not and why.
///
/// # Errors
///
/// A usage error; a probe that does not build or dies.
pub(crate) fn probe(args: &[String]) -> Result<(), Failure> {
    no_arguments(args, "cuda-probe")?;
    let output = cargo::command()
        .args(["run", "--quiet", "--package", PACKAGE, "--example", "probe"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(cargo::no_cargo)?;
    if !output.status.success() {
        return Err(Failure::failed(format!("the probe failed: {}", output.status)));
    }
    let facts = String::from_utf8_lossy(&output.stdout);
    print!("{facts}");
    for line in verdicts(&Found::of(&facts)) {
        println!("{line}");
    }
    Ok(())
}

/// What the probe found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Found {
    has_driver: bool,
    gpus: usize,
    has_nccl: bool,
}

impl Found {
    fn of(facts: &str) -> Self {
        let has =
            |name: &str| facts.lines().any(|line| line.strip_prefix(name).is_some_and(|it| !it.starts_with("none")));
        let gpus = facts.lines().filter(|line| line.starts_with("gpu: ")).count();
        Self { has_driver: has("driver: "), gpus, has_nccl: has("nccl: ") }
    }
}

/// What will run of each tier.
fn verdicts(found: &Found) -> Vec<String> {
    let no_gpu = match (found.has_driver, found.gpus) {
        (false, _) => Some("there is no CUDA driver"),
        (true, 0) => Some("the driver finds no GPU"),
        _ => None,
    };
    let device = match no_gpu {
        None => "cuda-test: runs".to_owned(),
        Some(why) => format!("cuda-test: is skipped, {why}"),
    };
    let nccl = match (found.has_nccl, no_gpu) {
        (false, _) => "cuda-test-nccl: is skipped, there is no NCCL (set FLODL_NCCL to libnccl.so.2)".to_owned(),
        (true, Some(why)) => {
            format!("cuda-test-nccl: loading, version, error strings and ids run; the rest is skipped, {why}")
        }
        (true, None) if found.gpus < 3 => {
            format!("cuda-test-nccl: runs with up to {} GPUs; what needs more (at most 3) is skipped", found.gpus)
        }
        (true, None) => "cuda-test-nccl: runs".to_owned(),
    };
    vec![device, nccl, "elsewhere: the same bodies run on a stand-in, `cargo xtask test -p flodl-nccl`".to_owned()]
}

/// Runs the tests of a tier, one process each, and counts.
///
/// # Errors
///
/// A usage error; tests that do not build; exit status 1 where one failed.
pub(crate) fn test(args: &[String], tier: Tier, name: &str) -> Result<(), Failure> {
    no_arguments(args, name)?;
    let mut tally = Tally::default();
    for (package, program, begins) in tier.tests() {
        let path = build(package, program)?;
        for test in tests_of(package, &path, begins)? {
            let (outcome, said) = run_one(package, &path, &test)?;
            match &outcome {
                Outcome::Passed => println!("passed   {program}: {test}"),
                Outcome::Skipped(why) => println!("skipped  {program}: {test}: {why}"),
                Outcome::Failed(why) => println!("FAILED   {program}: {test}: {why}\n{said}"),
            }
            tally.add(outcome_tally(&outcome));
        }
    }
    println!("{tally}");
    if tally.failed == 0 { Ok(()) } else { Err(Failure::Status(1)) }
}

fn no_arguments(args: &[String], name: &str) -> Result<(), Failure> {
    match args.first() {
        Some(arg) => Err(Failure::usage(format!("unexpected argument `{arg}`: {name} takes none"))),
        None => Ok(()),
    }
}

/// Builds a test program and returns its path.
fn build(package: &str, program: &str) -> Result<PathBuf, Failure> {
    let features = if package == WORKER { &["--features", "nccl"][..] } else { &[] };
    let output = cargo::command()
        .args(["test", "--quiet", "--package", package, "--test", program, "--no-run", "--message-format", "json"])
        .args(features)
        .stderr(Stdio::inherit())
        .output()
        .map_err(cargo::no_cargo)?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let path = test_program(&messages, program).filter(|_| output.status.success());
    path.ok_or_else(|| Failure::failed(format!("the tests `{program}` of {package} do not build")))
}

/// The path of a test program in cargo's JSON messages, one a line.
fn test_program(messages: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == name && message["target"]["kind"][0] == "test")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

/// The names of a program's tests that begin so.
fn tests_of(package: &str, path: &PathBuf, begins: &str) -> Result<Vec<String>, Failure> {
    let output = command(package, path)
        .arg("--list")
        .output()
        .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let tests: Vec<String> = listed(&text, begins).map(str::to_owned).collect();
    if tests.is_empty() {
        return Err(Failure::failed(format!("{} has no test that begins with {begins}", path.display())));
    }
    Ok(tests)
}

fn listed<'a>(text: &'a str, begins: &str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(|line| line.strip_suffix(": test")).filter(move |test| test.starts_with(begins))
}

fn command(package: &str, path: &PathBuf) -> Command {
    let mut command = Command::new(path);
    command.current_dir(cargo::root().join(package));
    command
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    Failed(String),
}

fn outcome_tally(outcome: &Outcome) -> Tally {
    let mut tally = Tally::default();
    match outcome {
        Outcome::Passed => tally.passed = 1,
        Outcome::Skipped(_) => tally.skipped = 1,
        Outcome::Failed(_) => tally.failed = 1,
    }
    tally
}

/// Runs one test, and ends it where it outlives the deadline. What it says goes to a file, so that a test that is stuck
/// cannot hold a pipe open.
fn run_one(package: &str, path: &PathBuf, test: &str) -> Result<(Outcome, String), Failure> {
    let file = std::env::temp_dir().join(format!("flodl-cuda-test-{}", std::process::id()));
    let lost = |error: std::io::Error| Failure::failed(format!("{test}: {error}"));
    let output = std::fs::File::options().write(true).create_new(true).open(&file).map_err(lost)?;
    let errors = output.try_clone().map_err(lost)?;
    let mut child = command(package, path)
        .args(["--exact", test, "--test-threads", "1", "--nocapture"])
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .spawn()
        .map_err(lost)?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(lost)? {
            break Some(status);
        }
        if started.elapsed() > DEADLINE {
            child.kill().map_err(lost)?;
            child.wait().map_err(lost)?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let said = String::from_utf8_lossy(&std::fs::read(&file).map_err(lost)?).into_owned();
    std::fs::remove_file(&file).map_err(lost)?;
    let outcome = match status {
        None => Outcome::Failed(format!("it was still going after {DEADLINE:?} and was ended")),
        Some(status) => judge(status.success(), &status.to_string(), &said),
    };
    Ok((outcome, said))
}

fn judge(succeeded: bool, status: &str, said: &str) -> Outcome {
    let ran_one = said.lines().filter_map(tally::result_line).any(|counts| counts.passed == 1);
    match said.lines().find_map(skip_in) {
        _ if !succeeded => Outcome::Failed(status.to_owned()),
        _ if !ran_one => Outcome::Failed("it did not run".to_owned()),
        Some(why) => Outcome::Skipped(why.to_owned()),
        None => Outcome::Passed,
    }
}

/// The reason of a skip. Without the harness's capture it stands behind the test's own line.
fn skip_in(line: &str) -> Option<&str> {
    tally::skip_line(line).or_else(|| line.split_once(" ... skipped: ").map(|(_, why)| why))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BARE: &str = "driver: none, no CUDA driver was found\nnccl: none, no NCCL\n";
    const RIG: &str = "driver: CUDA 13.0\ngpu: 0 H200, 1 MiB\ngpu: 1 H200, 1 MiB\nnccl: 2.28.9 at /x\ncan: run\n";

    #[test]
    fn what_is_found_decides_what_runs() {
        assert_eq!(Found::of(BARE), Found::default());
        assert_eq!(Found::of(RIG), Found { has_driver: true, gpus: 2, has_nccl: true });
        let said = |found: Found| verdicts(&found).join("\n");
        assert!(said(Found::default()).contains("cuda-test: is skipped, there is no CUDA driver"));
        assert!(said(Found { has_nccl: true, ..Found::default() }).contains("ids run; the rest is skipped"));
        assert!(said(Found { has_driver: true, ..Found::default() }).contains("the driver finds no GPU"));
        assert!(said(Found::of(RIG)).contains("up to 2 GPUs; what needs more (at most 3) is skipped"));
        assert!(said(Found { gpus: 3, ..Found::of(RIG) }).contains("cuda-test-nccl: runs\n"));
    }

    #[test]
    fn a_test_passes_skips_itself_or_fails() {
        let ran = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 30 filtered out";
        let none = "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 31 filtered out";
        let cases = [
            (true, format!("test on_gpus::a ... ok\n{ran}"), Outcome::Passed),
            (true, format!("skipped: no GPU\n{ran}"), Outcome::Skipped("no GPU".to_owned())),
            (true, format!("test on_gpus::a ... skipped: no GPU\nok\n{ran}"), Outcome::Skipped("no GPU".to_owned())),
            (true, none.to_owned(), Outcome::Failed("it did not run".to_owned())),
            (true, String::new(), Outcome::Failed("it did not run".to_owned())),
            (false, ran.to_owned(), Outcome::Failed("signal: 6".to_owned())),
        ];
        for (succeeded, said, expected) in cases {
            assert_eq!(judge(succeeded, "signal: 6", &said), expected, "{said}");
        }
    }

    #[test]
    fn the_tests_of_a_tier_are_those_that_begin_so() {
        let text = "on_gpus::a: test\non_stand_in::a: test\nslow: benchmark\n\n2 tests, 1 benchmark\n";
        assert_eq!(listed(text, "on_gpus::").collect::<Vec<_>>(), ["on_gpus::a"]);
    }

    #[test]
    fn a_test_program_is_told_from_a_library_of_its_name() {
        let messages = concat!(
            r#"{"target":{"name":"comm","kind":["lib"]},"executable":"/t/wrong"}"#,
            "\n",
            r#"{"target":{"name":"comm","kind":["test"]},"executable":"/t/deps/comm-1"}"#,
        );
        assert_eq!(test_program(messages, "comm"), Some(PathBuf::from("/t/deps/comm-1")));
    }
}
