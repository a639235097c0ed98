//! A program's own code that hears how a run goes, on the monitor's thread: slow code makes records wait, and then be left
//! out, but no rank.

use core::fmt;
use flodl_wire::message::record::EpochMetrics;
use flodl_wire::message::report::Evaluation;
use flodl_wire::{Rank, Version};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What an evaluation found.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Of which consensus.
    pub version: Version,
    /// On which rank.
    pub rank: Rank,
    /// What.
    pub evaluation: Evaluation,
}

/// Code that hears something.
pub type Hook<News> = Box<dyn FnMut(&News) + Send>;

/// The code that a program brings.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) on_epoch: Option<Hook<EpochMetrics>>,
    pub(crate) on_eval: Option<Hook<Evaluated>>,
}

impl Hooks {
    /// An epoch is over.
    ///
    /// # Errors
    /// A sentence where the program's code panics; it hears nothing any more.
    pub(crate) fn epoch(&mut self, metrics: &EpochMetrics) -> Result<(), String> {
        tell("on_epoch", &mut self.on_epoch, metrics)
    }

    /// An evaluation found something.
    ///
    /// # Errors
    /// As for an epoch.
    pub(crate) fn evaluated(&mut self, evaluated: &Evaluated) -> Result<(), String> {
        tell("on_eval", &mut self.on_eval, evaluated)
    }
}

fn tell<News>(name: &str, hook: &mut Option<Hook<News>>, news: &News) -> Result<(), String> {
    let Some(code) = hook else { return Ok(()) };
    if catch_unwind(AssertUnwindSafe(|| code(news))).is_err() {
        *hook = None;
        return Err(format!("{name} panicked, and is not called any more; training goes on"));
    }
    Ok(())
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (on_epoch, on_eval) = (self.on_epoch.is_some(), self.on_eval.is_some());
        f.debug_struct("Hooks").field("on_epoch", &on_epoch).field("on_eval", &on_eval).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn code_that_panics_is_not_called_again() {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let on_epoch: Hook<EpochMetrics> = Box::new(move |metrics| {
            log.lock().expect("nobody panics with it").push(metrics.epoch.0);
            assert!(metrics.epoch.0 < 1, "enough");
        });
        let mut hooks = Hooks { on_epoch: Some(on_epoch), on_eval: None };
        let mut told = Vec::new();
        for epoch in 0..3 {
            told.push(hooks.epoch(&EpochMetrics { epoch: flodl_wire::Epoch(epoch), ..Default::default() }).is_ok());
        }
        assert_eq!(told, [true, false, true]);
        // The lock is poisoned only if the panic came while it was held, which it was not.
        assert_eq!(*heard.lock().expect("is free"), [0, 1]);
    }
}
