//! What a rank writes: cut into lines, shown with its prefix, kept in its log, and the end of it remembered.

use super::Sink;
use crate::limits::{self, LAST_LINES};
use flodl_wire::Rank;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

/// Cuts bytes into lines.
#[derive(Default)]
struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Takes bytes and gives every line they complete, without its end. Bytes that are not UTF-8 are replaced.
    fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(&str)) {
        while !bytes.is_empty() {
            let room = limits::LINE_BYTES - self.rest.len();
            let window = &bytes[..bytes.len().min(room)];
            let end = window.iter().position(|&byte| byte == b'\n');
            self.rest.extend_from_slice(&window[..end.unwrap_or(window.len())]);
            bytes = &bytes[end.map_or(window.len(), |end| end + 1)..];
            if end.is_some() || self.rest.len() == limits::LINE_BYTES {
                self.finish(&mut each);
            }
        }
    }

    /// Gives what is there as a line.
    fn finish(&mut self, mut each: impl FnMut(&str)) {
        let line = self.rest.strip_suffix(b"\r").unwrap_or(&self.rest);
        each(&String::from_utf8_lossy(line));
        self.rest.clear();
    }

    /// Gives a last line that had no end.
    fn close(&mut self, each: impl FnMut(&str)) {
        if !self.rest.is_empty() {
            self.finish(each);
        }
    }
}

/// The last lines, at most [`LAST_LINES`] bytes of them.
#[derive(Default)]
struct Tail {
    lines: VecDeque<String>,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, line: &str) {
        let start = line.len().saturating_sub(LAST_LINES - 1);
        let start = (start..=line.len()).find(|&at| line.is_char_boundary(at)).unwrap_or(line.len());
        self.lines.push_back(line[start..].to_owned());
        self.bytes += line.len() - start + 1;
        while self.bytes > LAST_LINES {
            self.bytes -= self.lines.pop_front().map_or(0, |line| line.len() + 1);
        }
    }

    fn text(&self) -> String {
        self.lines.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

/// A rank's output as it is being followed.
#[derive(Clone)]
pub(super) struct Output {
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Default)]
struct State {
    tail: Tail,
    ended: bool,
}

impl Output {
    /// Follows `pipe` on a thread until its end of file.
    pub(super) fn follow(rank: Rank, mut pipe: PipeReader, mut log: File, sink: Sink) -> io::Result<Output> {
        let output = Output { state: Arc::default() };
        let state = Arc::clone(&output.state);
        thread::Builder::new().name(format!("flodl-output-{}", rank.0)).spawn(move || {
            let mut lines = Lines::default();
            let mut buffer = [0; limits::LINE_BYTES];
            let mut log_fails = false;
            let mut take = |line: &str| {
                sink(&format!("[{rank}] {line}"));
                state.0.lock().unwrap_or_else(PoisonError::into_inner).tail.push(line);
                if let Err(error) = writeln!(log, "{line}")
                    && !std::mem::replace(&mut log_fails, true)
                {
                    sink(&format!("[{rank}] its log cannot be written any more: {error}"));
                }
            };
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(read) => lines.push(&buffer[..read], &mut take),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        take(&format!("(its output cannot be read any more: {error})"));
                        break;
                    }
                }
            }
            lines.close(&mut take);
            state.0.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
            state.1.notify_all();
        })?;
        Ok(output)
    }

    /// The last lines, once the output has ended, or after [`limits::LAST_LINES_WAIT`].
    pub(super) fn last_lines(&self) -> String {
        let state = self.state.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.state.1.wait_timeout_while(state, limits::LAST_LINES_WAIT, |state| !state.ended);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.tail.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        pieces.iter().for_each(|piece| lines.push(piece, |line| out.push(line.to_owned())));
        lines.close(|line| out.push(line.to_owned()));
        out
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_arrive() {
        let text = b"one\n\ntwo\r\nthr\xffee\nlast";
        let whole = lines(&[text]);
        assert_eq!(whole, ["one", "", "two", "thr\u{fffd}ee", "last"]);
        for at in 0..text.len() {
            assert_eq!(lines(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
        assert_eq!(lines(&[b"ended\n"]), ["ended"]);
    }

    #[test]
    fn an_endless_line_is_cut() {
        let long = vec![b'x'; limits::LINE_BYTES * 2 + 5];
        let sizes: Vec<usize> = lines(&[&long]).iter().map(String::len).collect();
        assert_eq!(sizes, [limits::LINE_BYTES, limits::LINE_BYTES, 5]);
    }

    #[test]
    fn the_tail_keeps_the_last_whole_lines_within_its_size() {
        let mut tail = Tail::default();
        (0..1000).for_each(|number| tail.push(&format!("line {number}")));
        let text = tail.text();
        assert!(text.ends_with("line 998\nline 999") && text.starts_with("line "), "{text}");
        assert!(text.len() <= LAST_LINES && text.len() > LAST_LINES - 16);
        tail.push(&"é".repeat(LAST_LINES));
        assert!(tail.text().len() <= LAST_LINES && tail.text().chars().all(|c| c == 'é'));
    }
}
