//! Reading a timeline back, of a run that goes on, ended or crashed.

use super::{MAX_LINE, file_name, part_of};
use flodl_wire::message::Record;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// The records of a folder's timeline, over all its files in order.
///
/// A torn last line of a file is no error: it ends the file. A line that is no record (of a newer program, or damaged)
/// is an error in its place, and the next item goes on after it.
#[derive(Debug)]
pub struct Reader {
    waiting: VecDeque<PathBuf>,
    current: Option<Records<BufReader<File>>>,
}

impl Reader {
    /// The timeline in `folder`.
    ///
    /// # Errors
    ///
    /// [`ReadError::Missing`] where there is none, [`ReadError::Unreadable`] where the folder cannot be listed.
    pub fn open(folder: &Path) -> Result<Reader, ReadError> {
        let unreadable = |error: io::Error| ReadError::unreadable(folder, &error);
        let mut parts = Vec::new();
        for entry in fs::read_dir(folder).map_err(unreadable)? {
            parts.extend(entry.map_err(unreadable)?.file_name().to_str().and_then(part_of));
        }
        if parts.is_empty() {
            return Err(ReadError::Missing { folder: folder.to_owned() });
        }
        parts.sort_unstable();
        let waiting = parts.into_iter().map(|part| folder.join(file_name(part))).collect();
        Ok(Reader { waiting, current: None })
    }
}

impl Iterator for Reader {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(item) = self.current.as_mut().and_then(Iterator::next) {
                return Some(item);
            }
            let path = self.waiting.pop_front()?;
            match File::open(&path) {
                Ok(file) => self.current = Some(Records::new(&path, BufReader::new(file))),
                Err(error) => {
                    self.current = None;
                    return Some(Err(ReadError::unreadable(&path, &error)));
                }
            }
        }
    }
}

/// The records of one file, from any reader.
#[derive(Debug)]
pub struct Records<R> {
    file: PathBuf,
    from: R,
    line: u64,
    bytes: Vec<u8>,
    ended: bool,
}

impl<R: BufRead> Records<R> {
    /// The records that `from` holds; errors name it `file`.
    pub fn new(file: &Path, from: R) -> Records<R> {
        Records { file: file.to_owned(), from, line: 0, bytes: Vec::new(), ended: false }
    }

    /// The next line into `bytes`, at most [`MAX_LINE`] of it; whether that was all of it.
    fn read_line(&mut self) -> io::Result<bool> {
        self.line = self.line.saturating_add(1);
        self.bytes.clear();
        read_some(&mut self.from, &mut self.bytes)?;
        if self.bytes.last() == Some(&b'\n') || self.bytes.len() < MAX_LINE {
            return Ok(true);
        }
        let mut rest = Vec::new();
        while rest.last() != Some(&b'\n') {
            rest.clear();
            if read_some(&mut self.from, &mut rest)? == 0 {
                break;
            }
        }
        Ok(false)
    }

    fn malformed(&self, why: String) -> ReadError {
        ReadError::Malformed { file: self.file.clone(), line: self.line, why }
    }
}

/// Reads up to a line's end, at most [`MAX_LINE`] bytes.
fn read_some(from: &mut impl BufRead, into: &mut Vec<u8>) -> io::Result<usize> {
    from.take(MAX_LINE as u64).read_until(b'\n', into)
}

impl<R: BufRead> Iterator for Records<R> {
    type Item = Result<Record, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let whole = match self.read_line() {
            Ok(whole) => whole,
            Err(error) => {
                self.ended = true;
                return Some(Err(ReadError::unreadable(&self.file, &error)));
            }
        };
        if !whole {
            return Some(Err(self.malformed(format!("it is longer than {MAX_LINE} bytes"))));
        }
        // No prefix of a record is a record, so one that lacks only its line's end is taken.
        let torn = self.bytes.last() != Some(&b'\n');
        self.ended = torn;
        match serde_json::from_slice(&self.bytes) {
            Ok(record) => Some(Ok(record)),
            Err(_) if torn => None,
            Err(error) => Some(Err(self.malformed(error.to_string()))),
        }
    }
}

/// Why a timeline, or a line of it, cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The folder holds no timeline.
    #[error("there is no {} in {}; name the folder of a run (its --run-dir)", file_name(0), folder.display())]
    Missing {
        /// The folder.
        folder: PathBuf,
    },
    /// The system refuses it.
    #[error("{} cannot be read: {why}; check that it exists and that you may read it", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What kind of failure.
        kind: io::ErrorKind,
        /// The system's words.
        why: String,
    },
    /// A line is not a record; the lines after it can be read.
    #[error("line {line} of {} is not a record of this version of flodl: {why}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
}

impl ReadError {
    fn unreadable(path: &Path, error: &io::Error) -> ReadError {
        ReadError::Unreadable { path: path.to_owned(), kind: error.kind(), why: error.to_string() }
    }
}
