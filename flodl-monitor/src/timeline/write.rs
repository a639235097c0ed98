//! Writing a timeline: a failing disk costs records, never the run.

use super::{MAX_LINE, file_name};
use flodl_wire::message::Record;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Lines are gathered up to so many bytes before they are written without being asked to.
pub(super) const BUFFER: usize = 64 * 1024;

/// Where a timeline's files come from. [`Folder`] for real ones.
pub trait Parts {
    /// A file to append to, without a buffer of its own.
    type Part: Write;

    /// Opens the next, empty file.
    ///
    /// # Errors
    ///
    /// Where it cannot be opened: the timeline then ends.
    fn open(&mut self) -> io::Result<Self::Part>;
}

/// The timeline's files in a folder. Files of an earlier process are left alone.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    next: u32,
}

impl Parts for Folder {
    type Part = File;

    fn open(&mut self) -> io::Result<File> {
        loop {
            let path = self.path.join(file_name(self.next));
            let opened = OpenOptions::new().append(true).create_new(true).open(path);
            match opened {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && self.next < u32::MAX => self.next += 1,
                opened => return opened,
            }
        }
    }
}

/// Writes records. Never an end of the run: the first failure is told once, what comes after it is counted.
#[derive(Debug)]
pub struct Timeline<P: Parts = Folder> {
    parts: P,
    sink: Sink<P::Part>,
    /// Whole lines that are not written yet.
    pub(super) pending: Vec<u8>,
    rotate_at: u64,
    dropped: u64,
}

#[derive(Debug)]
enum Sink<W> {
    /// The next line opens a file.
    Unopened,
    Open {
        file: W,
        /// Bytes written to it.
        len: u64,
    },
    Failed,
}

impl Timeline<Folder> {
    /// A timeline in `folder`, which must exist. A file that has `rotate_at` bytes is followed by the next one; a line
    /// is never split. Nothing is opened before the first write.
    #[must_use]
    pub fn in_folder(folder: &Path, rotate_at: u64) -> Timeline {
        Timeline::new(Folder { path: folder.to_owned(), next: 0 }, rotate_at)
    }

    /// The path of the file being written, or of the first one before that.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.parts.path.join(file_name(self.parts.next))
    }
}

impl<P: Parts> Timeline<P> {
    /// A timeline in files of `parts`.
    pub fn new(parts: P, rotate_at: u64) -> Timeline<P> {
        Timeline { parts, sink: Sink::Unopened, pending: Vec::new(), rotate_at, dropped: 0 }
    }

    /// Adds a record. It is in the file after the next [`flush`](Timeline::flush), whose delay the caller bounds, or
    /// earlier where much has gathered.
    ///
    /// # Errors
    ///
    /// [`SinkError`] once, where gathered lines could not be written. From then on records are counted as dropped.
    pub fn append(&mut self, record: &Record) -> Result<(), SinkError> {
        if matches!(self.sink, Sink::Failed) {
            self.dropped = self.dropped.saturating_add(1);
            return Ok(());
        }
        let line = match serde_json::to_vec(record) {
            Ok(line) if line.len() < MAX_LINE => line,
            // A record that the reader would refuse.
            _ => {
                self.dropped = self.dropped.saturating_add(1);
                return Ok(());
            }
        };
        let mut flushed = Ok(());
        if self.pending.len() + line.len() >= BUFFER || self.is_full(line.len()) {
            flushed = self.flush();
        }
        if self.is_full(line.len()) {
            self.sink = Sink::Unopened;
        }
        if matches!(self.sink, Sink::Failed) {
            self.dropped = self.dropped.saturating_add(1);
        } else {
            self.pending.extend_from_slice(&line);
            self.pending.push(b'\n');
        }
        flushed
    }

    /// Writes what has gathered, in whole lines.
    ///
    /// # Errors
    ///
    /// [`SinkError`] once, as [`append`](Timeline::append).
    pub fn flush(&mut self) -> Result<(), SinkError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut written = 0;
        let done = self.write_pending(&mut written);
        if done.is_err() {
            let lost = self.pending[written..].iter().filter(|&&byte| byte == b'\n').count();
            self.dropped = self.dropped.saturating_add(lost as u64);
            self.sink = Sink::Failed;
        }
        self.pending.clear();
        done
    }

    /// How many records are not in the timeline because of a failure.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether a line of `more` bytes would make a file that has something too long.
    fn is_full(&self, more: usize) -> bool {
        let len = match self.sink {
            Sink::Open { len, .. } => len,
            Sink::Unopened => 0,
            Sink::Failed => return false,
        } + self.pending.len() as u64;
        len > 0 && len.saturating_add(more as u64) >= self.rotate_at
    }

    /// Writes the gathered lines; `written` says how far it came.
    fn write_pending(&mut self, written: &mut usize) -> Result<(), SinkError> {
        if matches!(self.sink, Sink::Unopened) {
            let file = self.parts.open().map_err(|error| SinkError::open(&error))?;
            self.sink = Sink::Open { file, len: 0 };
        }
        let Sink::Open { file, len } = &mut self.sink else { return Ok(()) };
        while *written < self.pending.len() {
            match file.write(&self.pending[*written..]) {
                Ok(0) => return Err(SinkError::write(&io::ErrorKind::WriteZero.into())),
                Ok(count) => *written += count.min(self.pending.len() - *written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(SinkError::write(&error)),
            }
        }
        *len = len.saturating_add(self.pending.len() as u64);
        file.flush().map_err(|error| SinkError::write(&error))
    }
}

impl<P: Parts> Drop for Timeline<P> {
    fn drop(&mut self) {
        // Nobody is left to tell; a caller that wants to know flushes first.
        self.flush().ok();
    }
}

/// The timeline ends here; the run does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SinkError {
    /// A file could not be opened.
    #[error(
        "the timeline's next file cannot be opened: {why}; the run goes on without a timeline, make its folder writable before the next run"
    )]
    Open {
        /// What kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        why: String,
    },
    /// A file could not be written.
    #[error(
        "the timeline cannot be written: {why}; the run goes on without it, free space on its disk before the next run"
    )]
    Write {
        /// What kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        why: String,
    },
}

impl SinkError {
    fn open(error: &io::Error) -> SinkError {
        SinkError::Open { kind: error.kind(), why: error.to_string() }
    }

    fn write(error: &io::Error) -> SinkError {
        SinkError::Write { kind: error.kind(), why: error.to_string() }
    }
}
