//! A folder, the programs, and their processes: everything a test starts is gone when it ends.

use flodl_monitor::Summary;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// No command of these tests takes anywhere near so long, even on a busy machine.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);
/// The variable by which all processes of one test are found.
const MARK: &str = "FLODL_TEST_FOLDER";

/// What stands behind `--`.
pub(crate) enum Program<'a> {
    /// Nothing.
    None,
    /// The trainer of these tests with these arguments.
    Trainer(&'a str),
    /// A script of the world that gets the trainer and these arguments.
    Script(&'a str, &'a str),
    /// Another program with these arguments.
    Other(&'a Path, &'a str),
}

/// One test's own world.
pub(crate) struct World {
    folder: TempDir,
}

impl World {
    pub(crate) fn new() -> World {
        World { folder: tempfile::tempdir().expect("a temporary folder can be made") }
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `flodl` with arguments split at white space, in this world's folder.
    pub(crate) fn flodl(&self, line: &str) -> Running {
        self.start(self.command(line, &Program::None), line)
    }

    /// The same; behind `--` stands the trainer of these tests with `trainer` as its arguments.
    pub(crate) fn train(&self, line: &str, trainer: &str) -> Running {
        self.start(self.command(line, &Program::Trainer(trainer)), line)
    }

    /// The same, started by the script called `script`, which gets the trainer and its arguments.
    pub(crate) fn train_by(&self, script: &str, line: &str, trainer: &str) -> Running {
        self.start(self.command(line, &Program::Script(script, trainer)), line)
    }

    /// The same with another program behind `--`.
    pub(crate) fn run_with(&self, program: &Path, line: &str, args: &str) -> Running {
        self.start(self.command(line, &Program::Other(program, args)), line)
    }

    /// A script in this world's folder, with this content.
    pub(crate) fn script(&self, name: &str, content: &str) {
        let path = self.path(name);
        fs::write(&path, content).expect("is writable");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("can be set");
    }

    /// `flodl` that may hold so many descriptors.
    pub(crate) fn flodl_with_descriptors(&self, most: u32, line: &str) -> Running {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("ulimit -n {most}; exec \"$0\" \"$@\"")).arg(env!("CARGO_BIN_EXE_flodl"));
        command.args(line.split_whitespace());
        self.start(command, line)
    }

    /// `flodl` in this world, with nothing to read and nobody who reads.
    pub(crate) fn command(&self, line: &str, program: &Program<'_>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flodl"));
        command.args(line.split_whitespace()).current_dir(self.folder.path()).env(MARK, self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let args = match *program {
            Program::None => return command,
            Program::Trainer(args) => {
                command.arg("--").arg(trainer_path());
                args
            }
            Program::Script(script, args) => {
                command.arg("--").arg(self.path(script)).arg(trainer_path());
                args
            }
            Program::Other(program, args) => {
                command.arg("--").arg(program);
                args
            }
        };
        command.args(args.split_whitespace());
        command
    }

    /// Starts a command in this world's folder, its output going to files.
    pub(crate) fn start(&self, mut command: Command, line: &str) -> Running {
        let n = (0..).find(|n| !self.path(format!("out-{n}")).exists()).expect("some number is free");
        let (out, err) = (self.path(format!("out-{n}")), self.path(format!("err-{n}")));
        command.current_dir(self.folder.path()).env(MARK, self.folder.path());
        command.stdin(Stdio::null()).stdout(File::create(&out).expect("is writable"));
        command.stderr(File::create(&err).expect("is writable"));
        let child = command.spawn().expect("flodl can be started");
        Running { child, out, err, line: line.to_owned() }
    }

    /// The summary in a file of this world.
    pub(crate) fn summary(&self, name: &str) -> Summary {
        let path = self.path(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Every process that was started by or under a command of this world, with its environment.
    pub(crate) fn processes(&self) -> Vec<(i32, String)> {
        let mark = format!("{MARK}={}", self.folder.path().display());
        let entries = fs::read_dir("/proc").expect("these tests need /proc");
        let pid = |entry: fs::DirEntry| entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        let environment = |pid: i32| {
            let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
            Some((pid, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let marked = |(_, text): &(i32, String)| text.split('\0').any(|variable| variable == mark);
        entries.filter_map(|entry| entry.ok().and_then(pid)).filter_map(environment).filter(marked).collect()
    }

    /// The process of a rank.
    pub(crate) fn rank(&self, rank: u32) -> Option<i32> {
        let variable = format!("FLODL_RANK={rank}");
        let is_it = |(_, text): &&(i32, String)| text.split('\0').any(|found| found == variable);
        self.processes().iter().find(is_it).map(|(pid, _)| *pid)
    }

    /// Shows what every command said, for whoever looks into a failure.
    fn tell(&self) {
        for n in (0..).take_while(|n| self.path(format!("out-{n}")).exists()) {
            for stream in ["out", "err"] {
                let text = fs::read_to_string(self.path(format!("{stream}-{n}"))).unwrap_or_default();
                println!("---- command {n}, {stream}:\n{text}");
            }
        }
    }

    /// That every process of this world is gone within `time`.
    pub(crate) fn empties_within(&self, time: Duration) {
        let empty = poll(time, || self.processes().is_empty().then_some(()));
        let left: Vec<_> = self.processes().iter().map(|(pid, _)| command_line(*pid)).collect();
        assert!(empty.is_some(), "still there after {time:?}: {left:#?}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tell();
        }
        for (pid, _) in self.processes() {
            signal(pid, rustix::process::Signal::KILL);
        }
    }
}

fn command_line(pid: i32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    format!("{pid}: {}", String::from_utf8_lossy(&bytes).replace('\0', " "))
}

/// The trainer of these tests: the example `trainer` of this package, which the same `cargo test` has built.
fn trainer_path() -> PathBuf {
    example("trainer")
}

/// One of the package's example programs.
pub(crate) fn example(name: &str) -> PathBuf {
    let programs = Path::new(env!("CARGO_BIN_EXE_flodl")).parent().expect("is in a folder");
    let path = programs.join("examples").join(name);
    assert!(path.exists(), "{} is not built: run `cargo test -p flodl-coord --features cli`", path.display());
    path
}

/// A command that was started.
pub(crate) struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
    line: String,
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Running {
    pub(crate) fn id(&self) -> i32 {
        i32::try_from(self.child.id()).expect("process ids are small")
    }

    /// What it has said on standard error so far.
    pub(crate) fn err(&self) -> String {
        fs::read_to_string(&self.err).expect("is readable")
    }

    /// Waits until its standard error holds `part`.
    pub(crate) fn says(&mut self, part: &str) -> &mut Running {
        self.says_times(part, 1)
    }

    /// The same, so many times.
    pub(crate) fn says_times(&mut self, part: &str, times: usize) -> &mut Running {
        let said = poll(LONGEST, || {
            let ended = self.child.try_wait().expect("can be waited for");
            let said = self.err().matches(part).count() >= times;
            (said || ended.is_some()).then_some(said)
        });
        assert_eq!(said, Some(true), "`flodl {}` never said {part:?}: {}", self.line, self.err());
        self
    }

    pub(crate) fn signal(&self, which: rustix::process::Signal) {
        signal(self.id(), which);
    }

    /// Waits for its end, which is still to be taken; the most memory that it had resident until then, in kB.
    pub(crate) fn most_memory(&mut self) -> u64 {
        let status = format!("/proc/{}/status", self.id());
        let mut most = 0;
        let ended = poll(LONGEST, || {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            most = most.max(line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0));
            self.child.try_wait().expect("can be waited for")
        });
        assert!(ended.is_some() && most > 0, "`flodl {}`: {}", self.line, self.err());
        most
    }

    /// Waits for its end.
    pub(crate) fn ends(mut self) -> Ended {
        let status = poll(LONGEST, || self.child.try_wait().expect("can be waited for"));
        let read = |path| fs::read_to_string(path).expect("is readable");
        let Some(status) = status else {
            self.child.kill().expect("can be killed");
            panic!("`flodl {}` does not end: {}", self.line, self.err());
        };
        Ended { status, out: read(&self.out), err: read(&self.err) }
    }

    /// Waits for its end with this status.
    pub(crate) fn exits(self, code: i32) -> Ended {
        let line = self.line.clone();
        let ended = self.ends();
        assert_eq!(ended.status.code(), Some(code), "`flodl {line}`\n{}\n{}", ended.out, ended.err);
        ended
    }
}

impl Ended {
    /// That one of its lines on standard error holds all of `parts`.
    pub(crate) fn said(&self, parts: &[&str]) -> &Ended {
        let found = self.err.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(found, "no line with {parts:?} in\n{}", self.err);
        self
    }
}

pub(crate) fn signal(pid: i32, which: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid).expect("is no zero");
    // It may have ended by itself in the meantime.
    rustix::process::kill_process(pid, which).ok();
}

/// Asks again and again until there is an answer or `time` is over.
pub(crate) fn poll<T>(time: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + time;
    loop {
        match ask() {
            Some(answer) => return Some(answer),
            None if Instant::now() >= end => return None,
            None => sleep(Duration::from_millis(20)),
        }
    }
}

/// Says that this test is skipped, straight to the stream: the harness would keep what a passing test prints to itself.
pub(crate) fn skipped(why: &str) {
    io::stderr().write_all(format!("skipped: {why}\n").as_bytes()).ok();
}
