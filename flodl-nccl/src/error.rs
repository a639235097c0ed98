//! Why something asked of a communicator did not happen.

use std::time::Duration;

use thiserror::Error;

use crate::code::ErrorCode;
use crate::features::MissingCapability;

/// How a communicator ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum End {
    /// It was aborted.
    Aborted,
    /// It was destroyed.
    Destroyed,
    /// Its abort or its destruction was called and has not returned.
    Ending,
}

impl End {
    const fn word(self) -> &'static str {
        match self {
            Self::Aborted => "was aborted",
            Self::Destroyed => "was destroyed",
            Self::Ending => "is being ended",
        }
    }
}

/// Why a call did not happen, or failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CallError {
    /// The library answered with an error.
    #[error("{call}: {code}{}", said(.detail))]
    Failed {
        /// The function.
        call: &'static str,
        /// Its answer.
        code: ErrorCode,
        /// What the library says of its last failure; may be empty.
        detail: String,
    },
    /// The library is too old for it.
    #[error(transparent)]
    Missing(#[from] MissingCapability),
    /// The library has no such function.
    #[error("the library has no function {call}: install a whole NCCL")]
    NoFunction {
        /// The function.
        call: &'static str,
    },
    /// What was asked of the communicator before is still in progress.
    #[error("the communicator is at work on an earlier call: poll it until it is ready")]
    InProgress,
    /// Another thread has been inside a call on the communicator for too long.
    #[error("another thread has been inside a call on the communicator for {waited:?}")]
    Busy {
        /// How long this one waited.
        waited: Duration,
    },
    /// It did not become ready in time.
    #[error("the communicator was not ready within {limit:?}")]
    Deadline {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The communicator has ended.
    #[error("the communicator {}", .0.word())]
    Ended(End),
    /// The device that the calls work on refuses.
    #[error("{0}")]
    Device(String),
    /// The arguments contradict each other or the communicator.
    #[error("{0}")]
    Argument(String),
}

fn said(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}
