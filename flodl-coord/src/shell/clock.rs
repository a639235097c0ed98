//! The controller's clock: nanoseconds since the run's first one started, as far as a later one knows.

use flodl_wire::Time;
use std::time::Instant;

/// Turns the machine's monotonic clock into the cores' [`Time`]. Copies share their origin.
#[derive(Copy, Clone, Debug)]
pub struct Clock {
    origin: Instant,
    /// What it shows at its origin.
    start: Time,
}

impl Clock {
    /// A clock that starts now, at [`Time::ZERO`].
    #[must_use]
    #[expect(clippy::new_without_default, reason = "a clock that starts is not a default value")]
    pub fn new() -> Clock {
        Clock::from(Time::ZERO)
    }

    /// A clock that goes on now from where another one was.
    #[must_use]
    pub fn from(start: Time) -> Clock {
        Clock { origin: Instant::now(), start }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Time {
        self.start.plus(self.origin.elapsed())
    }

    /// When `time` is by the machine's clock; `None` where that lies beyond it.
    pub(crate) fn instant(&self, time: Time) -> Option<Instant> {
        self.origin.checked_add(time.since(self.start))
    }
}
