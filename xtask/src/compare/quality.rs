//! `cargo xtask compare quality`: what averaging over unequal ranks costs in accuracy.
//!
//! One rank alone and three unequal ones train on equally many samples, each side at the best learning rate of one grid, paired by
//! seed. Every run is `--deterministic`, so that the same seed is the same run on a busy machine too, and the difference is that of
//! the sides. What is compared is the mean test accuracy of the last three evaluations, because one evaluation is a noisy figure.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::record::{Record, Run};
use super::statistics::{Estimate, mean};
use crate::build::{Build, Executable};
use crate::failure::Failure;

const USAGE: &str = "\
usage: cargo xtask compare quality [OPTIONS]

Three ranks of speeds 1 : 1/2.5 : 1/4 under cadence and async against one rank alone: the mean test accuracy of the last three
evaluations, paired by seed, each side at its best learning rate of the grid (found with other seeds). The exit status is 1 where
the upper end of the 95 % interval of a loss is above 0.5 points.

  --json FILE      every run and the result; a comparison that was interrupted goes on from it
  --example NAME   digits (default, on libtorch) or softmax
  --seeds N        pairs (default: 10)
  --tuning N       seeds of which the best rate is the best (default: 2)
  --epochs N       (default: 8)
  --rates A,B,..   the grid (default: 0.01,0.02,0.04,0.08; softmax: 0.1,0.2,0.4,0.8)
  --limit N        use the first N training samples only
";

const FLODL: Executable = Executable { package: "flodl-coord", kind: "--bin", name: "flodl", features: "cli" };
const DIGITS: Executable = Executable { package: "flodl-worker", kind: "--example", name: "digits", features: "torch" };
const SOFTMAX: Executable = Executable { package: "flodl-worker", kind: "--example", name: "softmax", features: "" };

/// The most that a side may lose, in points, with 95 % confidence.
const LOSS_MAX: f64 = 0.5;
/// Evaluations of which the mean counts.
const LAST: usize = 3;
/// Seeds of the search for the best rate are none of those that are compared.
const TUNING_FROM: u64 = 1_000_000;

const ALONE: &str = "alone";
/// Who trains: its name, its options of `flodl run`.
const SIDES: [(&str, &[&str]); 3] = [
    (ALONE, &["-n", "1"]),
    ("cadence", &["-n", "3", "--mode", "cpu-cadence", "--speed", "0=10", "--speed", "1=4", "--speed", "2=2.5"]),
    ("async", &["-n", "3", "--mode", "cpu-async", "--speed", "0=10", "--speed", "1=4", "--speed", "2=2.5"]),
];

/// What is compared.
#[derive(Debug, Clone, PartialEq)]
struct Plan {
    json: Option<PathBuf>,
    example: &'static str,
    seeds: u64,
    tuning: u64,
    epochs: u64,
    rates: Vec<f64>,
    limit: Option<u64>,
}

/// The programs.
struct Programs {
    flodl: PathBuf,
    example: PathBuf,
}

/// Runs the command.
///
/// # Errors
///
/// A usage error; a build or a run that fails; a loss that may be above the bound.
pub(super) fn run(args: &[String]) -> Result<(), Failure> {
    if args.iter().any(|arg| arg == "--help") {
        println!("{USAGE}");
        return Ok(());
    }
    let plan = Plan::read(args)?;
    let mut record = Record::open(plan.json.as_deref(), plan.settings())?;
    let programs = Programs::build(plan.example)?;
    let best = plan.search(&mut record, &programs)?;
    let rows = plan.compare(&mut record, &programs, &best)?;
    record.conclude(Value::from(rows.iter().map(Row::json).collect::<Vec<_>>()))?;
    rows.iter().for_each(Row::print);
    if rows.iter().all(Row::holds) {
        return Ok(());
    }
    let text = format!("the upper end of a loss is above {LOSS_MAX} points");
    Err(Failure::failed(text))
}

/// What came of a side.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    side: &'static str,
    rate: f64,
    /// Points.
    accuracy: f64,
    /// Points that it loses against one rank alone.
    loss: Option<Estimate>,
}

impl Row {
    fn holds(&self) -> bool {
        self.loss.is_none_or(|loss| loss.most() <= LOSS_MAX)
    }

    fn json(&self) -> Value {
        let loss = self.loss.map(|loss| json!({ "mean": loss.mean, "from": loss.least(), "to": loss.most() }));
        json!({ "side": self.side, "rate": self.rate, "accuracy": self.accuracy, "loss": loss })
    }

    fn print(&self) {
        let Row { side, rate, accuracy, loss } = self;
        let loss = loss.map_or(String::new(), |loss| {
            format!(", loses {:+.3} points ({:+.3} to {:+.3})", loss.mean, loss.least(), loss.most())
        });
        println!("{side:<8} at {rate:<6} {accuracy:.3} %{loss}");
    }
}

impl Plan {
    fn read(args: &[String]) -> Result<Plan, Failure> {
        let mut plan =
            Plan { json: None, example: "digits", seeds: 10, tuning: 2, epochs: 8, rates: Vec::new(), limit: None };
        let mut args = args.iter();
        while let Some(name) = args.next() {
            let value = || args.as_slice().first().ok_or_else(|| Failure::usage(format!("{name} needs a value")));
            match name.as_str() {
                "--json" => plan.json = Some(value()?.into()),
                "--example" => plan.example = example(value()?)?,
                "--seeds" => plan.seeds = count(name, value()?)?,
                "--tuning" => plan.tuning = count(name, value()?)?,
                "--epochs" => plan.epochs = count(name, value()?)?,
                "--limit" => plan.limit = Some(count(name, value()?)?),
                "--rates" => plan.rates = value()?.split(',').map(rate).collect::<Result<_, _>>()?,
                other => return Err(Failure::usage(format!("unknown option `{other}`\n\n{USAGE}"))),
            }
            args.next();
        }
        if plan.rates.is_empty() {
            plan.rates = if plan.example == "digits" { vec![0.01, 0.02, 0.04, 0.08] } else { vec![0.1, 0.2, 0.4, 0.8] };
        }
        Ok(plan)
    }

    /// What makes two comparisons the same one.
    fn settings(&self) -> Value {
        let Plan { json: _, example, seeds: _, tuning, epochs, rates, limit } = self;
        json!({ "example": example, "tuning": tuning, "epochs": epochs, "rates": rates, "limit": limit })
    }

    /// The best rate of each side.
    fn search(&self, record: &mut Record, programs: &Programs) -> Result<Vec<f64>, Failure> {
        let mut best = Vec::new();
        for side in SIDES {
            let mut found: Option<(f64, f64)> = None;
            for &rate in &self.rates {
                let mut points = Vec::new();
                for seed in 0..self.tuning {
                    points.push(self.points(record, programs, (side, rate, TUNING_FROM + seed))?);
                }
                let points = mean(&points);
                // A run that diverged has an accuracy like any other.
                if found.is_none_or(|(most, _)| points > most) {
                    found = Some((points, rate));
                }
            }
            best.extend(found.map(|(_, rate)| rate));
        }
        Ok(best)
    }

    fn compare(&self, record: &mut Record, programs: &Programs, best: &[f64]) -> Result<Vec<Row>, Failure> {
        let (mut rows, mut alone) = (Vec::new(), Vec::new());
        for (side, &rate) in SIDES.into_iter().zip(best) {
            let mut points = Vec::new();
            for seed in 0..self.seeds {
                points.push(self.points(record, programs, (side, rate, seed))?);
            }
            let loss = (side.0 != ALONE).then(|| {
                let lost: Vec<f64> = alone.iter().zip(&points).map(|(one, own)| one - own).collect();
                Estimate::of(&lost)
            });
            rows.push(Row { side: side.0, rate, accuracy: mean(&points), loss });
            if side.0 == ALONE {
                alone = points;
            }
        }
        Ok(rows)
    }

    /// The mean accuracy of a run's last evaluations, in points.
    fn points(&self, record: &mut Record, programs: &Programs, run: (Side, f64, u64)) -> Result<f64, Failure> {
        let ((side, options), rate, seed) = run;
        if record.find(side, rate, seed).is_none() {
            let began = Instant::now();
            let accuracy = self.train(programs, options, (rate, seed))?;
            let seconds = began.elapsed().as_secs_f64();
            let last = accuracy.last().copied().unwrap_or(0.0);
            println!("{side:<8} at {rate:<6} seed {seed:<8} {:.2} % in {seconds:.1} s", 100.0 * last);
            record.add(Run { side: side.to_owned(), rate, seed, accuracy, seconds })?;
        }
        let accuracy = record.find(side, rate, seed).map_or(&[][..], |run| &run.accuracy);
        let last = &accuracy[accuracy.len().saturating_sub(LAST)..];
        Ok(100.0 * mean(last))
    }

    /// Trains once; the accuracy after each epoch.
    fn train(&self, programs: &Programs, options: &[&str], (rate, seed): (f64, u64)) -> Result<Vec<f64>, Failure> {
        let folder = std::env::temp_dir().join(format!("xtask-quality-{}", std::process::id()));
        let mut command = Command::new(&programs.flodl);
        command.args(["--quiet", "run", "--deterministic", "--eval-epochs", "1", "--batch-size", "64"]).args(options);
        command.args(["--seed", &seed.to_string(), "--epochs", &self.epochs.to_string()]);
        command.arg("--run-dir").arg(&folder).arg("--").arg(&programs.example).args(["--lr", &rate.to_string()]);
        if self.example == "digits" {
            // Its first parameters are drawn; the other example's are zero.
            command.args(["--seed", &seed.to_string()]);
        }
        command.args(self.limit.iter().flat_map(|limit| ["--limit".to_owned(), limit.to_string()]));
        let output = command.stdin(Stdio::null()).output();
        let timeline = std::fs::read_to_string(folder.join("timeline.jsonl"));
        std::fs::remove_dir_all(&folder).ok();
        let output = output.map_err(|error| Failure::failed(format!("cannot start flodl: {error}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Failure::failed(format!("a run ended with {}: {said}", output.status)));
        }
        let timeline = timeline.map_err(|error| Failure::failed(format!("a run left no timeline: {error}")))?;
        let accuracy = evaluations(&timeline);
        // Under async two short epochs may end in one average, which is evaluated once.
        if (accuracy.len() as u64) < (self.epochs / 2).clamp(1, LAST as u64) {
            let text = format!("a run of {} epochs was evaluated only {} times", self.epochs, accuracy.len());
            return Err(Failure::failed(text));
        }
        Ok(accuracy)
    }
}

type Side = (&'static str, &'static [&'static str]);

/// The accuracies of the evaluations that a timeline tells of, in order.
fn evaluations(timeline: &str) -> Vec<f64> {
    let lines = timeline.lines().filter(|line| line.contains("Evaluated"));
    let mut found: Vec<(u64, f64)> = lines.filter_map(|line| evaluated(&serde_json::from_str(line).ok()?)).collect();
    // The last consensus may have been evaluated as its epoch's already.
    found.dedup_by_key(|(version, _)| *version);
    found.into_iter().map(|(_, accuracy)| accuracy).collect()
}

/// Version and accuracy of an evaluation, wherever in a record its event is.
fn evaluated(value: &Value) -> Option<(u64, f64)> {
    let fields = value.as_object()?;
    let of = |event: &Value| Some((event["version"].as_u64()?, event["result"]["accuracy"].as_f64()?));
    fields.get("Evaluated").and_then(of).or_else(|| fields.values().find_map(evaluated))
}

impl Programs {
    fn build(example: &str) -> Result<Programs, Failure> {
        let torch = example == "digits";
        let build = if torch { Build::with_libtorch()? } else { Build::without_libtorch() };
        let flodl = build.executable(FLODL)?;
        Ok(Programs { flodl, example: build.executable(if torch { DIGITS } else { SOFTMAX })? })
    }
}

fn example(name: &str) -> Result<&'static str, Failure> {
    match name {
        "digits" => Ok("digits"),
        "softmax" => Ok("softmax"),
        other => Err(Failure::usage(format!("there is no example `{other}`: take digits or softmax"))),
    }
}

fn count(name: &str, value: &str) -> Result<u64, Failure> {
    let number = value.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| Failure::usage(format!("{name} takes a number from 1 on, not `{value}`")))
}

fn rate(value: &str) -> Result<f64, Failure> {
    let number = value.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate > 0.0);
    number.ok_or_else(|| Failure::usage(format!("--rates takes numbers above 0, not `{value}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Result<Plan, Failure> {
        Plan::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_nonsense_is_refused() {
        let whole = plan("").expect("the defaults");
        assert_eq!((whole.seeds, whole.epochs, whole.rates.len()), (10, 8, 4));
        let small = plan("--seeds 2 --epochs 2 --example softmax --rates 0.1,0.2 --limit 500").expect("is right");
        assert_eq!((small.example, small.rates, small.limit), ("softmax", vec![0.1, 0.2], Some(500)));
        for wrong in ["--seeds 0", "--seeds", "--rates 0,1", "--rates fast", "--example resnet", "--speed"] {
            assert_eq!(plan(wrong).expect_err(wrong).status(), 2, "{wrong}");
        }
        // More pairs go on from the same file, other runs do not.
        assert_eq!(plan("--seeds 3").expect("is right").settings(), whole.settings());
        assert_ne!(plan("--epochs 3").expect("is right").settings(), whole.settings());
    }

    #[test]
    fn each_version_counts_once() {
        let line = |version: u64, accuracy: f64| {
            let result = json!({ "loss": 0.1, "accuracy": accuracy });
            json!({ "at": 5, "body": { "Event": { "kind": { "Evaluated": {
                "rank": 0, "version": version, "result": result } } } } })
            .to_string()
        };
        let timeline = [line(3, 0.5), "{\"kind\":\"RoundCommitted\"}".to_owned(), line(7, 0.75), line(7, 0.75)];
        assert_eq!(evaluations(&timeline.join("\n")), [0.5, 0.75]);
    }

    #[test]
    fn a_loss_is_bounded_by_the_upper_end_of_its_interval() {
        let row = |mean, half| Row { side: "async", rate: 0.1, accuracy: 97.0, loss: Some(Estimate { mean, half }) };
        assert!(row(0.3, 0.2).holds() && row(-1.0, 1.4).holds());
        assert!(!row(0.0, 0.6).holds());
    }
}
