//! The CUDA driver's C interface, as far as buffers and streams for NCCL need it (`cuda.h`).

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::functions;
use crate::version::Version;

/// `CUresult`: an integer, as every result here.
pub(crate) type Code = c_int;
/// `CUdevice`.
pub(crate) type RawDevice = c_int;
/// `CUcontext`.
pub(crate) type RawContext = *mut c_void;
/// `CUdeviceptr`.
pub(crate) type Address = u64;
/// `CUstream`.
pub(crate) type RawStream = *mut c_void;
/// `CUevent`.
pub(crate) type RawEvent = *mut c_void;
/// `CUmodule`.
pub(crate) type RawModule = *mut c_void;
/// `CUfunction`.
pub(crate) type RawFunction = *mut c_void;

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: Code = 0;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: Code = 600;
/// `CU_STREAM_NON_BLOCKING`: no waiting for the stream that nobody named.
pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING`: an event that is only waited for.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;

const ALWAYS: Version = Version::new(0, 0, 0);

functions! {
    /// The functions of the driver.
    Cuda {
        init = c"cuInit", since ALWAYS, fn(c_uint) -> Code;
        driver_version = c"cuDriverGetVersion", since ALWAYS, fn(*mut c_int) -> Code;
        error_name = c"cuGetErrorName", since ALWAYS, fn(Code, *mut *const c_char) -> Code;
        device_count = c"cuDeviceGetCount", since ALWAYS, fn(*mut c_int) -> Code;
        device = c"cuDeviceGet", since ALWAYS, fn(*mut RawDevice, c_int) -> Code;
        device_name = c"cuDeviceGetName", since ALWAYS, fn(*mut c_char, c_int, RawDevice) -> Code;
        device_memory = c"cuDeviceTotalMem_v2", since ALWAYS, fn(*mut usize, RawDevice) -> Code;
        retain_context = c"cuDevicePrimaryCtxRetain", since ALWAYS, fn(*mut RawContext, RawDevice) -> Code;
        set_context = c"cuCtxSetCurrent", since ALWAYS, fn(RawContext) -> Code;
        alloc = c"cuMemAlloc_v2", since ALWAYS, fn(*mut Address, usize) -> Code;
        free = c"cuMemFree_v2", since ALWAYS, fn(Address) -> Code;
        upload = c"cuMemcpyHtoD_v2", since ALWAYS, fn(Address, *const c_void, usize) -> Code;
        download = c"cuMemcpyDtoH_v2", since ALWAYS, fn(*mut c_void, Address, usize) -> Code;
        copy = c"cuMemcpyDtoDAsync_v2", since ALWAYS, fn(Address, Address, usize, RawStream) -> Code;
        clear = c"cuMemsetD8Async", since ALWAYS, fn(Address, u8, usize, RawStream) -> Code;
        create_event = c"cuEventCreate", since ALWAYS, fn(*mut RawEvent, c_uint) -> Code;
        record_event = c"cuEventRecord", since ALWAYS, fn(RawEvent, RawStream) -> Code;
        wait_for_event = c"cuStreamWaitEvent", since ALWAYS, fn(RawStream, RawEvent, c_uint) -> Code;
        destroy_event = c"cuEventDestroy_v2", since ALWAYS, fn(RawEvent) -> Code;
        load_module = c"cuModuleLoadData", since ALWAYS, fn(*mut RawModule, *const c_void) -> Code;
        function = c"cuModuleGetFunction", since ALWAYS, fn(*mut RawFunction, RawModule, *const c_char) -> Code;
        launch = c"cuLaunchKernel", since ALWAYS,
            fn(
                RawFunction,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                c_uint,
                RawStream,
                *mut *mut c_void,
                *mut *mut c_void,
            ) -> Code;
        create_stream = c"cuStreamCreate", since ALWAYS, fn(*mut RawStream, c_uint) -> Code;
        query_stream = c"cuStreamQuery", since ALWAYS, fn(RawStream) -> Code;
        destroy_stream = c"cuStreamDestroy_v2", since ALWAYS, fn(RawStream) -> Code;
    }
}
