//! What a program declares, asks for, hears and does for all, through a worker without IO.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Conductor, Numbers, Seat};
use flodl_wire::message::join::TrainerSettings;
use flodl_wire::message::record::EpochMetrics;
use flodl_wire::message::report::{Evaluation, Intent};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Incarnation, Range, Rank, Time, Version};
use flodl_worker::session::Found;
use flodl_worker::trainee::{
    Asks, EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::worker::{Callbacks, Event, Job, JobError, Prepared, Turn, Worker};
use flodl_worker::{Dtype, Reduction, ScalarSpec, Section, TensorSpec};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// A model of one number that counts its samples.
#[derive(Default)]
struct Counting {
    theta: [f32; 1],
    seen: u64,
    names: Vec<&'static str>,
}

impl Trainee for Counting {
    type Batch = Vec<u64>;

    fn manifest(&self) -> Vec<TensorSpec> {
        let (name, dtype, shape) = ("theta".to_owned(), Dtype::F32, vec![]);
        vec![TensorSpec { name, dtype, shape, section: Section::Parameters }]
    }

    fn step(&mut self, batch: &Vec<u64>, _: &StepContext) -> Result<StepOutcome, Fault> {
        self.seen += batch.len() as u64;
        self.theta[0] += 1.0;
        Ok(StepOutcome { loss_sum: 1.0, samples: batch.len() as u64 })
    }

    fn evaluate(&mut self, batch: &Vec<u64>) -> Result<EvalOutcome, Fault> {
        let loss_sum = f64::from(self.theta[0]) * batch.len() as f64;
        Ok(EvalOutcome { loss_sum, correct: None, samples: batch.len() as u64 })
    }

    fn scalars(&self) -> Vec<ScalarSpec> {
        let spec = |name: &&str| ScalarSpec { name: (*name).to_owned(), reduction: Reduction::Sum };
        self.names.iter().map(spec).collect()
    }

    fn take_scalars(&mut self) -> Result<Vec<Option<f64>>, Fault> {
        Ok(vec![Some(std::mem::take(&mut self.seen) as f64), None])
    }

    fn asks(&mut self) -> Asks {
        Asks { evaluation: self.seen >= 8, checkpoint: false }
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::F32(&self.theta));
        Ok(())
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::F32(&mut self.theta));
        Ok(())
    }
}

fn job<'a>(names: &[&'static str], callbacks: Callbacks<'a, Counting>) -> Job<'a, Counting> {
    Job {
        trainee: Counting { names: names.to_vec(), ..Counting::default() },
        train_set: Box::new(Numbers(12)),
        eval_set: Some(Box::new(Numbers(10))),
        schedule: Box::new(|_| 0.1),
        settings: TrainerSettings { batch_size: Some(4), epochs: Some(1), augment: None },
        callbacks,
    }
}

/// One rank that holds the first consensus.
fn conductor(callbacks: Callbacks<'_, Counting>) -> Conductor<'_, Counting> {
    let job = job(&["seen", "never"], callbacks);
    let worker = Worker::new(job, (Rank(0), Incarnation(1)), common::PATIENCE, Time::ZERO).unwrap();
    Conductor::new(vec![Seat::new(worker, Duration::from_millis(10))], 1)
}

#[test]
fn declared_scalars_are_told_with_each_window_and_requests_once_a_round() {
    let mut conductor = conductor(Callbacks::default());
    conductor.train(0, &[vec![Range { start: 0, end: 12 }]]);
    let reports = conductor.seats[0].take_reports();
    let [Report::Intent(Intent::EvalNow), Report::WindowReport(report)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(report.scalars, [("seen".to_owned(), 12.0)], "what was not measured is left out");
}

#[test]
fn scalars_without_a_name_of_their_own_are_refused() {
    for names in [&["a", "a"][..], &[""], &["a-name-of-more-than-sixty-four-bytes-is-longer-than-any-table-shows!"]] {
        let error = Prepared::new(job(names, Callbacks::default())).map(|_| ()).unwrap_err();
        assert!(matches!(&error, JobError::Scalar { name, .. } if name == names[names.len() - 1]), "{error}");
    }
}

#[test]
fn an_evaluation_goes_on_batch_by_batch_and_each_is_a_sign_of_progress() {
    let mut conductor = conductor(Callbacks::default());
    let seat = &mut conductor.seats[0];
    let before = seat.worker.steps();
    seat.worker.handle(Event::Control(Control::ExecuteEval { schedule: 7 }), Time::ZERO);
    let mut turns = 0;
    let report = loop {
        match seat.worker.turn(&mut seat.clock) {
            Turn::Worked => turns += 1,
            Turn::Report(report) => break report,
            other => panic!("{other:?} in an evaluation"),
        }
        assert!(seat.worker.steps() - before <= turns, "no more than a batch a turn");
    };
    let evaluation = Evaluation { loss: 0.0, accuracy: None, samples: 10 };
    assert_eq!(report, Report::EvalResult { schedule: 7, outcome: Ok(evaluation) });
    assert_eq!(seat.worker.steps() - before, 3);
}

#[test]
fn its_part_of_a_checkpoint_is_saved_and_an_error_is_an_answer() {
    let saved = Rc::new(RefCell::new(Vec::new()));
    let log = Rc::clone(&saved);
    let save = move |trainee: &mut Counting, version: Version| {
        log.borrow_mut().push((version, trainee.theta[0]));
        if version == Version(2) { Err("the disk is full".into()) } else { Ok(()) }
    };
    let mut conductor = conductor(Callbacks { on_checkpoint: Some(Box::new(save)), ..Callbacks::default() });
    let seat = &mut conductor.seats[0];
    for (schedule, outcome) in [(1, Ok(())), (2, Err("the disk is full".to_owned()))] {
        seat.order(Control::ExecuteCheckpoint { schedule, version: Version(schedule) });
        assert_eq!(seat.take_reports(), [Report::CheckpointResult { schedule, outcome }]);
    }
    assert_eq!(*saved.borrow(), [(Version(1), 0.0), (Version(2), 0.0)]);
    assert_eq!(seat.end, None);
}

#[test]
fn news_reach_the_program_and_its_panic_ends_the_rank() {
    let heard = Rc::new(RefCell::new(Vec::new()));
    let (epochs, evals) = (Rc::clone(&heard), Rc::clone(&heard));
    let callbacks = Callbacks {
        on_epoch: Some(Box::new(move |metrics: &EpochMetrics| epochs.borrow_mut().push(format!("{}", metrics.epoch)))),
        on_eval: Some(Box::new(move |found: &Found| {
            evals.borrow_mut().push(format!("{}", found.version));
            assert!(found.version == Version(3), "not that one");
        })),
        on_checkpoint: None,
    };
    let mut conductor = conductor(callbacks);
    let seat = &mut conductor.seats[0];
    seat.order(Control::EpochAggregated(Box::default()));
    let evaluation = Evaluation { loss: 0.0, accuracy: None, samples: 10 };
    let eval = |version| Control::EvalBroadcast { version: Version(version), rank: Rank(0), evaluation };
    seat.order(eval(3));
    assert_eq!(seat.end, None);
    seat.order(eval(4));
    assert_eq!(*heard.borrow(), ["epoch 0", "version 3", "version 4"]);
    let [Report::Failed { error }] = &seat.take_reports()[..] else { panic!("a panic is told") };
    assert!(error.contains("not that one"), "{error}");
}
