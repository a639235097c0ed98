//! The seed of what a batch draws, where runs are to be bit-equal.

use crate::session::BatchOrder;

/// The seed of a batch: it follows from the run's seed, the epoch and the first position, and from nothing else.
pub(crate) fn seed_of(run: u64, order: &BatchOrder) -> u64 {
    let first = order.positions.first().map_or(0, |range| range.start);
    [order.epoch.0, first].into_iter().fold(mixed(run), |seed, word| mixed(seed ^ word))
}

/// SplitMix64's step (Steele, Lea, Flood 2014): equal words give equal bits, near ones unlike bits.
fn mixed(word: u64) -> u64 {
    let z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::{Epoch, Range, WindowId};
    use std::collections::BTreeSet;

    fn order(window: u64, epoch: u64, start: u64) -> BatchOrder {
        let positions = vec![Range { start, end: start + 4 }, Range { start: 90, end: 92 }];
        BatchOrder { window: WindowId(window), epoch: Epoch(epoch), positions, lr_position: window, warm_up: None }
    }

    #[test]
    fn it_names_the_batch_and_nothing_else() {
        assert_eq!(seed_of(7, &order(1, 2, 64)), seed_of(7, &order(5, 2, 64)));
        let seeds = (0..3).flat_map(|run| (0..4).flat_map(move |epoch| (0..20).map(move |at| (run, epoch, at * 64))));
        let seeds: BTreeSet<u64> = seeds.map(|(run, epoch, at)| seed_of(run, &order(0, epoch, at))).collect();
        assert_eq!(seeds.len(), 3 * 4 * 20);
        // The first output of splitmix64(0): other machines draw the same.
        assert_eq!(mixed(0), 0xe220_a839_7b1d_cdaf);
    }
}
