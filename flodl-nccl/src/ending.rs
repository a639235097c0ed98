//! Ending a communicator from any thread, once, with a deadline.

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::code::ErrorCode;
use crate::error::{CallError, End};
use crate::library::Library;
use crate::live::Live;
use crate::slot::Slot;

/// Which of the two calls that free a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Abort,
    Destroy,
}

impl Way {
    const fn end(self) -> End {
        match self {
            Self::Abort => End::Aborted,
            Self::Destroy => End::Destroyed,
        }
    }
}

/// Why a communicator was not ended, or not known to be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EndError {
    /// A thread is inside a call on it and does not come out. It cannot be freed under that thread.
    #[error("a call on the communicator has not returned within {limit:?}: end the process")]
    CallHangs {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The library was told to end it and has not come back.
    #[error("the library has not ended the communicator within {limit:?}: end the process")]
    LibraryHangs {
        /// How long it was waited for.
        limit: Duration,
    },
    /// The library came back with an error. The communicator is not used again.
    #[error("ending the communicator: {0}")]
    Failed(ErrorCode),
    /// No thread can be started to do it on.
    #[error("no thread can be started to end the communicator on: {0}")]
    NoThread(String),
}

impl EndError {
    /// Whether something is stuck in the library for good, so that only the end of the process helps.
    #[must_use]
    pub const fn is_hopeless(&self) -> bool {
        matches!(self, Self::CallHangs { .. } | Self::LibraryHangs { .. } | Self::NoThread(_))
    }
}

/// What a communicator, its abort handles and its ending thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) library: Library,
    pub(crate) slot: Slot,
}

/// Ends a communicator, or waits for whoever is at it. Says how it ended.
pub(crate) fn end(shared: &Arc<Shared>, way: Way, limit: Duration) -> Result<End, EndError> {
    let live = match shared.slot.take_to_end(limit) {
        Ok(live) => live,
        Err(CallError::Ended(End::Ending)) => {
            return shared.slot.wait_for_end(limit).ok_or(EndError::LibraryHangs { limit });
        }
        Err(CallError::Ended(end)) => return Ok(end),
        Err(_) => return Err(EndError::CallHangs { limit }),
    };
    // The thread is told what to end only once it runs, so that a communicator whose thread cannot start is not lost.
    let (give, take) = std::sync::mpsc::sync_channel::<Live>(1);
    let (answer, answered) = std::sync::mpsc::sync_channel(1);
    let own = Arc::clone(shared);
    let started = std::thread::Builder::new().name("nccl-end".to_owned()).spawn(move || {
        let Ok(live) = take.recv() else { return };
        let result = match way {
            Way::Abort => live.abort(&own.library),
            Way::Destroy => live.destroy(&own.library),
        };
        own.slot.ended(way.end());
        // Nobody listens any more where the limit has passed.
        drop(answer.send(result));
    });
    if let Err(error) = started {
        shared.slot.put_back(live);
        return Err(EndError::NoThread(error.to_string()));
    }
    if let Err(unsent) = give.send(live) {
        shared.slot.put_back(unsent.0);
        return Err(EndError::NoThread("it ended at once".to_owned()));
    }
    match answered.recv_timeout(limit) {
        Ok(Ok(_)) => Ok(way.end()),
        Ok(Err(CallError::Failed { code, .. })) => Err(EndError::Failed(code)),
        Ok(Err(_)) => Err(EndError::Failed(ErrorCode::Internal)),
        Err(_) => Err(EndError::LibraryHangs { limit }),
    }
}

/// Aborts a communicator that nobody will hear of: on a thread of its own, which gives up past the limit.
pub(crate) fn end_in_background(shared: &Arc<Shared>, limit: Duration) {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("nccl-drop".to_owned());
    // Without a thread, or past the limit, the communicator stays as it is until the process ends.
    drop(thread.spawn(move || drop(end(&shared, Way::Abort, limit))));
}
