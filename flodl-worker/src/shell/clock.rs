//! The real time, and steps stretched to an emulated device's.

use super::pace::{Pace, waited_for_core};
use crate::worker::Clock;
use async_channel::Receiver;
use async_io::{Timer, block_on};
use core::convert::Infallible;
use core::time::Duration;
use flodl_wire::Time;
use flodl_wire::message::join::Emulation;
use futures_lite::future;
use std::time::Instant;

/// An instant past every run, for times that no clock reaches.
const FAR: Duration = Duration::from_secs(1 << 30);

/// Time since the process reached its relay.
#[derive(Clone, Debug)]
pub(super) struct RealClock {
    origin: Instant,
    pace: Pace,
    /// [`waited_for_core`] when the step began.
    waited: Duration,
    /// Closes when the connection is gone, so that nobody sleeps on.
    gone: Receiver<Infallible>,
}

impl RealClock {
    pub(super) fn new(origin: Instant, gone: Receiver<Infallible>) -> RealClock {
        RealClock { origin, pace: Pace::default(), waited: Duration::ZERO, gone }
    }

    /// The instant of a time.
    pub(super) fn instant(&self, time: Time) -> Instant {
        instant(self.origin, time)
    }
}

/// The time now, counted from `origin`.
pub(super) fn time_since(origin: Instant) -> Time {
    Time::ZERO.plus(origin.elapsed())
}

/// The instant of a time that is counted from `origin`.
pub(super) fn instant(origin: Instant, time: Time) -> Instant {
    origin + Duration::from_nanos(time.0).min(FAR)
}

impl Clock for RealClock {
    fn now(&mut self) -> Time {
        time_since(self.origin)
    }

    fn step_begins(&mut self, emulation: Option<&Emulation>) -> Time {
        if emulation.is_some() {
            self.waited = waited_for_core();
        }
        self.now()
    }

    fn step_done(&mut self, started: Time, emulation: Option<&Emulation>) -> Time {
        let now = self.now();
        let Some(emulation) = emulation else { return now };
        // An absolute deadline: what this thread does in between does not add up.
        let waited = waited_for_core().saturating_sub(self.waited);
        let until = started.plus(self.pace.step(now.since(started), waited, emulation));
        if until > now {
            let slept = async {
                Timer::at(self.instant(until)).await;
            };
            // Nothing is ever sent there: it only closes.
            let gone = async {
                if let Ok(never) = self.gone.recv().await {
                    match never {}
                }
            };
            block_on(future::or(slept, gone));
        }
        self.now()
    }
}
