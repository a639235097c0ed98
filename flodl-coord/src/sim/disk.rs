//! The controller's disk: what was written, what of it is safe, and what is left when the power goes.
//!
//! Names and data become safe apart: a file's data by syncing the file, names by syncing their directory. Without either,
//! data is lost or torn and names are lost, the newest first, as file systems with a journal do it.

use super::class::Class;
use super::rng::Rng;
use super::violation::Rule;
use super::world::World;
use crate::{Input, SaveRequest};
use core::num::NonZeroU32;
use flodl_wire::{Time, Version};
use flodl_worker::checkpoint::{
    CheckpointSet, EpochCoverage, MODEL_FILE, State, Storage, prune_on, read_latest, tensors_of,
};
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// The folder of the sets. It is on no real disk.
const FOLDER: &str = "/flodl-sim/run/checkpoints";

/// What has a name.
#[derive(Clone, Debug, PartialEq)]
enum Entry {
    Dir,
    Link(PathBuf),
    File(usize),
}

/// A file's data, and what of it is safe.
#[derive(Clone, Debug, Default)]
struct File {
    data: Vec<u8>,
    synced: bool,
}

/// A change of names that is not safe yet.
#[derive(Clone, Debug)]
enum Change {
    Create(PathBuf, Entry),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

type Names = BTreeMap<PathBuf, Entry>;

/// A name that is left after a power cut, with its data where it is a file and its target where it is a link.
type Left = (PathBuf, Option<Vec<u8>>, Option<PathBuf>);

/// The disk.
#[derive(Debug)]
pub(crate) struct Disk {
    names: Names,
    safe: Names,
    changes: Vec<Change>,
    files: Vec<File>,
    rng: Rng,
    /// The step at which a fault strikes, and which one.
    fault: Option<(u64, Class)>,
    steps: u64,
    /// Syncing does nothing (a mutant).
    lies: bool,
    /// What was said to be saved, with its bytes.
    saved: Option<(Version, Vec<u8>)>,
    /// The newest set that was asked for: a reader may find it though nobody was told.
    asked: Option<(Version, Vec<u8>)>,
}

impl Change {
    fn path(&self) -> &Path {
        match self {
            Change::Create(path, _) | Change::Rename(path, _) | Change::Remove(path) => path,
        }
    }

    fn apply(&self, names: &mut Names) {
        match self {
            Change::Create(path, entry) => {
                names.insert(path.clone(), entry.clone());
            }
            Change::Remove(path) => names.retain(|name, _| !name.starts_with(path)),
            Change::Rename(from, to) => {
                let moved: Vec<PathBuf> = names.keys().filter(|name| name.starts_with(from)).cloned().collect();
                names.remove(to);
                for name in moved {
                    if let (Some(entry), Ok(rest)) = (names.remove(&name), name.strip_prefix(from)) {
                        let name = if rest.as_os_str().is_empty() { to.clone() } else { to.join(rest) };
                        names.insert(name, entry);
                    }
                }
            }
        }
    }
}

impl Disk {
    /// An empty disk. `lies`: it confirms a sync before anything is safe.
    pub(crate) fn new(rng: Rng, lies: bool) -> Disk {
        let mut names = Names::new();
        for dir in ["/", "/flodl-sim", "/flodl-sim/run"] {
            names.insert(PathBuf::from(dir), Entry::Dir);
        }
        Disk {
            safe: names.clone(),
            names,
            changes: Vec::new(),
            files: Vec::new(),
            rng,
            fault: None,
            steps: 0,
            lies,
            saved: None,
            asked: None,
        }
    }

    /// A fault strikes at one of the next steps.
    pub(crate) fn arm(&mut self, class: Class, rng: &mut Rng) {
        self.fault = Some((self.steps + rng.within(1, 16), class));
    }

    fn step(&mut self) -> Option<Class> {
        self.steps += 1;
        self.fault.take_if(|(at, _)| *at <= self.steps).map(|(_, class)| class)
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.names);
        self.changes.push(change);
    }

    fn file(&mut self, path: &Path) -> Result<&mut File> {
        match self.names.get(path) {
            Some(Entry::File(file)) => Ok(&mut self.files[*file]),
            _ => Err(ErrorKind::NotFound.into()),
        }
    }

    /// What is there after the power was gone: names, with data where they are files.
    pub(crate) fn power_cut(&mut self) -> Vec<Left> {
        let mut names = self.safe.clone();
        let kept = self.rng.below(self.changes.len() as u64 + 1) as usize;
        self.changes[..kept].iter().for_each(|change| change.apply(&mut names));
        let mut left = Vec::new();
        for (name, entry) in &names {
            if name.ancestors().skip(1).any(|dir| names.get(dir) != Some(&Entry::Dir)) {
                continue;
            }
            match entry {
                Entry::Dir => left.push((name.clone(), None, None)),
                Entry::Link(target) => left.push((name.clone(), None, Some(target.clone()))),
                Entry::File(file) => {
                    let File { data, synced } = &self.files[*file];
                    let mut data = data.clone();
                    if !synced {
                        let torn = self.rng.below(data.len() as u64 + 1) as usize;
                        data[torn..].fill(0);
                        if self.rng.chance(0.5) {
                            data.truncate(torn);
                        }
                    }
                    left.push((name.clone(), Some(data), None));
                }
            }
        }
        left
    }
}

impl Storage for Disk {
    fn create_dir_all(&mut self, path: &Path) -> Result<()> {
        self.step();
        let mut missing: Vec<&Path> = path.ancestors().take_while(|dir| !self.names.contains_key(*dir)).collect();
        missing.reverse();
        for dir in missing {
            self.change(Change::Create(dir.to_owned(), Entry::Dir));
        }
        Ok(())
    }

    fn write_new(&mut self, path: &Path, parts: &[&[u8]]) -> Result<()> {
        let fault = self.step();
        if self.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let mut data = parts.concat();
        if fault == Some(Class::DiskFull) {
            data.truncate(self.rng.below(data.len() as u64 + 1) as usize);
        }
        self.files.push(File { data, synced: false });
        self.change(Change::Create(path.to_owned(), Entry::File(self.files.len() - 1)));
        if fault == Some(Class::DiskFull) { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync_file(&mut self, path: &Path) -> Result<()> {
        if self.step() == Some(Class::FailedSync) {
            return Err(Error::other("input/output error"));
        }
        let lies = self.lies;
        self.file(path)?.synced |= !lies;
        Ok(())
    }

    fn sync_dir(&mut self, path: &Path) -> Result<()> {
        if self.step() == Some(Class::FailedSync) {
            return Err(Error::other("input/output error"));
        }
        if self.lies {
            return Ok(());
        }
        let (safe, rest): (Vec<Change>, Vec<Change>) =
            core::mem::take(&mut self.changes).into_iter().partition(|change| change.path().parent() == Some(path));
        safe.iter().for_each(|change| change.apply(&mut self.safe));
        self.changes = rest;
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Result<()> {
        self.step();
        if !self.names.contains_key(from) {
            return Err(ErrorKind::NotFound.into());
        }
        self.change(Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn symlink(&mut self, target: &Path, link: &Path) -> Result<()> {
        self.step();
        self.change(Change::Create(link.to_owned(), Entry::Link(target.to_owned())));
        Ok(())
    }

    fn names(&mut self, dir: &Path) -> Result<Vec<String>> {
        let here = self.names.keys().filter(|name| name.parent() == Some(dir));
        Ok(here.filter_map(|name| Some(name.file_name()?.to_str()?.to_owned())).collect())
    }

    fn remove(&mut self, path: &Path) -> Result<()> {
        self.step();
        if self.names.contains_key(path) {
            self.change(Change::Remove(path.to_owned()));
        }
        Ok(())
    }
}

impl World {
    pub(crate) fn strike_disk(&mut self, class: Class, rng: &mut Rng) -> Option<Time> {
        // The power is cut at the very end, so that there is something to look at.
        if class != Class::TornWrite {
            self.disk.arm(class, rng);
        }
        Some(self.fab.now)
    }

    /// Writes a set, as the controller's saver does.
    pub(crate) fn save(&mut self, request: &SaveRequest) {
        let result = self.write(request);
        self.fab.say(|| format!("saved: {result:?}"));
        let takes = self.fab.rng.within(1_000_000, 200_000_000);
        self.tell(takes, Input::Saved { version: request.version, result });
    }

    fn write(&mut self, request: &SaveRequest) -> core::result::Result<String, String> {
        let (version, bytes) = self.controller.consensus().ok_or("the root holds no consensus")?;
        if version != request.version {
            self.fab.ledger.broken(Rule::Durable, format!("the root holds {version:?}, not {:?}", request.version));
        }
        let tensors = tensors_of(&request.tensors, &bytes).map_err(|error| error.to_string())?;
        let coverage = request.coverage.iter().map(|(epoch, ranges)| EpochCoverage {
            epoch: epoch.0,
            committed: ranges.iter().map(|range| (range.start, range.end)).collect(),
        });
        let state = State {
            version: version.0,
            epoch: request.epoch.0,
            coverage: coverage.collect(),
            why: request.why.clone(),
            ..State::default()
        };
        self.disk.asked = Some((version, bytes.to_vec()));
        let set = CheckpointSet { tensors: &tensors, state: &state, outer: &[] };
        let path = set.save_to(Path::new(FOLDER), &mut self.disk).map_err(|error| error.to_string())?;
        self.disk.saved = Some((version, bytes.to_vec()));
        let keep = NonZeroU32::MIN.saturating_add(1);
        if let Err(error) = prune_on(Path::new(FOLDER), keep, &mut self.disk) {
            self.fab.say(|| format!("not pruned: {error}"));
        }
        Ok(path.display().to_string())
    }

    /// Whether what was said to be saved is there when the power is gone. Reading needs a real folder.
    pub(crate) fn check_disk(&mut self) {
        let Some((version, bytes)) = self.disk.saved.clone() else { return };
        if !self.fab.options.has(Class::TornWrite) {
            return;
        }
        let left = self.disk.power_cut();
        if let Err(what) = self.check_left(&left, version, &bytes) {
            self.fab
                .ledger
                .broken(Rule::Durable, format!("{version:?} was saved and, after the power was cut, {what}"));
        }
    }

    fn check_left(&self, left: &[Left], version: Version, bytes: &[u8]) -> core::result::Result<(), String> {
        let scratch = std::env::temp_dir().join(format!(
            "flodl-sim-{}-{}-{}",
            std::process::id(),
            self.fab.options.request.seed,
            self.fab.options.request.mutant.map_or("", super::mutant::Mutant::name)
        ));
        let result = lay_out(&scratch, left).map_err(|error| error.to_string()).and_then(|()| {
            let dir = scratch.join("flodl-sim/run/checkpoints");
            let found = read_latest(&dir).map_err(|error| error.to_string())?;
            let model = std::fs::read(found.path.join(MODEL_FILE)).map_err(|error| error.to_string())?;
            let holds = |section: &[u8]| model.windows(section.len()).any(|window| window == section);
            // A newer one may be whole though nobody was told.
            let newer = self.disk.asked.iter().filter(|(asked, _)| *asked > version);
            let known = newer.map(|(version, bytes)| (*version, &bytes[..])).chain([(version, bytes)]);
            let Some((_, bytes)) = known.into_iter().find(|(known, _)| known.0 == found.state.version) else {
                return Err(format!("the newest set is of version {}", found.state.version));
            };
            // A file of tensors has its own order of sections; the largest is enough to tell versions apart.
            let weights = &bytes[..4 * self.fab.options.work.parameters as usize];
            if holds(weights) { Ok(()) } else { Err("the model holds other bytes".to_owned()) }
        });
        // Whatever is left there has a name that nothing else uses.
        std::fs::remove_dir_all(&scratch).ok();
        result
    }
}

fn lay_out(scratch: &Path, left: &[Left]) -> Result<()> {
    for (name, data, link) in left {
        let path = scratch.join(name.strip_prefix("/").unwrap_or(name));
        match (data, link) {
            (Some(data), _) => std::fs::write(path, data)?,
            (None, Some(target)) => std::os::unix::fs::symlink(target, path)?,
            (None, None) => std::fs::create_dir_all(path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(Rng::new(3), false)
    }

    fn write(disk: &mut Disk, name: &str) -> PathBuf {
        let path = Path::new("/flodl-sim/run").join(name);
        disk.write_new(&path, &[b"0123456789"]).expect("is written");
        path
    }

    #[test]
    fn what_is_synced_survives_and_what_is_not_may_not() {
        let mut disk = disk();
        let synced = write(&mut disk, "synced");
        disk.sync_file(&synced).expect("is synced");
        disk.sync_dir(Path::new("/flodl-sim/run")).expect("is synced");
        let loose = write(&mut disk, "loose");
        let mut seen = [0; 2];
        for _ in 0..64 {
            let left = disk.power_cut();
            let data = |path: &Path| left.iter().find(|(name, ..)| name == path).and_then(|(_, data, _)| data.clone());
            assert_eq!(data(&synced).as_deref(), Some(&b"0123456789"[..]));
            seen[usize::from(data(&loose).as_deref() == Some(b"0123456789"))] += 1;
        }
        assert!(seen[0] > 0, "never lost: {seen:?}");
    }

    #[test]
    fn a_directory_is_renamed_with_what_is_in_it() {
        let mut disk = disk();
        let run = Path::new("/flodl-sim/run");
        disk.create_dir_all(&run.join("a")).expect("is made");
        let file = write(&mut disk, "a/file");
        disk.rename(&run.join("a"), &run.join("b")).expect("is renamed");
        assert!(disk.sync_file(&file).is_err());
        assert!(disk.sync_file(&run.join("b/file")).is_ok());
    }

    #[test]
    fn faults_strike_where_they_belong() {
        let mut disk = disk();
        disk.fault = Some((1, Class::DiskFull));
        let error = disk.write_new(Path::new("/flodl-sim/run/x"), &[b"xx"]).expect_err("is full");
        assert_eq!(error.kind(), ErrorKind::StorageFull);
        disk.fault = Some((2, Class::FailedSync));
        assert!(disk.sync_dir(Path::new("/flodl-sim/run")).is_err());
        assert!(disk.sync_dir(Path::new("/flodl-sim/run")).is_ok(), "once");
    }
}
