//! The loop that `digits` leaves to flodl, written by hand on tch: the same network, data, batches and optimizer, one process.
//!
//! It is here to be compared with (`cargo xtask bench worker`): after each epoch it prints a line of JSON with the samples per
//! second of its training steps.

#![expect(clippy::disallowed_methods, reason = "a program that tells its own speed reads the clock")]

#[path = "../digits/model.rs"]
mod model;

use flodl_worker::loader::idx::LabelledImages;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use tch::nn::{ModuleT, OptimizerConfig, Sgd, VarStore};
use tch::{Device, Kind, TchError, Tensor};

const BATCH: i64 = 64;
const LR: f64 = 0.05;

#[expect(clippy::print_stderr, reason = "a program talks to its user")]
fn main() -> ExitCode {
    match std::env::args().nth(1).map_or(Ok(3), |epochs| epochs.parse()).map_err(Into::into).and_then(train) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("by_hand: {error}\nusage: by_hand [EPOCHS]");
            ExitCode::FAILURE
        }
    }
}

/// Inputs as `digits` makes them, and classes.
fn load(name: &str) -> Result<(Tensor, Tensor), Box<dyn Error>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/softmax/data");
    let images = LabelledImages::read_split(&folder, name)?;
    let labels = Tensor::f_from_slice(images.labels())?.f_to_kind(Kind::Int64)?;
    let samples = i64::try_from(images.labels().len())?;
    let grey = Tensor::f_from_data_size(images.pixels(), &[samples, 1, 28, 28], Kind::Uint8)?;
    Ok(((grey.f_to_kind(Kind::Float)? / 255.0 - 0.1307) / 0.3081, labels))
}

#[expect(clippy::print_stdout, reason = "what it prints is its result")]
fn train(epochs: u32) -> Result<(), Box<dyn Error>> {
    tch::manual_seed(1);
    let (inputs, classes) = load("train")?;
    let (test_inputs, test_classes) = load("t10k")?;
    let store = VarStore::new(Device::Cpu);
    let net = model::Net::new(&store.root(), false, "bias");
    let mut optimizer = Sgd { momentum: 0.9, ..Sgd::default() }.build(&store, LR)?;
    let samples = classes.size1()?;
    for epoch in 0..epochs {
        let order = Tensor::f_randperm(samples, (Kind::Int64, Device::Cpu))?;
        let started = Instant::now();
        for at in (0..samples).step_by(usize::try_from(BATCH)?) {
            let picks = order.f_narrow(0, at, BATCH.min(samples - at))?;
            let output = net.forward_t(&inputs.f_index_select(0, &picks)?, true);
            let loss = output.cross_entropy_for_logits(&classes.f_index_select(0, &picks)?);
            optimizer.backward_step(&loss);
        }
        let speed = samples as f64 / started.elapsed().as_secs_f64();
        let accuracy = accuracy(&net, &test_inputs, &test_classes)?;
        println!("{{\"epoch\": {epoch}, \"samples_per_s\": {speed:.1}, \"accuracy\": {accuracy:.4}}}");
    }
    Ok(())
}

fn accuracy(net: &model::Net, inputs: &Tensor, classes: &Tensor) -> Result<f64, TchError> {
    let _no_grad = tch::no_grad_guard();
    let hits = net.forward_t(inputs, false).f_argmax(1, false)?.f_eq_tensor(classes)?;
    hits.f_mean(Kind::Double)?.f_double_value(&[])
}
