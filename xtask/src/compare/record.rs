//! The file of a comparison: every run that is done, so that one that was interrupted goes on.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::failure::Failure;

/// One run: how it was asked for, and what its evaluations found.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Run {
    /// Who trained.
    pub(super) side: String,
    pub(super) rate: f64,
    pub(super) seed: u64,
    /// Test accuracy after each epoch, 0 to 1.
    pub(super) accuracy: Vec<f64>,
    pub(super) seconds: f64,
}

/// The runs that are done, and where they are written down.
#[derive(Debug)]
pub(super) struct Record {
    file: Option<PathBuf>,
    settings: Value,
    runs: Vec<Run>,
    result: Value,
}

impl Record {
    /// What the file holds of a comparison with these settings; nothing where there is no file yet.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or is of other settings.
    pub(super) fn open(file: Option<&Path>, settings: Value) -> Result<Record, Failure> {
        let mut record = Record { file: file.map(Path::to_owned), settings, runs: Vec::new(), result: Value::Null };
        let Some(path) = file.filter(|path| path.exists()) else { return Ok(record) };
        let unread = |error: String| Failure::failed(format!("{}: {error}", path.display()));
        let text = std::fs::read(path).map_err(|error| unread(error.to_string()))?;
        let kept: Value = serde_json::from_slice(&text).map_err(|error| unread(error.to_string()))?;
        if kept["settings"] != record.settings {
            let text = format!(
                "{} is of another comparison ({}, and this one is {}): name another file",
                path.display(),
                kept["settings"],
                record.settings
            );
            return Err(Failure::usage(text));
        }
        let runs = kept["runs"].as_array().ok_or_else(|| unread("it holds no runs".to_owned()))?;
        record.runs = runs
            .iter()
            .map(|run| read(run).ok_or_else(|| unread(format!("this is no run: {run}"))))
            .collect::<Result<_, _>>()?;
        Ok(record)
    }

    /// The run asked for so, where it is done.
    pub(super) fn find(&self, side: &str, rate: f64, seed: u64) -> Option<&Run> {
        self.runs.iter().find(|run| (run.side.as_str(), run.rate, run.seed) == (side, rate, seed))
    }

    /// Another one is done.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub(super) fn add(&mut self, run: Run) -> Result<(), Failure> {
        self.runs.push(run);
        self.write()
    }

    /// What all of them come to.
    ///
    /// # Errors
    ///
    /// A file that cannot be written.
    pub(super) fn conclude(&mut self, result: Value) -> Result<(), Failure> {
        self.result = result;
        self.write()
    }

    fn write(&self) -> Result<(), Failure> {
        let Some(path) = &self.file else { return Ok(()) };
        let run = |run: &Run| {
            json!({ "side": run.side, "rate": run.rate, "seed": run.seed, "accuracy": run.accuracy,
                    "seconds": run.seconds })
        };
        let runs: Vec<Value> = self.runs.iter().map(run).collect();
        let value = json!({ "settings": self.settings, "result": self.result, "runs": runs });
        // A file that is half written would lose every run before.
        let new = path.with_extension("new");
        std::fs::write(&new, format!("{value:#}\n"))
            .and_then(|()| std::fs::rename(&new, path))
            .map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
    }
}

fn read(run: &Value) -> Option<Run> {
    Some(Run {
        side: run["side"].as_str()?.to_owned(),
        rate: run["rate"].as_f64()?,
        seed: run["seed"].as_u64()?,
        accuracy: run["accuracy"].as_array()?.iter().map(Value::as_f64).collect::<Option<_>>()?,
        seconds: run["seconds"].as_f64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-record-{}-{name}.json", std::process::id()))
    }

    #[test]
    fn what_is_done_is_there_when_it_goes_on() {
        let path = file("resumed");
        let run = Run { side: "alone".to_owned(), rate: 0.02, seed: 3, accuracy: vec![0.5, 0.75], seconds: 1.5 };
        let mut record = Record::open(Some(&path), json!({ "epochs": 2 })).expect("nothing is there yet");
        record.add(run.clone()).expect("is writable");
        let mut again = Record::open(Some(&path), json!({ "epochs": 2 })).expect("is the same comparison");
        assert_eq!(again.find("alone", 0.02, 3), Some(&run));
        assert_eq!(again.find("alone", 0.02, 4), None);
        again.conclude(json!({ "loss": 0.1 })).expect("is writable");
        let other = Record::open(Some(&path), json!({ "epochs": 8 })).expect_err("is another comparison");
        assert_eq!(other.status(), 2);
        std::fs::write(&path, "{").expect("is writable");
        assert_eq!(Record::open(Some(&path), json!({})).expect_err("is damaged").status(), 1);
        std::fs::remove_file(&path).expect("is there");
    }
}
