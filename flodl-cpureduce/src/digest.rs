//! The digest by which everyone who holds a consensus can tell that it is the same one.

use core::fmt;
use xxhash_rust::xxh3::Xxh3;

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
#[derive(Clone, Default)]
pub struct Digest(Xxh3);

impl Digest {
    /// The digest of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The digest of one piece of bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64(bytes)
    }

    /// Adds the next bytes. Only their order matters, not how they are cut.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of everything added so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.digest()
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

    #[test]
    fn the_value_is_pinned() {
        // It crosses the wire between builds: these are the published values of xxh3 for no bytes and for "a".
        assert_eq!(Digest::new().finish(), 0x2d06_8005_38d3_94c2);
        assert_eq!(Digest::of(b"a"), 0xe6c6_32b6_1e96_4e1f);
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
