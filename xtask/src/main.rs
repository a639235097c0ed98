//! The project's own commands, run as `cargo xtask COMMAND`.
//!
//! They run cargo and the programs it builds and read what those print; no crate of flodl is linked in, so that the
//! commands compile in seconds and work while the rest does not. Read first: `train` (one command from a fresh clone
//! to a trained model), `tidy` (the rules of the repository as checks) and `ci` (everything, in order).

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program talks to a person")]

mod bench;
mod build;
mod cargo;
mod ci;
mod compare;
mod cuda;
mod disk;
mod failure;
mod fuzz;
mod licences;
mod setup;
mod sim;
mod summary;
mod tally;
mod test;
mod tidy;
mod train;

use std::process::ExitCode;

use failure::Failure;

const USAGE: &str = "\
usage: cargo xtask COMMAND [ARGS]

  train [OPTIONS]           build and train an example over three unequal ranks (train --help)
  setup [--print]           find libtorch, or fetch it (setup --help); train, test and bench do it themselves
  test [--fast] [-p CRATE] [-- ARGS]
                            run every test, or those that need no libtorch; the last line says how many passed,
                            failed and were skipped
  bench [NAME] [--json FILE] [--list]
                            run the benchmarks, or the one called NAME
  compare quality [--json FILE]
                            what averaging over unequal ranks costs in accuracy (compare quality --help)
  sim [OPTIONS]             run the whole system in virtual time, with faults (sim --help, docs/SIMULATOR.md)
  sim clusters [--json FILE]
                            compare ways to end a window on twelve clusters, in computed time
  fuzz [TARGET] [--seconds N] [--keep]
                            attack the parsers of flodl-wire, two targets at a time
  cuda-probe                say what this machine has for GPUs and NCCL, and which tests will run on it
  cuda-test                 run the tests that need one GPU, and count
  cuda-test-nccl            run those of NCCL, one process each, on the GPUs that there are
  cuda-test-all             run both (docs/CUDA.md)
  tidy                      check the rules of the repository
  ci [STAGE...]             everything a change must pass, or only the stages named (ci --list)
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let result = match command.as_str() {
        "train" => train::run(&rest),
        "setup" => setup::run(&rest),
        "test" => test::run(&rest),
        "bench" => bench::run(&rest),
        "sim" => sim::run(&rest),
        "compare" => compare::run(&rest),
        "fuzz" => fuzz::run(&rest),
        "cuda-probe" => cuda::probe(&rest),
        "cuda-test" => cuda::test(&rest, cuda::Tier::Device, "cuda-test"),
        "cuda-test-nccl" => cuda::test(&rest, cuda::Tier::Nccl, "cuda-test-nccl"),
        "cuda-test-all" => cuda::test(&rest, cuda::Tier::All, "cuda-test-all"),
        "tidy" => tidy::run(&rest),
        "ci" => ci::run(&rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(())
        }
        "" => Err(Failure::usage(format!("a command is missing\n\n{USAGE}"))),
        other => Err(Failure::usage(format!("unknown command `{other}`\n\n{USAGE}"))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(message) = failure.message() {
                eprintln!("xtask: {message}");
            }
            ExitCode::from(failure.status())
        }
    }
}
