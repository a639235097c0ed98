//! `cargo xtask sim`: what the system does in computed time.
//!
//! `clusters` is the scheduler alone; everything else goes to `flodl-sim`, the simulator of the whole system.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::build::{Build, Executable};
use crate::failure::Failure;

const USAGE: &str = "\
usage: cargo xtask sim [OPTIONS]
       cargo xtask sim ceiling [--json FILE]
       cargo xtask sim clusters [--json FILE]

              the whole system with faults: the options are those of flodl-sim, below
  ceiling     how near to its ceiling the whole system comes in a simulated hour, on three clusters
  clusters    how much of the ceiling each way to end a window reaches, on twelve clusters (the scheduler alone)
";

const FLODL_SIM: Executable = Executable { package: "flodl-coord", kind: "--bin", name: "flodl-sim", features: "sim" };

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Sim {
    Help,
    Clusters {
        json: Option<PathBuf>,
    },
    /// The simulator, with these arguments.
    System(Vec<String>),
}

/// Runs the command.
///
/// # Errors
///
/// A usage error; a simulation that fails or whose claims do not hold.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    match Sim::read(args)? {
        Sim::Help => {
            println!("{USAGE}");
            system(&["--help".to_owned()])?;
        }
        Sim::System(args) => system(&args)?,
        Sim::Clusters { json } => clusters(json.as_deref())?,
    }
    Ok(())
}

/// Builds the simulator and runs it; its exit status is 1 where a rule was broken.
fn system(args: &[String]) -> Result<(), Failure> {
    let program = Build::without_libtorch().executable(FLODL_SIM)?;
    let status = Command::new(&program)
        .args(args)
        .status()
        .map_err(|error| Failure::failed(format!("cannot start {}: {error}", program.display())))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(Failure::Status(u8::try_from(code).unwrap_or(1))),
        None => Err(Failure::failed(format!("the simulator was ended: {status}"))),
    }
}

fn clusters(json: Option<&Path>) -> Result<(), Failure> {
    let mut args = vec!["run", "--quiet", "--package", "flodl-elche", "--example", "clusters", "--"];
    // Cargo runs at the root of the repository, whoever calls from where.
    let file = json.map(std::path::absolute).transpose();
    let file = file.map_err(|error| Failure::failed(format!("the file of --json has no path: {error}")))?;
    let file = file.as_deref().map(|file| file.to_str().ok_or_else(|| Failure::usage("--json: not a name in UTF-8")));
    if let Some(file) = file.transpose()? {
        args.extend(["--json", file]);
    }
    if Build::without_libtorch().status(&args)?.success() {
        Ok(())
    } else {
        Err(Failure::failed("the comparison of clusters failed, see above"))
    }
}

impl Sim {
    fn read(args: &[String]) -> Result<Self, Failure> {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        match words[..] {
            ["--help" | "-h"] => Ok(Self::Help),
            ["clusters"] => Ok(Self::Clusters { json: None }),
            ["clusters", "--json", file] => Ok(Self::Clusters { json: Some(PathBuf::from(file)) }),
            ["clusters", ..] => Err(Failure::usage(format!("`{}` is none of this\n\n{USAGE}", words.join(" ")))),
            _ => Ok(Self::System(args.to_vec())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_read() {
        let read = |line: &str| Sim::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        let file = Some(PathBuf::from("rows.json"));
        assert_eq!(read("clusters").ok(), Some(Sim::Clusters { json: None }));
        assert_eq!(read("clusters --json rows.json").ok(), Some(Sim::Clusters { json: file }));
        assert_eq!(read("--help").ok(), Some(Sim::Help));
        for line in ["clusters --json", "clusters rows.json"] {
            assert!(read(line).is_err(), "{line}");
        }
        let system = |words: &[&str]| Some(Sim::System(words.iter().map(|&word| word.to_owned()).collect()));
        assert_eq!(read("--seed 3").ok(), system(&["--seed", "3"]));
        assert_eq!(read("").ok(), system(&[]));
    }
}
