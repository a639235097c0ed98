//! The boundary to a user's model: a replica that steps on a batch and lends its tensors.

use core::time::Duration;
use flodl_wire::Epoch;
use flodl_wire::message::join::{ScalarSpec, TensorSpec};

/// Whatever a user's model or dataset reports: any error, or a sentence (`"no such file".into()`).
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// A replica of the model together with its optimizer.
///
/// The loop owns it and calls it from one thread, the one that called `Trainer::run`. It is never asked for two things at
/// once. An error of any method ends this rank with that error; a panic does too.
///
/// Tensors are lent by visiting: the replica shows its own memory (or a staging buffer that it fills from a device), one
/// tensor after another in the order of [`manifest`](Trainee::manifest).
pub trait Trainee {
    /// What [`step`](Trainee::step) and [`evaluate`](Trainee::evaluate) consume; a [`Dataset`](crate::dataset::Dataset)
    /// makes it.
    type Batch;

    /// Every tensor that ranks average: names unique, order fixed, the same on all ranks and throughout the run.
    ///
    /// [`Section::Parameters`](flodl_wire::message::join::Section) and `Buffers` are lent as `f32` whatever the element
    /// type the model holds them in, `Integers` as `i64`.
    fn manifest(&self) -> Vec<TensorSpec>;

    /// Does beforehand what the first step would do once and for all: allocate, choose and compile kernels. Called once,
    /// before the rank connects, with a batch of the training set; so that the first window, from which a rank's speed is
    /// first known, is not spent on it. The tensors must be afterwards what they were. By default nothing is done.
    ///
    /// Answers with the time that a step takes with a core to itself, where the model can tell: the first windows are then
    /// divided by it.
    ///
    /// # Errors
    /// Whatever would keep a step from being done.
    fn warm_up(&mut self, _batch: &Self::Batch) -> Result<Option<Duration>, Fault> {
        Ok(None)
    }

    /// Every number that the next step draws, and those of reading its batch, is to follow from `seed`: what is dropped, how
    /// samples are varied. Called before each batch of a run with `--deterministic`; the seed says which batch of the run it
    /// is and nothing of the rank. By default nothing is done, which is right for a model that draws no numbers.
    ///
    /// # Errors
    /// Whatever keeps the generators from being set.
    fn reseed(&mut self, _seed: u64) -> Result<(), Fault> {
        Ok(())
    }

    /// One optimizer step on `batch`, which holds at least one sample.
    ///
    /// # Errors
    /// Whatever keeps the model from taking the step. A loss that is not finite is not an error: averaging leaves a
    /// replica that is not finite out and gives it the consensus.
    ///
    /// A model that leaves its losses on a device answers most steps with no samples (`StepOutcome::default()`) and accounts for
    /// them later, in the outcome of another step or in [`take_loss`](Trainee::take_loss).
    fn step(&mut self, batch: &Self::Batch, at: &StepContext) -> Result<StepOutcome, Fault>;

    /// The losses of steps whose outcomes left them out, with their samples: asked for when a window is reported. By default
    /// there are none, which is right for a model whose steps tell their loss.
    ///
    /// # Errors
    /// Whatever keeps the model from reading them (a device error).
    fn take_loss(&mut self) -> Result<StepOutcome, Fault> {
        Ok(StepOutcome::default())
    }

    /// Loss and hits of `batch` under the parameters as they are; changes nothing.
    ///
    /// # Errors
    /// Whatever keeps the model from evaluating; it is reported and the rank goes on.
    fn evaluate(&mut self, batch: &Self::Batch) -> Result<EvalOutcome, Fault>;

    /// Figures of its own that the run shows beside the loss: their names and how values of several windows and ranks are put
    /// together. The same on all ranks; at most 64. By default there are none.
    fn scalars(&self) -> Vec<ScalarSpec> {
        Vec::new()
    }

    /// Their values over the steps since this was asked last, in the order of [`scalars`](Trainee::scalars); `None` for what
    /// was not measured. Asked for when a window is reported, after [`take_loss`](Trainee::take_loss). By default nothing is
    /// told.
    ///
    /// # Errors
    /// Whatever keeps the model from reading them (a device error).
    fn take_scalars(&mut self) -> Result<Vec<Option<f64>>, Fault> {
        Ok(Vec::new())
    }

    /// What it would have one rank do for all at the end of this round. Asked for after each step; by default nothing.
    fn asks(&mut self) -> Asks {
        Asks::default()
    }

    /// Shows every tensor to `reader`, in manifest order.
    ///
    /// # Errors
    /// Whatever keeps the model from reading its own tensors (a device error).
    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault>;

    /// Whether [`read_tensors`](Trainee::read_tensors) shows the tensors where they lie, few of them, so that showing them costs
    /// nothing: averages then read them piece by piece, again and again, and copy nothing. By default not, which is right for
    /// a model on a device or with tensors in hundreds.
    fn lends_in_place(&self) -> bool {
        false
    }

    /// Lets `writer` overwrite every tensor, in manifest order. Optimizer state stays as it is.
    ///
    /// # Errors
    /// Whatever keeps the model from writing its own tensors (a device error).
    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault>;

    /// Called after the replica was found to hold a non-finite value and took the consensus: optimizer state that is not
    /// finite must be reset. By default nothing is done, which is right for a model without optimizer state.
    ///
    /// # Errors
    /// Whatever keeps the model from doing that.
    fn reset_optimizer(&mut self) -> Result<(), Fault> {
        Ok(())
    }

    /// The device that it runs on, for people ("cpu", "cuda:0 NVIDIA H200").
    fn device(&self) -> String {
        "cpu".to_owned()
    }
}

/// Where a step stands.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct StepContext {
    /// The epoch that the batch belongs to.
    pub epoch: Epoch,
    /// Where the step stands on the schedule.
    pub position: LrPosition,
    /// What the trainer's schedule says there.
    pub lr: f64,
}

/// A place on the learning-rate schedule, counted in batches of all ranks together: the same for any world size.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LrPosition {
    /// Batches done by all ranks before this one, from 0; below `total` but for rounding at the very end.
    pub batch: u64,
    /// Batches of the whole run: ceil(epoch length / batch size) of each epoch.
    pub total: u64,
}

impl LrPosition {
    /// The fraction of the run that is done, 0..=1.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        if self.total == 0 { 1.0 } else { (self.batch as f64 / self.total as f64).min(1.0) }
    }
}

/// What a rank's program may have one rank do for all.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Asks {
    /// Evaluate the next consensus.
    pub evaluation: bool,
    /// Save it.
    pub checkpoint: bool,
}

/// What a step came to, or several.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct StepOutcome {
    /// The sum of the losses over the samples.
    pub loss_sum: f64,
    /// The samples behind it; 0 where the loss is to be told later.
    pub samples: u64,
}

/// What the evaluation of one batch came to.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct EvalOutcome {
    /// The sum of the losses over the batch's samples.
    pub loss_sum: f64,
    /// Samples classified rightly; `None` where that has no meaning.
    pub correct: Option<u64>,
    /// The samples behind both.
    pub samples: u64,
}

/// A tensor's values, row-major.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum TensorRef<'a> {
    /// Of a parameter or a buffer.
    F32(&'a [f32]),
    /// Of an integer tensor.
    I64(&'a [i64]),
}

/// Room for a tensor's values, row-major.
#[derive(Debug, PartialEq)]
pub enum TensorMut<'a> {
    /// Of a parameter or a buffer.
    F32(&'a mut [f32]),
    /// Of an integer tensor.
    I64(&'a mut [i64]),
}

/// Reads the tensors that a [`Trainee`] lends. A tensor that does not fit the manifest is remembered and reported by whoever
/// made the reader, so that a model need not care.
pub trait TensorReader {
    /// The next tensor of the manifest.
    fn read(&mut self, tensor: TensorRef<'_>);
}

/// Overwrites the tensors that a [`Trainee`] lends. A tensor that does not fit the manifest is left alone, remembered and
/// reported by whoever made the writer.
pub trait TensorWriter {
    /// The next tensor of the manifest.
    fn write(&mut self, tensor: TensorMut<'_>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_stay_between_zero_and_one() {
        for (batch, total, expect) in [(0, 10, 0.0), (5, 10, 0.5), (12, 10, 1.0), (0, 0, 1.0)] {
            assert_eq!(LrPosition { batch, total }.fraction(), expect);
        }
    }
}
