//! `cargo xtask sim`: what the system does in computed time.

use std::path::{Path, PathBuf};

use crate::build::Build;
use crate::failure::Failure;

const USAGE: &str = "\
usage: cargo xtask sim clusters [--json FILE]

  clusters    how much of the ceiling each way to end a window reaches, on twelve clusters
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Sim {
    Help,
    Clusters { json: Option<PathBuf> },
}

/// Runs the command.
///
/// # Errors
///
/// A usage error; a simulation that fails or whose claims do not hold.
pub(crate) fn run(args: &[String]) -> Result<(), Failure> {
    match Sim::read(args)? {
        Sim::Help => print!("{USAGE}"),
        Sim::Clusters { json } => clusters(json.as_deref())?,
    }
    Ok(())
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
            [] => Err(Failure::usage(format!("what should be simulated?\n\n{USAGE}"))),
            _ => Err(Failure::usage(format!("`{}` is none of this\n\n{USAGE}", words.join(" ")))),
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
        for line in ["", "clusters --json", "clusters rows.json", "stars"] {
            assert!(read(line).is_err(), "{line}");
        }
    }
}
