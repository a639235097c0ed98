//! What one rank gives its relay: a ring of chunks.

use super::bell::Bell;
use super::segment::{Access, PAGE, Segment, reserve};
use super::{LaneBreach, ShmError};
use crate::{Absence, CHUNK_BYTES};
use bytes::Bytes;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Chunks that a lane holds. Fewer make the rank wait for the fold, more of them leave the cache.
pub const SLOTS: usize = 4;

const MARK: u64 = 0x666c_6f64_6c6c_3031;
const SLOT: usize = CHUNK_BYTES as usize;
const LEN: usize = PAGE + SLOTS * SLOT;

/// Set by the rank once it can use the lane.
const ATTACHED: usize = 64;
/// The bell at which the rank waits.
const BELL: usize = 128;
/// The notes, each in a line of its own.
const NOTES: usize = 256;
const NOTE: usize = 64;

/// The slot is the rank's.
const FREE: u32 = 0;
/// The slot is the relay's.
const FULL: u32 = 1;

const KIND_CHUNK: u32 = 1;
const KIND_ABSENT: u32 = 2;

/// The words of a slot's note.
struct Words<'a> {
    state: &'a AtomicU32,
    kind: &'a AtomicU32,
    round: &'a AtomicU64,
    version: &'a AtomicU64,
    mass: &'a AtomicU64,
    index: &'a AtomicU32,
    bytes: &'a AtomicU32,
}

fn words(segment: &Segment, slot: usize) -> Words<'_> {
    let at = NOTES + slot * NOTE;
    Words {
        state: segment.word(at),
        kind: segment.word(at + 4),
        round: segment.long(at + 8),
        version: segment.long(at + 16),
        mass: segment.long(at + 24),
        index: segment.word(at + 32),
        bytes: segment.word(at + 36),
    }
}

/// What a rank says of a chunk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Note {
    /// The round.
    pub round: u64,
    /// The consensus that the rank holds.
    pub version: u64,
    /// Which chunk.
    pub index: u32,
    /// Its mass.
    pub mass: f64,
}

/// What comes out of a lane.
#[derive(Debug, Clone, PartialEq)]
pub enum Sent {
    /// A chunk of a contribution, in its slot until the last of its bytes is dropped.
    Chunk(Note, Bytes),
    /// Nothing of this rank from that chunk on.
    Absent {
        /// The round.
        round: u64,
        /// The first chunk that will not come.
        from_chunk: u32,
        /// Why.
        why: Absence,
    },
}

/// A lane as its relay makes it: to be handed to the rank.
#[derive(Debug)]
pub struct Lane {
    file: OwnedFd,
    segment: Arc<Segment>,
}

impl Lane {
    /// A lane for one life of a rank.
    ///
    /// # Errors
    /// [`ShmError::System`].
    pub fn create() -> Result<Lane, ShmError> {
        let file = reserve("flodl-lane").map_err(|error| ShmError::System { bytes: LEN as u64, error })?;
        let segment = Segment::lay_out(&file, LEN, false)?;
        segment.mark(MARK);
        Ok(Lane { file, segment: Arc::new(segment) })
    }

    /// The end that folds. One is enough: each keeps its own place.
    #[must_use]
    pub fn reader(&self) -> LaneReader {
        LaneReader { segment: Arc::clone(&self.segment), lent: Arc::default(), next: 0 }
    }

    /// Whether the rank has said that it uses the lane.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.segment.word(ATTACHED).load(Ordering::Acquire) != 0
    }

    /// The bell that the rank waits at.
    #[must_use]
    pub fn bell(&self) -> Bell {
        Bell::new(Arc::clone(&self.segment), BELL)
    }

    /// To be handed to the rank.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }
}

/// The relay's end.
#[derive(Debug)]
pub struct LaneReader {
    segment: Arc<Segment>,
    /// Which slots are out: this side's own account, whatever the words in the segment say.
    lent: Arc<[AtomicBool; SLOTS]>,
    next: usize,
}

impl LaneReader {
    /// What the rank has put there next, if anything.
    ///
    /// # Errors
    /// [`LaneBreach`] for what no chunk can be. The lane is of no more use.
    pub fn try_next(&mut self) -> Result<Option<Sent>, LaneBreach> {
        let slot = self.next;
        let words = words(&self.segment, slot);
        if self.lent[slot].load(Ordering::Acquire) || words.state.load(Ordering::Acquire) != FULL {
            return Ok(None);
        }
        // Each number is read once; what it is checked as is what it is used as.
        let kind = words.kind.load(Ordering::Relaxed);
        let (round, index) = (words.round.load(Ordering::Relaxed), words.index.load(Ordering::Relaxed));
        let bytes = words.bytes.load(Ordering::Relaxed);
        let sent = match kind {
            KIND_CHUNK if bytes <= CHUNK_BYTES => {
                let version = words.version.load(Ordering::Relaxed);
                let mass = f64::from_bits(words.mass.load(Ordering::Relaxed));
                self.lent[slot].store(true, Ordering::Relaxed);
                let (segment, lent) = (Arc::clone(&self.segment), Arc::clone(&self.lent));
                let lease = Lease { segment, lent, slot, bytes: bytes as usize };
                Sent::Chunk(Note { round, version, index, mass }, Bytes::from_owner(lease))
            }
            KIND_CHUNK => return Err(LaneBreach::Length { bytes }),
            KIND_ABSENT => {
                words.state.store(FREE, Ordering::Release);
                Sent::Absent { round, from_chunk: index, why: absence(bytes) }
            }
            kind => return Err(LaneBreach::Kind { kind }),
        };
        self.next = (slot + 1) % SLOTS;
        Ok(Some(sent))
    }

    /// Whether the next slot has something.
    #[must_use]
    pub fn has_next(&self) -> bool {
        let is_lent = self.lent[self.next].load(Ordering::Acquire);
        !is_lent && words(&self.segment, self.next).state.load(Ordering::Acquire) == FULL
    }
}

/// A slot that the relay folds from.
struct Lease {
    segment: Arc<Segment>,
    lent: Arc<[AtomicBool; SLOTS]>,
    slot: usize,
    bytes: usize,
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the slot is lent to this lease alone until it is dropped, nothing in this process writes to it, and the rank
        // may not before then.
        unsafe { self.segment.bytes(PAGE + self.slot * SLOT, self.bytes) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In this order: a slot that is not lent any more is free already, and cannot be read again.
        words(&self.segment, self.slot).state.store(FREE, Ordering::Release);
        self.lent[self.slot].store(false, Ordering::Release);
        Bell::new(Arc::clone(&self.segment), BELL).ring();
    }
}

/// The rank's end.
#[derive(Debug)]
pub struct LaneWriter {
    segment: Arc<Segment>,
    relay: Bell,
    next: usize,
}

impl LaneWriter {
    /// Takes up the lane that was handed to this process; `relay` is rung for whatever is sent.
    ///
    /// # Errors
    /// [`ShmError`] for what no relay hands out.
    pub fn adopt(file: &OwnedFd, relay: Bell) -> Result<LaneWriter, ShmError> {
        let segment = Segment::adopt(file, LEN, Access::Write)?;
        segment.check_mark(MARK)?;
        Ok(LaneWriter { segment: Arc::new(segment), relay, next: 0 })
    }

    /// Tells the relay that this rank uses its lane, from now on.
    pub fn attach(&self) {
        self.segment.word(ATTACHED).store(1, Ordering::Release);
    }

    /// The bell that this rank waits at.
    #[must_use]
    pub fn bell(&self) -> Bell {
        Bell::new(Arc::clone(&self.segment), BELL)
    }

    /// Whether a chunk can be put there now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        words(&self.segment, self.next).state.load(Ordering::Acquire) == FREE
    }

    /// The first `bytes` of the room for the next chunk, where the relay has given some back: to be filled, and then sent.
    ///
    /// # Panics
    /// Where that is more than a chunk has.
    pub fn room(&mut self, bytes: u32) -> Option<&mut [u8]> {
        assert!(bytes <= CHUNK_BYTES, "a slot holds one chunk");
        self.has_room().then(|| {
            // SAFETY: the slot is free, so it is the rank's, and whoever holds the slice has the writer alone.
            unsafe { self.segment.bytes_mut(PAGE + self.next * SLOT, bytes as usize) }
        })
    }

    /// The room for the next chunk, to be sent as it is.
    pub fn slot(&mut self) -> Option<Slot<'_>> {
        self.has_room().then_some(Slot { lane: self })
    }

    fn publish(&mut self, kind: u32, note: &Note, bytes: u32) {
        let words = words(&self.segment, self.next);
        words.kind.store(kind, Ordering::Relaxed);
        words.round.store(note.round, Ordering::Relaxed);
        words.version.store(note.version, Ordering::Relaxed);
        words.mass.store(note.mass.to_bits(), Ordering::Relaxed);
        words.index.store(note.index, Ordering::Relaxed);
        words.bytes.store(bytes, Ordering::Relaxed);
        words.state.store(FULL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        self.relay.ring();
    }
}

/// Room for one chunk of a contribution.
#[derive(Debug)]
pub struct Slot<'a> {
    lane: &'a mut LaneWriter,
}

impl Slot<'_> {
    /// Gives it to the relay with so many bytes.
    ///
    /// # Panics
    /// Where that is more than a chunk has.
    pub fn send(self, note: &Note, bytes: u32) {
        assert!(bytes <= CHUNK_BYTES, "a slot holds one chunk");
        self.lane.publish(KIND_CHUNK, note, bytes);
    }

    /// Says in its place that nothing comes from that chunk of the round on.
    pub fn send_absent(self, round: u64, from_chunk: u32, why: Absence) {
        let note = Note { round, version: 0, index: from_chunk, mass: 0.0 };
        self.lane.publish(KIND_ABSENT, &note, code(why));
    }
}

const ABSENCES: [Absence; 7] = [
    Absence::Joining,
    Absence::NothingTrained,
    Absence::NonFinite,
    Absence::Dead,
    Absence::LinkLost,
    Absence::Stale,
    Absence::Empty,
];

fn code(why: Absence) -> u32 {
    (0..).zip(ABSENCES).find(|(_, absence)| *absence == why).map_or(0, |(code, _)| code)
}

/// What is no reason is the loss of the link.
fn absence(code: u32) -> Absence {
    usize::try_from(code).ok().and_then(|code| ABSENCES.get(code)).copied().unwrap_or(Absence::LinkLost)
}
