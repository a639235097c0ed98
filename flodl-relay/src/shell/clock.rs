//! The one place where this crate reads a clock.

use async_io::Timer;
use flodl_wire::Time;
use futures_lite::future;
use std::time::{Duration, Instant};

/// The monotonic clock.
#[expect(clippy::disallowed_methods, reason = "shells read the clock and give the time to the cores")]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// What `work` gives, unless that takes longer than `limit`.
pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    let late = async {
        Timer::after(limit).await;
        None
    };
    future::or(async { Some(work.await) }, late).await
}

/// Turns the monotonic clock into the cores' time.
#[derive(Copy, Clone, Debug)]
pub(super) struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts at zero now.
    pub(super) fn start() -> Clock {
        Clock { origin: now() }
    }

    /// The time now.
    pub(super) fn time(&self) -> Time {
        Time::ZERO.plus(now().duration_since(self.origin))
    }

    /// The instant of a time; far in the future where it does not fit.
    pub(super) fn instant(&self, time: Time) -> Instant {
        let far = self.origin + Duration::from_secs(u64::from(u32::MAX));
        self.origin.checked_add(Duration::from_nanos(time.0)).unwrap_or(far)
    }
}
