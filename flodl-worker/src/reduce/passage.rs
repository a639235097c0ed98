//! Averaging through memory that rank and relay share: contributions are scaled into it chunk by chunk, results are measured
//! and read where the relay put them.

use super::cpu::{CpuReduce, Incoming, Measured, ReduceError, WholeAt};
use super::flat::{Map, Piece};
use crate::trainee::Trainee;
use flodl_cpureduce::{ChunkSpec, DivergenceMeter, Layout, Mass, Section, kernel};
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::{Round, Version};

/// What is said of a chunk of a contribution.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Label {
    /// The round.
    pub round: Round,
    /// The consensus that this rank holds.
    pub base: Version,
    /// Which chunk.
    pub chunk: u32,
    /// Its mass.
    pub mass: f64,
}

/// What the relay says of a whole result.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Told {
    /// Its digest.
    pub digest: u64,
    /// The sum of the squares of its parameters.
    pub squared_norm: f64,
}

/// Memory between this rank and its relay. Nothing of it waits.
pub trait Passage: core::fmt::Debug {
    /// Whether results of a model of that layout can be read here. Asked when a round is opened: before there is a model the
    /// relay does not know its size. False where results come through the socket.
    ///
    /// # Errors
    /// A sentence, where the relay puts results there and they cannot be read.
    fn ready(&mut self, layout: Layout) -> Result<bool, String>;

    /// Room for a chunk of so many bytes, unless the relay has yet to take those before.
    fn room(&mut self, bytes: u32) -> Option<&mut [u8]>;

    /// Whether there is room.
    fn has_room(&self) -> bool;

    /// Gives the relay what was last put into the room.
    fn send(&mut self, label: &Label, bytes: u32);

    /// Says that nothing comes from that chunk on. False where there is no room for saying so.
    fn send_absent(&mut self, round: Round, from_chunk: u32, why: AbsentWhy) -> bool;

    /// How many chunks of that round's result are there.
    fn result(&mut self, round: Round) -> u32;

    /// A chunk of that round's result.
    fn chunk(&self, round: Round, spec: &ChunkSpec) -> Option<&[u8]>;

    /// All of that round's result, once it is whole.
    fn model(&self, round: Round) -> Option<&[u8]>;

    /// What the relay says of the whole of it.
    fn whole(&self, round: Round) -> Option<Told>;

    /// Whether that result has been there since its chunks were read.
    fn holds(&self, round: Round) -> bool;
}

/// What became of the next chunk of a contribution.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Passed {
    /// It is with the relay.
    Sent,
    /// There is no room yet.
    Full,
    /// There are no more, or no more will come: all is said.
    Done,
}

impl CpuReduce {
    /// Uses that memory for what it can be used for, from now on.
    pub fn share(&mut self, passage: Box<dyn Passage>) {
        self.passage = Some(passage);
    }

    /// Whether contributions go through shared memory.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.passage.is_some()
    }

    /// Whether there is anything to do: a chunk of a result has come, or, where one is to be `sent`, there is room for it.
    pub fn can_go_on(&mut self, sending: bool) -> bool {
        let next = self.incoming.as_ref().map(|incoming| (incoming.round, incoming.next));
        let Some(passage) = &mut self.passage else { return false };
        (sending && passage.has_room()) || next.is_some_and(|(round, next)| passage.result(round) > next)
    }

    /// Scales the next chunk of the contribution into shared memory: [`contribution`](CpuReduce::contribution) without the copy.
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn pass<T: Trainee + ?Sized>(&mut self, trainee: &T, label: &Label) -> Result<Passed, ReduceError> {
        let CpuReduce { passage, map, snapshot, direct, .. } = self;
        let Some(passage) = passage else { return Ok(Passed::Done) };
        let Some(spec) = map.layout.chunk(label.chunk) else { return Ok(Passed::Done) };
        let mass = if spec.section == Section::Parameters { Mass::new(label.mass).ok() } else { Some(Mass::ONE) };
        let mut finite = mass.is_some();
        if let Some(mass) = mass {
            let Some(room) = passage.room(spec.bytes) else { return Ok(Passed::Full) };
            let scale = |piece: Piece<'_>| match piece {
                Piece::Floats(at, values) => {
                    finite &=
                        kernel::scale_copy_check(values, mass.as_f32(), &mut room[4 * at..4 * (at + values.len())]);
                }
                Piece::Integers(at, values) => write_integers(values, &mut room[8 * at..8 * (at + values.len())]),
            };
            map.pieces(*direct, (trainee, snapshot), &spec, scale)?;
        }
        if !finite {
            let said = passage.send_absent(label.round, label.chunk, AbsentWhy::NonFinite);
            return Ok(if said { Passed::Done } else { Passed::Full });
        }
        let mass = mass.unwrap_or(Mass::ONE).value();
        passage.send(&Label { mass, ..*label }, spec.bytes);
        Ok(Passed::Sent)
    }

    /// Says through shared memory that nothing of this rank comes in that round. False where there is no room for it.
    pub fn pass_absent(&mut self, round: Round, why: AbsentWhy) -> bool {
        self.passage.as_mut().is_none_or(|passage| passage.send_absent(round, 0, why))
    }

    /// Takes the next chunk of the open round's result out of shared memory, if one is there, and answers as
    /// [`receive`](CpuReduce::receive) does. Where the replica `stays` what it was at its snapshot the chunk is left where it is
    /// until it is applied.
    ///
    /// # Errors
    /// The model's own, or that it lends other tensors than it named.
    pub fn take_shared<T: Trainee + ?Sized>(
        &mut self,
        trainee: &T,
        stays: bool,
    ) -> Result<Option<(Round, u32, Option<Measured>)>, ReduceError> {
        let (Some(passage), Some(incoming)) = (&mut self.passage, &mut self.incoming) else { return Ok(None) };
        let (round, next) = (incoming.round, incoming.next);
        if passage.result(round) <= next {
            return Ok(None);
        }
        let spec = self.map.layout.chunk(next);
        let Some((spec, data)) = spec.and_then(|spec| Some((spec, passage.chunk(round, &spec)?))) else {
            return Ok(None);
        };
        if spec.section == Section::Parameters {
            let measure = |piece: Piece<'_>| {
                if let Piece::Floats(at, theta) = piece {
                    incoming.squared_distance += kernel::squared_distance(theta, &data[4 * at..4 * (at + theta.len())]);
                    if !self.direct {
                        incoming.squared_theta += kernel::squared_norm_of(theta);
                    }
                }
            };
            self.map.pieces(self.direct, (trainee, &self.snapshot), &spec, measure)?;
        }
        if !stays {
            let start = usize::try_from(spec.byte_offset).unwrap_or(usize::MAX);
            self.result[start..start + data.len()].copy_from_slice(data);
        }
        if !passage.holds(round) {
            return Err(ReduceError::Overtaken { round });
        }
        incoming.next += 1;
        let here = incoming.next;
        let told = (here == self.map.layout.chunks()).then(|| passage.whole(round)).flatten();
        let measured = told.map(|told| measured(incoming, told));
        if measured.is_some() {
            self.whole = if stays { WholeAt::Shared(round) } else { WholeAt::Own };
        }
        Ok(Some((round, here, measured)))
    }

    /// Whether the whole result that is in shared memory has stayed what it was.
    pub(super) fn still_whole(&self) -> Result<(), ReduceError> {
        match (self.whole, &self.passage) {
            (WholeAt::Shared(round), Some(passage)) if !passage.holds(round) => Err(ReduceError::Overtaken { round }),
            _ => Ok(()),
        }
    }
}

fn measured(incoming: &Incoming, told: Told) -> Measured {
    let meter = DivergenceMeter::of(incoming.squared_distance, told.squared_norm);
    Measured {
        digest: told.digest,
        divergence: meter.divergence(),
        pre_norm: incoming.squared_theta.sqrt(),
        post_norm: meter.average_norm(),
    }
}

fn write_integers(values: &[i64], out: &mut [u8]) {
    let (elements, _) = out.as_chunks_mut();
    for (element, value) in elements.iter_mut().zip(values) {
        *element = value.to_le_bytes();
    }
}

impl Map {
    /// Shows every piece of the replica that lies in a chunk, with its place in it: of the tensors themselves where that is
    /// `direct`, else of the snapshot.
    pub(super) fn pieces<T: Trainee + ?Sized>(
        &self,
        direct: bool,
        (trainee, snapshot): (&T, &super::flat::Flat),
        spec: &ChunkSpec,
        mut show: impl FnMut(Piece<'_>),
    ) -> Result<(), ReduceError> {
        let at = self.elements(spec);
        if direct {
            let mut window = super::flat::Window::new(self, spec, &mut show);
            trainee.read_tensors(&mut window).map_err(ReduceError::Model)?;
            return Ok(window.finish()?);
        }
        match spec.section {
            Section::Integers => show(Piece::Integers(0, &snapshot.integers[at])),
            Section::Parameters | Section::Buffers => show(Piece::Floats(0, &snapshot.floats[at])),
        }
        Ok(())
    }
}
