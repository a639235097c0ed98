//! A rank's output as people see it live: whole lines, harmless, and no more of them than anybody reads.
//!
//! The log has every byte. A terminal gets less: a line longer than [`limits::LINE_BYTES`] is cut, what would move the
//! cursor is taken out, and a rank that writes faster than its [`Allowance`] has its lines counted instead of shown.

use crate::limits;
use core::time::Duration;
use std::ops::ControlFlow;

/// Turns what a rank writes into the lines that are shown of it. `log` is the name of the file that has everything.
pub(super) struct Shown {
    line: Line,
    allowance: Allowance,
    left_out: u64,
    log: String,
}

impl Shown {
    pub(super) fn new(log: &str) -> Shown {
        Shown { line: Line::default(), allowance: Allowance::FULL, left_out: 0, log: log.to_owned() }
    }

    /// Takes bytes that came at `now`, a time since any fixed moment, and gives the lines that they complete.
    pub(super) fn push(&mut self, mut bytes: &[u8], now: Duration, mut each: impl FnMut(&str)) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            self.line.extend(&bytes[..end]);
            bytes = &bytes[end + 1..];
            self.finish(now, &mut each);
        }
        self.line.extend(bytes);
    }

    /// Whether lines were left out that nobody has been told of yet.
    pub(super) fn owes_a_count(&self) -> bool {
        self.left_out > 0
    }

    /// Says how many lines were left out, if any were.
    pub(super) fn count(&mut self, mut each: impl FnMut(&str)) {
        match std::mem::take(&mut self.left_out) {
            0 => {}
            1 => each(&format!("(1 line left out here; {} has it)", self.log)),
            lines => each(&format!("({lines} lines left out here; {} has them)", self.log)),
        }
    }

    /// Gives a last line that had no end, and the count of what was left out.
    pub(super) fn close(&mut self, now: Duration, mut each: impl FnMut(&str)) {
        if !self.line.is_empty() {
            self.finish(now, &mut each);
        }
        self.count(each);
    }

    fn finish(&mut self, now: Duration, mut each: impl FnMut(&str)) {
        if self.allowance.admits(self.line.held.len(), now) {
            self.count(&mut each);
            each(&self.line.text(&self.log));
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
        self.line.clear();
    }
}

/// The line that has not ended yet, in bounded memory.
#[derive(Default)]
struct Line {
    held: Vec<u8>,
    /// Bytes behind those.
    more: u64,
    /// The last byte was a carriage return: what follows, unless the line ends, is written over it.
    returned: bool,
}

impl Line {
    /// Takes a piece without a line's end.
    fn extend(&mut self, piece: &[u8]) {
        let Some(last) = piece.iter().rposition(|&byte| byte != b'\r') else {
            self.returned |= !piece.is_empty();
            return;
        };
        let visible = &piece[..=last];
        let start = visible.iter().rposition(|&byte| byte == b'\r');
        if self.returned || start.is_some() {
            self.clear();
        }
        self.returned = last + 1 < piece.len();
        let visible = &visible[start.map_or(0, |at| at + 1)..];
        let fits = visible.len().min(limits::LINE_BYTES - self.held.len());
        self.held.extend_from_slice(&visible[..fits]);
        self.more = self.more.saturating_add((visible.len() - fits) as u64);
    }

    fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    fn clear(&mut self) {
        self.held.clear();
        self.more = 0;
        self.returned = false;
    }

    fn text(&self, log: &str) -> String {
        if self.more == 0 {
            return harmless(&self.held);
        }
        // Not in the middle of a character.
        let whole = match std::str::from_utf8(&self.held) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Ok(_) | Err(_) => self.held.len(),
        };
        let more = self.more + (self.held.len() - whole) as u64;
        format!("{} ... (cut here, {more} bytes more in {log})", harmless(&self.held[..whole]))
    }
}

/// Columns between tab stops.
const TAB: usize = 8;

/// A line that cannot do anything to a terminal: escape sequences (colours, cursor movements, titles) are taken out, tabs
/// become spaces, and other control characters, those that turn the writing direction and bytes that are not UTF-8 become
/// replacement characters.
fn harmless(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    let (mut out, mut columns) = (String::with_capacity(text.len()), 0);
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        let shown = match c {
            '\x1b' | '\u{9b}' => match after_escape(c, rest.as_str()) {
                Some(after) => {
                    rest = after.chars();
                    continue;
                }
                None => char::REPLACEMENT_CHARACTER,
            },
            '\t' => {
                let spaces = TAB - columns % TAB;
                out.extend(std::iter::repeat_n(' ', spaces));
                columns += spaces;
                continue;
            }
            c if c.is_control() || turns(c) => char::REPLACEMENT_CHARACTER,
            c => c,
        };
        out.push(shown);
        columns += 1;
    }
    out
}

/// What follows the escape sequence that `introducer` began; `None` where it does not end within `rest`.
fn after_escape(introducer: char, rest: &str) -> Option<&str> {
    let (kind, body) = match introducer {
        '\u{9b}' => ('[', rest),
        _ => {
            let kind = rest.chars().next()?;
            (kind, &rest[kind.len_utf8()..])
        }
    };
    match kind {
        // Parameters, then one final byte (ECMA-48, 5.4).
        '[' => {
            let end = body.char_indices().try_for_each(|(at, c)| match c {
                '\x20'..='\x3f' => ControlFlow::Continue(()),
                '\x40'..='\x7e' => ControlFlow::Break(Some(at + 1)),
                _ => ControlFlow::Break(None),
            });
            end.break_value().flatten().map(|end| &body[end..])
        }
        // A string, ended by ST or, as terminals have it, BEL (ECMA-48, 5.6).
        ']' | 'P' | 'X' | '^' | '_' => {
            let bell = body.find('\x07').map(|at| (at, 1));
            let terminator = body.find("\x1b\\").map(|at| (at, 2));
            let (at, len) = bell.into_iter().chain(terminator).min()?;
            Some(&body[at + len..])
        }
        // Intermediate bytes, then one final byte (ECMA-35, 13.2).
        '\x20'..='\x2f' => {
            let body = body.trim_start_matches(|c| matches!(c, '\x20'..='\x2f'));
            body.strip_prefix(|c| matches!(c, '\x30'..='\x7e'))
        }
        '\x30'..='\x7e' => Some(body),
        _ => None,
    }
}

/// Whether `c` changes the direction of what is written after it: such a line does not say what it seems to say.
fn turns(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How much a rank may show: a burst, then a steady rate, of lines and of bytes. Whoever has used it up waits until a
/// second's worth is there again, so that what is shown stays connected.
#[derive(Debug)]
struct Allowance {
    lines: Credit,
    bytes: Credit,
    used_up: bool,
}

impl Allowance {
    const FULL: Allowance = Allowance {
        lines: Credit::full(limits::SHOWN_LINES),
        bytes: Credit::full(limits::SHOWN_BYTES),
        used_up: false,
    };

    fn admits(&mut self, bytes: usize, now: Duration) -> bool {
        self.lines.refill(now);
        self.bytes.refill(now);
        if self.used_up && (self.lines.left < self.lines.limit.a_second || self.bytes.left < self.bytes.limit.a_second)
        {
            return false;
        }
        self.used_up = !(self.lines.take(1) && self.bytes.take(bytes as u64));
        !self.used_up
    }
}

/// What is left of one limit.
#[derive(Debug)]
struct Credit {
    limit: limits::Pace,
    left: u64,
    /// Up to when it has been refilled.
    at: Duration,
}

impl Credit {
    const fn full(limit: limits::Pace) -> Credit {
        Credit { limit, left: limit.burst, at: Duration::ZERO }
    }

    fn refill(&mut self, now: Duration) {
        let earned = now.saturating_sub(self.at).as_millis() * u128::from(self.limit.a_second) / 1000;
        if earned > 0 {
            let left = u128::from(self.left).saturating_add(earned).min(u128::from(self.limit.burst));
            self.left = u64::try_from(left).unwrap_or(self.limit.burst);
            self.at = now;
        }
    }

    fn take(&mut self, units: u64) -> bool {
        match self.left.checked_sub(units) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "rank1.log";

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut shown, mut out) = (Shown::new(LOG), Vec::new());
        pieces.iter().for_each(|piece| shown.push(piece, Duration::ZERO, |line| out.push(line.to_owned())));
        shown.close(Duration::ZERO, |line| out.push(line.to_owned()));
        out
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_arrive() {
        let text = "one\n\ntwo\r\n10 %\r20 %\r\r30 %\nthr\u{e9}e\nlast".as_bytes();
        let whole = lines(&[text]);
        assert_eq!(whole, ["one", "", "two", "30 %", "thr\u{e9}e", "last"]);
        for at in 0..text.len() {
            assert_eq!(lines(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
        assert_eq!(lines(&[b"ended\n"]), ["ended"]);
    }

    #[test]
    fn what_could_harm_a_terminal_is_taken_out() {
        for (line, expected) in [
            (&b"plain \xe2\x9c\x93"[..], "plain \u{2713}"),
            (b"bad \xff\xfe bytes", "bad \u{fffd}\u{fffd} bytes"),
            (b"\x1b[1;31mred\x1b[0m", "red"),
            (b"\x1b[2J\x1b[Hgone?", "gone?"),
            (b"\xc2\x9b31mred", "red"),
            (b"\x1b]0;title\x07text", "text"),
            (b"\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
            (b"\x1b]0;no end", "\u{fffd}]0;no end"),
            (b"\x1b[no\x01end", "o\u{fffd}end"),
            (b"\x1b[12", "\u{fffd}[12"),
            (b"\x1b(Bx\x1b7y", "xy"),
            (b"at the end \x1b", "at the end \u{fffd}"),
            (b"a\tb\x07\x08c\x7f", "a       b\u{fffd}\u{fffd}c\u{fffd}"),
            ("abc\u{202e}cba".as_bytes(), "abc\u{fffd}cba"),
        ] {
            assert_eq!(harmless(line), expected, "{:?}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn an_endless_line_is_cut_and_says_how_much_is_missing() {
        let long = vec![b'x'; limits::LINE_BYTES + 5];
        let kept = "x".repeat(limits::LINE_BYTES);
        assert_eq!(lines(&[&long]), [format!("{kept} ... (cut here, 5 bytes more in rank1.log)")]);
        assert_eq!(lines(&[&long[..9], &long[9..], b"\nnext"]).len(), 2);
        let mut odd = vec![b'x'; limits::LINE_BYTES - 1];
        odd.extend("\u{e9}!".bytes());
        let cut = &kept[1..];
        assert_eq!(lines(&[&odd]), [format!("{cut} ... (cut here, 3 bytes more in rank1.log)")]);
        let mut shown = Shown::new(LOG);
        (0..100).for_each(|_| shown.push(&long, Duration::ZERO, |_| panic!("it has no end")));
        assert!(shown.line.held.len() <= limits::LINE_BYTES);
    }

    #[test]
    fn a_flood_is_counted_and_a_second_later_shown_again() {
        let burst = usize::try_from(limits::SHOWN_LINES.burst).unwrap();
        let (mut shown, mut out) = (Shown::new(LOG), Vec::new());
        let second = Duration::from_secs(1);
        let flood = b"x\n".repeat(burst + 1000);
        shown.push(&flood, Duration::ZERO, |line| out.push(line.to_owned()));
        assert_eq!((out.len(), shown.owes_a_count()), (burst, true));
        out.clear();
        shown.push(b"early\n", second / 2, |line| out.push(line.to_owned()));
        assert_eq!(out, [""; 0], "half a second is not enough");
        shown.push(b"later\n", second, |line| out.push(line.to_owned()));
        assert_eq!(out, ["(1001 lines left out here; rank1.log has them)", "later"]);
        out.clear();
        shown.push(&flood, second, |line| out.push(line.to_owned()));
        assert_eq!(out.len() as u64, limits::SHOWN_LINES.a_second - 1);
        out.clear();
        shown.close(second, |line| out.push(line.to_owned()));
        let missing = burst as u64 + 1000 - (limits::SHOWN_LINES.a_second - 1);
        assert_eq!(out, [format!("({missing} lines left out here; rank1.log has them)")]);
    }

    #[test]
    fn long_lines_use_up_the_allowance_by_their_bytes() {
        let line = [vec![b'x'; limits::LINE_BYTES], vec![b'\n']].concat();
        let mut shown = Shown::new(LOG);
        let mut bytes = 0;
        (0..1000).for_each(|_| shown.push(&line, Duration::ZERO, |text| bytes += text.len() as u64));
        assert!(bytes > limits::SHOWN_BYTES.burst / 2 && bytes <= limits::SHOWN_BYTES.burst, "{bytes}");
    }

    #[test]
    fn a_slow_writer_is_never_left_out() {
        let mut shown = Shown::new(LOG);
        let pause = Duration::from_secs(1) / u32::try_from(limits::SHOWN_LINES.a_second).unwrap();
        let mut seen = 0;
        (0..5000).for_each(|line| shown.push(b"a line\n", pause * line, |_| seen += 1));
        assert_eq!(seen, 5000);
    }
}
