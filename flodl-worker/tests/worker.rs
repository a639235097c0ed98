//! Whole ranks in memory, with a model that writes down what it is asked.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::{Conductor, Numbers, Seat, roster, run_config, windows};
use flodl_wire::message::control::{Next, Part, RoundOutcome};
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::join::{Dtype, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Incarnation, Rank, Round, Time, Version};
use flodl_worker::dataset::Dataset;
use flodl_worker::session::End;
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::worker::{Callbacks, Event, Job, Prepared, Worker};
use std::time::Duration;

/// One parameter, moved by 1 a batch; at the batches of `spoiled` it becomes infinite. Each sample has a loss of 2, told at every
/// third batch and when asked.
#[derive(Default)]
struct Notes {
    theta: [f32; 1],
    contexts: Vec<StepContext>,
    samples: Vec<u64>,
    spoiled: Vec<usize>,
    resets: u32,
    untold: StepOutcome,
    /// Warming up is an error once this many samples are in the batch.
    too_many: Option<usize>,
    warmed: Vec<u64>,
}

impl Trainee for Notes {
    type Batch = Vec<u64>;

    fn manifest(&self) -> Vec<TensorSpec> {
        let (name, dtype, shape) = ("theta".to_owned(), Dtype::F32, vec![]);
        vec![TensorSpec { name, dtype, shape, section: Section::Parameters }]
    }

    fn warm_up(&mut self, batch: &Vec<u64>) -> Result<Option<Duration>, Fault> {
        self.warmed.clone_from(batch);
        if self.too_many.is_some_and(|many| batch.len() >= many) {
            return Err("no room".into());
        }
        Ok(Some(Duration::from_millis(batch.len() as u64)))
    }

    fn step(&mut self, batch: &Vec<u64>, at: &StepContext) -> Result<StepOutcome, Fault> {
        self.theta[0] += if self.spoiled.contains(&self.contexts.len()) { f32::INFINITY } else { 1.0 };
        self.contexts.push(*at);
        self.samples.extend(batch);
        self.untold.loss_sum += 2.0 * batch.len() as f64;
        self.untold.samples += batch.len() as u64;
        if self.contexts.len().is_multiple_of(3) { self.take_loss() } else { Ok(StepOutcome::default()) }
    }

    fn take_loss(&mut self) -> Result<StepOutcome, Fault> {
        Ok(std::mem::take(&mut self.untold))
    }

    fn evaluate(&mut self, batch: &Vec<u64>) -> Result<EvalOutcome, Fault> {
        let (loss_sum, correct) = (batch.iter().sum::<u64>() as f64, Some(batch.len() as u64));
        Ok(EvalOutcome { loss_sum, correct, samples: batch.len() as u64 })
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::F32(&self.theta));
        Ok(())
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::F32(&mut self.theta));
        Ok(())
    }

    fn reset_optimizer(&mut self) -> Result<(), Fault> {
        self.resets += 1;
        Ok(())
    }
}

fn seat(rank: u32, spoiled: &[usize], eval: Option<u64>) -> Seat<'static, Notes> {
    let job = Job {
        trainee: Notes { spoiled: spoiled.to_vec(), ..Notes::default() },
        train_set: Box::new(Numbers(30)),
        eval_set: eval.map(|len| Box::new(Numbers(len)) as Box<dyn Dataset<Batch = Vec<u64>>>),
        schedule: Box::new(|at| at.batch as f64),
        settings: TrainerSettings { batch_size: Some(4), epochs: Some(2), augment: None },
        callbacks: Callbacks::default(),
    };
    let worker = Worker::new(job, (Rank(rank), Incarnation(1)), common::PATIENCE, Time::ZERO).unwrap();
    Seat::new(worker, Duration::from_millis(10))
}

#[test]
fn every_epoch_takes_each_sample_once_in_its_own_order() {
    let mut conductor = Conductor::new(vec![seat(0, &[], Some(6)), seat(1, &[], None)], 2);
    for epoch in 0..2 {
        for leases in windows(30, 4, &[3, 1]) {
            conductor.step(epoch, &leases, Next::Window);
        }
    }
    let mut orders = Vec::new();
    for epoch in 0..2 {
        let mut order: Vec<u64> = Vec::new();
        for seat in &conductor.seats {
            let trainee = seat.worker.trainee();
            let half = trainee.samples.len() / 2;
            order.extend(&trainee.samples[epoch * half..][..half]);
        }
        orders.push(order.clone());
        order.sort_unstable();
        assert_eq!(order, (0..30).collect::<Vec<_>>());
    }
    assert_ne!(orders[0], orders[1]);
    let evaluation = conductor.finish();
    assert_eq!((evaluation.loss, evaluation.accuracy, evaluation.samples), (2.5, Some(1.0), 6));
}

#[test]
fn a_windows_report_has_the_losses_of_all_its_steps() {
    let mut conductor = Conductor::new(vec![seat(0, &[], None)], 1);
    for leases in windows(30, 4, &[5]) {
        let result = conductor.step(0, &leases, Next::Window);
        let report = &result.reports[0];
        assert_eq!((report.loss_count, report.loss_sum), (report.samples, 2.0 * report.samples as f64));
    }
}

#[test]
fn an_epoch_of_two_passes_takes_each_sample_twice() {
    let mut seat = seat(0, &[], None);
    let mut run = run_config(&seat.ready(), 1, 1);
    (run.epoch_len, run.pass_len) = (60, 60);
    seat.order(Control::Admitted(Box::new(run.clone())));
    seat.take_reports();
    let mut conductor = Conductor::admitted(vec![seat], run);
    for leases in windows(60, 4, &[15]) {
        conductor.step(0, &leases, Next::Window);
    }
    let mut samples = conductor.seats[0].worker.trainee().samples.clone();
    samples.sort_unstable();
    assert_eq!(samples, (0..60).map(|pick| pick / 2).collect::<Vec<_>>());
}

#[test]
fn learning_rates_follow_the_batches_of_all() {
    let mut conductor = Conductor::new(vec![seat(0, &[], None), seat(1, &[], None)], 1);
    for leases in windows(30, 4, &[3, 1]) {
        conductor.step(0, &leases, Next::Window);
    }
    let of = |rank: usize| -> Vec<f64> {
        conductor.seats[rank].worker.trainee().contexts.iter().map(|context| context.lr).collect()
    };
    // Windows of 3 + 1 batches: at its i-th a rank stands i times the ratio of all to its own further.
    assert_eq!(of(0), [0.0, 1.0, 3.0, 4.0, 5.0, 7.0]);
    assert_eq!(of(1), [0.0, 4.0]);
    let total = conductor.seats[0].worker.trainee().contexts[0].position.total;
    assert_eq!(total, 8);
}

#[test]
fn a_spoiled_replica_takes_the_consensus_of_the_others() {
    let mut conductor = Conductor::new(vec![seat(0, &[1], None), seat(1, &[], None)], 1);
    let windows = windows(30, 4, &[3, 1]);
    let result = conductor.step(0, &windows[0], Next::Window);
    let received: Vec<_> = result.acks.iter().map(|ack| *ack.received().unwrap()).collect();
    assert_eq!([received[0].divergence.is_some(), received[1].divergence.is_some()], [false, true]);
    assert_eq!(received[0].digest, received[1].digest);
    for (seat, resets) in conductor.seats.iter().zip([1, 0]) {
        assert_eq!((seat.worker.trainee().theta, seat.worker.trainee().resets), ([1.0], resets));
    }
    let result = conductor.step(0, &windows[1], Next::Window);
    // 3 batches to 4.0 and 1 to 2.0, weighted by their batches.
    assert_eq!(conductor.seats[0].worker.trainee().theta, [(3.0 * 4.0 + 2.0) / 4.0]);
    assert!(result.reports.iter().all(|report| report.replica_digest.is_some()));
}

#[test]
fn alone_a_spoiled_replica_goes_back_to_the_last_consensus() {
    let mut conductor = Conductor::new(vec![seat(0, &[2], None)], 1);
    let windows = windows(30, 4, &[2]);
    conductor.step(0, &windows[0], Next::Window);
    conductor.step(0, &windows[1], Next::Window);
    assert_eq!(conductor.seats[0].worker.trainee().theta, [2.0]);
    assert_eq!(conductor.seats[0].worker.session().version(), Some(Version(1)));
}

#[test]
fn a_result_may_come_before_the_round_is_ordered() {
    let mut seat = seat(0, &[], None);
    let run = run_config(&seat.ready(), 1, 1);
    seat.order(Control::Admitted(Box::new(run)));
    seat.take_reports();
    let round = Round(0);
    common::result_chunks(round, Version(0), 1.0, &[7.0]).into_iter().for_each(|data| seat.give(Event::Data(data)));
    seat.order(Control::RequestParams { round, roster: roster(1, |_| Part::Receive) });
    let outcome = RoundOutcome::Committed { version: Version(0) };
    seat.order(Control::RoundDone { round, outcome, next: Next::Window });
    assert_eq!((seat.worker.trainee().theta, seat.worker.session().version()), ([7.0], Some(Version(0))));
}

#[test]
fn an_evaluation_that_cannot_be_is_an_answer() {
    for (eval, expect) in [
        (None, "this trainer has nothing to evaluate on: give it a set with Trainer::eval_set"),
        (Some(0), "the evaluation set is empty: give Trainer::eval_set at least one sample"),
    ] {
        let mut conductor = Conductor::new(vec![seat(0, &[], eval)], 1);
        let seat = &mut conductor.seats[0];
        seat.order(Control::ExecuteEval { schedule: 3 });
        let outcome = Err(expect.to_owned());
        assert_eq!(seat.take_reports(), [Report::EvalResult { schedule: 3, outcome }]);
        assert_eq!(seat.end, None);
    }
}

#[test]
fn a_job_that_trains_nothing_is_refused() {
    let prepare = |len: u64, settings: TrainerSettings| {
        let job = Job {
            trainee: Notes::default(),
            train_set: Box::new(Numbers(len)),
            eval_set: None,
            schedule: Box::new(|_| 0.0),
            settings,
            callbacks: Callbacks::default(),
        };
        Prepared::new(job).map(|_| ()).map_err(|error| error.to_string())
    };
    let ask = TrainerSettings::default();
    assert_eq!(prepare(1, ask), Ok(()));
    for (len, settings, expect) in [
        (0, ask, "the training set is empty"),
        (1, TrainerSettings { batch_size: Some(0), ..ask }, "Trainer::batch_size(0) trains nothing"),
        (1, TrainerSettings { epochs: Some(0), ..ask }, "Trainer::epochs(0) trains nothing"),
        (1, TrainerSettings { augment: Some(0), ..ask }, "Trainer::augment(0) trains nothing"),
    ] {
        let error = prepare(len, settings).unwrap_err();
        assert!(error.starts_with(expect), "{error}");
    }
}

#[test]
fn a_rank_warms_up_on_its_first_samples() {
    for (len, batch_size, too_many, expect) in [
        (10, Some(4), None, Ok(4)),
        (3, Some(4), None, Ok(3)),
        (100, None, None, Ok(32)),
        (10, Some(4), Some(4), Err("before the run, warming up failed: no room")),
    ] {
        let job = Job {
            trainee: Notes { too_many, ..Notes::default() },
            train_set: Box::new(Numbers(len)),
            eval_set: None,
            schedule: Box::new(|_| 0.0),
            settings: TrainerSettings { batch_size, ..TrainerSettings::default() },
            callbacks: Callbacks::default(),
        };
        let mut prepared = Prepared::new(job).unwrap();
        let warmed = prepared.warm_up().map_err(|error| error.to_string());
        assert_eq!(warmed, expect.map(|_| ()).map_err(str::to_owned));
        let worker = prepared.begin((Rank(0), Incarnation(1)), common::PATIENCE, Time::ZERO);
        assert_eq!(worker.trainee().warmed, (0..expect.unwrap_or(4)).collect::<Vec<u64>>());
        assert!(worker.trainee().contexts.is_empty(), "no step was done");
        let step = Seat::new(worker, Duration::ZERO).ready().step;
        assert_eq!(step, expect.ok().map(Duration::from_millis), "the coordinator is told");
    }
}

#[test]
fn data_that_is_not_for_ranks_ends_one() {
    let chunk = Chunk {
        round: Round(1),
        version: Version(1),
        chunk: 0,
        mass: 1.0,
        codec: Codec::Exact,
        bytes: vec![0; 8].into(),
    };
    let absent = Data::Absent { round: Round(1), from_chunk: 0, why: AbsentWhy::Dead };
    for (data, expect) in [
        (Data::Contribution(chunk.clone()), "Contribution is a message for relays, not for ranks"),
        (absent, "Absent is a message for relays, not for ranks"),
        (Data::Consensus(chunk), "chunk 0 of the result of round 1 has another length than the model's layout says"),
    ] {
        let mut conductor = Conductor::new(vec![seat(0, &[], None)], 1);
        let seat = &mut conductor.seats[0];
        let roster = roster(1, |_| Part::Contribute);
        seat.order(Control::RequestParams { round: Round(1), roster });
        seat.give(Event::Data(data));
        let Some(End::Failed(failure)) = &seat.end else { panic!("{:?}", seat.end) };
        assert_eq!(failure.to_string(), format!("the coordinator sent what cannot be obeyed: {expect}"));
    }
}
