//! `flodl run` that ends well: every sample once, the same bits everywhere.

use crate::harness::{Ended, Running, World};
use flodl_monitor::Summary;
use std::fs;

/// What holds of every run that ends with 0.
pub(crate) fn is_exact(summary: &Summary, samples: u64) {
    assert_eq!((summary.samples_committed, summary.samples_expected), (samples, Some(samples)), "{summary:#?}");
    assert_eq!((summary.repeats, summary.quarantined), (0, 0));
    assert_eq!(summary.digests_equal, Some(true));
    assert_eq!((summary.exit, summary.degraded, summary.deaths.len()), (Some(0), false, 0));
    assert_eq!(summary.version, Some(summary.rounds), "every round of an undisturbed run commits");
    let shares: f64 = summary.per_rank.iter().filter_map(|rank| rank.share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    let committed: u64 = summary.per_rank.iter().map(|rank| rank.committed).sum();
    assert_eq!(committed, samples);
}

/// That the last line promises what is there.
pub(crate) fn names_its_model(ended: &Ended, version: Option<u64>) {
    let last = ended.out.lines().last().expect("something is printed");
    let version = version.expect("something is committed");
    let rest = format!(" (version {version}); resuming is not available in this version");
    let path = last.strip_prefix("saved: ").and_then(|last| last.strip_suffix(&rest));
    let path = path.unwrap_or_else(|| panic!("{last}"));
    assert!(path.ends_with("model.safetensors") && fs::metadata(path).is_ok(), "{path}");
}

/// Options by which a run leaves its files where these tests look for them.
pub(crate) const FILES: &str = "--run-dir run --summary summary.json";

/// Waits for the end of a run with [`FILES`] that nothing disturbs.
pub(crate) fn ends_well(world: &World, run: Running, samples: u64) -> Summary {
    let ended = run.exits(0);
    let summary = world.summary("summary.json");
    is_exact(&summary, samples);
    names_its_model(&ended, summary.version);
    assert_eq!(world.summary("run/summary.json"), summary);
    assert!(world.path("run/timeline.jsonl").exists());
    world.empties_within(std::time::Duration::from_secs(5));
    summary
}

fn check(line: &str, trainer: &str, samples: u64) -> Summary {
    let world = World::new();
    let run = world.train(&format!("{line} {FILES}"), trainer);
    ends_well(&world, run, samples)
}

/// That every rank has trained more than the one after it.
pub(crate) fn the_faster_train_more(summary: &Summary) {
    let shares: Vec<f64> = summary.per_rank.iter().map(|rank| rank.share.expect("is known")).collect();
    assert!(shares.is_sorted_by(|one, next| one > next), "{:?}", summary.per_rank);
}

#[test]
fn a_pass_is_trained_once_in_however_many_epochs() {
    // Two passes and a third of one, of 333, 333 and 334 samples.
    let line = "run -n 3 --epochs 7 --epoch-splits 3 --batch-size 16 --eval-epochs 1";
    for mode in ["cpu-cadence", "cpu-async"] {
        check(&format!("{line} --mode {mode}"), "--samples 1000", 2333);
    }
}

fn learns(summary: &Summary) {
    assert!(summary.accuracy.is_some_and(|accuracy| accuracy >= 0.85), "{:?}", summary.accuracy);
}

#[test]
fn three_unequal_ranks() {
    let line = "run -n 3 --epochs 4 --batch-size 16 --step-ms 2 --slow 1=2.5 --slow 2=4";
    let summary = check(line, "--samples 4000", 16_000);
    learns(&summary);
    the_faster_train_more(&summary);
    assert!(summary.ceiling_fraction.is_some_and(|fraction| fraction > 0.5), "{:?}", summary.ceiling_fraction);
    assert!(summary.per_rank.iter().all(|rank| rank.emulated.is_some()), "emulation is named");
}

#[test]
fn one_rank_alone() {
    learns(&check("run -n 1 --epochs 3 --batch-size 16", "--samples 2000", 6000));
}

#[test]
fn five_ranks() {
    let line = "run -n 5 --epochs 3 --batch-size 16 --step-ms 1 --slow 4=3";
    learns(&check(line, "--samples 4000", 12_000));
}

#[test]
fn in_step() {
    let line = "run -n 3 --mode cpu-sync --epochs 3 --batch-size 32 --slow 2=2";
    learns(&check(line, "--samples 2000", 6000));
}

#[test]
fn training_on_while_averaging() {
    let line = "run -n 3 --mode cpu-async --epochs 4 --batch-size 16 --step-ms 2 --slow 1=2.5 --slow 2=4";
    let summary = check(line, "--samples 4000", 16_000);
    learns(&summary);
    the_faster_train_more(&summary);
    learns(&check("run -n 1 --mode cpu-async --epochs 3 --batch-size 16", "--samples 2000", 6000));
    // Windows and leases run over the ends of epochs that divide by nothing.
    learns(&check("run -n 3 --mode cpu-async --epochs 5 --batch-size 37 --step-ms 1", "--samples 1009", 5045));
}

#[test]
fn numbers_that_divide_by_nothing() {
    learns(&check("run -n 3 --epochs 5 --batch-size 37 --step-ms 1", "--samples 1009", 5045));
}

#[test]
fn more_ranks_than_batches() {
    let summary = check("run -n 4 --epochs 2 --batch-size 16 --step-ms 1", "--samples 40", 80);
    assert!(summary.per_rank.iter().any(|rank| rank.batches == 0) || summary.rounds > 0, "{summary:#?}");
}

#[test]
fn settings_of_the_trainer_count_where_the_line_is_silent() {
    check("run -n 2 --step-ms 1", "--samples 500 --epochs 2 --batch-size 20", 1000);
}

#[test]
fn two_runs_side_by_side_do_not_meet() {
    let world = World::new();
    let run = |name: &str| {
        let line = format!("run -n 2 --epochs 3 --batch-size 16 --step-ms 1 --run-dir {name} --summary {name}.json");
        world.train(&line, "--samples 1000")
    };
    let (a, b) = (run("a"), run("b"));
    a.exits(0);
    b.exits(0);
    is_exact(&world.summary("a.json"), 3000);
    is_exact(&world.summary("b.json"), 3000);
}

#[test]
fn the_default_run_directory_is_named_after_the_run() {
    let world = World::new();
    let ended = world.train("run -n 1", "--samples 100").exits(0);
    let entries = fs::read_dir(world.path("")).expect("is a folder");
    let names: Vec<_> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    let name = names.iter().find_map(|name| name.strip_prefix("flodl-run-")).expect("is there");
    assert_eq!(name.len(), 8);
    ended.said(&["flodl: run ", name]);
    ended.said(&["patience 10s", "heartbeat every 1s"]);
}

#[test]
fn an_outer_optimizer_makes_another_consensus_that_all_hold() {
    let model = |more: &str| {
        let world = World::new();
        let line = format!("run -n 1 --mode cpu-sync --epochs 2 --batch-size 16 {more} {FILES}");
        let summary = ends_well(&world, world.train(&line, "--samples 400"), 800);
        let version = summary.version.expect("is known");
        let file = fs::read(world.path(format!("run/checkpoints/v{version}/model.safetensors"))).expect("is there");
        // Its header names the run.
        let header = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
        file[8 + header..].to_vec()
    };
    let average = model("");
    assert!(average == model("--outer average"), "one rank alone makes the same model twice");
    assert!(average != model("--outer nesterov:0.7,0.5"));
    for mode in ["cpu-cadence", "cpu-async"] {
        check(
            &format!("run -n 3 --mode {mode} --epochs 2 --batch-size 16 --outer slow-momentum:1,0.3"),
            "--samples 800",
            1600,
        );
    }
}
