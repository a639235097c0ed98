//! Communicators: handles that are never reused, so that one used after its end is noticed.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use crate::driver::{lock, use_after_end};
use crate::faults::{self, Faults};
use crate::job::Job;
use crate::numbers::Op;
use crate::{IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS};

/// How long anything here sleeps between two looks at whether it was aborted.
const PAUSE: Duration = Duration::from_millis(1);

/// One rank of a communicator.
pub(crate) struct Comm {
    pub(crate) job: Arc<Job>,
    pub(crate) rank: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// What goes on in the background.
    background: usize,
    /// Collectives that are on a stream.
    in_flight: usize,
    /// Collectives asked for.
    collectives: usize,
    /// The error that the communicator has come to.
    error: Option<i32>,
    /// Whether work on it is to end at once.
    is_stopped: bool,
    /// Whether it was aborted.
    is_aborted: bool,
    /// Whether it was revoked.
    is_revoked: bool,
    ops: BTreeMap<i32, (f64, i32)>,
    next_op: i32,
}

#[derive(Default)]
struct Handles {
    live: BTreeMap<usize, Arc<Comm>>,
    next: usize,
}

static HANDLES: LazyLock<Mutex<Handles>> = LazyLock::new(Mutex::default);

/// Gives a communicator its handle.
pub(crate) fn handle_of(comm: &Arc<Comm>) -> *mut c_void {
    let mut handles = lock(&HANDLES);
    handles.next += 16;
    let handle = handles.next;
    handles.live.insert(handle, Arc::clone(comm));
    handle as *mut c_void
}

/// The communicator of a handle; ends the process where there is none any more.
pub(crate) fn of(handle: *mut c_void, call: &str) -> Arc<Comm> {
    match lock(&HANDLES).live.get(&(handle as usize)) {
        Some(comm) => Arc::clone(comm),
        None => use_after_end(&format!("a communicator ({call})")),
    }
}

/// Takes the handle away; ends the process where it was taken before.
pub(crate) fn end(handle: *mut c_void, call: &str) -> Arc<Comm> {
    match lock(&HANDLES).live.remove(&(handle as usize)) {
        Some(comm) => comm,
        None => use_after_end(&format!("a communicator ({call})")),
    }
}

impl Comm {
    pub(crate) fn new(job: Arc<Job>, rank: usize) -> Arc<Self> {
        let state = State { next_op: 5, ..State::default() };
        Arc::new(Self { job, rank, state: Mutex::new(state), changed: Condvar::new() })
    }

    pub(crate) fn faults(&self) -> Faults {
        faults::of(&self.job.id, self.rank)
    }

    /// `ncclCommGetAsyncError`.
    pub(crate) fn status(&self) -> i32 {
        let state = lock(&self.state);
        match state.error {
            Some(error) => error,
            None if state.background > 0 => IN_PROGRESS,
            None => SUCCESS,
        }
    }

    pub(crate) fn may_enqueue(&self) -> Result<(), i32> {
        match self.status() {
            _ if self.is_revoked() => Err(INVALID_USAGE),
            SUCCESS => Ok(()),
            IN_PROGRESS => Err(INVALID_ARGUMENT),
            error => Err(error),
        }
    }

    /// Counts a collective; `None` where none may begin.
    pub(crate) fn next_collective(&self) -> Option<usize> {
        let mut state = lock(&self.state);
        let number = state.collectives;
        state.collectives += 1;
        state.error.is_none().then_some(number)
    }

    pub(crate) fn op(&self, code: i32, kind: i32) -> Option<Op> {
        Op::built_in(code).or_else(|| {
            let state = lock(&self.state);
            let (factor, of) = state.ops.get(&code)?;
            (*of == kind).then_some(Op::PreMulSum(*factor))
        })
    }

    pub(crate) fn new_op(&self, factor: f64, kind: i32) -> i32 {
        let mut state = lock(&self.state);
        let code = state.next_op;
        state.next_op += 1;
        state.ops.insert(code, (factor, kind));
        code
    }

    pub(crate) fn drop_op(&self, code: i32) -> bool {
        lock(&self.state).ops.remove(&code).is_some()
    }

    /// Does something in the background: until it has ended the communicator is in progress. What was stopped on the way
    /// says `false`.
    pub(crate) fn in_background(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) -> bool + Send + 'static) {
        lock(&self.state).background += 1;
        let comm = Arc::clone(self);
        std::thread::spawn(move || {
            work(&comm);
            lock(&comm.state).background -= 1;
            comm.changed.notify_all();
        });
    }

    pub(crate) fn begin(&self) {
        lock(&self.state).in_flight += 1;
    }

    pub(crate) fn finish(&self, number: usize) {
        let error = self.faults().error_after(number);
        let mut state = lock(&self.state);
        state.in_flight -= 1;
        state.error = state.error.or(error);
        self.changed.notify_all();
    }

    /// Waits until nothing is in flight; `false` where it was stopped before.
    pub(crate) fn drain(&self) -> bool {
        let mut state = lock(&self.state);
        while state.in_flight > 0 {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.is_aborted
    }

    pub(crate) fn is_stopped(&self) -> bool {
        lock(&self.state).is_stopped
    }

    pub(crate) fn is_aborted(&self) -> bool {
        lock(&self.state).is_aborted
    }

    pub(crate) fn is_revoked(&self) -> bool {
        lock(&self.state).is_revoked
    }

    /// Ends what is in flight.
    pub(crate) fn stop_work(&self) {
        lock(&self.state).is_stopped = true;
        self.job.wake();
    }

    pub(crate) fn revoke(&self) {
        lock(&self.state).is_revoked = true;
        self.stop_work();
    }

    /// Ends everything, and waits for it as the real one does.
    pub(crate) fn abort(&self) {
        lock(&self.state).is_aborted = true;
        self.stop_work();
        let mut state = lock(&self.state);
        while state.background > 0 || state.in_flight > 0 {
            (state, _) = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
