//! Every bound of this crate, with its reason.

use core::time::Duration;

/// The longest line of a rank's output that is kept whole; a longer one is cut into lines of this size.
pub const LINE_BYTES: usize = 8 * 1024;

/// How long the last lines of an ended process are waited for: what it wrote is in a pipe already, and only a process of
/// another group that holds the pipe open can delay its end.
pub const LAST_LINES_WAIT: Duration = Duration::from_millis(500);

/// How long a dropped [`Agent`](crate::agent::Agent) waits for killed processes to be gone. Longer takes only a process
/// that the kernel cannot end (a hung driver).
pub const KILL_WAIT: Duration = Duration::from_secs(3);

/// Events of processes that wait to be taken by the relay's task.
pub const AGENT_EVENTS: usize = 256;
