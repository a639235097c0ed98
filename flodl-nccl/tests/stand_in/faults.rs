//! What goes wrong on request: per communicator id and rank.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// What a rank of a communicator was asked to do wrong.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults {
    /// The collective that never ends on this rank, which contributes nothing to it.
    pub(crate) hang_at: Option<usize>,
    /// The collective whose call answers so.
    fails_at: Option<(usize, i32)>,
    /// The collective after which the communicator's state is this error.
    late_error: Option<(usize, i32)>,
    /// How long each collective waits before it begins.
    pub(crate) slow: Option<Duration>,
    /// Whether the abort never returns.
    pub(crate) abort_hangs: bool,
    /// Whether the initialisation never ends.
    pub(crate) init_hangs: bool,
    /// The collective whose call takes this long.
    blocks_at: Option<(usize, Duration)>,
    /// How long the call that begins to form takes.
    pub(crate) init_blocks: Option<Duration>,
    /// How long the call that revokes takes.
    pub(crate) revoke_blocks: Option<Duration>,
}

thread_local! {
    /// How long the next call for an id takes on this thread.
    static ID_BLOCKS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long this call for an id takes.
pub(crate) fn id_blocks() -> Duration {
    ID_BLOCKS.take()
}

impl Faults {
    /// The answer of a call that fails.
    pub(crate) fn call_fails(&self, number: usize) -> Option<i32> {
        self.fails_at.filter(|(at, _)| *at == number).map(|(_, code)| code)
    }

    /// How long a call blocks.
    pub(crate) fn call_blocks(&self, number: usize) -> Option<Duration> {
        self.blocks_at.filter(|(at, _)| *at == number).map(|(_, pause)| pause)
    }

    /// The error that comes to light after a collective.
    pub(crate) fn error_after(&self, number: usize) -> Option<i32> {
        self.late_error.filter(|(at, _)| *at == number).map(|(_, code)| code)
    }
}

type Asked = BTreeMap<([u8; 128], usize), Faults>;

static ASKED: LazyLock<Mutex<Asked>> = LazyLock::new(Mutex::default);

/// Takes a request; the numbers are those of `tests/common/stand_in.rs`.
pub(crate) fn ask(id: [u8; 128], rank: usize, fault: i32, at: usize, value: i32) -> bool {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    let faults = asked.entry((id, rank)).or_default();
    let millis = Duration::from_millis(u64::try_from(value).unwrap_or(0));
    match fault {
        1 => faults.hang_at = Some(at),
        2 => faults.fails_at = Some((at, value)),
        3 => faults.late_error = Some((at, value)),
        4 => faults.slow = Some(millis),
        5 => faults.abort_hangs = true,
        6 => faults.init_hangs = true,
        7 => faults.blocks_at = Some((at, millis)),
        8 => faults.init_blocks = Some(millis),
        9 => faults.revoke_blocks = Some(millis),
        // There is no communicator yet, so it is this thread's.
        10 => ID_BLOCKS.set(millis),
        _ => return false,
    }
    true
}

/// Takes the requests that the process was started with for the communicator that it begins now.
pub(crate) fn ask_from_environment(id: [u8; 128], rank: usize) {
    static BEGUN: Mutex<usize> = Mutex::new(0);
    let number = {
        let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
        *begun += 1;
        *begun - 1
    };
    let Ok(faults) = std::env::var("STAND_IN_FAULTS") else { return };
    for fault in faults.split(',') {
        let words: Vec<i32> = fault.split(':').filter_map(|word| word.parse().ok()).collect();
        let [communicator, fault, at, value] = words[..] else { panic!("STAND_IN_FAULTS: {fault} is no fault") };
        if communicator as usize == number {
            ask(id, rank, fault, at as usize, value);
        }
    }
}

/// What a rank was asked.
pub(crate) fn of(id: &[u8; 128], rank: usize) -> Faults {
    ASKED.lock().unwrap_or_else(PoisonError::into_inner).get(&(*id, rank)).cloned().unwrap_or_default()
}
