//! How a member's life ended, and what a person is told about it.

use core::fmt;
use core::time::Duration;
use flodl_wire::message::nccl::STUCK_EXIT;
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::ExitStatus;
use flodl_wire::{Rank, Round};

/// How a member's life ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// It did what it was told to the end.
    Finished,
    /// It left by plan.
    Left,
    /// It was not taken into the run.
    Refused(Reason),
    /// Its process could not be started.
    NotStarted {
        /// What the host's relay said.
        error: String,
    },
    /// Its process ended before the run did.
    Exited {
        /// How.
        status: ExitStatus,
        /// What it wrote last.
        last_lines: String,
    },
    /// It said itself that it cannot go on.
    Failed {
        /// Its own sentence.
        error: String,
    },
    /// Its connection to the relay ended without `Finished`.
    Disconnected {
        /// What the relay said.
        error: String,
    },
    /// Nothing came from it for so long.
    Silent {
        /// The patience.
        patience: Duration,
    },
    /// Its host's link to the controller is gone.
    HostLost {
        /// What the link said last.
        error: String,
    },
    /// It broke the protocol.
    Breach(Breach),
    /// It did not come to hold the consensus, or not to keep it, in so many rounds in a row.
    OutOfSync {
        /// How many.
        rounds: u32,
    },
    /// It gave signs of life, but made no step (or no answer to a round) for so long.
    Stalled {
        /// How long.
        still: Duration,
    },
    /// Its list of tensors did not come, though it gave signs of life: a slow link, or a program that hangs.
    ListLate {
        /// The time given.
        within: Duration,
    },
    /// It did not begin to form the communicator that the others formed, or came to nothing in all attempts.
    NoCommunicator,
    /// It did not end within the time given for it.
    Overdue {
        /// The time given.
        within: Duration,
    },
}

/// What a member may not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// It reported ranges that were not leased to it.
    #[error("it reported {got} trained samples of which some were not leased to it")]
    NotLeased {
        /// Samples reported.
        got: u64,
    },
    /// Its snapshot names other ranges than its window report did.
    #[error("its snapshot speaks for {snapshot} samples, its window reports for {reported}")]
    Snapshot {
        /// In the snapshot.
        snapshot: u64,
        /// In its reports.
        reported: u64,
    },
    /// It spoke of a window it is not in.
    #[error("it reported a window it was not given")]
    Window,
    /// It ended its window without a batch although it had samples and nobody asked for a round.
    #[error("it was leased {leased} samples and trained none of them")]
    Idle {
        /// Samples leased.
        leased: u64,
    },
    /// Its window report's figures contradict each other.
    #[error("it reported {batches} batches of {told} samples, and ranges that hold {samples}")]
    Figures {
        /// Batches reported.
        batches: u64,
        /// Samples reported.
        told: u64,
        /// Samples in the ranges it reported.
        samples: u64,
    },
    /// It spoke of a round before it had said what it brings into it.
    #[error("it spoke of {round} before its window report and snapshot")]
    Order {
        /// The round.
        round: Round,
    },
    /// Its manifest does not hash to the digest it was announced with.
    #[error("its list of tensors does not match the digest it announced")]
    Manifest,
    /// Its model has nothing to train.
    #[error("its model holds no parameters: there is nothing to train")]
    NoParameters,
    /// Its dataset holds nothing, or more than can be scheduled.
    #[error("its dataset holds {len} samples; 1 to {max} can be trained on")]
    Dataset {
        /// Samples.
        len: u64,
        /// The most.
        max: u64,
    },
}

impl Fate {
    /// Whether the run is worse off for it.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        !matches!(self, Fate::Finished | Fate::Left)
    }

    /// Whether another life of the same rank may do better.
    #[must_use]
    pub fn may_return(&self) -> bool {
        !matches!(
            self,
            Fate::Finished
                | Fate::Left
                | Fate::Refused(_)
                | Fate::NotStarted { .. }
                | Fate::Breach(_)
                | Fate::Overdue { .. }
        )
    }

    /// Whether it brought itself down (rather than being killed, lost or refused).
    #[must_use]
    pub fn brought_itself_down(&self) -> bool {
        const CRASHES: [i32; 5] = [4, 6, 7, 8, 11]; // SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV
        match self {
            Fate::Failed { .. } | Fate::NotStarted { .. } | Fate::Breach(_) | Fate::Refused(_) => true,
            // Its process lives: what hangs is its own code, maybe over these samples.
            Fate::Stalled { .. } => true,
            // Its library did not come back; no samples can help that.
            Fate::Exited { status: ExitStatus::Code(STUCK_EXIT), .. } => false,
            Fate::Exited { status: ExitStatus::Code(_), .. } => true,
            Fate::Exited { status: ExitStatus::Signal(signal), .. } => CRASHES.contains(signal),
            Fate::Exited { status: ExitStatus::Unknown, .. } => false,
            Fate::Finished | Fate::Left | Fate::Disconnected { .. } | Fate::Silent { .. } | Fate::HostLost { .. } => {
                false
            }
            Fate::OutOfSync { .. } | Fate::ListLate { .. } | Fate::Overdue { .. } | Fate::NoCommunicator => false,
        }
    }

    fn code(&self) -> &'static str {
        match self {
            Fate::Finished => "finished",
            Fate::Left => "left",
            Fate::Refused(_) => "refused",
            Fate::NotStarted { .. } => "not-started",
            Fate::Exited { .. } => "process-exited",
            Fate::Failed { .. } => "failed",
            Fate::Disconnected { .. } => "disconnected",
            Fate::Silent { .. } => "silent",
            Fate::HostLost { .. } => "host-lost",
            Fate::Breach(_) => "protocol-breach",
            Fate::OutOfSync { .. } => "out-of-sync",
            Fate::Stalled { .. } => "stalled",
            Fate::ListLate { .. } => "list-late",
            Fate::NoCommunicator => "no-communicator",
            Fate::Overdue { .. } => "overdue",
        }
    }

    /// The reason that log, timeline and summary show.
    #[must_use]
    pub fn reason(&self, rank: Rank) -> Reason {
        if let Fate::Refused(why) = self {
            return why.clone();
        }
        Reason::new(self.code(), self.to_string()).about([rank])
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Finished => f.write_str("finished as it was told to"),
            Fate::Left => f.write_str("left by plan"),
            Fate::Refused(why) => write!(f, "refused: {}", why.text),
            Fate::NotStarted { error } => write!(f, "its process could not be started: {error}"),
            Fate::Exited { status, last_lines } => {
                match status {
                    ExitStatus::Code(STUCK_EXIT) => {
                        write!(f, "its process ended with status {STUCK_EXIT}: NCCL did not come back from a call")?;
                    }
                    ExitStatus::Code(code) => write!(f, "its process ended with status {code}")?,
                    ExitStatus::Signal(signal) => write!(f, "its process was killed by {}", signal_name(*signal))?,
                    ExitStatus::Unknown => f.write_str("its process ended, the system does not say how")?,
                }
                match last_lines.lines().rev().find(|line| !line.trim().is_empty()) {
                    Some(line) => write!(f, "; its last words: {}", line.trim()),
                    None => Ok(()),
                }
            }
            Fate::Failed { error } => write!(f, "it failed: {error}"),
            Fate::Disconnected { error } => write!(f, "its connection to the relay ended: {error}"),
            Fate::Silent { patience } => write!(f, "nothing was heard from it for {patience:?} (the patience)"),
            Fate::HostLost { error } => write!(f, "the link to its host is gone: {error}"),
            Fate::Breach(breach) => write!(f, "it broke the protocol: {breach}"),
            Fate::OutOfSync { rounds } => write!(f, "it did not hold the consensus after {rounds} rounds in a row"),
            Fate::Stalled { still } => {
                write!(
                    f,
                    "it gave signs of life but made no progress for {:.1} s: its program hangs",
                    still.as_secs_f64()
                )
            }
            Fate::ListLate { within } => {
                write!(f, "it did not send its list of tensors within {within:?} of being asked")
            }
            Fate::NoCommunicator => f.write_str("it did not come into the communicator that the others formed"),
            Fate::Overdue { within } => write!(f, "it did not end within {within:?} of being told to"),
        }
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exited(status: ExitStatus, last_lines: &str) -> Fate {
        Fate::Exited { status, last_lines: last_lines.to_owned() }
    }

    #[test]
    fn who_brought_itself_down() {
        let own = [
            exited(ExitStatus::Code(1), ""),
            exited(ExitStatus::Signal(11), ""),
            exited(ExitStatus::Signal(8), ""),
            Fate::Failed { error: "loss is not a number".into() },
        ];
        let not = [
            exited(ExitStatus::Signal(9), ""),
            exited(ExitStatus::Signal(15), ""),
            exited(ExitStatus::Unknown, ""),
            exited(ExitStatus::Code(STUCK_EXIT), ""),
            Fate::NoCommunicator,
            Fate::Silent { patience: Duration::from_secs(10) },
            Fate::HostLost { error: "reset".into() },
        ];
        assert!(own.iter().all(Fate::brought_itself_down));
        assert!(!not.iter().any(Fate::brought_itself_down));
    }

    #[test]
    fn the_last_words_are_in_the_sentence() {
        let fate = exited(ExitStatus::Code(101), "loading\nthread 'main' panicked\n\n");
        assert_eq!(fate.to_string(), "its process ended with status 101; its last words: thread 'main' panicked");
        assert_eq!(exited(ExitStatus::Signal(9), "").to_string(), "its process was killed by signal 9 (SIGKILL)");
        let reason = fate.reason(Rank(2));
        assert_eq!((reason.code.as_str(), reason.ranks), ("process-exited", vec![Rank(2)]));
    }
}
