//! The person's Python: pip, and the helper that downloads and unpacks with Python's own library.
//!
//! What speaks HTTP and reads zip files is there wherever pip is, so these commands need no crate for either.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::Value;

use crate::failure::Failure;

/// See the head of the file.
const HELPER: &str = include_str!("helper.py");

/// The Python to call.
#[derive(Debug, Clone)]
pub(super) struct Python {
    program: &'static str,
}

impl Default for Python {
    /// The one of the active environment comes first on the PATH under this name.
    fn default() -> Self {
        Self { program: "python3" }
    }
}

/// What is wrong, as the helper tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The server wants to know who asks.
    Denied,
    /// Nobody answers, or not to the end.
    Network,
    /// The disk is full.
    Space,
    /// A file cannot be written.
    Write,
    /// A file is not what it should be.
    Checksum,
    /// A wheel cannot be read.
    Wheel,
    /// Python did not start, or ended without an answer.
    Python,
}

/// Why the helper has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Trouble {
    /// What kind of trouble.
    pub(super) kind: Kind,
    /// What happened, for the end of a sentence.
    pub(super) detail: String,
}

impl Trouble {
    fn python(detail: impl Into<String>) -> Self {
        Self { kind: Kind::Python, detail: detail.into() }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (detail, again) = (&self.detail, "run `cargo xtask setup` again");
        match self.kind {
            Kind::Denied => {
                write!(f, "the package server refuses the download ({detail}): see to pip's settings for it")
            }
            Kind::Network => {
                write!(f, "the download stopped ({detail}): check the network and {again}, it goes on from there")
            }
            Kind::Space => write!(f, "the disk is full ({detail}): free some space, or name another FLODL_CACHE"),
            Kind::Write => write!(f, "cannot write to the cache ({detail}): name another folder with FLODL_CACHE"),
            Kind::Checksum => {
                write!(f, "a wheel was not what the package server announced ({detail}) and was removed: {again}")
            }
            Kind::Wheel => write!(f, "a wheel cannot be read ({detail}): {again}"),
            Kind::Python => {
                write!(f, "python3 does not answer ({detail}): install Python 3.10 or newer, or set LIBTORCH")
            }
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        Self::failed(trouble.to_string())
    }
}

/// A line of the helper.
#[derive(Debug, Clone, PartialEq)]
enum Said {
    Progress(u64, u64),
    Value(Value),
    Trouble(Trouble),
}

impl Said {
    fn parse(line: &str) -> Option<Self> {
        let (word, rest) = line.split_once(' ')?;
        match word {
            "progress" => {
                let (done, total) = rest.split_once(' ')?;
                Some(Self::Progress(done.parse().ok()?, total.parse().ok()?))
            }
            "value" => serde_json::from_str(rest).ok().map(Self::Value),
            "trouble" => {
                let (kind, detail) = rest.split_once(' ').unwrap_or((rest, ""));
                let kind = match kind {
                    "denied" => Kind::Denied,
                    "network" => Kind::Network,
                    "space" => Kind::Space,
                    "checksum" => Kind::Checksum,
                    "wheel" => Kind::Wheel,
                    _ => Kind::Write,
                };
                Some(Self::Trouble(Trouble { kind, detail: detail.to_owned() }))
            }
            _ => None,
        }
    }
}

/// Told how much is done, and of how much, in bytes.
pub(super) type OnProgress<'a> = &'a mut dyn FnMut(u64, u64);

impl Python {
    /// A command that starts it.
    pub(super) fn command(&self) -> Command {
        Command::new(self.program)
    }

    /// The folder of its package `torch`; `None` where there is no Python or no such package.
    pub(super) fn torch(&self) -> Option<PathBuf> {
        let value = self.ask(&["torch"], "", &mut |_, _| {}).ok()?;
        value.as_str().map(PathBuf::from)
    }

    /// Runs a verb of the helper with these lines on its standard input.
    ///
    /// # Errors
    ///
    /// What the helper says, or that it does not.
    pub(super) fn ask(&self, args: &[&str], input: &str, on_progress: OnProgress<'_>) -> Result<Value, Trouble> {
        let mut child = self
            .command()
            .args(["-c", HELPER])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| Trouble::python(error.to_string()))?;
        let stdin = child.stdin.take();
        let answer = std::thread::scope(|scope| {
            // Written beside the reading, so that neither side waits for the other with a full pipe. A helper that ends
            // before it has read everything says why, and the writer's error adds nothing to that.
            scope.spawn(|| write_all(stdin, input));
            read_answer(&mut child, on_progress)
        });
        let output = child.wait_with_output().map_err(|error| Trouble::python(error.to_string()))?;
        match answer {
            Some(answer) => answer,
            None => {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("no reason given");
                Err(Trouble::python(format!("{}, {last}", output.status)))
            }
        }
    }
}

fn write_all(stdin: Option<ChildStdin>, input: &str) -> std::io::Result<()> {
    stdin.map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()))
}

/// Reads to the end of the output; the last value or trouble is the answer.
fn read_answer(child: &mut Child, on_progress: OnProgress<'_>) -> Option<Result<Value, Trouble>> {
    let mut answer = None;
    for line in BufReader::new(child.stdout.take()?).lines() {
        match Said::parse(&line.ok()?) {
            Some(Said::Progress(done, total)) => on_progress(done, total),
            Some(Said::Value(value)) => answer = Some(Ok(value)),
            Some(Said::Trouble(trouble)) => answer = Some(Err(trouble)),
            None => {}
        }
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helpers_lines_are_read() {
        let trouble = |kind, detail: &str| Some(Said::Trouble(Trouble { kind, detail: detail.to_owned() }));
        let cases = [
            ("progress 5 10", Some(Said::Progress(5, 10))),
            ("progress -5 10", None),
            ("value null", Some(Said::Value(Value::Null))),
            ("value \"/a b\"", Some(Said::Value("/a b".into()))),
            ("value {", None),
            ("trouble denied the server answered 401", trouble(Kind::Denied, "the server answered 401")),
            ("trouble checksum", trouble(Kind::Checksum, "")),
            ("trouble new-kind x", trouble(Kind::Write, "x")),
            ("hello", None),
            ("", None),
        ];
        for (line, expected) in cases {
            assert_eq!(Said::parse(line), expected, "line: {line}");
        }
    }

    #[test]
    fn a_missing_python_is_a_sentence() {
        let python = Python { program: "no-such-python-anywhere" };
        let trouble = python.ask(&["torch"], "", &mut |_, _| {}).expect_err("there is none");
        assert_eq!(trouble.kind, Kind::Python);
        assert!(trouble.to_string().contains("install Python"), "{trouble}");
        assert_eq!(python.torch(), None);
    }
}
