//! The CPU back end of a rank: one snapshot, one result.

use super::flat::{
    Flat, Gather, Inspect, LayoutMismatch, ManifestError, Map, Piece, Scatter, ScatterDigest, Spread, ValueDigest,
};
use super::passage::Passage;
use crate::session::{ResultWhole, Violation};
use crate::trainee::{Fault, Trainee};
use bytes::Bytes;
use flodl_cpureduce::{
    ChunkSpec, Digest, DivergenceMeter, Layout, Mass, Pull, Section, apply_result, contribution_chunk, integer_chunk,
    kernel,
};
use flodl_wire::message::Data;
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::join::{LayoutSizes, TensorSpec};
use flodl_wire::{Round, Version};
use std::collections::VecDeque;
use thiserror::Error;

/// Why tensors could not be copied.
#[derive(Debug, Error)]
pub enum ReduceError {
    /// The model's own error.
    #[error("{0}")]
    Model(Fault),
    /// What it lends is not what its manifest says.
    #[error(transparent)]
    Mismatch(#[from] LayoutMismatch),
    /// The relay puts results where this rank cannot read them.
    #[error("results in shared memory cannot be read: {0}")]
    Board(String),
    /// A result in shared memory was written over before this rank had taken it.
    #[error("the result of {round} was gone before it was taken: this rank is two rounds behind the others")]
    Overtaken {
        /// The round.
        round: Round,
    },
}

/// Where the last whole result is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum WholeAt {
    /// In memory of this rank alone.
    Own,
    /// In memory that it shares with its relay, until two rounds later.
    Shared(Round),
}

/// What a whole result was found to be as it passed. Norms are over the parameters.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Measured {
    /// xxh3 over the chunks in order.
    pub digest: u64,
    /// |theta - average| / |average|, theta being the snapshot.
    pub divergence: f64,
    /// |theta|.
    pub pre_norm: f64,
    /// |average|.
    pub post_norm: f64,
}

impl Measured {
    /// The same as what a session is told of that round's result.
    pub(crate) fn of(self, round: Round) -> ResultWhole {
        let Measured { digest, divergence, pre_norm, post_norm } = self;
        ResultWhole { round, digest, divergence, pre_norm, post_norm }
    }
}

/// A round's result as far as it has come.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) round: Round,
    pub(super) next: u32,
    digest: Digest,
    meter: DivergenceMeter,
    /// Of what has come through shared memory.
    pub(super) squared_distance: f64,
    /// Of the replica's parameters, as far as they were measured.
    pub(super) squared_theta: f64,
}

/// Sends and receives the model in the chunks of a round.
#[derive(Debug)]
pub struct CpuReduce {
    pub(super) map: Map,
    pub(super) snapshot: Flat,
    pub(super) result: Vec<u8>,
    /// Memory that is shared with the relay.
    pub(super) passage: Option<Box<dyn Passage>>,
    /// The open round goes by the tensors themselves and not by a snapshot.
    pub(super) direct: bool,
    pub(super) whole: WholeAt,
    /// The replica as it is, where it is not the snapshot: empty until it is needed.
    live: Flat,
    pub(super) incoming: Option<Incoming>,
    /// The newest round that was opened.
    newest: Option<Round>,
    /// Chunks of one round that is not open yet.
    early: VecDeque<Chunk>,
    /// Chunks that were dropped.
    stray: u64,
}

impl CpuReduce {
    /// Room for a model of that manifest.
    ///
    /// # Errors
    /// A manifest that cannot be averaged.
    pub fn new(manifest: &[TensorSpec]) -> Result<CpuReduce, ManifestError> {
        let map = Map::new(manifest)?;
        let bytes = usize::try_from(map.layout.total_bytes()).unwrap_or(usize::MAX);
        Ok(CpuReduce {
            snapshot: Flat::zeros(&map),
            result: vec![0; bytes],
            passage: None,
            direct: false,
            whole: WholeAt::Own,
            live: Flat::default(),
            incoming: None,
            newest: None,
            early: VecDeque::new(),
            stray: 0,
            map,
        })
    }

    /// The model's sizes.
    #[must_use]
    pub fn sizes(&self) -> LayoutSizes {
        self.map.sizes
    }

    /// How it is cut into chunks.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.map.layout
    }

    /// Result chunks that belonged to no round of this rank and were dropped.
    #[must_use]
    pub fn stray_chunks(&self) -> u64 {
        self.stray
    }

    /// Copies the replica out and opens `round` for its result. Answers whether every float is finite. Chunks of the round may be
    /// here already: see [`take_early`](CpuReduce::take_early).
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn snapshot<T: Trainee + ?Sized>(&mut self, trainee: &T, round: Round) -> Result<bool, ReduceError> {
        self.direct = false;
        if let Some(passage) = &mut self.passage {
            passage.ready(self.map.layout).map_err(ReduceError::Board)?;
        }
        gather(&self.map, trainee, &mut self.snapshot)?;
        self.begin(round);
        Ok(kernel::all_finite_of(&self.snapshot.floats))
    }

    /// The same where the replica stays what it is until the round has ended: nothing is copied where it goes through shared
    /// memory from where the tensors are.
    ///
    /// # Errors
    /// As [`snapshot`](CpuReduce::snapshot).
    pub fn open<T: Trainee + ?Sized>(&mut self, trainee: &T, round: Round) -> Result<bool, ReduceError> {
        let ready = self.passage.as_mut().map_or(Ok(false), |passage| passage.ready(self.map.layout));
        if !ready.map_err(ReduceError::Board)? || !trainee.lends_in_place() {
            return self.snapshot(trainee, round);
        }
        let mut inspect = Inspect::new(&self.map);
        trainee.read_tensors(&mut inspect).map_err(ReduceError::Model)?;
        let (finite, squared_theta) = inspect.finish()?;
        self.direct = true;
        self.begin(round);
        if let Some(incoming) = &mut self.incoming {
            incoming.squared_theta = squared_theta;
        }
        Ok(finite)
    }

    fn begin(&mut self, round: Round) {
        self.newest = Some(round);
        let (digest, meter) = (Digest::new(), DivergenceMeter::default());
        self.incoming = Some(Incoming { round, next: 0, digest, meter, squared_distance: 0.0, squared_theta: 0.0 });
    }

    /// Chunk `chunk` of the snapshot's contribution: parameters times `mass`, buffers and integers as they are. `Absent` where
    /// scaling carries a value past the largest float: nothing comes after that. `None` past the last chunk.
    #[must_use]
    pub fn contribution(&self, round: Round, base: Version, mass: f64, chunk: u32) -> Option<Data> {
        let spec = self.map.layout.chunk(chunk)?;
        let Some((mass, bytes)) = self.scaled(&spec, mass) else {
            return Some(Data::Absent { round, from_chunk: chunk, why: AbsentWhy::NonFinite });
        };
        let (mass, codec) = (mass.value(), Codec::Exact);
        Some(Data::Contribution(Chunk { round, version: base, chunk, mass, codec, bytes }))
    }

    fn scaled(&self, spec: &ChunkSpec, mass: f64) -> Option<(Mass, Bytes)> {
        let at = self.map.elements(spec);
        let (mass, (bytes, finite)) = match spec.section {
            Section::Parameters => {
                let mass = Mass::new(mass).ok()?;
                (mass, contribution_chunk(&self.snapshot.floats[at], mass))
            }
            Section::Buffers => (Mass::ONE, contribution_chunk(&self.snapshot.floats[at], Mass::ONE)),
            Section::Integers => (Mass::ONE, (integer_chunk(&self.snapshot.integers[at]), true)),
        };
        finite.then_some((mass, bytes))
    }

    /// Takes the next chunk of the result. Answers how many are here, and what was measured once all are; `None` where the
    /// chunk is of another round than the open one. One of a later round is kept, since the connections of control and data do
    /// not wait for each other, and a fold that expects nothing of this rank does not wait for it. One of a round that is over
    /// for this rank is dropped and counted.
    ///
    /// # Errors
    /// A chunk of the open round that is not the next one or has another length than the layout says.
    pub fn receive(&mut self, chunk: &Chunk) -> Result<Option<(u32, Option<Measured>)>, Violation> {
        let Some(incoming) = self.incoming.as_mut().filter(|incoming| incoming.round == chunk.round) else {
            self.keep_early(chunk);
            return Ok(None);
        };
        let violation = |problem| Violation::Result { round: chunk.round, chunk: chunk.chunk, problem };
        if chunk.chunk != incoming.next {
            return Err(violation("is not the next one"));
        }
        let spec = self.map.layout.chunk(chunk.chunk).ok_or_else(|| violation("is past the model's end"))?;
        if chunk.codec != Codec::Exact {
            return Err(violation("holds differences, which only travel between hosts"));
        }
        if self.direct {
            return Err(violation("came through a socket although results are in shared memory"));
        }
        if chunk.bytes.len() as u64 != u64::from(spec.bytes) {
            return Err(violation("has another length than the model's layout says"));
        }
        let start = usize::try_from(spec.byte_offset).unwrap_or(usize::MAX);
        self.result[start..start + chunk.bytes.len()].copy_from_slice(&chunk.bytes);
        incoming.digest.update(&chunk.bytes);
        if spec.section == Section::Parameters {
            let theta = &self.snapshot.floats[self.map.elements(&spec)];
            incoming.meter.add(theta, &chunk.bytes).map_err(|_| violation("is cut within a number"))?;
            incoming.squared_theta += kernel::squared_norm_of(theta);
        }
        incoming.next += 1;
        let here = incoming.next;
        let measured = (here == self.map.layout.chunks()).then(|| self.measure());
        if measured.is_some() {
            self.whole = WholeAt::Own;
        }
        Ok(Some((here, measured.flatten())))
    }

    /// Keeps a chunk of a later round: of one round at most, and no more bytes than a result has.
    fn keep_early(&mut self, chunk: &Chunk) {
        let fits = |spec: ChunkSpec| u64::from(spec.bytes) == chunk.bytes.len() as u64;
        let later = self.newest.is_none_or(|newest| newest < chunk.round);
        if !later || !self.map.layout.chunk(chunk.chunk).is_some_and(fits) {
            self.stray += 1;
            return;
        }
        match self.early.back().map(|last| (last.round, last.chunk)) {
            Some(last) if last >= (chunk.round, chunk.chunk) => self.stray += 1,
            last => {
                if last.is_some_and(|(round, _)| round < chunk.round) {
                    self.stray += self.early.len() as u64;
                    self.early.clear();
                }
                self.early.push_back(chunk.clone());
            }
        }
    }

    /// The next chunk that came before its round was opened, to be given to [`receive`](CpuReduce::receive) now that one is.
    pub fn take_early(&mut self) -> Option<Chunk> {
        let open = self.incoming.as_ref()?.round;
        let chunk = self.early.pop_front()?;
        if chunk.round == open {
            return Some(chunk);
        }
        // The round was skipped, or is still to come.
        if chunk.round < open {
            self.stray += self.early.len() as u64 + 1;
            self.early.clear();
        } else {
            self.early.push_front(chunk);
        }
        None
    }

    fn measure(&self) -> Option<Measured> {
        let incoming = self.incoming.as_ref()?;
        Some(Measured {
            digest: incoming.digest.finish(),
            divergence: incoming.meter.divergence(),
            pre_norm: incoming.squared_theta.sqrt(),
            post_norm: incoming.meter.average_norm(),
        })
    }

    /// The snapshot: parameters and then buffers, and integers.
    #[must_use]
    pub fn contents(&self) -> (&[f32], &[i64]) {
        (&self.snapshot.floats, &self.snapshot.integers)
    }

    /// Takes a whole result that came another way than in chunks, in the order of [`contents`](CpuReduce::contents). Answers
    /// with its digest, which is the one that its chunks would have; `None` where it is of another length.
    #[must_use]
    pub fn take_result(&mut self, floats: &[f32], integers: &[i64]) -> Option<u64> {
        if (floats.len(), integers.len()) != (self.snapshot.floats.len(), self.snapshot.integers.len()) {
            return None;
        }
        let (of_floats, of_integers) = self.result.split_at_mut(size_of_val(floats));
        kernel::scale_copy_check(floats, 1.0, of_floats);
        of_integers.copy_from_slice(&integer_chunk(integers));
        Some(Digest::of(&self.result))
    }

    /// The round is over and its result is not wanted.
    pub fn forget(&mut self) {
        self.incoming = None;
    }

    /// Overwrites the replica with the round's whole result, and answers with the digest of the replica read back.
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn apply<T: Trainee + ?Sized>(&mut self, trainee: &mut T) -> Result<u64, ReduceError> {
        let whole = self.whole_result()?;
        let in_order = trainee.lends_in_place().then(|| ScatterDigest::new(&self.map, whole)).flatten();
        let Some(mut scatter) = in_order else {
            self.write_result(trainee)?;
            self.incoming = None;
            return self.replica_digest(trainee);
        };
        trainee.write_tensors(&mut scatter).map_err(ReduceError::Model)?;
        let digest = scatter.finish()?;
        self.still_whole()?;
        self.incoming = None;
        Ok(digest)
    }

    /// The last whole result, wherever it is.
    fn whole_result(&self) -> Result<&[u8], ReduceError> {
        match (self.whole, &self.passage) {
            (WholeAt::Shared(round), Some(passage)) => passage.model(round).ok_or(ReduceError::Overtaken { round }),
            _ => Ok(&self.result),
        }
    }

    fn write_result<T: Trainee + ?Sized>(&self, trainee: &mut T) -> Result<(), ReduceError> {
        let mut scatter = Scatter::new(&self.map, self.whole_result()?);
        trainee.write_tensors(&mut scatter).map_err(ReduceError::Model)?;
        scatter.finish()?;
        // What was written over under this is not the consensus, and this replica no replica: the rank ends here.
        self.still_whole()
    }

    /// Moves the replica by `pull` times the difference between the round's whole result and the snapshot: what it was trained
    /// since then stays. Integers move by the whole difference.
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn apply_on_top<T: Trainee + ?Sized>(&mut self, trainee: &mut T, pull: Pull) -> Result<(), ReduceError> {
        self.read_live(trainee)?;
        let floats = 4 * self.map.floats();
        let mut live = core::mem::take(&mut self.live);
        let whole = self.whole_result()?;
        // Without a snapshot the replica is what it was at one.
        apply_result(&mut live.floats, &whole[..floats], (!self.direct).then_some(&self.snapshot.floats[..]), pull);
        let mut result = vec![0; live.integers.len()];
        kernel::read_i64(&whole[floats..], &mut result);
        for (place, (live, result)) in live.integers.iter_mut().zip(result).enumerate() {
            let snapshot = if self.direct { *live } else { self.snapshot.integers[place] };
            *live = live.wrapping_add(result.wrapping_sub(snapshot));
        }
        self.still_whole()?;
        self.live = live;
        self.incoming = None;
        self.put_back(trainee)
    }

    /// Copies the replica and writes the last whole result into it, until [`put_back`](CpuReduce::put_back).
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn set_aside<T: Trainee + ?Sized>(&mut self, trainee: &mut T) -> Result<(), ReduceError> {
        self.read_live(trainee)?;
        self.write_result(trainee)
    }

    /// Writes what was set aside into the replica.
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn put_back<T: Trainee + ?Sized>(&self, trainee: &mut T) -> Result<(), ReduceError> {
        let mut spread = Spread::new(&self.map, &self.live);
        trainee.write_tensors(&mut spread).map_err(ReduceError::Model)?;
        Ok(spread.finish()?)
    }

    fn read_live<T: Trainee + ?Sized>(&mut self, trainee: &T) -> Result<(), ReduceError> {
        if self.live.floats.is_empty() {
            self.live = Flat::zeros(&self.map);
        }
        gather(&self.map, trainee, &mut self.live)
    }

    /// xxh3 of the live tensors, over the bytes that they would be sent as with mass 1: a replica that holds exactly a
    /// consensus has the consensus's digest. May overwrite the snapshot.
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn replica_digest<T: Trainee + ?Sized>(&mut self, trainee: &T) -> Result<u64, ReduceError> {
        let direct = trainee.lends_in_place();
        if !direct {
            gather(&self.map, trainee, &mut self.snapshot)?;
        }
        let mut digest = ValueDigest::default();
        for spec in self.map.layout.iter() {
            let update = |piece: Piece<'_>| match piece {
                Piece::Integers(_, values) => digest.integers(values),
                Piece::Floats(_, values) => digest.floats(values),
            };
            self.map.pieces(direct, (trainee, &self.snapshot), &spec, update)?;
        }
        Ok(digest.finish())
    }
}

fn gather<T: Trainee + ?Sized>(map: &Map, trainee: &T, into: &mut Flat) -> Result<(), ReduceError> {
    let mut gather = Gather::new(map, into);
    trainee.read_tensors(&mut gather).map_err(ReduceError::Model)?;
    Ok(gather.finish()?)
}
