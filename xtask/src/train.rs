//! `cargo xtask train`: builds `flodl` and an example and trains it over unequal ranks.
//!
//! The options are those of `flodl run`. This module only fills in what the person left out, in [`plan`]; everything
//! else is passed on untouched, so that an option added to `flodl run` works here the same day.

use std::path::PathBuf;
use std::process::Command;

use crate::build::{Build, Executable};
use crate::failure::Failure;

const HELP: &str = "\
usage: cargo xtask train [OPTIONS OF flodl run] [--example NAME] [-- ARGS OF THE EXAMPLE]

Builds `flodl` and the example, then trains it on this machine with `flodl run`.

  --example NAME   the trainer:
                     digits (default): a convolutional network on 10,000 handwritten digits, on libtorch, which is found
                     or fetched first (`cargo xtask setup`); the first build takes some ten minutes
                     softmax: multinomial regression on the same digits, in plain Rust; needs no libtorch

Defaults, each replaced by an option of that name:

  -n 3 --mode cpu-cadence --batch-size 64 --slow 1=2.5 --slow 2=4
  digits:  --epochs 5
  softmax: --epochs 8 --step-ms 8

--step-ms and --slow emulate unequal devices: a step takes at least so long, and rank 1's steps 2.5 times that.
Any --slow replaces both of the default ones; `--slow 0=1` runs all ranks at one speed. With fewer ranks the default
--slow of a rank that is not there is left out.

The exit status is that of `flodl run`: 0 done, 1 failed, 2 usage, 3 done but a rank was lost, 4 stopped and saved.
";

/// The program that trains.
const FLODL: Executable = Executable { package: "flodl-coord", kind: "--bin", name: "flodl", features: "cli" };

/// A trainer that comes with the project.
#[derive(Debug, Clone, Copy)]
struct Example {
    executable: Executable,
    /// Whether it links libtorch.
    libtorch: bool,
    /// Its default for each of [`OPTIONS`]; none: the option is not passed.
    defaults: [&'static [&'static str]; OPTIONS.len()],
}

/// The examples that train, the default one first.
static EXAMPLES: [Example; 2] = [
    Example {
        executable: Executable { package: "flodl-worker", kind: "--example", name: "digits", features: "torch" },
        libtorch: true,
        defaults: [&["3"], &["cpu-cadence"], &["64"], &["5"], &[], &["1=2.5", "2=4"]],
    },
    Example {
        executable: Executable { package: "flodl-worker", kind: "--example", name: "softmax", features: "" },
        libtorch: false,
        defaults: [&["3"], &["cpu-cadence"], &["64"], &["8"], &["8"], &["1=2.5", "2=4"]],
    },
];

const RANKS: usize = 0;
const SLOW: usize = 5;
/// The options of `flodl run` that have a default here: the names of each, the one to pass first.
const OPTIONS: [&[&str]; 6] =
    [&["-n", "--ranks"], &["--mode"], &["--batch-size"], &["--epochs"], &["--step-ms"], &["--slow"]];

/// What a command line asks for.
#[derive(Debug)]
enum Request {
    /// The explanation.
    Help,
    /// A run.
    Train(Plan),
}

/// A run of one example: what to build and what to pass on.
#[derive(Debug)]
struct Plan {
    example: &'static Example,
    /// Options of `flodl run`.
    options: Vec<String>,
    /// Arguments of the example.
    program_args: Vec<String>,
}

impl Plan {
    /// Builds both programs; the command trains when it is run.
    fn build(&self) -> Result<Command, Failure> {
        // Before anything is built: what a fetch says should not come after minutes of cargo.
        let build = if self.example.libtorch { Build::with_libtorch()? } else { Build::without_libtorch() };
        let flodl = build.executable(FLODL)?;
        let example = build.executable(self.example.executable)?;
        let mut command = Command::new(flodl);
        command.arg("run").args(&self.options).arg("--").arg(example).args(&self.program_args);
        Ok(command)
    }
}

/// Runs the command.
///
/// # Errors
///
/// A usage error; a build that fails; `flodl`'s own status where it is not 0.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    match plan(args)? {
        Request::Train(plan) => become_program(plan.build()?),
        Request::Help => {
            println!("{HELP}\nThe options of `flodl run`:\n");
            let mut command = Command::new(Build::without_libtorch().executable(FLODL)?);
            command.args(["run", "--help"]);
            become_program(command)
        }
    }
}

/// The built command for these arguments, for a caller that waits for it.
///
/// # Errors
///
/// A usage error; a build that fails.
pub(crate) fn command(args: &[String]) -> Result<Command, Failure> {
    match plan(args)? {
        Request::Train(plan) => plan.build(),
        Request::Help => Err(Failure::usage("--help is for people")),
    }
}

/// Replaces this process by the program, so that signals, the terminal and the ownership of the ranks are its own.
#[cfg(unix)]
fn become_program(mut command: Command) -> Result<(), Failure> {
    use std::os::unix::process::CommandExt;
    let program = PathBuf::from(command.get_program());
    let error = command.exec();
    Err(Failure::failed(format!("cannot start {}: {error}", program.display())))
}

/// Runs the program and ends as it ends.
#[cfg(not(unix))]
fn become_program(mut command: Command) -> Result<(), Failure> {
    let program = PathBuf::from(command.get_program());
    let status =
        command.status().map_err(|error| Failure::failed(format!("cannot start {}: {error}", program.display())))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::Status(u8::try_from(code).unwrap_or(1))),
        None => Err(Failure::failed(format!("{} was ended by a signal", program.display()))),
    }
}

/// Merges the person's options with the defaults.
///
/// An option the person gives, in any of its forms, replaces the default of that name, and `--slow` replaces all
/// default `--slow`s: two speeds given by a person and one that appears by itself would surprise.
fn plan(args: &[String]) -> Result<Request, Failure> {
    let (own, program_args) = match args.iter().position(|arg| arg == "--") {
        Some(at) => (&args[..at], args[at + 1..].to_vec()),
        None => (args, Vec::new()),
    };
    let Some(typed) = Typed::read(own)? else { return Ok(Request::Help) };
    let example = find_example(typed.example.as_deref())?;
    let ranks = typed.ranks(example)?;
    typed.check_slow(ranks)?;

    let mut options = Vec::new();
    for (index, names) in OPTIONS.iter().enumerate() {
        if !typed.given[index].is_empty() {
            continue;
        }
        for value in example.defaults[index] {
            let is_for_absent_rank = index == SLOW && slow_rank(value).is_some_and(|rank| rank >= ranks);
            if !is_for_absent_rank {
                options.extend([names[0].to_owned(), (*value).to_owned()]);
            }
        }
    }
    options.extend(typed.passed_on);
    Ok(Request::Train(Plan { example, options, program_args }))
}

/// What a person typed before any `--`.
#[derive(Debug, Default)]
struct Typed {
    example: Option<String>,
    /// The values given for each of [`OPTIONS`].
    given: [Vec<String>; OPTIONS.len()],
    /// All options but `--example`, as typed.
    passed_on: Vec<String>,
}

impl Typed {
    /// Reads the arguments; `None` where they ask for help.
    fn read(args: &[String]) -> Result<Option<Self>, Failure> {
        let mut typed = Self::default();
        // Whether the argument before this one is an option whose value this one may be.
        let mut may_be_value = false;
        let mut rest = args.iter();
        while let Some(arg) = rest.next() {
            if arg == "--help" || arg == "-h" {
                return Ok(None);
            }
            if let Some((name, inline)) = split(arg, "--example") {
                typed.example = Some(value_of(name, inline, &mut rest)?);
                may_be_value = false;
                continue;
            }
            let preset = OPTIONS.iter().enumerate().find_map(|(index, names)| {
                names.iter().find_map(|name| split(arg, name)).map(|(name, inline)| (index, name, inline))
            });
            if let Some((index, name, inline)) = preset {
                typed.passed_on.push(arg.clone());
                let is_separate = inline.is_none();
                let value = value_of(name, inline, &mut rest)?;
                if is_separate {
                    typed.passed_on.push(value.clone());
                }
                typed.given[index].push(value);
                may_be_value = false;
                continue;
            }
            if !arg.starts_with('-') && !may_be_value {
                return Err(Failure::usage(format!(
                    "unexpected argument `{arg}`: an example is chosen with `--example NAME`, and its own arguments \
                     come after `--`"
                )));
            }
            may_be_value = arg.starts_with('-') && !arg.contains('=');
            typed.passed_on.push(arg.clone());
        }
        Ok(Some(typed))
    }

    /// The number of ranks of the run.
    fn ranks(&self, example: &Example) -> Result<u32, Failure> {
        let text = self.given[RANKS].last().map_or(example.defaults[RANKS][0], String::as_str);
        match text.parse() {
            Ok(ranks) if ranks > 0 => Ok(ranks),
            _ => Err(Failure::usage(format!("`-n {text}`: give the number of ranks, 1 or more"))),
        }
    }

    /// Refuses a `--slow` that is malformed or speaks of a rank the run does not have.
    fn check_slow(&self, ranks: u32) -> Result<(), Failure> {
        for value in &self.given[SLOW] {
            let rank = slow_rank(value)
                .ok_or_else(|| Failure::usage(format!("`--slow {value}`: write RANK=FACTOR, as in `--slow 1=2.5`")))?;
            if rank >= ranks {
                return Err(Failure::usage(format!(
                    "`--slow {value}`: there is no rank {rank} among {ranks}; name a rank from 0 to {}, or give `-n {}`",
                    ranks - 1,
                    u64::from(rank) + 1,
                )));
            }
        }
        Ok(())
    }
}

/// Splits an argument that is the option `name`: `--opt`, `--opt=value`, `-o`, `-o=value` or `-ovalue`.
fn split<'a>(arg: &'a str, name: &'static str) -> Option<(&'static str, Option<&'a str>)> {
    let rest = arg.strip_prefix(name)?;
    if rest.is_empty() {
        return Some((name, None));
    }
    let is_short = !name.starts_with("--");
    match rest.strip_prefix('=') {
        Some(value) => Some((name, Some(value))),
        None if is_short && rest.starts_with(|c: char| c.is_ascii_digit()) => Some((name, Some(rest))),
        None => None,
    }
}

/// The value of an option: the one behind `=`, or the next argument.
fn value_of<'a>(
    name: &str,
    inline: Option<&str>,
    rest: &mut impl Iterator<Item = &'a String>,
) -> Result<String, Failure> {
    match inline {
        Some(value) => Ok(value.to_owned()),
        None => rest
            .next()
            .filter(|value| !value.starts_with("--"))
            .cloned()
            .ok_or_else(|| Failure::usage(format!("`{name}` needs a value"))),
    }
}

/// The rank of a `RANK=FACTOR`.
fn slow_rank(value: &str) -> Option<u32> {
    value.split_once('=').and_then(|(rank, _)| rank.parse().ok())
}

fn find_example(name: Option<&str>) -> Result<&'static Example, Failure> {
    let Some(name) = name else { return Ok(&EXAMPLES[0]) };
    EXAMPLES.iter().find(|example| example.executable.name == name).ok_or_else(|| {
        let known = EXAMPLES.each_ref().map(|example| example.executable.name).join(", ");
        Failure::usage(format!("unknown example `{name}`: the examples are {known}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// The options passed to `flodl run`, or the usage error's message.
    fn options(typed: &str) -> Result<String, String> {
        match plan(&words(typed)) {
            Ok(Request::Train(plan)) => Ok(plan.options.join(" ")),
            Ok(Request::Help) => Err("help".to_owned()),
            Err(Failure::Usage(message)) => Err(message),
            Err(other) => panic!("not a usage error: {other:?}"),
        }
    }

    #[test]
    fn typed_options_replace_the_defaults_of_that_name() {
        let cases = [
            ("", "-n 3 --mode cpu-cadence --batch-size 64 --epochs 5 --slow 1=2.5 --slow 2=4"),
            ("--epochs 3", "-n 3 --mode cpu-cadence --batch-size 64 --slow 1=2.5 --slow 2=4 --epochs 3"),
            ("--epochs=3 --mode=cpu-sync", "-n 3 --batch-size 64 --slow 1=2.5 --slow 2=4 --epochs=3 --mode=cpu-sync"),
            ("-n 2", "--mode cpu-cadence --batch-size 64 --epochs 5 --slow 1=2.5 -n 2"),
            ("-n2", "--mode cpu-cadence --batch-size 64 --epochs 5 --slow 1=2.5 -n2"),
            ("--ranks=1", "--mode cpu-cadence --batch-size 64 --epochs 5 --ranks=1"),
            ("--slow 0=3", "-n 3 --mode cpu-cadence --batch-size 64 --epochs 5 --slow 0=3"),
            (
                "--slow=4=2 -n 5 --slow 1=1.5",
                "--mode cpu-cadence --batch-size 64 --epochs 5 --slow=4=2 -n 5 --slow 1=1.5",
            ),
            (
                "--summary out.json --new-flag --seed 7",
                "-n 3 --mode cpu-cadence --batch-size 64 --epochs 5 --slow 1=2.5 --slow 2=4 \
                 --summary out.json --new-flag --seed 7",
            ),
            (
                "--example softmax --no-shm",
                "-n 3 --mode cpu-cadence --batch-size 64 --epochs 8 --step-ms 8 --slow 1=2.5 --slow 2=4 --no-shm",
            ),
            ("--example digits", "-n 3 --mode cpu-cadence --batch-size 64 --epochs 5 --slow 1=2.5 --slow 2=4"),
            (
                "--example=digits -n 2 --step-ms 4",
                "--mode cpu-cadence --batch-size 64 --epochs 5 --slow 1=2.5 -n 2 --step-ms 4",
            ),
        ];
        for (typed, expected) in cases {
            assert_eq!(options(typed).as_deref(), Ok(expected), "typed: {typed}");
        }
    }

    #[test]
    fn what_cannot_be_is_a_usage_error_that_says_what_to_do() {
        let cases = [
            ("--slow 3=2", "give `-n 4`"),
            ("-n 2 --slow 2=4", "name a rank from 0 to 1"),
            ("--slow 2=4 -n=1", "name a rank from 0 to 0"),
            ("--slow 3", "write RANK=FACTOR"),
            ("--slow x=2", "write RANK=FACTOR"),
            ("--slow", "`--slow` needs a value"),
            ("--slow --epochs 3", "`--slow` needs a value"),
            ("-n 0", "1 or more"),
            ("-n three", "1 or more"),
            ("--example cnn", "the examples are digits, softmax"),
            ("--example", "`--example` needs a value"),
            ("softmax", "--example NAME"),
            ("--epochs 3 softmax", "--example NAME"),
            ("--seed=3 4", "--example NAME"),
        ];
        for (typed, expected) in cases {
            let message = options(typed).expect_err(typed);
            assert!(message.contains(expected), "typed: {typed}\nmessage: {message}\nexpected: {expected}");
        }
    }

    #[test]
    fn arguments_behind_the_dashes_are_the_examples() {
        let Ok(Request::Train(plan)) = plan(&words("-n 1 -- --help --slow 9=9")) else { panic!("a run is asked for") };
        assert_eq!(plan.program_args, ["--help", "--slow", "9=9"]);
        assert_eq!(plan.example.executable.name, "digits");
    }

    #[test]
    fn help_wins_over_other_options() {
        for typed in ["--help", "-h", "--epochs 3 --help"] {
            assert_eq!(options(typed), Err("help".to_owned()), "typed: {typed}");
        }
    }
}
