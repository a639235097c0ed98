//! The model: a convolutional network of LeNet's size, with batch normalisation where asked for.

use tch::nn::{self, Init, ModuleT, Path};
use tch::{Kind, Tensor};

/// convolution 5x5 to 16, halve, convolution 5x5 to 32, halve, linear to 128, linear to 10, with rectifiers between.
#[derive(Debug)]
pub(crate) struct Net {
    conv1: nn::Conv2D,
    norm1: Option<Norm>,
    conv2: nn::Conv2D,
    norm2: Option<Norm>,
    fc1: nn::Linear,
    fc2: nn::Linear,
}

impl Net {
    /// For images of 1 x 28 x 28. `last_bias` is what the last layer's bias is called.
    pub(crate) fn new(path: &Path<'_>, normalised: bool, last_bias: &str) -> Net {
        let norm = |name, channels| normalised.then(|| Norm::new(&(path / name), channels));
        Net {
            conv1: convolution(&(path / "conv1"), 1, 16),
            norm1: norm("norm1", 16),
            conv2: convolution(&(path / "conv2"), 16, 32),
            norm2: norm("norm2", 32),
            fc1: linear(&(path / "fc1"), 32 * 7 * 7, 128, "bias"),
            fc2: linear(&(path / "fc2"), 128, 10, last_bias),
        }
    }
}

impl ModuleT for Net {
    fn forward_t(&self, images: &Tensor, train: bool) -> Tensor {
        let layer = |images: &Tensor, conv: &nn::Conv2D, norm: &Option<Norm>| {
            images.apply(conv).apply_opt_t(norm, train).relu().max_pool2d_default(2)
        };
        let features = layer(&layer(images, &self.conv1, &self.norm1), &self.conv2, &self.norm2);
        features.flatten(1, -1).apply(&self.fc1).relu().apply(&self.fc2)
    }
}

/// PyTorch's start for weights and biases: uniform within 1 / sqrt(inputs of a unit).
fn start(inputs: i64) -> Init {
    let bound = 1.0 / (inputs as f64).sqrt();
    Init::Uniform { lo: -bound, up: bound }
}

fn convolution(path: &Path<'_>, inputs: i64, outputs: i64) -> nn::Conv2D {
    let start = start(inputs * 5 * 5);
    let config = nn::ConvConfig { padding: 2, ws_init: start, bs_init: start, ..nn::ConvConfig::default() };
    nn::conv2d(path, inputs, outputs, 5, config)
}

fn linear(path: &Path<'_>, inputs: i64, outputs: i64, bias: &str) -> nn::Linear {
    let ws = path.var("weight", &[outputs, inputs], start(inputs));
    nn::Linear { ws, bs: Some(path.var(bias, &[outputs], start(inputs))) }
}

/// Batch normalisation that counts its batches, with PyTorch's start and names.
#[derive(Debug)]
pub(crate) struct Norm {
    inner: nn::BatchNorm,
    batches: Tensor,
}

impl Norm {
    fn new(path: &Path<'_>, channels: i64) -> Norm {
        let config = nn::BatchNormConfig { ws_init: Init::Const(1.0), ..nn::BatchNormConfig::default() };
        let zero = Tensor::zeros([], (Kind::Int64, path.device()));
        Norm { inner: nn::batch_norm2d(path, channels, config), batches: path.add("num_batches_tracked", zero, false) }
    }
}

impl ModuleT for Norm {
    fn forward_t(&self, images: &Tensor, train: bool) -> Tensor {
        if train {
            // The handle is another, the counter the same.
            let mut batches = self.batches.shallow_clone();
            batches += 1;
        }
        images.apply_t(&self.inner, train)
    }
}
