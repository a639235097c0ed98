//! Everybody the coordinator knows: one value per rank with everything about it, one per host.

use crate::Fate;
use crate::agenda::Agenda;
use crate::config::Deadlines;
use crate::flap::Flaps;
use crate::roll::Roll;
use crate::stalled::Pace;
use crate::tally::{Place, Tally};
use core::ops::{Deref, DerefMut};
use flodl_wire::message::join::Ready;
use flodl_wire::{Epoch, HostId, Incarnation, Rank, SessionId, Time, WindowId};
use std::collections::BTreeMap;

/// One rank's life.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) rank: Rank,
    pub(crate) incarnation: Incarnation,
    pub(crate) session: SessionId,
    pub(crate) state: State,
    /// When it was last heard; `None` before its first word (its relay watches the process until then).
    pub(crate) seen: Option<Time>,
    /// Its connection ended, and its exit status is waited for until then, so that the cause can be named.
    pub(crate) doubt: Option<(Time, Fate)>,
    /// Optimizer steps it has told of; a change is movement.
    pub(crate) step: u64,
    /// Rounds in a row after which it did not hold the consensus, or lost it before its next window was over.
    pub(crate) missed: u32,
    /// Its relay starts it again when this life ends.
    pub(crate) returns: bool,
    /// It leaves by plan, and is let go without its work then.
    pub(crate) leaving: Option<Time>,
    pub(crate) past: Past,
}

/// What a rank's earlier lives in the run left behind.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past {
    /// A life of it was lost, and no later one has come into the run.
    pub(crate) missing: bool,
    /// Lives that were lost.
    pub(crate) losses: u32,
    pub(crate) flaps: Flaps,
}

/// Where a member is in its life.
#[derive(Clone, Debug)]
pub(crate) enum State {
    /// A life that its relay may begin then, because the ones before it were short.
    Held { until: Time },
    /// Admitted; its process is starting or loading its data.
    Starting,
    /// Ready; waits for the run to form.
    Joining(Box<Ready>),
    /// In the run, without the consensus: takes part in the next round with mass 0.
    Syncing,
    /// Holds the consensus.
    Active(Work),
    /// Its host's link is gone. It keeps what it was and its leases until then.
    Detached { until: Time, error: String, was: Box<State> },
    /// Told to end; has it said `Finished`?
    Leaving { finished: bool },
    /// Over.
    Gone(Fate),
}

/// What an active member is doing.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Waiting for orders.
    Idle,
    /// In a window, whose positions count from that epoch. It may be given `room` samples more.
    Training { window: WindowId, epoch: Epoch, quota_max: u32, leased: u64, room: u64, pace: Pace },
    /// Done with its window.
    Reported { window: WindowId, batches: u32 },
}

/// One host's relay.
#[derive(Clone, Debug)]
pub(crate) struct HostLink {
    pub(crate) host: HostId,
    /// The session that its relay was connected by first.
    pub(crate) first: SessionId,
    pub(crate) ranks: Vec<Rank>,
    pub(crate) seen: Time,
}

/// All members and hosts.
#[derive(Clone, Debug)]
pub(crate) struct Members {
    deadlines: Deadlines,
    by_rank: Roll<Member>,
    /// Kept as members change.
    tally: Tally,
    /// When to look at which member.
    agenda: Agenda<Rank>,
    hosts: Hosts,
    world: World,
}

/// The relays that are here.
#[derive(Clone, Debug, Default)]
struct Hosts {
    by_session: BTreeMap<SessionId, HostLink>,
    by_host: BTreeMap<HostId, SessionId>,
    /// Hosts whose link is lost: their last session, and what it was.
    parted: BTreeMap<HostId, (SessionId, HostLink)>,
    /// When to look at which link.
    agenda: Agenda<SessionId>,
}

/// A member in somebody's hands. When it is put down, whatever was changed is counted.
pub(crate) struct MemberMut<'a> {
    member: &'a mut Member,
    tally: &'a mut Tally,
    agenda: &'a mut Agenda<Rank>,
    deadlines: &'a Deadlines,
    before: Place,
}

impl Deref for MemberMut<'_> {
    type Target = Member;

    fn deref(&self) -> &Member {
        self.member
    }
}

impl DerefMut for MemberMut<'_> {
    fn deref_mut(&mut self) -> &mut Member {
        self.member
    }
}

impl Drop for MemberMut<'_> {
    fn drop(&mut self) {
        let (rank, now) = (self.member.rank, Place::of(self.member));
        if now != self.before {
            self.tally.note(rank, self.before, false);
            self.tally.note(rank, now, true);
        }
        self.agenda.keep(rank, self.member.deadline(self.deadlines));
    }
}

/// How many are in the run, and were.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct World {
    /// Ranks of the run that are missing.
    pub(crate) missing: u32,
    /// Ranks that are in the run.
    pub(crate) present: u32,
    /// The most that were in the run at a time.
    pub(crate) largest: u32,
}

impl State {
    /// Whether the run counts it among its ranks: admitted, and its life not over.
    pub(crate) fn is_in_run(&self) -> bool {
        match self {
            State::Held { .. } | State::Starting | State::Joining(_) | State::Gone(_) => false,
            State::Detached { was, .. } => was.is_in_run(),
            State::Syncing | State::Active(_) | State::Leaving { .. } => true,
        }
    }
}

impl Member {
    /// A life of a rank, of which nothing was heard yet.
    pub(crate) fn new(
        (rank, incarnation): (Rank, Incarnation),
        session: SessionId,
        state: State,
        past: Past,
    ) -> Member {
        Member {
            rank,
            incarnation,
            session,
            state,
            seen: None,
            doubt: None,
            step: 0,
            missed: 0,
            returns: false,
            leaving: None,
            past,
        }
    }

    /// In the run and able to take part in a round.
    pub(crate) fn takes_part(&self) -> bool {
        matches!(self.state, State::Syncing | State::Active(_))
    }

    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.state, State::Gone(_))
    }

    /// Its life ended before its time, and no other has begun.
    pub(crate) fn is_lost(&self) -> bool {
        matches!(&self.state, State::Gone(fate) if fate.is_loss())
    }

    pub(crate) fn is_active(&self) -> bool {
        matches!(self.state, State::Active(_))
    }

    /// How it gets on in its window, where it is in one.
    pub(crate) fn pace_mut(&mut self) -> Option<&mut Pace> {
        match &mut self.state {
            State::Active(Work::Training { pace, .. }) => Some(pace),
            _ => None,
        }
    }

    /// Has a window, or had one since the last round that everybody waited for.
    pub(crate) fn has_window(&self) -> bool {
        matches!(self.state, State::Active(Work::Training { .. } | Work::Reported { .. }))
    }

    pub(crate) fn is_training(&self) -> bool {
        matches!(self.state, State::Active(Work::Training { .. }))
    }

    /// When something about it is due.
    fn deadline(&self, deadlines: &Deadlines) -> Option<Time> {
        let pace = match &self.state {
            State::Active(Work::Training { pace, .. }) => Some(pace.deadline(deadlines)),
            _ => None,
        };
        self.life_deadline(deadlines).into_iter().chain(pace).min()
    }

    /// When its life is over if nothing more comes, or begins.
    pub(crate) fn life_deadline(&self, deadlines: &Deadlines) -> Option<Time> {
        match self.state {
            State::Detached { until, .. } | State::Held { until } => return Some(until),
            State::Leaving { finished: true } | State::Gone(_) => return None,
            _ => {}
        }
        let doubt = self.doubt.as_ref().map(|(until, _)| *until);
        let silence = self.seen.map(|seen| seen.plus(deadlines.silence));
        doubt.into_iter().chain(silence).chain(self.leaving).min()
    }
}

impl Members {
    pub(crate) fn new(deadlines: Deadlines) -> Members {
        Members {
            deadlines,
            by_rank: Roll::default(),
            tally: Tally::default(),
            agenda: Agenda::default(),
            hosts: Hosts::default(),
            world: World::default(),
        }
    }

    /// Admits `count` ranks of a new host: the lowest free ids below `below`. With `again` those of the dead are free too,
    /// for their next lives. `None` where fewer than `count` are free.
    pub(crate) fn admit(
        &mut self,
        (session, link): (SessionId, HostLink),
        count: u32,
        (below, again): (u32, bool),
    ) -> Option<Vec<(Rank, Incarnation)>> {
        // Ids are given out from the lowest on, so those that were never given follow those that were.
        let fresh = (self.by_rank.len() as u32..below).map(Rank);
        let gone = self.tally.gone.iter().copied().filter(|rank| again && rank.0 < below);
        let ranks: Vec<Rank> = gone.chain(fresh).take(count as usize).collect();
        if ranks.len() < count as usize {
            return None;
        }
        let begin = |&rank: &Rank| (rank, self.begin((rank, session), State::Starting, link.seen));
        let ids = ranks.iter().map(begin).collect();
        self.insert_host(session, HostLink { ranks, ..link });
        Some(ids)
    }

    /// The next life of a rank, behind that session.
    pub(crate) fn begin(&mut self, (rank, session): (Rank, SessionId), state: State, now: Time) -> Incarnation {
        let before = self.by_rank.get(rank);
        let incarnation = Incarnation(before.map_or(0, |member| member.incarnation.0).saturating_add(1));
        let mut past = before.map_or(Past::default(), |member| member.past);
        past.flaps.born(now);
        let member = Member::new((rank, incarnation), session, state, past);
        let place = Place::of(&member);
        self.agenda.keep(rank, member.deadline(&self.deadlines));
        if let Some(before) = self.by_rank.insert(rank, member) {
            self.tally.note(rank, Place::of(&before), false);
        }
        self.tally.note(rank, place, true);
        incarnation
    }

    /// A rank comes into the run, with no consensus yet.
    pub(crate) fn enter(&mut self, rank: Rank) {
        let Some(mut member) = self.get_mut(rank) else { return };
        member.state = State::Syncing;
        let was_missing = std::mem::take(&mut member.past.missing);
        drop(member);
        self.world.missing -= u32::from(was_missing);
        self.world.present += 1;
        self.world.largest = self.world.largest.max(self.world.present);
    }

    /// A rank's life is over. Whether it was in the run.
    pub(crate) fn leave(&mut self, rank: Rank, fate: &Fate, now: Time) -> bool {
        let Some(mut member) = self.get_mut(rank) else { return false };
        let was_in = member.state.is_in_run();
        member.state = State::Gone(fate.clone());
        member.doubt = None;
        member.leaving = None;
        member.past.flaps.died(now);
        member.past.losses += u32::from(fate.is_loss());
        member.past.missing |= was_in && fate.is_loss();
        drop(member);
        self.world.present -= u32::from(was_in);
        self.world.missing += u32::from(was_in && fate.is_loss());
        was_in
    }

    pub(crate) fn world(&self) -> World {
        self.world
    }

    /// Who stands where.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether who stands where is what a look at everybody says.
    #[cfg(any(test, feature = "sim"))]
    pub(crate) fn tally_is_true(&self) -> bool {
        let mut tally = Tally::default();
        self.iter().for_each(|member| tally.note(member.rank, Place::of(member), true));
        tally == self.tally
    }

    /// Everybody that ever was.
    pub(crate) fn ever(&self) -> usize {
        self.by_rank.len()
    }

    /// Whether somebody's life goes on.
    pub(crate) fn anybody_lives(&self) -> bool {
        self.tally.gone.len() < self.by_rank.len()
    }

    /// When to look at a member or a host next.
    pub(crate) fn next_look(&self) -> Option<Time> {
        self.agenda.next().into_iter().chain(self.hosts.agenda.next()).min()
    }

    /// Who may be due. Each must be put back by taking it into the hand once more.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<Rank> {
        self.agenda.take_due(now)
    }

    /// Hosts that were silent for too long.
    pub(crate) fn silent_hosts(&mut self, now: Time) -> Vec<SessionId> {
        let mut silent = Vec::new();
        for session in self.hosts.agenda.take_due(now) {
            let Some(link) = self.hosts.by_session.get(&session) else { continue };
            let until = link.seen.plus(self.deadlines.silence);
            self.hosts.agenda.keep(session, Some(until));
            if now >= until {
                silent.push(session);
            }
        }
        silent
    }

    /// Something came from a host, and from one of its ranks.
    pub(crate) fn heard(&mut self, session: SessionId, rank: Option<Rank>, now: Time) {
        if let Some(link) = self.hosts.by_session.get_mut(&session) {
            link.seen = now;
        }
        let Some(member) = rank.and_then(|rank| self.by_rank.get_mut(rank)) else { return };
        let first = member.seen.replace(now).is_none();
        if first {
            self.agenda.keep(member.rank, member.deadline(&self.deadlines));
        }
    }

    pub(crate) fn host(&self, session: SessionId) -> Option<&HostLink> {
        self.hosts.by_session.get(&session)
    }

    /// Whether that host has a link.
    pub(crate) fn is_here(&self, host: HostId) -> bool {
        self.hosts.by_host.contains_key(&host)
    }

    pub(crate) fn remove_host(&mut self, session: SessionId) -> Option<HostLink> {
        let link = self.hosts.by_session.remove(&session)?;
        self.hosts.by_host.remove(&link.host);
        self.hosts.agenda.keep(session, None);
        self.hosts.parted.insert(link.host, (session, link.clone()));
        Some(link)
    }

    /// The ranks of a host whose link was lost, and its last session, where the relay is the one that it was.
    pub(crate) fn parted(&mut self, (host, first): (HostId, SessionId)) -> Option<(SessionId, Vec<Rank>)> {
        self.hosts.parted.get(&host).filter(|(_, link)| link.first == first)?;
        self.hosts.parted.remove(&host).map(|(session, link)| (session, link.ranks))
    }

    /// A member from before a restart.
    pub(crate) fn restore(&mut self, member: Member) {
        self.world.present += u32::from(member.state.is_in_run());
        self.world.missing += u32::from(member.past.missing);
        self.world.largest = self.world.largest.max(self.world.present + self.world.missing);
        self.agenda.keep(member.rank, member.deadline(&self.deadlines));
        self.tally.note(member.rank, Place::of(&member), true);
        self.by_rank.insert(member.rank, member);
    }

    /// Hosts whose link is lost, by the session that it had.
    pub(crate) fn parted_hosts(&self) -> impl Iterator<Item = (SessionId, HostId)> {
        self.hosts.parted.iter().map(|(&host, &(session, _))| (session, host))
    }

    pub(crate) fn insert_host(&mut self, session: SessionId, link: HostLink) {
        self.hosts.by_host.insert(link.host, session);
        self.hosts.agenda.keep(session, Some(link.seen.plus(self.deadlines.silence)));
        self.hosts.by_session.insert(session, link);
    }

    pub(crate) fn hosts(&self) -> impl Iterator<Item = (SessionId, &HostLink)> {
        self.hosts.by_session.iter().map(|(&session, link)| (session, link))
    }

    pub(crate) fn get(&self, rank: Rank) -> Option<&Member> {
        self.by_rank.get(rank)
    }

    /// Takes a member into the hand: the only way to change one.
    pub(crate) fn get_mut(&mut self, rank: Rank) -> Option<MemberMut<'_>> {
        let member = self.by_rank.get_mut(rank)?;
        let before = Place::of(member);
        let Self { tally, agenda, deadlines, .. } = self;
        Some(MemberMut { member, tally, agenda, deadlines, before })
    }

    /// All of them, dead or alive, in rank order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_rank.values()
    }

    /// Those whose life goes on.
    pub(crate) fn living(&self) -> impl Iterator<Item = &Member> {
        self.iter().filter(|member| !member.is_gone())
    }

    /// Those that hold the consensus and can train.
    pub(crate) fn active(&self) -> impl Iterator<Item = &Member> {
        self.iter().filter(|member| member.is_active())
    }

    /// Whether some life was lost, refused or never began.
    pub(crate) fn any_loss(&self) -> bool {
        self.iter().any(|member| member.past.losses > 0 || member.is_lost())
    }

    /// Whether that rank is one of `session`'s, in whatever life.
    pub(crate) fn reached_through(&self, session: SessionId, rank: Rank) -> bool {
        self.get(rank).is_some_and(|member| member.session == session)
    }

    /// Whether that life of the rank is over and a later one has begun.
    pub(crate) fn outlived(&self, rank: Rank, incarnation: Incarnation) -> bool {
        self.get(rank).is_some_and(|member| incarnation < member.incarnation)
    }

    /// Whether `session` speaks for that life of that rank.
    pub(crate) fn speaks_for(&self, session: SessionId, rank: Rank, incarnation: Incarnation) -> bool {
        self.get(rank).is_some_and(|member| member.session == session && member.incarnation == incarnation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    fn link(name: &str) -> HostLink {
        let host = HostId::from_name(name).expect("a name");
        HostLink { host, first: SessionId(0), ranks: Vec::new(), seen: Time::ZERO }
    }

    #[test]
    fn admission_gives_the_lowest_free_ids_and_never_half_a_host() {
        let mut members = Members::new(Deadlines::from_patience(Duration::from_secs(10)));
        let first = members.admit((SessionId(1), link("a")), 2, (3, false)).expect("room for two");
        assert_eq!(first, [(Rank(0), Incarnation(1)), (Rank(1), Incarnation(1))]);
        assert_eq!(members.admit((SessionId(2), link("b")), 2, (3, false)), None);
        let last = members.admit((SessionId(3), link("c")), 1, (3, false)).expect("room for one");
        assert_eq!(last, [(Rank(2), Incarnation(1))]);
        assert!(members.speaks_for(SessionId(3), Rank(2), Incarnation(1)));
        assert!(!members.speaks_for(SessionId(1), Rank(2), Incarnation(1)));
        assert!(!members.speaks_for(SessionId(3), Rank(2), Incarnation(2)));
        // A dead rank's id goes to its next life, in its next incarnation.
        members.leave(Rank(1), &Fate::Failed { error: "x".into() }, Time(5));
        assert_eq!(members.admit((SessionId(4), link("d")), 1, (3, false)), None);
        let again = members.admit((SessionId(4), link("d")), 2, (9, true)).expect("room");
        assert_eq!(again, [(Rank(1), Incarnation(2)), (Rank(3), Incarnation(1))]);
        assert!(members.outlived(Rank(1), Incarnation(1)) && !members.outlived(Rank(1), Incarnation(2)));
        members.remove_host(SessionId(4));
        let hosts: Vec<SessionId> = members.hosts().map(|(session, _)| session).collect();
        assert_eq!(hosts, [SessionId(1), SessionId(3)]);
    }
}
