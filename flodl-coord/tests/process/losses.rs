//! What is left when something dies or a person stops the run.

use crate::harness::{Running, World, poll, signal};
use crate::joins::{serve, ticket};
use crate::runs::{FILES, names_its_model};
use flodl_monitor::Summary;
use rustix::process::Signal;
use std::fs;
use std::time::Duration;

const A_WHILE: Duration = Duration::from_secs(30);
/// No process is left after so long, whatever ended.
const NO_ORPHAN: Duration = Duration::from_secs(5);

/// Waits until the timeline tells of the commit of `version`.
pub(crate) fn commits(world: &World, version: u64) {
    let committed = |line: &str| line.contains("RoundCommitted") && line.contains(&format!("\"version\":{version},"));
    let timeline = world.path("run/timeline.jsonl");
    let seen = poll(A_WHILE, || {
        let text = fs::read_to_string(&timeline).unwrap_or_default();
        text.lines().any(committed).then_some(())
    });
    assert!(seen.is_some(), "version {version} is never committed: {:?}", fs::read_to_string(&timeline));
}

#[test]
fn a_killed_worker_is_survived_and_no_sample_is_lost() {
    let world = World::new();
    let run = world.train(&format!("run -n 3 --epochs 60 --batch-size 16 --step-ms 2 {FILES}"), "--samples 800");
    survives_a_kill(&world, run, 48_000);
}

#[test]
fn a_worker_killed_while_it_trains_on_is_survived_and_no_sample_is_lost() {
    let world = World::new();
    let mode = "--mode cpu-async --epochs 60 --batch-size 16 --step-ms 2";
    let run = world.train(&format!("run -n 3 {mode} {FILES}"), "--samples 800");
    survives_a_kill(&world, run, 48_000);
}

#[test]
fn an_interrupt_while_ranks_train_on_saves_what_is_there() {
    let world = World::new();
    let line = "run -n 2 --mode cpu-async --epochs 1000 --step-ms 2 --run-dir run --summary summary.json";
    let run = world.train(line, "--samples 800");
    commits(&world, 2);
    run.signal(Signal::INT);
    let ended = run.exits(4);
    let summary = world.summary("summary.json");
    assert_eq!((summary.exit, summary.digests_equal), (Some(4), Some(true)));
    names_its_model(&ended, summary.version);
    world.empties_within(NO_ORPHAN);
}

/// Kills rank 1 of a run with [`FILES`] after a few rounds: the others train all samples.
pub(crate) fn survives_a_kill(world: &World, run: Running, samples: u64) -> Summary {
    commits(world, 3);
    signal(world.rank(1).expect("is running"), Signal::KILL);
    let ended = run.exits(3);
    ended.said(&["rank 1 died", "9"]);
    let summary = world.summary("summary.json");
    assert_eq!((summary.samples_committed, summary.samples_expected), (samples, Some(samples)));
    assert_eq!((summary.degraded, summary.exit, summary.digests_equal), (true, Some(3), Some(true)));
    assert_eq!(summary.deaths.iter().map(|death| death.rank).collect::<Vec<_>>(), [1]);
    assert!(summary.deaths[0].why.contains('9'), "names the signal: {:?}", summary.deaths);
    names_its_model(&ended, summary.version);
    let told = format!("{samples} of {samples} committed (exact), {} repeated", summary.repeats);
    assert!(ended.out.contains(&told), "{told}: {}", ended.out);
    world.empties_within(NO_ORPHAN);
    summary
}

#[test]
fn g2_a_killed_run_leaves_no_process() {
    for moment in 0..6u64 {
        let world = World::new();
        let mut run = world.train("run -n 3 --epochs 1000 --step-ms 2 --run-dir run", "--samples 800 --child");
        match moment {
            0 => run.says("listening on"),
            1 => {
                let started = poll(A_WHILE, || world.rank(2));
                assert!(started.is_some(), "{}", run.err());
                &mut run
            }
            2 => run.says("the run starts with"),
            version => {
                commits(&world, version);
                &mut run
            }
        };
        run.signal(Signal::KILL);
        run.ends();
        world.empties_within(NO_ORPHAN);
    }
}

#[test]
fn an_interrupt_saves_what_is_there() {
    let world = World::new();
    let run = world.train("run -n 2 --epochs 1000 --step-ms 2 --run-dir run --summary summary.json", "--samples 800");
    commits(&world, 2);
    run.signal(Signal::INT);
    let ended = run.exits(4);
    let summary = world.summary("summary.json");
    assert_eq!((summary.exit, summary.digests_equal), (Some(4), Some(true)));
    assert!(summary.version >= Some(2) && summary.accuracy.is_some(), "{summary:#?}");
    names_its_model(&ended, summary.version);
    world.empties_within(NO_ORPHAN);
}

#[test]
fn two_interrupts_end_at_once() {
    let world = World::new();
    // A step of this run takes longer than anybody would wait.
    let run = world.train("run -n 2 --step-ms 50000 --patience 60 --run-dir run", "--samples 800");
    let started = poll(A_WHILE, || run.err().contains("the run starts with").then_some(()));
    assert!(started.is_some(), "{}", run.err());
    run.signal(Signal::INT);
    // The kernel merges signals that are pending at once.
    let again = poll(A_WHILE, || {
        signal(run.id(), Signal::TERM);
        world.processes().is_empty().then_some(())
    });
    assert!(again.is_some(), "still there: {}", run.err());
    let ended = run.ends();
    assert!(ended.status.code().is_some_and(|code| [1, 4].contains(&code)), "{ended:?}");
}

#[test]
fn an_interrupt_before_the_start_ends_the_run() {
    let world = World::new();
    let mut serve = world.flodl("serve -n 2 --run-dir run");
    serve.says("waiting for hosts");
    serve.signal(Signal::INT);
    let ended = serve.ends();
    assert!(ended.status.code().is_some_and(|code| [1, 4].contains(&code)), "{ended:?}");
}

#[test]
fn a_program_that_never_connects_is_named_and_can_be_interrupted() {
    let world = World::new();
    let mut run = world.flodl("run -n 2 --patience 0.5 --run-dir run -- sleep 1000");
    run.says("waiting for the processes of rank 0, rank 1");
    run.signal(Signal::INT);
    run.exits(1).said(&["stopped before the run began"]);
    world.empties_within(NO_ORPHAN);
}

#[test]
fn g2_hosts_do_not_outlive_a_killed_controller() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --epochs 1000 --step-ms 2");
    ticket(&world, "a");
    let join = world.train("join --ticket ticket-a -n 2", "--samples 800 --child");
    serve.says("the run starts with");
    serve.signal(Signal::KILL);
    join.exits(1).said(&["the controller was lost"]);
    world.empties_within(NO_ORPHAN);
}

#[test]
fn a_killed_worker_is_started_again_and_is_back_in_the_run() {
    let world = World::new();
    let line = "run -n 2 --restarts 2 --epochs 100 --batch-size 16 --step-ms 2 --run-dir run --summary summary.json";
    let mut run = world.train(line, "--samples 800");
    commits(&world, 3);
    signal(world.rank(1).expect("is running"), Signal::KILL);
    run.says("rank 1 is back in the run (incarnation 2)");
    let ended = run.exits(3);
    ended.said(&["rank 1 died", "9"]).said(&["lost and back again: rank 1"]);
    let summary = world.summary("summary.json");
    assert_eq!((summary.samples_committed, summary.digests_equal), (80_000, Some(true)));
    world.empties_within(NO_ORPHAN);
}

#[test]
fn the_only_rank_is_waited_for_when_it_is_started_again() {
    let world = World::new();
    let line = "run -n 1 --restarts 1 --epochs 60 --batch-size 16 --step-ms 2 --run-dir run --summary summary.json";
    let run = world.train(line, "--samples 400");
    commits(&world, 2);
    signal(world.rank(0).expect("is running"), Signal::KILL);
    run.exits(3);
    assert_eq!(world.summary("summary.json").samples_committed, 24_000);
}

#[test]
fn too_many_losses_end_the_run_and_save_it() {
    let world = World::new();
    let line =
        "run -n 3 --max-failure 50% --epochs 4000 --batch-size 16 --step-ms 2 --run-dir run --summary summary.json";
    let mut run = world.train(line, "--samples 800");
    commits(&world, 3);
    signal(world.rank(1).expect("is running"), Signal::KILL);
    run.says("rank 1 died");
    signal(world.rank(2).expect("is running"), Signal::KILL);
    let ended = run.exits(4);
    ended.said(&["2 ranks are missing, and the run ends at 2 (--max-failure 50%)"]);
    names_its_model(&ended, world.summary("summary.json").version);
    world.empties_within(NO_ORPHAN);
}
