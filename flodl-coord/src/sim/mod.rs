//! The simulator: the production cores of a whole system, in virtual time, with faults.
//!
//! Coordinator, scheduler, root, relays, folds and workers are the real ones, and so are the messages between them; clock,
//! wires, processes, devices and the disk are not. A seed draws a cluster, its work and its faults ([`Request`]); the run
//! is held against rules that it keeps the books for itself ([`Rule`]). Equal seeds give equal runs.
//!
//! Read first: `world` (how it is put together), `fabric` (the clock and what all share), then `ledger` and `auditor` (what is checked), `faults`
//! (what goes wrong) and `mutant` (how it is known that the checks see anything). `docs/SIMULATOR.md` tells how to use it and to
//! add to it.

mod auditor;
pub mod campaign;
pub mod ceiling;
pub mod churn;
mod class;
pub mod cli;
mod collectives;
mod controller;
mod disk;
mod fabric;
mod faults;
mod gathering;
mod host;
mod ledger;
mod model;
mod mutant;
mod net;
mod options;
mod rng;
mod rounding;
mod sealed;
mod seat;
mod succession;
pub mod survey;
mod tamper;
mod undone;
mod violation;
mod world;

pub use class::Class;
pub use mutant::Mutant;
pub use options::Request;
pub use violation::{Rule, Violation};
