//! The two names everything else is about: a member of the run and a range of an epoch's order.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A member of the run, as the caller numbers them.
///
/// The numbers are small and dense (a rank is the usual choice), and they order the members: every result that lists
/// members lists them in ascending order.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slot(pub u32);

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.0)
    }
}

/// A half-open range of positions `[start, end)` in an epoch's order.
///
/// Positions count from 0 to the length of the epoch; [`Permutation::at`](crate::Permutation::at) says which sample
/// stands at a position. A span whose end is not behind its start is empty.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// First position.
    pub start: u64,
    /// One past the last position.
    pub end: u64,
}

impl Span {
    /// The positions `[start, end)`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// Number of positions, in samples.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the span holds no position.
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// The positions, ascending.
    pub fn positions(&self) -> std::ops::Range<u64> {
        self.start..self.end
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {})", self.start, self.end)
    }
}

/// Appends `span`, joined with the last one where they touch, so that a list in lease order stays short.
pub(crate) fn push_joined(list: &mut Vec<Span>, span: Span) {
    if span.is_empty() {
        return;
    }
    match list.last_mut() {
        Some(last) if last.end == span.start => last.end = span.end,
        _ => list.push(span),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reversed_span_is_empty_and_has_no_length() {
        let span = Span::new(9, 4);
        assert!(span.is_empty());
        assert_eq!(span.len(), 0);
        assert_eq!(span.positions().count(), 0);
    }

    #[test]
    fn neighbours_are_joined_in_order_only() {
        let mut list = Vec::new();
        for (start, end) in [(4, 8), (8, 9), (9, 9), (0, 4)] {
            push_joined(&mut list, Span::new(start, end));
        }
        assert_eq!(list, [Span::new(4, 9), Span::new(0, 4)]);
    }
}
