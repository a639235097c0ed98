//! The saved model is what others can open.

use crate::harness::{World, skipped};
use safetensors::SafeTensors;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{env, fs};

/// The Python that `PEERS_PYTHON` names, else `python3`, where it can import one of these lists of packages; `None`, and a line
/// that says so, where it cannot.
pub(crate) fn python_with(packages: &[&str]) -> Option<OsString> {
    let named = env::var_os("PEERS_PYTHON").filter(|name| !name.is_empty());
    let python = named.unwrap_or_else(|| "python3".into());
    let imports = |packages: &&str| {
        let mut probe = Command::new(&python);
        probe.arg("-c").arg(format!("import {packages}")).env_remove("LD_LIBRARY_PATH").stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    };
    if packages.iter().any(imports) {
        return Some(python);
    }
    let (python, packages) = (python.display(), packages.join(", nor "));
    skipped(&format!("{python} has not the packages {packages}; name a Python that has them in PEERS_PYTHON"));
    None
}

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
    let Some(python) = python_with(&["safetensors, numpy"]) else { return };
    let world = World::new();
    let script = "import sys; from safetensors.numpy import load_file; model = load_file(sys.argv[1]); \
                  assert model['weight'].shape == (4, 8) and model['bias'].shape == (4,), model";
    let status = Command::new(python).arg("-c").arg(script).arg(trained(&world)).status().expect("was there before");
    assert!(status.success());
}
