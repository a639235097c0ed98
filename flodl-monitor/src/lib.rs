//! What a flodl training run shows of itself: a [`Store`] of its records, a [`Timeline`] of them on disk, and the
//! [`Summary`] of what the run came to.
//!
//! The coordinator makes the [`Record`]s (they are declared in `flodl_wire::message::record`); this crate only looks.
//! It decides nothing, prints nothing, keeps no clock (times are those of the records) and never ends a run: a disk
//! that fails is one alert. It draws no page and samples no device.
//!
//! Read first: [`Store`] (what is known, in bounded memory), [`Timeline`] (JSON lines that a crash cannot spoil),
//! [`Summary`] (JSON for programs, text for people). [`Progress`] (where the run is, as a line or as a
//! terminal's bar) and [`describe()`] (a sentence for each event that matters) are the terminal's words.
//!
//! ```
//! use flodl_monitor::{Progress, Store, Summary, describe};
//! use flodl_wire::message::record::{Body, Event, EventKind, Record, Reason};
//! use flodl_wire::{Epoch, Incarnation, Rank, Round, Time, Version, WindowId};
//!
//! let second = |at: u64, kind: EventKind, reason: Option<Reason>| Record {
//!     at: Time(at * 1_000_000_000),
//!     body: Body::Event(Box::new(Event { kind, reason })),
//! };
//! let quotas = vec![(Rank(0), 3), (Rank(1), 1)];
//! let records = [
//!     second(1, EventKind::Formed { ranks: vec![Rank(0), Rank(1)] }, None),
//!     second(2, EventKind::WindowPlanned { window: WindowId(1), epoch: Epoch(0), anchor: 1, quotas }, None),
//!     second(3, EventKind::Death { rank: Rank(1), incarnation: Incarnation(1) },
//!            Some(Reason::new("process-exited", "killed by signal 9"))),
//!     second(4, EventKind::RoundCommitted { round: Round(1), version: Version(1), committed: vec![(Rank(0), 192)],
//!            repeats: 0, partial: vec![], digests_equal: true }, None),
//! ];
//!
//! let mut store = Store::new();
//! records.iter().for_each(|record| store.take(record));
//!
//! let Body::Event(death) = &records[2].body else { unreachable!() };
//! assert_eq!(describe(death).as_deref(), Some("rank 1 died: killed by signal 9"));
//! let progress = Progress::of(&store, records[3].at);
//! assert_eq!(progress.line(), "epoch 1, 192 samples, 1 of 2 ranks, eta -");
//! assert_eq!(progress.bar(60), "epoch 1  - samples/s  1 of 2 ranks  eta -");
//!
//! let summary = Summary::of(&store);
//! assert_eq!((summary.samples_committed, summary.throughput), (192, Some(96.0)));
//! assert_eq!((summary.degraded, summary.accuracy), (true, None));
//! assert!(summary.to_string().contains("rank 1: killed by signal 9"));
//! ```
//!
//! The crate has no features.

mod describe;
pub mod figures;
pub mod median;
pub mod progress;
pub mod rank;
mod recent;
mod report;
#[cfg(test)]
mod samples;
pub mod store;
pub mod summary;
#[cfg(test)]
mod tests;
mod text;
pub mod timeline;

pub use describe::describe;
pub use figures::Figures;
pub use flodl_wire::message::Record;
pub use progress::Progress;
pub use rank::{RankLog, State};
pub use recent::RECENT;
pub use store::Store;
pub use summary::Summary;
pub use timeline::Timeline;

/// The README's example, run with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
