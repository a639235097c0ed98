//! Frames, messages and the authenticated handshake between the processes of a flodl training run.
//!
//! A protocol core without IO: bytes, nonces and keys are arguments, frames and bytes come back. It opens no socket, draws no random
//! number, reads no clock and decides nothing about a run. Every message that flodl's processes exchange is declared in
//! [`message`], as plain types that coordinator, relay and worker share.
//!
//! Read first:
//!
//! - [`Hello`]: who dials, and what for. [`handshake`] makes two sides that trust each other of it.
//! - [`Frame`]: one message in the clear, with whom it is for or from.
//! - [`Sealer`] and [`Opener`]: one direction of a connection each; frames to bytes, bytes to frames.
//!
//! Two peers over plain byte vectors (what `io` does over streams; the README has that):
//!
//! ```
//! use core::time::Duration;
//! use flodl_wire::handshake::{Accept, Admission, Dialler, greet};
//! use flodl_wire::message::Report;
//! use flodl_wire::secret::{DialKeys, GateKey};
//! use flodl_wire::{Channel, Frame, Hello, HostId, Incarnation, Rank, Role, RunId, Secret, SessionId};
//!
//! struct Controller { secret: Secret, gate: GateKey }
//! impl Admission for Controller {
//!     fn gate_key(&self) -> &GateKey { &self.gate }
//!     fn decide(&self, hello: &Hello) -> Result<Accept, String> {
//!         Ok(Accept { key: self.secret.host_key(hello.run_id, hello.host_id).into(), session: SessionId(1) })
//!     }
//!     fn patience(&self) -> Duration { Duration::from_secs(10) }
//!     fn generation(&self) -> u64 { 0 }
//! }
//!
//! let secret = Secret::from_bytes([42; 32]); // 32 random bytes, like every nonce
//! let (run_id, host_id) = (RunId([1; 16]), HostId::from_name("box-2").ok_or("a bad name")?);
//! let role = Role::Relay { rank_count: 1 };
//! let hello = Hello { role, channel: Channel::Control, session: SessionId(0), run_id, host_id };
//! let keys = DialKeys { gate: secret.gate_key(), peer: secret.host_key(run_id, host_id).into() };
//! let controller = Controller { gate: secret.gate_key(), secret };
//!
//! // M1 goes up, M2 comes down, M3 goes up.
//! let mut dialler = Dialler::new(hello, keys, [8; 32]);
//! let greeted = greet(controller.gate_key(), dialler.m1()).map_err(|_| "a stranger")?;
//! let (challenged, m2) = greeted.admit(&controller, [7; 32]).map_err(|_| "refused")?;
//! dialler.space().copy_from_slice(&m2);
//! let finish = dialler.filled(m2.len())?.ok_or("all of M2 was there")?;
//! let mut below = finish.established;
//! let mut above = challenged.finish(&finish.m3)?;
//! assert_eq!(below.session, above.session);
//!
//! // A report goes up as a sealed frame, in whatever portions.
//! let report = Report::Heartbeat { step: 12 };
//! let mut bytes = Vec::new();
//! below.sealer.seal(&Frame::report(Rank(0), Incarnation(1), &report)?, &mut bytes)?;
//! let (mut first, mut second) = bytes.split_at(30);
//! assert_eq!(above.opener.feed(&mut first)?, None);
//! let frame = above.opener.feed(&mut second)?.ok_or("the frame is whole now")?;
//! assert_eq!(frame.to_report()?, report);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Features
//!
//! - `io`: handshakes and frames over any futures-style stream, with total deadlines, and a connection in memory.
//!
//! Limits are in [`limits`]; `docs/PROTOCOL.md` beside this crate's sources has every byte.

#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod codec;
pub mod commit;
mod fields;
pub mod frame;
pub mod handshake;
mod hex;
pub mod id;
#[cfg(feature = "io")]
pub mod io;
pub mod limits;
pub mod message;
pub mod secret;
pub mod time;

pub use codec::manifest_digest;
pub use frame::{Frame, Kind, Opener, Sealer, Stream};
pub use handshake::{Channel, HandshakeError, Hello, Role};
pub use id::{Epoch, HostId, Incarnation, Range, Rank, Round, RunId, SessionId, Version, WindowId};
pub use secret::{RankKeys, Secret, Ticket};
pub use time::Time;

/// The README's example, as a test.
#[cfg(all(doctest, feature = "io"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
