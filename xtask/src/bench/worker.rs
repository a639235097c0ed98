//! `cargo xtask bench worker`: one rank of `digits` against the same loop written by hand on tch, and against PyTorch.
//!
//! Whole processes, one after another and each kind in turn, so that a change of the machine's mood meets all of them. All
//! compute on one thread, and what is compared is the time of the training itself.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::programs::{median, output, throughput, train};
use crate::build::{Build, Executable};
use crate::cargo;
use crate::failure::Failure;

/// The name of this benchmark on the command line.
pub(super) const NAME: &str = "worker";

/// Samples of an epoch of `digits`.
const SAMPLES: u32 = 8000;
const EPOCHS: u32 = 3;
/// How often each program runs. Odd, so that a median is one of the runs.
const TURNS: usize = 5;

const BY_HAND: Executable =
    Executable { package: "flodl-worker", kind: "--example", name: "by_hand", features: "torch" };

/// What libtorch computes with.
const ONE_THREAD: [(&str, &str); 1] = [("OMP_NUM_THREADS", "1")];

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    /// `flodl run -n 1 -- digits`.
    Trainer,
    /// The example `by_hand`.
    Hand { tuned: bool },
    /// `xtask/peers/torch_digits.py`.
    Torch { tuned: bool },
}

/// All of them, in the order of a turn.
const PROGRAMS: [Program; 5] = [
    Program::Hand { tuned: false },
    Program::Trainer,
    Program::Torch { tuned: false },
    Program::Hand { tuned: true },
    Program::Torch { tuned: true },
];

/// The settings of glibc's allocator that flodl gives its ranks; with them a program is `tuned`.
const TUNED: [(&str, &str); 2] = [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "1099511627776")];

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Trainer => "trainer",
            Self::Hand { tuned: false } => "hand",
            Self::Hand { tuned: true } => "hand_tuned",
            Self::Torch { tuned: false } => "torch",
            Self::Torch { tuned: true } => "torch_tuned",
        }
    }
}

/// One run of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Run {
    program: Program,
    /// Which turn it belongs to, from 0.
    turn: usize,
    /// Seconds of training for [`EPOCHS`] epochs.
    seconds: f64,
}

/// What the trainer is compared with.
struct Programs {
    by_hand: PathBuf,
    /// A Python with PyTorch.
    python: Option<PathBuf>,
}

/// Builds the programs, runs them in turns, prints a table and answers with the figures: `trainer_over_hand`,
/// `trainer_over_torch` and the same of programs whose allocator is set as that of ranks (`_tuned`) are medians over the
/// turns of the time of one divided by the time of the other, `null` where no Python with PyTorch is there.
///
/// # Errors
///
/// A build that fails; a program that fails or does not say what it should.
pub(super) fn run() -> Result<Value, Failure> {
    let programs = Programs::build()?;
    if programs.python.is_none() {
        println!("skipped: PyTorch (no package `torch` in python3; name a Python that has it in PEERS_PYTHON)");
    }
    let mut runs = Vec::new();
    for turn in 0..TURNS {
        for program in PROGRAMS {
            let Some(seconds) = programs.seconds(program)? else { continue };
            println!("turn {turn}  {:<12} {:>7.0} samples/s", program.name(), speed(seconds));
            runs.push(Run { program, turn, seconds });
        }
    }
    let figures = figures(&runs);
    for program in PROGRAMS.into_iter().filter(|program| *program != Program::Trainer) {
        let name = format!("trainer_over_{}", program.name());
        match figures[&name].as_f64() {
            Some(ratio) => println!("{name:<25} {ratio:.3}"),
            None => println!("{name:<25} not measured"),
        }
    }
    Ok(figures)
}

impl Programs {
    fn build() -> Result<Self, Failure> {
        Ok(Self { by_hand: Build::with_libtorch()?.executable(BY_HAND)?, python: python() })
    }

    /// Runs a program; `None` where it is not there.
    fn seconds(&self, program: Program) -> Result<Option<f64>, Failure> {
        match program {
            Program::Trainer => trainer().map(Some),
            Program::Hand { tuned } => {
                lines(Command::new(&self.by_hand).arg(EPOCHS.to_string()).envs(variables(tuned))).map(Some)
            }
            Program::Torch { tuned } => {
                let Some(python) = &self.python else { return Ok(None) };
                let script = cargo::root().join("xtask/peers/torch_digits.py");
                let mut command = Command::new(python);
                command.arg(script).args(["--epochs", &EPOCHS.to_string()]).envs(variables(tuned));
                lines(&mut command).map(Some)
            }
        }
    }
}

/// The time of a run of one rank, from the first window to the end of the last round.
fn trainer() -> Result<f64, Failure> {
    let summary = train(&["-n", "1", "--epochs", &EPOCHS.to_string()], &ONE_THREAD)?;
    Ok(f64::from(SAMPLES * EPOCHS) / throughput(&summary)?)
}

/// The allocator's settings of a program.
fn variables(tuned: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    TUNED.into_iter().filter(move |_| tuned)
}

/// A Python that has PyTorch.
fn python() -> Option<PathBuf> {
    let named = std::env::var_os("PEERS_PYTHON").filter(|name| !name.is_empty());
    let python = PathBuf::from(named.unwrap_or_else(|| OsString::from("python3")));
    let probe =
        Command::new(&python).args(["-c", "import torch, numpy"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    probe.is_ok_and(|status| status.success()).then_some(python)
}

/// The seconds of a program that prints the samples per second of each epoch.
fn lines(command: &mut Command) -> Result<f64, Failure> {
    let said = output(command.envs(ONE_THREAD))?;
    let speeds: Vec<f64> = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok()?["samples_per_s"].as_f64())
        .filter(|speed| *speed > 0.0)
        .collect();
    if speeds.len() != EPOCHS as usize {
        let program = Path::new(command.get_program()).display().to_string();
        return Err(Failure::failed(format!("{program} told the speed of {} of {EPOCHS} epochs", speeds.len())));
    }
    Ok(speeds.iter().map(|speed| f64::from(SAMPLES) / speed).sum())
}

fn speed(seconds: f64) -> f64 {
    f64::from(SAMPLES * EPOCHS) / seconds
}

fn figures(runs: &[Run]) -> Value {
    let rows: Vec<Value> = runs
        .iter()
        .map(|run| {
            json!({ "program": run.program.name(), "turn": run.turn, "seconds": run.seconds,
                    "samples_per_s": speed(run.seconds) })
        })
        .collect();
    json!({
        "epochs": EPOCHS,
        "threads": 1,
        "trainer_over_hand": ratio(runs, Program::Hand { tuned: false }),
        "trainer_over_torch": ratio(runs, Program::Torch { tuned: false }),
        "trainer_over_hand_tuned": ratio(runs, Program::Hand { tuned: true }),
        "trainer_over_torch_tuned": ratio(runs, Program::Torch { tuned: true }),
        "rows": rows,
    })
}

/// The median over the turns of the trainer's time divided by the other's; `None` where the other did not run.
fn ratio(runs: &[Run], other: Program) -> Option<f64> {
    let time =
        |program, turn| runs.iter().find(|run| run.program == program && run.turn == turn).map(|run| run.seconds);
    median((0..TURNS).filter_map(|turn| Some(time(Program::Trainer, turn)? / time(other, turn)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_medians_of_turns() {
        let turn = |turn, trainer, hand| {
            [(Program::Trainer, trainer), (Program::Hand { tuned: false }, hand)].map(|(program, seconds)| Run {
                program,
                turn,
                seconds,
            })
        };
        // The machine is three times as slow in the last turn, for both.
        let runs: Vec<Run> = [turn(0, 1.1, 1.0), turn(1, 1.02, 1.0), turn(2, 3.0, 3.0)].concat();
        assert_eq!(ratio(&runs, Program::Hand { tuned: false }), Some(1.02));
        assert_eq!(ratio(&runs, Program::Torch { tuned: false }), None);
        let figures = figures(&runs);
        assert_eq!(figures["trainer_over_hand"], json!(1.02));
        assert_eq!(figures["trainer_over_torch"], Value::Null);
        assert_eq!(figures["rows"].as_array().map(Vec::len), Some(6));
    }

    #[test]
    fn speeds_of_all_epochs_are_needed() {
        let line = |speed: u32| format!("{{\"epoch\": 0, \"samples_per_s\": {speed}, \"accuracy\": 0.5}}");
        let say = |text: &str| {
            let mut command = Command::new("printf");
            command.arg("%s\n").arg(text.replace('\n', "\\n"));
            command
        };
        // printf repeats its format for each argument.
        let mut all = Command::new("printf");
        all.arg("%s\n").args([line(8000), line(4000), "noise".to_owned(), line(2000)]);
        assert_eq!(lines(&mut all), Ok(1.0 + 2.0 + 4.0));
        let error = lines(&mut say(&line(8000))).expect_err("two are missing");
        assert_eq!(error, Failure::failed("printf told the speed of 1 of 3 epochs"));
        let error = lines(&mut Command::new("false")).expect_err("it fails");
        assert!(
            error.message().is_some_and(|message| message.starts_with("false failed, exit status: 1")),
            "{error:?}"
        );
    }
}
