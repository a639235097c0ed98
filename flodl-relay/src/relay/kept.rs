//! The last consensus that came down whole: for a controller that has lost its own copy with its process, and as what
//! differences are from, where those travel between hosts.
//!
//! Chunks are copied as they pass, because what they lie in is wanted again for the next ones.

use crate::coding::{Base, plain};
use bytes::{Bytes, BytesMut};
use flodl_cpureduce::{Codec, DecodeError, Digest, Layout, Mass};
use flodl_wire::message::data::{self, Chunk};
use flodl_wire::{Round, Version};

/// The last whole consensus, and the result of a round that may replace it.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// As what sums and results travel.
    codec: Codec,
    layout: Option<Layout>,
    version: Option<Version>,
    digest: u64,
    chunks: Vec<Bytes>,
    /// The round of `coming`.
    round: Option<Round>,
    coming: Coming,
}

/// A result as far as it has come.
#[derive(Debug, Default)]
struct Coming {
    /// Its chunks, and behind them those of an older one, for their memory.
    chunks: Vec<Bytes>,
    /// Chunks that are of the round.
    here: usize,
    digest: Digest,
}

impl Coming {
    /// Memory that the next chunk can lie in, unless somebody still reads what lies there.
    fn room(&mut self) -> BytesMut {
        let older = self.chunks.get_mut(self.here).map(std::mem::take);
        older.and_then(|older| older.try_into_mut().ok()).unwrap_or_default()
    }
}

impl Kept {
    /// From here on sums and results travel as that.
    pub(super) fn travel_as(&mut self, codec: Codec) {
        if !self.is_base() && codec != Codec::F32 {
            let digest = |mut digest: Digest, chunk: &Bytes| {
                digest.update(chunk);
                digest
            };
            self.digest = self.chunks.iter().fold(Digest::default(), digest).finish();
        }
        self.codec = codec;
    }

    /// Whether it is needed for reading results.
    pub(super) fn is_base(&self) -> bool {
        self.codec != Codec::F32
    }

    /// The model's chunks.
    pub(super) fn lay_out(&mut self, layout: Layout) {
        self.layout = Some(layout);
    }

    /// A round begins.
    pub(super) fn begin(&mut self, round: Round) {
        (self.round, self.coming.here, self.coming.digest) = (Some(round), 0, Digest::default());
    }

    /// What the host holds, where that is this version and sums are to travel as differences from it.
    pub(super) fn base(&self, version: Version) -> Option<Base> {
        let held = self.version == Some(version) && self.is_base();
        held.then(|| Base { codec: self.codec, version, digest: self.digest, chunks: self.chunks.clone() })
    }

    /// A result chunk of the open round with its values as they are.
    pub(super) fn plain(&mut self, chunk: Chunk) -> Result<Chunk, DecodeError> {
        let place = chunk.chunk as usize;
        let spec = self.layout.and_then(|layout| layout.chunk(chunk.chunk));
        let (Some(base), Some(spec)) = (chunk.codec.base(), spec) else { return Ok(chunk) };
        let held = self.version.zip(self.chunks.get(place));
        // It is the consensus in force.
        if let Some((version, bytes)) = held
            && (chunk.mass, chunk.bytes.is_empty(), version) == (0.0, true, base)
        {
            return Ok(Chunk { codec: data::Codec::Exact, bytes: bytes.clone(), ..chunk });
        }
        let room = self.coming.room();
        plain(&spec, chunk, (Mass::ONE, held), room)
    }

    /// The next chunk of its result, as it is. `own`: nothing else will want the memory that it lies in.
    pub(super) fn take(&mut self, chunk: &Chunk, own: bool) {
        let bytes = if own {
            chunk.bytes.clone()
        } else {
            let mut room = self.coming.room();
            room.clear();
            room.extend_from_slice(&chunk.bytes);
            room.freeze()
        };
        if self.is_base() {
            self.coming.digest.update(&bytes);
        }
        match self.coming.chunks.get_mut(self.coming.here) {
            Some(older) => *older = bytes,
            None => self.coming.chunks.push(bytes),
        }
        self.coming.here += 1;
    }

    /// The round is committed as that version. Its result counts where all of it has come.
    pub(super) fn commit(&mut self, round: Round, version: Version) {
        if self.result() == Some(round) {
            std::mem::swap(&mut self.chunks, &mut self.coming.chunks);
            (self.version, self.digest) = (Some(version), self.coming.digest.finish());
            (self.round, self.coming.here) = (None, 0);
        }
    }

    /// Which consensus is kept whole.
    pub(super) fn version(&self) -> Option<Version> {
        self.version
    }

    /// The round whose result is here whole, and may have been committed since.
    pub(super) fn result(&self) -> Option<Round> {
        let whole = self.layout.is_some_and(|layout| self.coming.here == layout.chunks() as usize);
        self.round.filter(|_| whole)
    }

    /// What may be that consensus, as chunks of `round`: whoever asks knows its digest.
    pub(super) fn offer(&self, version: Version, round: Round) -> Vec<Chunk> {
        let result = self.result().map(|_| &self.coming.chunks);
        let kept = Some(&self.chunks).filter(|_| self.version == Some(version)).or(result);
        let chunk = |(chunk, bytes): (u32, &Bytes)| {
            let bytes = bytes.clone();
            Chunk { round, version, chunk, mass: 1.0, codec: data::Codec::Exact, bytes }
        };
        let whole = self.layout.map_or(0, |layout| layout.chunks() as usize);
        kept.map(|chunks| (0..).zip(&chunks[..whole.min(chunks.len())]).map(chunk).collect()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(index: u32, byte: u64) -> Chunk {
        let (bytes, codec) = (Bytes::from(vec![byte as u8; 4]), data::Codec::Exact);
        Chunk { round: Round(1), version: Version(1), chunk: index, mass: 1.0, codec, bytes }
    }

    fn bytes(chunks: &[Chunk]) -> Vec<u8> {
        chunks.iter().flat_map(|chunk| chunk.bytes.to_vec()).collect()
    }

    #[test]
    fn only_a_whole_result_replaces_what_is_kept() {
        let mut kept = Kept::default();
        kept.commit(Round(0), Version(0));
        kept.lay_out(Layout::new(1, 1, 0).unwrap());
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
            (0..came).for_each(|index| kept.take(&chunk(index, round), false));
            kept.commit(Round(committed), Version(committed));
            assert_eq!((kept.version(), kept.result()), (version.map(Version), result.map(Round)), "round {round}");
            let held = version.unwrap_or_default();
            assert_eq!(bytes(&kept.offer(Version(held), Round(9))), vec![held as u8; 8]);
        }
        let offered = kept.offer(Version(7), Round(9));
        assert_eq!(bytes(&offered), [5; 8], "the result may be version 7");
        assert!(offered.iter().all(|chunk| (chunk.round, chunk.version) == (Round(9), Version(7))));
    }
}
