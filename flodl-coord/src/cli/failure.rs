//! Why a command ends before it began.

use super::rundir::RunDirError;
use super::{FAILED, USAGE};

/// A sentence that says what to do, and the exit status.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: u8,
    pub(crate) text: String,
}

impl Failure {
    /// Something outside the command line is not as it must be.
    pub(crate) fn failed(error: impl ToString) -> Failure {
        Failure { exit: FAILED, text: error.to_string() }
    }

    /// The command line asks for what cannot be.
    pub(crate) fn usage(error: impl ToString) -> Failure {
        Failure { exit: USAGE, text: error.to_string() }
    }
}

impl From<RunDirError> for Failure {
    fn from(error: RunDirError) -> Failure {
        match error {
            RunDirError::Unusable { .. } => Failure::failed(error),
            RunDirError::NotEmpty { .. } | RunDirError::NotAFolder { .. } => Failure::usage(error),
        }
    }
}
