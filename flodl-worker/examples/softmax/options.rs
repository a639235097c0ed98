//! The example's command line.

use crate::faults::{self, Faults, number};
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
Trains multinomial logistic regression on handwritten digits. Start it under flodl:

    flodl run -n 3 -- softmax [OPTIONS]

Options:
    --data DIR       folder with the IDX files train-* and t10k-*, plain or .gz (default: the 10,000 digits of this example)
    --limit N        use the first N training samples only
    --lr RATE        learning rate at the start, a tenth of it at the end (default: 0.1)
    --help           print this
";

/// What the command line asks for.
pub(crate) struct Options {
    pub(crate) data: PathBuf,
    pub(crate) limit: usize,
    pub(crate) lr: f64,
    pub(crate) faults: Faults,
}

/// The options, or the exit status after the help or what is wrong was printed.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program talks to its user")]
pub(crate) fn parse() -> Result<Options, ExitCode> {
    if std::env::args().any(|argument| argument == "--help") {
        println!("{HELP}\n{}", faults::HELP);
        return Err(ExitCode::SUCCESS);
    }
    from(std::env::args().skip(1)).map_err(|message| {
        eprintln!("error: {message}");
        ExitCode::from(2)
    })
}

fn from(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let data = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/softmax/data"));
    let mut options = Options { data, limit: usize::MAX, lr: 0.1, faults: Faults::default() };
    while let Some(name) = args.next() {
        let value = args.next().ok_or_else(|| format!("{name} needs a value, or is unknown; --help lists the options"));
        match name.as_str() {
            "--data" => options.data = PathBuf::from(value?),
            "--lr" => options.lr = number(&name, &value?)?,
            "--limit" => options.limit = number(&name, &value?)?,
            _ if options.faults.take(&name, value)? => {}
            _ => return Err(format!("unknown option {name}; --help lists the options")),
        }
    }
    Ok(options)
}
