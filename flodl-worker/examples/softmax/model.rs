//! The model: one linear layer, softmax, cross entropy, SGD with momentum on the mean gradient.

use flodl_worker::loader::idx::ImageBatch;
use flodl_worker::trainee::{
    EvalOutcome, Fault, LrPosition, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::{Dtype, Reduction, ScalarSpec, Section, TensorSpec};

pub(crate) const CLASSES: usize = 10;
const MOMENTUM: f32 = 0.9;

/// `logits = x w + b`, with `w` of [inputs, classes] and `b` of [classes] in one vector, and their velocities in another.
pub(crate) struct Softmax {
    theta: Vec<f32>,
    velocity: Vec<f32>,
    inputs: usize,
    bias_name: String,
    /// Of the batches since the last report: samples classified rightly before their step, and all.
    right: (u64, u64),
}

impl Softmax {
    pub(crate) fn new(inputs: usize, bias_name: String) -> Softmax {
        let len = (inputs + 1) * CLASSES;
        Softmax { theta: vec![0.0; len], velocity: vec![0.0; len], inputs, bias_name, right: (0, 0) }
    }

    /// Class probabilities of one image, and its loss.
    fn forward(&self, pixels: &[f32], label: u8) -> ([f32; CLASSES], f64) {
        let (w, b) = self.theta.as_chunks::<CLASSES>().0.split_at(self.inputs);
        let mut p = b[0];
        for (&x, w) in pixels.iter().zip(w).filter(|&(&x, _)| x != 0.0) {
            for (p, w) in p.iter_mut().zip(w) {
                *p += x * w;
            }
        }
        let max = p.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        p.iter_mut().for_each(|p| *p = (*p - max).exp());
        let sum: f32 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
        (p, -f64::from(p[usize::from(label)]).ln())
    }
}

impl Trainee for Softmax {
    type Batch = ImageBatch;

    fn manifest(&self) -> Vec<TensorSpec> {
        let classes = CLASSES as u64;
        let spec = |name: &str, shape| TensorSpec {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape,
            section: Section::Parameters,
        };
        vec![spec("weight", vec![self.inputs as u64, classes]), spec(&self.bias_name, vec![classes])]
    }

    fn step(&mut self, batch: &ImageBatch, at: &StepContext) -> Result<StepOutcome, Fault> {
        let mut gradient = vec![[0.0; CLASSES]; self.inputs + 1];
        let mut loss_sum = 0.0;
        for (pixels, &label) in batch.pixels.chunks_exact(self.inputs).zip(&batch.labels) {
            let (mut error, loss) = self.forward(pixels, label);
            self.right.0 += u64::from(is_right(&error, label));
            self.right.1 += 1;
            error[usize::from(label)] -= 1.0;
            loss_sum += loss;
            for (&x, g) in pixels.iter().chain([&1.0]).zip(&mut gradient).filter(|&(&x, _)| x != 0.0) {
                for (g, e) in g.iter_mut().zip(&error) {
                    *g += x * e;
                }
            }
        }
        let scale = at.lr as f32 / batch.labels.len() as f32;
        for ((theta, velocity), g) in self.theta.iter_mut().zip(&mut self.velocity).zip(gradient.as_flattened()) {
            *velocity = MOMENTUM * *velocity - scale * g;
            *theta += *velocity;
        }
        Ok(StepOutcome { loss_sum, samples: batch.labels.len() as u64 })
    }

    fn scalars(&self) -> Vec<ScalarSpec> {
        vec![ScalarSpec { name: "accuracy".to_owned(), reduction: Reduction::Mean }]
    }

    fn take_scalars(&mut self) -> Result<Vec<Option<f64>>, Fault> {
        let (right, all) = std::mem::take(&mut self.right);
        Ok(vec![(all > 0).then(|| right as f64 / all as f64)])
    }

    fn evaluate(&mut self, batch: &ImageBatch) -> Result<EvalOutcome, Fault> {
        let (mut loss_sum, mut correct) = (0.0, 0);
        for (pixels, &label) in batch.pixels.chunks_exact(self.inputs).zip(&batch.labels) {
            let (p, loss) = self.forward(pixels, label);
            loss_sum += loss;
            correct += u64::from(is_right(&p, label));
        }
        Ok(EvalOutcome { loss_sum, correct: Some(correct), samples: batch.labels.len() as u64 })
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        let (weight, bias) = self.theta.split_at(self.inputs * CLASSES);
        reader.read(TensorRef::F32(weight));
        reader.read(TensorRef::F32(bias));
        Ok(())
    }

    fn lends_in_place(&self) -> bool {
        true
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        let (weight, bias) = self.theta.split_at_mut(self.inputs * CLASSES);
        writer.write(TensorMut::F32(weight));
        writer.write(TensorMut::F32(bias));
        Ok(())
    }

    fn reset_optimizer(&mut self) -> Result<(), Fault> {
        self.velocity.fill(0.0);
        Ok(())
    }
}

/// Whether no class is more probable than the right one.
fn is_right(p: &[f32; CLASSES], label: u8) -> bool {
    p.iter().all(|&other| other <= p[usize::from(label)])
}

/// Falls from `start` in a straight line to a tenth. Averaging acts like a smaller step, so ranks begin above one rank's best.
pub(crate) fn learning_rate(start: f64, at: LrPosition) -> f64 {
    start * (1.0 - 0.9 * at.fraction())
}
