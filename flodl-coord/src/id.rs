//! The one place where wire ids become scheduler ids and back.

use flodl_elche::{Slot, Span};
use flodl_wire::{Range, Rank};

/// The scheduler's name of a rank.
pub(crate) fn slot(rank: Rank) -> Slot {
    Slot(rank.0)
}

/// The rank behind a scheduler's name.
pub(crate) fn rank(slot: Slot) -> Rank {
    Rank(slot.0)
}

/// Wire ranges as the scheduler's spans. A hostile range (its end before its start) becomes an empty span.
pub(crate) fn spans(ranges: &[Range]) -> Vec<Span> {
    ranges.iter().map(|range| Span { start: range.start, end: range.end.max(range.start) }).collect()
}

/// The scheduler's spans as wire ranges.
pub(crate) fn ranges(spans: &[Span]) -> Vec<Range> {
    spans.iter().map(|span| Range { start: span.start, end: span.end }).collect()
}
