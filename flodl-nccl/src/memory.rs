//! What collectives work on: memory of a device, streams, and the types in them.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::sys::nccl::RawStream;

/// The type of a buffer's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DataType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 16-bit float.
    F16,
    /// bfloat16.
    Bf16,
    /// 32-bit integer.
    I32,
    /// 64-bit integer.
    I64,
    /// 8-bit integer without sign.
    U8,
}

impl DataType {
    /// `ncclDataType_t`.
    pub(crate) const fn code(self) -> c_int {
        match self {
            Self::U8 => 1,
            Self::I32 => 2,
            Self::I64 => 4,
            Self::F16 => 6,
            Self::F32 => 7,
            Self::F64 => 8,
            Self::Bf16 => 9,
        }
    }

    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
        }
    }

    /// A factor of a pre-multiplied sum in this type's own bytes; `None` for integers, which are never scaled.
    pub(crate) fn factor(self, value: f64) -> Option<[u8; 8]> {
        #[expect(clippy::cast_possible_truncation, reason = "the factor is rounded to the type of what it multiplies")]
        let single = value as f32;
        let mut bytes = [0; 8];
        match self {
            Self::F64 => bytes = value.to_ne_bytes(),
            Self::F32 => bytes[..4].copy_from_slice(&single.to_ne_bytes()),
            Self::F16 => bytes[..2].copy_from_slice(&half::f16::from_f64(value).to_ne_bytes()),
            Self::Bf16 => bytes[..2].copy_from_slice(&half::bf16::from_f64(value).to_ne_bytes()),
            Self::I32 | Self::I64 | Self::U8 => return None,
        }
        Some(bytes)
    }
}

/// What an all-reduce does with the ranks' values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their largest.
    Max,
    /// Their smallest.
    Min,
    /// Their sum divided by the number of ranks.
    Average,
    /// The sum of each rank's values times that rank's own factor.
    PreMulSum(f64),
}

/// A range of a device's memory. A view: it owns nothing and may be copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    address: NonNull<c_void>,
    count: usize,
    kind: DataType,
}

impl Buffer {
    /// A view of `count` elements at a device address.
    ///
    /// # Safety
    ///
    /// The memory belongs to the device of every communicator that it is given to, is aligned for its type, and stays
    /// allocated until each collective it was given to is done on its stream, or until the communicator was aborted and
    /// its stream is idle. Nothing else writes it in that time, and nothing reads what the collective writes.
    #[must_use]
    pub const unsafe fn from_raw(address: NonNull<c_void>, count: usize, kind: DataType) -> Self {
        Self { address, count, kind }
    }

    /// Number of elements.
    #[must_use]
    pub const fn count(self) -> usize {
        self.count
    }

    /// Type of the elements.
    #[must_use]
    pub const fn kind(self) -> DataType {
        self.kind
    }

    pub(crate) const fn address(self) -> *mut c_void {
        self.address.as_ptr()
    }
}

/// A stream of the device that is current. A view, like [`Buffer`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamRef(RawStream);

impl StreamRef {
    /// A view of a `cudaStream_t` (the driver's `CUstream`); null is the device's default stream.
    ///
    /// # Safety
    ///
    /// The stream exists until every collective put on it is done, and belongs to the device of the communicators that
    /// it is given to.
    #[must_use]
    pub const unsafe fn from_raw(stream: *mut c_void) -> Self {
        Self(stream)
    }

    pub(crate) const fn raw(self) -> RawStream {
        self.0
    }
}

// SAFETY: a number to this process; what may be done with the memory is the promise of whoever made the view.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Send for StreamRef {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_in_the_bytes_of_the_type() {
        assert_eq!(DataType::F64.factor(0.5), Some(0.5_f64.to_ne_bytes()));
        let of_f32 = DataType::F32.factor(0.5).expect("a float");
        assert_eq!(of_f32[..4], 0.5_f32.to_ne_bytes());
        let of_bf16 = DataType::Bf16.factor(0.5).expect("a float");
        assert_eq!(of_bf16[..2], [0x00, 0x3f]);
        let of_f16 = DataType::F16.factor(0.5).expect("a float");
        assert_eq!(of_f16[..2], [0x00, 0x38]);
        assert_eq!(DataType::I64.factor(0.5), None);
    }
}
