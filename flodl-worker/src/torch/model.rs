//! A network of tch as a [`Trainee`].

use super::data::Batch;
use super::lend::{Stranger, Tensors};
use super::losses::Losses;
use super::optimizer::{Optimizer, Rule, clip};
use crate::TensorSpec;
use crate::shell::pace::waited_for_core;
use crate::trainee::{EvalOutcome, Fault, StepContext, StepOutcome, TensorReader, TensorWriter, Trainee};
use core::time::Duration;
use std::time::Instant;
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Kind, TchError, Tensor};
use thiserror::Error;

/// Steps between two reads of the loss, where [`TorchModel::read_loss_every`] says nothing else.
const READ_LOSS_EVERY: usize = 8;

/// Why a network cannot be trained.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ModelError {
    /// A tensor that ranks cannot average.
    #[error(
        "tensor \"{name}\" is of kind {kind:?}: ranks average Float, Double, BFloat16 and Half, and agree on Int64; make it \
         one of these, or keep it out of the VarStore"
    )]
    Kind {
        /// The tensor.
        name: String,
        /// Its kind.
        kind: Kind,
    },
    /// Nothing in the `VarStore` requires a gradient.
    #[error("no tensor of the VarStore requires a gradient: build the network on its root() before the TorchModel")]
    NoParameters,
    /// The optimizer's settings are wrong.
    #[error("{why}")]
    Optimizer {
        /// What is wrong and what to do.
        why: String,
    },
}

type Loss<'a> = Box<dyn Fn(&Tensor, &Tensor) -> Tensor + 'a>;

/// A network of tch with its loss and its optimizer: a replica that flodl trains.
///
/// The tensors that ranks average are those of the `VarStore`, under its names, sorted. What requires a gradient when the model
/// is built is a parameter; other floats (running statistics) are buffers, and `i64` are counters. Floats of 64 and of 16 bits
/// travel as 32 bits; what 16 bits round away of an average is kept beside them until a step changes the value. A tensor is lent from the model's own memory where it is `f32` or `i64` on the CPU, and through a copy on
/// the CPU otherwise.
///
/// A step puts the network into training mode (`train = true` of [`ModuleT`]), an evaluation does not and tracks no gradients.
pub struct TorchModel<'a> {
    store: VarStore,
    net: Box<dyn ModuleT + 'a>,
    loss: Loss<'a>,
    clip: Option<f64>,
    tensors: Tensors,
    optimizer: Optimizer,
    losses: Losses,
}

impl<'a> TorchModel<'a> {
    /// The network `net` whose tensors are in `store`, trained by cross entropy until [`loss`](TorchModel::loss) says otherwise.
    /// A closure is a network by [`tch::nn::func_t`].
    ///
    /// Divides the machine's cores among its ranks ([`share_cores`](super::share_cores)).
    ///
    /// # Errors
    /// See [`ModelError`].
    pub fn new(
        store: VarStore,
        net: impl ModuleT + 'a,
        rule: impl Rule + 'static,
    ) -> Result<TorchModel<'a>, ModelError> {
        super::share_cores();
        rule.check().map_err(|why| ModelError::Optimizer { why })?;
        let tensors = Tensors::of(&store).map_err(|Stranger { name, kind }| ModelError::Kind { name, kind })?;
        let optimizer = Optimizer::new(rule, tensors.parameters());
        if optimizer.parameters().is_empty() {
            return Err(ModelError::NoParameters);
        }
        Ok(TorchModel {
            store,
            net: Box::new(net),
            loss: Box::new(|output, targets| output.cross_entropy_for_logits(targets)),
            clip: None,
            tensors,
            optimizer,
            losses: Losses::every(READ_LOSS_EVERY),
        })
    }

    /// Trains by this loss of (output, targets): a scalar, the mean over the batch.
    #[must_use]
    pub fn loss(mut self, loss: impl Fn(&Tensor, &Tensor) -> Tensor + 'a) -> TorchModel<'a> {
        self.loss = Box::new(loss);
        self
    }

    /// Scales the gradients of a step down to `max_norm` where their Euclidean norm, over all parameters, is larger
    /// (`torch.nn.utils.clip_grad_norm_`).
    #[must_use]
    pub fn clip_norm(mut self, max_norm: f64) -> TorchModel<'a> {
        self.clip = Some(max_norm);
        self
    }

    /// Reads the loss back from the device every `steps` steps (8 until told otherwise) and at the end of each window. Between
    /// two reads the host may run ahead of a GPU, so times of single steps are only as exact as these reads are frequent.
    #[must_use]
    pub fn read_loss_every(mut self, steps: usize) -> TorchModel<'a> {
        self.losses = Losses::every(steps);
        self
    }

    /// The tensors by their names, to load or save.
    #[must_use]
    pub fn store(&self) -> &VarStore {
        &self.store
    }

    /// The optimizer, to read its state.
    #[must_use]
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The optimizer, to restore its state.
    #[must_use]
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// The loss of a batch in training mode, the gradients of the parameters, and the batch's samples.
    fn gradients(&self, batch: &Batch) -> Result<(Tensor, Vec<Tensor>, u64), TchError> {
        let (Batch { inputs, targets }, samples) = self.take(batch)?;
        let loss = (self.loss)(&self.net.forward_t(&inputs, true), &targets);
        let gradients = Tensor::f_run_backward(&[&loss], self.optimizer.parameters(), false, false)?;
        Ok((loss, gradients, samples))
    }

    /// How long the gradients of a batch take with a core to itself.
    #[expect(
        clippy::disallowed_methods,
        reason = "it is this device's speed that is measured, before the rank connects"
    )]
    fn timed_gradients(&self, batch: &Batch) -> Result<Duration, TchError> {
        let (began, waited) = (Instant::now(), waited_for_core());
        self.gradients(batch).map(drop)?;
        if let Device::Cuda(place) = self.store.device() {
            tch::Cuda::synchronize(i64::try_from(place).unwrap_or(0));
        }
        Ok(began.elapsed().saturating_sub(waited_for_core().saturating_sub(waited)))
    }

    /// The batch on the model's device, and its samples.
    fn take(&self, batch: &Batch) -> Result<(Batch, u64), TchError> {
        let device = self.store.device();
        let inputs = batch.inputs.f_to_device(device)?;
        let samples = inputs.size().first().map_or(0, |samples| samples.unsigned_abs());
        Ok((Batch { inputs, targets: batch.targets.f_to_device(device)? }, samples))
    }
}

impl Trainee for TorchModel<'_> {
    type Batch = Batch;

    fn manifest(&self) -> Vec<TensorSpec> {
        self.tensors.manifest()
    }

    /// The gradients of one batch, three times: the first pass allocates and chooses kernels, on a CPU its memory is then
    /// gathered in large pages, and the shorter of the other two is how long a step takes. What a network changes in passing, such as running statistics, is put back. Numbers are drawn
    /// from libtorch's generator where the network draws any.
    fn warm_up(&mut self, batch: &Batch) -> Result<Option<Duration>, Fault> {
        let kept = self.tensors.kept()?;
        self.timed_gradients(batch)?;
        #[cfg(target_os = "linux")]
        if self.store.device() == Device::Cpu {
            super::pages::gather();
        }
        let step = self.timed_gradients(batch)?.min(self.timed_gradients(batch)?);
        self.tensors.restore(&kept)?;
        Ok(Some(step))
    }

    /// Seeds libtorch's generators, of all devices, and lets it compute with one thread: sums of several depend on how many.
    fn reseed(&mut self, seed: u64) -> Result<(), Fault> {
        if tch::get_num_threads() != 1 {
            tch::set_num_threads(1);
        }
        tch::manual_seed(seed.cast_signed());
        Ok(())
    }

    fn step(&mut self, batch: &Batch, at: &StepContext) -> Result<StepOutcome, Fault> {
        let (loss, mut gradients, samples) = self.gradients(batch)?;
        if let Some(max_norm) = self.clip {
            clip(&mut gradients, max_norm)?;
        }
        self.optimizer.step(&gradients, at.lr)?;
        Ok(self.losses.push(loss.f_detach()?, samples)?)
    }

    fn take_loss(&mut self) -> Result<StepOutcome, Fault> {
        Ok(self.losses.take()?)
    }

    fn evaluate(&mut self, batch: &Batch) -> Result<EvalOutcome, Fault> {
        let _no_grad = tch::no_grad_guard();
        let (Batch { inputs, targets }, samples) = self.take(batch)?;
        let output = self.net.forward_t(&inputs, false);
        let mean = f64::try_from((self.loss)(&output, &targets))?;
        Ok(EvalOutcome { loss_sum: mean * samples as f64, correct: hits(&output, &targets)?, samples })
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        Ok(self.tensors.read(reader)?)
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        Ok(self.tensors.write(writer)?)
    }

    fn reset_optimizer(&mut self) -> Result<(), Fault> {
        Ok(self.optimizer.reset_non_finite()?)
    }

    fn device(&self) -> String {
        match self.store.device() {
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(place) => format!("cuda:{place}"),
            other => format!("{other:?}").to_lowercase(),
        }
    }
}

/// Samples whose largest output is that of their class, where outputs are [samples, classes] and targets classes.
fn hits(output: &Tensor, targets: &Tensor) -> Result<Option<u64>, TchError> {
    if targets.kind() != Kind::Int64 || targets.dim() != 1 || output.dim() != 2 {
        return Ok(None);
    }
    let hits = output.f_argmax(1, false)?.f_eq_tensor(targets)?.f_sum(Kind::Int64)?;
    Ok(u64::try_from(i64::try_from(hits)?).ok())
}
