//! Calls into the user's code: an error and a panic become failures of the rank that say where they came from.

use crate::reduce::ReduceError;
use crate::session::Failure;
use crate::trainee::{Fault, LrPosition};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the user's code where its error is an answer; only a panic ends the rank.
pub(crate) fn answer<R>(
    during: &'static str,
    code: impl FnOnce() -> Result<R, Fault>,
) -> Result<Result<R, String>, Failure> {
    match user(during, code) {
        Ok(done) => Ok(Ok(done)),
        Err(Failure::User { error, .. }) => Ok(Err(error)),
        Err(failure) => Err(failure),
    }
}

/// Runs the user's code: an error and a panic become a [`Failure`].
pub(crate) fn user<R>(during: &'static str, code: impl FnOnce() -> Result<R, Fault>) -> Result<R, Failure> {
    match catch_unwind(AssertUnwindSafe(code)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(Failure::User { during, error: error.to_string() }),
        Err(payload) => Err(Failure::Panicked { message: panic_message(&*payload) }),
    }
}

/// What a panic said.
pub(crate) fn panic_message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().map(str::to_owned);
    text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "without a message".to_owned())
}

pub(crate) fn fault(error: ReduceError) -> Fault {
    match error {
        ReduceError::Model(fault) => fault,
        mismatch => mismatch.into(),
    }
}

pub(crate) fn learning_rate(lr: f64, at: LrPosition) -> Result<f64, Fault> {
    if lr.is_finite() && lr >= 0.0 {
        Ok(lr)
    } else {
        Err(format!("gave {lr} at batch {} of {}: it must be finite and not negative", at.batch, at.total).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learning_rates_must_be_numbers_to_step_by() {
        let at = LrPosition { batch: 3, total: 9 };
        assert_eq!(learning_rate(0.0, at).unwrap(), 0.0);
        for lr in [f64::NAN, f64::INFINITY, -0.1] {
            let error = learning_rate(lr, at).unwrap_err().to_string();
            assert_eq!(error, format!("gave {lr} at batch 3 of 9: it must be finite and not negative"));
        }
    }

    #[test]
    fn panics_are_quoted() {
        let quoted = |code: fn()| {
            user("a test", || -> Result<(), Fault> {
                code();
                Ok(())
            })
        };
        let panicked = |message: &str| Err(Failure::Panicked { message: message.to_owned() });
        assert_eq!(quoted(|| panic!("plain")), panicked("plain"));
        assert_eq!(quoted(|| panic!("number {}", 7)), panicked("number 7"));
        assert_eq!(quoted(|| std::panic::panic_any(7)), panicked("without a message"));
        assert_eq!(quoted(|| ()), Ok(()));
    }
}
