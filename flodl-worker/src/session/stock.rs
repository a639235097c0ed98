//! Positions of more than one epoch: what a rank may train, and what it has trained.
//!
//! On the wire positions run on over the end of an epoch, so that one list of ranges speaks of two epochs
//! ([`WindowPlan::epoch`](flodl_wire::message::control::WindowPlan)). Here every range knows its epoch, because a batch never
//! holds positions of two.

use crate::id;
use flodl_elche::Batches;
use flodl_wire::{Epoch, Range};
use std::collections::BTreeMap;

/// What is leased and not trained, epoch by epoch.
#[derive(Clone, Debug)]
pub(super) struct Stock {
    epoch_len: u64,
    batch_size: u32,
    by_epoch: BTreeMap<Epoch, Batches>,
}

impl Stock {
    /// Nothing yet, of epochs of `epoch_len` positions.
    pub(super) fn new(epoch_len: u64, batch_size: u32) -> Stock {
        Stock { epoch_len, batch_size, by_epoch: BTreeMap::new() }
    }

    /// More, to be trained after what there is of the same epoch. The positions count from `base`.
    pub(super) fn add(&mut self, base: Epoch, ranges: &[Range]) {
        for (epoch, range) in ranges.iter().flat_map(|&range| split(base, range, self.epoch_len)) {
            let fresh = || Batches::new(Vec::new(), self.batch_size);
            self.by_epoch.entry(epoch).or_insert_with(fresh).extend(&[id::span(range)]);
        }
    }

    /// The next batch: of the oldest epoch that has one.
    pub(super) fn next_batch(&mut self) -> Option<(Epoch, Vec<Range>)> {
        while let Some(mut entry) = self.by_epoch.first_entry() {
            let epoch = *entry.key();
            if let Some(batch) = entry.get_mut().next_batch() {
                return Some((epoch, id::ranges(&batch)));
            }
            entry.remove();
        }
        None
    }

    /// Whether no batch is left.
    pub(super) fn is_empty(&self) -> bool {
        self.by_epoch.values().all(|batches| batches.remaining() == 0)
    }
}

/// Cuts a range whose positions count from `base` at the ends of epochs.
fn split(base: Epoch, range: Range, epoch_len: u64) -> impl Iterator<Item = (Epoch, Range)> {
    let epoch_len = epoch_len.max(1);
    let mut start = range.start;
    std::iter::from_fn(move || {
        if start >= range.end {
            return None;
        }
        let past = start / epoch_len;
        let end = range.end.min((past + 1).saturating_mul(epoch_len));
        let part = Range { start: start - past * epoch_len, end: end - past * epoch_len };
        start = end;
        Some((Epoch(base.0.saturating_add(past)), part))
    })
}

/// What was trained, in order; ranges that follow one another are one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions(Vec<(Epoch, Range)>);

impl Positions {
    /// A batch of that epoch was trained.
    pub(super) fn push(&mut self, epoch: Epoch, ranges: &[Range]) {
        for &range in ranges {
            match self.0.last_mut() {
                Some((last_epoch, last)) if *last_epoch == epoch && last.end == range.start => last.end = range.end,
                _ => self.0.push((epoch, range)),
            }
        }
    }

    /// The oldest epoch in it.
    pub(super) fn oldest(&self) -> Option<Epoch> {
        self.0.iter().map(|(epoch, _)| *epoch).min()
    }

    /// As positions that count from `base`, which is not after the oldest.
    pub(super) fn counted_from(&self, base: Epoch, epoch_len: u64) -> Vec<Range> {
        let on = |epoch: Epoch| epoch.0.saturating_sub(base.0).saturating_mul(epoch_len);
        let moved = |&(epoch, range): &(Epoch, Range)| Range {
            start: range.start.saturating_add(on(epoch)),
            end: range.end.saturating_add(on(epoch)),
        };
        self.0.iter().map(moved).collect()
    }

    /// Those of `later` come after.
    pub(super) fn append(&mut self, later: &mut Positions) {
        for (epoch, range) in later.0.drain(..) {
            self.push(epoch, &[range]);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn a_lease_over_the_border_of_an_epoch_makes_batches_of_one_epoch_each() {
        let mut stock = Stock::new(100, 10);
        // Five positions of epoch 7, then those of epoch 8, and more of epoch 7 that come later.
        stock.add(Epoch(7), &[range(95, 112)]);
        stock.add(Epoch(7), &[range(0, 3)]);
        let batches: Vec<_> = std::iter::from_fn(|| stock.next_batch()).collect();
        let expect = [
            (Epoch(7), vec![range(95, 100), range(0, 3)]),
            (Epoch(8), vec![range(0, 10)]),
            (Epoch(8), vec![range(10, 12)]),
        ];
        assert_eq!(batches, expect);
        assert!(stock.is_empty());
    }

    #[test]
    fn positions_count_on_from_an_older_epoch() {
        let mut trained = Positions::default();
        trained.push(Epoch(3), &[range(90, 95)]);
        trained.push(Epoch(3), &[range(95, 100), range(4, 6)]);
        trained.push(Epoch(4), &[range(0, 8)]);
        assert_eq!(trained.oldest(), Some(Epoch(3)));
        assert_eq!(trained.counted_from(Epoch(3), 100), [range(90, 100), range(4, 6), range(100, 108)]);
        assert_eq!(trained.counted_from(Epoch(2), 100)[0], range(190, 200));
        let there_and_back: Vec<_> =
            trained.counted_from(Epoch(2), 100).into_iter().flat_map(|r| split(Epoch(2), r, 100)).collect();
        assert_eq!(there_and_back, trained.0);
    }
}
