//! Evaluations and checkpoints during a run, on every trigger and in every mode.

use crate::harness::World;
use crate::runs::{FILES, is_exact};
use flodl_monitor::Summary;
use std::collections::BTreeSet;
use std::fs;

const MODES: [&str; 2] = ["cpu-cadence", "cpu-sync"];

/// Three epochs of 50 batches.
fn run(mode: &str, more: &str) -> String {
    format!("run -n 3 --mode {mode} --epochs 3 --batch-size 16 --step-ms 1 {more} {FILES}")
}

const SAMPLES: u64 = 800;

/// The codes of the reasons behind the orders and the sets in a run's timeline.
fn triggers(world: &World) -> BTreeSet<String> {
    let text = fs::read_to_string(world.path("run/timeline.jsonl")).expect("is readable");
    let code = |line: &str| {
        let record: serde_json::Value = serde_json::from_str(line).expect("is JSON");
        let event = record.pointer("/body/Event")?;
        event.pointer("/kind/RoleOrdered")?;
        Some(event.pointer("/reason/code")?.as_str()?.to_owned())
    };
    text.lines().filter_map(code).collect()
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
        // One that was asked for, two epochs that were not the last, and the end.
        assert_eq!((summary.evaluations.len(), evaluators(&summary)), (4, [1].into()), "{mode}");
        let versions: Vec<Option<u64>> = summary.evaluations.iter().map(|found| found.version).collect();
        assert!(versions.is_sorted() && versions.last() == Some(&summary.version), "{mode}: {versions:?}");
        assert_eq!(summary.scalars.get("steps"), Some(&50.0), "{mode}: {:?}", summary.scalars);
        let epochs: Vec<(u64, u64)> = summary.epochs.iter().map(|epoch| (epoch.epoch, epoch.committed)).collect();
        assert_eq!(epochs, [(0, SAMPLES), (1, SAMPLES), (2, SAMPLES)], "{mode}");
        let last = format!("v{}", summary.version.expect("is known"));
        let kept = sets(&world);
        assert!(kept.len() == 2 && kept.contains(&last), "{mode}: {kept:?}");
        assert_eq!(fs::read_link(world.path("run/checkpoints/latest")).expect("a link"), std::path::Path::new(&last));
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

#[test]
fn a_disk_that_takes_no_checkpoint_ends_nothing() {
    let world = World::new();
    let mut running = world.train(&run("cpu-cadence", "--checkpoint-rounds 1"), "--samples 800");
    // A file in the place of the folder of the sets: every set fails, and with the last one the run.
    running.says("listening on");
    fs::write(world.path("run/checkpoints"), "in the way").expect("is written");
    let ended = running.exits(1);
    let summary = world.summary("summary.json");
    assert_eq!(summary.samples_committed, 3 * SAMPLES, "{}", ended.err);
    assert!(ended.err.contains("was not saved"), "{}", ended.err);
    assert!(summary.evaluations.len() == 1 && summary.deaths.is_empty());
}
