//! Multinomial logistic regression on handwritten digits, in plain Rust.
//!
//! Run it with `flodl run -n 3 -- softmax`; `--help` says what it takes. The model is in `model.rs`, the trainer is all of `train`
//! below.

mod faults;
mod model;
mod options;

use flodl_worker::loader::idx::LabelledImages;
use flodl_worker::trainee::Fault;
use flodl_worker::trainer::{self, Trainer};
use options::Options;
use std::process::ExitCode;

fn main() -> ExitCode {
    match options::parse() {
        Ok(options) => trainer::main(|| train(&options)),
        Err(exit) => exit,
    }
}

#[expect(clippy::print_stdout, reason = "a program talks to its user")]
fn train(options: &Options) -> Result<(), Fault> {
    let train = LabelledImages::read_split(&options.data, "train")?.truncated(options.limit);
    let test = LabelledImages::read_split(&options.data, "t10k")?;
    if train.classes().max(test.classes()) > model::CLASSES {
        return Err(format!("{} has labels above 9: these are not digits", options.data.display()).into());
    }
    let start = options.lr;
    let model = model::Softmax::new(train.image_len(), options.faults.bias_name());
    let outcome = Trainer::new(options.faults.around(model), train)
        .eval_set(test)
        .batch_size(64)
        .epochs(8)
        .lr(move |at| model::learning_rate(start, at))
        .run()?;
    match outcome.version {
        Some(version) => println!("{} is done, it holds version {}", outcome.rank, version.0),
        None => println!("{} is done, nothing was averaged", outcome.rank),
    }
    Ok(())
}
