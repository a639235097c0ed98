//! The kinds of faults there are.

use core::fmt;

/// A kind of fault. A seed enables some of them, and strikes a few times with each.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A rank's process is killed at one of its inputs or outputs.
    RankCrash,
    /// A rank's own program fails: it ends with a status of its own.
    RankError,
    /// A relay's process is killed at one of its inputs or outputs; its guard kills the ranks.
    RelayDeath,
    /// A whole machine is gone without a word.
    HostDeath,
    /// A host that died comes back with a new relay.
    Restart,
    /// A process stands still for a while, then goes on as if nothing had been.
    Pause,
    /// A device is 2 to 50 times slower for a while.
    Slow,
    /// A rank's program makes no step any more, and its process lives.
    Hang,
    /// A host is asked to end, and leaves by plan.
    Leave,
    /// A connection is reset, with what was on its way.
    Reset,
    /// A connection carries nothing any more, and neither end is told.
    HalfOpen,
    /// A connection carries nothing for a while, then all of it.
    Stall,
    /// A connection is 5 to 500 times slower for a while.
    SlowLink,
    /// One direction of a connection carries nothing any more.
    OneWay,
    /// A host's data connection is dead while its control connection is well.
    ControlAlone,
    /// A host's control connection is dead while its data connection is well.
    DataAlone,
    /// One of a host's two connections is far ahead of the other.
    Reorder,
    /// A step leaves a value that is no number.
    NonFinite,
    /// A rank sends a chunk of another length than its model's.
    WrongShape,
    /// A rank sends what belongs to a round that is over.
    StaleRound,
    /// A frame between two hosts comes a second time.
    Replay,
    /// A bit of a frame between two hosts is another on arrival.
    Flip,
    /// A rank's memory holds another result than it received.
    CorruptResult,
    /// A host's clock jumps ahead.
    ClockJump,
    /// The disk is full while a checkpoint set is written.
    DiskFull,
    /// The disk does not confirm a write.
    FailedSync,
    /// The controller's machine loses its power; what was not synced may be lost or torn.
    TornWrite,
    /// Somebody asks for the end.
    Stop,
    /// The controller's process is killed.
    ControllerDeath,
    /// The next evaluation is an error.
    DutyError,
    /// The next evaluation never ends.
    DutyHang,
    /// The process of the next evaluation is killed in it.
    DutyCrash,
    /// The controller's process is killed, and another one goes on with its journal within the patience.
    ControllerRestart,
    /// The controller stands still and loses its hosts; another one goes on with a copy of its journal, and then both live.
    SecondController,
    /// The end of the journal is lost with the next controller that is killed.
    LostJournal,
    /// The journal cannot be written for a while.
    FullJournal,
    /// A rank's library does not come back from forming the next communicator.
    NcclInitHang,
    /// The next collective of a rank ends with an error of its communicator.
    NcclAsyncError,
    /// The next abort of a rank's communicator never returns.
    NcclAbortHang,
    /// The next id that a rank is asked for comes too late.
    NcclLateId,
    /// A rank's process is killed in its next collective.
    NcclCrash,
    /// Somebody asks for the end twice, while ranks average among themselves where they do.
    StopTwice,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 42] = [
        Class::RankCrash,
        Class::RankError,
        Class::RelayDeath,
        Class::HostDeath,
        Class::Restart,
        Class::Pause,
        Class::Slow,
        Class::Hang,
        Class::Leave,
        Class::Reset,
        Class::HalfOpen,
        Class::Stall,
        Class::SlowLink,
        Class::OneWay,
        Class::ControlAlone,
        Class::DataAlone,
        Class::Reorder,
        Class::NonFinite,
        Class::WrongShape,
        Class::StaleRound,
        Class::Replay,
        Class::Flip,
        Class::CorruptResult,
        Class::ClockJump,
        Class::DiskFull,
        Class::FailedSync,
        Class::TornWrite,
        Class::Stop,
        Class::ControllerDeath,
        Class::DutyError,
        Class::DutyHang,
        Class::DutyCrash,
        Class::ControllerRestart,
        Class::SecondController,
        Class::LostJournal,
        Class::FullJournal,
        Class::NcclInitHang,
        Class::NcclAsyncError,
        Class::NcclAbortHang,
        Class::NcclLateId,
        Class::NcclCrash,
        Class::StopTwice,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::RankCrash => "rank-crash",
            Class::RankError => "rank-error",
            Class::RelayDeath => "relay-death",
            Class::HostDeath => "host-death",
            Class::Restart => "restart",
            Class::Pause => "pause",
            Class::Slow => "slow",
            Class::Hang => "hang",
            Class::Leave => "leave",
            Class::Reset => "reset",
            Class::HalfOpen => "half-open",
            Class::Stall => "stall",
            Class::SlowLink => "slow-link",
            Class::OneWay => "one-way",
            Class::ControlAlone => "control-alone",
            Class::DataAlone => "data-alone",
            Class::Reorder => "reorder",
            Class::NonFinite => "non-finite",
            Class::WrongShape => "wrong-shape",
            Class::StaleRound => "stale-round",
            Class::Replay => "replay",
            Class::Flip => "flip",
            Class::CorruptResult => "corrupt-result",
            Class::ClockJump => "clock-jump",
            Class::DiskFull => "disk-full",
            Class::FailedSync => "failed-sync",
            Class::TornWrite => "torn-write",
            Class::Stop => "stop",
            Class::ControllerDeath => "controller-death",
            Class::DutyError => "duty-error",
            Class::DutyHang => "duty-hang",
            Class::DutyCrash => "duty-crash",
            Class::ControllerRestart => "controller-restart",
            Class::SecondController => "second-controller",
            Class::LostJournal => "lost-journal",
            Class::FullJournal => "full-journal",
            Class::NcclInitHang => "nccl-init-hang",
            Class::NcclAsyncError => "nccl-async-error",
            Class::NcclAbortHang => "nccl-abort-hang",
            Class::NcclLateId => "nccl-late-id",
            Class::NcclCrash => "nccl-crash",
            Class::StopTwice => "stop-twice",
        }
    }

    /// The class of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.name() == name)
    }

    /// Whether it strikes whoever does something for all.
    pub(crate) fn is_of_duties(self) -> bool {
        matches!(self, Class::DutyError | Class::DutyHang | Class::DutyCrash)
    }

    /// Whether it strikes those who average among themselves, or was drawn from the first by a chance of its own with them.
    pub(crate) fn is_of_nccl(self) -> bool {
        matches!(
            self,
            Class::NcclInitHang | Class::NcclAsyncError | Class::NcclAbortHang | Class::NcclLateId | Class::NcclCrash
        )
    }

    /// Whether it needs what a run over NCCL does not have: a consensus that the controller's relays keep.
    pub(crate) fn needs_folds(self) -> bool {
        matches!(self, Class::ControllerRestart | Class::SecondController)
    }

    /// Whether a seed rarely enables it, because it ends the run.
    pub(crate) fn is_rare(self) -> bool {
        matches!(self, Class::Stop | Class::StopTwice | Class::ControllerDeath | Class::TornWrite)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_found_by_its_name() {
        for class in Class::ALL {
            assert_eq!(Class::named(class.name()), Some(class));
        }
        assert_eq!(Class::named("meteor"), None);
    }
}
