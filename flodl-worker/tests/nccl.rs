//! Whole workers that average over NCCL, on the stand-in of flodl-nccl: rounds, deaths, replicas that are not finite, and a
//! library that is stuck.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "a test waits for threads")]

mod common;
mod stand_in;

use common::{Numbers, PATIENCE, Seat, run_config};
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::nccl::{NewSession, Standing};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::{Received, SyncOutcome};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Epoch, Incarnation, NcclSession, Range, Rank, Round, SessionId, Time, Version, WindowId};
use flodl_worker::nccl::{Nccl, NcclError, Place};
use flodl_worker::session::End;
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::worker::{Callbacks, Job, Worker};
use flodl_worker::{Dtype, Section, TensorSpec};
use stand_in::place;
use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(30);

/// How long the library has.
const NCCL_PATIENCE: Duration = Duration::from_secs(2);

const PARAMETERS: usize = 1000;

/// A replica whose every parameter grows by a quarter with each sample.
struct Model {
    theta: Vec<f32>,
    mean: [f32; 1],
    seen: [i64; 1],
    /// Its next step goes wrong.
    breaks: Rc<Cell<bool>>,
}

impl Trainee for Model {
    type Batch = Vec<u64>;

    fn manifest(&self) -> Vec<TensorSpec> {
        let spec = |name: &str, dtype, elements: u64, section| TensorSpec {
            name: name.to_owned(),
            dtype,
            shape: vec![elements],
            section,
        };
        vec![
            spec("seen", Dtype::I64, 1, Section::Integers),
            spec("theta", Dtype::F32, PARAMETERS as u64, Section::Parameters),
            spec("mean", Dtype::F32, 1, Section::Buffers),
        ]
    }

    fn step(&mut self, batch: &Vec<u64>, _: &StepContext) -> Result<StepOutcome, Fault> {
        self.theta.iter_mut().for_each(|value| *value += 0.25 * batch.len() as f32);
        if self.breaks.take() {
            self.theta.fill(f32::NAN);
        }
        self.seen[0] += batch.len() as i64;
        self.mean[0] += 1.0;
        Ok(StepOutcome { loss_sum: 1.0, samples: batch.len() as u64 })
    }

    fn evaluate(&mut self, _: &Vec<u64>) -> Result<EvalOutcome, Fault> {
        Ok(EvalOutcome::default())
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::I64(&self.seen));
        reader.read(TensorRef::F32(&self.theta));
        reader.read(TensorRef::F32(&self.mean));
        Ok(())
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::I64(&mut self.seen));
        writer.write(TensorMut::F32(&mut self.theta));
        writer.write(TensorMut::F32(&mut self.mean));
        Ok(())
    }
}

/// A rank.
struct Gpu {
    rank: Rank,
    seat: Seat<'static, Model>,
    breaks: Rc<Cell<bool>>,
    heard: Vec<Report>,
}

impl Gpu {
    fn new(rank: u32, place: impl FnOnce() -> Result<Place, NcclError> + Send + 'static) -> Gpu {
        let breaks = Rc::new(Cell::new(false));
        let (theta, seen) = (vec![rank as f32; PARAMETERS], [10 + i64::from(rank)]);
        let model = || Model { theta: theta.clone(), mean: [0.0], seen, breaks: Rc::clone(&breaks) };
        let job = Job {
            trainee: model(),
            train_set: Box::new(Numbers(1000)),
            eval_set: None,
            schedule: Box::new(|_| 0.1),
            settings: flodl_wire::message::join::TrainerSettings::default(),
            callbacks: Callbacks::default(),
        };
        let id = (Rank(rank), Incarnation(1));
        let worker = Worker::new(job, id, PATIENCE, Time::ZERO).unwrap();
        let who = (id.0, id.1, NCCL_PATIENCE);
        let stuck = |status| panic!("the process would end with {status}");
        let nccl = Nccl::new(who, model().manifest(), place, stuck);
        let seat = Seat::new(worker.with_collectives(Box::new(nccl)), Duration::from_millis(1));
        Gpu { rank: Rank(rank), seat, breaks, heard: Vec::new() }
    }

    /// Lets it go on with what there is.
    fn pump(&mut self) {
        self.seat.drain();
        self.heard.append(&mut self.seat.reports);
    }

    fn order(&mut self, message: Control) {
        self.seat.order(message);
        self.pump();
    }

    fn said<R>(&self, what: impl Fn(&Report) -> Option<R>) -> Option<R> {
        self.heard.iter().find_map(what)
    }

    fn stands(&self, session: NcclSession) -> Option<Standing> {
        let of = |report: &Report| match report {
            Report::NcclSession { session: of, standing } if *of == session => Some(standing.clone()),
            _ => None,
        };
        self.heard.iter().rev().find_map(of)
    }

    fn received(&self, on: NcclSession, round: Round) -> Option<Received> {
        self.said(|report| match report {
            Report::NcclAck(ack) if ack.session == on && ack.ack.round == round => match ack.ack.outcome {
                SyncOutcome::Whole(received) => Some(received),
                SyncOutcome::Incomplete { .. } => None,
            },
            _ => None,
        })
    }

    fn theta(&self) -> f32 {
        let theta = &self.seat.worker.trainee().theta;
        assert!(theta.iter().all(|value| value.to_bits() == theta[0].to_bits()));
        theta[0]
    }
}

/// A run's ranks, and what its coordinator says.
struct Run {
    gpus: Vec<Gpu>,
    window: u64,
}

impl Run {
    fn new(ranks: u32) -> Run {
        let mut gpus: Vec<Gpu> = (0..ranks).map(|rank| Gpu::new(rank, move || place(rank))).collect();
        let run = run_config(&gpus[0].seat.ready(), ranks, 1);
        gpus.iter_mut().for_each(|gpu| gpu.order(Control::Admitted(Box::new(run.clone()))));
        Run { gpus, window: 0 }
    }

    /// Lets all go on until something is so at every rank.
    fn until(&mut self, what: &str, is_so: impl Fn(&Gpu) -> bool) {
        let started = Instant::now();
        while !self.gpus.iter().all(&is_so) {
            self.gpus.iter_mut().for_each(Gpu::pump);
            for gpu in &self.gpus {
                assert_eq!(gpu.seat.end, None, "{}", gpu.rank);
                let heard = &gpu.heard[gpu.heard.len().saturating_sub(3)..];
                assert!(started.elapsed() < LIMIT, "{what}: not at {}, which said last {heard:?}", gpu.rank);
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn tell(&mut self, message: &Control) {
        self.gpus.iter_mut().for_each(|gpu| gpu.order(message.clone()));
    }

    /// Forms a communicator of everybody.
    fn form(&mut self, session: NcclSession) {
        self.gpus[0].order(Control::RequestNewNcclId { session });
        let made = |gpu: &Gpu| {
            gpu.said(|report| match report {
                Report::NewNcclIdGenerated { session: of, outcome } if *of == session => Some(outcome.clone()),
                _ => None,
            })
        };
        self.until("the id", |gpu| gpu.rank != Rank(0) || made(gpu).is_some());
        let id = made(&self.gpus[0]).unwrap().unwrap();
        let members = self.gpus.iter().map(|gpu| (gpu.rank, Incarnation(1))).collect();
        self.tell(&Control::NewNcclSession(Box::new(NewSession { session, id: *id, members })));
        self.until("the communicator", |gpu| gpu.stands(session) == Some(Standing::Ready));
    }

    /// Every rank trains so many batches of 4 samples.
    fn train(&mut self, batches: &[u32]) {
        self.window += 1;
        let mut at = 0;
        for (gpu, &quota) in self.gpus.iter_mut().zip(batches) {
            let lease = Range { start: at, end: at + 4 * u64::from(quota) };
            at = lease.end;
            let leases = if quota == 0 { vec![] } else { vec![lease] };
            let (window, quota_sum) = (WindowId(self.window), 10);
            let plan = WindowPlan {
                window,
                epoch: Epoch(0),
                leases,
                quota,
                quota_max: quota,
                budget: None,
                global_step: 0,
                quota_sum,
                overlap: None,
            };
            gpu.order(Control::Window(plan));
        }
    }

    fn prepare(&mut self, round: Round, part: impl Fn(Rank) -> Part) {
        let entry = |gpu: &Gpu| RosterEntry {
            rank: gpu.rank,
            incarnation: Incarnation(1),
            session: SessionId(1),
            part: part(gpu.rank),
        };
        let roster = self.gpus.iter().map(entry).collect();
        self.tell(&Control::PrepareSync { round, roster });
        let ready = |report: &Report| matches!(report, Report::SnapshotReady { round: of, .. } if *of == round);
        self.until("the snapshot", |gpu| gpu.heard.iter().any(ready));
    }

    /// Issues the round, and answers with what all have come to.
    fn collect(&mut self, round: Round, session: NcclSession, root: Option<u32>) -> u64 {
        self.tell(&Control::SyncNow { round, session, root });
        self.until("the round", |gpu| gpu.received(session, round).is_some());
        let digests: Vec<u64> = self.gpus.iter().map(|gpu| gpu.received(session, round).unwrap().digest).collect();
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:x?}");
        digests[0]
    }

    fn done(&mut self, round: Round, outcome: RoundOutcome) {
        self.tell(&Control::RoundDone { round, outcome, next: Next::Window });
    }

    /// A round that counts.
    fn round(&mut self, round: u64, session: NcclSession) -> u64 {
        let (number, root) = (Round(round), (round == 0).then_some(0));
        self.prepare(number, |rank| match (round, rank) {
            (0, Rank(0)) => Part::Source,
            (0, _) => Part::Receive,
            _ => Part::Contribute,
        });
        let digest = self.collect(number, session, root);
        self.done(number, RoundOutcome::Committed { version: Version(round) });
        digest
    }

    /// The digest of the replica that a rank told with its last window.
    fn replica_digest(&self, rank: usize) -> Option<(Version, u64)> {
        let of = |report: &Report| match report {
            Report::WindowReport(report) => Some(report.replica_digest),
            _ => None,
        };
        self.gpus[rank].heard.iter().rev().find_map(of).flatten()
    }
}

const ONE: NcclSession = NcclSession(1);
const TWO: NcclSession = NcclSession(2);

#[test]
fn rounds_over_nccl_leave_all_replicas_with_the_average_by_mass() {
    let mut run = Run::new(3);
    run.form(ONE);
    let digest = run.round(0, ONE);
    assert_eq!(run.gpus.iter().map(Gpu::theta).collect::<Vec<_>>(), [0.0; 3], "all have the source's");
    run.train(&[1, 2, 0]);
    assert_eq!(run.replica_digest(1), Some((Version(0), digest)), "what is read back is the consensus");
    let digest = run.round(1, ONE);
    // One step of 4 samples moves by 1: (1 x 1 + 2 x 2 + nothing) / 3.
    assert_eq!(run.gpus.iter().map(Gpu::theta).collect::<Vec<_>>(), [5.0 / 3.0; 3]);
    for gpu in &run.gpus {
        let Model { mean, seen, .. } = gpu.seat.worker.trainee();
        assert_eq!((mean[0], seen[0]), (1.5, 18), "buffers by mover, the largest of integers");
        let received = gpu.received(ONE, Round(1)).unwrap();
        assert_eq!(received.divergence.is_some(), gpu.rank != Rank(2), "who gave nothing has none");
        let norm = f64::from(5.0_f32 / 3.0) * (PARAMETERS as f64).sqrt();
        assert!((received.post_norm - norm).abs() < 1e-6, "{}", received.post_norm);
    }
    run.train(&[1, 1, 1]);
    assert_eq!(run.replica_digest(2), Some((Version(1), digest)));
    run.round(2, ONE);
    assert!(run.gpus.iter().all(|gpu| (gpu.theta() - 8.0 / 3.0).abs() < 1e-6));
    assert_eq!(run.gpus[2].seat.worker.session().version(), Some(Version(2)));
}

#[test]
fn a_killed_rank_costs_a_communicator_and_the_round_is_done_again_from_what_was() {
    let mut run = Run::new(3);
    run.form(ONE);
    run.round(0, ONE);
    run.train(&[1, 1, 3]);
    run.prepare(Round(1), |_| Part::Contribute);
    // Its process is gone before it issues anything; the others are inside.
    let dead = run.gpus.remove(1);
    run.tell(&Control::SyncNow { round: Round(1), session: ONE, root: None });
    drop(dead);
    let why = Reason::new("killed", "it was killed");
    run.tell(&Control::DeclareDead { rank: Rank(1), incarnation: Incarnation(1), why });
    run.until("the loss", |gpu| matches!(gpu.stands(ONE), Some(Standing::Lost { .. })));
    run.form(TWO);
    run.collect(Round(1), TWO, None);
    run.done(Round(1), RoundOutcome::Committed { version: Version(1) });
    assert_eq!(run.gpus.iter().map(Gpu::theta).collect::<Vec<_>>(), [2.5; 2], "(1 + 3 x 3) / 4");
    run.train(&[1, 1]);
    run.round(2, TWO);
    assert_eq!(run.gpus.iter().map(Gpu::theta).collect::<Vec<_>>(), [3.5; 2]);
}

#[test]
fn a_round_that_comes_to_nothing_leaves_what_was_trained_and_the_next_one_takes_it() {
    let mut run = Run::new(2);
    run.form(ONE);
    run.round(0, ONE);
    run.train(&[1, 3]);
    run.prepare(Round(1), |_| Part::Contribute);
    run.collect(Round(1), ONE, None);
    run.done(Round(1), RoundOutcome::Nothing);
    assert_eq!(run.gpus.iter().map(Gpu::theta).collect::<Vec<_>>(), [1.0, 3.0]);
    run.prepare(Round(2), |_| Part::Contribute);
    run.collect(Round(2), ONE, None);
    run.done(Round(2), RoundOutcome::Committed { version: Version(1) });
    assert_eq!(run.gpus.iter().map(Gpu::theta).collect::<Vec<_>>(), [2.5; 2]);
}

#[test]
fn a_replica_that_is_not_finite_gives_nothing_and_takes_the_average() {
    let mut run = Run::new(2);
    run.form(ONE);
    run.round(0, ONE);
    run.gpus[1].breaks.set(true);
    run.train(&[2, 1]);
    assert!(run.gpus[1].seat.worker.trainee().theta[0].is_nan());
    run.round(1, ONE);
    assert_eq!(run.gpus.iter().map(Gpu::theta).collect::<Vec<_>>(), [2.0; 2]);
}

#[test]
fn without_nccl_a_rank_says_what_is_missing() {
    let mut gpu = Gpu::new(0, || Err(NcclError::NoDevice));
    let run = run_config(&gpu.seat.ready(), 1, 1);
    gpu.order(Control::Admitted(Box::new(run)));
    gpu.order(Control::RequestNewNcclId { session: ONE });
    let started = Instant::now();
    while gpu.seat.end.is_none() && started.elapsed() < LIMIT {
        gpu.pump();
    }
    let Some(End::Failed(failure)) = &gpu.seat.end else { panic!("{:?}", gpu.seat.end) };
    let expected = "averaging over NCCL failed: the CUDA driver finds no device";
    assert!(failure.to_string().starts_with(expected), "{failure}");
}
