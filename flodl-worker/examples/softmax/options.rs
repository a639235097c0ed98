//! The example's command line.

use crate::faults::Faults;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

const HELP: &str = "\
Trains multinomial logistic regression on handwritten digits. Start it under flodl:

    flodl run -n 3 -- softmax [OPTIONS]

Options:
    --data DIR       folder with the IDX files train-* and t10k-*, plain or .gz (default: the 10,000 digits of this example)
    --limit N        use the first N training samples only
    --help           print this

Faults, for seeing what a run makes of them:
    --fail-after K   return an error from the training step after K batches
    --panic-after K  panic in the training step after K batches
    --nan-after K    make the model non-finite once, after K batches
    --bias-name NAME call the second tensor so (default: bias); ranks must agree on names
    --only-rank R    the four above happen at rank R alone";

/// What the command line asks for.
pub(crate) struct Options {
    pub(crate) data: PathBuf,
    pub(crate) limit: usize,
    pub(crate) faults: Faults,
}

/// The options, or the exit status after the help or what is wrong was printed.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]
pub(crate) fn parse() -> Result<Options, ExitCode> {
    if std::env::args().any(|argument| argument == "--help") {
        println!("{HELP}");
        return Err(ExitCode::SUCCESS);
    }
    from(std::env::args().skip(1)).map_err(|message| {
        eprintln!("error: {message}");
        ExitCode::from(2)
    })
}

fn from(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/softmax/data"));
    let mut options = Options { data, limit: usize::MAX, faults: Faults::default() };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value, or is unknown; --help lists the options"));
        match name.as_str() {
            "--data" => options.data = PathBuf::from(value?),
            "--limit" => options.limit = number(&name, &value?)?,
            "--fail-after" => options.faults.fail_after = Some(number(&name, &value?)?),
            "--panic-after" => options.faults.panic_after = Some(number(&name, &value?)?),
            "--nan-after" => options.faults.nan_after = Some(number(&name, &value?)?),
            "--bias-name" => options.faults.bias_name = Some(value?),
            "--only-rank" => options.faults.only_rank = Some(number(&name, &value?)?),
            _ => return Err(format!("unknown option {name}; --help lists the options")),
        }
    }
    Ok(options)
}

fn number<N: FromStr>(name: &str, value: &str) -> Result<N, String> {
    value.parse().map_err(|_| format!("{name} takes a number, not \"{value}\""))
}
