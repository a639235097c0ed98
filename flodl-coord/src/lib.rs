//! The flodl coordinator: who trains which samples for how long, when to average, who is dead.
//!
//! The library is one sans-IO state machine, [`Coordinator`]: [`Input`]s and the time go in, [`Output`]s come out, and
//! after each input all outputs are taken. It forms the run out of the ranks that agree with each other, plans windows with
//! the scheduler of `flodl-elche`, opens a round when its gate fires and commits it when the fold and every living rank say
//! so, gives a dead rank's samples back, and sees the run to its confirmed end. Whatever it decides, it records with the
//! reason.
//!
//! It is **not** the thing that averages (that is `flodl-relay`'s root) nor the thing that trains (`flodl-worker`): it knows
//! both as peers on the wire. It opens no socket and reads no clock; that is the shell's part.
//!
//! The nouns to read first:
//!
//! - [`Coordinator`] with [`Input`] and [`Output`]: the machine and its whole interface.
//! - [`Config`]: what a run is told, and [`Deadlines`], which all derive from its patience.
//! - [`Fate`]: how a rank's life ended.
//!
//! ```
//! use flodl_coord::{Config, Coordinator, Duties, Input, Membership, Output, Scheduling, Slowing};
//! use flodl_wire::message::Control;
//! use flodl_wire::{HostId, Rank, RunId, SessionId, Time};
//! use std::time::Duration;
//!
//! let config = Config {
//!     run_id: RunId([7; 16]),
//!     world_size: 2,
//!     min_ranks: 1,
//!     mode: flodl_elche::Mode::CpuCadence,
//!     epochs: Some(3),
//!     epoch_splits: 1,
//!     batch_size: None, // what the trainers ask for
//!     seed: 0,
//!     patience: Duration::from_secs(10),
//!     slow: Slowing::default(),
//!     membership: Membership::default(),
//!     scheduling: Scheduling::default(),
//!     duties: Duties::default(),
//! };
//! let mut coordinator = Coordinator::new(config, Time::ZERO)?;
//!
//! // A host comes and brings two ranks: it is told which ones it may start.
//! let host = HostId::from_name("box-1").expect("a host name");
//! coordinator.handle(Input::HostConnected { session: SessionId(1), host, rank_count: 2 }, Time(1_000));
//! let outputs: Vec<Output> = std::iter::from_fn(|| coordinator.poll()).collect();
//! let admitted = outputs.iter().find_map(|output| match output {
//!     Output::ToHost { control: Control::Admit(admit), .. } => Some(admit.ids.clone()),
//!     _ => None,
//! });
//! assert_eq!(admitted.map(|ids| ids.iter().map(|id| id.0).collect()), Some(vec![Rank(0), Rank(1)]));
//!
//! // Nothing else happens until its ranks are ready, or until a deadline is over.
//! assert!(coordinator.next_deadline().is_some());
//! # Ok::<(), flodl_coord::ConfigError>(())
//! ```
//!
//! # Features
//!
//! - none: the state machine.
//! - `shell`: the state machine over real connections (smol): acceptor, sessions, timers.
//! - `cli`: the program `flodl`, which joins coordinator, relay, root, monitor and checkpoints; see
//!   `flodl_coord::cli::main` for a controller of your own.
//! - `sim`: the simulator `flodl_coord::sim` and its program `flodl-sim`; see `docs/SIMULATOR.md`.

mod adopt;
mod agenda;
mod agreement;
mod averaging;
mod boundary;
mod chronicle;
mod closing;
mod collecting;
mod collective;
mod communicators;
mod config;
mod context;
mod coordinator;
mod duties;
mod fate;
mod finishing;
mod flap;
mod formation;
mod gate;
mod hearing;
mod id;
mod input;
mod joining;
mod leaving;
mod ledger;
mod liveness;
mod max_failure;
mod members;
mod metrics;
mod output;
mod overlap;
mod planning;
mod reason;
mod reattach;
mod restart;
mod roles;
mod roll;
mod round;
mod running;
mod saving;
mod stalled;
mod standstill;
mod tally;
mod waits;
mod watch;

pub mod journal;

#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "shell")]
pub mod shell;
#[cfg(feature = "sim")]
pub mod sim;

pub use config::{Config, ConfigError, Deadlines, Membership, PATIENCE_MAX, PATIENCE_MIN, Scheduling, Slowing};
pub use coordinator::Coordinator;
pub use duties::{Duties, Duty, Elect, ElectError};
pub use fate::{Breach, Fate};
pub use input::Input;
pub use max_failure::{MaxFailure, MaxFailureError, TooManyLost};
pub use output::{Output, SaveRequest};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
