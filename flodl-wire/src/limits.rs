//! Every limit of the wire, by name. Relations between them are asserted when the crate compiles.

use core::time::Duration;

/// Bytes in front of every frame's payload: see `docs/PROTOCOL.md`.
pub const FRAME_HEADER: usize = 24;

/// Bytes of authentication behind every frame's payload.
pub const FRAME_TAG: usize = 16;

/// Bytes of a control, report or host report message.
pub const CONTROL_MAX: usize = 1 << 20;

/// Bytes in front of a chunk's elements, inside the payload of a `Contribution` or `Consensus` frame. With
/// [`FRAME_HEADER`] it makes 64, so that elements can be aligned to a cache line.
pub const CHUNK_HEADER: usize = 40;

/// Bytes of elements in one chunk.
pub const CHUNK_MAX: usize = 1 << 20;

/// Bytes of the payload of an `Absent` or a `Dropped` frame.
pub const ABSENCE_LEN: usize = 24;

/// Payload bytes of the largest frame.
pub const PAYLOAD_MAX: usize = CHUNK_HEADER + CHUNK_MAX;

/// Ranks of a run: their numbers are below it.
pub const RANKS_MAX: u32 = 1 << 16;

/// Tensors in one part of a manifest.
pub const MANIFEST_PART: usize = 1024;

/// Bytes of the lines that a relay quotes from a rank's output.
pub const LAST_LINES: usize = 16 << 10;

/// Reports of a rank that its relay repeats after a lost link.
pub const RANK_WORDS: usize = 64;

/// Figures of its own that a rank may declare.
pub const SCALARS: usize = 64;

/// Bytes of the name of one.
pub const SCALAR_NAME: usize = 64;

/// Ranks that an epoch's figures are broadcast for one by one; with more, only those of the run are.
pub const EPOCH_RANKS: usize = 4096;

/// Bytes of the scheduler's memory in the record of a commit.
pub const SCHEDULER_STATE: usize = 16 << 10;

/// Lives in one part of a complete record of a commit.
pub const COMMIT_LIVES: usize = 4096;

/// Ranges in one part of a complete record of a commit.
pub const COMMIT_RANGES: usize = 8192;

/// Bytes of one part of a complete record of a commit, at the most.
pub const COMMIT_PART: usize = 256 << 10;

/// Frames under one key. The next one is sealed under the key that follows.
pub const FRAMES_PER_KEY: u64 = 1 << 32;

/// Bytes of payload under one key. The frame that would pass it is sealed under the key that follows.
pub const BYTES_PER_KEY: u64 = 1 << 40;

/// From the acceptance of a connection to its whole first message.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// From the start of a handshake to its end, either side.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// From a frame's first byte to its last: the largest frame at 20 kB/s.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(60);

/// So many times the patience others may take for a batch where windows overlap and nobody's batches are measured yet.
pub const LATE_UNKNOWN: u32 = 8;

/// Connections whose handshake is not done. At the cap the oldest is closed.
pub const HALF_OPEN_MAX: usize = 64;

/// The same, from one source address.
pub const HALF_OPEN_PER_SOURCE: usize = 16;

/// Bytes a frame writer gathers before it must write: small frames go together, and so do several chunks.
pub const WRITE_BEHIND: usize = 1 << 20;

/// Bytes a frame reader asks for where it does not know that more belong to one frame.
pub const READ_AHEAD: usize = 16 << 10;

/// Payloads from this size on get a pooled, aligned buffer of their own and are read straight into it.
pub const POOLED_FROM: usize = 8 << 10;

/// Payload buffers that a frame decoder keeps for the next frames.
pub const POOL_BUFFERS: usize = 8;

/// Bytes of the sentence in a refusal.
pub const REFUSAL_TEXT: usize = 470;

/// Bytes of a ticket's text; longer files are refused unread.
pub const TICKET_TEXT: usize = 4096;

/// Bytes of an address in a ticket.
pub const ADDRESS_MAX: usize = 255;

const _: () = {
    assert!((FRAME_HEADER + CHUNK_HEADER).is_multiple_of(64), "chunk elements are aligned to 64 bytes in a frame");
    assert!(CONTROL_MAX <= PAYLOAD_MAX && ABSENCE_LEN <= CONTROL_MAX);
    assert!(PAYLOAD_MAX + FRAME_TAG < u32::MAX as usize, "a frame's length fits its field");
    assert!(CHUNK_MAX.is_multiple_of(8), "a full chunk holds whole i64 and f32 elements");
    assert!(BYTES_PER_KEY > PAYLOAD_MAX as u64, "a new key has room for at least one frame");
    assert!(HELLO_TIMEOUT.as_secs() < HANDSHAKE_TIMEOUT.as_secs());
    assert!(PAYLOAD_MAX as u64 / FRAME_TIMEOUT.as_secs() < 20_000, "what the constant's documentation says");
    assert!(HALF_OPEN_PER_SOURCE < HALF_OPEN_MAX, "one source cannot fill the half-open table");
    assert!(LAST_LINES + 1024 < CONTROL_MAX, "quoted output fits a control frame");
    assert!(
        EPOCH_RANKS * 64 + SCALARS * (SCALAR_NAME + 16) + 1024 < CONTROL_MAX,
        "an epoch's figures fit a control frame"
    );
    assert!(SCHEDULER_STATE + COMMIT_LIVES * 40 + 1024 <= COMMIT_PART, "lives take 37 bytes each at the most");
    assert!(SCHEDULER_STATE + COMMIT_RANGES * 18 + 1024 <= COMMIT_PART, "ranges take two varints of 9 bytes");
    assert!(COMMIT_PART <= CONTROL_MAX);
    assert!(READ_AHEAD > FRAME_HEADER && POOLED_FROM <= READ_AHEAD);
    assert!(ADDRESS_MAX + 1024 < TICKET_TEXT);
};
