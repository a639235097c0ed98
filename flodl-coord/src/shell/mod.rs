//! The coordinator's shell: the core driven over smol, and the door that relays come in by.
//!
//! One task owns the core ([`Driver`]). An [`Acceptor`] takes connections in behind a [`Gate`]; each authenticated control
//! connection has a reader task, which turns bytes into events, and a writer task behind a bounded queue. Data connections
//! ([`DataLink`]) go to the root. Nothing here decides anything about the run.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the shell is where clocks and tasks belong")]

mod acceptor;
mod clock;
mod driver;
pub(crate) mod edge;
mod gate;
mod halfopen;
pub mod limits;
mod link;
mod quiet;

pub use acceptor::{Acceptor, DataLink, RejectedLink};
pub use clock::Clock;
pub use driver::{Driver, Event, Opened, Ports, Reducer, Saves, ToRoot, settle};
pub use gate::Gate;
