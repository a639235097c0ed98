//! What a relay gives all its ranks: two whole results, in turns.

use super::ShmError;
use super::segment::{Access, PAGE, Segment, reserve};
use crate::{ChunkSpec, Digest, Layout, Section, kernel};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::os::fd::OwnedFd;

const MARK: u64 = 0x666c_6f64_6c72_3031;

/// The words of the sides, each in lines of its own.
const SIDES: usize = 256;
const SIDE: usize = 128;

/// The words of one side. Only the relay can write them.
struct Words<'a> {
    /// The round plus one; 0 while it is written anew.
    stamp: &'a AtomicU64,
    version: &'a AtomicU64,
    /// Chunks that are there.
    count: &'a AtomicU32,
    /// Of the whole result.
    digest: &'a AtomicU64,
    /// Of its parameters.
    squared_norm: &'a AtomicU64,
}

fn words(segment: &Segment, side: usize) -> Words<'_> {
    let at = SIDES + side * SIDE;
    Words {
        stamp: segment.long(at),
        version: segment.long(at + 8),
        count: segment.word(at + 16),
        digest: segment.long(at + 24),
        squared_norm: segment.long(at + 32),
    }
}

/// Bytes from one side to the next.
fn side_bytes(layout: &Layout) -> usize {
    usize::try_from(layout.total_bytes()).unwrap_or(usize::MAX / 4).next_multiple_of(PAGE)
}

fn length(layout: &Layout) -> usize {
    2 * side_bytes(layout) + PAGE
}

/// Where a chunk of one side lies.
fn place(layout: &Layout, side: usize, spec: &ChunkSpec) -> usize {
    PAGE + side * side_bytes(layout) + usize::try_from(spec.byte_offset).unwrap_or(usize::MAX / 4)
}

/// The relay's end.
#[derive(Debug)]
pub struct Board {
    file: OwnedFd,
    laid_out: Option<Half>,
}

/// What is behind a board once the sizes of the model are known.
#[derive(Debug)]
struct Half {
    segment: Segment,
    layout: Layout,
    side: usize,
    round: Option<u64>,
    next: u32,
    digest: Digest,
    squared_norm: f64,
}

impl Board {
    /// A board without room yet: the ranks are started, and handed it, before anybody knows how large their model is.
    ///
    /// # Errors
    /// [`ShmError::System`].
    pub fn reserve() -> Result<Board, ShmError> {
        let file = reserve("flodl-board").map_err(|error| ShmError::System { bytes: 0, error })?;
        Ok(Board { file, laid_out: None })
    }

    /// Gives it room for two results of that layout. Does nothing where it has its room already.
    ///
    /// # Errors
    /// [`ShmError::System`].
    pub fn lay_out(&mut self, layout: Layout) -> Result<(), ShmError> {
        if self.laid_out.is_none() {
            let segment = Segment::lay_out(&self.file, length(&layout), true)?;
            segment.mark(MARK);
            let digest = Digest::new();
            self.laid_out = Some(Half { segment, layout, side: 0, round: None, next: 0, digest, squared_norm: 0.0 });
        }
        Ok(())
    }

    /// Whether it has room for results.
    #[must_use]
    pub const fn is_laid_out(&self) -> bool {
        self.laid_out.is_some()
    }

    /// Takes chunk `index` of a round's result, if it is the one that is next. The first chunk of a round begins the side
    /// that the round before did not use. Returns whether it is on the board now, or was already.
    pub fn put(&mut self, (round, version): (u64, u64), index: u32, data: &[u8]) -> bool {
        let Some(half) = &mut self.laid_out else { return false };
        if half.round != Some(round) {
            if index != 0 {
                return false;
            }
            half.begin(round, version);
        }
        if index < half.next {
            return true;
        }
        half.put(index, data)
    }

    /// To be handed to ranks.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Half {
    fn begin(&mut self, round: u64, version: u64) {
        self.side = 1 - self.side;
        let words = words(&self.segment, self.side);
        words.stamp.store(0, Ordering::Relaxed);
        // Nobody sees a new count, or new bytes, under the old stamp.
        fence(Ordering::SeqCst);
        words.count.store(0, Ordering::Relaxed);
        words.version.store(version, Ordering::Relaxed);
        words.stamp.store(round.wrapping_add(1), Ordering::Release);
        (self.round, self.next, self.squared_norm) = (Some(round), 0, 0.0);
        self.digest = Digest::new();
    }

    fn put(&mut self, index: u32, data: &[u8]) -> bool {
        let fits = |spec: &ChunkSpec| index == self.next && spec.bytes as usize == data.len();
        let Some(spec) = self.layout.chunk(index).filter(fits) else { return false };
        // SAFETY: ranks read this chunk only once the count below says that it is there, nobody but this side has mapped the
        // board for writing, and no other slice of it is held here.
        let room = unsafe { self.segment.bytes_mut(place(&self.layout, self.side, &spec), data.len()) };
        room.copy_from_slice(data);
        self.digest.update(data);
        if spec.section == Section::Parameters {
            self.squared_norm += kernel::squared_norm(data);
        }
        self.next += 1;
        let words = words(&self.segment, self.side);
        if self.next == self.layout.chunks() {
            words.digest.store(self.digest.finish(), Ordering::Relaxed);
            words.squared_norm.store(self.squared_norm.to_bits(), Ordering::Relaxed);
        }
        words.count.store(self.next, Ordering::Release);
        true
    }
}

/// What the relay says of a whole result.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Whole {
    /// Its digest.
    pub digest: u64,
    /// The sum of the squares of its parameters.
    pub squared_norm: f64,
}

/// A rank's end.
#[derive(Debug)]
pub struct BoardReader {
    segment: Segment,
    layout: Layout,
}

impl BoardReader {
    /// Takes up the board that was handed to this process, for a model of that layout.
    ///
    /// # Errors
    /// [`ShmError`] for what no relay hands out, and where it was laid out for another model or not yet.
    pub fn adopt(file: &OwnedFd, layout: Layout) -> Result<BoardReader, ShmError> {
        let segment = Segment::adopt(file, length(&layout), Access::Read)?;
        segment.check_mark(MARK)?;
        Ok(BoardReader { segment, layout })
    }

    /// Chunks of the round's result that are there, and the version it becomes.
    #[must_use]
    pub fn progress(&self, round: u64) -> Option<(u32, u64)> {
        let words = words(&self.segment, self.side(round)?);
        let (count, version) = (words.count.load(Ordering::Acquire), words.version.load(Ordering::Relaxed));
        // Begun anew meanwhile: then the numbers are those of another round.
        self.holds(round).then_some((count, version))
    }

    /// A chunk of that round's result, if it is there. Afterwards [`BoardReader::holds`] tells whether it still was while the
    /// chunk was read.
    #[must_use]
    pub fn chunk(&self, round: u64, spec: &ChunkSpec) -> Option<&[u8]> {
        let side = self.side(round)?;
        (spec.index < words(&self.segment, side).count.load(Ordering::Acquire)).then(|| {
            // SAFETY: the memory can only be read here. The relay writes this side again only two rounds later, which the
            // caller finds out by `holds`.
            unsafe { self.segment.bytes(place(&self.layout, side, spec), spec.bytes as usize) }
        })
    }

    /// All of that round's result, once it is there. Afterwards [`BoardReader::holds`] tells whether it still was.
    #[must_use]
    pub fn model(&self, round: u64) -> Option<&[u8]> {
        let side = self.side(round)?;
        let bytes = usize::try_from(self.layout.total_bytes()).unwrap_or(usize::MAX / 4);
        (words(&self.segment, side).count.load(Ordering::Acquire) >= self.layout.chunks()).then(|| {
            // SAFETY: as for `chunk`.
            unsafe { self.segment.bytes(PAGE + side * side_bytes(&self.layout), bytes) }
        })
    }

    /// What the relay says of the whole result, once it is there.
    #[must_use]
    pub fn whole(&self, round: u64) -> Option<Whole> {
        let words = words(&self.segment, self.side(round)?);
        if words.count.load(Ordering::Acquire) < self.layout.chunks() {
            return None;
        }
        let digest = words.digest.load(Ordering::Relaxed);
        let squared_norm = f64::from_bits(words.squared_norm.load(Ordering::Relaxed));
        self.holds(round).then_some(Whole { digest, squared_norm })
    }

    /// Whether that round's result is on the board, and has been since its chunks were read.
    #[must_use]
    pub fn holds(&self, round: u64) -> bool {
        fence(Ordering::Acquire);
        self.side(round).is_some()
    }

    fn side(&self, round: u64) -> Option<usize> {
        // 0 stands for no round.
        let stamp = round.checked_add(1)?;
        (0..2).find(|&side| words(&self.segment, side).stamp.load(Ordering::Acquire) == stamp)
    }
}
