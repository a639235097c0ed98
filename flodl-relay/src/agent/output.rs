//! What a rank writes: kept unchanged in its log, shown live, and the end of it remembered.
#![expect(clippy::disallowed_methods, reason = "this is a shell: what is shown is limited by the time")]

use super::shown::Shown;
use super::{AgentConfig, RankSink};
use crate::limits::{self, LAST_LINES};
use flodl_wire::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, PipeReader, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

/// The log of a rank, over all its lives.
pub(super) struct Log {
    file: File,
    /// The file's name, for people.
    name: String,
}

impl Log {
    /// Opens it for appending. A life begins on a line of its own.
    pub(super) fn open(path: &Path) -> io::Result<Log> {
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        if file.seek(SeekFrom::End(0))? > 0 {
            file.seek(SeekFrom::End(-1))?;
            let mut last = [0];
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Log { file, name })
    }
}

/// The last bytes, from which the last lines are told.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
}

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(&bytes[bytes.len().saturating_sub(LAST_LINES)..]);
        if self.bytes.len() > 2 * LAST_LINES {
            self.bytes.drain(..self.bytes.len() - LAST_LINES);
        }
    }

    /// The last whole lines in at most [`LAST_LINES`] bytes, or the end of the last one where that alone is longer.
    fn text(&self) -> String {
        let all = String::from_utf8_lossy(&self.bytes).replace("\r\n", "\n");
        let all = all.strip_suffix('\n').unwrap_or(&all);
        let earliest = all.len().saturating_sub(LAST_LINES);
        if earliest == 0 {
            return all.to_owned();
        }
        let start = (earliest..=all.len()).find(|&at| all.is_char_boundary(at)).unwrap_or(all.len());
        match all[start..].find('\n') {
            _ if all[..start].ends_with('\n') => all[start..].to_owned(),
            Some(end) => all[start + end + 1..].to_owned(),
            None => all[start..].to_owned(),
        }
    }
}

/// A rank's output as it is being followed.
#[derive(Clone)]
pub(super) struct Output {
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    followed: Mutex<Followed>,
    ended: Condvar,
}

#[derive(Default)]
struct Followed {
    tail: Tail,
    ended: bool,
}

impl State {
    fn followed(&self) -> MutexGuard<'_, Followed> {
        self.followed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Output {
    /// Follows `pipe` on a thread until its end of file.
    pub(super) fn follow(rank: Rank, pipe: PipeReader, log: Log, config: &AgentConfig) -> io::Result<Output> {
        let output = Output { state: Arc::default() };
        let live = config.shown.clone().map(|sink| Live { rank, shown: Shown::new(&log.name), sink });
        let sink = Arc::clone(&config.sink);
        let log_failed =
            move |error: io::Error| sink(&format!("the log of {rank} cannot be written any more: {error}"));
        let follower = Follower { pipe, log: log.file, live, state: Arc::clone(&output.state), began: Instant::now() };
        let name = format!("flodl-output-{}", rank.0);
        thread::Builder::new().name(name).spawn(move || follower.run(log_failed))?;
        Ok(output)
    }

    /// The last lines, once the output has ended, or after [`limits::LAST_LINES_WAIT`].
    pub(super) fn last_lines(&self) -> String {
        let followed = self.state.followed();
        let waited = self.state.ended.wait_timeout_while(followed, limits::LAST_LINES_WAIT, |followed| !followed.ended);
        let (followed, _) = waited.unwrap_or_else(PoisonError::into_inner);
        followed.tail.text()
    }
}

/// A rank's lines on their way to somebody who watches.
struct Live {
    rank: Rank,
    shown: Shown,
    sink: RankSink,
}

/// The thread behind an [`Output`].
struct Follower {
    pipe: PipeReader,
    log: File,
    live: Option<Live>,
    state: Arc<State>,
    began: Instant,
}

impl Follower {
    fn run(mut self, log_failed: impl Fn(io::Error)) {
        let mut buffer = vec![0; limits::OUTPUT_READ];
        let mut log_fails = false;
        loop {
            let read = match self.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.take(format!("\n(its output cannot be read any more: {error})\n").as_bytes());
                    break;
                }
            };
            if let Err(error) = self.log.write_all(&buffer[..read])
                && !std::mem::replace(&mut log_fails, true)
            {
                log_failed(error);
            }
            self.take(&buffer[..read]);
        }
        let now = self.began.elapsed();
        if let Some(Live { rank, shown, sink }) = &mut self.live {
            shown.close(now, |line| sink(*rank, line));
        }
        self.state.followed().ended = true;
        self.state.ended.notify_all();
    }

    /// Remembers and shows what was read.
    fn take(&mut self, bytes: &[u8]) {
        self.state.followed().tail.push(bytes);
        let now = self.began.elapsed();
        if let Some(Live { rank, shown, sink }) = &mut self.live {
            shown.push(bytes, now, |line| sink(*rank, line));
        }
    }

    /// Waits for output. Where lines were left out and nothing follows, it says so meanwhile.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(Live { rank, shown, sink }) = self.live.as_mut().filter(|live| live.shown.owes_a_count())
            && is_quiet(&self.pipe)?
        {
            shown.count(|line| sink(*rank, line));
        }
        self.pipe.read(buffer)
    }
}

/// Whether nothing comes for [`limits::COUNT_AFTER`].
fn is_quiet(pipe: &PipeReader) -> Result<bool, Errno> {
    let wait = Timespec::try_from(limits::COUNT_AFTER).map_err(|_| Errno::INVAL)?;
    Ok(poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&wait))? == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn tail(pieces: impl IntoIterator<Item = Vec<u8>>) -> String {
        let mut tail = Tail::default();
        for piece in pieces {
            tail.push(&piece);
            assert!(tail.bytes.len() <= 2 * LAST_LINES, "memory is bounded");
        }
        let text = tail.text();
        assert!(text.len() <= LAST_LINES);
        text
    }

    #[test]
    fn the_tail_keeps_the_last_whole_lines_within_its_size() {
        assert_eq!(tail([]), "");
        assert_eq!(tail([b"one\r\ntw".to_vec(), b"o\n\nno end".to_vec()]), "one\ntwo\n\nno end");
        let text = tail((0..1000).map(|number| format!("line {number}\n").into_bytes()));
        assert!(text.ends_with("line 998\nline 999") && text.starts_with("line "), "{text}");
        assert!(text.len() > LAST_LINES - 16);
        let text = tail([b"first\n".to_vec(), "\u{e9}".repeat(LAST_LINES).into_bytes()]);
        assert!(text.len() > LAST_LINES - 4 && text.chars().all(|c| c == '\u{e9}'), "{text}");
        assert!(tail([vec![0xff; 10 * LAST_LINES]]).chars().all(|c| c == '\u{fffd}'));
    }

    #[test]
    fn a_life_begins_on_a_line_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank3.log");
        for (written, expected) in [("one", "one"), ("two\n", "one\ntwo\n"), ("three", "one\ntwo\nthree")] {
            let mut log = Log::open(&path).unwrap();
            log.file.write_all(written.as_bytes()).unwrap();
            assert_eq!((log.name.as_str(), fs::read_to_string(&path).unwrap().as_str()), ("rank3.log", expected));
        }
    }
}
