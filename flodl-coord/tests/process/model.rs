//! The saved model is what others can open.

use crate::harness::World;
use safetensors::SafeTensors;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

fn trained(world: &World) -> PathBuf {
    world.train("run -n 2 --epochs 2 --batch-size 16 --run-dir run", "--samples 500").exits(0);
    let sets = fs::read_dir(world.path("run/checkpoints")).expect("is a folder");
    let sets: Vec<_> = sets.map(|set| set.expect("is readable").path().join("model.safetensors")).collect();
    let model = sets.into_iter().find(|path| path.exists()).expect("one set was written");
    assert!(model.with_file_name("state.json").exists() && model.with_file_name("manifest.json").exists());
    model
}

#[test]
fn the_safetensors_crate_opens_it() {
    let world = World::new();
    let bytes = fs::read(trained(&world)).expect("is readable");
    let model = SafeTensors::deserialize(&bytes).expect("is a model");
    let weight = model.tensor("weight").expect("is there");
    assert_eq!(weight.shape(), [4, 8]);
    let values: Vec<f32> =
        weight.data().chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
    assert!(values.iter().all(|value| value.is_finite()) && values.iter().any(|value| value.abs() > 0.01));
    assert_eq!(model.tensor("bias").expect("is there").shape(), [4]);
}

#[test]
fn pythons_safetensors_opens_it() {
    let probe = Command::new("python3").args(["-c", "import safetensors, numpy"]).stderr(Stdio::null()).status();
    if !probe.is_ok_and(|status| status.success()) {
        // Straight to the stream: the harness would keep what a passing test prints to itself.
        writeln!(std::io::stderr(), "skipped: python3 has no packages safetensors and numpy here").expect("stderr");
        return;
    }
    let world = World::new();
    let script = "import sys; from safetensors.numpy import load_file; model = load_file(sys.argv[1]); \
                  assert model['weight'].shape == (4, 8) and model['bias'].shape == (4,), model";
    let status = Command::new("python3").arg("-c").arg(script).arg(trained(&world)).status().expect("was there before");
    assert!(status.success());
}
