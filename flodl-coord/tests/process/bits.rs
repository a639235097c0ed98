//! `--deterministic`: real processes whose devices are as fast as they like leave the same bits.

use crate::harness::World;
use crate::runs::{FILES, ends_well};
use flodl_monitor::Summary;
use safetensors::SafeTensors;
use std::fs;

const SAMPLES: u64 = 1200;

/// A run with these devices: what it came to, and the model it left.
fn run(line: &str, devices: &str, trainer: &str) -> (Summary, Vec<u8>) {
    let world = World::new();
    let line = format!("{line} {devices} --batch-size 16 {FILES}");
    let run = world.train(&line, &format!("--samples {SAMPLES} {trainer}"));
    let summary = ends_well(&world, run, 2 * SAMPLES);
    let model = world.path(summary.files.model.as_ref().expect("is saved"));
    let bytes = fs::read(model).expect("is readable");
    // The header names the run.
    let model = SafeTensors::deserialize(&bytes).expect("is a model");
    let bits = ["weight", "bias"].map(|name| model.tensor(name).expect("is there").data().to_vec()).concat();
    (summary, bits)
}

/// Devices of unlike speeds, in unlike order.
const DEVICES: [&str; 2] = ["--step-ms 2 --slow 1=2.5 --slow 2=4", "--step-ms 1 --slow 0=6"];

fn check(line: &str, trainer: &str) {
    let line = format!("run -n 3 --deterministic --epochs 2 --seed 5 {line}");
    let [(one, bits), (other, same)] = DEVICES.map(|devices| run(&line, devices, trainer));
    assert_eq!(one.rounds, other.rounds);
    let batches = |summary: &Summary| summary.per_rank.iter().map(|rank| rank.committed).collect::<Vec<_>>();
    assert_eq!(batches(&one), batches(&other));
    assert!(bits == same, "{line}: the models differ");
}

#[test]
fn two_runs_leave_the_same_bits_whatever_their_devices_do() {
    check("--speed 0=2", "");
}

#[test]
fn and_where_steps_draw_numbers() {
    check("", "--draw");
}

#[test]
fn and_where_ranks_train_on_while_they_average() {
    check("--mode cpu-async --speed 2=3 --anchor 3 --eval-epochs 1", "--draw");
}

#[test]
fn and_step_by_step() {
    check("--mode cpu-sync", "");
}

#[test]
fn without_it_they_do_not() {
    let runs = DEVICES.map(|devices| run("run -n 3 --epochs 2 --seed 5", devices, "").1);
    assert!(runs[0] != runs[1], "the faster rank trained no more than the others");
}

#[test]
fn another_seed_is_another_run() {
    let runs = [5, 6].map(|seed| run(&format!("run -n 3 --deterministic --epochs 2 --seed {seed}"), "", "").1);
    assert!(runs[0] != runs[1]);
}

#[test]
fn a_death_ends_the_promise_and_is_said() {
    let world = World::new();
    let line = format!("run -n 3 --deterministic --epochs 2 --batch-size 16 --step-ms 2 {FILES}");
    let trainer = format!("--samples {SAMPLES} --fault exit --at-rank 1 --after 9");
    world.train(&line, &trainer).exits(3).said(&["need not be bit-equal", "deterministic"]);
}

#[test]
fn what_it_cannot_follow_is_refused_by_name() {
    let world = World::new();
    for (options, said) in [
        ("--guard trend", "--guard trend contradicts --deterministic"),
        ("--overhead-target 0.1", "overhead-target 0.1 contradicts deterministic"),
        ("--max-anchor 9", "max-anchor 9 contradicts deterministic"),
    ] {
        let ended = world.train(&format!("run -n 2 --deterministic {options}"), "").exits(2);
        ended.said(&[said]);
    }
}
