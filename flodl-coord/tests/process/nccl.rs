//! Runs whose ranks average over NCCL: real processes on the stand-in of flodl-nccl, which is found as the real library and
//! driver would be.

#[path = "../../../flodl-nccl/tests/common/compile.rs"]
mod compile;

use crate::harness::{Program, Running, World, signal};
use crate::joins::ticket;
use crate::losses::{commits, survives_a_kill};
use crate::runs::{FILES, names_its_model};
use flodl_monitor::Summary;
use rustix::process::Signal;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A step that lasts, so that there is something to disturb.
const STEPS: &str = "--batch-size 16 --step-ms 2";

/// A world whose machine has GPUs and NCCL, as far as its programs can tell.
struct Rig(World);

impl Rig {
    fn new() -> Rig {
        let world = World::new();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../flodl-nccl/tests/stand_in");
        let path = compile::compile(Path::new(env!("CARGO_TARGET_TMPDIR")), &sources, None);
        let folder = world.path("libraries");
        std::fs::create_dir(&folder).expect("is writable");
        for name in ["libcuda.so.1", "libnccl.so.2"] {
            symlink(&path, folder.join(name)).expect("is writable");
        }
        Rig(world)
    }

    fn command(&self, line: &str, program: &Program<'_>) -> Command {
        let mut command = self.0.command(line, program);
        command.env("LD_LIBRARY_PATH", self.0.path("libraries")).env_remove("FLODL_NCCL");
        command
    }

    fn train(&self, line: &str, trainer: &str) -> Running {
        self.0.start(self.command(line, &Program::Trainer(trainer)), line)
    }

    /// The same, where the library of rank `rank` does wrong.
    fn train_with_fault(&self, line: &str, trainer: &str, (rank, faults): (u32, &str)) -> Running {
        let script = format!(
            "#!/bin/sh\nif [ \"$FLODL_RANK\" = {rank} ]; then export STAND_IN_FAULTS={faults}; fi\nexec \"$@\"\n"
        );
        self.0.script("faulty", &script);
        self.0.start(self.command(line, &Program::Script("faulty", trainer)), line)
    }

    fn empties(&self) {
        self.0.empties_within(Duration::from_secs(15));
    }
}

fn is_whole(summary: &Summary, samples: u64) {
    assert_eq!((summary.samples_committed, summary.samples_expected), (samples, Some(samples)), "{summary:#?}");
    assert_eq!(summary.digests_equal, Some(true), "{summary:#?}");
}

#[test]
fn ranks_average_over_nccl_in_lockstep_and_by_cadence_with_equal_bits() {
    for mode in ["nccl-sync", "nccl-cadence"] {
        let rig = Rig::new();
        let run = rig.train(&format!("run -n 3 --mode {mode} --epochs 3 {STEPS} {FILES}"), "--samples 800");
        let ended = run.exits(0);
        let summary = rig.0.summary("summary.json");
        is_whole(&summary, 2400);
        assert_eq!((summary.degraded, summary.deaths.len(), summary.repeats), (false, 0, 0), "{mode}");
        assert!(summary.accuracy.is_some_and(|accuracy| accuracy >= 0.85), "{mode}: {:?}", summary.accuracy);
        names_its_model(&ended, summary.version);
        rig.empties();
    }
}

#[test]
fn unequal_ranks_average_over_nccl_by_what_they_trained() {
    let rig = Rig::new();
    let line = format!("run -n 2 --mode nccl-cadence --epochs 4 --slow 1=3 {STEPS} {FILES}");
    rig.train(&line, "--samples 800").exits(0);
    let summary = rig.0.summary("summary.json");
    is_whole(&summary, 3200);
    let shares: Vec<u64> = summary.per_rank.iter().map(|rank| rank.committed).collect();
    assert!(shares[0] > shares[1], "{shares:?}");
    rig.empties();
}

#[test]
fn a_killed_rank_costs_a_communicator_and_its_samples_go_to_others() {
    let rig = Rig::new();
    let line = format!("run -n 3 --mode nccl-cadence --epochs 60 --patience 4 {STEPS} {FILES}");
    let run = rig.train(&line, "--samples 800");
    survives_a_kill(&rig.0, run, 48_000);
}

#[test]
fn more_losses_than_allowed_save_and_stop() {
    let rig = Rig::new();
    let line = format!("run -n 3 --mode nccl-cadence --epochs 1000 --patience 4 --max-failure 10% {STEPS} {FILES}");
    let run = rig.train(&line, "--samples 800");
    commits(&rig.0, 3);
    signal(rig.0.rank(1).expect("is running"), Signal::KILL);
    let ended = run.ends();
    let summary = rig.0.summary("summary.json");
    assert!(ended.status.code().is_some_and(|code| code != 0), "{ended:?}");
    assert!(summary.version >= Some(3), "{summary:#?}");
    names_its_model(&ended, summary.version);
    rig.empties();
}

#[test]
fn a_host_that_is_asked_to_end_leaves_between_two_communicators() {
    let rig = Rig::new();
    let line = format!("serve -n 2 --mode nccl-cadence --epochs 60 {STEPS} {FILES}");
    let mut serve = rig.0.start(rig.command(&line, &Program::None), &line);
    serve.says("waiting for hosts");
    ticket(&rig.0, "a");
    ticket(&rig.0, "b");
    let a = rig.train("join --ticket ticket-a -n 1", "--samples 800");
    let b = rig.train("join --ticket ticket-b -n 1", "--samples 800");
    serve.says("the run starts with");
    b.signal(Signal::TERM);
    b.exits(0).said(&["leaving"]);
    serve.exits(0);
    a.exits(0);
    let summary = rig.0.summary("summary.json");
    assert_eq!((summary.samples_committed, summary.repeats, summary.deaths.len()), (48_000, 0, 0));
    rig.empties();
}

#[test]
fn a_slow_rank_is_waited_for() {
    let rig = Rig::new();
    // Each collective of its first communicator begins late.
    let line = format!("run -n 2 --mode nccl-cadence --epochs 1 --patience 2 {STEPS} {FILES}");
    rig.train_with_fault(&line, "--samples 400", (1, "0:4:0:60")).exits(0);
    is_whole(&rig.0.summary("summary.json"), 400);
    rig.empties();
}

#[test]
fn a_rank_whose_library_is_stuck_is_lost_and_the_others_go_on() {
    let rig = Rig::new();
    // An abort that never returns, after a collective that never ends.
    let line = format!("run -n 3 --mode nccl-cadence --epochs 60 --patience 2 {STEPS} {FILES}");
    let run = rig.train_with_fault(&line, "--samples 800", (2, "0:5:0:0"));
    commits(&rig.0, 3);
    signal(rig.0.rank(1).expect("is running"), Signal::KILL);
    let ended = run.exits(3);
    ended.said(&["rank 2", "75"]);
    let summary = rig.0.summary("summary.json");
    is_whole(&summary, 48_000);
    rig.empties();
}

#[test]
fn without_nccl_the_run_says_what_is_missing() {
    let world = World::new();
    let run = world.train(&format!("run -n 2 --mode nccl-sync --epochs 1 {FILES}"), "--samples 400");
    let ended = run.ends();
    assert!(ended.status.code().is_some_and(|code| code != 0), "{ended:?}");
    ended.said(&["NCCL"]);
    world.empties_within(Duration::from_secs(15));
}

#[test]
fn what_its_averages_are_not_made_with_is_refused_by_name() {
    let world = World::new();
    for (options, said) in [
        ("--outer nesterov:0.7,0.9", "--outer nesterov:0.7,0.9 contradicts --mode nccl-cadence"),
        ("--wire int8", "--wire int8 contradicts --mode nccl-cadence"),
    ] {
        world.train(&format!("run -n 2 --mode nccl-cadence {options}"), "").exits(2).said(&[said]);
    }
}
