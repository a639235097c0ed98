//! The digest by which everyone who holds a consensus can tell that it is the same one.

use crate::kernel::{self, Accumulators, HASH_BLOCK, STRIPE};
use core::fmt;

/// A streaming xxh3 (64 bits, seed 0) over result chunks in order, so over the bytes of all sections.
///
/// It finds accidents, not attacks: whoever may send results can choose them.
///
/// ```
/// use flodl_cpureduce::Digest;
/// let mut digest = Digest::new();
/// digest.update(b"first chunk ");
/// digest.update(b"second chunk");
/// assert_eq!(digest.finish(), Digest::of(b"first chunk second chunk"));
/// ```
#[derive(Clone)]
pub struct Digest {
    /// Of the blocks that are full and have more behind them.
    sums: Accumulators,
    total: u64,
    /// The bytes behind those blocks: from the first byte on at least 1, at most a block.
    rest: [u8; HASH_BLOCK],
    length: usize,
    /// The end of the last full block.
    before: [u8; STRIPE],
}

impl Default for Digest {
    fn default() -> Self {
        Self { sums: kernel::START, total: 0, rest: [0; HASH_BLOCK], length: 0, before: [0; STRIPE] }
    }
}

impl Digest {
    /// The digest of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The digest of one piece of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u64 {
        let mut digest = Self::default();
        digest.update(bytes);
        digest.finish()
    }

    /// Adds the next bytes. Only their order matters, not how they are cut.
    pub fn update(&mut self, bytes: &[u8]) {
        self.total = self.total.wrapping_add(bytes.len() as u64);
        if self.length + bytes.len() <= HASH_BLOCK {
            self.keep(bytes);
            return;
        }
        let (head, bytes) = bytes.split_at(HASH_BLOCK - self.length);
        self.keep(head);
        kernel::hash_blocks(&mut self.sums, core::slice::from_ref(&self.rest));
        // The last block stays, full or not, for its end is hashed in another way.
        let full = bytes.len().saturating_sub(1) / HASH_BLOCK;
        let (blocks, _) = bytes.as_chunks();
        let blocks = &blocks[..full];
        kernel::hash_blocks(&mut self.sums, blocks);
        self.before.copy_from_slice(&blocks.last().unwrap_or(&self.rest)[HASH_BLOCK - STRIPE..]);
        self.length = 0;
        self.keep(&bytes[full * HASH_BLOCK..]);
    }

    /// Puts bytes behind those that are kept. There is room for them.
    fn keep(&mut self, bytes: &[u8]) {
        self.rest[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// The digest of everything added so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        let rest = &self.rest[..self.length];
        if self.total <= kernel::SHORT_MAX as u64 {
            return xxhash_rust::xxh3::xxh3_64(rest);
        }
        let last = rest.last_chunk().copied().unwrap_or_else(|| {
            let mut last = [0; STRIPE];
            let (head, tail) = last.split_at_mut(STRIPE - rest.len());
            head.copy_from_slice(&self.before[rest.len()..]);
            tail.copy_from_slice(rest);
            last
        });
        kernel::hash_end(self.sums, rest, &last, self.total)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({:016x})", self.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn the_value_is_pinned() {
        // It crosses the wire between builds: these are the published values of xxh3 for no bytes and for "a".
        assert_eq!(Digest::new().finish(), 0x2d06_8005_38d3_94c2);
        assert_eq!(Digest::of(b"a"), 0xe6c6_32b6_1e96_4e1f);
    }

    #[test]
    fn the_value_is_that_of_another_implementation_at_every_length() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|i| (i * 7 + i / 13) as u8).collect();
        for length in (0..2200).chain([4095, 4096, 4097, 65_535, 65_536, 65_537, 70_000]) {
            let bytes = &bytes[70_000 - length..];
            assert_eq!(Digest::of(bytes), xxhash_rust::xxh3::xxh3_64(bytes), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_cuts_give_the_digest_of_the_whole(
            bytes in vec(any::<u8>(), 0..5000),
            cuts in vec(0..1500_usize, 0..12),
        ) {
            let mut digest = Digest::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                digest.update(head);
                rest = tail;
                let so_far = &bytes[..bytes.len() - rest.len()];
                prop_assert_eq!(digest.finish(), xxhash_rust::xxh3::xxh3_64(so_far));
            }
            digest.update(rest);
            prop_assert_eq!(digest.finish(), xxhash_rust::xxh3::xxh3_64(&bytes));
        }
    }

    #[test]
    fn cuts_do_not_matter_and_order_does() {
        let bytes: Vec<u8> = (0..5000_u32).map(|i| (i * 7 + i / 13) as u8).collect();
        for cut in [0, 1, 240, 1024, 4999] {
            let mut digest = Digest::new();
            digest.update(&bytes[..cut]);
            digest.update(&bytes[cut..]);
            assert_eq!(digest.finish(), Digest::of(&bytes));
        }
        let swapped = [&bytes[2500..], &bytes[..2500]].concat();
        assert_ne!(Digest::of(&swapped), Digest::of(&bytes));
    }
}
