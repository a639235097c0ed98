//! Waiting with a deadline: one of the two files of the crate that read a clock, sleep or start threads.

#![expect(clippy::disallowed_methods, reason = "this file is where the crate waits")]

use std::time::{Duration, Instant};

use crate::error::CallError;

/// The first pause between two looks, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

/// Looks again and again until there is a value, with pauses that grow.
///
/// # Errors
///
/// Those of `look`, and [`CallError::Deadline`] past the limit; it looks once more at the limit itself.
pub(crate) fn until<T>(
    limit: Duration,
    mut look: impl FnMut() -> Result<Option<T>, CallError>,
) -> Result<T, CallError> {
    let started = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let is_last = started.elapsed() >= limit;
        if let Some(value) = look()? {
            return Ok(value);
        }
        if is_last {
            return Err(CallError::Deadline { limit });
        }
        std::thread::sleep(pause.min(limit));
        pause = (pause * 2).min(PAUSES.1);
    }
}
