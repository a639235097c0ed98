//! Batches of tensors, and datasets that make them.

use crate::dataset::Dataset;
use crate::loader::idx::LabelledImages;
use crate::trainee::Fault;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, TchError, Tensor};
use thiserror::Error;

/// What a [`TorchModel`](super::TorchModel) trains on: the first side of both tensors counts the samples.
#[derive(Debug)]
pub struct Batch {
    /// What the network is given.
    pub inputs: Tensor,
    /// What the loss compares its output with; for cross entropy the classes, as `i64`.
    pub targets: Tensor,
}

/// Why two tensors are no dataset.
#[derive(Debug, Error)]
pub enum DataError {
    /// They differ in their first sides, or have none.
    #[error(
        "the inputs have the shape {inputs:?} and the targets {targets:?}: the first side of both must count the samples"
    )]
    Sides {
        /// The inputs' shape.
        inputs: Vec<i64>,
        /// The targets' shape.
        targets: Vec<i64>,
    },
    /// The deviation to divide by is 0 or not a number.
    #[error("the deviation {deviation} cannot be divided by: give a finite number above 0")]
    Deviation {
        /// What was given.
        deviation: f64,
    },
    /// libtorch fails.
    #[error(transparent)]
    Torch(#[from] TchError),
}

/// Inputs and targets in memory: sample i is the i-th of both.
pub struct TensorSet {
    inputs: Tensor,
    targets: Tensor,
    len: i64,
    signature: [u8; 32],
}

impl TensorSet {
    /// These inputs and targets. Its signature is over every byte of both.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn new(inputs: Tensor, targets: Tensor) -> Result<TensorSet, DataError> {
        let mut hash = Sha256::new();
        for tensor in [&inputs, &targets] {
            hash.update(format!("{:?} {:?} ", tensor.kind(), tensor.size()));
            let here = tensor.f_to_device(Device::Cpu)?.f_contiguous()?;
            let mut bytes = vec![0; here.numel() * here.kind().elt_size_in_bytes()];
            here.f_copy_data_u8(&mut bytes, here.numel())?;
            hash.update(&bytes);
        }
        TensorSet::signed(inputs, targets, hash.finalize().into())
    }

    /// Grey images with their classes: inputs of [samples, 1, rows, columns], `(grey - mean) / deviation` with grey values of
    /// 0.0..=1.0, and one `i64` a target.
    ///
    /// # Errors
    /// See [`DataError`].
    pub fn images(images: &LabelledImages, mean: f64, deviation: f64) -> Result<TensorSet, DataError> {
        if !(deviation.is_finite() && deviation > 0.0) {
            return Err(DataError::Deviation { deviation });
        }
        let side = |side: usize| i64::try_from(side).unwrap_or(i64::MAX);
        let (rows, columns) = images.sides();
        let shape = [side(images.labels().len()), 1, side(rows), side(columns)];
        let grey = Tensor::f_from_data_size(images.pixels(), &shape, Kind::Uint8)?;
        let mut inputs = grey.f_to_kind(Kind::Float)?;
        inputs.f_div_scalar_(255.0)?.f_sub_scalar_(mean)?.f_div_scalar_(deviation).map(drop)?;
        let targets = Tensor::f_from_slice(images.labels())?.f_to_kind(Kind::Int64)?;
        let mut hash = Sha256::new();
        hash.update(images.signature());
        hash.update(mean.to_le_bytes());
        hash.update(deviation.to_le_bytes());
        TensorSet::signed(inputs, targets, hash.finalize().into())
    }

    /// The same samples, held on a device: batches are put together there. Worth it where they fit.
    ///
    /// # Errors
    /// What libtorch says.
    pub fn on(mut self, device: Device) -> Result<TensorSet, TchError> {
        self.inputs = self.inputs.f_to_device(device)?;
        self.targets = self.targets.f_to_device(device)?;
        Ok(self)
    }

    fn signed(inputs: Tensor, targets: Tensor, signature: [u8; 32]) -> Result<TensorSet, DataError> {
        match (inputs.size().first(), targets.size().first()) {
            (Some(&len), Some(&other)) if len == other => Ok(TensorSet { inputs, targets, len, signature }),
            _ => Err(DataError::Sides { inputs: inputs.size(), targets: targets.size() }),
        }
    }
}

impl Dataset for TensorSet {
    type Batch = Batch;

    fn len(&self) -> u64 {
        self.len.unsigned_abs()
    }

    fn signature(&self) -> [u8; 32] {
        self.signature
    }

    fn batch(&self, indices: &[u64]) -> Result<Batch, Fault> {
        let at = |&index: &u64| i64::try_from(index).map_err(|_| format!("there is no sample {index}"));
        let picks: Vec<i64> = indices.iter().map(at).collect::<Result<_, _>>()?;
        let picks = Tensor::f_from_slice(&picks)?.f_to_device(self.inputs.device())?;
        let inputs = self.inputs.f_index_select(0, &picks)?;
        Ok(Batch { inputs, targets: self.targets.f_index_select(0, &picks)? })
    }
}
