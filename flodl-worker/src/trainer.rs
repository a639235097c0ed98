//! The trainer: what a user's program is built from.

use crate::dataset::Dataset;
use crate::session::{End, Found};
use crate::shell::{Environment, TrainError, run};
use crate::trainee::{Fault, LrPosition, Trainee};
use crate::worker::{BoxedDataset, Callbacks, Job, Schedule};
use core::fmt;
use flodl_wire::message::join::TrainerSettings;
use flodl_wire::message::record::EpochMetrics;
use flodl_wire::{Rank, Version};
use std::process::ExitCode;

/// The learning rate where the trainer names none.
const LR_DEFAULT: f64 = 0.01;

/// One rank of a training run: a replica, its data and its settings.
///
/// Settings given here are wishes: the command line of `flodl run` (or `join`) comes first, and all ranks of a run must ask for the
/// same. What nobody asks for has the controller's default.
///
/// A whole trainer, with its model and its data, is in the [crate's overview](crate#a-trainer).
pub struct Trainer<'a, T: Trainee> {
    trainee: T,
    train_set: BoxedDataset<'a, T>,
    eval_set: Option<BoxedDataset<'a, T>>,
    schedule: Schedule<'a>,
    settings: TrainerSettings,
    callbacks: Callbacks<'a, T>,
}

/// How a rank's part in a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome<T> {
    /// The replica; it holds the consensus of `version`.
    pub trainee: T,
    /// Which rank this was.
    pub rank: Rank,
    /// The last consensus it took; `None` where the run ended before the first one.
    pub version: Option<Version>,
    /// Why the run ended before its time, where it did.
    pub stopped: Option<String>,
}

impl<'a, T: Trainee> Trainer<'a, T> {
    /// Trains `trainee` on `train_set`, at a constant learning rate of 0.01 and with the controller's settings until told
    /// otherwise.
    pub fn new(trainee: T, train_set: impl Dataset<Batch = T::Batch> + 'a) -> Trainer<'a, T> {
        Trainer {
            trainee,
            train_set: Box::new(train_set),
            eval_set: None,
            schedule: Box::new(|_| LR_DEFAULT),
            settings: TrainerSettings::default(),
            callbacks: Callbacks::default(),
        }
    }

    /// What the model is evaluated on, by one rank for all.
    #[must_use]
    pub fn eval_set(mut self, set: impl Dataset<Batch = T::Batch> + 'a) -> Trainer<'a, T> {
        self.eval_set = Some(Box::new(set));
        self
    }

    /// Samples a batch.
    #[must_use]
    pub fn batch_size(mut self, samples: u32) -> Trainer<'a, T> {
        self.settings.batch_size = Some(samples);
        self
    }

    /// Epochs.
    #[must_use]
    pub fn epochs(mut self, epochs: u64) -> Trainer<'a, T> {
        self.settings.epochs = Some(epochs);
        self
    }

    /// Passes' worth of samples in an epoch (1: each sample once), for datasets that augment what they give.
    #[must_use]
    pub fn augment(mut self, passes: u32) -> Trainer<'a, T> {
        self.settings.augment = Some(passes);
        self
    }

    /// The learning rate as a function of the place in the run, finite and not negative. Places count the batches of all
    /// ranks together, so a schedule means the same for any number of ranks.
    #[must_use]
    pub fn lr(mut self, schedule: impl Fn(LrPosition) -> f64 + 'a) -> Trainer<'a, T> {
        self.schedule = Box::new(schedule);
        self
    }

    /// Hears how each epoch went that is over, on this rank's thread, before its next window.
    #[must_use]
    pub fn on_epoch(mut self, hear: impl FnMut(&EpochMetrics) + 'a) -> Trainer<'a, T> {
        self.callbacks.on_epoch = Some(Box::new(hear));
        self
    }

    /// Hears what each evaluation found, wherever it was made, on this rank's thread.
    #[must_use]
    pub fn on_eval(mut self, hear: impl FnMut(&Found) + 'a) -> Trainer<'a, T> {
        self.callbacks.on_eval = Some(Box::new(hear));
        self
    }

    /// Saves what belongs to a checkpoint and is not in its set, which the controller writes: a tokenizer, samples of the
    /// model's output. Called on one rank for all, on its thread, while the replica is the consensus of that version, which
    /// it must leave as it is. An error is reported, another rank is asked, and training goes on.
    #[must_use]
    pub fn on_checkpoint(mut self, save: impl FnMut(&mut T, Version) -> Result<(), Fault> + 'a) -> Trainer<'a, T> {
        self.callbacks.on_checkpoint = Some(Box::new(save));
        self
    }

    /// Joins the run that this process was started for and trains until it is over.
    ///
    /// # Errors
    /// Why it did not train, or could not go on. The coordinator has been told, where it could be.
    pub fn run(self) -> Result<Outcome<T>, TrainError> {
        let program = std::env::args().next().unwrap_or_else(|| "PROGRAM".to_owned());
        let environment = Environment::read(std::env::var_os, &program)?;
        let Trainer { trainee, train_set, eval_set, schedule, settings, callbacks } = self;
        let job = Job { trainee, train_set, eval_set, schedule, settings, callbacks };
        let rank = environment.rank;
        let (trainee, end) = run(&environment, job)?;
        Ok(match end {
            End::Finished { version } => Outcome { trainee, rank, version, stopped: None },
            End::Stopped { why, version } => Outcome { trainee, rank, version, stopped: Some(why) },
            End::Failed(failure) => return Err(TrainError::Ended { rank, failure }),
        })
    }
}

/// The body of a trainer's `main`: runs `train`, prints its error as one sentence, and answers with the exit status (0, or 1 after
/// an error).
///
/// ```no_run
/// # use flodl_worker::trainer;
/// fn main() -> std::process::ExitCode {
///     trainer::main(|| {
///         std::fs::read("settings")?;
///         Ok::<(), std::io::Error>(())
///     })
/// }
/// ```
#[expect(clippy::print_stderr, reason = "this is a program's main: its error goes where people and relays read it")]
pub fn main<R, E: fmt::Display>(train: impl FnOnce() -> Result<R, E>) -> ExitCode {
    match train() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
