//! A set of positions kept as sorted, disjoint, non-touching spans.
//!
//! All of the pool's accounting is unions and differences of these sets, so the invariant lives in one place: spans
//! ascend, none is empty, none touches the next, and `total` is the sum of their lengths.

use crate::span::{Span, push_joined};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanSet {
    spans: Vec<Span>,
    total: u64,
}

impl SpanSet {
    /// All positions `[0, len)`.
    pub(crate) fn full(len: u64) -> Self {
        let mut set = Self::default();
        set.insert(Span::new(0, len));
        set
    }

    /// Number of positions in the set.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Whether every position of `span` is in the set (true for an empty span).
    pub(crate) fn contains(&self, span: Span) -> bool {
        if span.is_empty() {
            return true;
        }
        let at = self.spans.partition_point(|s| s.end <= span.start);
        self.spans.get(at).is_some_and(|s| s.start <= span.start && span.end <= s.end)
    }

    /// The part of `span` that is in the set and comes first, empty where there is none.
    pub(crate) fn first_common(&self, span: Span) -> Span {
        let at = self.spans.partition_point(|s| s.end <= span.start);
        match self.spans.get(at) {
            Some(s) if s.start < span.end => Span::new(s.start.max(span.start), s.end.min(span.end)),
            _ => Span::new(span.start, span.start),
        }
    }

    /// Adds the positions of `span`; those already there stay.
    pub(crate) fn insert(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let from = self.spans.partition_point(|s| s.end < span.start);
        let to = self.spans.partition_point(|s| s.start <= span.end);
        let mut merged = span;
        for old in self.spans.splice(from..to, std::iter::empty()) {
            merged = Span::new(merged.start.min(old.start), merged.end.max(old.end));
            self.total -= old.len();
        }
        self.total += merged.len();
        self.spans.insert(from, merged);
    }

    /// Takes the positions of `span` out of the set; those that are not there are ignored.
    pub(crate) fn remove(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let from = self.spans.partition_point(|s| s.end <= span.start);
        let to = self.spans.partition_point(|s| s.start < span.end);
        let mut kept = Vec::with_capacity(2);
        for old in &self.spans[from..to.max(from)] {
            self.total -= old.len();
            for part in [Span::new(old.start, span.start.max(old.start)), Span::new(span.end.min(old.end), old.end)] {
                if !part.is_empty() {
                    self.total += part.len();
                    kept.push(part);
                }
            }
        }
        self.spans.splice(from..to.max(from), kept);
    }

    /// Takes the first `samples` positions, or all there are.
    pub(crate) fn take_front(&mut self, samples: u64) -> Vec<Span> {
        let mut taken = Vec::new();
        let mut left = samples.min(self.total);
        for span in &self.spans {
            if left == 0 {
                break;
            }
            let part = Span::new(span.start, span.start + span.len().min(left));
            left -= part.len();
            taken.push(part);
        }
        self.remove_all(&taken);
        taken
    }

    /// Takes the last `samples` positions, or all there are; ascending.
    pub(crate) fn take_back(&mut self, samples: u64) -> Vec<Span> {
        let mut taken = Vec::new();
        let mut left = samples.min(self.total);
        for span in self.spans.iter().rev() {
            if left == 0 {
                break;
            }
            let part = Span::new(span.end - span.len().min(left), span.end);
            left -= part.len();
            taken.push(part);
        }
        self.remove_all(&taken);
        taken.reverse();
        taken
    }

    /// Empties the set and returns what was in it, ascending.
    pub(crate) fn drain(&mut self) -> Vec<Span> {
        self.total = 0;
        std::mem::take(&mut self.spans)
    }

    /// Adds every span of the list.
    pub(crate) fn insert_all(&mut self, spans: &[Span]) {
        for &span in spans {
            self.insert(span);
        }
    }

    fn remove_all(&mut self, spans: &[Span]) {
        for &span in spans {
            self.remove(span);
        }
    }
}

/// Copies spans into a list in lease order, joining neighbours.
pub(crate) fn append(list: &mut Vec<Span>, spans: impl IntoIterator<Item = Span>) {
    for span in spans {
        push_joined(list, span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positions(set: &SpanSet) -> Vec<u64> {
        set.spans.iter().flat_map(Span::positions).collect()
    }

    #[test]
    fn taking_splits_spans_at_either_end() {
        let mut set = SpanSet::default();
        set.insert_all(&[Span::new(0, 4), Span::new(10, 14)]);
        assert_eq!(set.take_front(5), [Span::new(0, 4), Span::new(10, 11)]);
        assert_eq!(set.take_back(2), [Span::new(12, 14)]);
        assert_eq!(set.spans(), [Span::new(11, 12)]);
        assert_eq!(set.take_back(9), [Span::new(11, 12)]);
        assert!(set.is_empty());
    }

    proptest! {
        #[test]
        fn the_set_agrees_with_a_bitmap(ops in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..40), 0..40)) {
            let mut set = SpanSet::default();
            let mut bitmap = [false; 40];
            for (add, start, end) in ops {
                let span = Span::new(start, end);
                if add { set.insert(span) } else { set.remove(span) }
                span.positions().for_each(|p| bitmap[p as usize] = add);
                let expected: Vec<u64> = (0..40).filter(|&p| bitmap[p as usize]).collect();
                prop_assert_eq!(set.total(), expected.len() as u64);
                prop_assert_eq!(positions(&set), expected);
                for pair in set.spans.windows(2) {
                    prop_assert!(pair[0].end < pair[1].start);
                }
                prop_assert_eq!(set.contains(span), span.positions().all(|p| bitmap[p as usize]));
                let common: Vec<u64> = set.first_common(span).positions().collect();
                let first = span.positions().find(|&p| bitmap[p as usize]);
                prop_assert_eq!(common.first().copied(), first);
                prop_assert!(common.iter().all(|&p| bitmap[p as usize]));
            }
        }
    }
}
