//! Frames, messages and the authenticated handshake between the processes of a flodl training run.

pub mod id;
pub mod message;
pub mod time;

pub use id::{Epoch, HostId, Incarnation, Range, Rank, Round, RunId, SessionId, Version, WindowId};
pub use time::Time;
