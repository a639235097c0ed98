//! Averages a vector among ranks that train nothing, again and again, and says how long that takes: ranks as processes with
//! the real worker, relay and root in this process as `flodl run` has them, and in the coordinator's place a script that
//! gives its orders: a window of one step, a round, its commit.
//!
//! ```text
//! reduce --ranks 4 --bytes 1024,67108864 --seconds 3 [--no-shm]
//! ```
//!
//! One JSON object a line for each number of bytes. A rank's time is from the first look at its tensors in a round to the
//! last tensor written with the committed average; a round takes as long as its slowest rank. CPU seconds are those of all
//! processes, the steps and orders between rounds included.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "it is a program that people and `cargo xtask bench` read"
)]

mod host;
mod rank;

use std::error::Error;
use std::process::ExitCode;

/// What is asked for.
#[derive(Clone, Debug)]
struct Options {
    ranks: u32,
    bytes: Vec<u64>,
    /// About how long each number of bytes is measured.
    seconds: f64,
    shares_memory: bool,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("as-guard") => return flodl_relay::agent::guard_main(),
        Some("as-rank") => return rank::main(args.get(1).and_then(|bytes| bytes.parse().ok()).unwrap_or(4)),
        _ => {}
    }
    let done = options(&args).and_then(|options| {
        options.bytes.iter().try_for_each(|&bytes| host::measure(&options, bytes).map(|row| println!("{row}")))
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("reduce: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options(args: &[String]) -> Result<Options, Box<dyn Error>> {
    let mut options = Options { ranks: 4, bytes: vec![1 << 26], seconds: 3.0, shares_memory: true };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--ranks" => options.ranks = value()?.parse()?,
            "--bytes" => options.bytes = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--seconds" => options.seconds = value()?.parse()?,
            "--no-shm" => options.shares_memory = false,
            other => return Err(format!("there is no option {other}").into()),
        }
    }
    Ok(options)
}
