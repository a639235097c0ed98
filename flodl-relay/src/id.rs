//! Where the names on the wire become those of the folds, and back. Nowhere else.

use flodl_cpureduce::{Absence, Contributor, Layout, LayoutError, Mass, MassError, Outcome};
use flodl_wire::message::Data;
use flodl_wire::message::data::{AbsentWhy, Chunk};
use flodl_wire::message::join::LayoutSizes;
use flodl_wire::message::report::FoldedPart;
use flodl_wire::{Rank, Round};

/// A rank as a contributor of its host's fold. At the root a relay goes by the lowest of its ranks in the round.
pub(crate) fn contributor(rank: Rank) -> Contributor {
    Contributor(rank.0)
}

/// The rank behind a contributor.
pub(crate) fn rank(contributor: Contributor) -> Rank {
    Rank(contributor.0)
}

/// The chunks of a model of these sizes.
pub(crate) fn layout(sizes: LayoutSizes) -> Result<Layout, LayoutError> {
    Layout::new(sizes.parameters, sizes.buffers, sizes.integers)
}

/// A chunk's mass, as far as it is one.
pub(crate) fn mass(chunk: &Chunk) -> Result<Mass, MassError> {
    Mass::new(chunk.mass)
}

/// Why somebody is absent, as the folds say it.
pub(crate) fn absence(why: AbsentWhy) -> Absence {
    match why {
        AbsentWhy::Joining => Absence::Joining,
        AbsentWhy::NothingTrained => Absence::NothingTrained,
        AbsentWhy::NonFinite => Absence::NonFinite,
        AbsentWhy::Dead => Absence::Dead,
        AbsentWhy::LinkLost => Absence::LinkLost,
        AbsentWhy::Stale => Absence::Stale,
        AbsentWhy::Empty => Absence::Empty,
    }
}

/// Why somebody is absent, as the wire says it.
pub(crate) fn absent_why(absence: Absence) -> AbsentWhy {
    match absence {
        Absence::Joining => AbsentWhy::Joining,
        Absence::NothingTrained => AbsentWhy::NothingTrained,
        Absence::NonFinite => AbsentWhy::NonFinite,
        Absence::Dead => AbsentWhy::Dead,
        Absence::LinkLost => AbsentWhy::LinkLost,
        Absence::Stale => AbsentWhy::Stale,
        Absence::Empty => AbsentWhy::Empty,
    }
}

/// The round that a message is of.
pub(crate) const fn round_of(data: &Data) -> Round {
    match data {
        Data::Contribution(chunk) | Data::Consensus(chunk) => chunk.round,
        Data::Absent { round, .. } | Data::Dropped { round, .. } => *round,
        Data::Holds { round, .. } | Data::LeftOut { round, .. } => *round,
    }
}

/// How much of a rank's work was folded.
pub(crate) fn folded_part(outcome: Outcome) -> FoldedPart {
    match outcome {
        Outcome::Whole => FoldedPart::Whole,
        Outcome::Chunks(chunks) => FoldedPart::Chunks(chunks),
        Outcome::Nothing => FoldedPart::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_the_way_through_the_fold() {
        for why in [
            AbsentWhy::Joining,
            AbsentWhy::NothingTrained,
            AbsentWhy::NonFinite,
            AbsentWhy::Dead,
            AbsentWhy::LinkLost,
            AbsentWhy::Stale,
            AbsentWhy::Empty,
        ] {
            assert_eq!(absent_why(absence(why)), why);
        }
    }
}
