//! The shell's bounds, beside those of the wire.

use core::time::Duration;

/// Events that wait for the driver; whoever has one more waits.
pub const EVENTS: usize = 1024;
/// Control frames that wait for one relay; one more ends its connection. 64 ranks that get three messages a round fill a
/// twentieth of it.
pub const CONTROL_QUEUE: usize = 4096;
/// Records that wait for the monitor; one more is dropped and counted.
pub const RECORDS: usize = 16 * 1024;
/// Checkpoint sets that wait to be written.
pub const SAVES: usize = 4;
/// Entries that wait for the journal; one more is dropped.
pub const JOURNAL: usize = 1024;
/// Ranks that a relay spoke for without leave, remembered so that each is reported once.
pub(crate) const REFUSED_SPEAKERS: usize = 1024;
/// Handshakes that may be under way at a time in the name of one host and from one address: its two connections, and some
/// that broke.
pub(crate) const GATED_PER_KEY: usize = 8;
/// Connections of authenticated hosts, two each.
pub(crate) const CONNECTIONS_MAX: usize = 4096;
/// The same, of one host: two, and those that it has left behind and that are on their way out.
pub(crate) const CONNECTIONS_PER_HOST: usize = 32;
/// Connections that the system completes ahead of their being accepted, where it allows so many.
pub(crate) const BACKLOG: i32 = 4096;
/// How long accepting rests where the machine refuses connections, and no stranger is there to make room.
pub(crate) const ACCEPT_REST: Duration = Duration::from_millis(50);
/// Sessions that have ended and are still remembered.
pub(crate) const SESSIONS_LEFT: usize = 64;
/// How long the data connection of an ended session stays open, so that its relay reads first what its control connection
/// said last.
pub const PARTING: Duration = Duration::from_secs(2);
