//! An evaluation on its way: means over a whole set, read in order, one batch at a time.

use crate::dataset::Dataset;
use crate::trainee::{Fault, Trainee};
use flodl_wire::message::report::Evaluation;

/// What has been evaluated so far.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Evaluating {
    pub(crate) schedule: u64,
    /// The consensus is in the replica's place meanwhile.
    pub(crate) aside: bool,
    next: u64,
    loss_sum: f64,
    /// `None` once a batch had no such figure.
    correct: Option<u64>,
    samples: u64,
}

impl Evaluating {
    pub(crate) fn begin(schedule: u64, aside: bool) -> Evaluating {
        Evaluating { schedule, aside, next: 0, loss_sum: 0.0, correct: Some(0), samples: 0 }
    }

    /// Evaluates the next batch; gives what was found after the last one.
    ///
    /// # Errors
    /// The model's or the set's; a set without samples is one.
    pub(crate) fn go_on<T: Trainee>(
        &mut self,
        trainee: &mut T,
        set: &(dyn Dataset<Batch = T::Batch> + '_),
        batch_size: u64,
    ) -> Result<Option<Evaluation>, Fault> {
        if self.next < set.len() {
            let end = set.len().min(self.next.saturating_add(batch_size));
            let indices: Vec<u64> = (self.next..end).collect();
            let outcome = trainee.evaluate(&set.batch(&indices)?)?;
            self.loss_sum += outcome.loss_sum;
            self.correct = self.correct.zip(outcome.correct).map(|(sum, more)| sum + more);
            self.samples += outcome.samples;
            self.next = end;
        }
        if self.next < set.len() {
            return Ok(None);
        }
        if self.samples == 0 {
            return Err("the evaluation set is empty: give Trainer::eval_set at least one sample".into());
        }
        let accuracy = self.correct.map(|correct| correct as f64 / self.samples as f64);
        Ok(Some(Evaluation { loss: self.loss_sum / self.samples as f64, accuracy, samples: self.samples }))
    }
}
