//! Trainers that fail: the sentence reaches the person, the rest goes on where it can.

use crate::harness::World;
use std::time::Duration;

const RUN: &str = "run -n 3 --epochs 3 --batch-size 16 --step-ms 1 --run-dir run --summary summary.json";

#[test]
fn one_rank_that_never_starts_leaves_a_degraded_run() {
    let cases = [
        ("--fault exit", "rank 2", "7"),
        ("--fault error", "rank 2", "there is no data"),
        ("--fault panic", "rank 2", "the model is made of glass"),
        ("--fault tensors", "rank 2", "refused"),
        ("--fault dataset", "rank 2", "refused"),
    ];
    for (fault, who, what) in cases {
        let world = World::new();
        let ended = world.train(RUN, &format!("--samples 1000 {fault} --at-rank 2")).exits(3);
        ended.said(&[who, what]);
        let summary = world.summary("summary.json");
        assert_eq!((summary.samples_committed, summary.exit), (3000, Some(3)), "{fault}");
        assert_eq!((summary.degraded, summary.digests_equal), (true, Some(true)), "{fault}");
        world.empties_within(Duration::from_secs(5));
    }
}

#[test]
fn one_rank_that_fails_in_the_middle_leaves_a_degraded_run() {
    for (fault, what) in [("error", "there is no data"), ("panic", "the model is made of glass"), ("exit", "7")] {
        let world = World::new();
        let ended = world.train(RUN, &format!("--samples 1000 --fault {fault} --at-rank 1 --after 20")).exits(3);
        ended.said(&["rank 1 died", what]);
        let summary = world.summary("summary.json");
        assert_eq!((summary.samples_committed, summary.deaths.len()), (3000, 1), "{fault}");
        world.empties_within(Duration::from_secs(5));
    }
}

#[test]
fn all_ranks_that_fail_end_the_run() {
    for (fault, what) in [("error", "there is no data"), ("panic", "the model is made of glass")] {
        let world = World::new();
        world.train(RUN, &format!("--samples 1000 --fault {fault}")).exits(1).said(&[what]);
        let ended = world
            .train(&RUN.replace("run-dir run", "run-dir later"), &format!("--samples 1000 --fault {fault} --after 20"));
        ended.exits(1).said(&[what]);
        world.empties_within(Duration::from_secs(5));
    }
}

#[test]
fn a_program_that_is_no_trainer_is_found_out() {
    let world = World::new();
    let ended = world.flodl("run -n 2 --run-dir run --patience 1 -- true").exits(1);
    ended.said(&["rank 0"]);
}
