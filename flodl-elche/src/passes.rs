//! Epochs that are parts of a pass over the samples.
//!
//! One permutation orders a whole pass. Its positions are cut into so many epochs, in order and as even as whole samples can be,
//! so that a run over few and long passes is evaluated and saved more often; and every sample is still trained once a pass.

use crate::permutation::Permutation;
use serde::{Deserialize, Serialize};

/// How the epochs of a run cut its passes.
///
/// ```
/// use flodl_elche::Passes;
///
/// let passes = Passes::new(10, 3);
/// assert_eq!([0, 1, 2, 3].map(|epoch| passes.epoch_len(epoch)), [3, 3, 4, 3]);
/// // The second position of epoch 4 is one of the second pass.
/// assert_eq!(passes.place(4, 1), Some((1, 4)));
/// assert_eq!((passes.longest(), passes.samples(4), passes.batches(4, 4)), (4, 13, 4));
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passes {
    len: u64,
    splits: u32,
}

impl Passes {
    /// Passes of `len` positions, each cut into `splits` epochs: at least one, and at most one a position.
    pub fn new(len: u64, splits: u32) -> Self {
        Self { len, splits }
    }

    /// Positions of a pass.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is nothing to train on.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Epochs of a pass.
    pub fn splits(&self) -> u64 {
        u64::from(self.splits).clamp(1, self.len.max(1))
    }

    /// Where the so-manieth epoch of a pass begins.
    fn start(&self, part: u64) -> u64 {
        let product = u128::from(self.len) * u128::from(part);
        // `part <= splits`, so this is at most `len`.
        (product / u128::from(self.splits())) as u64
    }

    /// Positions of an epoch.
    pub fn epoch_len(&self, epoch: u64) -> u64 {
        let part = epoch % self.splits();
        self.start(part + 1) - self.start(part)
    }

    /// Positions of the longest epoch.
    pub fn longest(&self) -> u64 {
        self.len.div_ceil(self.splits())
    }

    /// The pass that a position of an epoch belongs to, and which position it is there; nothing beyond the epoch's end.
    pub fn place(&self, epoch: u64, position: u64) -> Option<(u64, u64)> {
        let (pass, part) = (epoch / self.splits(), epoch % self.splits());
        (position < self.epoch_len(epoch)).then(|| (pass, self.start(part) + position))
    }

    /// The picks of an epoch, by position: those of its pass' permutation under `seed` that the epoch has.
    pub fn picks(&self, seed: u64, epoch: u64) -> impl Fn(u64) -> Option<u64> {
        let (passes, order) = (*self, Permutation::new(seed, epoch / self.splits(), self.len));
        move |position| passes.place(epoch, position).and_then(|(_, at)| order.get(at))
    }

    /// Positions of the first `epochs` epochs.
    pub fn samples(&self, epochs: u64) -> u64 {
        let (passes, parts) = (epochs / self.splits(), epochs % self.splits());
        passes.saturating_mul(self.len).saturating_add(self.start(parts))
    }

    /// Batches of the first `epochs` epochs: the last one of each may be short.
    pub fn batches(&self, epochs: u64, batch_size: u32) -> u64 {
        let batches = |len: u64| len.div_ceil(u64::from(batch_size.max(1)));
        let short = self.len / self.splits();
        // An epoch is short or has one position more.
        let sum = |parts: u64| {
            let long = self.start(parts) - parts * short;
            long.saturating_mul(batches(short + 1)).saturating_add((parts - long).saturating_mul(batches(short)))
        };
        let (passes, parts) = (epochs / self.splits(), epochs % self.splits());
        passes.saturating_mul(sum(self.splits())).saturating_add(sum(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_pass_is_trained_once_whatever_its_epochs(len in 0u64..400, splits in 0u32..12, seed in any::<u64>()) {
            let passes = Passes::new(len, splits);
            for pass in 0..2 {
                let epochs = pass * passes.splits()..(pass + 1) * passes.splits();
                let lens: Vec<u64> = epochs.clone().map(|epoch| passes.epoch_len(epoch)).collect();
                prop_assert_eq!(lens.iter().sum::<u64>(), len);
                prop_assert!(lens.iter().all(|&own| own + 1 >= passes.longest() && own <= passes.longest()));
                let picked: Vec<u64> = epochs
                    .flat_map(|epoch| {
                        let pick = passes.picks(seed, epoch);
                        (0..=passes.longest()).filter_map(pick).collect::<Vec<_>>()
                    })
                    .collect();
                let whole: Vec<u64> = Permutation::new(seed, pass, len).collect_all();
                prop_assert_eq!(picked, whole);
            }
        }

        #[test]
        fn totals_are_sums(len in 1u64..300, splits in 1u32..9, epochs in 0u64..30, batch_size in 1u32..40) {
            let passes = Passes::new(len, splits);
            let lens = || (0..epochs).map(|epoch| passes.epoch_len(epoch));
            prop_assert_eq!(passes.samples(epochs), lens().sum::<u64>());
            prop_assert_eq!(passes.batches(epochs, batch_size), lens().map(|len| len.div_ceil(u64::from(batch_size))).sum::<u64>());
        }
    }

    impl Permutation {
        fn collect_all(&self) -> Vec<u64> {
            (0..).map_while(|at| self.get(at)).collect()
        }
    }
}
