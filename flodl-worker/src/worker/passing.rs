//! A worker's part in a round where it shares memory with its relay.

use super::{Clock, Sending, Turn, Worker};
use crate::reduce::{Label, Passage, Passed};
use crate::session::{Failure, Input};
use crate::trainee::Trainee;
use crate::user_code::{fault, user};
use core::time::Duration;

impl<T: Trainee> Worker<'_, T> {
    /// Averages through that memory from now on, which is to be told before the first round.
    pub fn share(&mut self, passage: Box<dyn Passage>) {
        self.reduce.share(passage);
    }

    /// Whether another turn would do something although nothing was said: shared memory has room, or a part of a result.
    pub fn can_go_on(&mut self) -> bool {
        !self.session.ended() && self.reduce.can_go_on(self.sending.is_some())
    }

    /// The next piece of work on either way. `None` where nothing is on its way, so that the session goes on; a contribution
    /// that has yet to find room comes before anything that the session wants.
    pub(super) fn go_through_memory(&mut self, clock: &mut dyn Clock) -> Option<Turn> {
        if self.session.ended() {
            self.sending = None;
            return None;
        }
        // Measured first: what has just been put there is still in the cache, and so is the replica's part.
        let done = match self.take_result(clock) {
            Ok(true) => return Some(Turn::Worked),
            Ok(false) => self.pass(clock),
            Err(failure) => Err(failure),
        };
        match done {
            Ok(turn) => turn,
            Err(failure) => {
                self.sending = None;
                self.session.handle(Input::Failed(failure), clock.now());
                Some(Turn::Worked)
            }
        }
    }

    /// Measures the next chunk of a result; false where none is there.
    fn take_result(&mut self, clock: &mut dyn Clock) -> Result<bool, Failure> {
        let stays = !self.session.overlaps();
        let (reduce, trainee) = (&mut self.reduce, &self.job.trainee);
        let taken = user("reading the model's tensors", || reduce.take_shared(trainee, stays).map_err(fault))?;
        let Some((round, chunks, measured)) = taken else { return Ok(false) };
        let now = clock.now();
        self.session.handle(Input::Heard, now);
        self.session.handle(Input::ResultGrew { round, chunks }, now);
        if let Some(measured) = measured {
            self.session.handle(Input::ResultWhole(measured.of(round)), now);
        }
        Ok(true)
    }

    /// Sends the next chunk of the contribution on its way.
    fn pass(&mut self, clock: &mut dyn Clock) -> Result<Option<Turn>, Failure> {
        let Some(mut sending) = self.sending.take() else { return Ok(None) };
        let Sending { round, base, mass, next: chunk, since, absent } = sending;
        let (reduce, trainee) = (&mut self.reduce, &self.job.trainee);
        let passed = match absent {
            Some(why) if reduce.pass_absent(round, why) => Passed::Done,
            Some(_) => Passed::Full,
            None => {
                let label = Label { round, base, chunk, mass };
                user("reading the model's tensors", || reduce.pass(trainee, &label).map_err(fault))?
            }
        };
        if passed == Passed::Done {
            let now = clock.now();
            let took = if absent.is_some() { Duration::ZERO } else { now.since(since) };
            self.session.handle(Input::Contributed { round, took }, now);
            return Ok(Some(Turn::Worked));
        }
        sending.next += u32::from(passed == Passed::Sent);
        self.sending = Some(sending);
        Ok(Some(if passed == Passed::Sent { Turn::Worked } else { Turn::Idle }))
    }
}
