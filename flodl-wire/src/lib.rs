//! Frames, messages and the authenticated handshake between the processes of a flodl training run.
//!
//! A protocol core without IO: bytes, nonces and keys are arguments, frames and bytes come back. It opens no socket, draws no random
//! number, reads no clock (but in `io`, which drives it) and decides nothing about a run. Every message that flodl's processes
//! exchange is declared in [`message`], as plain types that coordinator, relay and worker share.
//!
//! Read first:
//!
//! - [`Hello`]: who dials, and what for. [`handshake`] makes two sides that trust each other of it.
//! - [`Frame`]: one message in the clear, with whom it is for or from.
//! - [`Connection`]: bytes in, events and bytes out, from the first byte of the handshake to the last of the last frame.
//! - [`Sealer`] and [`Opener`]: one direction of it each; frames to bytes, bytes to frames.
//!
//! Two peers talk in the README, over a stream and over byte vectors.
//!
//! # Features
//!
//! - `io`: handshakes and frames over any futures-style stream, with total deadlines, and a connection in memory.
//!
//! Limits are in [`limits`]; `docs/PROTOCOL.md` beside this crate's sources has every byte.

#![forbid(unsafe_code)]
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used)]
#![cfg_attr(test, allow(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::unwrap_used))]

pub mod codec;
pub mod commit;
pub mod connection;
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
pub use connection::{Connection, Event};
pub use frame::{Frame, Kind, Opener, Sealer, Stream};
pub use handshake::{Capabilities, Channel, HandshakeError, Hello, Role};
pub use id::{Epoch, HostId, Incarnation, NcclSession, Range, Rank, Round, RunId, SessionId, Version, WindowId};
pub use secret::{RankKeys, Secret, Ticket};
pub use time::Time;

/// The README's example, as a test.
#[cfg(all(doctest, feature = "io"))]
#[doc = include_str!("../README.md")]
pub struct Readme;
