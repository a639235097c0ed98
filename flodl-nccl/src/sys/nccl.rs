//! NCCL's C interface, as far as averaging needs it (`nccl.h`).

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::functions;
use crate::version::Version;

/// `ncclComm_t`.
pub(crate) type RawComm = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(crate) type RawStream = *mut c_void;
/// `ncclResult_t`, `ncclDataType_t` and `ncclRedOp_t` are C enums: integers.
pub(crate) type Code = c_int;

/// `NCCL_UNIQUE_ID_BYTES`.
pub(crate) const ID_BYTES: usize = 128;

/// `ncclUniqueId`, which travels by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct RawUniqueId(pub(crate) [u8; ID_BYTES]);

/// `ncclSuccess`.
pub(crate) const SUCCESS: Code = 0;
/// `ncclInProgress`.
pub(crate) const IN_PROGRESS: Code = 7;
/// `ncclScalarHostImmediate`: the scalar is read before the call returns.
pub(crate) const SCALAR_HOST_IMMEDIATE: c_int = 1;
/// `NCCL_SPLIT_NOCOLOR`.
pub(crate) const NO_COLOR: c_int = -1;
/// `NCCL_SHRINK_ABORT`.
pub(crate) const SHRINK_ABORT: c_int = 1;

/// `ncclConfig_t` as NCCL 2.14 had it.
///
/// Newer libraries accept the older form by its size and version, and take their defaults for what it lacks; so one form
/// serves every version from 2.14 on.
#[repr(C)]
pub(crate) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

impl Config {
    /// What the initializer of 2.14's header writes, with `blocking = 0`.
    pub(crate) const NON_BLOCKING: Self =
        Self { size: size_of::<Self>(), magic: 0xcafe_beef, version: 21_403, blocking: 0 };
}

const OLDEST: Version = Version::new(2, 0, 0);
const NON_BLOCKING: Version = Version::new(2, 14, 3);

functions! {
    /// The functions of NCCL. What a library is too old to have is missing here; what its version must have is checked
    /// when it is loaded.
    Nccl {
        get_version = c"ncclGetVersion", since OLDEST, fn(*mut c_int) -> Code;
        get_unique_id = c"ncclGetUniqueId", since OLDEST, fn(*mut RawUniqueId) -> Code;
        get_error_string = c"ncclGetErrorString", since OLDEST, fn(Code) -> *const c_char;
        get_last_error = c"ncclGetLastError", since NON_BLOCKING, fn(RawComm) -> *const c_char;
        init_rank_config = c"ncclCommInitRankConfig", since NON_BLOCKING,
            fn(*mut RawComm, c_int, RawUniqueId, c_int, *mut Config) -> Code;
        finalize = c"ncclCommFinalize", since NON_BLOCKING, fn(RawComm) -> Code;
        destroy = c"ncclCommDestroy", since OLDEST, fn(RawComm) -> Code;
        abort = c"ncclCommAbort", since NON_BLOCKING, fn(RawComm) -> Code;
        get_async_error = c"ncclCommGetAsyncError", since NON_BLOCKING, fn(RawComm, *mut Code) -> Code;
        all_reduce = c"ncclAllReduce", since OLDEST,
            fn(*const c_void, *mut c_void, usize, Code, Code, RawComm, RawStream) -> Code;
        broadcast = c"ncclBroadcast", since NON_BLOCKING,
            fn(*const c_void, *mut c_void, usize, Code, c_int, RawComm, RawStream) -> Code;
        create_pre_mul_sum = c"ncclRedOpCreatePreMulSum", since NON_BLOCKING,
            fn(*mut Code, *mut c_void, Code, c_int, RawComm) -> Code;
        destroy_red_op = c"ncclRedOpDestroy", since NON_BLOCKING, fn(Code, RawComm) -> Code;
        group_start = c"ncclGroupStart", since OLDEST, fn() -> Code;
        group_end = c"ncclGroupEnd", since OLDEST, fn() -> Code;
        split = c"ncclCommSplit", since Version::new(2, 18, 3),
            fn(RawComm, c_int, c_int, *mut RawComm, *mut Config) -> Code;
        shrink = c"ncclCommShrink", since Version::new(2, 27, 3),
            fn(RawComm, *mut c_int, c_int, *mut RawComm, *mut Config, c_int) -> Code;
        grow = c"ncclCommGrow", since Version::new(2, 29, 2),
            fn(RawComm, c_int, *const RawUniqueId, c_int, *mut RawComm, *mut Config) -> Code;
        grow_id = c"ncclCommGetUniqueId", since Version::new(2, 29, 2), fn(RawComm, *mut RawUniqueId) -> Code;
        revoke = c"ncclCommRevoke", since Version::new(2, 28, 7), fn(RawComm, c_int) -> Code;
    }
}
