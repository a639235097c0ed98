//! A thread that notices when a call of the library does not come back.
//!
//! Calls on a non-blocking communicator return at once, but for a driver or a network that hangs under them. Whoever is
//! inside then cannot look at any deadline, so another thread does.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::STUCK_EXIT;
use crate::comm::AbortHandle;

/// Watches one thread's calls. Dropping it ends its thread.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The call that is watched, by its number; with a communicator that can be aborted, where it is in one.
    watched: Option<(u64, Option<AbortHandle>, Duration)>,
    next: u64,
    has_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watchdog {
    /// Starts the thread. `on_stuck` is called there, once at most, with the status that the process is to end with: a
    /// call is inside the library for good.
    ///
    /// # Errors
    ///
    /// Those of starting a thread.
    pub fn start(on_stuck: impl FnOnce(u8) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        thread::Builder::new().name("nccl-watch".to_owned()).spawn(move || watch(&own, on_stuck))?;
        Ok(Self { shared })
    }

    /// Watches, one call at a time, until the guard is dropped: past `limit` the communicator is aborted, which waits as long again for the
    /// call to come back.
    #[must_use]
    pub fn guard(&self, handle: AbortHandle, limit: Duration) -> Guard<'_> {
        self.watch(Some(handle), limit)
    }

    /// Watches a call that is in no communicator, or in one that is only being made: nothing can be aborted, so past twice
    /// the limit it is stuck.
    #[must_use]
    pub fn guard_bare(&self, limit: Duration) -> Guard<'_> {
        self.watch(None, limit * 2)
    }

    fn watch(&self, handle: Option<AbortHandle>, limit: Duration) -> Guard<'_> {
        let mut state = self.shared.lock();
        state.next += 1;
        let number = state.next;
        state.watched = Some((number, handle, limit));
        self.shared.changed.notify_all();
        Guard { watchdog: self, number }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.shared.lock().has_ended = true;
        self.shared.changed.notify_all();
    }
}

/// A call that is watched.
#[derive(Debug)]
pub struct Guard<'a> {
    watchdog: &'a Watchdog,
    number: u64,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let is_it = |watched: &mut (u64, Option<AbortHandle>, Duration)| watched.0 == self.number;
        self.watchdog.shared.lock().watched.take_if(is_it);
        self.watchdog.shared.changed.notify_all();
    }
}

fn watch(shared: &Shared, on_stuck: impl FnOnce(u8)) {
    loop {
        let is_idle = |state: &mut State| state.watched.is_none() && !state.has_ended;
        let state = shared.changed.wait_while(shared.lock(), is_idle).unwrap_or_else(PoisonError::into_inner);
        if state.has_ended {
            return;
        }
        let Some((number, handle, limit)) = state.watched.clone() else { continue };
        let is_same = |state: &mut State| state.watched.as_ref().is_some_and(|(other, ..)| *other == number);
        let waited = shared.changed.wait_timeout_while(state, limit, |state| is_same(state) && !state.has_ended);
        let (mut state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            continue;
        }
        state.watched = None;
        drop(state);
        let is_stuck = handle.is_none_or(|handle| handle.abort(limit).is_err_and(|error| error.is_hopeless()));
        if is_stuck {
            return on_stuck(STUCK_EXIT);
        }
    }
}
