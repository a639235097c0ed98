//! `cargo xtask test`: every test of the workspace, crate by crate with all features, and one closing line.
//!
//! Crate by crate, because all features of all crates at once would unify what belongs apart. Nothing but cargo is
//! needed. A crate that does not build, or a test program that dies, counts as one failure: the closing line never says
//! `0 failed` of a suite that did not run.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::process::Stdio;

use crate::cargo;
use crate::failure::Failure;
use crate::tally::{self, Tally};

/// The crate whose tests start real processes; it comes last, after everything it builds on has been tested.
const PROCESS_TESTS: &str = "flodl-coord";

/// What the process tests start beside cargo's own `CARGO_BIN_EXE_flodl`.
const TRAINER: [&str; 5] = ["build", "--package", "flodl-worker", "--example", "softmax"];

const USAGE: &str = "usage: cargo xtask test [-p CRATE]... [-- ARGS OF THE TEST PROGRAMS]";

/// Runs the command.
///
/// # Errors
///
/// A usage error; exit status 1 where a test failed.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let Selection { crates, harness_args } = Selection::read(args)?;
    let outcome = run_suite(&crates, &harness_args)?;
    outcome.print_details();
    println!("{}", outcome.tally);
    if outcome.tally.failed == 0 { Ok(()) } else { Err(Failure::Status(1)) }
}

/// Which tests to run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Selection {
    /// The crates; empty for all.
    crates: Vec<String>,
    /// Passed to each test program.
    harness_args: Vec<String>,
}

impl Selection {
    fn read(args: &[String]) -> Result<Self, Failure> {
        let mut selection = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            match arg.as_str() {
                "-p" | "--package" => match rest.next() {
                    Some(name) => selection.crates.push(name.clone()),
                    None => return Err(Failure::usage(format!("`{arg}` needs the name of a crate\n{USAGE}"))),
                },
                "--" => {
                    selection.harness_args = rest.cloned().collect();
                    break;
                }
                other => return Err(Failure::usage(format!("unexpected argument `{other}`\n{USAGE}"))),
            }
        }
        Ok(selection)
    }
}

/// The result of a suite.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The counts over all crates.
    pub(crate) tally: Tally,
    /// The crates with a failure, each with what happened.
    failures: Vec<String>,
    /// The reasons given by tests that skipped themselves.
    skips: Vec<String>,
}

impl Outcome {
    /// Prints what failed and what was skipped; the counts are left to the caller.
    pub(crate) fn print_details(&self) {
        for skip in &self.skips {
            println!("skipped: {skip}");
        }
        for failure in &self.failures {
            println!("failed: {failure}");
        }
    }

    fn note(&mut self, name: &str, seen: Seen, succeeded: bool) {
        let Seen { mut tally, skips } = seen;
        tally.skip_passed(skips.len() as u64);
        if !succeeded {
            if tally.failed == 0 {
                tally.failed = 1;
                self.failures.push(format!("{name}: did not build, or a test program died; see above"));
            } else {
                self.failures.push(format!("{name}: {} failed, again with `cargo xtask test -p {name}`", tally.failed));
            }
        }
        self.tally.add(tally);
        self.skips.extend(skips.into_iter().map(|why| format!("{name}: {why}")));
    }
}

/// Runs the tests of the named crates, or of all, and prints everything as it comes.
///
/// # Errors
///
/// A usage error for an unknown crate; [`Failure::Failed`] where cargo cannot be run.
pub(crate) fn run_suite(crates: &[String], harness_args: &[String]) -> Result<Outcome, Failure> {
    let mut all = cargo::packages()?;
    if let Some(unknown) = crates.iter().find(|name| !all.contains(name)) {
        return Err(Failure::usage(format!("unknown crate `{unknown}`: the crates are {}", all.join(", "))));
    }
    all.retain(|name| crates.is_empty() || crates.contains(name));
    all.sort_by_key(|name| name == PROCESS_TESTS);

    let mut outcome = Outcome::default();
    for name in &all {
        println!("==> tests of {name}");
        if name == PROCESS_TESTS && !cargo::status(&TRAINER, &[])?.success() {
            outcome.note("flodl-worker's example softmax", Seen::default(), false);
            continue;
        }
        let (seen, succeeded) = test_crate(name, harness_args)?;
        outcome.note(name, seen, succeeded);
    }
    Ok(outcome)
}

/// What was read from the output of one crate's tests.
#[derive(Debug, Default)]
struct Seen {
    tally: Tally,
    skips: Vec<String>,
}

impl Seen {
    fn read_line(&mut self, line: &str) {
        if let Some(counts) = tally::result_line(line) {
            self.tally.add(counts);
        } else if let Some(why) = tally::skip_line(line) {
            self.skips.push(why.to_owned());
        }
    }
}

fn test_crate(name: &str, harness_args: &[String]) -> Result<(Seen, bool), Failure> {
    let mut command = cargo::command();
    command.args(["test", "--package", name, "--no-fail-fast"]).args(cargo::every_feature(name)?);
    command.arg("--").args(harness_args);
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let lost = |error: std::io::Error| Failure::failed(format!("the output of cargo test was lost: {error}"));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| Failure::failed(format!("cannot start cargo: {error}; is it on the PATH?")))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(Failure::failed("cargo test has no output to read"));
    };
    // Both pipes are drained at once: a full one would stop the tests.
    let (from_stdout, from_stderr) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| pass_through(stderr, std::io::stderr()));
        (pass_through(stdout, std::io::stdout()), reader.join())
    });
    let mut seen = from_stdout.map_err(lost)?;
    let from_stderr =
        from_stderr.map_err(|_| Failure::failed("the reader of cargo's messages panicked"))?.map_err(lost)?;
    seen.skips.extend(from_stderr.skips);
    let status = child.wait().map_err(lost)?;
    Ok((seen, status.success()))
}

/// Copies lines from a test program to the terminal and reads them on the way.
fn pass_through(from: impl Read, mut to: impl Write) -> std::io::Result<Seen> {
    let mut seen = Seen::default();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.read_until(b'\n', &mut line)? == 0 {
            return Ok(seen);
        }
        to.write_all(&line)?;
        to.flush()?;
        seen.read_line(String::from_utf8_lossy(&line).trim_end());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn the_command_line_selects_crates_and_passes_the_rest_on() {
        let selection = Selection::read(&words("-p flodl-wire --package flodl-elche -- pool --exact"));
        let expected = Selection { crates: words("flodl-wire flodl-elche"), harness_args: words("pool --exact") };
        assert_eq!(selection, Ok(expected));
        assert!(matches!(Selection::read(&words("-p")), Err(Failure::Usage(_))));
        assert!(matches!(Selection::read(&words("pool")), Err(Failure::Usage(_))));
    }

    #[test]
    fn output_is_passed_on_unchanged_and_counted() {
        let text = "running 2 tests\ntest a ... ok\nskipped: no GPU\n\
                    test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n\
                    test result: ok. 1 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out\nlast \u{fffd}";
        let mut out = Vec::new();
        let seen = pass_through(text.as_bytes(), &mut out).expect("memory does not fail");
        assert_eq!(out, text.as_bytes());
        assert_eq!(seen.tally, Tally { passed: 3, failed: 0, skipped: 3 });
        assert_eq!(seen.skips, ["no GPU"]);
    }

    #[test]
    fn a_crate_that_ends_badly_without_a_count_is_a_failure() {
        let mut outcome = Outcome::default();
        outcome.note("one", Seen { tally: Tally { passed: 4, failed: 0, skipped: 0 }, skips: vec![] }, false);
        outcome.note("two", Seen { tally: Tally { passed: 1, failed: 2, skipped: 0 }, skips: vec![] }, false);
        outcome.note("three", Seen { tally: Tally { passed: 3, ..Tally::default() }, skips: vec!["x".into()] }, true);
        assert_eq!(outcome.tally, Tally { passed: 7, failed: 3, skipped: 1 });
        assert_eq!(outcome.failures.len(), 2);
        assert_eq!(outcome.skips, ["three: x"]);
    }
}
