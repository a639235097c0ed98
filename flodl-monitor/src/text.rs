//! Text for a terminal: what comes from ranks is cleaned of what would move the cursor.

use core::time::Duration;
use flodl_wire::Rank;

/// The most characters kept of a sentence that came from outside.
const SENTENCE: usize = 2000;

/// `text` on one line: line breaks and tabs become spaces, other control characters a replacement sign.
pub(crate) fn plain(text: &str) -> String {
    let clean = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        c => c,
    };
    text.trim().chars().map(clean).collect()
}

/// At most [`SENTENCE`] characters of `text`.
pub(crate) fn cut(text: &str) -> String {
    match text.char_indices().nth(SENTENCE) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}

/// "rank 3" or "ranks 0-2, 5"; "no rank" for none.
pub(crate) fn ranks(ranks: &[Rank]) -> String {
    let mut sorted: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
    sorted.sort_unstable();
    sorted.dedup();
    let mut spans: Vec<(u32, u32)> = Vec::new();
    for rank in sorted {
        match spans.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => spans.push((rank, rank)),
        }
    }
    let show = |&(first, last): &(u32, u32)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    let shown = spans.iter().map(show).collect::<Vec<_>>().join(", ");
    match spans.as_slice() {
        [] => "no rank".to_owned(),
        [(first, last)] if first == last => format!("rank {shown}"),
        _ => format!("ranks {shown}"),
    }
}

/// "1 sample", "2 samples".
pub(crate) fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// A rate with about three significant digits at least.
pub(crate) fn rate(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.3}"),
    }
}

/// A rate in at most five characters: 7.25, 950, 12.7k, 3.40M.
pub(crate) fn thousands(rate: f64) -> String {
    let (number, unit) = match rate {
        rate if rate >= 999.5e6 => (rate / 1e9, "G"),
        rate if rate >= 999.5e3 => (rate / 1e6, "M"),
        rate if rate >= 999.5 => (rate / 1e3, "k"),
        rate => (rate, ""),
    };
    match number {
        number if number >= 99.95 => format!("{number:.0}{unit}"),
        number if number >= 9.995 => format!("{number:.1}{unit}"),
        number => format!("{number:.2}{unit}"),
    }
}

/// A time to wait, rounded up to seconds, as a clock shows it: 0:07, 12:05, 3:07:09, and from two days on 5 d 7 h.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match hours {
        0 => format!("{minutes}:{:02}", seconds % 60),
        1..48 => format!("{hours}:{:02}:{:02}", minutes % 60, seconds % 60),
        _ if days < 1000 => format!("{days} d {} h", hours % 24),
        _ => "1000 d or more".to_owned(),
    }
}

/// A time that something took: 0.42 s, 12.3 s, 2:05.
pub(crate) fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        seconds if seconds < 9.995 => format!("{seconds:.2} s"),
        seconds if seconds < 99.95 => format!("{seconds:.1} s"),
        _ => clock(time),
    }
}

/// Figures by name: "accuracy 0.9312, words 1204".
pub(crate) fn scalars<'a>(figures: impl Iterator<Item = (&'a String, &'a f64)>) -> String {
    let figure = |(name, value): (&String, &f64)| match value.abs() {
        // Counts and sums need no places.
        large if large >= 1000.0 || value.fract() == 0.0 => format!("{} {value:.0}", plain(name)),
        _ => format!("{} {value:.4}", plain(name)),
    };
    figures.map(figure).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_times_are_short() {
        for (rate, long, short) in [
            (0.0, "0.000", "0.00"),
            (7.25, "7.250", "7.25"),
            (12.34, "12.3", "12.3"),
            (999.4, "999", "999"),
            (999.6, "1000", "1.00k"),
            (12_684.0, "12684", "12.7k"),
            (3_400_000.0, "3400000", "3.40M"),
            (7.7e12, "7700000000000", "7700G"),
        ] {
            assert_eq!((super::rate(rate).as_str(), thousands(rate).as_str()), (long, short));
        }
        for (millis, wait, took) in [
            (0, "0:00", "0.00 s"),
            (420, "0:01", "0.42 s"),
            (59_001, "1:00", "59.0 s"),
            (61_000, "1:01", "61.0 s"),
            (725_000, "12:05", "12:05"),
            (11_229_000, "3:07:09", "3:07:09"),
            (172_799_000, "47:59:59", "47:59:59"),
            (458_000_000, "5 d 7 h", "5 d 7 h"),
            (u64::MAX, "1000 d or more", "1000 d or more"),
        ] {
            let time = Duration::from_millis(millis);
            assert_eq!((clock(time).as_str(), seconds(time).as_str()), (wait, took));
        }
    }

    #[test]
    fn ranks_are_told_in_spans() {
        for (given, expected) in [
            (vec![], "no rank"),
            (vec![3], "rank 3"),
            (vec![1, 0, 2], "ranks 0-2"),
            (vec![5, 0, 1, 5, u32::MAX], "ranks 0-1, 5, 4294967295"),
        ] {
            let given: Vec<Rank> = given.into_iter().map(Rank).collect();
            assert_eq!(ranks(&given), expected);
        }
    }

    #[test]
    fn hostile_text_stays_on_its_line() {
        assert_eq!(plain(" panicked\n\tat \x1b[2Jx\x07 "), "panicked  at \u{fffd}[2Jx\u{fffd}");
        assert_eq!(cut(&"é".repeat(SENTENCE + 1)), format!("{}...", "é".repeat(SENTENCE)));
        assert_eq!(cut(&"é".repeat(SENTENCE)), "é".repeat(SENTENCE));
    }
}
