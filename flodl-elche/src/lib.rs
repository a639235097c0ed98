//! ElChe: a pure scheduler that gives unequal devices unequal work between two model averages.
//!
//! It answers one question: *how long does each member train, on which samples, before the next average?* Members
//! report how long their batches took; it plans the next window so that all of them end it together, makes windows
//! just long enough that averaging stays cheap, and accounts for every sample of an epoch. Each change it makes comes
//! with its reason ([`Change`]).
//!
//! It is **not** a runtime: there is no clock, thread, socket or random source in it. Reports carry durations, and equal
//! calls give equal answers. It knows no message types either; members are [`Slot`]s and sample ranges are [`Span`]s.
//!
//! The nouns to read first:
//!
//! - [`Cadence`]: the interface, and [`Plan`], its answer. [`Elche`] implements it.
//! - [`Pool`]: the samples of one open epoch, from leased to committed; [`Permutation`] is the order they come in.
//! - [`Guard`]: whether replicas drift apart too far for longer windows. One of one's own is a single function.
//! - [`model`] and [`forecast`]: a run in computed time, and what it says of a cluster.
//! - [`StopRule`] and [`Batches`]: the member's side, which ends a window by the plan's budget and cuts leases into
//!   batches.
//!
//! ```
//! use std::time::Duration;
//! use flodl_elche::{Cadence, Demand, Elche, NoGuard, Pool, RoundFeedback, Settings, Slot, WindowSample};
//!
//! let (fast, slow) = (Slot(0), Slot(1));
//! let live = [fast, slow];
//! let mut elche = Elche::new(Settings { batch_size: 10, ..Settings::default() }, Box::new(NoGuard))?;
//! live.iter().for_each(|&slot| elche.join(slot));
//! let mut pool = Pool::new(10_000, 10);
//!
//! // Nothing is known yet: three batches each, one fills and two measure.
//! let demand = |pool: &Pool| Demand { live: &live, remaining: pool.available(), epoch_len: 10_000, callbacks: &[] };
//! let plan = elche.plan(&demand(&pool));
//! assert_eq!(plan.shares.iter().map(|share| share.quota).collect::<Vec<_>>(), [3, 3]);
//! let lease = pool.lease(fast, plan.shares[0].lease);
//! assert_eq!(lease.iter().map(|span| span.len()).sum::<u64>(), 30);
//!
//! // Measured, the fast one gets three times the work and both the same time.
//! let ms = Duration::from_millis;
//! for (slot, batch) in [(fast, 10), (slow, 30)] {
//!     elche.observe(slot, WindowSample { batches: 3, first: ms(batch), rest: ms(2 * batch), data_wait: ms(0) });
//! }
//! elche.round_done(&RoundFeedback { window_wall: ms(100), reduce: ms(10), ..RoundFeedback::default() });
//! let plan = elche.plan(&demand(&pool));
//! assert_eq!(plan.shares.iter().map(|share| share.quota).collect::<Vec<_>>(), [12, 4]);
//! assert!(plan.shares.iter().all(|share| share.budget == Some(ms(120))));
//! # Ok::<(), flodl_elche::SettingsError>(())
//! ```
//!
//! The crate has no cargo features.

mod arbiter;
mod batches;
mod cadence;
mod change;
mod config;
mod cost;
mod device;
mod elche;
mod election;
mod feedback;
pub mod forecast;
mod growth;
mod guard;
mod lead;
mod lr;
mod mode;
pub mod model;
mod passes;
mod permutation;
mod poison;
mod pool;
mod promise;
mod roster;
mod span;
mod spanset;
mod speed;
mod split;
mod state;
mod stop;
mod stream;
mod tail;
mod watcher;
mod window;

pub use batches::{Batches, batches_in};
pub use cadence::{Cadence, Demand, Plan, RoundFeedback, Share, WindowSample};
pub use change::{Aim, AnchorWhy, Change, ElectedWhy, Figure, Hold, Judge, Rejected, Replan, Unrepeatable};
pub use config::{AnchorSettings, Settings, SettingsError};
pub use cost::CostEstimate;
pub use device::DeviceSpec;
pub use elche::Elche;
pub use guard::{
    Grounds, Guard, GuardInput, GuardKind, Judgement, MsfGuard, NoGuard, Norms, TrendGuard, UnknownGuard, Verdict,
};
pub use lr::lr_position;
pub use mode::{Barrier, Mode, Policy, PolicyDefaults, UnknownMode, Windowing};
pub use passes::Passes;
pub use permutation::Permutation;
pub use pool::{Pool, PoolError, Settled};
pub use span::{Slot, Span};
pub use split::largest_remainder;
pub use state::State;
pub use stop::{Stop, StopRule};
pub use stream::{EpochLease, Stream};
pub use watcher::LrPhase;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
