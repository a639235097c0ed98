//! The agent alone: how ranks start, end, write, and are ended.

use crate::Case;
use crate::support::{LONG, Lines, config, processes_of, shell, until};
use flodl_relay::agent::{Agent, Event, Launch, Program};
use flodl_wire::message::report::ExitStatus;
use flodl_wire::secret::{RankKeys, Secret};
use flodl_wire::{HostId, Incarnation, Rank, RunId};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    ("agents::exits_are_told_with_code_or_signal_and_the_last_lines", exits),
    ("agents::output_goes_to_the_terminal_with_a_prefix_and_to_the_log", output),
    ("agents::a_program_that_is_not_there_is_told_in_a_sentence", missing),
    ("agents::keys_are_in_the_descriptor_and_nowhere_else", keys),
    ("agents::a_rank_leads_a_session_and_a_group_of_its_own", session),
    ("agents::killing_a_rank_or_its_own_end_takes_its_children_along", children),
    ("agents::a_dropped_agent_leaves_no_process", dropped),
    ("agents::a_stopped_guard_delays_no_end_and_is_not_left", stopped_guard),
    ("agents::a_killed_owner_leaves_no_process", killed_owner),
];

const LIFE: Incarnation = Incarnation(1);

fn rank_keys() -> RankKeys {
    let secret = Secret::from_bytes([7; 32]);
    let host = secret.host_key(RunId([1; 16]), HostId([2; 16]));
    RankKeys { rank_key: host.rank_key(Rank(0), LIFE), gate_key: secret.gate_key() }
}

fn launch(rank: u32) -> Launch {
    Launch {
        rank: Rank(rank),
        incarnation: LIFE,
        env: vec![("FLODL_RANK", rank.to_string().into())],
        keys: rank_keys(),
        shared: None,
    }
}

/// An agent with rank 0 started.
struct Started {
    agent: Agent,
    events: async_channel::Receiver<Event>,
    lines: Lines,
    directory: tempfile::TempDir,
}

impl Started {
    fn new(program: impl FnOnce(&Path) -> Program) -> Started {
        let directory = tempfile::tempdir().unwrap();
        let lines = Lines::default();
        let (sender, events) = async_channel::bounded(16);
        let program = program(directory.path());
        let agent = Agent::start(config(program, directory.path(), &lines), sender).unwrap();
        agent.launch(launch(0));
        Started { agent, events, lines, directory }
    }

    fn next(&self) -> Event {
        until("an event", LONG, || self.events.try_recv().ok())
    }

    fn exit(&self) -> (ExitStatus, String) {
        let started = self.next();
        assert!(matches!(started, Event::Started { .. }), "{started:?}");
        match self.next() {
            Event::Exited { rank: Rank(0), status, last_lines, .. } => (status, last_lines),
            other => panic!("{other:?}"),
        }
    }

    fn read(&self, name: &str) -> String {
        until(name, LONG, || {
            fs::read_to_string(self.directory.path().join(name)).ok().filter(|text| text.ends_with('\n'))
        })
    }
}

fn exits() {
    for (script, status, last) in [
        ("exit 0", ExitStatus::Code(0), ""),
        ("echo one; echo two >&2; exit 7", ExitStatus::Code(7), "one\ntwo"),
        ("echo bad luck; kill -ABRT $$", ExitStatus::Signal(6), "bad luck"),
    ] {
        let started = Started::new(|_| shell(script));
        assert_eq!(started.exit(), (status, last.to_owned()), "{script}");
    }
}

fn output() {
    let started = Started::new(|_| shell("echo rank $FLODL_RANK; echo loud >&2; printf 'no end'"));
    assert_eq!(started.exit().0, ExitStatus::Code(0));
    assert_eq!(started.lines.all(), ["rank 0 | rank 0", "rank 0 | loud", "rank 0 | no end"]);
    let log = fs::read_to_string(started.directory.path().join("rank0.log")).unwrap();
    assert_eq!(log, "rank 0\nloud\nno end", "unchanged");
    started.agent.launch(Launch { incarnation: Incarnation(2), ..launch(0) });
    until("the second life's lines", LONG, || (started.lines.all().len() == 6).then_some(()));
    let log = || fs::read_to_string(started.directory.path().join("rank0.log")).ok();
    until("the second life's log", LONG, || log().filter(|log| log.lines().count() == 6));
}

fn missing() {
    let started = Started::new(|_| Program::new("/no/such/trainer", ["x"]));
    match started.next() {
        Event::NotStarted { rank: Rank(0), error, .. } => {
            assert!(error.contains("/no/such/trainer") && error.contains("check the program's path"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

fn keys() {
    let script =
        "od -An -v -tx1 /proc/self/fd/$FLODL_KEY_FD | tr -d ' \\n'; echo; env; cat /proc/$$/cmdline | tr '\\0' ' '";
    let started = Started::new(|_| shell(script));
    let (status, _) = started.exit();
    assert_eq!(status, ExitStatus::Code(0));
    let hex: String = rank_keys().to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let lines = started.lines.all();
    assert_eq!(lines[0], format!("rank 0 | {hex}"));
    assert!(lines.len() > 3 && lines[1..].iter().all(|line| !line.contains(&hex[..16])), "{lines:?}");
}

fn session() {
    let started = Started::new(|_| shell("echo $$ $(cut -d' ' -f5,6 /proc/$$/stat)"));
    started.exit();
    let line = started.lines.all().remove(0);
    let ids: Vec<&str> = line.trim_start_matches("rank 0 | ").split(' ').collect();
    assert!(ids.len() == 3 && ids.iter().all(|id| *id == ids[0]), "process, group and session: {line}");
}

/// A rank that has a child of its own, and says so in files.
fn with_child(directory: &Path, then: &str) -> Program {
    let file = directory.join("child");
    shell(&format!("sleep 1000 & echo $! > {}; {then}", file.display()))
}

fn gone(id: &str) -> bool {
    // A zombie is gone too: it only waits for somebody to take notice.
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.is_empty() || stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X']))
}

fn children() {
    let started = Started::new(|directory| with_child(directory, "wait"));
    let child = started.read("child");
    started.agent.kill(Rank(0), Incarnation(9));
    assert!(!gone(child.trim()), "that was another life");
    started.agent.kill(Rank(0), LIFE);
    assert_eq!(started.exit().0, ExitStatus::Signal(9));
    until("the end of a killed rank's child", LONG, || gone(child.trim()).then_some(()));

    let started = Started::new(|directory| with_child(directory, "exit 3"));
    let child = started.read("child");
    assert_eq!(started.exit().0, ExitStatus::Code(3));
    until("the end of an ended rank's child", LONG, || gone(child.trim()).then_some(()));
}

fn dropped() {
    let started = Started::new(|directory| with_child(directory, "wait"));
    started.read("child");
    let Started { agent, directory, .. } = started;
    assert!(processes_of(directory.path()).len() >= 2, "guard and rank");
    drop(agent);
    until("no process left", Duration::from_secs(5), || processes_of(directory.path()).is_empty().then_some(()));
}

fn stopped_guard() {
    let started = Started::new(|directory| with_child(directory, "wait"));
    started.read("child");
    let Started { agent, directory, .. } = started;
    let is_guard = |id: &u32| fs::read(format!("/proc/{id}/cmdline")).is_ok_and(|line| contains(&line, b"as-guard"));
    let guard = processes_of(directory.path()).into_iter().find(is_guard).unwrap();
    let guard = Pid::from_raw(i32::try_from(guard).unwrap()).unwrap();
    kill_process(guard, Signal::STOP).unwrap();
    let start = Instant::now();
    drop(agent);
    assert!(start.elapsed() < Duration::from_secs(5), "took {:?}", start.elapsed());
    until("no process left", Duration::from_secs(5), || processes_of(directory.path()).is_empty().then_some(()));
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The life of an owner that will be killed: starts a rank and waits.
pub(crate) fn own(directory: &str) -> ExitCode {
    let directory = Path::new(directory);
    let (sender, events) = async_channel::bounded(16);
    let agent = Agent::start(config(with_child(directory, "wait"), directory, &Lines::default()), sender).unwrap();
    agent.launch(launch(0));
    loop {
        match events.recv_blocking() {
            Ok(Event::Started { .. }) => {}
            _ => return ExitCode::FAILURE,
        }
    }
}

fn killed_owner() {
    for _ in 0..5 {
        let directory = tempfile::tempdir().unwrap();
        let mut owner = start_owner(directory.path());
        let child = directory.path().join("child");
        until("the rank's child", LONG, || fs::read_to_string(&child).ok().filter(|text| text.ends_with('\n')));
        assert!(processes_of(directory.path()).len() >= 3, "owner, guard, rank");
        owner.kill().unwrap();
        owner.wait().unwrap();
        let left = || processes_of(directory.path());
        until("no process left", Duration::from_secs(5), || left().is_empty().then_some(()));
        let child = fs::read_to_string(&child).unwrap();
        until("no grandchild left", Duration::from_secs(5), || gone(child.trim()).then_some(()));
    }
}

fn start_owner(directory: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["as-owner", directory.to_str().unwrap()]).stdin(Stdio::null());
    command.spawn().unwrap()
}
