//! `cargo xtask compare`: whole trainings, side by side.

mod quality;
mod record;
mod statistics;

use crate::failure::Failure;

const USAGE: &str = "\
usage: cargo xtask compare quality [OPTIONS]

  quality     what averaging over unequal ranks costs in accuracy, against one rank alone with the same samples
";

/// Runs the command.
///
/// # Errors
///
/// A usage error; a build or a run that fails; a bound that is not met.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    match args.split_first() {
        Some((name, rest)) if name == "quality" => quality::run(rest),
        Some((name, _)) if name == "--help" => {
            println!("{USAGE}");
            Ok(())
        }
        Some((other, _)) => Err(Failure::usage(format!("there is no comparison `{other}`\n\n{USAGE}"))),
        None => Err(Failure::usage(format!("a comparison is missing\n\n{USAGE}"))),
    }
}
