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
/// How long accepting rests after the machine refused a connection (no descriptor left).
pub(crate) const ACCEPT_REST: Duration = Duration::from_millis(50);
/// How long accepting rests after a connection for which another one had to go: so the sixteenth of a source has had 80 ms
/// to show who it is.
pub(crate) const CROWDED_REST: Duration = Duration::from_millis(5);
/// Sessions that have ended and are still remembered.
pub(crate) const SESSIONS_LEFT: usize = 64;
/// How long the data connection of an ended session stays open, so that its relay reads first what its control connection
/// said last.
pub const PARTING: Duration = Duration::from_secs(2);
