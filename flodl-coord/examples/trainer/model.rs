//! Softmax regression with plain SGD, and the faults that strike it.

use crate::points::{CLASSES, PointBatch, scatter};
use flodl_worker::trainee::{
    Asks, EvalOutcome, Fault as TrainFault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter,
    Trainee,
};
use flodl_worker::{Dtype, Reduction, ScalarSpec, Section, TensorSpec};
use std::str::FromStr;

/// Something that goes wrong on purpose.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Fault {
    /// Steps before it.
    pub(crate) after: u64,
    /// What.
    pub(crate) what: What,
}

/// The ways to go wrong.
#[derive(Copy, Clone, Debug)]
pub(crate) enum What {
    Exit,
    Error,
    Panic,
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<What, String> {
        match text {
            "exit" => Ok(What::Exit),
            "error" => Ok(What::Error),
            "panic" => Ok(What::Panic),
            _ => Err(format!("there is no fault {text}")),
        }
    }
}

impl Fault {
    /// Lets it happen.
    pub(crate) fn happen(self) -> Result<(), TrainFault> {
        match self.what {
            What::Exit => std::process::exit(7),
            What::Error => Err("there is no data".into()),
            What::Panic => panic!("the model is made of glass"),
        }
    }
}

/// How it evaluates.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evaluates {
    Well,
    Never,
    LastOfAll,
}

/// After how many steps it asks for what.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Wishes {
    pub(crate) evaluation: Option<u64>,
    pub(crate) checkpoint: Option<u64>,
}

/// `weight` of [classes, features] and `bias` of [classes].
pub(crate) struct Linear {
    weight: Vec<f32>,
    bias: Vec<f32>,
    features: usize,
    fault: Option<Fault>,
    pub(crate) evaluates: Evaluates,
    pub(crate) wishes: Wishes,
    pub(crate) steps: u64,
    /// What the next step draws its length from, where it draws any.
    pub(crate) draws: Option<u64>,
    /// Of which so many are in no report yet.
    untold: u64,
}

impl Linear {
    pub(crate) fn new(features: usize, fault: Option<Fault>) -> Linear {
        let (weight, bias) = (vec![0.0; CLASSES * features], vec![0.0; CLASSES]);
        let (evaluates, wishes) = (Evaluates::Well, Wishes::default());
        Linear { weight, bias, features, fault, evaluates, wishes, steps: 0, draws: None, untold: 0 }
    }

    fn probabilities(&self, point: &[f32]) -> Vec<f32> {
        let rows = self.weight.chunks_exact(self.features).zip(&self.bias);
        let logits = rows.map(|(row, bias)| row.iter().zip(point).map(|(w, x)| w * x).sum::<f32>() + bias);
        let mut values: Vec<f32> = logits.map(f32::exp).collect();
        let sum: f32 = values.iter().sum();
        values.iter_mut().for_each(|value| *value /= sum);
        values
    }
}

impl Trainee for Linear {
    type Batch = PointBatch;

    fn manifest(&self) -> Vec<TensorSpec> {
        let (classes, features) = (CLASSES as u64, self.features as u64);
        let spec = |name: &str, shape| TensorSpec {
            name: name.to_owned(),
            dtype: Dtype::F32,
            shape,
            section: Section::Parameters,
        };
        vec![spec("weight", vec![classes, features]), spec("bias", vec![classes])]
    }

    fn reseed(&mut self, seed: u64) -> Result<(), TrainFault> {
        self.draws = self.draws.map(|_| seed);
        Ok(())
    }

    fn step(&mut self, batch: &PointBatch, at: &StepContext) -> Result<StepOutcome, TrainFault> {
        if let Some(fault) = self.fault.filter(|fault| fault.after == self.steps) {
            fault.happen()?;
        }
        self.steps += 1;
        self.untold += 1;
        let drawn = self.draws.as_mut().map_or(1.0, |state| {
            *state = scatter(*state);
            0.5 + (*state >> 40) as f32 / (1u64 << 24) as f32
        });
        let scale = drawn * at.lr as f32 / batch.len() as f32;
        let (mut weight, mut bias, mut loss_sum) = (self.weight.clone(), self.bias.clone(), 0.0);
        for (point, class) in batch {
            let probabilities = self.probabilities(point);
            loss_sum -= f64::from(probabilities[*class].ln());
            for (k, probability) in probabilities.into_iter().enumerate() {
                let error = scale * (probability - f32::from(u8::from(k == *class)));
                bias[k] -= error;
                let row = &mut weight[k * self.features..][..self.features];
                row.iter_mut().zip(point).for_each(|(w, x)| *w -= error * x);
            }
        }
        (self.weight, self.bias) = (weight, bias);
        Ok(StepOutcome { loss_sum, samples: batch.len() as u64 })
    }

    fn scalars(&self) -> Vec<ScalarSpec> {
        vec![ScalarSpec { name: "steps".to_owned(), reduction: Reduction::Sum }]
    }

    fn take_scalars(&mut self) -> Result<Vec<Option<f64>>, TrainFault> {
        Ok(vec![Some(std::mem::take(&mut self.untold) as f64)])
    }

    fn asks(&mut self) -> Asks {
        let now = |after: Option<u64>| after == Some(self.steps);
        Asks { evaluation: now(self.wishes.evaluation), checkpoint: now(self.wishes.checkpoint) }
    }

    fn evaluate(&mut self, batch: &PointBatch) -> Result<EvalOutcome, TrainFault> {
        match self.evaluates {
            Evaluates::Well => {}
            Evaluates::Never => return Err("it evaluates nothing".into()),
            Evaluates::LastOfAll => std::process::exit(7),
        }
        let (mut loss_sum, mut correct) = (0.0, 0);
        for (point, class) in batch {
            let probabilities = self.probabilities(point);
            loss_sum -= f64::from(probabilities[*class].ln());
            correct += u64::from(probabilities.iter().all(|other| *other <= probabilities[*class]));
        }
        Ok(EvalOutcome { loss_sum, correct: Some(correct), samples: batch.len() as u64 })
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), TrainFault> {
        reader.read(TensorRef::F32(&self.weight));
        reader.read(TensorRef::F32(&self.bias));
        Ok(())
    }

    fn lends_in_place(&self) -> bool {
        true
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), TrainFault> {
        writer.write(TensorMut::F32(&mut self.weight));
        writer.write(TensorMut::F32(&mut self.bias));
        Ok(())
    }
}
