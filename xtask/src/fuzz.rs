//! `cargo xtask fuzz`: runs the coverage-guided fuzzers of flodl-wire, and keeps what they find.
//!
//! libFuzzer works with the stable compiler where the pass that counts edges is asked for by hand. Each target writes what it
//! finds to `flodl-wire/fuzz/target`; what `flodl-wire/fuzz/corpus` has of it is kept in the repository and played by
//! flodl-wire's test `corpus`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cargo;
use crate::failure::Failure;

const USAGE: &str = "\
usage: cargo xtask fuzz [TARGET] [--seconds N] [--keep]

  TARGET        only this one; without it all of them, two at a time
  --seconds N   how long each runs; 60 unless given
  --keep        reduce what was found to as few inputs as reach the same code, and add them to flodl-wire/fuzz/corpus
";

/// What the fuzzed code is compiled with, the build scripts not.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Inputs are no longer than this: a whole frame of the largest kind would only slow it down.
const INPUT_MAX: usize = 4096;

/// What is kept is no longer than this: every test run plays it.
const KEPT_MAX: usize = 96;

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    target: Option<String>,
    seconds: u32,
    keep: bool,
}

impl Options {
    fn read(args: &[String]) -> Result<Options, Failure> {
        let mut options = Options { target: None, seconds: 60, keep: false };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seconds" => {
                    let value =
                        args.next().ok_or_else(|| Failure::usage(format!("--seconds has no value\n\n{USAGE}")))?;
                    options.seconds = value.parse().ok().filter(|&seconds| seconds > 0).ok_or_else(|| {
                        Failure::usage(format!("--seconds {value}: give a number of seconds, 1 or more"))
                    })?;
                }
                "--keep" => options.keep = true,
                name if !name.starts_with('-') && options.target.is_none() => options.target = Some(name.to_owned()),
                other => return Err(Failure::usage(format!("unknown argument `{other}`\n\n{USAGE}"))),
            }
        }
        Ok(options)
    }
}

/// Where the fuzzers live.
struct Places {
    crate_dir: PathBuf,
    triple: String,
}

impl Places {
    fn program(&self, target: &str) -> PathBuf {
        self.crate_dir.join("target").join(&self.triple).join("release").join(target)
    }

    /// What is kept in the repository.
    fn kept(&self, target: &str) -> PathBuf {
        self.crate_dir.join("corpus").join(target)
    }

    /// What was found on this machine.
    fn found(&self, target: &str) -> PathBuf {
        self.crate_dir.join("target/corpus").join(target)
    }

    fn log(&self, target: &str) -> PathBuf {
        self.crate_dir.join("target").join(format!("{target}.log"))
    }
}

/// Runs the command.
///
/// # Errors
///
/// A usage error; a build that fails; a target that fails, with the input that did it.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    if args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{USAGE}");
        return Ok(());
    }
    let options = Options::read(args)?;
    let places = Places { crate_dir: cargo::root().join("flodl-wire/fuzz"), triple: triple()? };
    let targets = chosen(&targets(&places)?, options.target.as_deref())?;
    build(&places)?;
    let mut failed = Vec::new();
    for pair in targets.chunks(2) {
        let running: Result<Vec<Child>, Failure> =
            pair.iter().map(|target| start(&places, target, options.seconds)).collect();
        for (target, mut child) in pair.iter().zip(running?) {
            let status = child.wait().map_err(|error| Failure::failed(format!("{target}: {error}")))?;
            let log = fs::read_to_string(places.log(target)).unwrap_or_default();
            println!("{target:<10} {}", summary(&log, options.seconds));
            if !status.success() {
                failed.push(format!("{target}: {}", complaint(&log)));
            }
        }
    }
    if options.keep {
        for target in &targets {
            keep(&places, target)?;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(Failure::failed(failed.join("\n"))) }
}

fn triple() -> Result<String, Failure> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(&rustc).arg("-vV").output();
    let output = output.map_err(|error| Failure::failed(format!("cannot start {}: {error}", rustc.display())))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| Failure::failed("rustc -vV does not name its host"))
}

/// The targets' names, which are their files'.
fn targets(places: &Places) -> Result<Vec<String>, Failure> {
    let folder = places.crate_dir.join("targets");
    let entries = fs::read_dir(&folder).map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
    let mut names: Vec<String> =
        entries.filter_map(|entry| Some(entry.ok()?.path().file_stem()?.to_string_lossy().into_owned())).collect();
    names.sort();
    Ok(names)
}

fn chosen(all: &[String], wanted: Option<&str>) -> Result<Vec<String>, Failure> {
    match wanted {
        None => Ok(all.to_vec()),
        Some(wanted) if all.iter().any(|name| name == wanted) => Ok(vec![wanted.to_owned()]),
        Some(wanted) => Err(Failure::usage(format!("no target is called `{wanted}`; there are {}", all.join(", ")))),
    }
}

fn build(places: &Places) -> Result<(), Failure> {
    let status = cargo::command()
        .args(["build", "--release", "--manifest-path"])
        .arg(places.crate_dir.join("Cargo.toml"))
        .args(["--target", &places.triple, "--target-dir"])
        .arg(places.crate_dir.join("target"))
        .env("RUSTFLAGS", FLAGS)
        .status()
        .map_err(cargo::no_cargo)?;
    if status.success() { Ok(()) } else { Err(Failure::failed("the fuzzers do not build")) }
}

fn start(places: &Places, target: &str, seconds: u32) -> Result<Child, Failure> {
    let failure = |error: std::io::Error| Failure::failed(format!("{target}: {error}"));
    let (found, log) = (places.found(target), places.log(target));
    fs::create_dir_all(&found).map_err(failure)?;
    fs::create_dir_all(places.kept(target)).map_err(failure)?;
    let artifacts = places.crate_dir.join("target/failures").join(target);
    fs::create_dir_all(&artifacts).map_err(failure)?;
    let log = fs::File::create(log).map_err(failure)?;
    Command::new(places.program(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_MAX}"))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args(["-print_final_stats=1", "-rss_limit_mb=2048", "-timeout=10"])
        .args([found, places.kept(target)])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(failure)
}

/// Executions and coverage, out of libFuzzer's log.
fn summary(log: &str, seconds: u32) -> String {
    let stat = |name: &str| {
        let line = log.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<u64>().ok()
    };
    let executions = stat("stat::number_of_executed_units:").unwrap_or(0);
    let last = log.lines().rev().find(|line| line.contains("cov: ")).unwrap_or_default();
    let after = |name: &str| {
        let mut words = last.split_whitespace().skip_while(|word| *word != name);
        words.nth(1).unwrap_or("?").to_owned()
    };
    format!("{executions} executions in {seconds} s, {} edges covered, corpus {}", after("cov:"), after("corp:"))
}

/// Why it failed, and by which input.
fn complaint(log: &str) -> String {
    let of = |what: &str| log.lines().find(|line| line.contains(what)).unwrap_or_default().trim().to_owned();
    let (panic, input) = (of("panicked at"), of("Test unit written to"));
    if panic.is_empty() && input.is_empty() {
        return log.lines().last().unwrap_or("no word of it").to_owned();
    }
    format!("{panic} {input}")
}

/// Adds the inputs to the corpus that reach code which it does not reach yet.
fn keep(places: &Places, target: &str) -> Result<(), Failure> {
    let count = |folder: &Path| fs::read_dir(folder).map_or(0, Iterator::count);
    let kept = places.kept(target);
    let before = count(&kept);
    let status = Command::new(places.program(target))
        .args(["-merge=1", "-rss_limit_mb=2048"])
        .arg(format!("-max_len={KEPT_MAX}"))
        .args([&kept, &places.found(target)])
        .stderr(Stdio::null())
        .status()
        .map_err(|error| Failure::failed(format!("{target}: {error}")))?;
    if !status.success() {
        return Err(Failure::failed(format!("{target}: its corpus cannot be reduced")));
    }
    println!("{target:<10} {} inputs are kept, {} of them new", count(&kept), count(&kept).saturating_sub(before));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_and_nonsense_is_named() {
        let read = |line: &str| Options::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(read(""), Ok(Options { target: None, seconds: 60, keep: false }));
        let all = Options { target: Some("frame".into()), seconds: 5, keep: true };
        assert_eq!(read("frame --seconds 5 --keep"), Ok(all));
        for (line, says) in [
            ("--seconds", "--seconds has no value"),
            ("--seconds 0", "1 or more"),
            ("--seconds soon", "give a number of seconds"),
            ("frame hello", "unknown argument `hello`"),
        ] {
            let failure = read(line).expect_err(line);
            assert!(failure.message().is_some_and(|message| message.contains(says)), "{line}: {failure:?}");
        }
        let names = ["chunk".to_owned(), "frame".to_owned()];
        assert_eq!(chosen(&names, Some("frame")), Ok(vec!["frame".to_owned()]));
        let failure = chosen(&names, Some("x")).expect_err("there is none");
        assert_eq!(failure.message(), Some("no target is called `x`; there are chunk, frame"));
    }

    #[test]
    fn a_log_says_how_far_it_came_and_why_it_failed() {
        let log = "#2\tINITED cov: 9 ft: 9 corp: 1/1b\n#77\tDONE   cov: 321 ft: 800 corp: 40/2Kb lim: 9\n\
            stat::number_of_executed_units: 77\n";
        assert_eq!(summary(log, 3), "77 executions in 3 s, 321 edges covered, corpus 40/2Kb");
        let log = "thread panicked at src/x.rs:3\nartifact_prefix='a/'; Test unit written to a/crash-1\n";
        assert!(complaint(log).contains("x.rs:3") && complaint(log).contains("a/crash-1"));
        assert_eq!(complaint("==1== out of memory"), "==1== out of memory");
    }
}
