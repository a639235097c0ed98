//! A convolutional network on handwritten digits, on libtorch.
//!
//! Run it with `flodl run -n 3 -- digits`; `--help` says what it takes. The network is in `model.rs`, the trainer is all of `train`
//! below.

#[path = "../softmax/faults.rs"]
mod faults;
mod model;

use faults::{Faults, number};
use flodl_worker::loader::idx::LabelledImages;
use flodl_worker::torch::{self, Sgd, TensorSet, TorchModel};
use flodl_worker::trainee::Fault;
use flodl_worker::trainer::{self, Trainer};
use std::path::PathBuf;
use std::process::ExitCode;
use tch::nn::VarStore;

const HELP: &str = "\
Trains a convolutional network on handwritten digits. Start it under flodl:

    flodl run -n 3 -- digits [OPTIONS]

Options:
    --data DIR       folder with the IDX files train-* and t10k-*, plain or .gz (default: the 10,000 digits of the examples)
    --limit N        use the first N training samples only
    --bn             normalise batches after each convolution
    --lr RATE        learning rate (default: 0.05)
    --seed N         start from the parameters of this seed (default: 1); rank 0's are everybody's
    --help           print this
";

/// The mean and the deviation of MNIST's grey values.
const GREY: (f64, f64) = (0.1307, 0.3081);

struct Options {
    data: PathBuf,
    limit: usize,
    normalised: bool,
    seed: i64,
    lr: f64,
    faults: Faults,
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => trainer::main(|| train(&options)),
        Ok(None) => print_help(),
        Err(message) => trainer::main(|| Err::<(), _>(message)),
    }
}

#[expect(clippy::print_stdout, reason = "a program talks to its user")]
fn train(options: &Options) -> Result<(), Fault> {
    let train = LabelledImages::read_split(&options.data, "train")?.truncated(options.limit);
    let test = LabelledImages::read_split(&options.data, "t10k")?;
    if train.sides() != (28, 28) || test.sides() != (28, 28) || train.classes().max(test.classes()) > 10 {
        return Err(format!("{} holds no digits of 28 x 28", options.data.display()).into());
    }
    let ((mean, deviation), lr) = (GREY, options.lr);
    tch::manual_seed(options.seed);
    let store = VarStore::new(torch::rank_device());
    let net = model::Net::new(&store.root(), options.normalised, &options.faults.bias_name());
    let model = TorchModel::new(store, net, Sgd { momentum: 0.9, ..Sgd::default() })?;
    let outcome = Trainer::new(options.faults.around(model), TensorSet::images(&train, mean, deviation)?)
        .eval_set(TensorSet::images(&test, mean, deviation)?)
        .batch_size(64)
        .epochs(5)
        .lr(move |_| lr)
        .run()?;
    match outcome.version {
        Some(version) => println!("{} is done, it holds version {}", outcome.rank, version.0),
        None => println!("{} is done, nothing was averaged", outcome.rank),
    }
    Ok(())
}

/// The options; `None` where the help is asked for.
fn parse(mut args: impl Iterator<Item = String>) -> Result<Option<Options>, String> {
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/softmax/data"));
    let mut options =
        Options { data, limit: usize::MAX, normalised: false, seed: 1, lr: 0.05, faults: Faults::default() };
    while let Some(name) = args.next() {
        match name.as_str() {
            "--help" => return Ok(None),
            "--bn" => {
                options.normalised = true;
                continue;
            }
            _ => {}
        }
        let value = args.next().ok_or_else(|| format!("{name} needs a value, or is unknown; --help lists the options"));
        match name.as_str() {
            "--data" => options.data = PathBuf::from(value?),
            "--limit" => options.limit = number(&name, &value?)?,
            "--lr" => options.lr = number(&name, &value?)?,
            "--seed" => options.seed = number(&name, &value?)?,
            _ if options.faults.take(&name, value)? => {}
            _ => return Err(format!("unknown option {name}; --help lists the options")),
        }
    }
    Ok(Some(options))
}

#[expect(clippy::print_stdout, reason = "a program talks to its user")]
fn print_help() -> ExitCode {
    println!("{HELP}\n{}", faults::HELP);
    ExitCode::SUCCESS
}
