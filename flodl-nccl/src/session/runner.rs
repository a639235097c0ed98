//! A rank's session at work: what the machine decides, done with a communicator and a replica.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Effect, Form, Generation, Input, Moment, Report, Round, STUCK_EXIT, Session, Stopped, Watchdog};
use crate::code::{ErrorCode, Progress};
use crate::comm::{Comm, Place};
use crate::error::{CallError, End};
use crate::library::Library;
use crate::wait;

/// What is averaged: the parameters on the device and their copy.
pub trait Replica {
    /// Keeps a copy of what the round will overwrite. The stream is idle.
    fn copy(&mut self, round: Round);

    /// Puts back what the copy holds. The stream is idle.
    fn restore(&mut self, round: Round);

    /// The copy is not needed any more.
    fn release(&mut self, round: Round);

    /// Issues the round's collectives.
    ///
    /// # Errors
    ///
    /// What a call on the communicator answers.
    fn issue(&mut self, round: Round, comm: &Comm) -> Result<(), CallError>;

    /// All of the round's collectives are on their stream: what follows them can be put behind them.
    ///
    /// # Errors
    ///
    /// [`CallError::Device`] where the device refuses.
    fn issued(&mut self, _round: Round) -> Result<(), CallError> {
        Ok(())
    }

    /// Whether all that was put on the stream is done.
    ///
    /// # Errors
    ///
    /// [`CallError::Failed`] where the device reports an error.
    fn is_idle(&mut self) -> Result<bool, CallError>;
}

/// What a session wants of the process that it is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Send this to the coordinator.
    Send(Report),
    /// End the process with this status, without any further call of the library.
    EndProcess(u8),
}

/// What a runner works with.
#[derive(Debug)]
pub struct Tools {
    /// The library.
    pub library: Library,
    /// What sees to it that calls come back.
    pub watchdog: Watchdog,
    /// How long a call may take, and wait for another thread's on the communicator.
    pub limit: Duration,
}

/// A session with its communicator and replica, on one thread.
///
/// Ending a communicator takes up to three times its limit here and no longer; forming one out of another, and a copy of the
/// replica or back, up to the limit. The watchdog sees to every other call that may hang: making an id, forming, issuing,
/// looking and revoking. Dropping it aborts what there is; after [`Outcome::EndProcess`] it is not to be dropped, since the library may still write to the replica.
#[derive(Debug)]
pub struct Runner<R: Replica> {
    session: Session,
    tools: Tools,
    replica: R,
    comm: Option<Comm>,
    /// The communicator that the new one is made of.
    old: Option<Comm>,
    doing: Doing,
    outcomes: VecDeque<Outcome>,
    /// The round whose copy could not be made: nothing was done for it, and the replica is what it was.
    uncopied: Option<Round>,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Forming(Generation),
    /// The round's collectives are being put on their stream.
    Issuing(Round),
    /// They are on it.
    Round(Round),
}

impl<R: Replica> Runner<R> {
    /// A session without a communicator.
    #[must_use]
    pub fn new(session: Session, tools: Tools, replica: R) -> Self {
        let (outcomes, uncopied) = (VecDeque::new(), None);
        Self { session, tools, replica, comm: None, old: None, doing: Doing::Nothing, outcomes, uncopied }
    }

    /// What is averaged.
    pub fn replica(&mut self) -> &mut R {
        &mut self.replica
    }

    /// When [`poll`](Self::poll) is due for the time alone.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        self.session.next_deadline()
    }

    /// What is wanted of the process; after each call of [`handle`](Self::handle) and [`poll`](Self::poll) all of it is to
    /// be taken.
    pub fn poll_outcome(&mut self) -> Option<Outcome> {
        self.outcomes.pop_front()
    }

    /// Takes what came from the coordinator.
    pub fn handle(&mut self, input: Input, now: Moment) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.session.handle(input, now);
            let mut failed = None;
            while let Some(effect) = self.session.poll_effect() {
                let prepares = match effect {
                    Effect::Copy(round) | Effect::Restore(round) => Some(round),
                    // What could not be copied or put back is not averaged.
                    Effect::Issue(round) if failed == Some(round) => continue,
                    _ => None,
                };
                let news = self.carry_out(effect);
                failed = failed.or(prepares.filter(|_| news.is_some()));
                inputs.extend(news);
            }
        }
    }

    /// Looks at the library, the device and the time.
    pub fn poll(&mut self, now: Moment) {
        if let Some(input) = self.look() {
            self.handle(input, now);
        }
        let ends = |outcome: &Outcome| matches!(outcome, Outcome::EndProcess(_));
        if !self.outcomes.iter().any(ends) {
            self.handle(Input::Tick, now);
        }
    }

    /// What has come about since the last look.
    fn look(&mut self) -> Option<Input> {
        let comm = self.comm.as_ref()?;
        let guard = self.tools.watchdog.guard(comm.abort_handle(), self.tools.limit);
        let polled = comm.poll();
        drop(guard);
        let progress = match polled {
            Ok(progress) => progress,
            Err(error) => return Some(Input::Broken(code_of(&error))),
        };
        match self.doing {
            Doing::Forming(generation) if progress == Progress::Ready => {
                self.doing = Doing::Nothing;
                if let Some(old) = self.old.take()
                    && old.abort(self.tools.limit).is_err_and(|error| error.is_hopeless())
                {
                    self.outcomes.push_back(Outcome::EndProcess(STUCK_EXIT));
                    return None;
                }
                Some(Input::Formed(generation))
            }
            Doing::Issuing(round) if progress == Progress::Ready => match self.replica.issued(round) {
                Ok(()) => {
                    self.doing = Doing::Round(round);
                    self.collected(round)
                }
                Err(error) => Some(Input::Broken(code_of(&error))),
            },
            Doing::Round(round) if progress == Progress::Ready => self.collected(round),
            Doing::Nothing | Doing::Forming(_) | Doing::Issuing(_) | Doing::Round(_) => None,
        }
    }

    fn collected(&mut self, round: Round) -> Option<Input> {
        match self.replica.is_idle() {
            Ok(true) => {
                self.doing = Doing::Nothing;
                Some(Input::Collected(round))
            }
            Ok(false) => None,
            Err(error) => Some(Input::Broken(code_of(&error))),
        }
    }

    /// Does one thing; what comes of it at once is the session's next input.
    fn carry_out(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::MakeId(generation) => {
                let _guard = self.tools.watchdog.guard_bare(self.tools.limit);
                return Some(Input::IdMade(generation, self.tools.library.unique_id().ok()));
            }
            Effect::Form { generation, form, place, size, limit } => {
                self.doing = Doing::Forming(generation);
                return self.form(&form, (place, size), limit).err().map(|error| Input::Broken(code_of(&error)));
            }
            Effect::Copy(round) => return self.copy(round),
            Effect::Restore(round) if self.uncopied == Some(round) => return self.copy(round),
            Effect::Restore(round) => return self.on_idle(|replica| replica.restore(round)),
            Effect::Release(round) => self.replica.release(round),
            Effect::Issue(round) => {
                let comm = self.comm.as_ref()?;
                self.doing = Doing::Issuing(round);
                let _guard = self.tools.watchdog.guard(comm.abort_handle(), self.tools.limit);
                return self.replica.issue(round, comm).err().map(|error| Input::Broken(code_of(&error)));
            }
            Effect::Abort(generation, limit) => return Some(Input::Stopped(generation, self.abort(limit))),
            Effect::Revoke(generation, limit) => return Some(Input::Stopped(generation, self.revoke(limit))),
            Effect::Close(generation, limit) => {
                self.doing = Doing::Nothing;
                let closed = self.comm.take()?.close(limit);
                let is_stuck = closed.is_err_and(|error| error.is_hopeless());
                let how = if is_stuck { Stopped::Stuck } else { self.when_idle(limit) };
                return Some(Input::Stopped(generation, how));
            }
            Effect::Send(report) => self.outcomes.push_back(Outcome::Send(report)),
            Effect::EndProcess(status) => self.outcomes.push_back(Outcome::EndProcess(status)),
        }
        None
    }

    fn form(&mut self, form: &Form, (rank, size): (u32, u32), limit: Duration) -> Result<(), CallError> {
        let comm = match form {
            Form::Fresh(id) => {
                let _guard = self.tools.watchdog.guard_bare(self.tools.limit);
                Comm::init_rank(&self.tools.library, Place { id: *id, rank, size }, self.tools.limit)?
            }
            Form::Shrink { gone } => {
                let old = self.comm.take().ok_or(CallError::Ended(End::Aborted))?;
                // It waits up to its own limit in order.
                let guard = self.tools.watchdog.guard(old.abort_handle(), limit + self.tools.limit);
                let shrunk = old.shrink(gone, limit);
                drop(guard);
                self.old = Some(old);
                shrunk?
            }
        };
        self.comm = Some(comm);
        Ok(())
    }

    fn copy(&mut self, round: Round) -> Option<Input> {
        let failed = self.on_idle(|replica| replica.copy(round));
        self.uncopied = failed.is_some().then_some(round);
        failed
    }

    /// Does something with the replica once nothing is on the stream.
    fn on_idle(&mut self, work: impl FnOnce(&mut R)) -> Option<Input> {
        match self.wait_for_idle(self.tools.limit) {
            Ok(()) => {
                work(&mut self.replica);
                None
            }
            Err(error) => Some(Input::Broken(code_of(&error))),
        }
    }

    fn wait_for_idle(&mut self, limit: Duration) -> Result<(), CallError> {
        wait::until(limit, || Ok(self.replica.is_idle()?.then_some(())))
    }

    /// Aborts what there is. What was on the stream has ended too, or something is stuck.
    fn abort(&mut self, limit: Duration) -> Stopped {
        self.doing = Doing::Nothing;
        for comm in [self.comm.take(), self.old.take()].into_iter().flatten() {
            if comm.abort(limit).is_err_and(|error| error.is_hopeless()) {
                return Stopped::Stuck;
            }
        }
        self.when_idle(limit)
    }

    fn when_idle(&mut self, limit: Duration) -> Stopped {
        match self.wait_for_idle(limit) {
            Err(CallError::Deadline { .. }) => Stopped::Stuck,
            // An error of the device is the next round's, and its end.
            Ok(()) | Err(_) => Stopped::Ended,
        }
    }

    fn revoke(&mut self, limit: Duration) -> Stopped {
        self.doing = Doing::Nothing;
        let Some(comm) = &self.comm else { return Stopped::Ended };
        let guard = self.tools.watchdog.guard(comm.abort_handle(), self.tools.limit);
        let revoked = comm.revoke();
        drop(guard);
        let revoked = revoked.and_then(|_| comm.settle(limit)).and_then(|()| self.wait_for_idle(limit));
        if revoked.is_ok() { Stopped::Revoked } else { self.abort(limit) }
    }
}

impl<R: Replica> Drop for Runner<R> {
    fn drop(&mut self) {
        if self.comm.is_some() || self.old.is_some() {
            // Whether it succeeded nobody is left to hear.
            let _how: Stopped = self.abort(self.tools.limit);
        }
    }
}

const fn code_of(error: &CallError) -> ErrorCode {
    match error {
        CallError::Failed { code, .. } => *code,
        CallError::Device(_) => ErrorCode::Cuda,
        CallError::Deadline { .. } | CallError::Busy { .. } => ErrorCode::Timeout,
        CallError::InProgress
        | CallError::Ended(_)
        | CallError::Missing(_)
        | CallError::NoFunction { .. }
        | CallError::Argument(_) => ErrorCode::InvalidUsage,
    }
}
