//! Whose work is in a round, and how far: what decides over its samples.

use super::{Absence, Contributor};
use std::collections::BTreeMap;

/// How much of a member's contribution was folded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All chunks: what it trained is committed, even if it has died since.
    Whole,
    /// The first chunks, so many of them, at least 1: it is partly in the consensus, so what it trains again is counted
    /// as a repeat.
    Chunks(u32),
    /// None.
    Nothing,
}

/// The members of a round over all tiers: each is whole unless it, or the relay it contributes through, was dropped.
///
/// ```
/// use flodl_cpureduce::{Absence, Contributor, Outcome, Record};
///
/// let (relay, first, second) = (Contributor(7), Contributor(0), Contributor(1));
/// let mut record = Record::new();
/// record.enter(first, relay);
/// record.enter(second, relay);
/// record.dropped(second, 0, Absence::NonFinite); // told by the relay, in band
/// record.dropped_via(relay, 3, Absence::LinkLost); // seen by the root's own fold
/// let outcomes: Vec<_> = record.outcomes().collect();
/// assert_eq!(outcomes, [(first, Outcome::Chunks(3)), (second, Outcome::Nothing)]);
/// assert_eq!(record.why(second), Some(Absence::NonFinite));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Record {
    members: BTreeMap<Contributor, Member>,
}

/// One member of the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Member {
    /// The contributor of the root's fold whose chunks carry it.
    via: Contributor,
    /// The first chunk without it.
    missing: Option<(u32, Absence)>,
}

impl Member {
    /// The earliest word counts: what was missing from chunk 2 on cannot come back at chunk 5.
    fn drop_from(&mut self, from_chunk: u32, why: Absence) {
        if self.missing.is_none_or(|(earlier, _)| from_chunk < earlier) {
            self.missing = Some((from_chunk, why));
        }
    }
}

impl Record {
    /// A round without members.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a member whose work arrives in the chunks of `via`: its relay, or the member itself where ranks
    /// contribute to the root's fold directly.
    pub fn enter(&mut self, member: Contributor, via: Contributor) {
        self.members.insert(member, Member { via, missing: None });
    }

    /// A member is in no chunk from `from_chunk` on. Returns whether it is a member of the round.
    pub fn dropped(&mut self, member: Contributor, from_chunk: u32, why: Absence) -> bool {
        let found = self.members.get_mut(&member);
        found.map(|member| member.drop_from(from_chunk, why)).is_some()
    }

    /// A contributor of the root's fold is in no chunk from `from_chunk` on, and with it all its members.
    pub fn dropped_via(&mut self, via: Contributor, from_chunk: u32, why: Absence) {
        for member in self.members.values_mut().filter(|member| member.via == via) {
            member.drop_from(from_chunk, why);
        }
    }

    /// What was folded of each member, in ascending order. Final once the root's fold is done.
    pub fn outcomes(&self) -> impl Iterator<Item = (Contributor, Outcome)> + '_ {
        self.members.iter().map(|(&id, member)| {
            let outcome = match member.missing {
                None => Outcome::Whole,
                Some((0, _)) => Outcome::Nothing,
                Some((chunks, _)) => Outcome::Chunks(chunks),
            };
            (id, outcome)
        })
    }

    /// Why a member is not whole.
    #[must_use]
    pub fn why(&self, member: Contributor) -> Option<Absence> {
        self.members.get(&member)?.missing.map(|(_, why)| why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_drop_counts_in_either_order() {
        let (member, via) = (Contributor(1), Contributor(9));
        for member_first in [true, false] {
            let mut record = Record::new();
            record.enter(member, via);
            if member_first {
                assert!(record.dropped(member, 2, Absence::Dead));
                record.dropped_via(via, 5, Absence::LinkLost);
            } else {
                record.dropped_via(via, 5, Absence::LinkLost);
                assert!(record.dropped(member, 2, Absence::Dead));
            }
            assert_eq!(record.outcomes().collect::<Vec<_>>(), [(member, Outcome::Chunks(2))]);
            assert_eq!(record.why(member), Some(Absence::Dead));
        }
    }

    #[test]
    fn strangers_change_nothing() {
        let mut record = Record::new();
        record.enter(Contributor(1), Contributor(1));
        let before = record.clone();
        assert!(!record.dropped(Contributor(2), 0, Absence::Dead));
        record.dropped_via(Contributor(2), 0, Absence::Dead);
        assert_eq!(record, before);
        assert_eq!(record.why(Contributor(2)), None);
    }
}
