//! A rank's average on its device: the algebra of masses in place, and what must be put back where it comes to nothing.
//!
//! An [`Average`] holds a replica as three runs of numbers (parameters, buffers, integers) in device memory. A round
//! multiplies this rank's parameters by its mass while they are added up, divides the sum by the mass of all once, and lets
//! the outer optimizer, whose state every rank has, make the consensus of it. A rank without mass gives zeros, and never its
//! values times 0. Buffers count once for everybody who gives anything; of integers the largest is taken.
//!
//! The numbers before the round are kept until the round counts, and put back where it does not, or is done again on
//! another communicator. Copies and kernels run on a stream of their own and collectives on another, with events between;
//! what was found is read once a round, when both are idle.

#[expect(unsafe_code, reason = "it puts work on streams")]
mod device;
mod outer;

use std::fmt;

use thiserror::Error;

use crate::comm::Comm;
use crate::cuda::{CudaError, Device, Memory};
use crate::error::CallError;
use crate::library::Library;
use crate::memory::{Buffer, DataType, Reduction};
use crate::session::{Replica, Round};
use device::{Subject, Work};

pub use outer::Outer;

/// How many numbers of each kind a replica has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Floats that are trained.
    pub parameters: usize,
    /// Floats that are not, such as running means.
    pub buffers: usize,
    /// Counters.
    pub integers: usize,
}

impl Shape {
    /// Floats of both kinds.
    #[must_use]
    pub const fn floats(self) -> usize {
        self.parameters + self.buffers
    }
}

/// A rank's part in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Task {
    /// How much its parameters count, at least 0; with 0 it gives nothing.
    pub mass: f64,
    /// The place of the rank whose replica all others take, instead of an average.
    pub root: Option<u32>,
    /// The place of a rank whose outer state all others take before the average: one that has it, where another has not.
    pub holder: Option<u32>,
}

impl Task {
    /// A part in an average, with this mass.
    #[must_use]
    pub const fn of_mass(mass: f64) -> Self {
        Self { mass, root: None, holder: None }
    }

    /// A round in which all take that rank's replica.
    #[must_use]
    pub const fn from_root(root: u32) -> Self {
        Self { mass: 0.0, root: Some(root), holder: None }
    }
}

/// What a round came to. Norms are over the parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// A checksum of the result. Equal on all ranks, or something is wrong.
    pub digest: u64,
    /// How far this rank was from the result, in units of the result's norm.
    pub divergence: f64,
    /// The norm of this rank's parameters before the round.
    pub pre_norm: f64,
    /// The norm of the result.
    pub post_norm: f64,
    /// The mass of all ranks together; 0 in a round with a root.
    pub mass: f64,
    /// How many gave something.
    pub movers: u32,
    /// Whether every float of the result is finite, and there is one at all. Where not, all ranks fall back on the consensus
    /// before ([`Average::fall_back`]).
    pub is_finite: bool,
    /// Whether all ranks had the same outer state when the round began. Where not, it begins anew on all when the round is
    /// settled.
    pub state_agrees: bool,
}

/// What there is to know of a replica as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looked {
    /// Its checksum; that of a result it holds is [`Measured::digest`].
    pub digest: u64,
    /// Whether every float is finite.
    pub is_finite: bool,
}

/// Why an average cannot be prepared or read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AverageError {
    /// The device refuses.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The replica has other numbers than the average was made for.
    #[error("{got} {what} were given where the replica has {expected}")]
    Length {
        /// Which.
        what: &'static str,
        /// How many there must be.
        expected: usize,
        /// How many came.
        got: usize,
    },
}

/// Below this norm a result is taken as zero, and nothing is measured relative to it.
const NORM_MIN: f64 = 1e-10;

/// What is to be done where the open round counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Stage {
    /// The values are a round's, and its copy is not released.
    is_open: bool,
    /// There is a consensus to fall back on.
    has_previous: bool,
    /// The values are that one.
    fell_back: bool,
    /// The outer state was not the same on all ranks.
    forgets: bool,
    /// The outer state's checksum where the round counts.
    next_checksum: u64,
}

/// A replica on its device, and its rounds.
pub struct Average {
    library: Library,
    shape: Shape,
    outer: Outer,
    work: Work,
    task: Task,
    /// Of the outer state, as it was found last.
    state_checksum: u64,
    stage: Stage,
    /// The error of a copy or of putting it back, until the round is issued.
    failed: Option<CudaError>,
}

impl Average {
    /// Room for a replica of this shape on that device: three times its numbers, and with momentum twice its parameters more.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device has not enough memory or refuses the kernels.
    pub fn new(library: Library, device: &Device, shape: Shape, outer: Outer) -> Result<Self, CudaError> {
        let work = Work::new(device, shape, outer.has_state())?;
        let task = Task::of_mass(0.0);
        Ok(Self { library, shape, outer, work, task, state_checksum: 0, stage: Stage::default(), failed: None })
    }

    /// How many numbers it has.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Takes a replica's numbers from the host: parameters and then buffers, and integers. To be called between rounds.
    ///
    /// # Errors
    ///
    /// [`AverageError`].
    pub fn load(&mut self, floats: &[f32], integers: &[i64]) -> Result<(), AverageError> {
        let lengths =
            [("floats", self.shape.floats(), floats.len()), ("integers", self.shape.integers, integers.len())];
        for (what, expected, got) in lengths {
            if expected != got {
                return Err(AverageError::Length { what, expected, got });
            }
        }
        let (parameters, buffers) = floats.split_at(self.shape.parameters);
        let bytes = |values: &[f32]| -> Vec<u8> { values.iter().flat_map(|value| value.to_ne_bytes()).collect() };
        let [to_parameters, to_buffers, to_integers] = self.work.values_mut();
        to_parameters.upload(&bytes(parameters))?;
        to_buffers.upload(&bytes(buffers))?;
        to_integers.upload(&integers.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>())?;
        Ok(())
    }

    /// The numbers as they are, on the host. To be called when nothing is on the streams.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device fails.
    pub fn read(&self) -> Result<(Vec<f32>, Vec<i64>), CudaError> {
        let [parameters, buffers, integers] = self.work.values();
        let mut floats = floats_of(&parameters.download()?);
        floats.extend(floats_of(&buffers.download()?));
        let integers = integers.download()?;
        Ok((floats, integers.as_chunks().0.iter().map(|bytes| i64::from_ne_bytes(*bytes)).collect()))
    }

    /// Begins to look at the numbers as they are; [`looked`](Self::looked) has the answer once [`is_idle`](Replica::is_idle).
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device refuses.
    pub fn look(&mut self) -> Result<(), CudaError> {
        self.work.set_head(0.0, 0)?;
        self.work.measure(Subject::Replica)
    }

    /// What was found.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device fails.
    pub fn looked(&self) -> Result<Looked, CudaError> {
        let found = self.work.found()?;
        Ok(Looked { digest: found.checksum, is_finite: found.not_finite == 0 })
    }

    /// This rank's part in the round that is issued next, or again.
    pub fn prepare(&mut self, task: Task) {
        self.task = task;
    }

    /// What the round came to, once it is collected.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device fails.
    pub fn measured(&mut self) -> Result<Measured, CudaError> {
        let found = self.work.found()?;
        self.stage.forgets = self.outer.has_state() && self.task.root.is_none() && !found.state_agrees;
        self.stage.next_checksum = found.state_checksum;
        let post_norm = found.squared_norm.sqrt();
        let distance = found.squared_distance.sqrt();
        Ok(Measured {
            digest: found.checksum,
            divergence: if post_norm <= NORM_MIN { 0.0 } else { distance / post_norm },
            pre_norm: found.squared_theta.sqrt(),
            post_norm,
            mass: found.mass,
            movers: found.movers,
            is_finite: found.not_finite == 0 && (self.task.root.is_some() || found.mass > 0.0),
            state_agrees: !self.stage.forgets,
        })
    }

    /// Gives a result up that is not finite: the consensus before it is the result, and the outer state stays what it was.
    /// Begins to [`look`](Self::look) at it. `false` where there is none yet.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device refuses.
    pub fn fall_back(&mut self) -> Result<bool, CudaError> {
        if !self.stage.has_previous {
            return Ok(false);
        }
        self.stage.fell_back = true;
        self.stage.next_checksum = self.state_checksum;
        self.work.fall_back()?;
        self.look()?;
        Ok(true)
    }

    /// The round is over. Where it counts, its result is the replica and the state after it the outer optimizer's; where it
    /// does not, the replica is what it was before. To be called when nothing is on the streams.
    ///
    /// # Errors
    ///
    /// [`CudaError`] where the device refuses.
    pub fn settle(&mut self, counts: bool) -> Result<(), CudaError> {
        let Stage { is_open, has_previous, fell_back, forgets, next_checksum } = std::mem::take(&mut self.stage);
        self.stage.has_previous = has_previous || (is_open && counts);
        match (is_open, counts) {
            (false, _) => return Ok(()),
            (true, false) => return self.work.restore(),
            (true, true) => {}
        }
        self.state_checksum = next_checksum;
        // An average has made a step of the outer optimizer; a root's state was taken as it is.
        self.work.commit(self.task.root.is_none() && !fell_back)?;
        if forgets {
            self.state_checksum = 0;
            self.work.forget_state()?;
        }
        Ok(())
    }

    fn begin(&mut self) -> Result<(), CudaError> {
        let Task { mass, root, holder } = self.task;
        // Whoever takes the state of another has none to compare.
        let checksum = if holder.is_some() { 0 } else { self.state_checksum };
        match root {
            Some(_) => self.work.set_head(0.0, checksum)?,
            None => self.work.set_head(mass, checksum)?,
        }
        if root.is_none() && mass == 0.0 {
            self.work.blank()?;
        }
        self.work.hand_over()
    }

    /// The collectives of the round, as one group.
    fn collect(&self, comm: &Comm) -> Result<(), CallError> {
        let Task { root, holder, mass } = self.task;
        let stream = self.work.collective_stream();
        let values = self.work.value_views();
        let [parameters, buffers, integers] = values;
        let state = self.work.state_views();
        let [sums, largest] = self.work.head_views();
        let there = |buffer: &Buffer| buffer.count() > 0;
        self.library.group(|group| {
            if let Some(from) = root.or(holder) {
                for buffer in state.into_iter().filter(there) {
                    group.broadcast(comm, (buffer, buffer), from, stream)?;
                }
            }
            if let Some(root) = root {
                return values
                    .into_iter()
                    .filter(there)
                    .try_for_each(|buffer| group.broadcast(comm, (buffer, buffer), root, stream));
            }
            let mut reduce = |buffer: Buffer, reduction| match there(&buffer) {
                true => group.all_reduce(comm, (buffer, buffer), reduction, stream),
                false => Ok(()),
            };
            reduce(sums, Reduction::Sum)?;
            reduce(largest, Reduction::Max)?;
            // What was blanked is added as it is.
            let scaled = if mass == 0.0 { Reduction::Sum } else { Reduction::PreMulSum(mass) };
            reduce(parameters, scaled)?;
            reduce(buffers, Reduction::Sum)?;
            reduce(integers, Reduction::Max)
        })?;
        Ok(())
    }

    /// What follows the collectives on the device.
    fn finish(&mut self) -> Result<(), CudaError> {
        self.work.take_back()?;
        if self.task.root.is_none() {
            self.work.divide()?;
            self.work.step(self.outer)?;
        }
        self.work.measure(if self.task.root.is_none() { Subject::Average } else { Subject::Root })
    }
}

impl fmt::Debug for Average {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Average").field("shape", &self.shape).field("outer", &self.outer).finish_non_exhaustive()
    }
}

impl Replica for Average {
    fn copy(&mut self, _round: Round) {
        self.stage.is_open = true;
        self.failed = self.work.keep().err();
    }

    fn restore(&mut self, _round: Round) {
        self.stage.fell_back = false;
        self.failed = self.work.restore().err();
    }

    fn release(&mut self, _round: Round) {}

    fn issue(&mut self, _round: Round, comm: &Comm) -> Result<(), CallError> {
        let ready = match self.failed.take() {
            Some(error) => Err(error),
            None => self.begin(),
        };
        ready.map_err(of_device)?;
        self.collect(comm)
    }

    fn issued(&mut self, _round: Round) -> Result<(), CallError> {
        self.finish().map_err(of_device)
    }

    fn is_idle(&mut self) -> Result<bool, CallError> {
        self.work.is_idle().map_err(of_device)
    }
}

fn of_device(error: CudaError) -> CallError {
    CallError::Device(error.to_string())
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

/// Memories of the three kinds of numbers.
fn room(device: &Device, shape: Shape) -> Result<[Memory; 3], CudaError> {
    Ok([
        device.alloc(shape.parameters, DataType::F32)?,
        device.alloc(shape.buffers, DataType::F32)?,
        device.alloc(shape.integers, DataType::I64)?,
    ])
}
