//! The memory, streams and kernels of an average. Nothing is freed while a stream may work on it: whatever is put on the
//! streams here works on what this value owns, and it waits for them before it lets go of anything.

use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::time::Duration;

use super::{Outer, Shape, room};
use crate::cuda::{Argument, CudaError, Device, Event, Grid, Kernel, Kernels, Memory, Stream};
use crate::error::CallError;
use crate::memory::{Buffer, DataType, StreamRef};
use crate::wait;

/// The kernels, as the driver takes them.
const PTX: &str = concat!(include_str!("kernels.ptx"), "\0");

/// What works on values, however many: the kernels step by so many, and sum in blocks of so many.
const GRID: Grid = Grid { blocks: 256, threads: 256 };

/// Words of 64 bits ahead of what the blocks found: the mass, and who gives anything; and a checksum of the outer state twice,
/// so that the largest of both over all ranks says whether it is the same on all.
const HEAD: usize = 4;

/// Of these, the ones that are added up.
const SUMS: usize = 2;

/// Words of what a block found.
const PARTIAL: usize = 5;

/// The least integer is none of anybody's: all others are larger.
const NO_INTEGER: u64 = 1 << 63;

/// How long letting go waits for the streams. Past that, memory stays allocated until the process ends.
const LETTING_GO: Duration = Duration::from_secs(2);

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// The values as they are.
    Replica,
    /// A result that another rank's replica is, against the copy.
    Root,
    /// A result that the outer optimizer has stepped to, against the copy.
    Average,
}

/// Words of all that is read.
const WORDS: usize = HEAD + 2 * PARTIAL * GRID.blocks as usize;

/// What was found on the device, added up over the blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Found {
    pub(super) mass: f64,
    pub(super) movers: u32,
    /// Whether all ranks had the same outer state when the round began.
    pub(super) state_agrees: bool,
    /// Of the outer state after it.
    pub(super) state_checksum: u64,
    pub(super) squared_distance: f64,
    pub(super) squared_norm: f64,
    pub(super) squared_theta: f64,
    pub(super) not_finite: u64,
    pub(super) checksum: u64,
}

/// The memory of an outer optimizer.
struct State {
    velocity: Memory,
    /// The velocity after the round that is open.
    next: Memory,
}

struct Programs {
    divide: Kernel,
    measure: Kernel,
    measure_longs: Kernel,
    fill_longs: Kernel,
    slow_momentum: Kernel,
    nesterov: Kernel,
}

impl Programs {
    fn new(device: &Device) -> Result<Self, CudaError> {
        let text = CStr::from_bytes_with_nul(PTX.as_bytes()).unwrap_or_default();
        let all: Kernels = device.load(text)?;
        Ok(Self {
            divide: all.kernel(c"flodl_divide")?,
            measure: all.kernel(c"flodl_measure")?,
            measure_longs: all.kernel(c"flodl_measure_longs")?,
            fill_longs: all.kernel(c"flodl_fill_longs")?,
            slow_momentum: all.kernel(c"flodl_slow_momentum")?,
            nesterov: all.kernel(c"flodl_nesterov")?,
        })
    }
}

/// Everything that streams work on.
struct Held {
    values: [Memory; 3],
    copy: [Memory; 3],
    /// The consensus in force: what an outer step starts from, and what is left where a result is of no use.
    previous: [Memory; 3],
    state: Option<State>,
    /// The head, and what each block found.
    found: Memory,
    /// For copies and kernels.
    compute: Stream,
    /// For collectives.
    collective: Stream,
    handed_over: Event,
    taken_back: Event,
}

/// The device's part of an average.
pub(super) struct Work {
    held: ManuallyDrop<Held>,
    programs: Programs,
}

impl Work {
    pub(super) fn new(device: &Device, shape: Shape, has_state: bool) -> Result<Self, CudaError> {
        let parameters = || device.alloc(shape.parameters, DataType::F32);
        let state = match has_state {
            true => Some(State { velocity: parameters()?, next: parameters()? }),
            false => None,
        };
        let held = Held {
            values: room(device, shape)?,
            copy: room(device, shape)?,
            previous: room(device, shape)?,
            state,
            found: device.alloc(WORDS, DataType::F64)?,
            compute: device.stream()?,
            collective: device.stream()?,
            handed_over: device.event()?,
            taken_back: device.event()?,
        };
        let work = Self { held: ManuallyDrop::new(held), programs: Programs::new(device)? };
        work.forget_state()?;
        Ok(work)
    }

    /// Begins the outer optimizer anew.
    pub(super) fn forget_state(&self) -> Result<(), CudaError> {
        let Held { state, compute, .. } = &*self.held;
        // SAFETY: this value owns both and waits for the stream before it frees them.
        state.as_ref().map_or(Ok(()), |state| unsafe { state.velocity.clear(compute) })
    }

    pub(super) fn values(&self) -> &[Memory; 3] {
        &self.held.values
    }

    pub(super) fn values_mut(&mut self) -> &mut [Memory; 3] {
        &mut self.held.values
    }

    /// Whether both streams are.
    pub(super) fn is_idle(&self) -> Result<bool, CudaError> {
        Ok(self.held.compute.is_idle()? && self.held.collective.is_idle()?)
    }

    /// Keeps a copy of the values.
    pub(super) fn keep(&mut self) -> Result<(), CudaError> {
        self.copy_all(&self.held.copy, &self.held.values)
    }

    /// Makes the values what the copy holds.
    pub(super) fn restore(&mut self) -> Result<(), CudaError> {
        self.copy_all(&self.held.values, &self.held.copy)
    }

    /// Makes the values what the consensus in force is.
    pub(super) fn fall_back(&mut self) -> Result<(), CudaError> {
        self.copy_all(&self.held.values, &self.held.previous)
    }

    fn copy_all(&self, to: &[Memory; 3], from: &[Memory; 3]) -> Result<(), CudaError> {
        // SAFETY: as for the outer state.
        to.iter().zip(from).try_for_each(|(to, from)| unsafe { to.copy_from(from, &self.held.compute) })
    }

    /// Makes the values what is no contribution: zeros, and integers below all others.
    pub(super) fn blank(&mut self) -> Result<(), CudaError> {
        let Held { values: [parameters, buffers, integers], compute, .. } = &*self.held;
        // SAFETY: as for the outer state.
        unsafe {
            parameters.clear(compute)?;
            buffers.clear(compute)?;
        }
        let arguments = [Argument::Memory(integers), count(integers), Argument::Number(NO_INTEGER)];
        self.launch(&self.programs.fill_longs, integers, &arguments)
    }

    /// Writes this rank's mass, the checksum of its outer state, and that nothing was found yet. The streams have nothing to do
    /// with it at that time.
    pub(super) fn set_head(&mut self, mass: f64, state_checksum: u64) -> Result<(), CudaError> {
        let movers = if mass > 0.0 { 1.0_f64 } else { 0.0 };
        let head =
            [mass.to_ne_bytes(), movers.to_ne_bytes(), state_checksum.to_ne_bytes(), (!state_checksum).to_ne_bytes()];
        let mut bytes = head.concat();
        bytes.resize(WORDS * size_of::<f64>(), 0);
        self.held.found.upload(&bytes)
    }

    /// Lets the collectives begin when what was put on the other stream is done.
    pub(super) fn hand_over(&mut self) -> Result<(), CudaError> {
        self.held.compute.record(&self.held.handed_over)?;
        self.held.collective.wait_for(&self.held.handed_over)
    }

    /// Lets what comes next begin when the collectives are done.
    pub(super) fn take_back(&mut self) -> Result<(), CudaError> {
        self.held.collective.record(&self.held.taken_back)?;
        self.held.compute.wait_for(&self.held.taken_back)
    }

    /// Divides the parameters by the mass of all, and the buffers by those who gave something.
    pub(super) fn divide(&mut self) -> Result<(), CudaError> {
        let Held { values: [parameters, buffers, _], found, .. } = &*self.held;
        for (values, at) in [(parameters, 0), (buffers, 1)] {
            let arguments = [Argument::Memory(values), count(values), Argument::At(found, at * size_of::<f64>())];
            self.launch(&self.programs.divide, values, &arguments)?;
        }
        Ok(())
    }

    /// Makes the outer optimizer's step, whose state after it is kept apart.
    pub(super) fn step(&mut self, outer: Outer) -> Result<(), CudaError> {
        let (kernel, rate, momentum) = match outer {
            Outer::Average => return Ok(()),
            Outer::SlowMomentum { rate, momentum } => (&self.programs.slow_momentum, rate, momentum),
            Outer::Nesterov { rate, momentum } => (&self.programs.nesterov, rate, momentum),
        };
        let Held { values: [average, ..], previous: [previous, ..], state, .. } = &*self.held;
        let Some(State { velocity, next }) = state else { return Ok(()) };
        let arguments = [
            Argument::Memory(previous),
            Argument::Memory(average),
            Argument::Memory(velocity),
            Argument::Memory(next),
            count(average),
            Argument::Float(rate),
            Argument::Float(momentum),
        ];
        self.launch(kernel, average, &arguments)
    }

    /// Begins to look. What was found before is to be forgotten first ([`set_head`](Self::set_head)).
    pub(super) fn measure(&mut self, subject: Subject) -> Result<(), CudaError> {
        let Held { values: [parameters, buffers, integers], copy: [theta, ..], state, .. } = &*self.held;
        let theta = if subject == Subject::Replica { Argument::Nothing } else { Argument::Memory(theta) };
        self.look_at(parameters, theta, 0, 0)?;
        self.look_at(buffers, Argument::Nothing, parameters.count(), 0)?;
        let first = number(parameters.count() + buffers.count());
        let arguments = [Argument::Memory(integers), count(integers), first, self.partials(0)];
        self.launch(&self.programs.measure_longs, integers, &arguments)?;
        let Some(State { velocity, next }) = state else { return Ok(()) };
        let velocity = if subject == Subject::Average { next } else { velocity };
        self.look_at(velocity, Argument::Nothing, 0, 1)
    }

    fn look_at(&self, values: &Memory, theta: Argument<'_>, first: usize, side: usize) -> Result<(), CudaError> {
        let arguments = [theta, Argument::Memory(values), count(values), number(first), self.partials(side)];
        self.launch(&self.programs.measure, values, &arguments)
    }

    /// Where blocks write what they find: of the replica, and of the outer state.
    fn partials(&self, side: usize) -> Argument<'_> {
        let word = HEAD + side * PARTIAL * GRID.blocks as usize;
        Argument::At(&self.held.found, word * size_of::<f64>())
    }

    fn launch(&self, kernel: &Kernel, values: &Memory, arguments: &[Argument<'_>]) -> Result<(), CudaError> {
        if values.count() == 0 {
            return Ok(());
        }
        // SAFETY: the arguments are as kernels.cu has them, each memory as long as the count beside it says, or as what the
        // blocks found; this value owns them and waits for the stream before it frees them.
        unsafe { kernel.launch(GRID, &self.held.compute, arguments) }
    }

    /// The values are the consensus. `has_stepped`: and the state is the one after the step.
    pub(super) fn commit(&mut self, has_stepped: bool) -> Result<(), CudaError> {
        if let Some(state) = self.held.state.as_mut().filter(|_| has_stepped) {
            std::mem::swap(&mut state.velocity, &mut state.next);
        }
        self.copy_all(&self.held.previous, &self.held.values)
    }

    /// Reads what was found: the one read of a round. The streams are idle.
    pub(super) fn found(&self) -> Result<Found, CudaError> {
        let bytes = self.held.found.download()?;
        let (head, partials) = bytes.as_chunks::<8>().0.split_at(HEAD);
        let (of_replica, of_state) = partials.split_at(PARTIAL * GRID.blocks as usize);
        let float = |word: &[u8; 8]| f64::from_ne_bytes(*word);
        let whole = |word: &[u8; 8]| u64::from_ne_bytes(*word);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it counts ranks")]
        let movers = float(&head[1]) as u32;
        let state_agrees = whole(&head[2]) == !whole(&head[3]);
        let mut found = Found { mass: float(&head[0]), movers, state_agrees, ..Found::default() };
        for partial in of_replica.chunks_exact(PARTIAL) {
            found.squared_distance += float(&partial[0]);
            found.squared_norm += float(&partial[1]);
            found.squared_theta += float(&partial[2]);
            found.not_finite += whole(&partial[3]);
            found.checksum = found.checksum.wrapping_add(whole(&partial[4]));
        }
        for partial in of_state.chunks_exact(PARTIAL) {
            found.not_finite += whole(&partial[3]);
            found.state_checksum = found.state_checksum.wrapping_add(whole(&partial[4]));
        }
        Ok(found)
    }

    /// The stream for collectives, which lives as long as this value.
    pub(super) fn collective_stream(&self) -> StreamRef {
        // SAFETY: this value waits for the stream before it destroys it.
        unsafe { self.held.collective.view() }
    }

    /// The values, for collectives.
    pub(super) fn value_views(&self) -> [Buffer; 3] {
        self.held.values.each_ref().map(|memory| {
            // SAFETY: this value waits for the streams before it frees anything, and events keep both streams apart.
            unsafe { memory.view() }
        })
    }

    /// What an outer step goes by: the consensus in force, and the momentum. Empty where there is none.
    pub(super) fn state_views(&self) -> Vec<Buffer> {
        let Held { previous, state, .. } = &*self.held;
        let memories = state.iter().flat_map(|state| previous.iter().chain([&state.velocity]));
        // SAFETY: as for the values.
        memories.map(|memory| unsafe { memory.view() }).collect()
    }

    /// The head, for collectives: what is added up, and what the largest is taken of.
    pub(super) fn head_views(&self) -> [Buffer; 2] {
        let place = |word: usize| {
            let address = self.held.found.address() as usize + word * size_of::<f64>();
            NonNull::new(address as *mut c_void).unwrap_or(NonNull::dangling())
        };
        // SAFETY: the memory begins with the head; the rest is as for the values.
        unsafe {
            [Buffer::from_raw(place(0), SUMS, DataType::F64), Buffer::from_raw(place(SUMS), HEAD - SUMS, DataType::I64)]
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let is_idle = || match self.is_idle() {
            Ok(true) => Ok(Some(())),
            Ok(false) => Ok(None),
            Err(error) => Err(CallError::Device(error.to_string())),
        };
        if wait::until(LETTING_GO, is_idle).is_ok() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.held) };
        }
    }
}

fn count(memory: &Memory) -> Argument<'_> {
    number(memory.count())
}

fn number<'a>(value: usize) -> Argument<'a> {
    Argument::Number(value as u64)
}
