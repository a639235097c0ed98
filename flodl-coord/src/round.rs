//! One average, from `RequestParams` to its commit: who takes part, what has come, and what is still missing.

use crate::gate::list;
use crate::members::Members;
use core::fmt;
use flodl_wire::message::control::{Part, RosterEntry};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::{Folded, FoldedPart, Received, SyncAck};
use flodl_wire::{Incarnation, Rank, Round, Time};
use std::collections::BTreeMap;

/// A round that is going on.
#[derive(Clone, Debug)]
pub(crate) struct OpenRound {
    pub(crate) id: Round,
    pub(crate) requested: Time,
    pub(crate) parts: BTreeMap<Rank, RoundPart>,
    pub(crate) folded: Option<Folded>,
    /// Whom a host's fold said last that it waits for, and for which chunk.
    pub(crate) waits_for: Option<(Rank, u32)>,
    /// It is past its ceiling and there was nobody to hold to account for it.
    pub(crate) nobody_late: bool,
}

/// One rank's part in it.
#[derive(Clone, Debug)]
pub(crate) struct RoundPart {
    pub(crate) incarnation: Incarnation,
    pub(crate) part: Part,
    /// Optimizer steps in its snapshot, once it is taken.
    pub(crate) steps: Option<u64>,
    /// Its answer.
    pub(crate) ack: Option<SyncAck>,
    /// It is out of the round: nothing more is expected of it.
    pub(crate) out: Option<Out>,
}

/// How a rank came to be out of a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Out {
    /// Its life ended; was it its own doing?
    Dead { brought_itself_down: bool },
    /// The link to its host broke, and what was on its way through it is lost.
    Cut,
}

/// Why a round does not commit yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// The root has not folded it: these have not taken their snapshot.
    Snapshots {
        /// Who.
        missing: Vec<Rank>,
    },
    /// The root has not folded it although every snapshot is taken.
    Fold {
        /// Whom a host's fold said last that it waits for, and for which chunk.
        waits_for: Option<(Rank, u32)>,
    },
    /// These have not acknowledged its result.
    Acks {
        /// Who.
        missing: Vec<Rank>,
    },
}

impl OpenRound {
    /// Opens a round over everybody who can take part. Where no consensus exists yet, the lowest rank is its source.
    pub(crate) fn open(id: Round, members: &Members, consensus: bool, now: Time) -> OpenRound {
        let taking = members.iter().filter(|member| member.takes_part());
        let mut parts: BTreeMap<Rank, RoundPart> = taking
            .map(|member| {
                let part = if member.is_active() { Part::Contribute } else { Part::Receive };
                (member.rank, RoundPart { incarnation: member.incarnation, part, steps: None, ack: None, out: None })
            })
            .collect();
        if let Some(source) = parts.values_mut().next().filter(|_| !consensus) {
            source.part = Part::Source;
        }
        OpenRound { id, requested: now, parts, folded: None, waits_for: None, nobody_late: false }
    }

    pub(crate) fn roster(&self, members: &Members) -> Vec<RosterEntry> {
        let entry = |(&rank, part): (&Rank, &RoundPart)| {
            let session = members.get(rank)?.session;
            Some(RosterEntry { rank, incarnation: part.incarnation, session, part: part.part })
        };
        self.parts.iter().filter_map(entry).collect()
    }

    /// Whether the round can be closed.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn finished(&self) -> Result<&Folded, Unfinished> {
        let missing = |lacks: fn(&RoundPart) -> bool| -> Vec<Rank> {
            let expected = self.parts.iter().filter(|(_, part)| part.out.is_none() && lacks(part));
            expected.map(|(&rank, _)| rank).collect()
        };
        let Some(folded) = &self.folded else {
            let missing = missing(|part| part.steps.is_none());
            let waits_for = self.waits_for;
            return Err(if missing.is_empty() {
                Unfinished::Fold { waits_for }
            } else {
                Unfinished::Snapshots { missing }
            });
        };
        let missing = missing(|part| part.ack.is_none());
        if missing.is_empty() { Ok(folded) } else { Err(Unfinished::Acks { missing }) }
    }

    /// Whose word or contribution is missing, as far as it is known whose.
    pub(crate) fn waited_for(&self) -> Vec<Rank> {
        match self.finished() {
            Ok(_) => Vec::new(),
            Err(Unfinished::Snapshots { missing } | Unfinished::Acks { missing }) => missing,
            Err(Unfinished::Fold { waits_for }) => {
                let expected = |rank: &Rank| self.parts.get(rank).is_some_and(|part| part.out.is_none());
                waits_for.map(|(rank, _)| rank).into_iter().filter(expected).collect()
            }
        }
    }

    /// How much of a rank's contribution is in the round: nothing where the root does not name it, or names another life.
    pub(crate) fn part_folded(&self, folded: &Folded, rank: Rank) -> FoldedPart {
        let life = self.parts.get(&rank).map(|part| part.incarnation);
        let named = folded.ranks.iter().find(|&&(r, incarnation, _)| r == rank && Some(incarnation) == life);
        named.map_or(FoldedPart::None, |&(_, _, part)| part)
    }

    /// Ranks that reported another digest of the result than the root's.
    pub(crate) fn other_digests(&self, digest: u64) -> Vec<Rank> {
        let differs = |part: &RoundPart| part.received().is_some_and(|received| received.digest != digest);
        self.parts.iter().filter(|(_, part)| differs(part)).map(|(&rank, _)| rank).collect()
    }
}

impl RoundPart {
    /// What it received, where it has the whole result.
    pub(crate) fn received(&self) -> Option<&Received> {
        self.ack.as_ref()?.received()
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = match self {
            Unfinished::Fold { waits_for: None } => {
                return f.write_str("every snapshot is taken, the fold is not done");
            }
            Unfinished::Fold { waits_for: Some((rank, chunk)) } => {
                return write!(f, "the fold waits for chunk {chunk} of {rank}");
            }
            Unfinished::Snapshots { missing } => {
                f.write_str("waiting for the snapshot of ")?;
                missing
            }
            Unfinished::Acks { missing } => {
                f.write_str("waiting for the acknowledgement of ")?;
                missing
            }
        };
        list(f, missing, |f, rank| write!(f, "{rank}"))
    }
}

impl From<&Unfinished> for Reason {
    fn from(unfinished: &Unfinished) -> Reason {
        let (code, ranks) = match unfinished {
            Unfinished::Fold { waits_for } => ("folding", waits_for.iter().map(|&(rank, _)| rank).collect()),
            Unfinished::Snapshots { missing } => ("snapshots", missing.clone()),
            Unfinished::Acks { missing } => ("acknowledgements", missing.clone()),
        };
        Reason::new(code, unfinished.to_string()).about(ranks)
    }
}
