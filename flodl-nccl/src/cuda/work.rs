//! What is put on streams: copies, kernels, and events that one stream waits for and another gives.

use std::ffi::{CStr, c_void};
use std::ptr;

use super::{CudaError, Device, Memory, Stream};
use crate::sys::cuda::{Address, EVENT_DISABLE_TIMING, RawEvent, RawFunction, RawModule};

/// A point on one stream that others can wait for.
#[derive(Debug)]
pub(crate) struct Event {
    device: Device,
    raw: RawEvent,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Event {}

impl Device {
    /// Makes an event on it and makes it current.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver refuses.
    pub(crate) fn event(&self) -> Result<Event, CudaError> {
        const CALL: &str = "cuEventCreate";
        self.make_current()?;
        let function = self.cuda.function(self.cuda.0.create_event, CALL)?;
        let mut raw = ptr::null_mut();
        // SAFETY: one handle is written.
        self.cuda.done(CALL, unsafe { function(&raw mut raw, EVENT_DISABLE_TIMING) })?;
        Ok(Event { device: self.clone(), raw })
    }

    /// Loads kernels for it and makes it current. They are never unloaded.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver cannot use them on this device.
    pub(crate) fn load(&self, ptx: &CStr) -> Result<Kernels, CudaError> {
        const CALL: &str = "cuModuleLoadData";
        self.make_current()?;
        let function = self.cuda.function(self.cuda.0.load_module, CALL)?;
        let mut raw = ptr::null_mut();
        // SAFETY: one handle is written; the text ends in a zero byte, as the driver wants it.
        self.cuda.done(CALL, unsafe { function(&raw mut raw, ptx.as_ptr().cast()) })?;
        Ok(Kernels { device: self.clone(), raw })
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(destroy) = self.device.cuda.0.destroy_event {
            // SAFETY: made by the driver and destroyed once; the driver keeps it for what waits for it.
            unsafe { destroy(self.raw) };
        }
    }
}

impl Stream {
    /// Puts the event behind what is on the stream.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver refuses.
    pub(crate) fn record(&self, event: &Event) -> Result<(), CudaError> {
        const CALL: &str = "cuEventRecord";
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.record_event, CALL)?;
        // SAFETY: both exist, and both are of this device.
        cuda.done(CALL, unsafe { function(event.raw, self.raw) })
    }

    /// Lets what comes on the stream wait for the event as it was put on its own stream last.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver refuses.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<(), CudaError> {
        const CALL: &str = "cuStreamWaitEvent";
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.wait_for_event, CALL)?;
        // SAFETY: both exist, and both are of this device.
        cuda.done(CALL, unsafe { function(self.raw, event.raw, 0) })
    }
}

impl Memory {
    /// Puts a copy of as much of another memory as fits on a stream.
    ///
    /// # Safety
    ///
    /// Both live until the stream has done it, and nothing else touches them in that time.
    pub(crate) unsafe fn copy_from(&self, from: &Self, stream: &Stream) -> Result<(), CudaError> {
        const CALL: &str = "cuMemcpyDtoDAsync_v2";
        let bytes = self.bytes().min(from.bytes());
        if bytes == 0 {
            return Ok(());
        }
        self.device.make_current()?;
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.copy, CALL)?;
        // SAFETY: both are at least as long as is copied; the rest is the caller's promise.
        cuda.done(CALL, unsafe { function(self.address, from.address, bytes, stream.raw) })
    }

    /// Puts its becoming zeros on a stream.
    ///
    /// # Safety
    ///
    /// As for [`copy_from`](Self::copy_from).
    pub(crate) unsafe fn clear(&self, stream: &Stream) -> Result<(), CudaError> {
        const CALL: &str = "cuMemsetD8Async";
        if self.bytes() == 0 {
            return Ok(());
        }
        self.device.make_current()?;
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.clear, CALL)?;
        // SAFETY: it is this long; the rest is the caller's promise.
        cuda.done(CALL, unsafe { function(self.address, 0, self.bytes(), stream.raw) })
    }

    /// Number of its elements.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    fn bytes(&self) -> usize {
        self.count * self.kind.bytes()
    }
}

/// Kernels that a device has loaded.
#[derive(Debug)]
pub(crate) struct Kernels {
    device: Device,
    raw: RawModule,
}

impl Kernels {
    /// The kernel of a name.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where there is none.
    pub(crate) fn kernel(&self, name: &CStr) -> Result<Kernel, CudaError> {
        const CALL: &str = "cuModuleGetFunction";
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.function, CALL)?;
        let mut raw = ptr::null_mut();
        // SAFETY: one handle is written; the name ends in a zero byte.
        cuda.done(CALL, unsafe { function(&raw mut raw, self.raw, name.as_ptr()) })?;
        Ok(Kernel { device: self.device.clone(), raw })
    }
}

/// A program of a device.
#[derive(Debug)]
pub(crate) struct Kernel {
    device: Device,
    raw: RawFunction,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Kernel {}

/// What a kernel is given.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Argument<'a> {
    /// The beginning of a memory.
    Memory(&'a Memory),
    /// A place in a memory, so many bytes from its beginning.
    At(&'a Memory, usize),
    /// No memory.
    Nothing,
    /// A number of 64 bits.
    Number(u64),
    /// A float of 32 bits.
    Float(f32),
}

/// How many blocks and threads work on values, however many there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

impl Kernel {
    /// Puts the kernel on a stream.
    ///
    /// # Safety
    ///
    /// The arguments are those that the kernel declares, memories as long as it takes them to be. They live until the stream
    /// has done it, and nothing else touches them in that time.
    pub(crate) unsafe fn launch(
        &self,
        grid: Grid,
        stream: &Stream,
        arguments: &[Argument<'_>],
    ) -> Result<(), CudaError> {
        const CALL: &str = "cuLaunchKernel";
        self.device.make_current()?;
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.launch, CALL)?;
        // Each in the first bytes of a number of its own, which is aligned for all of them.
        let mut values: Vec<u64> = arguments.iter().map(|argument| u64::from_ne_bytes(argument.bytes())).collect();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        let Grid { blocks, threads } = grid;
        // SAFETY: there is a place for every argument, and the driver reads them before the call returns; the rest is the
        // caller's promise.
        let code = unsafe {
            function(self.raw, blocks, 1, 1, threads, 1, 1, 0, stream.raw, places.as_mut_ptr(), ptr::null_mut())
        };
        cuda.done(CALL, code)
    }
}

impl Argument<'_> {
    /// Its value, from the first byte on.
    fn bytes(&self) -> [u8; 8] {
        let mut bytes = [0; 8];
        match self {
            Self::Memory(memory) => bytes = memory.address.to_ne_bytes(),
            Self::At(memory, offset) => bytes = (memory.address + *offset as u64).to_ne_bytes(),
            Self::Nothing => {}
            Self::Number(number) => bytes = number.to_ne_bytes(),
            Self::Float(value) => bytes[..4].copy_from_slice(&value.to_ne_bytes()),
        }
        bytes
    }
}
