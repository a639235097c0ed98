//! Networks on libtorch in whole runs: the trainer is flodl-worker's example `digits`.
//!
//! `cargo xtask test` builds it and tells its path in `FLODL_TEST_DIGITS`; where that is not set these tests skip themselves.

use crate::harness::{Program, World, skipped};
use crate::losses::survives_a_kill;
use crate::model::python_with;
use crate::runs::{FILES, ends_well, the_faster_train_more};
use flodl_monitor::Summary;
use safetensors::{Dtype, SafeTensors};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

const DIGITS: &str = "FLODL_TEST_DIGITS";
/// The folder of the digits in this checkout.
const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../flodl-worker/examples/softmax/data");
/// What another program thinks of a saved model.
const ACCURACY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/process/accuracy.py");

/// Networks take turns: one run of several ranks keeps a small machine busy, and other tests have deadlines.
static TURN: Mutex<()> = Mutex::new(());

/// The example, in its turn.
struct Digits {
    path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Digits {
    /// `None`, and a line that says so, where nobody has built it for these tests.
    fn find() -> Option<Digits> {
        let Some(path) = env::var_os(DIGITS).filter(|path| !path.is_empty()) else {
            skipped(&format!("{DIGITS} does not name the example digits; `cargo xtask test` builds it"));
            return None;
        };
        let path = fs::canonicalize(&path).unwrap_or_else(|error| panic!("{DIGITS} is {}: {error}", path.display()));
        // A test that failed in its turn takes nothing from the next one.
        Some(Digits { path, _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner) })
    }

    /// A run that nothing disturbs.
    fn check(&self, world: &World, line: &str, options: &str, samples: u64) -> Summary {
        ends_well(world, world.run_with(&self.path, &format!("{line} {FILES}"), options), samples)
    }
}

/// Guesses would be right once in ten. Most runs normalise batches, because then a few steps are enough.
fn learns(summary: &Summary) {
    assert!(summary.accuracy.is_some_and(|accuracy| accuracy >= 0.8), "{:?}", summary.accuracy);
}

/// The path of the model that a run of this world has saved.
fn saved(world: &World, summary: &Summary) -> PathBuf {
    world.path(summary.files.model.as_ref().expect("is saved"))
}

#[test]
fn three_unequal_ranks() {
    let (Some(digits), world) = (Digits::find(), World::new()) else { return };
    let line = "run -n 3 --epochs 3 --batch-size 64 --slow 1=2.5 --slow 2=4";
    let summary = digits.check(&world, line, "--limit 3200", 9600);
    learns(&summary);
    the_faster_train_more(&summary);
}

#[test]
fn in_step() {
    let (Some(digits), world) = (Digits::find(), World::new()) else { return };
    let line = "run -n 3 --mode cpu-sync --epochs 3 --batch-size 32";
    let summary = digits.check(&world, line, "--limit 1600 --bn", 4800);
    learns(&summary);
    assert_eq!(summary.rounds, 3 * 17, "three batches a round, 50 batches an epoch");
}

#[test]
fn five_ranks() {
    let (Some(digits), world) = (Digits::find(), World::new()) else { return };
    learns(&digits.check(&world, "run -n 5 --epochs 3 --batch-size 32 --slow 4=2", "--limit 1600 --bn", 4800));
}

/// `cargo` and `cargo xtask` tell programs where libtorch is. A person who starts one has only what is written in it.
#[test]
fn one_rank_finds_libtorch_without_a_variable() {
    let (Some(digits), world) = (Digits::find(), World::new()) else { return };
    world.script("bare", "#!/bin/sh\nunset LIBTORCH\n[ -z \"${LD_LIBRARY_PATH+is}\" ] || exit 9\nexec \"$@\"\n");
    let line = format!("run -n 1 --epochs 2 --batch-size 32 {FILES}");
    let mut command = world.command(&line, &Program::None);
    command.env_remove("LD_LIBRARY_PATH").arg("--").arg(world.path("bare")).arg(&digits.path);
    command.args(["--limit", "1600", "--bn"]);
    learns(&ends_well(&world, world.start(command, &line), 3200));
}

#[test]
fn a_killed_worker_is_survived_and_no_sample_is_lost() {
    let (Some(digits), world) = (Digits::find(), World::new()) else { return };
    let line = format!("run -n 3 --epochs 12 --batch-size 32 {FILES}");
    learns(&survives_a_kill(&world, world.run_with(&digits.path, &line, "--limit 800 --bn"), 9600));
}

#[test]
fn a_replica_that_is_not_finite_takes_the_average() {
    let (Some(digits), world) = (Digits::find(), World::new()) else { return };
    let line = "run -n 3 --epochs 3 --batch-size 32";
    let summary = digits.check(&world, line, "--limit 1600 --bn --nan-after 10 --only-rank 1", 4800);
    learns(&summary);
    // What the spoiled replica trained goes back, and the round is the others'.
    let timeline = fs::read_to_string(world.path("run/timeline.jsonl")).expect("is there");
    assert!(timeline.lines().any(|line| committed(line) == Some(vec![0, 2])), "{timeline}");
    let bytes = fs::read(saved(&world, &summary)).expect("is readable");
    for (name, tensor) in SafeTensors::deserialize(&bytes).expect("is a model").tensors() {
        let finite = tensor.dtype() == Dtype::I64 || floats(tensor.data()).iter().all(|value| value.is_finite());
        assert!(finite, "{name}");
    }
}

/// The ranks behind the round whose commit a line of the timeline tells.
fn committed(line: &str) -> Option<Vec<u64>> {
    let line: serde_json::Value = serde_json::from_str(line).expect("is JSON");
    let committed = line["body"]["Event"]["kind"]["RoundCommitted"]["committed"].as_array()?;
    Some(committed.iter().filter_map(|part| part[0].as_u64()).collect())
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn batch_normalisation_is_averaged_and_saved() {
    let (Some(digits), world) = (Digits::find(), World::new()) else { return };
    let line = "run -n 3 --epochs 3 --batch-size 32 --slow 2=2";
    let summary = digits.check(&world, line, "--limit 1600 --bn", 4800);
    learns(&summary);
    let bytes = fs::read(saved(&world, &summary)).expect("is readable");
    let model = SafeTensors::deserialize(&bytes).expect("is a model");
    let batches: Vec<u64> = summary.per_rank.iter().map(|rank| rank.batches).collect();
    for (norm, channels) in [("norm1", 16), ("norm2", 32)] {
        for part in ["weight", "bias", "running_mean", "running_var"] {
            let tensor = model.tensor(&format!("{norm}.{part}")).expect("is there");
            assert_eq!((tensor.dtype(), tensor.shape()), (Dtype::F32, &[channels][..]));
            let values = floats(tensor.data());
            let start = if ["weight", "running_var"].contains(&part) { 1.0 } else { 0.0 };
            assert!(values.iter().all(|value| value.is_finite() && *value != start), "{norm}.{part}: {values:?}");
            assert!(part != "running_var" || values.iter().all(|value| *value > 0.0), "{values:?}");
        }
        let tracked = model.tensor(&format!("{norm}.num_batches_tracked")).expect("is there");
        assert_eq!((tracked.dtype(), tracked.shape()), (Dtype::I64, &[][..]));
        let tracked = u64::from_le_bytes(tracked.data().try_into().expect("is one number"));
        // In each window the count of the rank with most batches.
        let most = batches.iter().copied().max().expect("has ranks");
        assert!((most..=batches.iter().sum()).contains(&tracked), "{tracked}, ranks did {batches:?}");
    }
}

/// The correct samples and all, by a program of other people's libraries.
fn judged(python: &OsString, model: PathBuf) -> (f64, f64) {
    let mut command = Command::new(python);
    // A PyTorch of its own must not be given our libtorch.
    command.arg(ACCURACY).arg(model).arg(DATA).env_remove("LD_LIBRARY_PATH");
    let output = command.output().expect("was there before");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let numbers: Vec<f64> = out.split_whitespace().map(|word| word.parse().expect("is a number")).collect();
    let [right, all] = numbers[..] else { panic!("{out}") };
    (right, all)
}

#[test]
fn another_program_finds_the_same_accuracy_in_the_model() {
    let Some(digits) = Digits::find() else { return };
    let Some(python) = python_with(&["torch", "safetensors, numpy"]) else { return };
    for normalised in ["", "--bn"] {
        let world = World::new();
        let line = "run -n 2 --epochs 2 --batch-size 32";
        let summary = digits.check(&world, line, &format!("--limit 1600 {normalised}"), 3200);
        let (right, all) = judged(&python, saved(&world, &summary));
        let ours = summary.accuracy.expect("is known") * all;
        // Sums in another order may turn one close decision.
        assert!((right - ours).abs() < 1.5, "{normalised} {right} of {all}, and {ours} here");
    }
}
