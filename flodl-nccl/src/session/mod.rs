//! Membership over NCCL as two state machines without input and output: one at each rank, one at the coordinator.
//!
//! A communicator cannot lose a member: when one dies, every survivor's collective hangs. So survivors abort (or revoke)
//! theirs, the coordinator lets one of them make a new id, all form a new communicator, restore what they had before the
//! round, and the round is issued again. [`Session`] is a rank's part of that, [`Rendezvous`] the coordinator's;
//! `Runner` carries out what a session decides, and a `Watchdog` sees to it that its calls come back.
//!
//! Time is an argument, and every wait has a deadline that follows from one [`Patience`].

mod rank;
mod rendezvous;
#[cfg(feature = "library")]
mod runner;
#[cfg(feature = "library")]
mod watchdog;

use std::fmt;
use std::time::Duration;

pub use rank::{Effect, Form, Input, Report, Session, Stopped, Why};
pub use rendezvous::{Order, Rendezvous, Said, Stop, Waits};
#[cfg(feature = "library")]
pub use runner::{Outcome, Replica, Runner, Tools};
#[cfg(feature = "library")]
pub use watchdog::{Guard, Watchdog};

#[cfg(feature = "library")]
pub use crate::sys::end_process;

/// The status of a process that ends because the library does not come back: it is to be replaced, and the run goes on
/// without it until then. (`EX_TEMPFAIL` of `sysexits.h`.)
pub const STUCK_EXIT: u8 = 75;

/// A point in time, counted from wherever the caller's clock began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// A point this long after the clock's beginning.
    #[must_use]
    pub const fn at(since_start: Duration) -> Self {
        Self(since_start)
    }

    /// A point later than this one.
    #[must_use]
    pub const fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(wait))
    }

    /// The time since an earlier point; zero where it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// One life of a rank. A rank that died and came back is another member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The rank in the run.
    pub rank: u32,
    /// Which of its lives.
    pub incarnation: u32,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} (life {})", self.rank, self.incarnation)
    }
}

/// Number of a communicator of the run: each attempt to form one has its own, and they only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation(pub u64);

/// Number of a round. One that is issued again keeps it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u64);

/// The run's patience, from which every deadline here is derived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience(pub Duration);

impl Patience {
    /// How long an id, or the forming of a communicator, may take.
    #[must_use]
    pub fn forming(self) -> Duration {
        self.0 / 2
    }

    /// How long an abort, a revocation or a close may take.
    #[must_use]
    pub const fn ending(self) -> Duration {
        self.0
    }

    /// How long a collective may take, given the longest that there was.
    #[must_use]
    pub fn ceiling(self, longest: Duration) -> Duration {
        self.0.saturating_mul(30).max(longest.saturating_mul(10))
    }
}
