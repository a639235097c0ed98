//! What the cases share: programs, a sink that remembers, and polling with a deadline.

use flodl_relay::agent::{AgentConfig, Program, RankSink, Sink};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take that is expected to happen.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// This program, as one of its helpers.
pub(crate) fn this_program(args: &[&str]) -> Program {
    Program::new(std::env::current_exe().unwrap(), args)
}

/// A shell script.
pub(crate) fn shell(script: &str) -> Program {
    Program::new("/bin/sh", ["-c", script])
}

/// Lines that a sink took.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    pub(crate) fn sink(&self) -> Sink {
        let lines = self.clone();
        Arc::new(move |line| lines.0.lock().unwrap().push(line.to_owned()))
    }

    pub(crate) fn rank_sink(&self) -> RankSink {
        let lines = self.clone();
        Arc::new(move |rank, line| lines.0.lock().unwrap().push(format!("{rank} | {line}")))
    }

    pub(crate) fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// The directory is in the guard's arguments too, so that [`processes_of`] finds it.
pub(crate) fn config(program: Program, directory: &Path, lines: &Lines) -> AgentConfig {
    let guard = this_program(&["as-guard", directory.to_str().unwrap()]);
    AgentConfig { program, guard, run_dir: directory.to_owned(), sink: lines.sink(), shown: Some(lines.rank_sink()) }
}

/// Waits until `ready` gives something.
pub(crate) fn until<T>(what: &str, within: Duration, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(start.elapsed() < within, "{what}: not within {within:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Ids of processes that have `directory` in their arguments or environment, zombies excepted.
pub(crate) fn processes_of(directory: &Path) -> Vec<u32> {
    let needle = directory.to_str().unwrap().as_bytes();
    let mentions = |path: String| {
        std::fs::read(path).is_ok_and(|bytes| bytes.windows(needle.len()).any(|window| window == needle))
    };
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    ids.filter(|&id| id != std::process::id())
        .filter(|id| mentions(format!("/proc/{id}/cmdline")) || mentions(format!("/proc/{id}/environ")))
        .collect()
}
