//! Fetches libtorch into the cache, so that being killed at any moment leaves either nothing or all of it.
//!
//! One setup works at a time, behind a lock. Wheels are downloaded beside the folder, checked, unpacked into a folder of
//! this process, stamped, and renamed to the folder's own name at the end. What was downloaded in part is kept for the
//! next call; whatever else an interrupted setup left is cleared away by it.

use std::fs::{self, File, TryLockError};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::find::Found;
use super::pip::{self, Pip};
use super::place::Cache;
use super::python::{Kind, Trouble};
use super::version;
use super::wheel::Picked;
use super::world::{Machine, World, unresolved};
use crate::failure::Failure;

/// Bytes of the wheels, and of what is kept of them, at most (the build for CUDA; one without is a third of that).
const DOWNLOAD: u64 = 545_000_000;
const KEPT: u64 = 500_000_000;

/// Bytes from which on progress is told; less is there in a moment.
const WORTH_TELLING: u64 = 50_000_000;

/// The processors there are wheels for.
const ARCHS: [&str; 2] = ["x86_64", "aarch64"];

/// Fetches what the cache lacks.
///
/// # Errors
///
/// See [`super::libtorch`].
pub(super) fn fetch(machine: &Machine, cache: &Cache) -> Result<Found, Failure> {
    check_platform(std::env::consts::OS, std::env::consts::ARCH)?;
    let root = cache.root();
    fs::create_dir_all(root).map_err(|error| cannot_write(root, &error))?;
    let lock = lock(cache)?;
    // Another setup may have been at it until now.
    if !cache.is_whole(machine) {
        say(&format!(
            "there is no libtorch {}: fetching the wheel of torch with pip's settings, keeping its libraries for processors",
            version::WANTED
        ));
        clear(cache)?;
        check_space(machine, cache)?;
        install(machine, cache)?;
    }
    drop(lock);
    Ok(Found::Cached(cache.folder()))
}

fn check_platform(os: &str, arch: &str) -> Result<(), Failure> {
    if os == "linux" && ARCHS.contains(&arch) {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "libtorch is fetched for Linux on {} only, and this is {os} on {arch}: set LIBTORCH to a libtorch {}",
        ARCHS.join(" and "),
        version::WANTED
    )))
}

/// The lock, held until it is dropped or the process ends.
fn lock(cache: &Cache) -> Result<File, Failure> {
    let path = cache.lock();
    let denied = |error: std::io::Error| cannot_write(&path, &error);
    let file = File::options().create(true).truncate(false).write(true).open(&path).map_err(denied)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            say("another setup is at work here, waiting for it");
            file.lock().map_err(denied)?;
        }
        Err(TryLockError::Error(error)) => return Err(denied(error)),
    }
    Ok(file)
}

/// Removes the folders that interrupted setups have left.
fn clear(cache: &Cache) -> Result<(), Failure> {
    let root = cache.root();
    for entry in fs::read_dir(root).map_err(|error| cannot_write(root, &error))?.flatten() {
        if Cache::is_left_over(&entry.file_name()) {
            fs::remove_dir_all(entry.path()).map_err(|error| cannot_write(&entry.path(), &error))?;
        }
    }
    Ok(())
}

fn check_space(machine: &Machine, cache: &Cache) -> Result<(), Failure> {
    let free = machine.python.ask(&["free", &text(cache.root())], "", &mut |_, _| {})?;
    let downloads = fs::read_dir(cache.downloads()).into_iter().flatten().flatten();
    let have: u64 = downloads.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum();
    let left = DOWNLOAD.saturating_sub(have);
    say(&format!(
        "up to {} to download, {} of disk kept in {} (and as much as the download until it is done): a minute at 10 MB/s; \
         when interrupted, the next call goes on",
        megabytes(left),
        megabytes(KEPT),
        cache.root().display(),
    ));
    enough_space(free.as_u64().unwrap_or(u64::MAX), left + KEPT, cache.root())
}

fn enough_space(free: u64, needed: u64, folder: &Path) -> Result<(), Failure> {
    if free >= needed {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "{} has {} free and {} are needed: free some space, or name a folder elsewhere with FLODL_CACHE",
        folder.display(),
        megabytes(free),
        megabytes(needed)
    )))
}

/// Downloads, unpacks, checks and puts in place.
fn install(machine: &Machine, cache: &Cache) -> Result<(), Failure> {
    let downloads = cache.downloads();
    fs::create_dir_all(&downloads).map_err(|error| cannot_write(&downloads, &error))?;
    let pip = Pip::find(&machine.python, &downloads)?;
    let torch = obtain(machine, &pip, &downloads, &pip::torch())?;
    let requires = machine.python.ask(&["requires", &text(&torch)], "", &mut |_, _| {});
    let requires = requires.map_err(|trouble| unreadable(&torch, trouble))?;
    let requires: Vec<String> =
        requires.as_array().into_iter().flatten().filter_map(|line| line.as_str().map(str::to_owned)).collect();
    let mut wheels = vec![torch];
    for companion in pip::companions(&requires) {
        wheels.push(obtain(machine, &pip, &downloads, &companion)?);
    }

    let folder = cache.unpacking(std::process::id());
    let mut libraries = Vec::new();
    for wheel in &wheels {
        libraries.extend(unpack(machine, wheel, &folder)?);
    }
    link(&folder, &libraries)?;
    check_loads(machine, &folder)?;
    put(&folder.join("build-version"), &format!("{}\n", version::WANTED))?;
    let names: Vec<String> =
        wheels.iter().filter_map(|wheel| wheel.file_name().map(|name| text(Path::new(name)))).collect();
    put(&Cache::stamp_in(&folder), &Cache::stamp(&names, &libraries))?;

    let place = cache.folder();
    if place.exists() {
        // A folder cannot be renamed over one that holds something; the name has it cleared away.
        let aside = cache.aside(std::process::id());
        fs::rename(&place, &aside).map_err(|error| cannot_write(&place, &error))?;
    }
    fs::rename(&folder, &place).map_err(|error| cannot_write(&place, &error))?;
    clear(cache)?;
    fs::remove_dir_all(&downloads).map_err(|error| cannot_write(&downloads, &error))?;
    say(&format!("libtorch {} is in {}", version::WANTED, place.display()));
    Ok(())
}

/// The wheel of a requirement, downloaded and checked.
fn obtain(machine: &Machine, pip: &Pip<'_>, downloads: &Path, requirement: &str) -> Result<PathBuf, Failure> {
    let by_pip = || {
        say("pip fetches this one itself, as its server needs; when interrupted, it begins anew");
        pip.fetch(requirement)
    };
    let Some(wheel) = pip.locate(requirement)? else { return by_pip() };
    // The checksum in the name makes what is there in part a part of this very wheel.
    let name = format!("{}-{}.whl", requirement.replace("==", "-"), &wheel.sha256);
    let path = downloads.join(name);
    if path.is_file() {
        return Ok(path);
    }
    let settings = pip.settings();
    let mut progress = Progress::of(requirement);
    let args = ["download", &wheel.url, &text(&path), &wheel.sha256, &settings.cert, &settings.proxy];
    let result = machine.python.ask(&args, "", &mut |done, total| progress.tell(done, total));
    progress.end();
    match result {
        Ok(_) => Ok(path),
        // pip knows the person's passwords.
        Err(Trouble { kind: Kind::Denied, .. }) => by_pip(),
        Err(trouble) => Err(trouble.into()),
    }
}

/// Unpacks what is needed of a wheel and returns the libraries among it with their sizes.
fn unpack(machine: &Machine, wheel: &Path, folder: &Path) -> Result<Vec<(String, u64)>, Failure> {
    let members = machine.python.ask(&["members", &text(wheel)], "", &mut |_, _| {});
    let members = members.map_err(|trouble| unreadable(wheel, trouble))?;
    let members: Vec<(String, u64)> = serde_json::from_value(members)
        .map_err(|error| Failure::failed(format!("{} has strange members: {error}", wheel.display())))?;
    let picked = Picked::from(&members);
    let plan: String = picked.plan.iter().map(|(member, place)| format!("{member}\t{place}\n")).collect();
    let mut progress = Progress::of("unpacking");
    let args = ["unpack", &text(wheel), &text(folder)];
    let result = machine.python.ask(&args, &plan, &mut |done, total| progress.tell(done, total));
    progress.end();
    result.map_err(|trouble| unreadable(wheel, trouble))?;
    Ok(picked.libraries)
}

/// Gives the libraries the names that a linker looks for.
fn link(folder: &Path, libraries: &[(String, u64)]) -> Result<(), Failure> {
    let names = || libraries.iter().map(|(name, _)| name.as_str());
    let openmp = names().find(|name| name.starts_with("libgomp"));
    for (link, target) in [("libtorch.so", Some("libtorch_cpu.so")), ("libgomp.so", openmp)] {
        let Some(target) = target else { continue };
        if names().all(|name| name != link) {
            let path = folder.join("lib").join(link);
            symlink(target, &path).map_err(|error| cannot_write(&path, &error))?;
        }
    }
    Ok(())
}

#[cfg(unix)]
fn symlink(target: &str, path: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, path)
}

/// Elsewhere nothing is fetched, see [`check_platform`].
#[cfg(not(unix))]
fn symlink(_: &str, _: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Has the dynamic linker say whether a program could be started with the libraries.
fn check_loads(machine: &Machine, folder: &Path) -> Result<(), Failure> {
    let report = machine.linker_report(&folder.join("lib/libtorch_cpu.so"));
    let missing = report.map(|report| unresolved(&report)).unwrap_or_default();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::failed(format!(
        "the libtorch of pip's package server cannot be loaded here ({} not found): set LIBTORCH to a libtorch {}",
        missing.join(", "),
        version::WANTED
    )))
}

fn put(path: &Path, contents: &str) -> Result<(), Failure> {
    fs::write(path, contents).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}; name another folder with FLODL_CACHE", path.display()))
}

/// The failure for a wheel that cannot be used, which is removed so that the next call fetches it anew.
fn unreadable(wheel: &Path, trouble: Trouble) -> Failure {
    if trouble.kind == Kind::Wheel
        && let Err(error) = fs::remove_file(wheel)
    {
        return cannot_write(wheel, &error);
    }
    trouble.into()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn say(sentence: &str) {
    eprintln!("setup: {sentence}");
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}

/// Tells how far something is: on a terminal in one line that is written over, elsewhere a line at each tenth.
struct Progress {
    what: String,
    started: Instant,
    /// Where it was at the first word, so that a download that goes on is not taken for a fast one.
    first: Option<u64>,
    is_terminal: bool,
    /// The last step told, in hundredths or tenths.
    told: Option<u64>,
}

impl Progress {
    fn of(what: &str) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        Self { what: what.to_owned(), started: Instant::now(), first: None, is_terminal, told: None }
    }

    fn tell(&mut self, done: u64, total: u64) {
        if total < WORTH_TELLING {
            return;
        }
        let first = *self.first.get_or_insert(done);
        let steps = if self.is_terminal { 100 } else { 10 };
        let step = done.saturating_mul(steps) / total.max(1);
        if self.told == Some(step) {
            return;
        }
        self.told = Some(step);
        let line = how_far(done, total, done.saturating_sub(first), self.started.elapsed());
        let end = if self.is_terminal { '\r' } else { '\n' };
        eprint!("setup: {}: {line}{end}", self.what);
        // A standard error that cannot be written to is nobody's to read either.
        std::io::stderr().flush().unwrap_or_default();
    }

    /// Leaves the line that was written over.
    fn end(&self) {
        if self.is_terminal && self.told.is_some() {
            eprintln!();
        }
    }
}

/// `45 % of 531 MB, 12 MB/s`, with the speed over the bytes that came in this time.
fn how_far(done: u64, total: u64, came: u64, time: Duration) -> String {
    let percent = done.saturating_mul(100) / total.max(1);
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    let speed = came.saturating_mul(1000) / millis / 1_000_000;
    let speed = if time < Duration::from_secs(1) { String::new() } else { format!(", {speed} MB/s") };
    format!("{percent:>3} % of {}{speed}   ", megabytes(total)).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_platforms_are_told_to_name_a_libtorch() {
        for (os, arch, is_served) in [
            ("linux", "x86_64", true),
            ("linux", "aarch64", true),
            ("linux", "riscv64", false),
            ("macos", "aarch64", false),
            ("windows", "x86_64", false),
        ] {
            let result = check_platform(os, arch);
            assert_eq!(result.is_ok(), is_served, "{os} {arch}");
            if let Err(failure) = result {
                assert!(failure.message().is_some_and(|said| said.contains("set LIBTORCH") && said.contains(arch)));
            }
        }
    }

    #[test]
    fn too_little_space_is_told_with_both_numbers() {
        assert_eq!(enough_space(10, 10, Path::new("/c")), Ok(()));
        let failure = enough_space(99_000_000, 1_045_000_000, Path::new("/c")).expect_err("it does not fit");
        let said = failure.message().unwrap_or_default();
        assert!(said.contains("/c has 99 MB free and 1045 MB are needed") && said.contains("FLODL_CACHE"), "{said}");
    }

    #[test]
    fn progress_counts_what_came_this_time() {
        let cases = [
            ((0, 0, 0, 0), "  0 % of 0 MB"),
            ((300_000_000, 600_000_000, 100_000_000, 10), " 50 % of 600 MB, 10 MB/s"),
            ((600_000_000, 600_000_000, 0, 0), "100 % of 600 MB"),
        ];
        for ((done, total, came, seconds), expected) in cases {
            assert_eq!(how_far(done, total, came, Duration::from_secs(seconds)), expected);
        }
    }
}
