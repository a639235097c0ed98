//! A trainee that fails on purpose, so that a run's answers to failures can be seen and tested.

use flodl_worker::trainee::{
    Asks, EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorWriter, Trainee,
};
use flodl_worker::{ScalarSpec, TensorSpec};
use std::str::FromStr;
use std::time::Duration;

/// What `--help` says of them.
pub(crate) const HELP: &str = "\
Faults, for seeing what a run makes of them:
    --fail-after K   return an error from the training step after K batches
    --panic-after K  panic in the training step after K batches
    --nan-after K    make the model non-finite once, after K batches
    --bias-name NAME call the last tensor so (default: bias); ranks must agree on names
    --only-rank R    the four above happen at rank R alone";

/// Which faults happen.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    pub(crate) fail_after: Option<u64>,
    pub(crate) panic_after: Option<u64>,
    pub(crate) nan_after: Option<u64>,
    pub(crate) bias_name: Option<String>,
    pub(crate) only_rank: Option<u32>,
}

impl Faults {
    /// Takes the option `name` where it is one of these, and says whether it was.
    pub(crate) fn take(&mut self, name: &str, value: Result<String, String>) -> Result<bool, String> {
        match name {
            "--fail-after" => self.fail_after = Some(number(name, &value?)?),
            "--panic-after" => self.panic_after = Some(number(name, &value?)?),
            "--nan-after" => self.nan_after = Some(number(name, &value?)?),
            "--bias-name" => self.bias_name = Some(value?),
            "--only-rank" => self.only_rank = Some(number(name, &value?)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Whether they happen here.
    fn mine(&self) -> bool {
        let rank = std::env::var("FLODL_RANK").ok().and_then(|rank| rank.parse().ok());
        self.only_rank.is_none() || self.only_rank == rank
    }

    /// The name of the bias of the last layer.
    pub(crate) fn bias_name(&self) -> String {
        self.bias_name.clone().filter(|_| self.mine()).unwrap_or_else(|| "bias".to_owned())
    }

    /// `inner` with these faults.
    pub(crate) fn around<T: Trainee>(&self, inner: T) -> Faulty<T> {
        let faults = if self.mine() { self.clone() } else { Faults::default() };
        Faulty { inner, faults, batches: 0 }
    }
}

/// An option's value as a number.
pub(crate) fn number<N: FromStr>(name: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{name} takes a number, not \"{value}\""))
}

/// A trainee with faults.
pub(crate) struct Faulty<T> {
    inner: T,
    faults: Faults,
    batches: u64,
}

impl<T: Trainee> Trainee for Faulty<T> {
    type Batch = T::Batch;

    fn manifest(&self) -> Vec<TensorSpec> {
        self.inner.manifest()
    }

    fn warm_up(&mut self, batch: &T::Batch) -> Result<Option<Duration>, Fault> {
        self.inner.warm_up(batch)
    }

    fn reseed(&mut self, seed: u64) -> Result<(), Fault> {
        self.inner.reseed(seed)
    }

    fn step(&mut self, batch: &T::Batch, at: &StepContext) -> Result<StepOutcome, Fault> {
        let done = Some(self.batches);
        if done == self.faults.fail_after {
            return Err(format!("--fail-after {} asked for this", self.batches).into());
        }
        assert!(done != self.faults.panic_after, "--panic-after {} asked for this", self.batches);
        self.batches += 1;
        let outcome = self.inner.step(batch, at)?;
        if done == self.faults.nan_after {
            self.inner.write_tensors(&mut Spoil)?;
        }
        Ok(outcome)
    }

    fn take_loss(&mut self) -> Result<StepOutcome, Fault> {
        self.inner.take_loss()
    }

    fn scalars(&self) -> Vec<ScalarSpec> {
        self.inner.scalars()
    }

    fn take_scalars(&mut self) -> Result<Vec<Option<f64>>, Fault> {
        self.inner.take_scalars()
    }

    fn asks(&mut self) -> Asks {
        self.inner.asks()
    }

    fn evaluate(&mut self, batch: &T::Batch) -> Result<EvalOutcome, Fault> {
        self.inner.evaluate(batch)
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        self.inner.read_tensors(reader)
    }

    fn lends_in_place(&self) -> bool {
        self.inner.lends_in_place()
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        self.inner.write_tensors(writer)
    }

    fn reset_optimizer(&mut self) -> Result<(), Fault> {
        self.inner.reset_optimizer()
    }
}

/// Makes the first value of each float tensor not a number.
struct Spoil;

impl TensorWriter for Spoil {
    fn write(&mut self, tensor: TensorMut<'_>) {
        if let TensorMut::F32([first, ..]) = tensor {
            *first = f32::NAN;
        }
    }
}
