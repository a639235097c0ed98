//! The journal in the run directory: the file, the lock that keeps a second controller away, and the thread that writes.

use super::failure::Failure;
use super::rundir::RunDir;
use crate::journal::{Entry, Image, Journal, Restored, Store, read};
use crate::shell::{Event, limits};
use async_channel::{Receiver, Sender};
use flodl_wire::RunId;
use flodl_wire::message::record::Reason;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

/// The file in the run directory.
const NAME: &str = "journal";
/// Held for as long as a controller of the run lives.
const LOCK: &str = "journal.lock";
/// Bytes that a journal may have: far more than one that is written anew now and then ever has.
const MAX: u64 = 1 << 30;

/// Why there is no journal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoJournal {
    /// Another process has it.
    #[error(
        "another controller runs this run{holder}: only one may. Stop that one first, or leave the run to it \
         (it holds {path})", path = path.display()
    )]
    Locked { path: PathBuf, holder: String },
    /// It cannot be read, written or locked.
    #[error("{path}: {error}; name the run directory of `flodl serve`", path = path.display())]
    Unusable { path: PathBuf, error: io::Error },
    /// It is too long to be one.
    #[error("{path} has {len} bytes, more than any journal: it is not one", path = path.display())]
    TooLong { path: PathBuf, len: u64 },
    /// What is in it cannot be gone on with.
    #[error("{path}: {why}", path = path.display())]
    Content { path: PathBuf, why: String },
}

/// The right to be the run's controller. Other processes get it when this one ends, however it ends.
#[derive(Debug)]
pub(crate) struct Lock {
    #[expect(dead_code, reason = "the lock is the file's as long as it is open")]
    file: File,
}

impl Lock {
    /// Takes it.
    pub(crate) fn take(dir: &RunDir) -> Result<Lock, NoJournal> {
        let path = dir.file(LOCK);
        let unusable = |error| NoJournal::Unusable { path: path.clone(), error };
        let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = open.map_err(unusable)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // For people alone; without it the sentence is as true.
                Read::by_ref(&mut file).take(20).read_to_string(&mut pid).ok();
                let holder =
                    pid.trim().parse::<u32>().map_or_else(|_| String::new(), |pid| format!(" (process {pid})"));
                return Err(NoJournal::Locked { path, holder });
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(unusable)?;
        Ok(Lock { file })
    }
}

/// What an earlier controller wrote into the run directory, and how many bytes of a last record it did not finish.
pub(crate) fn restored(dir: &RunDir, run_id: RunId) -> Result<(Image, Restored, usize), NoJournal> {
    let path = dir.file(NAME);
    let unusable = |error| NoJournal::Unusable { path: path.clone(), error };
    let file = File::open(&path).map_err(unusable)?;
    let len = file.metadata().map_err(unusable)?.len();
    if len > MAX {
        return Err(NoJournal::TooLong { path, len });
    }
    let mut bytes = Vec::new();
    file.take(MAX).read_to_end(&mut bytes).map_err(unusable)?;
    let content = |why: String| NoJournal::Content { path: path.clone(), why };
    let damage = |why: crate::journal::Damage| content(why.to_string().replace("JOURNAL", &path.display().to_string()));
    let found = read(&bytes).map_err(damage)?;
    let image = Image::of(found.entries);
    if let Some(other) = image.run_id().filter(|other| *other != run_id) {
        let why = format!("it is the journal of run {other}, and its folder is that of run {run_id}: put back its own");
        return Err(content(why));
    }
    let restored = image.restored().map_err(|why| content(why.to_string()))?;
    Ok((image, restored, found.torn))
}

/// The journal's file.
#[derive(Debug)]
pub(crate) struct FileStore {
    path: PathBuf,
    file: Option<File>,
}

impl FileStore {
    /// In the run directory.
    pub(crate) fn new(dir: &RunDir) -> FileStore {
        FileStore { path: dir.file(NAME), file: None }
    }
}

impl Store for FileStore {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file = None;
        let beside = self.path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, &self.path)?;
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
        self.file = Some(file);
        Ok(())
    }
}

/// The journal's thread, and the way to it.
#[derive(Debug)]
pub(crate) struct Recorder {
    entries: Sender<Entry>,
    thread: JoinHandle<()>,
}

impl Recorder {
    /// Starts to write behind. Trouble goes to `events`.
    pub(crate) fn start(journal: Journal<FileStore>, events: Sender<Event>) -> Result<Recorder, Failure> {
        let (sender, entries) = async_channel::bounded(limits::JOURNAL);
        let builder = thread::Builder::new().name("flodl-journal".to_owned());
        let thread = builder
            .spawn(move || record(journal, &entries, &events))
            .map_err(|error| Failure::failed(format!("the journal's thread cannot be started: {error}")))?;
        Ok(Recorder { entries: sender, thread })
    }

    /// Where entries go.
    pub(crate) fn entries(&self) -> Sender<Entry> {
        self.entries.clone()
    }

    /// Waits until everything is written that was told.
    pub(crate) fn finish(self) {
        self.entries.close();
        // A thread that panicked has said so itself.
        self.thread.join().ok();
    }
}

fn record(mut journal: Journal<FileStore>, entries: &Receiver<Entry>, events: &Sender<Event>) {
    let mut failing = false;
    while let Ok(entry) = entries.recv_blocking() {
        let said = match journal.write(entry) {
            Ok(()) if std::mem::take(&mut failing) => Some("the journal can be written again".to_owned()),
            Ok(()) => None,
            Err(error) if !std::mem::replace(&mut failing, true) => Some(format!(
                "the journal cannot be written ({error}): the run goes on, and what a new controller would need is with \
                 the hosts alone"
            )),
            Err(_) => None,
        };
        if let Some(text) = said {
            // The run may be over; then nobody needs to know.
            events.send_blocking(Event::Notice(Reason::new("journal", text))).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Damage, Start};
    use crate::{Config, Duties, Membership, Scheduling, Slowing};

    const RUN: RunId = RunId([7; 16]);

    fn config(run_id: RunId) -> Config {
        Config {
            run_id,
            world_size: 3,
            min_ranks: 1,
            mode: flodl_elche::Mode::CpuCadence,
            epochs: None,
            epoch_splits: 1,
            batch_size: None,
            seed: 5,
            patience: core::time::Duration::from_secs(2),
            slow: Slowing::default(),
            membership: Membership::default(),
            scheduling: Scheduling::default(),
            duties: Duties::default(),
        }
    }

    fn dir() -> (tempfile::TempDir, RunDir) {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let dir = RunDir::create(&temp.path().join("run")).expect("can be made");
        (temp, dir)
    }

    #[test]
    fn b16_a_second_controller_is_refused_by_the_first_ones_name() {
        let (_temp, dir) = dir();
        let held = Lock::take(&dir).expect("nobody else has it");
        let error = Lock::take(&dir).expect_err("it is held").to_string();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        assert!(error.contains("only one may"), "{error}");
        drop(held);
        Lock::take(&dir).expect("it is free again");
    }

    #[test]
    fn a_journal_in_a_folder_is_found_again() {
        let (_temp, dir) = dir();
        let error = restored(&dir, RUN).expect_err("nothing there").to_string();
        assert!(error.contains("name the run directory"), "{error}");
        let mut journal = Journal::new(FileStore::new(&dir), Image::default());
        journal.write(Entry::Ended { exit: 0 }).expect("can be written");
        journal.write(Entry::Ended { exit: 3 }).expect("can be written");
        let error = restored(&dir, RUN).expect_err("holds no run").to_string();
        assert!(error.contains("holds no run"), "{error}");
        assert_eq!(
            fs::read(dir.file(NAME)).map(|bytes| read(&bytes).map(|found| found.entries.len())).ok(),
            Some(Ok(2))
        );
    }

    #[test]
    fn the_journal_of_another_run_is_named() {
        let (_temp, dir) = dir();
        let mut journal = Journal::new(FileStore::new(&dir), Image::default());
        let other = RunId([8; 16]);
        let config = config(other);
        let (address, keep_checkpoints) = ("127.0.0.1:1".to_owned(), core::num::NonZeroU32::MIN);
        let start = Start { run_id: other, generation: 0, address, keep_checkpoints, config };
        journal.write(Entry::Start(Box::new(start))).expect("can be written");
        let error = restored(&dir, RUN).expect_err("is another's").to_string();
        assert!(error.contains(&format!("of run {other}, and its folder is that of run {RUN}")), "{error}");
    }

    #[test]
    fn a_full_disk_costs_nothing_but_what_is_not_written_later() {
        let (_temp, dir) = dir();
        let mut journal = Journal::new(FileStore::new(&dir), Image::default());
        journal.write(Entry::Ended { exit: 0 }).expect("can be written");
        // A write that does not fit, and then one in place of everything that does not either.
        journal.store_mut().file = Some(OpenOptions::new().write(true).open("/dev/full").expect("Linux has it"));
        let error = journal.write(Entry::Ended { exit: 1 }).expect_err("is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let beside = dir.file(NAME).with_extension("new");
        fs::create_dir(&beside).expect("can be made");
        journal.write(Entry::Ended { exit: 2 }).expect_err("is in the way");
        let there = || read(&fs::read(dir.file(NAME)).expect("is there")).expect("is whole").entries;
        assert_eq!(there(), [Entry::Ended { exit: 0 }]);
        fs::remove_dir(&beside).expect("is empty");
        journal.write(Entry::Ended { exit: 3 }).expect("can be written again");
        assert_eq!(there(), [Entry::Ended { exit: 3 }], "the image of a journal keeps what counts");
    }

    #[test]
    fn damage_is_named_with_what_to_do() {
        let (_temp, dir) = dir();
        fs::write(dir.file(NAME), "something that is no journal").expect("can be written");
        let error = restored(&dir, RUN).expect_err("is none").to_string();
        assert!(error.ends_with(&Damage::NotAJournal.to_string()), "{error}");
        let mut journal = Journal::new(FileStore::new(&dir), Image::default());
        for _ in 0..3 {
            journal.write(Entry::Ended { exit: 3 }).expect("can be written");
        }
        let mut bytes = fs::read(dir.file(NAME)).expect("is there");
        bytes[20] ^= 1;
        fs::write(dir.file(NAME), bytes).expect("can be written");
        let error = restored(&dir, RUN).expect_err("is damaged").to_string();
        assert!(error.contains(&format!("truncate -s 16 {}", dir.file(NAME).display())), "{error}");
    }
}
