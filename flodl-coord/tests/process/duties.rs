//! Evaluations and checkpoints during a run, on every trigger and in every mode.

use crate::harness::{LONGEST, Running, World, poll};
use crate::runs::{FILES, is_exact};
use flodl_monitor::Summary;
use flodl_worker::checkpoint::read_latest;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

const MODES: [&str; 3] = ["cpu-cadence", "cpu-sync", "cpu-async"];

/// Three epochs of 50 batches.
fn run(mode: &str, more: &str) -> String {
    format!("run -n 3 --mode {mode} --epochs 3 --batch-size 16 --step-ms 1 {more} {FILES}")
}

const SAMPLES: u64 = 800;

/// Something of each event of a run's timeline.
fn events<T>(world: &World, pick: impl Fn(&serde_json::Value) -> Option<T>) -> Vec<T> {
    let text = fs::read_to_string(world.path("run/timeline.jsonl")).expect("is readable");
    let of =
        |line: &str| pick(serde_json::from_str::<serde_json::Value>(line).expect("is JSON").pointer("/body/Event")?);
    text.lines().filter_map(of).collect()
}

/// The codes of the reasons behind the orders in a run's timeline.
fn triggers(world: &World) -> BTreeSet<String> {
    let code = |event: &serde_json::Value| {
        event.pointer("/kind/RoleOrdered")?;
        Some(event.pointer("/reason/code")?.as_str()?.to_owned())
    };
    events(world, code).into_iter().collect()
}

/// Who did its part of a checkpoint, and whether it could.
fn savers(world: &World) -> BTreeSet<(u64, bool)> {
    let part = |event: &serde_json::Value| {
        let kind = event.pointer("/kind/RoleDone").filter(|kind| kind["role"] == "Checkpoint")?;
        Some((kind["rank"].as_u64()?, kind["done"].as_bool()?))
    };
    events(world, part).into_iter().collect()
}

fn sets(world: &World) -> Vec<String> {
    let entries = fs::read_dir(world.path("run/checkpoints")).expect("is there");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("is readable").file_name().into_string().ok();
    let mut names: Vec<String> = entries.filter_map(name).filter(|name| name != "latest").collect();
    names.sort_unstable();
    names
}

fn evaluators(summary: &Summary) -> BTreeSet<u32> {
    summary.evaluations.iter().map(|found| found.rank).collect()
}

#[test]
fn every_trigger_fires_in_every_mode() {
    for mode in MODES {
        let world = World::new();
        let more = "--eval-epochs 1 --eval-rank 1 --checkpoint-rounds 4 --keep-checkpoints 2";
        let asks = "--samples 800 --ask-eval 3 --ask-checkpoint 3 --save";
        world.train(&run(mode, more), asks).exits(0);
        let summary = world.summary("summary.json");
        is_exact(&summary, 3 * SAMPLES);
        assert_eq!(
            triggers(&world),
            ["asked", "end", "every-epochs", "every-rounds"].map(str::to_owned).into(),
            "{mode}"
        );
        // One that was asked for, two epochs that were not the last, and the end. Where ranks train on, an epoch may end while
        // what is due for the one before waits for its round: one serves both.
        let evaluations = summary.evaluations.len();
        assert!(evaluations == 4 || (mode == "cpu-async" && evaluations == 3), "{mode}: {evaluations}");
        assert_eq!(evaluators(&summary), [1].into(), "{mode}");
        let versions: Vec<Option<u64>> = summary.evaluations.iter().map(|found| found.version).collect();
        assert!(versions.is_sorted() && versions.last() == Some(&summary.version), "{mode}: {versions:?}");
        // A window that runs over the end of an epoch counts for the one before.
        let steps = |scalars: &BTreeMap<String, f64>| scalars.get("steps").copied().unwrap_or_default();
        let all: f64 = summary.epochs.iter().map(|epoch| steps(&epoch.scalars)).sum();
        assert_eq!(all, 150.0, "{mode}: {:?}", summary.epochs);
        assert!(mode == "cpu-async" || steps(&summary.scalars) == 50.0, "{mode}: {:?}", summary.scalars);
        let epochs: Vec<(u64, u64)> = summary.epochs.iter().map(|epoch| (epoch.epoch, epoch.committed)).collect();
        assert_eq!(epochs, [(0, SAMPLES), (1, SAMPLES), (2, SAMPLES)], "{mode}");
        let last = format!("v{}", summary.version.expect("is known"));
        let kept = sets(&world);
        assert!(kept.len() == 2 && kept.contains(&last), "{mode}: {kept:?}");
        assert_eq!(fs::read_link(world.path("run/checkpoints/latest")).expect("a link"), Path::new(&last));
        assert!(world.path(format!("run/part-{last}")).exists(), "{mode}: the program's part is there");
    }
}

#[test]
fn an_evaluator_that_cannot_or_dies_is_followed_by_another() {
    for mode in MODES {
        for (fault, exit) in [("eval", 0), ("eval-exit", 3)] {
            let world = World::new();
            let trainer = format!("--samples 800 --fault {fault} --at-rank 0");
            let ended = world.train(&run(mode, "--eval-rounds 2 --eval-rank 0"), &trainer).exits(exit);
            let summary = world.summary("summary.json");
            assert_eq!(summary.samples_committed, 3 * SAMPLES, "{mode}, {fault}: {}", ended.err);
            assert!(
                !summary.evaluations.is_empty() && !evaluators(&summary).contains(&0),
                "{mode}, {fault}: {summary:#?}"
            );
            assert_eq!(summary.evaluations.last().map(|found| found.version), Some(summary.version), "{mode}, {fault}");
        }
    }
}

/// A run in whose folder a file lies in the place of the folder of the sets, before its ranks begin.
fn without_sets(world: &World, line: &str, trainer: &str) -> Running {
    let go = world.path("go");
    world.script("late", &format!("#!/bin/sh\nwhile [ ! -e {} ]; do sleep 0.05; done\nexec \"$@\"\n", go.display()));
    let mut running = world.train_by("late", line, trainer);
    running.says("listening on");
    fs::write(world.path("run/checkpoints"), "in the way").expect("is written");
    fs::write(go, "").expect("is written");
    running
}

#[test]
fn a_disk_that_takes_no_checkpoint_ends_nothing() {
    let world = World::new();
    // Every set fails, and with the last one the run.
    let running = without_sets(&world, &run("cpu-cadence", "--checkpoint-rounds 1"), "--samples 800");
    let ended = running.exits(1);
    let summary = world.summary("summary.json");
    assert_eq!(summary.samples_committed, 3 * SAMPLES, "{}", ended.err);
    assert!(ended.err.contains("was not saved"), "{}", ended.err);
    assert!(summary.evaluations.len() == 1 && summary.deaths.is_empty());
}

#[test]
fn a_disk_that_is_full_for_a_while_ends_nothing() {
    let world = World::new();
    let line = format!("run -n 3 --mode cpu-cadence --step-ms 5 --checkpoint-rounds 1 --keep-checkpoints 2 {FILES}");
    let mut running = without_sets(&world, &line, "--samples 800 --batch-size 16 --epochs 20");
    running.says("was not saved");
    fs::remove_file(world.path("run/checkpoints")).expect("is removed");
    running.exits(0);
    let summary = world.summary("summary.json");
    is_exact(&summary, 20 * SAMPLES);
    assert_eq!(
        (summary.files.saved_version, summary.files.not_saved.as_deref(), sets(&world).len()),
        (summary.version, None, 2)
    );
}

#[test]
fn who_cannot_save_its_part_or_dies_of_it_is_followed_by_another() {
    for mode in MODES {
        for (fault, exit) in [("save", 0), ("save-exit", 3)] {
            let world = World::new();
            let trainer = format!("--samples 800 --save --fault {fault} --at-rank 0");
            let ended = world.train(&run(mode, "--checkpoint-rounds 2 --checkpoint-rank 0"), &trainer).exits(exit);
            let summary = world.summary("summary.json");
            assert_eq!(summary.samples_committed, 3 * SAMPLES, "{mode}, {fault}: {}", ended.err);
            let savers = savers(&world);
            assert!(savers.contains(&(0, false)) && !savers.contains(&(0, true)), "{mode}, {fault}: {savers:?}");
            assert!(savers.iter().any(|&(_, done)| done), "{mode}, {fault}: {savers:?}");
            assert_eq!(summary.files.saved_version, summary.version, "{mode}, {fault}");
            let part = format!("run/part-v{}", summary.version.expect("is known"));
            assert!(world.path(part).exists(), "{mode}, {fault}: the program's part is there");
        }
    }
}

#[test]
fn who_dies_of_the_last_evaluation_is_followed_by_another() {
    let world = World::new();
    world.train(&run("cpu-cadence", "--eval-rank 2"), "--samples 800 --fault eval-exit --at-rank 2").exits(3);
    let summary = world.summary("summary.json");
    assert_eq!((summary.samples_committed, summary.evaluations.len()), (3 * SAMPLES, 1));
    assert!(!evaluators(&summary).contains(&2) && summary.accuracy.is_some(), "{summary:#?}");
}

#[test]
fn a_rank_alone_does_it_all() {
    for mode in MODES {
        let world = World::new();
        let options = "--eval-rounds 1 --checkpoint-epochs 1 --keep-checkpoints 1 --eval-rank 0";
        let line = format!("run -n 1 --mode {mode} --epochs 3 --batch-size 16 {options} {FILES}");
        world.train(&line, "--samples 160 --save --ask-checkpoint 2").exits(0);
        let summary = world.summary("summary.json");
        is_exact(&summary, 3 * 160);
        assert!(summary.evaluations.len() >= 3 && evaluators(&summary) == [0].into(), "{mode}: {summary:#?}");
        assert_eq!(sets(&world), [format!("v{}", summary.version.expect("is known"))], "{mode}");
        assert_eq!(savers(&world), [(0, true)].into(), "{mode}");
    }
}

#[test]
fn a_rank_alone_that_can_do_none_of_it_trains_on() {
    let world = World::new();
    let line = format!("run -n 1 --epochs 3 --batch-size 16 --eval-rounds 1 --checkpoint-epochs 1 {FILES}");
    let ended = world.train(&line, "--samples 160 --fault eval").ends();
    let summary = world.summary("summary.json");
    is_exact(&summary, 3 * 160);
    assert!(summary.evaluations.is_empty() && ended.err.contains("no rank could"), "{}", ended.err);
    assert_eq!(summary.files.saved_version, summary.version, "{}", ended.err);
}

#[test]
fn a_reader_finds_a_whole_set_while_older_ones_go() {
    let world = World::new();
    let line = format!("run -n 2 --mode cpu-sync --step-ms 2 --checkpoint-rounds 1 --keep-checkpoints 1 {FILES}");
    let running = world.train(&line, "--samples 640 --batch-size 16 --epochs 5");
    let folder = world.path("run/checkpoints");
    let first = poll(LONGEST, || read_latest(&folder).ok()).expect("a set is written");
    let mut newest = first.state.version;
    while world.rank(0).is_some() {
        let found = read_latest(&folder).unwrap_or_else(|error| panic!("after v{newest}: {error}"));
        assert!(newest <= found.state.version, "v{newest}, then v{}", found.state.version);
        newest = found.state.version;
    }
    running.exits(0);
    let last = read_latest(&folder).expect("is whole");
    assert_eq!((Some(last.state.version), last.passed_over), (world.summary("summary.json").version, Vec::new()));
}
