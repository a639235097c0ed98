//! Devices, memory and streams by the CUDA driver: what averaging needs beside NCCL, and no more.

mod work;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use thiserror::Error;

use crate::memory::{Buffer, DataType, StreamRef};
use crate::sys::Handle;
use crate::sys::cuda::{Address, Code, Cuda as Api, NOT_READY, RawContext, RawDevice, STREAM_NON_BLOCKING, SUCCESS};
use crate::version::Version;

pub(crate) use work::{Argument, Event, Grid, Kernel, Kernels};

/// The driver's library, which comes with every driver.
const LIBRARY: &str = "libcuda.so.1";

/// Why something asked of the CUDA driver did not happen.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CudaError {
    /// There is no driver.
    #[error("no CUDA driver was found: install NVIDIA's driver on this machine ({0})")]
    NoDriver(String),
    /// The library has no such function.
    #[error("the CUDA driver has no function {call}: it is too old")]
    NoFunction {
        /// The function.
        call: &'static str,
    },
    /// A call failed.
    #[error("{call}: {name} ({code})")]
    Failed {
        /// The function.
        call: &'static str,
        /// The result.
        code: i32,
        /// Its name, as the driver has it.
        name: String,
    },
    /// More than there are addresses.
    #[error("{count} values of {kind:?} are more than a device's memory has addresses")]
    TooLarge {
        /// How many.
        count: usize,
        /// Of which type.
        kind: DataType,
    },
    /// A length does not fit the memory.
    #[error("{asked} bytes do not fit a buffer of {there}")]
    Length {
        /// What was asked.
        asked: usize,
        /// What is there.
        there: usize,
    },
}

/// The CUDA driver. Cloning shares it; it is never unloaded.
#[derive(Clone)]
pub struct Cuda(Arc<Api>);

impl Cuda {
    /// Loads and starts the driver.
    ///
    /// # Errors
    ///
    /// [`CudaError::NoDriver`] where there is none, [`CudaError::Failed`] where it finds no device.
    pub fn load() -> Result<Self, CudaError> {
        Self::open(LIBRARY)
    }

    /// Loads and starts the driver at a path.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load).
    pub fn open(path: &str) -> Result<Self, CudaError> {
        let handle = Handle::open(path).map_err(CudaError::NoDriver)?;
        let api = Api::resolve(&handle);
        if let Some(call) = api.lacks(Version::new(0, 0, 0)) {
            return Err(CudaError::NoFunction { call });
        }
        let cuda = Self(Arc::new(api));
        let init = cuda.function(cuda.0.init, "cuInit")?;
        // SAFETY: the call takes a number that must be 0.
        cuda.done("cuInit", unsafe { init(0) })?;
        Ok(cuda)
    }

    /// The version of CUDA that the driver serves.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where it does not say.
    pub fn version(&self) -> Result<String, CudaError> {
        const CALL: &str = "cuDriverGetVersion";
        let function = self.function(self.0.driver_version, CALL)?;
        let mut version: c_int = 0;
        // SAFETY: one integer is written.
        self.done(CALL, unsafe { function(&raw mut version) })?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// The devices that the process may use.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where they cannot be counted or used.
    pub fn devices(&self) -> Result<Vec<Device>, CudaError> {
        const CALL: &str = "cuDeviceGetCount";
        let function = self.function(self.0.device_count, CALL)?;
        let mut count: c_int = 0;
        // SAFETY: one integer is written.
        self.done(CALL, unsafe { function(&raw mut count) })?;
        (0..count).map(|ordinal| self.device(ordinal)).collect()
    }

    fn device(&self, ordinal: c_int) -> Result<Device, CudaError> {
        let (get, retain) = (self.function(self.0.device, "cuDeviceGet")?, self.0.retain_context);
        let retain = self.function(retain, "cuDevicePrimaryCtxRetain")?;
        let mut raw: RawDevice = 0;
        let mut context: RawContext = ptr::null_mut();
        // SAFETY: one handle is written.
        self.done("cuDeviceGet", unsafe { get(&raw mut raw, ordinal) })?;
        // SAFETY: the device was just named by the driver; one handle is written.
        self.done("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, raw) })?;
        Ok(Device { cuda: self.clone(), raw, context })
    }

    fn function<F>(&self, function: Option<F>, call: &'static str) -> Result<F, CudaError> {
        function.ok_or(CudaError::NoFunction { call })
    }

    fn done(&self, call: &'static str, code: Code) -> Result<(), CudaError> {
        if code == SUCCESS { Ok(()) } else { Err(CudaError::Failed { call, code, name: self.name_of(code) }) }
    }

    fn name_of(&self, code: Code) -> String {
        let mut name: *const c_char = ptr::null();
        // SAFETY: one pointer is written, to a string that lives as long as the driver.
        let answer = self.0.error_name.map(|function| unsafe { function(code, &raw mut name) });
        if answer != Some(SUCCESS) || name.is_null() {
            return "an error without a name".to_owned();
        }
        // SAFETY: not null, hence a string that ends in a zero byte.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Cuda(..)")
    }
}

/// A device, with its primary context: the one that libtorch and the CUDA runtime use as well.
#[derive(Debug, Clone)]
pub struct Device {
    cuda: Cuda,
    raw: RawDevice,
    context: RawContext,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Device {}
// SAFETY: as above; nothing here changes a device.
unsafe impl Sync for Device {}

impl Device {
    /// Its name.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver does not say.
    pub fn name(&self) -> Result<String, CudaError> {
        const CALL: &str = "cuDeviceGetName";
        let function = self.cuda.function(self.cuda.0.device_name, CALL)?;
        let mut name = [0_u8; 256];
        // SAFETY: no more than the length that is given is written; the last byte is kept for the end.
        self.cuda.done(CALL, unsafe { function(name.as_mut_ptr().cast(), 255, self.raw) })?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Bytes of memory it has.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver does not say.
    pub fn memory(&self) -> Result<usize, CudaError> {
        const CALL: &str = "cuDeviceTotalMem_v2";
        let function = self.cuda.function(self.cuda.0.device_memory, CALL)?;
        let mut bytes = 0;
        // SAFETY: one number is written.
        self.cuda.done(CALL, unsafe { function(&raw mut bytes, self.raw) })?;
        Ok(bytes)
    }

    /// Makes it the calling thread's current device.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver refuses.
    pub fn make_current(&self) -> Result<(), CudaError> {
        const CALL: &str = "cuCtxSetCurrent";
        let function = self.cuda.function(self.cuda.0.set_context, CALL)?;
        // SAFETY: the context is retained and never released.
        self.cuda.done(CALL, unsafe { function(self.context) })
    }

    /// Allocates memory on it and makes it current.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where there is not enough.
    pub fn alloc(&self, count: usize, kind: DataType) -> Result<Memory, CudaError> {
        const CALL: &str = "cuMemAlloc_v2";
        self.make_current()?;
        let function = self.cuda.function(self.cuda.0.alloc, CALL)?;
        let mut address: Address = 0;
        let bytes = count.checked_mul(kind.bytes()).ok_or(CudaError::TooLarge { count, kind })?.max(1);
        // SAFETY: one address is written.
        self.cuda.done(CALL, unsafe { function(&raw mut address, bytes) })?;
        Ok(Memory { device: self.clone(), address, count, kind })
    }

    /// Makes a stream on it and makes it current.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver refuses.
    pub fn stream(&self) -> Result<Stream, CudaError> {
        const CALL: &str = "cuStreamCreate";
        self.make_current()?;
        let function = self.cuda.function(self.cuda.0.create_stream, CALL)?;
        let mut raw = ptr::null_mut();
        // SAFETY: one handle is written.
        self.cuda.done(CALL, unsafe { function(&raw mut raw, STREAM_NON_BLOCKING) })?;
        Ok(Stream { device: self.clone(), raw })
    }
}

/// Memory of a device, freed when it is dropped.
#[derive(Debug)]
pub struct Memory {
    device: Device,
    address: Address,
    count: usize,
    kind: DataType,
}

impl Memory {
    /// A view of all of it.
    ///
    /// # Safety
    ///
    /// The promise of [`Buffer::from_raw`]: this value outlives every collective that the view is given to.
    #[must_use]
    pub unsafe fn view(&self) -> Buffer {
        let address = NonNull::new(self.address as *mut c_void).unwrap_or(NonNull::dangling());
        // SAFETY: the memory is this long; the rest is the caller's promise.
        unsafe { Buffer::from_raw(address, self.count, self.kind) }
    }

    /// Copies bytes to it, from its beginning on.
    ///
    /// # Errors
    ///
    /// [`CudaError::Length`] where they are too many.
    pub fn upload(&mut self, bytes: &[u8]) -> Result<(), CudaError> {
        const CALL: &str = "cuMemcpyHtoD_v2";
        self.check(bytes.len())?;
        self.device.make_current()?;
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.upload, CALL)?;
        // SAFETY: both ranges are as long as is copied, and the call returns when it has copied.
        cuda.done(CALL, unsafe { function(self.address, bytes.as_ptr().cast(), bytes.len()) })
    }

    /// Copies all of it here. What is on a stream must be waited for before.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] where the driver fails.
    pub fn download(&self) -> Result<Vec<u8>, CudaError> {
        const CALL: &str = "cuMemcpyDtoH_v2";
        self.device.make_current()?;
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.download, CALL)?;
        let mut bytes = vec![0_u8; self.count * self.kind.bytes()];
        // SAFETY: both ranges are as long as is copied, and the call returns when it has copied.
        cuda.done(CALL, unsafe { function(bytes.as_mut_ptr().cast(), self.address, bytes.len()) })?;
        Ok(bytes)
    }

    fn check(&self, asked: usize) -> Result<(), CudaError> {
        let there = self.count * self.kind.bytes();
        if asked <= there { Ok(()) } else { Err(CudaError::Length { asked, there }) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let (Ok(()), Some(free)) = (self.device.make_current(), self.device.cuda.0.free) {
            // SAFETY: allocated by the driver and freed once. An error leaves the memory allocated, which harms nobody.
            unsafe { free(self.address) };
        }
    }
}

/// A stream of a device, destroyed when it is dropped.
#[derive(Debug)]
pub struct Stream {
    device: Device,
    raw: *mut c_void,
}

// SAFETY: the driver's handles may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; the driver locks for itself.
unsafe impl Sync for Stream {}

impl Stream {
    /// A view of it.
    ///
    /// # Safety
    ///
    /// The promise of [`StreamRef::from_raw`]: this value outlives what is put on the view.
    #[must_use]
    pub unsafe fn view(&self) -> StreamRef {
        // SAFETY: the stream exists; the rest is the caller's promise.
        unsafe { StreamRef::from_raw(self.raw) }
    }

    /// Whether everything that was put on it is done.
    ///
    /// # Errors
    ///
    /// [`CudaError::Failed`] with the error of what was on it.
    pub fn is_idle(&self) -> Result<bool, CudaError> {
        const CALL: &str = "cuStreamQuery";
        let cuda = &self.device.cuda;
        let function = cuda.function(cuda.0.query_stream, CALL)?;
        // SAFETY: the stream exists.
        match unsafe { function(self.raw) } {
            NOT_READY => Ok(false),
            code => cuda.done(CALL, code).map(|()| true),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(destroy) = self.device.cuda.0.destroy_stream {
            // SAFETY: made by the driver and destroyed once; the driver lets what is on it run to its end.
            unsafe { destroy(self.raw) };
        }
    }
}
