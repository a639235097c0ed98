//! How a lease becomes batches, for the two sides that must agree on it.

use std::collections::VecDeque;

use crate::span::{Span, push_joined};

/// Cuts a lease into batches of positions.
///
/// A batch takes the next positions over the lease's ranges, across range borders; only the last batch may be short,
/// and a short batch is one step like any other.
///
/// ```
/// use flodl_elche::{Batches, Span};
///
/// let mut lease = Batches::new(vec![Span::new(90, 95), Span::new(10, 13)], 6);
/// assert_eq!(lease.next_batch().unwrap(), [Span::new(90, 95), Span::new(10, 11)]);
/// assert_eq!(lease.used(), [Span::new(90, 95), Span::new(10, 11)]);
/// assert_eq!(lease.unused(), [Span::new(11, 13)]);
/// assert_eq!(lease.next_batch().unwrap(), [Span::new(11, 13)]);
/// assert!(lease.next_batch().is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batches {
    batch_size: u64,
    used: Vec<Span>,
    ahead: VecDeque<Span>,
}

impl Batches {
    /// Batches of `batch_size` samples over `lease`, in the lease's order. A size of 0 counts as 1.
    pub fn new(lease: Vec<Span>, batch_size: u32) -> Self {
        let mut batches = Self { batch_size: u64::from(batch_size.max(1)), used: Vec::new(), ahead: VecDeque::new() };
        batches.extend(&lease);
        batches
    }

    /// Appends ranges that came later in the window.
    pub fn extend(&mut self, more: &[Span]) {
        self.ahead.extend(more.iter().copied().filter(|span| !span.is_empty()));
    }

    /// The next batch as ranges of positions, in order, or nothing when the lease is used up.
    pub fn next_batch(&mut self) -> Option<Vec<Span>> {
        let mut batch = Vec::new();
        let mut left = self.batch_size;
        while left > 0
            && let Some(front) = self.ahead.front_mut()
        {
            let part = Span::new(front.start, front.start + front.len().min(left));
            front.start = part.end;
            if front.is_empty() {
                self.ahead.pop_front();
            }
            left -= part.len();
            push_joined(&mut batch, part);
            push_joined(&mut self.used, part);
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// What the batches so far took, in order.
    pub fn used(&self) -> &[Span] {
        &self.used
    }

    /// What no batch has taken, in order.
    pub fn unused(&self) -> Vec<Span> {
        self.ahead.iter().copied().collect()
    }

    /// Samples that no batch has taken.
    pub fn remaining(&self) -> u64 {
        self.ahead.iter().fold(0, |sum, span| sum.saturating_add(span.len()))
    }
}

impl Iterator for Batches {
    type Item = Vec<Span>;

    fn next(&mut self) -> Option<Vec<Span>> {
        self.next_batch()
    }
}

/// Batches that `samples` samples make: the last one may be short.
pub fn batches_in(samples: u64, batch_size: u32) -> u64 {
    samples.div_ceil(u64::from(batch_size.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_that_come_later_follow() {
        let mut lease = Batches::new(vec![Span::new(0, 4)], 4);
        assert_eq!(lease.next(), Some(vec![Span::new(0, 4)]));
        assert_eq!(lease.next(), None);
        lease.extend(&[Span::new(8, 9)]);
        assert_eq!(lease.remaining(), 1);
        assert_eq!(lease.next(), Some(vec![Span::new(8, 9)]));
    }

    proptest! {
        #[test]
        fn every_position_once_and_only_the_last_batch_short(
            lens in prop::collection::vec(0u64..30, 0..12), batch_size in 0u32..20,
        ) {
            let mut start = 0;
            let lease: Vec<Span> = lens.iter().map(|len| {
                let span = Span::new(start, start + len);
                start += len + 3;
                span
            }).collect();
            let total: u64 = lens.iter().sum();
            let batches: Vec<Vec<Span>> = Batches::new(lease.clone(), batch_size).collect();
            prop_assert_eq!(batches.len() as u64, batches_in(total, batch_size));
            let sizes: Vec<u64> = batches.iter().map(|b| b.iter().map(Span::len).sum()).collect();
            for size in sizes.iter().rev().skip(1) {
                prop_assert_eq!(*size, u64::from(batch_size.max(1)));
            }
            let taken: Vec<u64> = batches.iter().flatten().flat_map(Span::positions).collect();
            let given: Vec<u64> = lease.iter().flat_map(Span::positions).collect();
            prop_assert_eq!(taken, given);
        }
    }
}
