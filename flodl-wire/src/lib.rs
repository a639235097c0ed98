//! Frames, messages and the authenticated handshake between the processes of a flodl training run.

pub mod codec;
pub mod frame;
pub mod handshake;
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
