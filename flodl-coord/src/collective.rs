//! A round that ranks average among themselves: what is to be averaged, on which communicator, and what came of it.
//!
//! Nobody folds such a round, so nobody says whose work is in it; the answers do. A collective comes to its end only where every
//! member of its communicator was in it, so where all that are left answer alike, what each of its members gave is in the result,
//! also of those that died since.
//!
//! Invariant: an answer counts for the communicator that it names and no other. Who has answered on one that was lost
//! answers again on the next, from the copy that it made before.

use crate::communicators::Life;
use crate::round::{OpenRound, Over, RoundPart};
use crate::running::Held;
use flodl_wire::message::control::Part;
use flodl_wire::message::nccl::NcclAck;
use flodl_wire::message::report::{Folded, FoldedPart, Received};
use flodl_wire::{NcclSession, Rank};
use std::collections::{BTreeMap, BTreeSet};

/// So often the collectives of a round may be lost though nobody died of it.
const LOSSES_MAX: u32 = 3;

/// How far a round is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Collective {
    /// What goes on, once there is a communicator.
    pub(crate) issued: Option<Issued>,
    /// How often it was lost though nobody died.
    losses: u32,
}

/// A round's collectives on one communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Issued {
    pub(crate) session: NcclSession,
    pub(crate) members: BTreeSet<Life>,
    /// Whose replica all take; `None`: the average.
    pub(crate) root: Option<Rank>,
}

/// What a round's collectives are to do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The average of those who have trained.
    Average,
    /// Everybody takes the replica of that rank.
    Take(Rank),
    /// Nothing is to be averaged and nobody lacks anything.
    Nothing,
    /// Some lack the consensus, and none of those who take part has it.
    NoHolder,
}

/// How the collectives stand that were issued.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// They go on.
    Open,
    /// Everybody who is left has answered.
    Answered,
    /// A member died in them: they come to nothing.
    MemberDied(Rank),
    /// Nobody is left.
    Nobody,
}

impl Collective {
    /// It is lost. `by_death`: of a member. Whether there is any use in doing it again.
    pub(crate) fn lost(&mut self, by_death: bool) -> bool {
        self.issued = None;
        self.losses += u32::from(!by_death);
        self.losses <= LOSSES_MAX
    }
}

impl OpenRound {
    /// The collectives that were issued.
    pub(crate) fn issued(&self) -> Option<&Issued> {
        match &self.over {
            Over::Nccl(Collective { issued, .. }) => issued.as_ref(),
            Over::Cpu | Over::Handover => None,
        }
    }

    pub(crate) fn is_over_nccl(&self) -> bool {
        matches!(self.over, Over::Nccl(_))
    }

    /// Who takes part in it, as far as they are not out of it.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = (Rank, &RoundPart)> {
        self.parts.iter().filter(|(_, part)| part.is_awaited()).map(|(&rank, part)| (rank, part))
    }

    /// What its collectives are to do, given that every snapshot is taken.
    pub(crate) fn goal(&self, has_consensus: bool) -> Goal {
        let mut awaited = self.awaited();
        if !has_consensus {
            let source = awaited.find(|(_, part)| part.part == Part::Source && part.adds());
            return source.map_or(Goal::Nothing, |(rank, _)| Goal::Take(rank));
        }
        if awaited.any(|(_, part)| part.part == Part::Contribute && part.adds()) {
            return Goal::Average;
        }
        if !self.awaited().any(|(_, part)| part.part == Part::Receive || part.is_unfit) {
            return Goal::Nothing;
        }
        // Whoever has trained nothing since it took the consensus is the consensus.
        let holds = |(_, part): &(Rank, &RoundPart)| part.part == Part::Contribute && !part.is_unfit;
        self.awaited().find(holds).map_or(Goal::NoHolder, |(rank, _)| Goal::Take(rank))
    }

    /// The collectives are issued.
    pub(crate) fn issue(&mut self, issued: Issued) {
        let awaited: BTreeSet<Rank> = self.awaited().map(|(rank, _)| rank).collect();
        self.parts.values_mut().for_each(|part| part.ack = None);
        self.lacking.acks = awaited;
        if let Over::Nccl(collective) = &mut self.over {
            collective.issued = Some(issued);
        }
        self.nobody_late = false;
    }

    /// A rank has answered. Whether that counts.
    pub(crate) fn take_nccl_ack(&mut self, rank: Rank, NcclAck { session, ack }: NcclAck) -> bool {
        let counts = self.id == ack.round
            && self.issued().is_some_and(|issued| issued.session == session)
            && self.parts.get(&rank).is_some_and(|part| part.is_awaited() && part.ack.is_none());
        if counts {
            self.take_ack(rank, ack);
        }
        counts
    }

    /// How the collectives stand.
    pub(crate) fn outcome(&self, issued: &Issued) -> Outcome {
        let is_in = |rank: Rank, part: &RoundPart| issued.members.contains(&(rank, part.incarnation));
        let mut left = self.awaited().filter(|&(rank, part)| is_in(rank, part)).peekable();
        if left.peek().is_none() {
            return Outcome::Nobody;
        }
        if left.all(|(_, part)| part.received().is_some()) {
            return Outcome::Answered;
        }
        let died = |(&rank, part): (&Rank, &RoundPart)| (!part.is_awaited() && is_in(rank, part)).then_some(rank);
        self.parts.iter().find_map(died).map_or(Outcome::Open, Outcome::MemberDied)
    }

    /// Everybody has answered: whose work is in the result is known now. `held`: the consensus that was in force.
    ///
    /// # Errors
    /// Whose replica is not the consensus that it should have given to all: the result does not count, and it is no holder.
    pub(crate) fn conclude(&mut self, issued: &Issued, held: Option<Held>) -> Result<(), Rank> {
        let digest = self.most_common_digest();
        let first = held.is_none();
        let is_in = |rank: Rank, part: &RoundPart| {
            let gives = issued.root.map_or(part.adds(), |root| first && root == rank);
            gives && issued.members.contains(&(rank, part.incarnation))
        };
        let part_of = |(&rank, part): (&Rank, &RoundPart)| {
            let folded = if is_in(rank, part) { FoldedPart::Whole } else { FoldedPart::None };
            (rank, part.incarnation, folded)
        };
        let ranks = self.parts.iter().map(part_of).collect();
        let any_mass = issued.root.is_none() || first;
        self.lacking.acks.clear();
        let another = held.is_some_and(|held| held.digest != digest);
        if let Some(root) = issued.root.filter(|_| !any_mass && another) {
            self.fold_nothing();
            if let Some(part) = self.parts.get_mut(&root) {
                part.part = Part::Receive;
            }
            return Err(root);
        }
        self.folded = Some(Folded { round: self.id, ranks, digest, any_mass });
        Ok(())
    }

    /// The round comes to nothing.
    pub(crate) fn fold_nothing(&mut self) {
        self.parts.values_mut().for_each(|part| part.ack = None);
        self.lacking.acks.clear();
        self.folded = Some(Folded { round: self.id, ranks: Vec::new(), digest: 0, any_mass: false });
    }

    /// The digest that most of those have who answered; among equals that of the lowest rank.
    fn most_common_digest(&self) -> u64 {
        let digests = || self.awaited().filter_map(|(_, part)| part.received()).map(|Received { digest, .. }| *digest);
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        digests().for_each(|digest| *counts.entry(digest).or_default() += 1);
        let most = counts.values().copied().max().unwrap_or(0);
        digests().find(|digest| counts.get(digest) == Some(&most)).unwrap_or(0)
    }
}

impl RoundPart {
    /// Whether it has said that it gives something.
    fn adds(&self) -> bool {
        self.steps.is_some_and(|steps| steps > 0)
    }
}
