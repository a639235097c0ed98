//! The controller's clock: nanoseconds since it started.

use core::time::Duration;
use flodl_wire::Time;
use std::time::Instant;

/// Turns the machine's monotonic clock into the cores' [`Time`]. Copies share their origin.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now, at [`Time::ZERO`].
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a clock that starts is not a default value")]
    pub fn new() -> Clock {
        Clock { origin: Instant::now() }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        Time::ZERO.plus(self.origin.elapsed())
    }

    /// When `time` is by the machine's clock; `None` where that lies beyond it.
    pub(crate) fn instant(&self, time: Time) -> Option<Instant> {
        self.origin.checked_add(Duration::from_nanos(time.0))
    }
}
