//! An epoch's order, computed position by position.
//!
//! A list of shuffled indices costs eight bytes a sample on every process and has to be rebuilt for each epoch. This
//! permutation is a function instead: a Feistel network over the smallest power of two that holds the epoch, walked
//! again while it lands outside ("cycle walking", Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). The
//! same (seed, epoch, length) gives the same order on every process and in every version; golden vectors hold that.

/// Rounds of the network; each of the two halves is changed half as often.
const ROUNDS: usize = 8;

/// A network over very few bits reaches only a few of the orders there are, so short epochs walk a wider domain.
const MIN_BITS: u32 = 6;

/// The order of one epoch: a bijection on `[0, len)` in constant memory.
///
/// ```
/// use flodl_elche::Permutation;
///
/// let order = Permutation::new(7, 0, 10);
/// let mut samples: Vec<u64> = (0..10).map(|position| order.at(position)).collect();
/// samples.sort_unstable();
/// assert_eq!(samples, (0..10).collect::<Vec<_>>());
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    len: u64,
    left_bits: u32,
    right_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// The order of `epoch` over `len` samples, keyed by the run's `seed`.
    pub fn new(seed: u64, epoch: u64, len: u64) -> Self {
        let bits = (u64::BITS - len.saturating_sub(1).leading_zeros()).max(MIN_BITS);
        let left_bits = bits / 2;
        let mut state = mix(mix(seed ^ 0x9e37_79b9_7f4a_7c15) ^ epoch);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state)
        });
        Self { len, left_bits, right_bits: bits - left_bits, keys }
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is no sample at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The sample that stands at `position`, in `[0, len)`.
    ///
    /// # Panics
    ///
    /// When `position` is not below the length, as indexing a slice does; [`get`](Self::get) answers instead.
    pub fn at(&self, position: u64) -> u64 {
        assert!(position < self.len, "position {position} is not in an epoch of {} samples", self.len);
        let mut value = position;
        loop {
            value = self.network(value);
            if value < self.len {
                return value;
            }
        }
    }

    /// The sample that stands at `position`, or nothing where the epoch is shorter.
    pub fn get(&self, position: u64) -> Option<u64> {
        (position < self.len).then(|| self.at(position))
    }

    /// One pass over the whole power of two: each round adds a keyed hash of one half to the other, which can be undone
    /// whatever the hash is, so the pass is a bijection.
    fn network(&self, value: u64) -> u64 {
        let right_mask = mask(self.right_bits);
        let left_mask = mask(self.left_bits);
        let (mut left, mut right) = (value >> self.right_bits, value & right_mask);
        for pair in self.keys.chunks_exact(2) {
            left ^= mix(right ^ pair[0]) & left_mask;
            right ^= mix(left ^ pair[1]) & right_mask;
        }
        left << self.right_bits | right
    }
}

/// The lowest `bits` bits, `bits` in 1..=32.
fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// A 64-bit finaliser: multiply and xor-shift steps after which each input bit reaches each output bit (the constants
/// are those of SplitMix64, Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(seed: u64, epoch: u64, len: u64) -> Vec<u64> {
        let permutation = Permutation::new(seed, epoch, len);
        (0..len).map(|p| permutation.at(p)).collect()
    }

    #[test]
    fn a_position_outside_is_refused() {
        let permutation = Permutation::new(1, 2, 3);
        assert_eq!(permutation.get(3), None);
        assert!(permutation.get(2).is_some());
        assert_eq!(Permutation::new(1, 2, 0).get(0), None);
        assert!(std::panic::catch_unwind(|| permutation.at(3)).is_err());
    }

    #[test]
    fn epochs_and_seeds_differ_and_repeat() {
        assert_eq!(order(1, 1, 1000), order(1, 1, 1000));
        assert_ne!(order(1, 1, 1000), order(1, 2, 1000));
        assert_ne!(order(1, 1, 1000), order(2, 1, 1000));
    }

    #[test]
    fn the_order_looks_shuffled() {
        // Of a random order of n: about one fixed point, mean displacement n/3, and half of the steps ascend.
        let n = 10_000u64;
        for epoch in 0..5 {
            let order = order(99, epoch, n);
            let fixed = order.iter().enumerate().filter(|&(i, &v)| i as u64 == v).count();
            let moved: u64 = order.iter().enumerate().map(|(i, &v)| v.abs_diff(i as u64)).sum();
            let ascents = order.windows(2).filter(|w| w[0] < w[1]).count();
            assert!(fixed < 8, "{fixed} samples stay in place");
            assert!((moved as f64 / (n * n) as f64 - 1.0 / 3.0).abs() < 0.02);
            assert!((ascents as f64 / n as f64 - 0.5).abs() < 0.03);
        }
    }

    #[test]
    fn short_epochs_reach_every_order() {
        // 4 samples have 24 orders, and 600 epochs should show all of them.
        let seen: std::collections::BTreeSet<Vec<u64>> = (0..600).map(|epoch| order(5, epoch, 4)).collect();
        assert_eq!(seen.len(), 24);
    }

    proptest! {
        #[test]
        fn it_is_a_bijection(seed in any::<u64>(), epoch in any::<u64>(), len in 0u64..3000) {
            let mut seen = vec![false; len as usize];
            for sample in order(seed, epoch, len) {
                prop_assert!(!std::mem::replace(&mut seen[sample as usize], true), "sample {} twice", sample);
            }
        }

        #[test]
        fn large_epochs_stay_in_range(seed in any::<u64>(), len in 1u64.., position in any::<u64>()) {
            let permutation = Permutation::new(seed, 0, len);
            prop_assert!(permutation.at(position % len) < len);
        }
    }
}
