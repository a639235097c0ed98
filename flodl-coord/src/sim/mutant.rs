//! The self-test's mutants: the production cores with one protection turned off.
//!
//! No core knows of this. A mutant undoes what a protection does where the core meets its surroundings: it passes on what
//! would have been refused, or says what would have been checked. A simulator that does not notice has no eyes for it.

use super::class::Class;

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
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 18] = [
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
            Mutant::MassDivision => &[],
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
        }
    }
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
