//! Sleeping until another process has something, without a message for each.

use super::ShmError;
use super::segment::{Access, PAGE, Segment, reserve};
use core::sync::atomic::{AtomicU32, Ordering, fence};
use core::time::Duration;
use rustix::fs::Timespec;
use rustix::thread::futex;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// The longest sleep. A bell that another process has broken, or a process that dies between two of its steps, costs this and
/// no more.
pub const NAP: Duration = Duration::from_millis(50);

/// Looks before a sleep: some ten microseconds, about what a sleep and its end cost by themselves.
const LOOKS: u32 = 200;

const MARK: u64 = 0x666c_6f64_6c62_3031;

/// Bytes between the two words of a bell: in one line, which both are touched in together.
const ASLEEP: usize = 4;

/// Where one process sleeps and others wake it. One thread at a time may wait.
#[derive(Debug, Clone)]
pub struct Bell {
    segment: Arc<Segment>,
    at: usize,
}

impl Bell {
    pub(super) fn new(segment: Arc<Segment>, at: usize) -> Bell {
        Bell { segment, at }
    }

    fn count(&self) -> &AtomicU32 {
        self.segment.word(self.at)
    }

    fn asleep(&self) -> &AtomicU32 {
        self.segment.word(self.at + ASLEEP)
    }

    /// Wakes whoever waits. What it is to find must have been made available before.
    pub fn ring(&self) {
        // Against the fence in `wait`: either this sees that it sleeps, or it sees what has been made available.
        fence(Ordering::SeqCst);
        if self.asleep().load(Ordering::Relaxed) != 0 {
            self.count().fetch_add(1, Ordering::SeqCst);
            // That nobody sleeps any more is what was wanted.
            match futex::wake(self.count(), futex::Flags::empty(), 1) {
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Waits until `ready`, which is asked again and again, at most for `limit` or [`NAP`]. Returns whether it is ready.
    pub fn wait(&self, limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
        for _ in 0..LOOKS {
            if ready() {
                return true;
            }
            core::hint::spin_loop();
        }
        let seen = self.count().load(Ordering::SeqCst);
        self.asleep().store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let mut is_ready = ready();
        if !is_ready {
            let limit = limit.min(NAP);
            let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
            // Woken, late, interrupted or rung in between: what it came to is seen by looking.
            match futex::wait(self.count(), futex::Flags::empty(), seen, Some(&limit)) {
                Ok(()) | Err(_) => is_ready = ready(),
            }
        }
        self.asleep().store(0, Ordering::Relaxed);
        is_ready
    }
}

/// The segment of the bell that all ranks of a host ring and their relay waits at.
#[derive(Debug)]
pub struct Bells {
    file: OwnedFd,
    segment: Arc<Segment>,
}

impl Bells {
    /// The relay's.
    ///
    /// # Errors
    /// [`ShmError::System`].
    pub fn create() -> Result<Bells, ShmError> {
        let file = reserve("flodl-bells").map_err(|error| ShmError::System { bytes: PAGE as u64, error })?;
        let segment = Segment::lay_out(&file, PAGE, false)?;
        segment.mark(MARK);
        Ok(Bells { file, segment: Arc::new(segment) })
    }

    /// The same, in a rank's process.
    ///
    /// # Errors
    /// [`ShmError`] for what no relay hands out.
    pub fn adopt(file: OwnedFd) -> Result<Bells, ShmError> {
        let segment = Segment::adopt(&file, PAGE, Access::Write)?;
        segment.check_mark(MARK)?;
        Ok(Bells { file, segment: Arc::new(segment) })
    }

    /// The relay's bell.
    #[must_use]
    pub fn relay(&self) -> Bell {
        Bell::new(Arc::clone(&self.segment), 64)
    }

    /// To be handed to a rank.
    #[must_use]
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }
}
