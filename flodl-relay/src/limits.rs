//! Every bound of this crate, with its reason.

use core::time::Duration;

/// The longest line of a rank's output that is shown whole; a longer one is cut there. Its log has all of it.
pub const LINE_BYTES: usize = 4 * 1024;

/// Bytes of a rank's output that are read at once: as much as a pipe holds.
pub const OUTPUT_READ: usize = 64 * 1024;

/// How much of something there may be.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// At once, after a pause.
    pub burst: u64,
    /// A second, for as long as it goes on.
    pub a_second: u64,
}

/// Lines of a rank that are shown live. Faster than that nobody reads; all ranks of a large host together still fit a
/// terminal.
pub const SHOWN_LINES: Pace = Pace { burst: 400, a_second: 40 };

/// Bytes of a rank that are shown live.
pub const SHOWN_BYTES: Pace = Pace { burst: 256 * 1024, a_second: 16 * 1024 };

/// After so long without output it is said how many lines were left out.
pub const COUNT_AFTER: Duration = Duration::from_secs(1);

/// How long the last lines of an ended process are waited for: what it wrote is in a pipe already, and only a process of
/// another group that holds the pipe open can delay its end.
pub const LAST_LINES_WAIT: Duration = Duration::from_millis(500);

/// How long a dropped agent waits for killed processes to be gone. Longer takes only a process
/// that the kernel cannot end (a hung driver).
pub const KILL_WAIT: Duration = Duration::from_secs(3);

/// Events of processes that wait to be taken by the relay's task.
pub const AGENT_EVENTS: usize = 256;

/// Bytes of the last lines that are told about an ended process.
pub const LAST_LINES: usize = 2 * 1024;

/// Frames that wait to be written on a control connection, to a rank or to the controller. Who lets more wait than that
/// is not there any more, and is closed.
pub const CONTROL_FRAMES: usize = 4 * 1024;

/// What waits to be taken by the relay's task. Whoever has more to say waits.
pub const EVENTS: usize = 256;

/// Orders that wait to be taken by a folding thread. A round needs three.
pub const ORDERS: usize = 4 * 1024;

/// Chunks that wait between a connection and a folding thread. A full one is 256 KiB.
pub const CHUNKS: usize = 4;

/// Chunks that wait in each direction between relay and root of one process.
pub const LOCAL_CHUNKS: usize = 16;

/// How long the last frames of a connection that is being closed may take to be written.
pub const CLOSING: Duration = Duration::from_secs(1);

/// How long the last reports to the controller may take to be written when the relay ends.
pub const FAREWELL: Duration = Duration::from_secs(2);

/// The pause after a failed attempt to accept a connection (no descriptors left).
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The first pause between attempts to reach the controller; each next one is twice as long, up to [`DIAL_PAUSE_MAX`].
pub const DIAL_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between attempts to reach the controller.
pub const DIAL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// The longest path of a unix socket, in bytes: `sun_path` holds 108 with its end.
pub const SOCKET_PATH: usize = 107;

const _: () = {
    assert!(LAST_LINES <= flodl_wire::limits::LAST_LINES, "the wire takes what a relay quotes");
    assert!(LINE_BYTES as u64 <= SHOWN_BYTES.a_second, "the longest line is within what is shown a second");
};
