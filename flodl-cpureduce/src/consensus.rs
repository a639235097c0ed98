//! The root's two copies of the model: the committed consensus and the result of the open round.

use crate::round::writable;
use crate::{
    Average, Base, ChunkSpec, Codec, Coded, Coder, Digest, Layout, Mass, Outer, OuterStateError, Rooms, Section, kernel,
};
use bytes::{Bytes, BytesMut};
use thiserror::Error;

/// Why a round's result was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConsensusError {
    /// No round is open.
    #[error("no round is open: begin one before its chunks")]
    NoRound,
    /// A chunk other than the next one.
    #[error("chunk {got} came where chunk {expected} is next: finish each chunk once, in order")]
    OutOfOrder {
        /// The chunk that is next.
        expected: u32,
        /// The chunk that came.
        got: u32,
    },
    /// All chunks of the round are finished.
    #[error("chunk {got} came after all {chunks} chunks: begin the next round first")]
    Complete {
        /// Number of chunks in a round.
        chunks: u32,
        /// The chunk that came.
        got: u32,
    },
    /// A sum that is not as long as its chunk, or a missing one with a mass.
    #[error("the sum of chunk {index} has {got} bytes where {expected} are needed: check the fold's layout")]
    Length {
        /// Which chunk.
        index: u32,
        /// Bytes of that chunk.
        expected: u32,
        /// Bytes that came.
        got: usize,
    },
    /// The bytes of a whole model are not as long as its layout.
    #[error("the model has {got} bytes where its layout has {expected}: check that it belongs to this model")]
    ModelLength {
        /// Bytes of all sections.
        expected: u64,
        /// Bytes that came.
        got: usize,
    },
}

/// Why a round cannot be committed. It stays open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CommitError {
    /// No round is open.
    #[error("no round is open: there is nothing to commit")]
    NoRound,
    /// Chunks are missing.
    #[error("{finished} of {chunks} chunks are finished: commit when all are")]
    Incomplete {
        /// Chunks that are finished.
        finished: u32,
        /// Number of chunks in a round.
        chunks: u32,
    },
    /// Nobody contributed anything.
    #[error("nobody contributed to the round: abandon it, everyone keeps what it has")]
    NoMass,
    /// A chunk that nobody contributed to, with no previous consensus to keep.
    #[error(
        "chunk {chunk} has neither a contribution nor a previous consensus: abandon the round and take another source"
    )]
    Hollow {
        /// The first such chunk.
        chunk: u32,
    },
}

/// The consensus that is in force and the round that may replace it.
///
/// A result is built beside the committed consensus, streamed down as it grows, and takes its place only by
/// [`Consensus::commit`]. Chunks are reference-counted: readers that are still sending an older one keep it alive, and
/// a chunk that keeps its previous consensus is not copied.
#[derive(Debug)]
pub struct Consensus {
    layout: Layout,
    outer: Box<dyn Outer>,
    /// Rounds the results, where they travel rounded.
    coder: Option<Coder>,
    /// Where memory goes that is not needed any more.
    rooms: Option<Rooms>,
    committed: Option<Committed>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Committed {
    version: u64,
    chunks: Vec<Bytes>,
    digest: u64,
}

#[derive(Debug, Default)]
struct Open {
    round: u64,
    chunks: Vec<Bytes>,
    /// Those of them that travel rounded, as they travel.
    coded: Vec<Option<Coded>>,
    digest: Digest,
    /// Results travel as they are.
    exact: bool,
    /// Chunks with a mass.
    folded: u32,
    /// The first chunk that is zeros because there is nothing to keep.
    hollow: Option<u32>,
}

impl Consensus {
    /// A root without a consensus, as before round 0. Takes averages as they are.
    #[must_use]
    pub fn empty(layout: Layout) -> Self {
        Self { layout, outer: Box::new(Average), coder: None, rooms: None, committed: None, open: None }
    }

    /// A root that holds a model, such as a checkpoint's: the bytes of all sections in order, little-endian.
    ///
    /// # Errors
    /// [`ConsensusError::ModelLength`] unless `model` is exactly as long as the layout.
    pub fn from_bytes(layout: Layout, version: u64, model: Bytes) -> Result<Self, ConsensusError> {
        let expected = layout.total_bytes();
        if model.len() as u64 != expected {
            return Err(ConsensusError::ModelLength { expected, got: model.len() });
        }
        let digest = Digest::of(&model);
        let mut rest = model;
        let chunks = layout.iter().map(|spec| rest.split_to(spec.bytes as usize)).collect();
        Ok(Self { committed: Some(Committed { version, chunks, digest }), ..Self::empty(layout) })
    }

    /// Takes up the consensus that another root holds, with this one's outer optimizer and codec. What was lost by rounding
    /// so far is forgotten, and a round that is open abandoned.
    pub fn take_up(&mut self, other: Consensus) {
        self.abandon();
        (self.layout, self.committed) = (other.layout, other.committed);
        self.coder = self.coder.take().map(|coder| Coder::new(coder.codec(), self.layout));
    }

    /// The same root with another outer optimizer.
    #[must_use]
    pub fn with_outer(self, outer: Box<dyn Outer>) -> Self {
        Self { outer, ..self }
    }

    /// The same root with results that travel in that codec: each is the consensus as a receiver decodes it, and what
    /// rounding took away is added to the next result.
    #[must_use]
    pub fn with_codec(self, codec: Codec) -> Self {
        let coder = (codec != Codec::F32).then(|| Coder::new(codec, self.layout));
        Self { coder, ..self }
    }

    /// Gives the memory of chunks that nobody needs any more to `rooms`, from now on, for the fold that takes its sums' from there.
    pub fn recycle(&mut self, rooms: Rooms) {
        self.rooms = Some(rooms);
    }

    /// Lets go of chunks, except for those that the other copy has too.
    fn let_go(&self, chunks: Vec<Bytes>) {
        if let Some(rooms) = &self.rooms {
            chunks.into_iter().for_each(|chunk| rooms.give(chunk));
        }
    }

    /// The outer optimizer's state after the last commit: it belongs into a checkpoint beside the consensus.
    #[must_use]
    pub fn outer_state(&self) -> Vec<u8> {
        self.outer.state(&self.layout)
    }

    /// Takes up the outer optimizer's state of a checkpoint. A round that is open is abandoned.
    ///
    /// # Errors
    /// [`OuterStateError`]; the state is what it was then.
    pub fn restore_outer(&mut self, state: &[u8]) -> Result<(), OuterStateError> {
        self.abandon();
        self.outer.restore(&self.layout, state)
    }

    /// The layout of its chunks.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Opens a round. A round that is still open is abandoned.
    pub fn begin(&mut self, round: u64) {
        self.abandon();
        self.open = Some(Open { round, ..Open::default() });
    }

    /// The open round's results, from the next chunk on, travel as they are: nobody who takes part holds the consensus in
    /// force.
    pub fn keep_exact(&mut self) {
        if let Some(open) = &mut self.open {
            open.exact = true;
        }
    }

    /// The round that is open.
    #[must_use]
    pub fn round(&self) -> Option<u64> {
        self.open.as_ref().map(|open| open.round)
    }

    /// Finishes the open round's next chunk and returns its result: for floats `sum / mass` and, for parameters, the
    /// outer step; for integers the sum as it is (the largest values).
    ///
    /// Where `mass` is 0 or the result is not finite, it is the previous consensus of that chunk; zeros if there is
    /// none, and such a round cannot be committed.
    ///
    /// # Errors
    /// [`ConsensusError`] for anything but the next chunk at its exact length; nothing changes then.
    pub fn finish_chunk(&mut self, index: u32, mass: Mass, sum: Option<Bytes>) -> Result<Bytes, ConsensusError> {
        let open = self.open.as_mut().ok_or(ConsensusError::NoRound)?;
        let next = open.chunks.len() as u32;
        let chunks = self.layout.chunks();
        let spec = self.layout.chunk(next).ok_or(ConsensusError::Complete { chunks, got: index })?;
        if index != next {
            return Err(ConsensusError::OutOfOrder { expected: next, got: index });
        }
        let committed = self.committed.as_ref();
        let previous = committed.and_then(|committed| committed.chunks.get(index as usize));
        let fresh = if mass.is_zero() {
            None
        } else {
            let sum = sum.unwrap_or_default();
            if sum.len() != spec.bytes as usize {
                return Err(ConsensusError::Length { index, expected: spec.bytes, got: sum.len() });
            }
            divided(&spec, mass, sum, previous, self.outer.as_mut())
        };
        let mut coded = None;
        let result = match (fresh, previous) {
            (Some(result), _) => {
                open.folded += 1;
                let version = committed.map(|committed| committed.version);
                let base = version.zip(previous).map(|(version, data)| Base { version, data });
                match &mut self.coder {
                    Some(coder) if !open.exact => {
                        let (travels, applied) = rounded(coder, &spec, result, base);
                        coded = travels;
                        applied
                    }
                    Some(_) | None => result,
                }
            }
            (None, Some(previous)) => {
                self.outer.keep(&spec);
                previous.clone()
            }
            (None, None) => {
                open.hollow.get_or_insert(index);
                Bytes::from(vec![0; spec.bytes as usize])
            }
        };
        open.digest.update(&result);
        open.chunks.push(result.clone());
        open.coded.push(coded);
        Ok(result)
    }

    /// A finished chunk of the open round, for readers that lag behind.
    #[must_use]
    pub fn result_chunk(&self, index: u32) -> Option<Bytes> {
        self.open.as_ref()?.chunks.get(index as usize).cloned()
    }

    /// A finished chunk of the open round as it travels to those who hold the consensus in force: differences from it.
    /// `None` where it travels as it is.
    #[must_use]
    pub fn coded_chunk(&self, index: u32) -> Option<Coded> {
        self.open.as_ref()?.coded.get(index as usize)?.clone()
    }

    /// Chunks of the open round that are results of a fold; the others keep the previous consensus.
    #[must_use]
    pub fn chunks_folded(&self) -> u32 {
        self.open.as_ref().map_or(0, |open| open.folded)
    }

    /// The digest of the open round's result once all its chunks are finished.
    #[must_use]
    pub fn digest_of_result(&self) -> Option<u64> {
        let open = self.open.as_ref()?;
        (open.chunks.len() as u32 == self.layout.chunks()).then(|| open.digest.finish())
    }

    /// Whether the open round can be committed, and why not.
    ///
    /// # Errors
    /// [`CommitError`].
    pub fn committable(&self) -> Result<(), CommitError> {
        let open = self.open.as_ref().ok_or(CommitError::NoRound)?;
        let (finished, chunks) = (open.chunks.len() as u32, self.layout.chunks());
        if finished < chunks {
            return Err(CommitError::Incomplete { finished, chunks });
        }
        if open.folded == 0 {
            return Err(CommitError::NoMass);
        }
        open.hollow.map_or(Ok(()), |chunk| Err(CommitError::Hollow { chunk }))
    }

    /// Makes the open round's result the consensus, with that version.
    ///
    /// # Errors
    /// As [`Consensus::committable`]; the round stays open then.
    pub fn commit(&mut self, version: u64) -> Result<(), CommitError> {
        self.committable()?;
        if let Some(open) = self.open.take() {
            self.outer.commit();
            if let Some(coder) = &mut self.coder {
                coder.commit(self.layout.chunks());
            }
            let fresh = Committed { version, digest: open.digest.finish(), chunks: open.chunks };
            if let Some(old) = self.committed.replace(fresh) {
                self.let_go(old.chunks);
            }
        }
        Ok(())
    }

    /// Forgets the open round, if any. The consensus stays what it was.
    pub fn abandon(&mut self) {
        if let Some(open) = self.open.take() {
            self.let_go(open.chunks);
            self.outer.abandon();
            if let Some(coder) = &mut self.coder {
                coder.abandon();
            }
        }
    }

    /// The version in force, or `None` before the first commit.
    #[must_use]
    pub fn version(&self) -> Option<u64> {
        self.committed.as_ref().map(|committed| committed.version)
    }

    /// The digest of the consensus in force.
    #[must_use]
    pub fn digest(&self) -> Option<u64> {
        self.committed.as_ref().map(|committed| committed.digest)
    }

    /// A chunk of the consensus in force.
    #[must_use]
    pub fn chunk(&self, index: u32) -> Option<Bytes> {
        self.committed.as_ref()?.chunks.get(index as usize).cloned()
    }

    /// The consensus in force as the bytes of all sections in order: what [`Consensus::from_bytes`] takes.
    #[must_use]
    pub fn read_all(&self) -> Option<Bytes> {
        let chunks = &self.committed.as_ref()?.chunks;
        let mut all = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
        chunks.iter().for_each(|chunk| all.extend_from_slice(chunk));
        Some(all.freeze())
    }
}

/// A chunk's new consensus, or `None` if it is not finite.
fn divided(spec: &ChunkSpec, mass: Mass, sum: Bytes, previous: Option<&Bytes>, outer: &mut dyn Outer) -> Option<Bytes> {
    if spec.section == Section::Integers {
        return Some(sum);
    }
    let mut average = writable(sum);
    if !kernel::divide(&mut average, mass.as_f32()) {
        return None;
    }
    if spec.section == Section::Parameters
        && let Some(previous) = previous
    {
        outer.step(spec, previous, &mut average);
        if !kernel::all_finite(&average) {
            return None;
        }
    }
    Some(average.freeze())
}

/// A result as it travels, if it travels rounded, and as whoever gets it holds it.
fn rounded(coder: &mut Coder, spec: &ChunkSpec, result: Bytes, base: Option<Base<'_>>) -> (Option<Coded>, Bytes) {
    let coded = coder.encode(spec, &result, Mass::ONE, base);
    if coded.codec == Codec::F32 {
        return (None, result);
    }
    let mut applied = writable(result);
    applied.copy_from_slice(coder.applied());
    (Some(coded), applied.freeze())
}
