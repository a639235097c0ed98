//! A whole trainer: a line fitted to points. The README at the top shows it.

use flodl_worker::dataset::Dataset;
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::{
    Dtype, Section, TensorSpec,
    trainer::{self, Trainer},
};

struct Line {
    weight: [f32; 2],
} // y = weight[0] x + weight[1]
struct Points(Vec<(f32, f32)>);

impl Trainee for Line {
    type Batch = Vec<(f32, f32)>;
    fn manifest(&self) -> Vec<TensorSpec> {
        vec![TensorSpec { name: "weight".into(), dtype: Dtype::F32, shape: vec![2], section: Section::Parameters }]
    }
    fn step(&mut self, batch: &Self::Batch, at: &StepContext) -> Result<StepOutcome, Fault> {
        let mut loss_sum = 0.0;
        for &(x, y) in batch {
            let error = self.weight[0] * x + self.weight[1] - y;
            let rate = at.lr as f32 / batch.len() as f32;
            self.weight = [self.weight[0] - rate * error * x, self.weight[1] - rate * error];
            loss_sum += f64::from(error * error);
        }
        Ok(StepOutcome { loss_sum, samples: batch.len() as u64 })
    }
    fn evaluate(&mut self, batch: &Self::Batch) -> Result<EvalOutcome, Fault> {
        let loss = |&(x, y): &(f32, f32)| f64::from((self.weight[0] * x + self.weight[1] - y).powi(2));
        Ok(EvalOutcome { loss_sum: batch.iter().map(loss).sum(), correct: None, samples: batch.len() as u64 })
    }
    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::F32(&self.weight));
        Ok(())
    }
    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::F32(&mut self.weight));
        Ok(())
    }
}

impl Dataset for Points {
    type Batch = Vec<(f32, f32)>;
    fn len(&self) -> u64 {
        self.0.len() as u64
    }
    fn signature(&self) -> [u8; 32] {
        [1; 32]
    } // two ranks share it exactly when they hold the same samples
    fn batch(&self, indices: &[u64]) -> Result<Self::Batch, Fault> {
        Ok(indices.iter().map(|&index| self.0[index as usize]).collect())
    }
}

fn main() -> std::process::ExitCode {
    let points = || Points((0..1000).map(|i| i as f32 / 500.0 - 1.0).map(|x| (x, 3.0 * x - 1.0)).collect());
    let trainer =
        Trainer::new(Line { weight: [0.0; 2] }, points()).eval_set(points()).batch_size(32).epochs(5).lr(|_| 0.5);
    trainer::main(|| trainer.run())
}
