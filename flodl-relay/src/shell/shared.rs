//! Memory that a relay shares with its ranks: a lane for each, one board for results, and what the fold sleeps on.

use crate::id;
use flodl_cpureduce::shm::{Bell, Bells, Board, Lane, LaneReader, ShmError};
use flodl_wire::message::data::Chunk;
use flodl_wire::message::join::LayoutSizes;
use flodl_wire::{Incarnation, Rank};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;

/// What a host's ranks and their relay share.
pub(super) struct HostMemory {
    bells: Bells,
    board: Board,
    /// Of the newest life of each rank.
    lanes: BTreeMap<Rank, (Incarnation, Lane)>,
}

impl HostMemory {
    /// # Errors
    /// Where the system has no such memory.
    pub(super) fn create() -> Result<HostMemory, ShmError> {
        Ok(HostMemory { bells: Bells::create()?, board: Board::reserve()?, lanes: BTreeMap::new() })
    }

    /// What the folding thread sleeps on.
    pub(super) fn bell(&self) -> Bell {
        self.bells.relay()
    }

    /// A lane for a life that is about to be started: what its process inherits, and the end that is folded from.
    ///
    /// # Errors
    /// Where the system gives no memory, or no descriptors for it.
    pub(super) fn lane(
        &mut self,
        rank: Rank,
        incarnation: Incarnation,
    ) -> Result<([OwnedFd; 3], LaneReader), ShmError> {
        let lane = Lane::create()?;
        let dup = |file: &OwnedFd| file.try_clone().map_err(|error: io::Error| ShmError::System { bytes: 0, error });
        let files = [dup(lane.file())?, dup(self.bells.file())?, dup(self.board.file())?];
        let reader = lane.reader();
        self.lanes.insert(rank, (incarnation, lane));
        Ok((files, reader))
    }

    /// Makes room for results of a model, before any rank of it is in a round.
    ///
    /// # Errors
    /// Where the system does not give so much: results go through sockets then.
    pub(super) fn lay_out(&mut self, sizes: LayoutSizes) -> Result<(), ShmError> {
        // A layout that cannot be is refused elsewhere.
        id::layout(sizes).map_or(Ok(()), |layout| self.board.lay_out(layout))
    }

    /// The bell of a rank that uses its lane and can be given results on the board.
    pub(super) fn bell_of(&self, rank: Rank, incarnation: Incarnation) -> Option<Bell> {
        let (life, lane) = self.lanes.get(&rank)?;
        (*life == incarnation && lane.is_attached()).then(|| lane.bell())
    }

    /// Puts a chunk of a result on the board, for whoever is to be given it first. False where it cannot be there.
    pub(super) fn put(&mut self, chunk: &Chunk) -> bool {
        self.board.put((chunk.round.0, chunk.version.0), chunk.chunk, &chunk.bytes)
    }
}
