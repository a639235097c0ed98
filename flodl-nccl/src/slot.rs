//! Who is inside a communicator, and how it ended: the lock that enqueueing, polling, aborting and destroying share.
//!
//! The communicator is *taken out* of the slot for a call and put back after it. So nobody waits with a mutex held, an
//! abort that comes while a call is inside waits for it for a limited time, and whoever ends the communicator owns it.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{CallError, End};
use crate::live::Live;

/// A communicator between two calls.
#[derive(Debug)]
pub(crate) struct Resting {
    pub(crate) live: Live,
    /// Whether the last call may be in progress.
    pub(crate) is_pending: bool,
}

#[derive(Debug)]
enum State {
    Resting(Resting),
    /// A thread is inside a call.
    Inside,
    Ended(End),
}

#[derive(Debug)]
pub(crate) struct Slot {
    state: Mutex<State>,
    changed: Condvar,
}

impl Slot {
    pub(crate) fn new(live: Live, is_pending: bool) -> Self {
        Self { state: Mutex::new(State::Resting(Resting { live, is_pending })), changed: Condvar::new() }
    }

    /// A panic cannot leave the state half changed, so a poisoned lock is taken all the same.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the communicator for a call; no more than `limit` is spent waiting for another thread's.
    ///
    /// # Errors
    ///
    /// [`CallError::Busy`] past the limit, [`CallError::Ended`] where there is none any more.
    pub(crate) fn enter(&self, limit: Duration) -> Result<Inside<'_>, CallError> {
        Ok(Inside { slot: self, resting: Some(self.take(State::Inside, limit)?) })
    }

    /// Takes the communicator for good, to end it. Whoever comes next finds [`End::Ending`].
    ///
    /// # Errors
    ///
    /// Those of [`enter`](Self::enter).
    pub(crate) fn take_to_end(&self, limit: Duration) -> Result<Live, CallError> {
        let resting = self.take(State::Ended(End::Ending), limit)?;
        self.changed.notify_all();
        Ok(resting.live)
    }

    fn take(&self, leave: State, limit: Duration) -> Result<Resting, CallError> {
        let is_inside = |state: &mut State| matches!(state, State::Inside);
        let (mut state, _) =
            self.changed.wait_timeout_while(self.lock(), limit, is_inside).unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Inside => return Err(CallError::Busy { waited: limit }),
            State::Ended(end) => return Err(CallError::Ended(*end)),
            State::Resting(_) => {}
        }
        match std::mem::replace(&mut *state, leave) {
            State::Resting(resting) => Ok(resting),
            State::Inside | State::Ended(_) => Err(CallError::Ended(End::Ending)),
        }
    }

    /// Says how the communicator ended.
    pub(crate) fn ended(&self, end: End) {
        *self.lock() = State::Ended(end);
        self.changed.notify_all();
    }

    /// Puts a communicator back that could not be ended.
    pub(crate) fn put_back(&self, live: Live) {
        *self.lock() = State::Resting(Resting { live, is_pending: true });
        self.changed.notify_all();
    }

    /// Says that what was asked of the communicator may be in progress.
    pub(crate) fn mark_pending(&self) {
        if let State::Resting(resting) = &mut *self.lock() {
            resting.is_pending = true;
        }
    }

    /// How it ended, where it has.
    pub(crate) fn end(&self) -> Option<End> {
        match &*self.lock() {
            State::Ended(end) => Some(*end),
            State::Resting(_) | State::Inside => None,
        }
    }

    /// Waits until an end that was begun is over; `None` past the limit.
    pub(crate) fn wait_for_end(&self, limit: Duration) -> Option<End> {
        let is_open = |state: &mut State| !matches!(state, State::Ended(End::Aborted | End::Destroyed));
        let (state, _) =
            self.changed.wait_timeout_while(self.lock(), limit, is_open).unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Ended(end @ (End::Aborted | End::Destroyed)) => Some(*end),
            State::Ended(End::Ending) | State::Resting(_) | State::Inside => None,
        }
    }
}

/// A thread's stay inside a communicator; leaving puts it back.
#[derive(Debug)]
pub(crate) struct Inside<'a> {
    slot: &'a Slot,
    resting: Option<Resting>,
}

impl Inside<'_> {
    /// The communicator, which is there until this value is dropped.
    pub(crate) fn resting(&mut self) -> Result<&mut Resting, CallError> {
        self.resting.as_mut().ok_or(CallError::Ended(End::Ending))
    }

    pub(crate) fn is_of(&self, slot: &Slot) -> bool {
        std::ptr::eq(self.slot, slot)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if let Some(resting) = self.resting.take() {
            *self.slot.lock() = State::Resting(resting);
            self.slot.changed.notify_all();
        }
    }
}
