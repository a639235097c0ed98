//! What the simulated ranks train: a small real model on a made-up dataset, with a record of what was trained.

use flodl_wire::message::join::{Dtype, Section, TensorSpec};
use flodl_worker::dataset::Dataset;
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use std::cell::RefCell;
use std::rc::Rc;

/// A vector that follows the samples it is shown, running statistics of them, and a counter of steps. Its three sections
/// make three chunks at least, so that a contribution can end between two of them.
#[derive(Clone, Debug)]
pub(crate) struct Vectors {
    pub(crate) weights: Vec<f32>,
    pub(crate) means: [f32; 2],
    pub(crate) steps: [i64; 1],
    log: Rc<RefCell<Log>>,
}

/// What happens to a replica that its rank does not tell, and what is to happen to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// What was read for training since the last snapshot, or since a consensus took the replica's place.
    pub(crate) trained: Trained,
    /// Steps since then, and ever.
    pub(crate) steps: u64,
    pub(crate) steps_ever: u64,
    /// The replica before the last consensus was written into it.
    pub(crate) before: Vec<f32>,
    /// How often one was.
    pub(crate) applied: u64,
    /// The next step leaves a value that is no number.
    pub(crate) breaks: bool,
    /// The next consensus is not what is written.
    pub(crate) corrupts: bool,
    /// One was not, and nobody has looked yet.
    pub(crate) corrupted: bool,
    /// The next evaluation is an error.
    pub(crate) eval_fails: bool,
}

impl Vectors {
    /// A model of `parameters` weights that starts where `rank` would start it: unlike every other one.
    pub(crate) fn new(parameters: u32, rank: u32, log: Rc<RefCell<Log>>) -> Vectors {
        let start = (rank % 64) as f32 * 0.125 + 0.5;
        Vectors { weights: vec![start; parameters as usize], means: [start, 0.0], steps: [0], log }
    }

    /// All floats in the order of the sections: weights, then means.
    pub(crate) fn floats(&self) -> impl Iterator<Item = f32> + '_ {
        self.weights.iter().chain(&self.means).copied()
    }

    /// Holds what another replica holds.
    pub(crate) fn become_like(&mut self, other: &Vectors) {
        self.weights.clone_from(&other.weights);
        (self.means, self.steps) = (other.means, other.steps);
    }

    /// Holds what these bytes of all sections say.
    pub(crate) fn take_bytes(&mut self, bytes: &[u8]) {
        let mut floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        self.weights.iter_mut().chain(&mut self.means).zip(&mut floats).for_each(|(own, float)| *own = float);
        if let Some(steps) = bytes.last_chunk::<8>() {
            self.steps = [i64::from_le_bytes(*steps)];
        }
    }

    /// A consensus is in it now, which took the place of what was there before.
    pub(crate) fn has_taken(&mut self, before: Vec<f32>) {
        let mut log = self.log.borrow_mut();
        log.applied += 1;
        log.before = before;
        if core::mem::take(&mut log.corrupts) {
            self.weights[0] += 1.0;
            log.corrupted = true;
        }
    }

    /// The bytes of all sections, as a consensus holds them.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let floats = self.floats().flat_map(f32::to_le_bytes);
        floats.chain(self.steps.iter().flat_map(|steps| steps.to_le_bytes())).collect()
    }
}

impl Trainee for Vectors {
    type Batch = Vec<u64>;

    fn manifest(&self) -> Vec<TensorSpec> {
        let spec = |name: &str, dtype, len: usize, section| TensorSpec {
            name: name.into(),
            dtype,
            shape: vec![len as u64],
            section,
        };
        vec![
            spec("weights", Dtype::F32, self.weights.len(), Section::Parameters),
            spec("means", Dtype::F32, self.means.len(), Section::Buffers),
            spec("steps", Dtype::I64, 1, Section::Integers),
        ]
    }

    fn step(&mut self, batch: &Self::Batch, at: &StepContext) -> Result<StepOutcome, Fault> {
        let mut loss_sum = 0.0;
        for &sample in batch {
            let target = target(sample);
            let len = self.weights.len() as u64;
            let weight = &mut self.weights[(sample % len) as usize];
            let error = target - *weight;
            *weight += at.lr as f32 * error;
            self.means[0] += 0.01 * (target - self.means[0]);
            self.means[1] += 0.01 * (error * error - self.means[1]);
            loss_sum += f64::from(error * error);
        }
        self.steps[0] += 1;
        {
            let mut log = self.log.borrow_mut();
            (log.steps, log.steps_ever) = (log.steps + 1, log.steps_ever + 1);
        }
        if core::mem::take(&mut self.log.borrow_mut().breaks) {
            self.weights[0] = f32::NAN;
        }
        Ok(StepOutcome { loss_sum, samples: batch.len() as u64 })
    }

    fn evaluate(&mut self, batch: &Self::Batch) -> Result<EvalOutcome, Fault> {
        if core::mem::take(&mut self.log.borrow_mut().eval_fails) {
            return Err("it was told to fail".into());
        }
        Ok(EvalOutcome { loss_sum: batch.len() as f64, correct: None, samples: batch.len() as u64 })
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::F32(&self.weights));
        reader.read(TensorRef::F32(&self.means));
        reader.read(TensorRef::I64(&self.steps));
        Ok(())
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        let before = self.floats().collect();
        writer.write(TensorMut::F32(&mut self.weights));
        writer.write(TensorMut::F32(&mut self.means));
        writer.write(TensorMut::I64(&mut self.steps));
        self.has_taken(before);
        Ok(())
    }
}

/// What a sample asks of its weight: a value in [-1, 1).
fn target(sample: u64) -> f32 {
    (mixed(sample) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// A number that says of a sample that it was trained; the sum of them says it of many, in any order.
pub(crate) fn mixed(sample: u64) -> u64 {
    let word = (sample ^ 0x5851_f42d_4c95_7f2d).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (word ^ (word >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// What was read: how many samples, and the sum of their numbers.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trained {
    pub(crate) samples: u64,
    pub(crate) sum: u64,
}

/// A dataset of numbers that remembers what was read of it.
#[derive(Debug)]
pub(crate) struct Numbers {
    len: u64,
    log: Rc<RefCell<Log>>,
}

impl Numbers {
    /// `len` samples; what is read is counted in `log`.
    pub(crate) fn new(len: u64, log: Rc<RefCell<Log>>) -> Numbers {
        Numbers { len, log }
    }
}

impl Dataset for Numbers {
    type Batch = Vec<u64>;

    fn len(&self) -> u64 {
        self.len
    }

    fn signature(&self) -> [u8; 32] {
        [7; 32]
    }

    fn batch(&self, indices: &[u64]) -> Result<Self::Batch, Fault> {
        let read = &mut self.log.borrow_mut().trained;
        for &index in indices {
            read.samples += 1;
            read.sum = read.sum.wrapping_add(mixed(index));
        }
        Ok(indices.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_counted_whatever_its_order() {
        let total = |order: &[u64]| {
            let log = Rc::new(RefCell::new(Log::default()));
            let numbers = Numbers::new(10, Rc::clone(&log));
            order.chunks(2).for_each(|batch| assert!(numbers.batch(batch).is_ok()));
            // The borrow would outlive the log at the end of the block.
            drop(numbers);
            Rc::into_inner(log).map(|log| log.into_inner().trained)
        };
        assert_eq!(total(&[1, 2, 3]), total(&[3, 1, 2]));
        assert_ne!(total(&[1, 2, 3]), total(&[1, 2, 4]));
        assert_ne!(total(&[1, 2]), total(&[1, 2, 2]));
    }

    #[test]
    fn the_bytes_are_those_of_all_sections_in_order() {
        let model = Vectors::new(3, 2, Rc::default());
        assert_eq!(model.bytes().len(), 3 * 4 + 2 * 4 + 8);
        assert_eq!(model.bytes()[..4], 0.75f32.to_le_bytes());
    }
}
