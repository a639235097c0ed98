//! A set of positions kept as sorted, disjoint, non-touching spans.
//!
//! All of the pool's accounting is unions and differences of these sets, so the invariant lives in one place: spans
//! ascend, none is empty, none touches the next, and `total` is the sum of their lengths. What an operation costs grows
//! with the spans it touches and the logarithm of how many there are: after a window with thousands of members thousands of
//! spans lie about.

use std::collections::BTreeMap;

use crate::span::{Span, push_joined};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanSet {
    ends: Ends,
    total: u64,
}

/// Each span's end by its start. What one member holds is mostly a single span, which needs no tree.
#[derive(Clone, Debug)]
enum Ends {
    One(Option<(u64, u64)>),
    Many(BTreeMap<u64, u64>),
}

impl Default for Ends {
    fn default() -> Self {
        Self::One(None)
    }
}

impl PartialEq for Ends {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Ends {}

impl Ends {
    fn iter(&self) -> impl DoubleEndedIterator<Item = Span> {
        let (one, many) = match self {
            Self::One(one) => (*one, None),
            Self::Many(many) => (None, Some(many)),
        };
        let many = many.into_iter().flatten().map(|(&start, &end)| (start, end));
        one.into_iter().chain(many).map(|(start, end)| Span::new(start, end))
    }

    /// The last span that begins at `at` or before it.
    fn up_to(&self, at: u64) -> Option<Span> {
        let last = match self {
            Self::One(one) => one.filter(|&(start, _)| start <= at),
            Self::Many(many) => many.range(..=at).next_back().map(|(&start, &end)| (start, end)),
        };
        last.map(|(start, end)| Span::new(start, end))
    }

    /// Lengthens the span that `span` follows, where it does and reaches no other.
    fn extend(&mut self, span: Span) -> bool {
        let last = match self {
            Self::One(one) => one.as_mut().filter(|(start, _)| *start <= span.end).map(|(_, end)| end),
            Self::Many(many) => many.range_mut(..=span.end).next_back().map(|(_, end)| end),
        };
        match last {
            Some(end) if *end == span.start => {
                *end = span.end;
                true
            }
            _ => false,
        }
    }

    /// The first span that begins within `within`.
    fn first_in(&self, within: Span) -> Option<Span> {
        let first = match self {
            Self::One(one) => one.filter(|(start, _)| (within.start..within.end).contains(start)),
            Self::Many(many) => many.range(within.start..within.end).next().map(|(&start, &end)| (start, end)),
        };
        first.map(|(start, end)| Span::new(start, end))
    }

    fn insert(&mut self, span: Span) {
        match self {
            Self::One(None) => *self = Self::One(Some((span.start, span.end))),
            Self::One(Some(one)) => *self = Self::Many([*one, (span.start, span.end)].into()),
            Self::Many(many) => {
                many.insert(span.start, span.end);
            }
        }
    }

    /// Takes the span out that begins there.
    fn remove(&mut self, start: u64) {
        match self {
            Self::One(one) => {
                one.take_if(|one| one.0 == start);
            }
            Self::Many(many) => {
                many.remove(&start);
            }
        }
    }

    fn pop_first(&mut self) -> Option<(u64, u64)> {
        match self {
            Self::One(one) => one.take(),
            Self::Many(many) => many.pop_first(),
        }
    }

    fn pop_last(&mut self) -> Option<(u64, u64)> {
        match self {
            Self::One(one) => one.take(),
            Self::Many(many) => many.pop_last(),
        }
    }
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

    /// Its spans, ascending.
    pub(crate) fn spans(&self) -> impl DoubleEndedIterator<Item = Span> {
        self.ends.iter()
    }

    /// The span that holds position `at`, or the last one that begins before it.
    fn up_to(&self, at: u64) -> Option<Span> {
        self.ends.up_to(at)
    }

    /// Whether every position of `span` is in the set (true for an empty span).
    pub(crate) fn contains(&self, span: Span) -> bool {
        span.is_empty() || self.up_to(span.start).is_some_and(|held| span.end <= held.end)
    }

    /// The part of `span` that is in the set and comes first, empty where there is none.
    pub(crate) fn first_common(&self, span: Span) -> Span {
        let nothing = Span::new(span.start, span.start);
        if span.is_empty() {
            return nothing;
        }
        match self.up_to(span.start).filter(|held| held.end > span.start) {
            Some(held) => Span::new(span.start, held.end.min(span.end)),
            None => match self.ends.first_in(span) {
                Some(held) => Span::new(held.start, held.end.min(span.end)),
                None => nothing,
            },
        }
    }

    /// Adds the positions of `span`; those already there stay.
    pub(crate) fn insert(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        // What a member trained is mostly where it went on.
        if self.ends.extend(span) {
            self.total += span.len();
            return;
        }
        let mut merged = span;
        // Whatever overlaps or touches begins at most at the new span's end, and the later ones end later.
        while let Some(held) = self.up_to(merged.end).filter(|held| held.end >= merged.start) {
            self.ends.remove(held.start);
            self.total -= held.len();
            merged = Span::new(merged.start.min(held.start), merged.end.max(held.end));
        }
        self.total += merged.len();
        self.ends.insert(merged);
    }

    /// Takes the positions of `span` out of the set; those that are not there are ignored.
    pub(crate) fn remove(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        while let Some(held) = self.up_to(span.end - 1).filter(|held| held.end > span.start) {
            self.ends.remove(held.start);
            self.total -= held.len();
            let before = Span::new(held.start, span.start.max(held.start));
            let after = Span::new(span.end.min(held.end), held.end);
            for part in [before, after].into_iter().filter(|part| !part.is_empty()) {
                self.total += part.len();
                self.ends.insert(part);
            }
        }
    }

    /// Moves the first `samples` positions, or all there are, to the end of `list`, joining neighbours; says how many.
    pub(crate) fn take_front(&mut self, samples: u64, list: &mut Vec<Span>) -> u64 {
        let wanted = samples.min(self.total);
        let mut left = wanted;
        while left > 0
            && let Some((start, end)) = self.ends.pop_first()
        {
            let part = Span::new(start, start + (end - start).min(left));
            if part.end < end {
                self.ends.insert(Span::new(part.end, end));
            }
            left -= part.len();
            push_joined(list, part);
        }
        self.total -= wanted;
        wanted
    }

    /// Takes the last `samples` positions, or all there are; ascending.
    pub(crate) fn take_back(&mut self, samples: u64) -> Vec<Span> {
        let mut taken = Vec::new();
        let mut left = samples.min(self.total);
        while left > 0
            && let Some((start, end)) = self.ends.pop_last()
        {
            let part = Span::new(end - (end - start).min(left), end);
            if part.start > start {
                self.ends.insert(Span::new(start, part.start));
            }
            left -= part.len();
            self.total -= part.len();
            taken.push(part);
        }
        taken.reverse();
        taken
    }

    /// Empties the set and returns what was in it, ascending.
    pub(crate) fn drain(&mut self) -> Vec<Span> {
        self.total = 0;
        std::mem::take(&mut self.ends).iter().collect()
    }

    /// Adds every span of the list.
    pub(crate) fn insert_all(&mut self, spans: &[Span]) {
        for &span in spans {
            self.insert(span);
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
        set.spans().flat_map(|span| span.positions()).collect()
    }

    #[test]
    fn taking_splits_spans_at_either_end() {
        let mut set = SpanSet::default();
        set.insert_all(&[Span::new(0, 4), Span::new(10, 14)]);
        let mut front = Vec::new();
        assert_eq!(set.take_front(5, &mut front), 5);
        assert_eq!(front, [Span::new(0, 4), Span::new(10, 11)]);
        assert_eq!(set.take_back(2), [Span::new(12, 14)]);
        assert_eq!(set.spans().collect::<Vec<_>>(), [Span::new(11, 12)]);
        assert_eq!(set.take_back(9), [Span::new(11, 12)]);
        assert_eq!((set.total(), set.spans().count()), (0, 0));
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
                for pair in set.spans().collect::<Vec<_>>().windows(2) {
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
