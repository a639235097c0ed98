//! How a command ends when it does not end well: what to tell the person, and the exit status.

/// Why a command did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The command line asks for something that cannot be; exit status 2.
    Usage(String),
    /// The work failed; exit status 1.
    Failed(String),
    /// The work failed and everything has been said already, or a program's own status is passed on.
    Status(u8),
}

impl Failure {
    /// A usage error with its sentence.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// A failure with its sentence.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// The sentence for the person, where there is one left to say.
    pub(crate) fn message(&self) -> Option<&str> {
        match self {
            Self::Usage(message) | Self::Failed(message) => Some(message),
            Self::Status(_) => None,
        }
    }

    /// The exit status of the process.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Failed(_) => 1,
            Self::Status(status) => *status,
        }
    }
}
