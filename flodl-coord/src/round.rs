//! One average, from `RequestParams` to its commit: who takes part, what has come, and what is still missing.

use crate::Fate;
use crate::collective::Collective;
use crate::context::Context;
use crate::gate::list;
use crate::members::{Members, Work};
use crate::waits::{Cause, Waits};
use core::fmt;
use core::time::Duration;
use flodl_wire::message::control::{Part, RosterEntry};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::{Folded, FoldedPart, Received, SyncAck};
use flodl_wire::{Incarnation, Rank, Round, Time, WindowId};
use std::collections::{BTreeMap, BTreeSet};

/// A round that is going on.
#[derive(Clone, Debug)]
pub(crate) struct OpenRound {
    pub(crate) id: Round,
    pub(crate) requested: Time,
    pub(crate) parts: BTreeMap<Rank, RoundPart>,
    pub(crate) lacking: Lacking,
    /// How it is averaged.
    pub(crate) over: Over,
    /// The window that ends with it.
    pub(crate) window: WindowId,
    /// Where ranks train on: the windows that begin at their snapshots.
    pub(crate) next: Option<BTreeMap<Rank, Work>>,
    pub(crate) folded: Option<Folded>,
    /// Whom the folds wait for.
    pub(crate) waits: Waits,
    /// When the last snapshot was told of, or the last that was waited for let go: before that nobody's chunks are due.
    pub(crate) snapshot_at: Time,
    /// When its ceiling began to count: requested, and once more when its result is there and answers are due, and whenever
    /// somebody was let go that held up the others.
    pub(crate) counts_from: Time,
    /// It is past its ceiling and there was nobody to hold to account for it.
    pub(crate) nobody_late: bool,
}

/// How a round is averaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Through the folds.
    Cpu,
    /// Through the folds, where ranks otherwise average among themselves: one gives the consensus that all hold to the root.
    Handover,
    /// By the ranks among themselves.
    Nccl(Collective),
}

/// Who is expected to say something in it; kept as words come and ranks go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacking {
    pub(crate) snapshots: BTreeSet<Rank>,
    pub(crate) acks: BTreeSet<Rank>,
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
    /// Samples that were leased to it when it came out: whether it had trained them was not heard.
    pub(crate) unheard: u64,
    /// It has trained something and gives nothing: its replica is not finite.
    pub(crate) is_unfit: bool,
}

/// How a rank came to be out of a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Out {
    /// Its life ended; was it its own doing?
    Dead { brought_itself_down: bool },
    /// The link to its host broke: it lives, and takes the next round's result.
    Cut,
}

/// Why a round does not commit yet. It shows whom it is about where they are kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unfinished<'a> {
    /// The root has not folded it: these have not taken their snapshot.
    Snapshots {
        /// Who.
        missing: &'a BTreeSet<Rank>,
    },
    /// Every snapshot is taken, and there is no communicator of those who take part.
    Communicator,
    /// These have not come out of the round's collectives.
    Collective {
        /// Who.
        missing: &'a BTreeSet<Rank>,
    },
    /// The root has not folded it although every snapshot is taken.
    Fold {
        /// Whom the folds say that they wait for.
        waits: &'a Waits,
    },
    /// These have not acknowledged its result.
    Acks {
        /// Who.
        missing: &'a BTreeSet<Rank>,
    },
}

impl OpenRound {
    /// Opens a round over everybody who can take part. Where no consensus exists yet, the lowest rank is its source; where the
    /// root is to have the one that exists, the lowest that holds it.
    pub(crate) fn open(ctx: &Context<'_>, (id, window): (Round, WindowId), consensus: bool, over: Over) -> OpenRound {
        let taking = ctx.members.iter().filter(|member| member.takes_part());
        let mut parts: BTreeMap<Rank, RoundPart> = taking
            .map(|member| {
                let part = if member.is_active() { Part::Contribute } else { Part::Receive };
                (member.rank, RoundPart::new(member.incarnation, part))
            })
            .collect();
        let hands_over = over == Over::Handover;
        let able = |part: &&mut RoundPart| !consensus || (hands_over && part.part == Part::Contribute);
        if let Some(source) = parts.values_mut().find(able) {
            source.part = Part::Source;
        }
        let waits = Waits::new(ctx.deadlines.silence);
        let now = ctx.now;
        let all: BTreeSet<Rank> = parts.keys().copied().collect();
        let lacking = Lacking { snapshots: all.clone(), acks: all };
        OpenRound {
            id,
            requested: now,
            parts,
            lacking,
            over,
            window,
            next: None,
            folded: None,
            waits,
            snapshot_at: now,
            counts_from: now,
            nobody_late: false,
        }
    }

    pub(crate) fn parts(&self) -> &BTreeMap<Rank, RoundPart> {
        &self.parts
    }

    /// A rank has taken its snapshot, of so many steps. Has it trained anything?
    pub(crate) fn take_snapshot(&mut self, rank: Rank, (steps, trained): (u64, bool), now: Time) {
        if let Some(part) = self.parts.get_mut(&rank) {
            part.steps = Some(steps);
            part.is_unfit = steps == 0 && trained;
            self.lacking.snapshots.remove(&rank);
            self.snapshot_at = now;
        }
    }

    /// A rank has answered.
    pub(crate) fn take_ack(&mut self, rank: Rank, ack: SyncAck) {
        if let Some(part) = self.parts.get_mut(&rank) {
            part.ack = Some(ack);
            self.lacking.acks.remove(&rank);
        }
    }

    /// Nothing more is expected of a rank, of which so many leased samples were not heard of. Whether it was in the round,
    /// to contribute.
    pub(crate) fn leave(&mut self, rank: Rank, (out, unheard): (Out, u64), now: Time) -> bool {
        let Some(part) = self.parts.get_mut(&rank).filter(|part| part.out.is_none()) else { return false };
        (part.out, part.unheard) = (Some(out), unheard);
        if self.lacking.snapshots.remove(&rank) {
            self.snapshot_at = now;
        }
        self.lacking.acks.remove(&rank);
        part.part == Part::Contribute
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
    pub(crate) fn finished(&self) -> Result<&Folded, Unfinished<'_>> {
        let Lacking { snapshots, acks } = &self.lacking;
        match &self.folded {
            Some(folded) if acks.is_empty() => Ok(folded),
            Some(_) => Err(Unfinished::Acks { missing: acks }),
            None if !snapshots.is_empty() => Err(Unfinished::Snapshots { missing: snapshots }),
            None => Err(match &self.over {
                Over::Cpu | Over::Handover => Unfinished::Fold { waits: &self.waits },
                Over::Nccl(collective) if collective.issued.is_some() => Unfinished::Collective { missing: acks },
                Over::Nccl(_) => Unfinished::Communicator,
            }),
        }
    }

    /// Whose word or contribution is missing after so long, as far as it is known whose.
    pub(crate) fn late(&self, members: &Members, still: Duration) -> Vec<(Rank, Fate)> {
        match self.finished() {
            Ok(_) => Vec::new(),
            Err(Unfinished::Snapshots { missing } | Unfinished::Acks { missing }) => {
                missing.iter().map(|&rank| (rank, Fate::Stalled { still })).collect()
            }
            Err(Unfinished::Fold { .. }) => self.to_account(members, &self.waits.causes(), still),
            // Where one does not come, all hang: who it is turns out where they form another.
            Err(Unfinished::Communicator | Unfinished::Collective { .. }) => Vec::new(),
        }
    }

    /// Whose contribution does not arrive: every snapshot is taken, and for the whole patience no chunk of theirs came.
    pub(crate) fn cut_off(&mut self, members: &Members, now: Time) -> Vec<(Rank, Fate)> {
        let folding = matches!(self.finished(), Err(Unfinished::Fold { .. }));
        if !folding || now < self.snapshot_at.plus(self.waits.patience()) {
            return Vec::new();
        }
        let causes = self.waits.overdue(now);
        self.to_account(members, &causes, now.since(self.requested))
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
                    late.extend(members.host(session).iter().flat_map(|link| &link.ranks).copied().map(lost));
                }
            }
        }
        // Who was let go a moment ago may still be named.
        late.retain(|(rank, _)| self.parts.get(rank).is_some_and(|part| part.out.is_none()));
        late
    }

    /// How much of each rank's contribution is in the round. Whom the root does not name, or whose other life, is not there:
    /// nothing of it is.
    pub(crate) fn parts_folded(&self, folded: &Folded) -> BTreeMap<Rank, FoldedPart> {
        let mut parts = BTreeMap::new();
        for &(rank, incarnation, part) in &folded.ranks {
            if self.parts.get(&rank).is_some_and(|ours| ours.incarnation == incarnation) {
                parts.entry(rank).or_insert(part);
            }
        }
        parts
    }

    /// Ranks that reported another digest of the result than the root's.
    pub(crate) fn other_digests(&self, digest: u64) -> BTreeSet<Rank> {
        let differs = |part: &RoundPart| part.received().is_some_and(|received| received.digest != digest);
        self.parts.iter().filter(|(_, part)| differs(part)).map(|(&rank, _)| rank).collect()
    }
}

impl RoundPart {
    pub(crate) fn new(incarnation: Incarnation, part: Part) -> RoundPart {
        RoundPart { incarnation, part, steps: None, ack: None, out: None, unheard: 0, is_unfit: false }
    }

    /// Whether its words about the round count: it is not out of it.
    pub(crate) fn is_awaited(&self) -> bool {
        self.out.is_none()
    }

    /// What it received, where it has the whole result.
    pub(crate) fn received(&self) -> Option<&Received> {
        self.ack.as_ref()?.received()
    }
}

impl fmt::Display for Unfinished<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missing = match *self {
            Unfinished::Fold { waits } => {
                return match waits.first() {
                    None => f.write_str("every snapshot is taken, the fold is not done"),
                    Some((rank, chunk)) => write!(f, "the fold waits for chunk {chunk} of {rank}"),
                };
            }
            Unfinished::Communicator => return f.write_str("every snapshot is taken, and there is no communicator"),
            Unfinished::Collective { missing } => {
                f.write_str("waiting for the collective of ")?;
                missing
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

impl From<&Unfinished<'_>> for Reason {
    fn from(unfinished: &Unfinished<'_>) -> Reason {
        let text = unfinished.to_string();
        match *unfinished {
            Unfinished::Fold { waits } => Reason::new("folding", text).about(waits.first().map(|(rank, _)| rank)),
            Unfinished::Communicator => Reason::new("communicator", text),
            Unfinished::Collective { missing } => Reason::new("collective", text).about(missing.iter().copied()),
            Unfinished::Snapshots { missing } => Reason::new("snapshots", text).about(missing.iter().copied()),
            Unfinished::Acks { missing } => Reason::new("acknowledgements", text).about(missing.iter().copied()),
        }
    }
}
