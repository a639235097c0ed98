//! One average, from `RequestParams` to its commit: who takes part, what has come, and what is still missing.

use crate::Fate;
use crate::context::Context;
use crate::gate::list;
use crate::members::Members;
use crate::waits::{Cause, Waits};
use core::fmt;
use core::time::Duration;
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
    /// Whom the folds wait for.
    pub(crate) waits: Waits,
    /// When the last snapshot was told of: before that nobody's chunks are due.
    pub(crate) snapshot_at: Time,
    /// When its ceiling began to count: requested, and once more when its result is there and answers are due.
    pub(crate) counts_from: Time,
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
    /// The link to its host broke: it lives, and takes the next round's result.
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
        /// Whom a fold said last that it waits for.
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
    pub(crate) fn open(ctx: &Context<'_>, id: Round, consensus: bool) -> OpenRound {
        let taking = ctx.members.iter().filter(|member| member.takes_part());
        let mut parts: BTreeMap<Rank, RoundPart> = taking
            .map(|member| {
                let part = if member.is_active() { Part::Contribute } else { Part::Receive };
                (member.rank, RoundPart { incarnation: member.incarnation, part, steps: None, ack: None, out: None })
            })
            .collect();
        if let Some(source) = parts.values_mut().next().filter(|_| !consensus) {
            source.part = Part::Source;
        }
        let waits = Waits::new(ctx.deadlines.silence);
        let now = ctx.now;
        let (folded, nobody_late) = (None, false);
        OpenRound { id, requested: now, parts, folded, waits, snapshot_at: now, counts_from: now, nobody_late }
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
            let waits_for = self.waits.first();
            return Err(if missing.is_empty() {
                Unfinished::Fold { waits_for }
            } else {
                Unfinished::Snapshots { missing }
            });
        };
        let missing = missing(|part| part.ack.is_none());
        if missing.is_empty() { Ok(folded) } else { Err(Unfinished::Acks { missing }) }
    }

    /// Whose word or contribution is missing after so long, as far as it is known whose.
    pub(crate) fn late(&self, members: &Members, still: Duration) -> Vec<(Rank, Fate)> {
        match self.finished() {
            Ok(_) => Vec::new(),
            Err(Unfinished::Snapshots { missing } | Unfinished::Acks { missing }) => {
                missing.into_iter().map(|rank| (rank, Fate::Stalled { still })).collect()
            }
            Err(Unfinished::Fold { .. }) => self.to_account(members, &self.waits.causes(), still),
        }
    }

    /// Whose contribution does not arrive: every snapshot is taken, and for the whole patience no chunk of theirs came.
    pub(crate) fn cut_off(&self, members: &Members, now: Time) -> Vec<(Rank, Fate)> {
        match self.finished() {
            Err(Unfinished::Fold { .. }) if now >= self.snapshot_at.plus(self.waits.patience()) => {
                self.to_account(members, &self.waits.overdue(now), now.since(self.requested))
            }
            _ => Vec::new(),
        }
    }

    /// Whom these causes mean. A host whose data does not arrive is lost with all its ranks.
    fn to_account(&self, members: &Members, causes: &[Cause], still: Duration) -> Vec<(Rank, Fate)> {
        let mut late: Vec<(Rank, Fate)> = Vec::new();
        for &cause in causes {
            match cause {
                Cause::Rank(rank, _) => late.push((rank, Fate::Stalled { still })),
                Cause::Link(session, chunk) => {
                    let error = format!("its data connection brought no chunk {chunk} in {:.1} s", still.as_secs_f64());
                    let lost = |rank| (rank, Fate::HostLost { error: error.clone() });
                    let ours = |rank: &&Rank| members.get(**rank).is_some_and(|member| member.session == session);
                    late.extend(self.parts.keys().filter(ours).copied().map(lost));
                }
            }
        }
        // Who was let go a moment ago may still be named.
        late.retain(|(rank, _)| self.parts.get(rank).is_some_and(|part| part.out.is_none()));
        late
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
