//! The consensus that a relay hands to a root which has lost its own with its process.

use bytes::Bytes;
use flodl_cpureduce::{Consensus, Layout};
use flodl_wire::message::data::Chunk;
use flodl_wire::{Round, SessionId, Version};

/// A consensus that a relay sends up after a restart.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) session: SessionId,
    pub(super) round: Round,
    pub(super) version: Version,
    pub(super) digest: u64,
    /// Its chunks so far.
    pub(super) chunks: Vec<Bytes>,
}

impl Coming {
    /// Takes the next chunk; gives the consensus with the last one. A sentence where it is not the one that was asked for.
    pub(super) fn take(&mut self, layout: &Layout, chunk: &Chunk) -> Result<Option<Consensus>, String> {
        let next = u32::try_from(self.chunks.len()).unwrap_or(u32::MAX);
        let fits = layout.chunk(next).is_some_and(|spec| spec.bytes as usize == chunk.bytes.len());
        if chunk.chunk != next || chunk.version != self.version || !fits {
            return Err(format!(
                "chunk {} of {} with {} bytes came where chunk {next} of {} was next",
                chunk.chunk,
                chunk.version,
                chunk.bytes.len(),
                self.version
            ));
        }
        self.chunks.push(chunk.bytes.clone());
        if next.saturating_add(1) < layout.chunks() {
            return Ok(None);
        }
        let model = Bytes::from(self.chunks.concat());
        let consensus = Consensus::from_bytes(*layout, self.version.0, model).map_err(|error| error.to_string())?;
        if consensus.digest() != Some(self.digest) {
            return Err(format!("what came as {} has another digest than was committed", self.version));
        }
        Ok(Some(consensus))
    }
}
