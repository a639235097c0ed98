//! Time as the sans-IO cores see it: an argument, in nanoseconds since the coordinator started.

use core::time::Duration;
use serde::{Deserialize, Serialize};

/// A point in time: nanoseconds since an origin that the process chose (the coordinator: its start).
///
/// Times of two processes are never compared; durations are what crosses the wire.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);

    /// The time `after` later; the largest time where that overflows.
    #[must_use]
    pub fn plus(self, after: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was; zero where it lies in the future.
    #[must_use]
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Seconds since the origin, for people.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        Duration::from_nanos(self.0).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_at_both_ends() {
        assert_eq!(Time(5).plus(Duration::from_nanos(7)), Time(12));
        assert_eq!(Time(5).plus(Duration::MAX), Time(u64::MAX));
        assert_eq!(Time(5).since(Time(2)), Duration::from_nanos(3));
        assert_eq!(Time(2).since(Time(5)), Duration::ZERO);
    }
}
