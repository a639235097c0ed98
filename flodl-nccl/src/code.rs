//! What NCCL's functions answer, as values.

use std::ffi::c_int;
use std::fmt;

#[cfg(feature = "library")]
use crate::sys::nccl::{IN_PROGRESS, SUCCESS};

/// Why a call of NCCL failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorCode {
    /// A call of CUDA failed.
    Cuda,
    /// A call of the operating system failed.
    System,
    /// NCCL found itself in a state that should not be, or its memory damaged.
    Internal,
    /// An argument is not valid.
    InvalidArgument,
    /// The call does not fit the state or the other ranks' calls.
    InvalidUsage,
    /// A peer ended, or the network broke.
    Remote,
    /// A collective outlived the library's own deadline (2.30 or newer).
    Timeout,
    /// A code that this crate does not know: the library is newer.
    Unknown(c_int),
}

impl ErrorCode {
    /// The code of `nccl.h`.
    #[must_use]
    pub const fn code(self) -> c_int {
        match self {
            Self::Cuda => 1,
            Self::System => 2,
            Self::Internal => 3,
            Self::InvalidArgument => 4,
            Self::InvalidUsage => 5,
            Self::Remote => 6,
            Self::Timeout => 8,
            Self::Unknown(code) => code,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cuda => "a call of CUDA failed",
            Self::System => "a call of the operating system failed",
            Self::Internal => "NCCL is in a state that should not be",
            Self::InvalidArgument => "an argument is not valid",
            Self::InvalidUsage => "the call does not fit the communicator's state",
            Self::Remote => "a peer ended or the network broke",
            Self::Timeout => "a collective took too long",
            Self::Unknown(code) => return write!(f, "the library answers {code}, which is no code of this version"),
        })
    }
}

/// How a call that may go on in the background stands.
#[cfg(feature = "library")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The call is done: a collective is on its stream, a communicator can be used.
    Ready,
    /// NCCL is at work on it. Until it is done, nothing else may be asked of the communicator but how it stands, and its
    /// abort.
    InProgress,
}

#[cfg(feature = "library")]
impl Progress {
    /// Reads a result; "in progress" is no success, and what is unknown is an error.
    ///
    /// # Errors
    ///
    /// [`ErrorCode`] for everything but `ncclSuccess` and `ncclInProgress`.
    pub(crate) const fn of(code: c_int) -> Result<Self, ErrorCode> {
        match code {
            SUCCESS => Ok(Self::Ready),
            IN_PROGRESS => Ok(Self::InProgress),
            1 => Err(ErrorCode::Cuda),
            2 => Err(ErrorCode::System),
            3 => Err(ErrorCode::Internal),
            4 => Err(ErrorCode::InvalidArgument),
            5 => Err(ErrorCode::InvalidUsage),
            6 => Err(ErrorCode::Remote),
            8 => Err(ErrorCode::Timeout),
            other => Err(ErrorCode::Unknown(other)),
        }
    }
}

#[cfg(all(test, feature = "library"))]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_success_in_progress_or_an_error_that_keeps_it() {
        for code in -3..40 {
            match Progress::of(code) {
                Ok(Progress::Ready) => assert_eq!(code, 0),
                Ok(Progress::InProgress) => assert_eq!(code, 7),
                Err(error) => assert_eq!(error.code(), code, "{error}"),
            }
        }
    }

    #[test]
    fn an_unknown_code_is_named() {
        assert_eq!(Progress::of(9), Err(ErrorCode::Unknown(9)));
        assert_eq!(ErrorCode::Unknown(9).to_string(), "the library answers 9, which is no code of this version");
    }
}
