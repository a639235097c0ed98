//! One rank whole, without IO: its session, its replica, its data, and its part in the averages.
//!
//! The shell gives it events and takes turns from it on the user's thread; tests and simulations do the same in memory, with a
//! [`Clock`] of their own.

mod duties;
mod nccl;

pub use nccl::Collectives;

use crate::chance;
use crate::dataset::Dataset;
use crate::evaluating::Evaluating;
use crate::reduce::{CpuReduce, ManifestError};
use crate::session::{
    Application, BatchOrder, Contribution, End, Failure, Found, Identity, Input, Lost, Output, Session, SnapshotTaken,
    Trained, Violation, WarmUp,
};
use crate::trainee::{Asks, Fault, LrPosition, StepContext, Trainee};
use crate::user_code::{fault, learning_rate, user};
use core::time::Duration;
use flodl_cpureduce::Pull;
use flodl_elche::Passes;
use flodl_wire::limits::{SCALAR_NAME, SCALARS};
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::join::{Emulation, Ready, RunConfig, ScalarSpec, TensorSpec, TrainerSettings};
use flodl_wire::message::record::EpochMetrics;
use flodl_wire::message::report::{Intent, WindowReport};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Incarnation, Rank, Round, Time, Version};
use thiserror::Error;

mod passing;

/// A dataset of whatever kind, as long as it makes the trainee's batches.
pub type BoxedDataset<'a, T> = Box<dyn Dataset<Batch = <T as Trainee>::Batch> + 'a>;

/// A schedule: the learning rate at a place of the run, finite and not negative.
pub type Schedule<'a> = Box<dyn Fn(LrPosition) -> f64 + 'a>;

/// A program's own code that hears how the run goes.
pub type Hearer<'a, News> = Box<dyn FnMut(&News) + 'a>;

/// A program's own part of a checkpoint: what belongs to it and is not in the set that the controller writes.
pub type Saver<'a, T> = Box<dyn FnMut(&mut T, Version) -> Result<(), Fault> + 'a>;

/// What a program wants to hear of the run, and to do in it.
pub struct Callbacks<'a, T> {
    /// How an epoch went that is over, on every rank that is in the run then.
    pub on_epoch: Option<Hearer<'a, EpochMetrics>>,
    /// What an evaluation found, wherever it was made.
    pub on_eval: Option<Hearer<'a, Found>>,
    /// Its part of a checkpoint, done by one rank for all while its replica is the consensus of that version.
    pub on_checkpoint: Option<Saver<'a, T>>,
}

impl<T> Default for Callbacks<'_, T> {
    fn default() -> Self {
        Callbacks { on_epoch: None, on_eval: None, on_checkpoint: None }
    }
}

/// What is to be trained, on what, and how.
pub struct Job<'a, T: Trainee> {
    /// The replica.
    pub trainee: T,
    /// What it trains on.
    pub train_set: BoxedDataset<'a, T>,
    /// What it is evaluated on.
    pub eval_set: Option<BoxedDataset<'a, T>>,
    /// The learning rate.
    pub schedule: Schedule<'a>,
    /// What the trainer asks for.
    pub settings: TrainerSettings,
    /// What the program wants to hear.
    pub callbacks: Callbacks<'a, T>,
}

/// The time, as a worker needs it.
pub trait Clock {
    /// Now.
    fn now(&mut self) -> Time;

    /// A step begins now, perhaps as that of a slower device.
    fn step_begins(&mut self, _emulation: Option<&Emulation>) -> Time {
        self.now()
    }

    /// A step that began at `started` is done. Waits until it has lasted what the emulation asks for, where there is one, and
    /// answers with the time then.
    fn step_done(&mut self, started: Time, emulation: Option<&Emulation>) -> Time;

    /// A batch is evaluated. A clock that does not go by itself moves on.
    fn batch_evaluated(&mut self) {}
}

/// What comes to a worker from outside.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// On the control connection.
    Control(Control),
    /// On the data connection.
    Data(Data),
    /// A sign of life on either.
    Heard,
    /// The connection is gone.
    Lost(Lost),
    /// The deadline has passed, and everything that had come by then was given.
    Tick,
}

/// What a worker wants after it has done what it could.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    /// Send this on the control connection.
    Report(Report),
    /// Send this on the data connection.
    Data(Data),
    /// It has done a piece of work; look for events, then ask again.
    Worked,
    /// Nothing to do before the next event or [`Worker::next_deadline`].
    Idle,
    /// It is over, and this is how. Nothing comes after it.
    End(End),
}

/// A contribution on its way.
#[derive(Copy, Clone, Debug)]
struct Sending {
    round: Round,
    base: Version,
    mass: f64,
    next: u32,
    since: Time,
    /// Nothing comes, and this says why.
    absent: Option<AbsentWhy>,
}

/// Samples of the batch to warm up with, where the trainer leaves the size to the controller.
const WARM_UP_SAMPLES: u32 = 32;

/// One rank.
pub struct Worker<'a, T: Trainee> {
    job: Job<'a, T>,
    reduce: CpuReduce,
    session: Session,
    sending: Option<Sending>,
    /// What averages among the ranks themselves, where this rank can.
    nccl: nccl::Averaging<'a, T>,
    evaluating: Option<Evaluating>,
    /// Batches evaluated in this life.
    evaluated: u64,
}

/// A job whose model and data have been looked at: everything that takes its time and needs no connection.
pub struct Prepared<'a, T: Trainee> {
    job: Job<'a, T>,
    reduce: CpuReduce,
    manifest: Vec<TensorSpec>,
    ready: Ready,
}

/// Why a job cannot be trained.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum JobError {
    /// Its model cannot be averaged.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// There is nothing to train on.
    #[error("the training set is empty: give Trainer::new at least one sample")]
    NoSamples,
    /// A setting of 0.
    #[error("Trainer::{setting}(0) trains nothing: give 1 or more, or leave it to the controller")]
    Zero {
        /// The builder's method.
        setting: &'static str,
    },
    /// A scalar's name that is empty, too long or declared twice, or too many of them.
    #[error("Trainee::scalars declares {name:?}: give at most {most} names, each once and of 1 to {longest} bytes")]
    Scalar {
        /// The name.
        name: String,
        /// The most names.
        most: usize,
        /// Their most bytes.
        longest: usize,
    },
    /// The first batch could not be read, or the model failed on it.
    #[error("before the run, {0}")]
    WarmUp(Failure),
}

impl<'a, T: Trainee> Prepared<'a, T> {
    /// Reads the model's manifest and the dataset's signature, and makes room for a round.
    ///
    /// # Errors
    /// See [`JobError`].
    pub fn new(job: Job<'a, T>) -> Result<Prepared<'a, T>, JobError> {
        let settings = job.settings;
        let zero = [
            ("batch_size", settings.batch_size == Some(0)),
            ("epochs", settings.epochs == Some(0)),
            ("augment", settings.augment == Some(0)),
        ];
        if let Some((setting, _)) = zero.into_iter().find(|(_, zero)| *zero) {
            return Err(JobError::Zero { setting });
        }
        if job.train_set.is_empty() {
            return Err(JobError::NoSamples);
        }
        let manifest = job.trainee.manifest();
        let reduce = CpuReduce::new(&manifest)?;
        let ready = Ready {
            manifest_digest: flodl_wire::manifest_digest(&manifest),
            layout: reduce.sizes(),
            dataset: job.train_set.info(),
            trainer: settings,
            device: job.trainee.device(),
            memory: None,
            libraries: format!("flodl-worker {}", env!("CARGO_PKG_VERSION")),
            step: None,
            scalars: declared(&job.trainee)?,
            saves: job.callbacks.on_checkpoint.is_some(),
        };
        Ok(Prepared { job, reduce, manifest, ready })
    }

    /// The model's tensors.
    #[must_use]
    pub fn manifest(&self) -> &[TensorSpec] {
        &self.manifest
    }

    /// Gives the model a batch to warm up with ([`Trainee::warm_up`]): the first samples of its training set.
    ///
    /// # Errors
    /// [`JobError::WarmUp`] with what the dataset or the model says. Whoever fails here would fail in the first step.
    pub fn warm_up(&mut self) -> Result<(), JobError> {
        let job = &mut self.job;
        let samples = u64::from(job.settings.batch_size.unwrap_or(WARM_UP_SAMPLES)).min(job.train_set.len());
        let indices: Vec<u64> = (0..samples).collect();
        let batch = user("reading a batch", || job.train_set.batch(&indices)).map_err(JobError::WarmUp)?;
        self.ready.step = user("warming up", || job.trainee.warm_up(&batch)).map_err(JobError::WarmUp)?;
        Ok(())
    }

    /// The worker, as this rank. `patience` is what the handshake announced.
    #[must_use]
    pub fn begin(self, (rank, incarnation): (Rank, Incarnation), patience: Duration, now: Time) -> Worker<'a, T> {
        let Prepared { job, reduce, manifest, ready } = self;
        let session = Session::new(Identity { rank, incarnation, ready, manifest }, patience, now);
        Worker { job, reduce, session, sending: None, nccl: Default::default(), evaluating: None, evaluated: 0 }
    }
}

impl<'a, T: Trainee> Worker<'a, T> {
    /// A worker for `job` as this rank. `patience` is what the handshake announced.
    ///
    /// # Errors
    /// See [`JobError`].
    pub fn new(
        job: Job<'a, T>,
        id: (Rank, Incarnation),
        patience: Duration,
        now: Time,
    ) -> Result<Worker<'a, T>, JobError> {
        Ok(Prepared::new(job)?.begin(id, patience, now))
    }

    /// Steps of this life, evaluated batches among them: what a heartbeat tells.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.session.steps_ever().saturating_add(self.evaluated)
    }

    /// The session, to look at.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The replica, to look at.
    #[must_use]
    pub fn trainee(&self) -> &T {
        &self.job.trainee
    }

    /// The replica, to keep.
    #[must_use]
    pub fn into_trainee(self) -> T {
        self.job.trainee
    }

    /// Chunks of a whole result: whoever queues events for a worker needs room for so many.
    #[must_use]
    pub fn result_chunks(&self) -> u32 {
        self.reduce.layout().chunks()
    }

    /// When to give [`Event::Tick`] unless something else comes first.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.session.next_deadline().into_iter().chain(self.next_poll()).min()
    }

    /// Takes one event.
    pub fn handle(&mut self, event: Event, now: Time) {
        let input = match event {
            Event::Control(message) => Input::Control(message),
            Event::Heard => Input::Heard,
            Event::Lost(lost) => Input::Lost(lost),
            Event::Tick => Input::Tick,
            Event::Data(data) => {
                self.session.handle(Input::Heard, now);
                return self.receive(&data, now);
            }
        };
        self.session.handle(input, now);
    }

    fn receive(&mut self, data: &Data, now: Time) {
        let Data::Consensus(chunk) = data else {
            let message = match data {
                Data::Contribution(_) => "Contribution",
                Data::Absent { .. } => "Absent",
                Data::Holds { .. } => "Holds",
                Data::LeftOut { .. } => "LeftOut",
                Data::Dropped { .. } | Data::Consensus(_) => "Dropped",
            };
            let violation = Violation::NotForRanks { message };
            return self.session.handle(Input::Failed(violation.into()), now);
        };
        let round = chunk.round;
        match self.reduce.receive(chunk) {
            Ok(None) => {}
            Ok(Some((chunks, measured))) => {
                self.session.handle(Input::ResultGrew { round, chunks }, now);
                if let Some(measured) = measured {
                    self.session.handle(Input::ResultWhole(measured.of(round)), now);
                }
            }
            Err(violation) => self.session.handle(Input::Failed(violation.into()), now),
        }
    }

    /// Does the next piece of work: at most one training step, snapshot, chunk or evaluation.
    pub fn turn(&mut self, clock: &mut dyn Clock) -> Turn {
        if self.reduce.shares() {
            if let Some(turn) = self.go_through_memory(clock) {
                return turn;
            }
        } else if let Some(data) = self.send(clock) {
            return Turn::Data(data);
        }
        self.look_at_collectives(clock);
        if let Some(evaluating) = self.evaluating.take().filter(|_| !self.session.ended()) {
            self.evaluate(evaluating, clock);
            return Turn::Worked;
        }
        let Some(output) = self.session.poll() else { return Turn::Idle };
        let done = match output {
            Output::Report(Report::WindowReport(report)) => match self.with_late_figures(report) {
                Ok(report) => return Turn::Report(report),
                Err(failure) => Err(failure),
            },
            Output::Report(report) => return Turn::Report(report),
            Output::End(end) => return Turn::End(end),
            Output::Forget { round } => match self.put_back_copy(round) {
                Ok(true) => return Turn::Worked,
                Ok(false) => {
                    self.reduce.forget();
                    return Turn::Worked;
                }
                Err(failure) => Err(failure),
            },
            Output::Train(order) => self.train(&order, clock).map(Input::Trained),
            Output::Snapshot { round } => return self.open_round(round, clock),
            Output::Contribute { round, base, what } => return self.contribute(round, base, what, clock),
            Output::Apply { round, how, reset_optimizer } => {
                self.apply(round, how, reset_optimizer).map(|digest| Input::Applied { digest })
            }
            Output::Prepare { round } => self.prepare(round, clock).map(Input::SnapshotTaken),
            Output::MakeNcclId { .. }
            | Output::OpenSession(_)
            | Output::Collective(_)
            | Output::AbortCollective { .. }
            | Output::PeerDied { .. } => match self.order_collectives(&output, clock) {
                Ok(()) => return Turn::Worked,
                Err(failure) => Err(failure),
            },
            Output::Evaluate { schedule, aside } => match if aside { self.set_aside() } else { Ok(()) } {
                Ok(()) => {
                    self.evaluating = Some(Evaluating::begin(schedule, aside));
                    return Turn::Worked;
                }
                Err(failure) => Err(failure),
            },
            Output::Save { schedule, version, aside } => {
                self.save(version, aside).map(|outcome| Input::Saved { schedule, outcome })
            }
            Output::EpochDone(metrics) => return self.told(|hear| hear.on_epoch.as_mut().map(|f| f(&metrics)), clock),
            Output::Evaluation(found) => return self.told(|hear| hear.on_eval.as_mut().map(|f| f(&found)), clock),
            Output::Digest => self.digest().map(|digest| Input::Digested { digest }),
        };
        let input = done.unwrap_or_else(Input::Failed);
        self.session.handle(input, clock.now());
        Turn::Worked
    }

    fn contribute(&mut self, round: Round, base: Version, what: Contribution, clock: &mut dyn Clock) -> Turn {
        match what {
            Contribution::Chunks { mass } => {
                self.sending = Some(Sending { round, base, mass, next: 0, since: clock.now(), absent: None });
                Turn::Worked
            }
            Contribution::Absent(why) if self.reduce.shares() => {
                self.sending = Some(Sending { round, base, mass: 0.0, next: 0, since: clock.now(), absent: Some(why) });
                Turn::Worked
            }
            Contribution::Absent(why) => {
                self.session.handle(Input::Contributed { round, took: Duration::ZERO }, clock.now());
                Turn::Data(Data::Absent { round, from_chunk: 0, why })
            }
        }
    }

    /// The next chunk of the contribution on its way through the socket, if there is one.
    fn send(&mut self, clock: &mut dyn Clock) -> Option<Data> {
        let mut sending = self.sending.take()?;
        if self.session.ended() {
            return None;
        }
        let (round, since) = (sending.round, sending.since);
        let chunk = self.reduce.contribution(round, sending.base, sending.mass, sending.next);
        match &chunk {
            Some(Data::Contribution(_)) => {
                sending.next += 1;
                self.sending = Some(sending);
            }
            _ => {
                let now = clock.now();
                self.session.handle(Input::Contributed { round, took: now.since(since) }, now);
            }
        }
        chunk
    }

    fn run(&self) -> Result<RunConfig, Failure> {
        let state = "was not admitted yet";
        self.session.run().cloned().ok_or_else(|| Violation::Unexpected { message: "an order", state }.into())
    }

    fn train(&mut self, order: &BatchOrder, clock: &mut dyn Clock) -> Result<Trained, Failure> {
        let run = self.run()?;
        let started = clock.step_begins(run.emulation.as_ref());
        let passes = Passes::new(run.pass_len, run.epoch_splits);
        let pick = passes.picks(run.seed, order.epoch.0);
        let positions = order.positions.iter().flat_map(|range| range.start..range.end);
        // A pass longer than the dataset (augment > 1) goes over its samples again.
        let indices: Vec<u64> = positions.filter_map(pick).map(|pick| pick % run.dataset_len).collect();
        let job = &mut self.job;
        if run.deterministic {
            let seed = chance::seed_of(run.seed, order);
            user("setting the generators", || job.trainee.reseed(seed))?;
        }
        let batch = user("reading a batch", || job.train_set.batch(&indices))?;
        let data_wait = clock.now().since(started);
        let total = passes.batches(run.epochs, run.batch_size);
        let position = LrPosition { batch: order.lr_position, total };
        let lr = user("the learning-rate schedule", || learning_rate((job.schedule)(position), position))?;
        let lr = lr * order.warm_up.map_or(1.0, WarmUp::factor);
        let at = StepContext { epoch: order.epoch, position, lr };
        let (outcome, asks) =
            user("a training step", || job.trainee.step(&batch, &at).map(|outcome| (outcome, job.trainee.asks())))?;
        let now = clock.step_done(started, run.emulation.as_ref());
        let Asks { evaluation, checkpoint } = asks;
        let wanted = [(evaluation, Intent::EvalNow), (checkpoint, Intent::CheckpointNow)];
        wanted.iter().filter(|(asked, _)| *asked).for_each(|&(_, what)| self.session.handle(Input::Asked(what), now));
        Ok(Trained { outcome, lr, data_wait })
    }

    /// A window's report with the losses that its steps left on the device, and the user's own figures.
    fn with_late_figures(&mut self, mut report: Box<WindowReport>) -> Result<Report, Failure> {
        let trainee = &mut self.job.trainee;
        let late = user("reading the loss", || trainee.take_loss())?;
        report.loss_sum += late.loss_sum;
        report.loss_count += late.samples;
        if report.batches > 0 {
            let values = user("reading the scalars", || trainee.take_scalars())?;
            let declared = trainee.scalars();
            report.scalars =
                declared.into_iter().zip(values).filter_map(|(of, value)| Some((of.name, value?))).collect();
        }
        Ok(Report::WindowReport(report))
    }

    fn open_round(&mut self, round: Round, clock: &mut dyn Clock) -> Turn {
        let taken = self.snapshot(round, clock).map(Input::SnapshotTaken);
        let now = clock.now();
        self.session.handle(taken.unwrap_or_else(Input::Failed), now);
        while let Some(chunk) = self.reduce.take_early() {
            self.receive(&Data::Consensus(chunk), now);
        }
        Turn::Worked
    }

    fn snapshot(&mut self, round: Round, clock: &mut dyn Clock) -> Result<SnapshotTaken, Failure> {
        let started = clock.now();
        let (reduce, trainee) = (&mut self.reduce, &self.job.trainee);
        let stays = !self.session.overlaps();
        let finite = user("reading the model's tensors", || {
            let opened = if stays { reduce.open(trainee, round) } else { reduce.snapshot(trainee, round) };
            opened.map_err(fault)
        })?;
        Ok(SnapshotTaken { round, finite, took: clock.now().since(started) })
    }

    fn apply(&mut self, round: Round, how: Application, reset_optimizer: bool) -> Result<Option<u64>, Failure> {
        if reset_optimizer {
            let trainee = &mut self.job.trainee;
            user("resetting the optimizer", || trainee.reset_optimizer())?;
        }
        if let Some(digest) = self.keep_result(round)? {
            return Ok(Some(digest));
        }
        let (reduce, trainee) = (&mut self.reduce, &mut self.job.trainee);
        user("writing the model's tensors", || match how {
            Application::InPlace => reduce.apply(trainee).map(Some).map_err(fault),
            Application::OnTop => reduce.apply_on_top(trainee, Pull::FULL).map(|()| None).map_err(fault),
        })
    }

    fn digest(&mut self) -> Result<u64, Failure> {
        let (reduce, trainee) = (&mut self.reduce, &self.job.trainee);
        user("reading the model's tensors", || reduce.replica_digest(trainee).map_err(fault))
    }

    /// The consensus takes the replica's place, and back.
    fn set_aside(&mut self) -> Result<(), Failure> {
        let (reduce, trainee) = (&mut self.reduce, &mut self.job.trainee);
        user("setting the replica aside", || reduce.set_aside(trainee).map_err(fault))
    }

    fn put_back(&mut self) -> Result<(), Failure> {
        let (reduce, trainee) = (&mut self.reduce, &mut self.job.trainee);
        user("putting the replica back", || reduce.put_back(trainee).map_err(fault))
    }
}

/// The scalars that a model declares.
fn declared<T: Trainee>(trainee: &T) -> Result<Vec<ScalarSpec>, JobError> {
    let scalars = trainee.scalars();
    let names = || scalars.iter().map(|scalar| &scalar.name);
    let wrong = |(at, name): (usize, &String)| {
        at >= SCALARS || !(1..=SCALAR_NAME).contains(&name.len()) || names().take(at).any(|other| other == name)
    };
    match names().enumerate().find(|&scalar| wrong(scalar)) {
        Some((_, name)) => Err(JobError::Scalar { name: name.clone(), most: SCALARS, longest: SCALAR_NAME }),
        None => Ok(scalars),
    }
}
