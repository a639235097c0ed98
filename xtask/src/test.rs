//! `cargo xtask test`: every test of the workspace, crate by crate with all features, and one closing line.
//!
//! Crate by crate, because all features of all crates at once would unify what belongs apart. libtorch is found or fetched
//! first; `--fast` leaves out what needs it. A crate that does not build, or a test program that dies, counts as one failure: the closing line never says
//! `0 failed` of a suite that did not run.

use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::Stdio;

use crate::build::{Build, Executable};
use crate::cargo;
use crate::failure::Failure;
use crate::tally::{self, Tally};

/// The crate whose tests start real processes; it comes last, after everything it builds on has been tested.
const PROCESS_TESTS: &str = "flodl-coord";

/// The crate with tests that need libtorch.
const TORCH_TESTS: &str = "flodl-worker";

/// The trainers that the process tests start, beside their own: where the path of each is told, and what it is.
const TRAINERS: [(&str, Executable); 1] = [(
    "FLODL_TEST_DIGITS",
    Executable { package: "flodl-worker", kind: "--example", name: "digits", features: "torch" },
)];

const USAGE: &str = "usage: cargo xtask test [--fast] [-p CRATE]... [-- ARGS OF THE TEST PROGRAMS]";

const HELP: &str = "\
Runs every test of the workspace, crate by crate with all features. The last line says how many passed, failed and were
skipped; the exit status is 1 where one failed.

  --fast     leave out what needs libtorch: no download, no C++, less than two minutes once it is built
  -p CRATE   only this crate's tests; may be given again

The first run finds libtorch or fetches it (`cargo xtask setup`) and compiles its bindings, which takes some ten minutes.
";

/// Runs the command.
///
/// # Errors
///
/// A usage error; exit status 1 where a test failed.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    let Some(selection) = Selection::read(args)? else {
        print!("{USAGE}\n\n{HELP}");
        return Ok(());
    };
    selection.check()?;
    let build = if selection.fast { Build::without_libtorch() } else { Build::with_libtorch()? };
    let outcome = run_suite(&build, &selection)?;
    outcome.print_details();
    println!("{}", outcome.tally);
    if outcome.tally.failed == 0 { Ok(()) } else { Err(Failure::Status(1)) }
}

/// Which tests to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// The crates; empty for all.
    crates: Vec<String>,
    /// Without what needs libtorch.
    fast: bool,
    /// Passed to each test program.
    harness_args: Vec<String>,
}

impl Selection {
    /// Reads the arguments; `None` where they ask for help.
    fn read(args: &[String]) -> Result<Option<Self>, Failure> {
        let mut selection = Self::default();
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            match arg.as_str() {
                "--help" | "-h" => return Ok(None),
                "--fast" => selection.fast = true,
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
        Ok(Some(selection))
    }

    /// Refuses crates that are not there, before anything is fetched or built.
    fn check(&self) -> Result<(), Failure> {
        let all = cargo::packages()?;
        match self.crates.iter().find(|name| !all.contains(name)) {
            Some(unknown) => {
                Err(Failure::usage(format!("unknown crate `{unknown}`: the crates are {}", all.join(", "))))
            }
            None => Ok(()),
        }
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

    /// Counts something that was left out, with the reason.
    fn skip(&mut self, why: String) {
        self.tally.skipped += 1;
        self.skips.push(why);
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

/// Runs the tests of the selected crates, or of all, and prints everything as it comes.
///
/// # Errors
///
/// [`Failure::Failed`] where cargo cannot be run.
pub(crate) fn run_suite(build: &Build, selection: &Selection) -> Result<Outcome, Failure> {
    let mut all = cargo::packages()?;
    all.retain(|name| selection.crates.is_empty() || selection.crates.contains(name));
    all.sort_by_key(|name| name == PROCESS_TESTS);

    let mut outcome = Outcome::default();
    for name in &all {
        println!("==> tests of {name}");
        let trainers = match name == PROCESS_TESTS && build.has_libtorch() {
            true => trainers(build, &mut outcome)?,
            false => Vec::new(),
        };
        let (seen, succeeded) = test_crate(build, name, &selection.harness_args, &trainers)?;
        outcome.note(name, seen, succeeded);
        if !build.has_libtorch() && name == TORCH_TESTS {
            outcome.skip(format!("{name}: the tests of networks on libtorch, which --fast leaves out"));
        }
    }
    Ok(outcome)
}

/// The variables that name the trainers of the process tests. One that does not build counts as a failure.
fn trainers(build: &Build, outcome: &mut Outcome) -> Result<Vec<(&'static str, PathBuf)>, Failure> {
    let mut built = Vec::new();
    for (variable, trainer) in TRAINERS {
        match build.executable(trainer) {
            Ok(path) => built.push((variable, path)),
            Err(Failure::Failed(_)) => {
                outcome.note(&format!("{}'s example {}", trainer.package, trainer.name), Seen::default(), false);
            }
            Err(other) => return Err(other),
        }
    }
    Ok(built)
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

fn test_crate(
    build: &Build,
    name: &str,
    harness_args: &[String],
    variables: &[(&str, PathBuf)],
) -> Result<(Seen, bool), Failure> {
    let mut command = build.cargo();
    command.args(["test", "--package", name, "--no-fail-fast"]).args(build.every_feature(name)?);
    command.arg("--").args(harness_args).envs(variables.iter().map(|(name, value)| (name, value)));
    if std::io::stderr().is_terminal() {
        command.env("CARGO_TERM_COLOR", "always");
    }
    let lost = |error: std::io::Error| Failure::failed(format!("the output of cargo test was lost: {error}"));
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(cargo::no_cargo)?;
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
        let expected =
            Selection { crates: words("flodl-wire flodl-elche"), fast: false, harness_args: words("pool --exact") };
        assert_eq!(selection, Ok(Some(expected)));
        let fast = Selection { fast: true, ..Selection::default() };
        assert_eq!(Selection::read(&words("--fast")), Ok(Some(fast)));
        assert_eq!(Selection::read(&words("--fast --help")), Ok(None));
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
