//! Sets survive a crash at any step of their writing, and other programs read them.

use super::*;
use flodl_wire::message::join::{Dtype, Section, TensorSpec};
use std::collections::BTreeSet;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

fn spec(name: &str, shape: &[u64], section: Section) -> TensorSpec {
    let dtype = if section == Section::Integers { Dtype::I64 } else { Dtype::F64 };
    TensorSpec { name: name.to_owned(), dtype, shape: shape.to_vec(), section }
}

/// A model whose sections are mixed in its manifest, and its flattened bytes.
fn model() -> (Vec<TensorSpec>, Vec<u8>) {
    let manifest = vec![
        spec("steps \"seen\"", &[], Section::Integers),
        spec("a/weight", &[3, 1], Section::Parameters),
        spec("mean", &[2], Section::Buffers),
        spec("bias", &[0, 4], Section::Parameters),
    ];
    let floats = [1.5f32, -2.0, 3.0, 0.25, -0.0];
    let mut flat: Vec<u8> = floats.iter().flat_map(|value| value.to_le_bytes()).collect();
    flat.extend((-7i64).to_le_bytes());
    (manifest, flat)
}

fn state(version: u64) -> State {
    let committed = vec![(0, 64), (128, 7999)];
    State {
        run_id: "07".repeat(16),
        version,
        seed: u64::MAX,
        coverage: vec![EpochCoverage { epoch: 3, committed }],
        scheduler: serde_json::json!({ "anchor": 16 }),
        why: "a test".to_owned(),
        ..State::default()
    }
}

fn save(dir: &Path, version: u64, storage: &mut dyn Storage) -> std::result::Result<PathBuf, SaveError> {
    let (manifest, flat) = model();
    let tensors = tensors_of(&manifest, &flat).unwrap();
    CheckpointSet { tensors: &tensors, state: &state(version), outer: &[] }.save_to(dir, storage)
}

#[test]
fn the_safetensors_crate_reads_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 3, &mut Disk).unwrap();
    let bytes = std::fs::read(path.join(MODEL_FILE)).unwrap();
    let (_, header) = ::safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    assert_eq!((metadata["flodl.version"].as_str(), metadata["flodl.run_id"].len()), ("3", 32));
    let file = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut names: Vec<&str> = file.names();
    names.sort_unstable();
    assert_eq!(names, ["a/weight", "bias", "mean", "steps \"seen\""]);
    let weight = file.tensor("a/weight").unwrap();
    assert_eq!((weight.dtype(), weight.shape()), (::safetensors::Dtype::F32, &[3, 1][..]));
    assert_eq!(weight.data()[..4], 1.5f32.to_le_bytes());
    let steps = file.tensor("steps \"seen\"").unwrap();
    assert_eq!(
        (steps.dtype(), steps.shape(), steps.data()),
        (::safetensors::Dtype::I64, &[][..], &(-7i64).to_le_bytes()[..])
    );
    assert_eq!(file.tensor("bias").unwrap().shape(), [0, 4]);
    let first_data = bytes.len() - model().1.len();
    assert_eq!(first_data % 64, 0, "the data begins aligned");
}

#[test]
fn state_survives() {
    let dir = tempfile::tempdir().unwrap();
    let path = save(dir.path(), 3, &mut Disk).unwrap();
    let found = read_latest(dir.path()).unwrap();
    assert_eq!(found, Found { path: path.clone(), state: state(3), passed_over: vec![] });
    assert_eq!(std::fs::read_link(dir.path().join(LATEST)).unwrap(), Path::new("v3"));
    assert!(matches!(save(dir.path(), 3, &mut Disk), Err(SaveError::Exists { version: 3, .. })));
    std::fs::write(path.join(STATE_FILE), "{}").unwrap();
    save(dir.path(), 3, &mut Disk).unwrap();
    assert_eq!(read_latest(dir.path()).unwrap().state, state(3), "a broken set of that version is replaced");
}

#[test]
fn tensors_that_make_no_file_are_refused() {
    let (manifest, flat) = model();
    assert_eq!(
        tensors_of(&manifest, &flat[1..]).unwrap_err(),
        TensorError::Flat { expected: flat.len() as u128, found: flat.len() - 1 }
    );
    let huge = [spec("huge", &[u64::MAX, 3], Section::Parameters)];
    assert!(matches!(tensors_of(&huge, &flat), Err(TensorError::Flat { .. })));
    let dir = tempfile::tempdir().unwrap();
    let metadata = spec("__metadata__", &[1], Section::Parameters);
    let short = spec("short", &[2], Section::Parameters);
    for (list, message) in [
        (vec![&metadata], "two tensors are called \"__metadata__\", or the name is the format's own"),
        (vec![&short], "tensor \"short\" of shape [2] has 4 bytes"),
    ] {
        let tensors: Vec<Tensor<'_>> = list.iter().map(|spec| Tensor { spec, bytes: &[0; 4] }).collect();
        let error = CheckpointSet { tensors: &tensors, state: &state(1), outer: &[] }.save(dir.path()).unwrap_err();
        assert_eq!(error.to_string(), format!("the checkpoint cannot be written: {message}"));
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing was written");
}

/// Something done to a set.
type Damage = Box<dyn Fn(&Path)>;

#[test]
fn flaws_are_found_and_named() {
    let write =
        |file: &'static str, text: &'static str| move |set: &Path| std::fs::write(set.join(file), text).unwrap();
    let remove = |file: &'static str| move |set: &Path| std::fs::remove_file(set.join(file)).unwrap();
    let edit = |from: &'static str, to: &'static str| {
        move |set: &Path| {
            let path = set.join(MANIFEST_FILE);
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.contains(from), "{text}");
            std::fs::write(path, text.replacen(from, to, 1)).unwrap();
        }
    };
    let flip = |set: &Path| {
        let path = set.join(MODEL_FILE);
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(path, bytes).unwrap();
    };
    let cases: Vec<(Damage, &str)> = vec![
        (Box::new(remove(MANIFEST_FILE)), "manifest.json cannot be read: entity not found"),
        (Box::new(remove(MODEL_FILE)), "model.safetensors cannot be read: entity not found"),
        (Box::new(write(MANIFEST_FILE, "")), "manifest.json cannot be understood: EOF"),
        (Box::new(write(STATE_FILE, "{}")), "state.json has 2 bytes, manifest.json says"),
        (Box::new(flip), "model.safetensors has another SHA-256 than manifest.json says"),
        (Box::new(edit("\"schema\": 1", "\"schema\": 2")), "manifest.json has schema 2, this flodl reads 1"),
        (Box::new(edit("\"version\": 5", "\"version\": 6")), "the set is called version 5, manifest.json says 6"),
        (Box::new(edit("model.safetensors", "../v4/model")), "manifest.json does not list model.safetensors"),
        (
            Box::new(edit("\"files\": {", "\"files\": { \"../x\": { \"bytes\": 0, \"sha256\": \"\" },")),
            "manifest.json lists \"../x\", which is no file of a set",
        ),
    ];
    for (break_it, expect) in cases {
        let dir = tempfile::tempdir().unwrap();
        save(dir.path(), 4, &mut Disk).unwrap();
        let newest = save(dir.path(), 5, &mut Disk).unwrap();
        break_it(&newest);
        let found = read_latest(dir.path()).unwrap();
        assert_eq!(found.state.version, 4);
        let [(path, flaw)] = &found.passed_over[..] else { panic!("{found:?}") };
        assert_eq!(path, &newest);
        assert!(flaw.to_string().starts_with(expect), "{flaw}\n{expect}");
    }
}

#[test]
fn nothing_to_read_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("checkpoints");
    assert!(matches!(read_latest(&missing), Err(ReadError::Unreadable { kind: ErrorKind::NotFound, .. })));
    for name in ["v", "vx", "v1x", "w1", "latest", "v-1"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::create_dir(dir.path().join("v8")).unwrap();
    let error = read_latest(dir.path()).unwrap_err();
    let ReadError::None { passed_over, .. } = &error else { panic!("{error}") };
    assert_eq!(passed_over.len(), 1);
    assert!(error.to_string().ends_with("v8: manifest.json cannot be read: entity not found"), "{error}");
}

/// How a process ends at a step.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Crash {
    /// Before the step.
    Before,
    /// In the middle of a write.
    Torn,
    /// Before the step, with the power: what was not synced is gone.
    Power,
    /// It does not end: the step fails, and the process goes on.
    Fails(ErrorKind),
}

/// The disk until the step where it crashes; then nothing works any more. It notes what is synced instead of waiting for it.
struct Crashing {
    steps_left: usize,
    crash: Crash,
    unsynced: BTreeSet<PathBuf>,
    synced_dirs: Vec<PathBuf>,
    crashed: bool,
}

impl Crashing {
    fn new(steps_left: usize, crash: Crash) -> Crashing {
        Crashing { steps_left, crash, unsynced: BTreeSet::new(), synced_dirs: Vec::new(), crashed: false }
    }

    fn step(&mut self) -> Result<()> {
        let gone = || Err(Error::other("crashed"));
        if self.crashed {
            return gone();
        }
        if self.steps_left > 0 {
            self.steps_left -= 1;
            return Ok(());
        }
        if let Crash::Fails(kind) = self.crash {
            self.steps_left = usize::MAX;
            return Err(kind.into());
        }
        self.crashed = true;
        if self.crash == Crash::Power {
            for path in &self.unsynced {
                std::fs::write(path, "")?;
            }
        }
        gone()
    }
}

impl Storage for Crashing {
    fn create_dir_all(&mut self, path: &Path) -> Result<()> {
        self.step()?;
        Disk.create_dir_all(path)
    }

    fn write_new(&mut self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        if self.steps_left == 0 && self.crash == Crash::Torn && !self.crashed {
            let whole = parts.concat();
            Disk.write_new(path, &[&whole[..whole.len() / 2]])?;
        }
        self.step()?;
        self.unsynced.insert(path.to_owned());
        Disk.write_new(path, parts)
    }

    fn sync_file(&mut self, path: &Path) -> Result<()> {
        self.step()?;
        self.unsynced.remove(path);
        Ok(())
    }

    fn sync_dir(&mut self, path: &Path) -> Result<()> {
        self.step()?;
        self.synced_dirs.push(path.to_owned());
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        self.step()?;
        assert!(self.unsynced.is_empty(), "{from:?} gets its name before its data is on the disk");
        Disk.rename(from, to)
    }

    fn symlink(&mut self, target: &Path, link: &Path) -> Result<()> {
        self.step()?;
        Disk.symlink(target, link)
    }

    fn names(&mut self, dir: &Path) -> Result<Vec<String>> {
        Disk.names(dir)
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        self.step()?;
        Disk.remove(path)
    }
}

#[test]
fn the_newest_sets_are_kept_and_nothing_else_is_touched() {
    let dir = tempfile::tempdir().unwrap();
    for version in [2, 9, 10, 11] {
        save(dir.path(), version, &mut Disk).unwrap();
    }
    std::fs::write(dir.path().join("notes"), "mine").unwrap();
    std::fs::create_dir(dir.path().join("v1-mine")).unwrap();
    let versions = || {
        let mut names = Disk.names(dir.path()).unwrap();
        names.sort_unstable();
        names
    };
    let keep = |sets| core::num::NonZeroU32::new(sets).unwrap();
    prune(dir.path(), keep(5)).unwrap();
    assert_eq!(versions(), ["latest", "notes", "v1-mine", "v10", "v11", "v2", "v9"]);
    // The oldest goes first, and where it stays all do.
    let error = prune_on(dir.path(), keep(2), &mut Crashing::new(0, Crash::Fails(ErrorKind::Other))).unwrap_err();
    assert!(error.to_string().contains("v2 failed"), "{error}");
    assert_eq!(versions().len(), 7);
    prune(dir.path(), keep(2)).unwrap();
    assert_eq!(versions(), ["latest", "notes", "v1-mine", "v10", "v11"]);
    assert_eq!(read_latest(dir.path()).unwrap().state.version, 11);
    assert!(prune(&dir.path().join("nowhere"), keep(1)).is_err());
}

#[test]
fn pruning_that_is_interrupted_leaves_no_set_in_part() {
    let keep = core::num::NonZeroU32::MIN;
    let mut steps = 0;
    loop {
        let dir = tempfile::tempdir().unwrap();
        for version in 1..=3 {
            save(dir.path(), version, &mut Disk).unwrap();
        }
        let pruned = prune_on(dir.path(), keep, &mut Crashing::new(steps, Crash::Before));
        for name in Disk.names(dir.path()).unwrap().iter().filter(|name| name.starts_with('v')) {
            assert_eq!(verify(&dir.path().join(name)).map(drop), Ok(()), "{name} at step {steps}");
        }
        prune(dir.path(), keep).unwrap();
        let mut names = Disk.names(dir.path()).unwrap();
        names.sort_unstable();
        assert_eq!(names, ["latest", "v3"], "after step {steps}");
        if pruned.is_ok() {
            assert_eq!(steps, 5, "two names, their folder, two sets");
            break;
        }
        steps += 1;
    }
}

#[test]
fn a_reader_finds_a_set_while_others_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), 1, &mut Disk).unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for version in 2..200 {
                save(dir.path(), version, &mut Disk).unwrap();
                prune(dir.path(), core::num::NonZeroU32::MIN).unwrap();
            }
        });
        let mut newest = 0;
        while !writer.is_finished() {
            let found = read_latest(dir.path()).unwrap();
            assert!(newest <= found.state.version);
            newest = found.state.version;
        }
    });
    assert_eq!(read_latest(dir.path()).unwrap().state.version, 199);
}

/// A power cut after the first set of a run took the whole folder of the sets: its name was never on the disk.
#[test]
fn the_folder_of_the_sets_is_on_the_disk_before_a_set_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let sets = dir.path().join("checkpoints");
    let mut storage = Crashing::new(usize::MAX, Crash::Before);
    save(&sets, 1, &mut storage).unwrap();
    let names: Vec<&Path> = storage.synced_dirs.iter().map(PathBuf::as_path).collect();
    assert_eq!(names, [dir.path(), &sets.join(".v1.writing"), &sets, &sets]);
}

#[test]
fn a_crash_at_any_step_leaves_a_whole_set() {
    let never = || Crashing::new(usize::MAX, Crash::Before);
    let fails = [ErrorKind::StorageFull, ErrorKind::Other].map(Crash::Fails);
    for crash in [Crash::Before, Crash::Torn, Crash::Power, fails[0], fails[1]] {
        let mut steps = 0;
        loop {
            let dir = tempfile::tempdir().unwrap();
            save(dir.path(), 1, &mut never()).unwrap();
            let saved = save(dir.path(), 2, &mut Crashing::new(steps, crash));
            let found = read_latest(dir.path()).unwrap();
            assert_eq!(found.passed_over, [], "after {crash:?} at step {steps}");
            let latest = std::fs::read_link(dir.path().join(LATEST)).unwrap();
            assert!(verify(&dir.path().join(&latest)).is_ok(), "{latest:?} after {crash:?} at step {steps}");
            if saved.is_ok() {
                assert_eq!((found.state.version, latest), (2, PathBuf::from("v2")));
                assert!(steps > 15, "every step was tried: {steps}");
                break;
            }
            // The next attempt works, whatever the last one left behind. Where only the link was missing, the set is whole.
            let again = save(dir.path(), 3, &mut never());
            assert_eq!(again.unwrap(), dir.path().join("v3"), "after {crash:?} at step {steps}");
            assert_eq!(read_latest(dir.path()).unwrap().state.version, 3);
            if crash == Crash::Fails(ErrorKind::StorageFull) {
                let message = saved.unwrap_err().to_string();
                assert!(message.contains("no space left while "), "{message}");
            }
            steps += 1;
        }
    }
}

#[test]
fn the_outer_optimizers_state_comes_back_from_a_set_and_from_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (manifest, flat) = model();
    let tensors = tensors_of(&manifest, &flat).unwrap();
    let kept: Vec<u8> = (0..=255).collect();
    let set = CheckpointSet { tensors: &tensors, state: &state(7), outer: &kept };
    let path = set.save(dir.path()).unwrap();
    assert_eq!(read_outer(&path.join(OUTER_FILE)), Ok((7, kept.clone())));
    let bytes = std::fs::read(path.join(OUTER_FILE)).unwrap();
    let file = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("state").unwrap().data(), kept);
    // The manifest vouches for it too.
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(path.join(OUTER_FILE), damaged).unwrap();
    assert_eq!(verify(&path), Err(Flaw::Hash { file: OUTER_FILE.to_owned() }));

    let alone = dir.path().join("alone");
    write_outer(&alone, 9, &kept).unwrap();
    write_outer(&alone, 10, &kept[1..]).unwrap();
    assert_eq!(read_outer(&alone), Ok((10, kept[1..].to_vec())));
    for cut in 0..bytes.len() {
        std::fs::write(&alone, &bytes[..cut]).unwrap();
        assert!(matches!(read_outer(&alone), Err(Flaw::Malformed { .. })), "cut at {cut}");
    }
}
