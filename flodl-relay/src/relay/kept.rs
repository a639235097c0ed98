//! The last consensus that came down whole, for a controller that has lost its own copy with its process.
//!
//! Chunks are copied as they pass, because what they lie in is wanted again for the next ones.

use bytes::{Bytes, BytesMut};
use flodl_wire::message::data::{Chunk, Codec};
use flodl_wire::{Round, Version};

/// The last whole consensus, and the result of a round that may replace it.
#[derive(Debug, Default)]
pub(super) struct Kept {
    version: Option<Version>,
    chunks: Vec<BytesMut>,
    /// The round of `coming`.
    round: Option<Round>,
    coming: Vec<BytesMut>,
    /// Chunks of `coming` that are of that round.
    here: usize,
    /// Chunks of a whole result.
    whole: usize,
}

impl Kept {
    /// The model has so many chunks.
    pub(super) fn lay_out(&mut self, chunks: u32) {
        self.whole = chunks as usize;
    }

    /// A round begins.
    pub(super) fn begin(&mut self, round: Round) {
        (self.round, self.here) = (Some(round), 0);
    }

    /// The next chunk of its result.
    pub(super) fn take(&mut self, chunk: &Chunk) {
        match self.coming.get_mut(self.here) {
            Some(older) => {
                older.clear();
                older.extend_from_slice(&chunk.bytes);
            }
            None => self.coming.push(BytesMut::from(&chunk.bytes[..])),
        }
        self.here += 1;
    }

    /// The round is committed as that version. Its result counts where all of it has come.
    pub(super) fn commit(&mut self, round: Round, version: Version) {
        if self.result() == Some(round) {
            std::mem::swap(&mut self.chunks, &mut self.coming);
            self.version = Some(version);
            (self.round, self.here) = (None, 0);
        }
    }

    /// Which consensus is kept whole.
    pub(super) fn version(&self) -> Option<Version> {
        self.version
    }

    /// The round whose result is here whole, and may have been committed since.
    pub(super) fn result(&self) -> Option<Round> {
        self.round.filter(|_| self.whole > 0 && self.here == self.whole)
    }

    /// What may be that consensus, as chunks of `round`: whoever asks knows its digest.
    pub(super) fn offer(&self, version: Version, round: Round) -> Vec<Chunk> {
        let result = self.result().map(|_| &self.coming);
        let kept = Some(&self.chunks).filter(|_| self.version == Some(version)).or(result);
        let chunk = |(chunk, bytes): (u32, &BytesMut)| {
            let bytes = Bytes::copy_from_slice(bytes);
            Chunk { round, version, chunk, mass: 1.0, codec: Codec::Exact, bytes }
        };
        kept.map(|chunks| (0..).zip(&chunks[..self.whole.min(chunks.len())]).map(chunk).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(index: u32, byte: u64) -> Chunk {
        let bytes = Bytes::from(vec![byte as u8; 3]);
        Chunk { round: Round(1), version: Version(1), chunk: index, mass: 1.0, codec: Codec::Exact, bytes }
    }

    fn bytes(chunks: &[Chunk]) -> Vec<u8> {
        chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect()
    }

    #[test]
    fn only_a_whole_result_replaces_what_is_kept() {
        let mut kept = Kept::default();
        kept.commit(Round(0), Version(0));
        kept.lay_out(2);
        assert_eq!((kept.version(), kept.offer(Version(0), Round(9))), (None, vec![]));
        // (round, chunks that came, the round that is committed, what is kept then, the result beside it)
        for (round, came, committed, version, result) in [
            (1, 2, 1, Some(1), None),
            (2, 1, 2, Some(1), None),
            (3, 2, 2, Some(1), Some(3)),
            (4, 2, 4, Some(4), None),
            (5, 2, 9, Some(4), Some(5)),
        ] {
            kept.begin(Round(round));
            (0..came).for_each(|index| kept.take(&chunk(index, round)));
            kept.commit(Round(committed), Version(committed));
            assert_eq!((kept.version(), kept.result()), (version.map(Version), result.map(Round)), "round {round}");
            let held = version.unwrap_or_default();
            assert_eq!(bytes(&kept.offer(Version(held), Round(9))), vec![held as u8; 6]);
        }
        let offered = kept.offer(Version(7), Round(9));
        assert_eq!(bytes(&offered), [5; 6], "the result may be version 7");
        assert!(offered.iter().all(|chunk| (chunk.round, chunk.version) == (Round(9), Version(7))));
    }
}
