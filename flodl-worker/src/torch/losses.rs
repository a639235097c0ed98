//! Losses that stay on their device until somebody asks.

use crate::trainee::StepOutcome;
use tch::{Device, Kind, TchError, Tensor};

/// Mean losses of steps, with their samples.
pub(super) struct Losses {
    waiting: Vec<(Tensor, u64)>,
    every: usize,
}

impl Losses {
    /// Reads back after so many steps (at least one).
    pub(super) fn every(steps: usize) -> Losses {
        Losses { waiting: Vec::new(), every: steps.max(1) }
    }

    /// Takes a step's loss; answers with all that wait where it is time to, and with nothing otherwise.
    pub(super) fn push(&mut self, mean: Tensor, samples: u64) -> Result<StepOutcome, TchError> {
        self.waiting.push((mean, samples));
        if self.waiting.len() < self.every { Ok(StepOutcome::default()) } else { self.take() }
    }

    /// All that wait, in one transfer.
    pub(super) fn take(&mut self) -> Result<StepOutcome, TchError> {
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() {
            return Ok(StepOutcome::default());
        }
        let (means, samples): (Vec<Tensor>, Vec<u64>) = waiting.into_iter().unzip();
        let means = Tensor::f_stack(&means, 0)?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Double)?;
        let means = Vec::<f64>::try_from(&means)?;
        let loss_sum = means.iter().zip(&samples).map(|(mean, &samples)| mean * samples as f64).sum();
        Ok(StepOutcome { loss_sum, samples: samples.iter().sum() })
    }
}
