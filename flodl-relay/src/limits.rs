//! Every bound of this crate, with its reason.

use core::time::Duration;

/// The longest line of a rank's output that is kept whole; a longer one is cut into lines of this size.
pub const LINE_BYTES: usize = 8 * 1024;

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
    assert!(LINE_BYTES <= flodl_wire::limits::CONTROL_MAX);
};
