//! A tiny trainer for the process tests: a linear classifier on points that it makes up, and faults on request.
//!
//! ```text
//! flodl run -n 3 -- trainer [--samples N] [--epochs N] [--batch-size N] [--features N] [--child]
//!                           [--fault exit|error|panic|tensors|dataset|eval|eval-exit|save|save-exit
//!                            [--at-rank RANK] [--after STEPS]]
//!                           [--ask-eval STEPS] [--ask-checkpoint STEPS] [--save] [--draw]
//! ```
//!
//! A fault happens on every rank, or at one; before the first step, or after so many; those of an evaluation and a
//! checkpoint in each. `--ask-..` asks for it once after so many steps; `--save` leaves a file `part-v<version>` in the
//! run's directory with each checkpoint. `--draw` draws how far each step goes, which two processes do not do alike unless
//! they are told how. `--child` starts a process of its own beside it, which must not outlive the run
//! either.

mod model;
mod points;

use flodl_worker::trainee::Fault as TrainFault;
use flodl_worker::trainer::{self, Trainer};
use model::{Evaluates, Fault, Linear, Wishes};
use points::Points;
use std::process::{Command, ExitCode};
use std::str::FromStr;

/// Points to evaluate on, beside those to train on.
const TEST_POINTS: u64 = 500;

#[derive(Default)]
struct Options {
    samples: Option<u64>,
    epochs: Option<u64>,
    batch_size: Option<u32>,
    features: Option<usize>,
    fault: Option<String>,
    at_rank: Option<u32>,
    after: Option<u64>,
    child: bool,
    asks: Wishes,
    save: bool,
    draw: bool,
}

fn main() -> ExitCode {
    trainer::main(|| train(&parse(std::env::args().skip(1))?))
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, TrainFault> {
    let mut options = Options::default();
    while let Some(name) = args.next() {
        let mut value = || args.next().ok_or(format!("{name} needs a value"));
        match name.as_str() {
            "--samples" => options.samples = Some(number(&value()?)?),
            "--epochs" => options.epochs = Some(number(&value()?)?),
            "--batch-size" => options.batch_size = Some(number(&value()?)?),
            "--features" => options.features = Some(number(&value()?)?),
            "--fault" => options.fault = Some(value()?),
            "--at-rank" => options.at_rank = Some(number(&value()?)?),
            "--after" => options.after = Some(number(&value()?)?),
            "--child" => options.child = true,
            "--ask-eval" => options.asks.evaluation = Some(number(&value()?)?),
            "--ask-checkpoint" => options.asks.checkpoint = Some(number(&value()?)?),
            "--save" => options.save = true,
            "--draw" => options.draw = true,
            _ => return Err(format!("there is no option {name}").into()),
        }
    }
    Ok(options)
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is not a number that fits here"))
}

fn train(options: &Options) -> Result<(), TrainFault> {
    let mine = options.at_rank.is_none_or(|rank| std::env::var("FLODL_RANK").is_ok_and(|own| own == rank.to_string()));
    let fault = options.fault.as_deref().filter(|_| mine);
    if options.child {
        Command::new("sleep").arg("1000").spawn()?;
    }
    let (mut features, mut shift) = (options.features.unwrap_or(points::FEATURES), 0);
    let (mut later, mut evaluates) = (None, Evaluates::Well);
    match fault {
        None => {}
        Some("tensors") => features += 1,
        Some("dataset") => shift = 1_000_000,
        Some("eval") => evaluates = Evaluates::Never,
        Some("eval-exit") => evaluates = Evaluates::LastOfAll,
        Some("save" | "save-exit") => {}
        Some(name) => later = Some(Fault { after: options.after.unwrap_or(0), what: name.parse()? }),
    }
    if let Some(fault) = later.filter(|fault| fault.after == 0) {
        fault.happen()?;
    }
    let samples = options.samples.unwrap_or(1000);
    let points = Points { first: shift, len: samples, features };
    let test = Points { first: u64::MAX / 2, len: TEST_POINTS, features };
    let mut model = Linear::new(features, later);
    (model.evaluates, model.wishes) = (evaluates, options.asks);
    model.draws = options.draw.then(|| u64::from(std::process::id()));
    let mut trainer = Trainer::new(model, points).eval_set(test).lr(|_| 0.5);
    if options.save {
        let (refuses, exits) = (fault == Some("save"), fault == Some("save-exit"));
        trainer = trainer.on_checkpoint(move |model, version| {
            if exits {
                std::process::exit(7);
            }
            if refuses {
                return Err("it keeps nothing".into());
            }
            let folder = std::env::var("FLODL_RUN_DIR")?;
            std::fs::write(format!("{folder}/part-v{}", version.0), model.steps.to_string()).map_err(Into::into)
        });
    }
    if let Some(epochs) = options.epochs {
        trainer = trainer.epochs(epochs);
    }
    if let Some(batch_size) = options.batch_size {
        trainer = trainer.batch_size(batch_size);
    }
    trainer.run()?;
    Ok(())
}
