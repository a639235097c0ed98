//! Memory that this rank shares with its relay, where it was handed some.

use super::key::take;
use crate::id;
use crate::reduce::{Label, Passage, Told};
use flodl_cpureduce::shm::{Bell, Bells, BoardReader, LaneWriter, Note, ShmError};
use flodl_cpureduce::{ChunkSpec, Layout};
use flodl_wire::Round;
use flodl_wire::message::data::AbsentWhy;
use rustix::fs::fstat;
use std::os::fd::OwnedFd;

/// This rank's end of it.
#[derive(Debug)]
pub(super) struct Shared {
    lane: LaneWriter,
    board: OwnedFd,
    results: Option<BoardReader>,
}

impl Shared {
    /// Takes up what the descriptors name, and tells the relay so: that must come before this rank connects.
    ///
    /// # Errors
    /// A sentence. Nothing was told then, and chunks go through the socket.
    pub(super) fn take_up(fds: [i32; 3]) -> Result<Shared, String> {
        let own = |fd| take(fd).map(OwnedFd::from).map_err(|_| format!("FLODL_SHM_FDS names {fd}, which is not open"));
        // Each is taken before anything can fail, so that none is left open.
        let [lane, bells, board] = fds.map(own);
        let (lane, bells, board) = (lane?, bells?, board?);
        let lane = Bells::adopt(bells).and_then(|bells| LaneWriter::adopt(&lane, bells.relay()));
        let lane = lane.map_err(|error: ShmError| error.to_string())?;
        lane.attach();
        Ok(Shared { lane, board, results: None })
    }

    /// What the relay rings for this rank.
    pub(super) fn bell(&self) -> Bell {
        self.lane.bell()
    }
}

impl Passage for Shared {
    fn ready(&mut self, layout: Layout) -> Result<bool, String> {
        if self.results.is_some() {
            return Ok(true);
        }
        let size = fstat(&self.board).map_err(|error| error.to_string())?.st_size;
        if size == 0 {
            return Ok(false);
        }
        self.results = Some(BoardReader::adopt(&self.board, layout).map_err(|error| error.to_string())?);
        Ok(true)
    }

    fn room(&mut self, bytes: u32) -> Option<&mut [u8]> {
        self.lane.room(bytes)
    }

    fn has_room(&self) -> bool {
        self.lane.has_room()
    }

    fn send(&mut self, label: &Label, bytes: u32) {
        let Label { round, base, chunk, mass } = *label;
        if let Some(slot) = self.lane.slot() {
            slot.send(&Note { round: round.0, version: base.0, index: chunk, mass }, bytes);
        }
    }

    fn send_absent(&mut self, round: Round, from_chunk: u32, why: AbsentWhy) -> bool {
        let slot = self.lane.slot();
        slot.map(|slot| slot.send_absent(round.0, from_chunk, id::absence(why))).is_some()
    }

    fn result(&mut self, round: Round) -> u32 {
        let progress = self.results.as_ref().and_then(|results| results.progress(round.0));
        progress.map_or(0, |(chunks, _)| chunks)
    }

    fn chunk(&self, round: Round, spec: &ChunkSpec) -> Option<&[u8]> {
        self.results.as_ref()?.chunk(round.0, spec)
    }

    fn model(&self, round: Round) -> Option<&[u8]> {
        self.results.as_ref()?.model(round.0)
    }

    fn whole(&self, round: Round) -> Option<Told> {
        let whole = self.results.as_ref()?.whole(round.0)?;
        Some(Told { digest: whole.digest, squared_norm: whole.squared_norm })
    }

    fn holds(&self, round: Round) -> bool {
        self.results.as_ref().is_some_and(|results| results.holds(round.0))
    }
}
