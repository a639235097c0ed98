//! The fold of one round at one tier: chunks in, sums out, in a fixed order.
//!
//! Chunk by chunk, and within a chunk contributor by contributor in ascending order: the sums and the events depend
//! on what was contributed, never on when it arrived. A chunk is folded as soon as everyone who still contributes has
//! delivered it, so a tier passes the first chunks on while the last ones are still under way.
//!
//! Chunks can be added up on several threads: whoever drives the fold takes [`Work`] from it and puts the sums back in any
//! order. The events still come in order, and are the same.

use super::work::{Part, Summed, Work};
use super::{Absence, Contributor};
use crate::kernel;
use crate::{ChunkSpec, Layout, Mass, Rooms, Section};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use thiserror::Error;

/// How many bytes a contributor may usefully be ahead of the fold: 16 full chunks.
///
/// Above it ([`Fold::is_ahead`]) a shell stops reading from that contributor until the fold has caught up, which bounds
/// the memory of a round whatever the difference between the contributors' links. The fold itself takes what it gets.
pub const AHEAD_BYTES_MAX: u64 = 16 * crate::CHUNK_BYTES as u64;

/// Why a fold cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FoldError {
    /// The contributors are not strictly ascending.
    #[error("{after} is listed after {before}: sort the contributors and name each once")]
    NotAscending {
        /// The contributor listed first.
        before: Contributor,
        /// The one that follows and should be larger.
        after: Contributor,
    },
}

/// Why a chunk or an absence was refused. The fold is as it was before.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Reject {
    /// Not a contributor of this round.
    #[error("{0} is not part of this round: take contributions only from the round's roster")]
    Unknown(Contributor),
    /// The contributor is absent from an earlier chunk on. This is no fault of a contributor that the fold has dropped
    /// and that does not know it yet: ignore what it still sends.
    #[error("{contributor} is absent from chunk {from_chunk} on because {why}: ignore the rest of its round")]
    Absent {
        /// Who.
        contributor: Contributor,
        /// The first chunk without it.
        from_chunk: u32,
        /// Why it is absent.
        why: Absence,
    },
    /// A chunk, or an absence from a chunk, other than the next one.
    #[error("{contributor} named chunk {got} where chunk {expected} is next: send each chunk once, in order")]
    OutOfOrder {
        /// Who.
        contributor: Contributor,
        /// The chunk that is next for it.
        expected: u32,
        /// The chunk it named.
        got: u32,
    },
    /// Everything was delivered already.
    #[error("{contributor} has delivered all {chunks} chunks: nothing can follow in this round")]
    Complete {
        /// Who.
        contributor: Contributor,
        /// Number of chunks in the round.
        chunks: u32,
    },
    /// Data that is not as long as the chunk. Only a chunk of mass 0 may be empty.
    #[error("{contributor} sent {got} bytes for chunk {index} which has {expected}: check that the models are equal")]
    Length {
        /// Who.
        contributor: Contributor,
        /// Which chunk.
        index: u32,
        /// Bytes of that chunk.
        expected: u32,
        /// Bytes that came.
        got: usize,
    },
}

/// What a fold produces, in this order: for each chunk who is dropped there, then the chunk; at the end `Done`.
#[derive(Debug, Clone, PartialEq)]
pub enum Folded {
    /// A contributor is in no chunk from `from_chunk` on. Precedes the first chunk without it.
    Dropped {
        /// Who.
        contributor: Contributor,
        /// The first chunk without it.
        from_chunk: u32,
        /// Why.
        why: Absence,
    },
    /// The sum of a chunk, not divided; of the integer section the largest values.
    Chunk {
        /// Which chunk.
        index: u32,
        /// The mass that was folded, more than 0.
        mass: Mass,
        /// Little-endian, exactly the chunk's length.
        data: Bytes,
    },
    /// Nobody contributed to that chunk: mass 0, no data.
    Empty {
        /// Which chunk.
        index: u32,
    },
    /// All chunks are out.
    Done,
}

/// One round at one tier. Feed it with [`Fold::chunk`], [`Fold::absent`] and [`Fold::drop_contributor`]; after each
/// call drain [`Fold::poll`] to `None`.
#[derive(Debug)]
pub struct Fold {
    round: u64,
    layout: Layout,
    /// Ascending by id.
    sources: Vec<Source>,
    /// The chunk that is folded, or handed out, next.
    next: u32,
    /// The chunks before it that were handed out and whose events are not out, the oldest first.
    given: VecDeque<Given>,
    /// Memory for sums of chunks that are handed out: that of contributions which were folded.
    rooms: Vec<BytesMut>,
    /// How many have yet to deliver it: with thousands of contributors nobody counts them at each chunk that comes.
    lacking: usize,
    /// Events of the chunk that was folded last.
    out: VecDeque<Folded>,
    done: bool,
    lent: bool,
    /// Where more memory for sums may be.
    shared_rooms: Option<Rooms>,
}

/// A chunk that was handed out.
#[derive(Debug)]
struct Given {
    spec: ChunkSpec,
    /// Places of those who are in it.
    places: Vec<usize>,
    /// What came back.
    summed: Option<Summed>,
}

/// One contributor's part of the round.
#[derive(Debug)]
struct Source {
    id: Contributor,
    /// Chunks that it has delivered, folded or not.
    delivered: u32,
    /// Those not yet folded, the oldest first.
    queue: VecDeque<(Mass, Bytes)>,
    /// The first chunk without it. All chunks before that one are delivered.
    missing: Option<(u32, Absence)>,
}

impl Source {
    /// Absent from the next chunk that it has not delivered.
    fn leave(&mut self, why: Absence) {
        self.missing = Some((self.delivered, why));
    }

    fn queued_bytes(&self) -> u64 {
        self.queue.iter().map(|(_, data)| data.len() as u64).sum()
    }
}

impl Fold {
    /// A fold of the round for these contributors, which must be strictly ascending. Without any, every chunk is
    /// empty.
    ///
    /// # Errors
    /// [`FoldError::NotAscending`].
    pub fn new(round: u64, layout: Layout, contributors: Vec<Contributor>) -> Result<Self, FoldError> {
        if let Some(pair) = contributors.windows(2).find(|pair| pair[0] >= pair[1]) {
            return Err(FoldError::NotAscending { before: pair[0], after: pair[1] });
        }
        let sources = contributors
            .into_iter()
            .map(|id| Source { id, delivered: 0, queue: VecDeque::new(), missing: None })
            .collect();
        let (given, rooms, out) = (VecDeque::new(), Vec::new(), VecDeque::new());
        let mut fold = Self {
            round,
            layout,
            sources,
            next: 0,
            given,
            rooms,
            lacking: 0,
            out,
            done: false,
            lent: false,
            shared_rooms: None,
        };
        fold.lacking = fold.missing().count();
        Ok(fold)
    }

    /// The same for contributions in memory that is only lent and wanted back: a sum never lies in it, not even where there is
    /// one contributor. Whether they are finite is seen in their sums, while they are there.
    #[must_use]
    pub fn of_lent(self) -> Self {
        Self { lent: true, ..self }
    }

    /// The same with memory for its sums out of `rooms`, as far as there is some.
    #[must_use]
    pub fn with_rooms(self, rooms: Rooms) -> Self {
        Self { shared_rooms: Some(rooms), ..self }
    }

    fn room(&mut self) -> BytesMut {
        let room = self.rooms.pop();
        room.or_else(|| self.shared_rooms.as_ref().map(Rooms::take)).unwrap_or_default()
    }

    /// The round this fold is for.
    #[must_use]
    pub const fn round(&self) -> u64 {
        self.round
    }

    /// The layout of its chunks.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The next chunk of a contributor: `mass * values` for parameters, the values themselves with mass 1 for buffers
    /// and integers, little-endian.
    ///
    /// With mass 0 the chunk adds nothing, its values are not looked at, and `data` may be empty. A value that is not
    /// finite drops the contributor from this chunk on, which shows as [`Folded::Dropped`].
    ///
    /// # Errors
    /// [`Reject`] for anything but the contributor's next chunk at its exact length.
    pub fn chunk(&mut self, from: Contributor, index: u32, mass: Mass, data: Bytes) -> Result<(), Reject> {
        let (place, spec) = self.due(from, index)?;
        if data.len() != spec.bytes as usize && !(mass.is_zero() && data.is_empty()) {
            return Err(Reject::Length { contributor: from, index, expected: spec.bytes, got: data.len() });
        }
        let was_lacking = self.is_lacking(place);
        let source = &mut self.sources[place];
        // Tested on arrival, while the bytes are still in cache.
        // What is lent is tested as a part of its sum.
        if !self.lent && !mass.is_zero() && spec.section != Section::Integers && !kernel::all_finite(&data) {
            source.leave(Absence::NonFinite);
        } else {
            source.queue.push_back((mass, data));
            source.delivered += 1;
        }
        self.lacking -= usize::from(was_lacking);
        Ok(())
    }

    /// A contributor says that it contributes nothing from `from_chunk` on, which must be its next chunk.
    ///
    /// # Errors
    /// [`Reject`] if it is already absent, has delivered everything, or names another chunk.
    pub fn absent(&mut self, from: Contributor, from_chunk: u32, why: Absence) -> Result<(), Reject> {
        let (place, _) = self.due(from, from_chunk)?;
        self.leave(place, why);
        Ok(())
    }

    /// A contributor died or its link is lost: it is absent from the next chunk that it has not delivered. What it has
    /// delivered is folded. Returns whether that changed anything: not for a stranger, one already absent, or one
    /// whose contribution is whole.
    pub fn drop_contributor(&mut self, from: Contributor, why: Absence) -> bool {
        let chunks = self.layout.chunks();
        let may_leave = |place: &usize| {
            let source = &self.sources[*place];
            source.missing.is_none() && source.delivered < chunks
        };
        let place = self.place(from).filter(may_leave);
        place.is_some_and(|place| {
            self.leave(place, why);
            true
        })
    }

    fn leave(&mut self, place: usize, why: Absence) {
        self.lacking -= usize::from(self.is_lacking(place));
        self.sources[place].leave(why);
    }

    /// The next event, or `None` until there is more input. Adds up on this thread what was not handed out.
    pub fn poll(&mut self) -> Option<Folded> {
        loop {
            if let Some(event) = self.out.pop_front() {
                return Some(event);
            }
            if let Some(oldest) = self.given.front_mut() {
                let summed = oldest.summed.take()?;
                self.given.pop_front();
                self.settle(summed);
                continue;
            }
            let Some(spec) = self.layout.chunk(self.next) else {
                let first = !self.done;
                self.done = true;
                return first.then_some(Folded::Done);
            };
            if self.lacking > 0 {
                return None;
            }
            let summed = self.gather(spec).run_in_place();
            self.settle(summed);
        }
    }

    /// The next chunk, for another thread to add up, if everyone who contributes to it has delivered it. Take what there
    /// is before [`Fold::poll`], which adds up the rest itself. Work that is never put back holds up the round.
    pub fn take_work(&mut self) -> Option<Work> {
        let spec = self.layout.chunk(self.next).filter(|_| self.lacking == 0)?;
        let work = self.gather(spec);
        let places = work.parts.iter().map(|part| part.place).collect();
        self.given.push_back(Given { spec, places, summed: None });
        Some(work)
    }

    /// Takes a sum back, in any order. Returns whether it is one that was handed out: of this round, that chunk and those
    /// contributors. Sums of two folds over equal contributors are not told apart.
    pub fn put_back(&mut self, summed: Summed) -> bool {
        let given = self.given.iter_mut().find(|given| given.spec == summed.spec && given.summed.is_none());
        let is_ours = |given: &&mut Given| given.places.iter().copied().eq(summed.parts.iter().map(|part| part.place));
        match given.filter(|_| summed.round == self.round).filter(is_ours) {
            Some(given) => {
                given.summed = Some(summed);
                true
            }
            None => false,
        }
    }

    /// Whom the next chunk waits for while others have delivered it or said that they will not, or while nobody else is left
    /// to wait: a peer that holds up the round. Each is given with that chunk.
    ///
    /// Empty while none of several contributors has answered, as before the first of them reaches its snapshot;
    /// [`Fold::missing`] names them then.
    #[must_use]
    pub fn waiting(&self) -> Vec<(Contributor, u32)> {
        self.waiting_at().map_or_else(Vec::new, |_| self.missing().collect())
    }

    /// Everyone whose next chunk the fold needs to go on, whether or not others have delivered theirs.
    pub fn missing(&self) -> impl Iterator<Item = (Contributor, u32)> + '_ {
        let next = self.next;
        let lacking = (0..self.sources.len()).filter(|&place| self.is_lacking(place));
        lacking.map(move |place| (self.sources[place].id, next))
    }

    /// The chunk that [`Fold::missing`] names somebody for, if it names anybody.
    #[must_use]
    pub fn missing_at(&self) -> Option<u32> {
        (self.lacking > 0).then_some(self.next)
    }

    /// The chunk that [`Fold::waiting`] names somebody for, if it names anybody.
    #[must_use]
    pub fn waiting_at(&self) -> Option<u32> {
        let all = self.sources.len();
        self.missing_at().filter(|_| self.lacking < all || all == 1)
    }

    /// Whether the next chunk lacks what a contributor has yet to deliver.
    fn is_lacking(&self, place: usize) -> bool {
        let source = &self.sources[place];
        self.contributes(source) && source.queue.is_empty()
    }

    /// Whether [`Folded::Done`] is out.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// The first chunk from which on nobody contributes, or `None` while somebody may still contribute to the last one.
    ///
    /// A relay whose fold says [`Folded::Empty`] at or after this chunk can declare itself absent from it on; before it,
    /// an empty chunk is one of mass 0 with more to follow.
    #[must_use]
    pub fn empty_from(&self) -> Option<u32> {
        let absent_from = |source: &Source| source.missing.map(|(from_chunk, _)| from_chunk);
        self.sources.iter().try_fold(0, |last, source| Some(absent_from(source)?.max(last)))
    }

    /// Bytes of a contributor that are delivered and not yet folded, handed out or not.
    #[must_use]
    pub fn queued(&self, from: Contributor) -> u64 {
        let given = |place| self.given.iter().filter(move |given| given.places.contains(&place));
        self.place(from).map_or(0, |place| {
            let handed_out: u64 = given(place).map(|given| u64::from(given.spec.bytes)).sum();
            self.sources[place].queued_bytes() + handed_out
        })
    }

    /// Whether a contributor is so far ahead of the fold that reading more from it only fills memory.
    #[must_use]
    pub fn is_ahead(&self, from: Contributor) -> bool {
        self.queued(from) >= AHEAD_BYTES_MAX
    }

    /// Whether the chunk that is next in the fold is part of a contributor's share of the round.
    fn contributes(&self, source: &Source) -> bool {
        self.next < self.layout.chunks() && source.missing.is_none_or(|(from_chunk, _)| self.next < from_chunk)
    }

    fn place(&self, from: Contributor) -> Option<usize> {
        self.sources.binary_search_by_key(&from, |source| source.id).ok()
    }

    /// The contributor's place and the chunk `index`, if that is the one due from it.
    fn due(&self, from: Contributor, index: u32) -> Result<(usize, ChunkSpec), Reject> {
        let place = self.place(from).ok_or(Reject::Unknown(from))?;
        let source = &self.sources[place];
        if let Some((from_chunk, why)) = source.missing {
            return Err(Reject::Absent { contributor: from, from_chunk, why });
        }
        let due = self.layout.chunk(source.delivered);
        let spec = due.ok_or(Reject::Complete { contributor: from, chunks: self.layout.chunks() })?;
        if index != spec.index {
            return Err(Reject::OutOfOrder { contributor: from, expected: spec.index, got: index });
        }
        Ok((place, spec))
    }

    /// Takes what everyone contributes to the next chunk, which nobody lacks.
    fn gather(&mut self, spec: ChunkSpec) -> Work {
        let mut parts = Vec::new();
        for (place, source) in self.sources.iter_mut().enumerate() {
            // A contributor that is absent here has no chunk left: it delivered only those before.
            if let Some((mass, data)) = source.queue.pop_front()
                && !mass.is_zero()
            {
                parts.push(Part { place, mass, data });
            }
        }
        self.next += 1;
        self.lacking = self.missing().count();
        Work { round: self.round, spec, parts, room: self.room(), lent: self.lent }
    }

    /// Queues the events of the oldest chunk whose events are not out.
    fn settle(&mut self, summed: Summed) {
        let mut summed = self.without_dropped(summed);
        if self.lent && summed.sum.is_none() {
            summed = self.without_sick(summed);
        }
        let sum = summed.sum.take();
        let index = summed.spec.index;
        let mass = summed.parts.iter().fold(Mass::ZERO, |mass, part| mass.plus(part.mass));
        if sum.is_none() {
            // Each part was finite and the sum is not. No one part is at fault, and none can be taken back out.
            for part in &summed.parts {
                self.sources[part.place].queue.clear();
                self.sources[part.place].missing = Some((index, Absence::NonFinite));
            }
            self.lacking = self.missing().count();
        }
        self.keep_room(summed);
        for source in &self.sources {
            if let Some((from_chunk, why)) = source.missing
                && from_chunk == index
            {
                self.out.push_back(Folded::Dropped { contributor: source.id, from_chunk, why });
            }
        }
        self.out.push_back(match sum {
            Some(data) if !mass.is_zero() => Folded::Chunk { index, mass, data },
            _ => Folded::Empty { index },
        });
    }

    /// The same chunk without those whom an earlier one has dropped since this one was handed out.
    fn without_dropped(&self, summed: Summed) -> Summed {
        let Summed { round, spec, .. } = summed;
        let stays = |part: &Part| {
            let missing = self.sources[part.place].missing;
            missing.is_none_or(|(from_chunk, _)| spec.index < from_chunk)
        };
        if summed.parts.iter().all(stays) {
            return summed;
        }
        let parts = summed.parts.into_iter().filter(stays).collect();
        Work { round, spec, parts, room: summed.room, lent: self.lent }.run_in_place()
    }

    /// The same chunk without those who are not finite, who are dropped from it on.
    fn without_sick(&mut self, summed: Summed) -> Summed {
        let Summed { round, spec, parts, room, .. } = summed;
        let (well, sick): (Vec<Part>, Vec<Part>) = parts.into_iter().partition(|part| kernel::all_finite(&part.data));
        for part in &sick {
            self.sources[part.place].queue.clear();
            self.sources[part.place].missing = Some((spec.index, Absence::NonFinite));
        }
        self.lacking = self.missing().count();
        Work { round, spec, parts: well, room, lent: true }.run()
    }

    /// Keeps memory for the next sum that is handed out, so that none is taken from the system for it.
    fn keep_room(&mut self, summed: Summed) {
        if self.rooms.len() > self.given.len() {
            return;
        }
        let unused = Some(summed.room).filter(|room| room.capacity() > 0);
        let of_parts = || summed.parts.into_iter().find_map(|part| part.data.try_into_mut().ok());
        self.rooms.extend(unused.or_else(of_parts));
    }
}
