//! What is told and written down of each commit, so that another controller can go on when this one dies.
//!
//! A relay hears of a commit ahead of the round's `RoundDone`, on the same connection: whoever applies a version sits
//! behind a relay that knows what was committed with it.

use crate::Fate;
use crate::Output;
use crate::context::Context;
use crate::journal::Entry;
use crate::members::{Member, Members, State};
use flodl_wire::codec::{self, Flaw};
use flodl_wire::commit::CommitState;
use flodl_wire::limits::SCHEDULER_STATE;
use flodl_wire::message::commit::{CommitHead, CommitRecord, EpochRecord, LifeRecord, Moment, Standing};
use flodl_wire::message::{Check, Control};
use flodl_wire::{HostId, Rank, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// After so many commits everybody gets a complete record again.
const WHOLE_EVERY: u64 = 64;

/// The commits of a run, as far as others must know them.
#[derive(Debug)]
pub(crate) struct Chronicle {
    generation: u64,
    last: Option<CommitState>,
    /// Relays that have the last record.
    told: BTreeSet<SessionId>,
    /// The journal has what leads to the last record.
    written: bool,
    since_whole: u64,
    /// Samples committed, and those whose work is in the consensus twice.
    counted: (u64, u64),
}

/// What the scheduler keeps over a restart, on its way through a record.
#[derive(Serialize, Deserialize)]
struct Kept(flodl_elche::State);

impl Check for Kept {
    fn check(&self) -> Result<(), Flaw> {
        Ok(())
    }
}

/// The scheduler's memory as bytes: nothing where it is too long, which only a guard of somebody's own can make it.
pub(crate) fn remember(state: flodl_elche::State) -> Vec<u8> {
    let bytes = codec::encode(&Kept(state.without_members())).unwrap_or_default();
    if bytes.len() <= SCHEDULER_STATE { bytes } else { Vec::new() }
}

/// The scheduler's memory from bytes, where they are one.
pub(crate) fn recall(bytes: &[u8]) -> Option<flodl_elche::State> {
    codec::decode::<Kept>(bytes).ok().map(|Kept(state)| state)
}

impl Chronicle {
    /// That of a controller of so many before it, which goes on from `last`.
    pub(crate) fn new(generation: u64, last: Option<CommitState>) -> Chronicle {
        let counted = last.as_ref().map_or((0, 0), |last| (last.head().committed, last.head().repeats));
        Chronicle { generation, last, told: BTreeSet::new(), written: false, since_whole: 0, counted }
    }

    /// A commit: everybody who keeps it hears of it. In `head` are the samples that it commits and repeats itself.
    pub(crate) fn commit(&mut self, ctx: &mut Context<'_>, head: CommitHead, epochs: Vec<EpochRecord>) {
        let moment = Moment { generation: self.generation, ..head.moment };
        let (committed, repeats) = self.counted;
        self.counted = (committed + head.committed, repeats + head.repeats);
        let (committed, repeats) = self.counted;
        let head = CommitHead { moment, committed, repeats, ..head };
        let now = CommitState::new(head, lives(ctx.members, self.last.as_ref()), epochs);
        let change = self.last.as_ref().map(|last| now.change_since(last));
        self.since_whole += 1;
        let is_due = self.since_whole >= WHOLE_EVERY;
        let relays: Vec<SessionId> = ctx.members.hosts().map(|(session, _)| session).collect();
        let parts = numbered(&now);
        for &session in &relays {
            match &change {
                Some(change) if self.told.contains(&session) && !is_due => {
                    let control = Control::Commit(Box::new(change.clone()));
                    ctx.out.push_back(Output::ToHost { session, control });
                }
                _ => tell_parts(ctx, session, &parts),
            }
        }
        match change {
            Some(change) if self.written && !is_due => {
                ctx.out.push_back(Output::Journal(Entry::Commit(Box::new(change))));
            }
            _ => ctx.out.extend(parts.into_iter().map(|(part, parts, record)| {
                Output::Journal(Entry::CommitPart { part, parts, record: Box::new(record) })
            })),
        }
        if is_due {
            self.since_whole = 0;
        }
        self.told = relays.into_iter().collect();
        (self.written, self.last) = (true, Some(now));
    }

    /// A relay is (back) in the run: it gets the last record.
    pub(crate) fn bring_up_to_date(&mut self, ctx: &mut Context<'_>, session: SessionId) {
        if let Some(last) = &self.last {
            tell_parts(ctx, session, &numbered(last));
            self.told.insert(session);
        }
    }

    /// Something has become of these ranks' lives.
    pub(crate) fn write_lives(&self, ctx: &mut Context<'_>, ranks: &[Rank]) {
        let hosts = host_ids(ctx.members);
        let members = ranks.iter().filter_map(|&rank| ctx.members.get(rank));
        let lives: Vec<LifeRecord> = members.filter_map(|member| life(member, &hosts, self.last.as_ref())).collect();
        if !lives.is_empty() {
            ctx.out.push_back(Output::Journal(Entry::Lives(lives)));
        }
    }
}

fn numbered(state: &CommitState) -> Vec<(u32, u32, CommitRecord)> {
    let records = state.parts();
    let parts = u32::try_from(records.len()).unwrap_or(u32::MAX);
    (0..).zip(records).map(|(part, record)| (part, parts, record)).collect()
}

fn tell_parts(ctx: &mut Context<'_>, session: SessionId, parts: &[(u32, u32, CommitRecord)]) {
    for (part, parts, record) in parts {
        let control = Control::CommitPart { part: *part, parts: *parts, record: Box::new(record.clone()) };
        ctx.out.push_back(Output::ToHost { session, control });
    }
}

fn host_ids(members: &Members) -> BTreeMap<SessionId, HostId> {
    members.hosts().map(|(session, link)| (session, link.host)).chain(members.parted_hosts()).collect()
}

fn lives(members: &Members, last: Option<&CommitState>) -> Vec<LifeRecord> {
    let hosts = host_ids(members);
    members.iter().filter_map(|member| life(member, &hosts, last)).collect()
}

/// A life for the record. A dead one's host may be forgotten by now; then it is where the last record had it.
fn life(member: &Member, hosts: &BTreeMap<SessionId, HostId>, last: Option<&CommitState>) -> Option<LifeRecord> {
    let known = || last?.lives().find(|life| life.rank == member.rank).map(|life| life.host);
    Some(LifeRecord {
        rank: member.rank,
        incarnation: member.incarnation,
        host: hosts.get(&member.session).copied().or_else(known)?,
        standing: standing(&member.state),
        losses: member.past.losses,
        missing: member.past.missing,
    })
}

fn standing(state: &State) -> Standing {
    match state {
        State::Held { .. } | State::Starting | State::Joining(_) => Standing::Coming,
        State::Syncing | State::Active(_) | State::Leaving { finished: false } => Standing::InRun,
        State::Leaving { finished: true } | State::Gone(Fate::Finished) => Standing::Finished,
        State::Detached { was, .. } => standing(was),
        State::Gone(Fate::Left) => Standing::Left,
        State::Gone(Fate::Refused(_)) => Standing::Refused,
        State::Gone(_) => Standing::Lost,
    }
}
