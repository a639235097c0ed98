//! Text for a terminal: what comes from ranks is cleaned of what would move the cursor.

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

#[cfg(test)]
mod tests {
    use super::*;

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
