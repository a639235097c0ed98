//! A rank whose step changes two numbers, and which notes when it is asked for its tensors and when it has the average.

use flodl_worker::dataset::Dataset;
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::trainer::{self, Trainer};
use flodl_worker::{Dtype, Section, TensorSpec};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::process::ExitCode;

/// Samples, of which each step takes one: more than any measurement has steps.
pub(crate) const SAMPLES: u64 = 1 << 30;

/// Nanoseconds of a clock.
pub(crate) fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Trains until the run is over and prints its rounds: when it was asked, when it had the average, its CPU time then.
pub(crate) fn main(bytes: usize) -> ExitCode {
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(0);
    let [rank, ranks] = ["FLODL_RANK", "FLODL_WORLD_SIZE"].map(number);
    let theta = vec![rank as f32 + 1.0; (bytes / 4).max(1)];
    let vector = Vector { theta, rank, ranks, steps: 0, asked: Cell::new(None), rounds: Vec::new() };
    trainer::main(|| {
        let outcome = Trainer::new(vector, Nothing).run()?;
        for (asked, held, cpu) in &outcome.trainee.rounds {
            println!("round {asked} {held} {cpu}");
        }
        Ok::<(), flodl_worker::shell::TrainError>(())
    })
}

struct Vector {
    theta: Vec<f32>,
    rank: u32,
    ranks: u32,
    steps: u32,
    /// When the tensors were first looked at since the last step.
    asked: Cell<Option<u64>>,
    rounds: Vec<(u64, u64, u64)>,
}

impl Trainee for Vector {
    type Batch = ();

    fn manifest(&self) -> Vec<TensorSpec> {
        let (name, shape) = ("theta".to_owned(), vec![self.theta.len() as u64]);
        vec![TensorSpec { name, dtype: Dtype::F32, shape, section: Section::Parameters }]
    }

    /// The first and the last number are told from those of other ranks, and averages are checked by them.
    fn step(&mut self, (): &(), _: &StepContext) -> Result<StepOutcome, Fault> {
        let last = self.theta.len() - 1;
        let mean = (self.ranks - 1) as f32 / 2.0 + self.steps as f32;
        if self.steps > 0 && (self.theta[0] != mean || self.theta[last] != mean) {
            return Err(format!("the average is {} and {}, not {mean}", self.theta[0], self.theta[last]).into());
        }
        self.steps += 1;
        let own = (self.rank + self.steps) as f32;
        (self.theta[0], self.theta[last]) = (own, own);
        self.asked.set(None);
        Ok(StepOutcome { loss_sum: 0.0, samples: 1 })
    }

    fn evaluate(&mut self, (): &()) -> Result<EvalOutcome, Fault> {
        Ok(EvalOutcome::default())
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        if self.asked.get().is_none() {
            self.asked.set(Some(nanoseconds(ClockId::Monotonic)));
        }
        reader.read(TensorRef::F32(&self.theta));
        Ok(())
    }

    fn lends_in_place(&self) -> bool {
        true
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::F32(&mut self.theta));
        let held = nanoseconds(ClockId::Monotonic);
        self.rounds.push((self.asked.get().unwrap_or(held), held, nanoseconds(ClockId::ProcessCPUTime)));
        Ok(())
    }
}

struct Nothing;

impl Dataset for Nothing {
    type Batch = ();

    fn len(&self) -> u64 {
        SAMPLES
    }

    fn signature(&self) -> [u8; 32] {
        [7; 32]
    }

    fn batch(&self, _: &[u64]) -> Result<(), Fault> {
        Ok(())
    }
}
