//! What a worker does for the whole run, and what its program hears.

use super::{Callbacks, Clock, Job, Turn, Worker};
use crate::evaluating::Evaluating;
use crate::session::{Failure, Input};
use crate::trainee::Trainee;
use crate::user_code::{answer, user};
use flodl_wire::Version;

impl<'a, T: Trainee> Worker<'a, T> {
    /// Evaluates one batch more, so that a heartbeat can tell of it and no message waits for all of them.
    pub(super) fn evaluate(&mut self, mut evaluating: Evaluating, clock: &mut dyn Clock) {
        let batch_size = self.session.run().map_or(1, |run| u64::from(run.batch_size));
        let job = &mut self.job;
        let looked = answer("the evaluation", || {
            let Some(set) = &job.eval_set else {
                return Err("this trainer has nothing to evaluate on: give it a set with Trainer::eval_set".into());
            };
            evaluating.go_on(&mut job.trainee, &**set, batch_size)
        });
        self.evaluated += 1;
        clock.batch_evaluated();
        let (schedule, aside) = (evaluating.schedule, evaluating.aside);
        let outcome = match looked {
            Ok(Ok(None)) => {
                self.evaluating = Some(evaluating);
                return;
            }
            Ok(Ok(Some(evaluation))) => Ok(Ok(evaluation)),
            Ok(Err(error)) => Ok(Err(error)),
            Err(failure) => Err(failure),
        };
        let back = if aside { self.put_back() } else { Ok(()) };
        let input = match back.and(outcome) {
            Ok(outcome) => Input::Evaluated { schedule, outcome },
            Err(failure) => Input::Failed(failure),
        };
        self.session.handle(input, clock.now());
    }

    pub(super) fn save(&mut self, version: Version, aside: bool) -> Result<Result<(), String>, Failure> {
        if aside {
            self.set_aside()?;
        }
        let Job { trainee, callbacks, .. } = &mut self.job;
        let saved = answer("saving a checkpoint", || {
            callbacks.on_checkpoint.as_mut().map_or(Ok(()), |save| save(trainee, version))
        });
        if aside {
            self.put_back()?;
        }
        saved
    }

    /// Lets the program hear something.
    pub(super) fn told(
        &mut self,
        hear: impl FnOnce(&mut Callbacks<'a, T>) -> Option<()>,
        clock: &mut dyn Clock,
    ) -> Turn {
        let callbacks = &mut self.job.callbacks;
        let heard = user("a callback", || {
            hear(callbacks);
            Ok(())
        });
        if let Err(failure) = heard {
            self.session.handle(Input::Failed(failure), clock.now());
        }
        Turn::Worked
    }
}
