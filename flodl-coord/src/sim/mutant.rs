//! The self-test's mutants: the production cores with one protection turned off.
//!
//! No core knows of this. A mutant undoes what a protection does where the core meets its surroundings: it passes on what
//! would have been refused, or says what would have been checked. A simulator that does not notice has no eyes for it.

use super::class::Class;
use super::fabric::Fabric;
use crate::Coordinator;
use core::time::Duration;

/// A protection that is turned off.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mutant {
    /// Digests of consensus and replica are not compared: the coordinator is told those it expects.
    DigestCompare,
    /// A frame that comes a second time is taken.
    ExactSequence,
    /// A frame that was changed on its way is taken.
    FrameSeal,
    /// A replica that holds what is no number contributes.
    FiniteTest,
    /// The result is not divided by the mass in it.
    MassDivision,
    /// The coordinator is not told of processes that end and connections that close.
    DeathNotice,
    /// The coordinator is not told whom the root waits for.
    CutOff,
    /// The folds go on waiting for the dead.
    FoldDrop,
    /// A rank applies a result before its round is committed.
    CommitBeforeApply,
    /// A round is committed before everybody has its result.
    EverybodyAcks,
    /// A contribution of which a part was folded counts as whole.
    PartialIsNotWhole,
    /// A contribution of which a part was folded counts as not folded at all.
    RepeatsCounted,
    /// A contribution that was not folded counts as whole.
    OnlyFoldedCommits,
    /// What belongs to a round that is over is taken for the open one.
    RoundNumber,
    /// Who never had the consensus is made a source.
    ConsensusBeforeSource,
    /// A relay does not notice that its controller is gone.
    ControllerWatch,
    /// Who is dead for the coordinator is not killed.
    KillTheDead,
    /// A write counts as on the disk before it is.
    SyncBeforeRename,
    /// Who is dead is not told so when its host comes back.
    Fence,
    /// What a life says that is over is taken for the word of the rank's next life.
    IncarnationCheck,
    /// What comes late through a link that was replaced is taken for the new one's.
    SessionNumber,
    /// Whoever is out of reach is dead at once.
    DetachedIsNotDead,
    /// What a rank said around the loss of its link is not heard.
    LastWords,
    /// An order that was lost with a link is not given again.
    LostOrders,
    /// Lives that a relay may not have heard of are ordered once more.
    LostLives,
    /// Whose place is not known yet hears of rounds.
    Attachment,
    /// A relay that is back sends again what it sent last.
    NothingTwice,
    /// A relay does not wait until its controller knows that its ranks have ended.
    Dismissal,
    /// A rank that hangs seems to make steps.
    StallCeiling,
    /// The dead keep their leases.
    Forfeit,
    /// An evaluation counts as done when it is ordered.
    DutyAwaited,
    /// Who was elected first is asked for ever, dead or alive.
    DutyReelected,
    /// A rank evaluates only after its next window.
    DutyBeforeWindow,
    /// Nobody is told what a commit makes true, and it is not written down.
    RecordBeforeApply,
    /// A round that is run again makes ranks forget what they have trained.
    RunAgain,
    /// Another controller does not learn what ranks were given.
    LeasesKept,
    /// A relay listens to a controller whose place another one has taken.
    Generation,
    /// A rank runs ahead of its window as far as its lease goes.
    LeadLimit,
    /// A contribution counts the steps of the one before it once more.
    StepsSinceSnapshot,
    /// Whoever holds some consensus gets differences from the one in force.
    BaseVersion,
    /// What is lost by rounding counts before its round is committed.
    LostAtCommit,
    /// A round that is averaged again among the ranks starts from what was left of it, and not from the copies.
    RestoreBeforeRetry,
    /// An answer to a round counts for whatever communicator it is averaged on now.
    CommunicatorNumber,
    /// Who asks twice for the end gets it, whoever is in a collective.
    NobodyInside,
    /// A rank whose run is to be bit-equal takes a result when it comes.
    FixedPlace,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 45] = [
        Mutant::DigestCompare,
        Mutant::ExactSequence,
        Mutant::FrameSeal,
        Mutant::FiniteTest,
        Mutant::MassDivision,
        Mutant::DeathNotice,
        Mutant::CutOff,
        Mutant::FoldDrop,
        Mutant::CommitBeforeApply,
        Mutant::EverybodyAcks,
        Mutant::PartialIsNotWhole,
        Mutant::RepeatsCounted,
        Mutant::OnlyFoldedCommits,
        Mutant::RoundNumber,
        Mutant::ConsensusBeforeSource,
        Mutant::ControllerWatch,
        Mutant::KillTheDead,
        Mutant::SyncBeforeRename,
        Mutant::Fence,
        Mutant::IncarnationCheck,
        Mutant::SessionNumber,
        Mutant::DetachedIsNotDead,
        Mutant::LastWords,
        Mutant::LostOrders,
        Mutant::LostLives,
        Mutant::Attachment,
        Mutant::NothingTwice,
        Mutant::Dismissal,
        Mutant::StallCeiling,
        Mutant::Forfeit,
        Mutant::DutyAwaited,
        Mutant::DutyReelected,
        Mutant::DutyBeforeWindow,
        Mutant::RecordBeforeApply,
        Mutant::RunAgain,
        Mutant::LeasesKept,
        Mutant::Generation,
        Mutant::LeadLimit,
        Mutant::StepsSinceSnapshot,
        Mutant::BaseVersion,
        Mutant::LostAtCommit,
        Mutant::RestoreBeforeRetry,
        Mutant::CommunicatorNumber,
        Mutant::NobodyInside,
        Mutant::FixedPlace,
    ];

    /// Its name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mutant::DigestCompare => "digest-compare",
            Mutant::ExactSequence => "exact-sequence",
            Mutant::FrameSeal => "frame-seal",
            Mutant::FiniteTest => "finite-test",
            Mutant::MassDivision => "mass-division",
            Mutant::DeathNotice => "death-notice",
            Mutant::CutOff => "cut-off",
            Mutant::FoldDrop => "fold-drop",
            Mutant::CommitBeforeApply => "commit-before-apply",
            Mutant::EverybodyAcks => "everybody-acks",
            Mutant::PartialIsNotWhole => "partial-is-not-whole",
            Mutant::RepeatsCounted => "repeats-counted",
            Mutant::OnlyFoldedCommits => "only-folded-commits",
            Mutant::RoundNumber => "round-number",
            Mutant::ConsensusBeforeSource => "consensus-before-source",
            Mutant::ControllerWatch => "controller-watch",
            Mutant::KillTheDead => "kill-the-dead",
            Mutant::SyncBeforeRename => "sync-before-rename",
            Mutant::Fence => "fence",
            Mutant::IncarnationCheck => "incarnation-check",
            Mutant::SessionNumber => "session-number",
            Mutant::DetachedIsNotDead => "detached-is-not-dead",
            Mutant::LastWords => "last-words",
            Mutant::LostOrders => "lost-orders",
            Mutant::LostLives => "lost-lives",
            Mutant::Attachment => "attachment",
            Mutant::NothingTwice => "nothing-twice",
            Mutant::Dismissal => "dismissal",
            Mutant::StallCeiling => "stall-ceiling",
            Mutant::Forfeit => "forfeit",
            Mutant::DutyAwaited => "duty-awaited",
            Mutant::DutyReelected => "duty-reelected",
            Mutant::DutyBeforeWindow => "duty-before-window",
            Mutant::RecordBeforeApply => "record-before-apply",
            Mutant::RunAgain => "run-again",
            Mutant::LeasesKept => "leases-kept",
            Mutant::Generation => "generation",
            Mutant::LeadLimit => "lead-limit",
            Mutant::StepsSinceSnapshot => "steps-since-snapshot",
            Mutant::BaseVersion => "base-version",
            Mutant::LostAtCommit => "lost-at-commit",
            Mutant::RestoreBeforeRetry => "restore-before-retry",
            Mutant::CommunicatorNumber => "communicator-number",
            Mutant::NobodyInside => "nobody-inside",
            Mutant::FixedPlace => "fixed-place",
        }
    }

    /// The mutant of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Mutant> {
        Mutant::ALL.into_iter().find(|mutant| mutant.name() == name)
    }

    /// The faults that the protection is against: the self-test enables these.
    #[must_use]
    pub fn against(self) -> &'static [Class] {
        match self {
            Mutant::DigestCompare => &[Class::CorruptResult],
            Mutant::ExactSequence => &[Class::Replay],
            Mutant::FrameSeal => &[Class::Flip],
            Mutant::FiniteTest => &[Class::NonFinite],
            Mutant::MassDivision | Mutant::LeadLimit => &[],
            Mutant::StepsSinceSnapshot | Mutant::FixedPlace => &[],
            Mutant::DeathNotice => &[Class::RankCrash],
            Mutant::CutOff => &[Class::ControlAlone],
            Mutant::FoldDrop => &[Class::RankCrash],
            Mutant::CommitBeforeApply => &[Class::RankCrash],
            Mutant::EverybodyAcks => &[Class::SlowLink, Class::RankCrash],
            Mutant::PartialIsNotWhole | Mutant::RepeatsCounted => &[Class::RankCrash],
            Mutant::OnlyFoldedCommits => &[Class::RankCrash, Class::NonFinite],
            Mutant::RoundNumber => &[Class::StaleRound],
            Mutant::ConsensusBeforeSource => &[Class::CorruptResult, Class::NonFinite],
            Mutant::ControllerWatch => &[Class::ControllerDeath, Class::HalfOpen],
            Mutant::KillTheDead => &[Class::Pause],
            Mutant::SyncBeforeRename => &[Class::TornWrite],
            Mutant::Fence => &[Class::HalfOpen, Class::OneWay],
            Mutant::IncarnationCheck => &[Class::HalfOpen, Class::OneWay, Class::HostDeath, Class::Restart],
            Mutant::SessionNumber => &[Class::Reset, Class::Stall],
            Mutant::DetachedIsNotDead => &[Class::Reset],
            Mutant::LastWords => &[Class::Reset],
            Mutant::LostOrders | Mutant::LostLives => &[Class::Reset],
            Mutant::Attachment => &[Class::Reset],
            Mutant::NothingTwice => &[Class::Reset],
            Mutant::Dismissal => &[Class::Reset],
            Mutant::BaseVersion | Mutant::LostAtCommit => &[Class::Reset, Class::Stall],
            Mutant::StallCeiling => &[Class::Hang],
            Mutant::Forfeit => &[Class::RankCrash],
            Mutant::DutyAwaited | Mutant::DutyBeforeWindow => &[Class::DutyError],
            Mutant::DutyReelected => &[Class::DutyCrash],
            Mutant::RecordBeforeApply | Mutant::RunAgain | Mutant::LeasesKept => &[Class::ControllerRestart],
            Mutant::Generation => &[Class::SecondController],
            Mutant::RestoreBeforeRetry | Mutant::CommunicatorNumber => &[Class::NcclAsyncError, Class::NcclCrash],
            Mutant::NobodyInside => &[Class::NcclAsyncError, Class::StopTwice],
        }
    }
}

/// What a mutant leaves of a core's deadlines.
pub(crate) fn unprotected(fab: &Fabric, mut core: Coordinator) -> Coordinator {
    if fab.off(Mutant::DetachedIsNotDead) {
        core.deadlines.detached = Duration::ZERO;
    }
    core
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_is_found_by_its_name() {
        for mutant in Mutant::ALL {
            assert_eq!(Mutant::named(mutant.name()), Some(mutant));
        }
        assert_eq!(Mutant::named("gravity"), None);
    }
}
