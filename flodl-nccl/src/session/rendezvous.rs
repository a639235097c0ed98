//! The coordinator's part: who makes the id, who has come, and what to do where somebody does not.

use std::collections::{BTreeSet, VecDeque};

use super::{Form, Generation, Member, Moment, Patience};
use crate::unique_id::UniqueId;

/// How often the same members may fail to form a communicator although all of them begin.
const ATTEMPTS_MAX: u32 = 3;

/// What the coordinator hears of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The id that it was asked for; `None` where its library makes none.
    Id(Generation, Option<UniqueId>),
    /// It has begun to form the communicator.
    Begun(Generation),
    /// The communicator is ready at this member.
    Formed(Generation),
    /// It is not, and will not be.
    NotFormed(Generation),
    /// It has lost the communicator, in a round or between two, though nobody may have died.
    Lost(Generation),
    /// It is dead, or has left.
    Gone,
}

/// Why there will be no communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// No member makes an id.
    NoId,
    /// All members begin, and none of the attempts succeeds.
    NeverForms,
    /// One member is left: it averages with nobody.
    Alone(Member),
    /// Nobody is left.
    Nobody,
}

/// What the coordinator is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Ask a member for an id.
    RequestId(Member, Generation),
    /// Tell every member of the new communicator; a member's place in the list is its rank in it.
    NewSession {
        /// Its number.
        generation: Generation,
        /// How they form it.
        form: Form,
        /// Who they are.
        members: Vec<Member>,
    },
    /// It is ready at every member: rounds can be issued.
    Established(Generation, Vec<Member>),
    /// A member did not even begin: it is out, and counts as dead.
    Drop(Member),
    /// No communicator is to be had: save and stop, or go on without, as configured.
    Stop(Stop),
}

/// Whom a rendezvous waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waits {
    /// For an id.
    Id(Member),
    /// For these to have formed the communicator.
    Formed(Vec<Member>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    Idle,
    /// A member was asked for an id; those in `next` have not been.
    Asking {
        asked: Member,
        next: VecDeque<Member>,
        until: Moment,
    },
    Forming {
        begun: BTreeSet<Member>,
        formed: BTreeSet<Member>,
        has_failed: bool,
        until: Moment,
    },
    Established,
}

#[derive(Debug)]
struct Settings {
    patience: Patience,
    /// Whether every member's library can make a smaller communicator out of one.
    can_shrink: bool,
}

/// The coordinator's rendezvous: inputs with the time, and orders to be drained after each.
#[derive(Debug)]
pub struct Rendezvous {
    settings: Settings,
    generation: Generation,
    members: BTreeSet<Member>,
    /// Those of the members that no communicator has had.
    joiners: BTreeSet<Member>,
    /// The members of the communicator that every survivor still has, by place.
    last: Vec<Member>,
    attempts: u32,
    state: State,
    orders: VecDeque<Order>,
}

impl Rendezvous {
    /// Nobody is a member. With `can_shrink`, which every member's library must be able to, survivors first try to shrink
    /// the communicator that they have.
    #[must_use]
    pub fn new(patience: Patience, can_shrink: bool) -> Self {
        Self {
            settings: Settings { patience, can_shrink },
            generation: Generation(0),
            members: BTreeSet::new(),
            joiners: BTreeSet::new(),
            last: Vec::new(),
            attempts: 0,
            state: State::Idle,
            orders: VecDeque::new(),
        }
    }

    /// The next thing to do; after each input all of them are to be taken.
    pub fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// When [`tick`](Self::tick) is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        match &self.state {
            State::Asking { until, .. } | State::Forming { until, .. } => Some(*until),
            State::Idle | State::Established => None,
        }
    }

    /// Whom it waits for, where it is at work.
    #[must_use]
    pub fn waits(&self) -> Option<Waits> {
        match &self.state {
            State::Asking { asked, .. } => Some(Waits::Id(*asked)),
            State::Forming { formed, .. } => Some(Waits::Formed(self.members.difference(formed).copied().collect())),
            State::Idle | State::Established => None,
        }
    }

    /// Takes members in and lets others go, at a boundary between two rounds, and forms a communicator of all that are
    /// left. Whoever has one has closed it, or aborts it.
    pub fn begin(&mut self, joiners: &[Member], leavers: &[Member], now: Moment) {
        for member in leavers {
            self.members.remove(member);
            self.joiners.remove(member);
        }
        let new = joiners.iter().filter(|member| self.members.insert(**member));
        self.joiners.extend(new);
        self.attempts = 0;
        self.restart(now);
    }

    /// Takes what a member says. What is of an earlier communicator came late and is dropped.
    pub fn said(&mut self, member: Member, said: Said, now: Moment) {
        if !self.members.contains(&member) {
            return;
        }
        let current = self.generation;
        match said {
            Said::Gone => self.gone(member, now),
            Said::Id(generation, id) if generation == current => self.id(member, id, now),
            Said::Begun(generation) if generation == current => self.begun(member, false, now),
            Said::Formed(generation) if generation == current => self.formed(member),
            Said::NotFormed(generation) if generation == current => self.begun(member, true, now),
            Said::Lost(generation) if generation == current && self.state == State::Established => self.restart(now),
            Said::Lost(_) | Said::Id(..) | Said::Begun(_) | Said::Formed(_) | Said::NotFormed(_) => {}
        }
    }

    /// Whoever answers has begun, and is no reason that it fails. Another attempt waits until all have: one may still be
    /// ending the communicator before.
    fn begun(&mut self, member: Member, fails: bool, now: Moment) {
        let State::Forming { begun, has_failed, .. } = &mut self.state else { return };
        begun.insert(member);
        *has_failed |= fails;
        if *has_failed && *begun == self.members {
            self.attempt_again(now);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Moment) {
        if self.next_deadline().is_none_or(|until| now < until) {
            return;
        }
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Asking { next, .. } => self.ask(next, now),
            State::Forming { begun, .. } => {
                let absent: Vec<Member> = self.members.difference(&begun).copied().collect();
                if absent.is_empty() {
                    return self.attempt_again(now);
                }
                for member in absent {
                    self.members.remove(&member);
                    self.joiners.remove(&member);
                    self.orders.push_back(Order::Drop(member));
                }
                self.restart(now);
            }
            state @ (State::Idle | State::Established) => self.state = state,
        }
    }

    /// Everybody has begun, and it did not come to anything: joiners go first, then the attempts run out.
    fn attempt_again(&mut self, now: Moment) {
        self.attempts += 1;
        if self.attempts < ATTEMPTS_MAX {
            return self.restart(now);
        }
        let joiners = std::mem::take(&mut self.joiners);
        let are_all = joiners.len() == self.members.len();
        if joiners.is_empty() || are_all {
            return self.stop(Stop::NeverForms);
        }
        for member in joiners {
            self.members.remove(&member);
            self.orders.push_back(Order::Drop(member));
        }
        self.attempts = 0;
        self.restart(now);
    }

    /// Begins with a new number, whatever was before.
    fn restart(&mut self, now: Moment) {
        self.generation = Generation(self.generation.0 + 1);
        // Whoever forms another aborts what it has.
        self.last.clear();
        match (self.members.first(), self.members.len()) {
            (None, _) => self.stop(Stop::Nobody),
            (Some(last), 1) => self.stop(Stop::Alone(*last)),
            // Survivors come before joiners, of whom nothing is known yet.
            _ => self.ask(self.members.difference(&self.joiners).chain(&self.joiners).copied().collect(), now),
        }
    }

    fn stop(&mut self, why: Stop) {
        self.state = State::Idle;
        self.orders.push_back(Order::Stop(why));
    }

    fn ask(&mut self, mut candidates: VecDeque<Member>, now: Moment) {
        let Some(asked) = candidates.pop_front() else { return self.stop(Stop::NoId) };
        // An answer of the one before is of no use any more: its listener may be what does not work.
        self.orders.push_back(Order::RequestId(asked, self.generation));
        self.state = State::Asking { asked, next: candidates, until: now.after(self.settings.patience.forming()) };
    }

    fn id(&mut self, member: Member, id: Option<UniqueId>, now: Moment) {
        let State::Asking { asked, next, .. } = &mut self.state else { return };
        if *asked != member {
            return;
        }
        let Some(id) = id else {
            let next = std::mem::take(next);
            return self.ask(next, now);
        };
        self.order(Form::Fresh(id), now);
    }

    fn order(&mut self, form: Form, now: Moment) {
        let members = self.members.iter().copied().collect();
        self.orders.push_back(Order::NewSession { generation: self.generation, form, members });
        // A member may first have to abort what it has, and then waits for the others.
        let until = now.after(self.settings.patience.ending()).after(self.settings.patience.forming());
        self.state = State::Forming { begun: BTreeSet::new(), formed: BTreeSet::new(), has_failed: false, until };
    }

    /// Lets the survivors make a smaller communicator out of the one that they have.
    fn shrink(&mut self, now: Moment) {
        self.generation = Generation(self.generation.0 + 1);
        let places = (0..).zip(std::mem::take(&mut self.last));
        let gone = places.filter(|(_, member)| !self.members.contains(member)).map(|(place, _)| place).collect();
        self.order(Form::Shrink { gone }, now);
    }

    fn formed(&mut self, member: Member) {
        let State::Forming { begun, formed, .. } = &mut self.state else { return };
        begun.insert(member);
        formed.insert(member);
        if *formed == self.members {
            self.state = State::Established;
            self.joiners.clear();
            self.attempts = 0;
            self.last = self.members.iter().copied().collect();
            self.orders.push_back(Order::Established(self.generation, self.last.clone()));
        }
    }

    fn gone(&mut self, member: Member, now: Moment) {
        self.members.remove(&member);
        self.joiners.remove(&member);
        match &mut self.state {
            State::Asking { asked, next, .. } if *asked != member => {
                next.retain(|candidate| *candidate != member);
                if let (Some(last), 1) = (self.members.first(), self.members.len()) {
                    self.stop(Stop::Alone(*last));
                }
            }
            State::Established if self.settings.can_shrink && self.members.len() > 1 => self.shrink(now),
            // Whoever is left in a communicator that lost a member needs another one.
            State::Asking { .. } | State::Forming { .. } | State::Established => self.restart(now),
            State::Idle => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATIENCE: Patience = Patience(Duration::from_secs(10));

    fn member(rank: u32) -> Member {
        Member { rank, incarnation: 0 }
    }

    fn at(seconds: u64) -> Moment {
        Moment::at(Duration::from_secs(seconds))
    }

    fn id() -> UniqueId {
        UniqueId::from_bytes([7; UniqueId::BYTES])
    }

    fn drain(rendezvous: &mut Rendezvous) -> Vec<Order> {
        std::iter::from_fn(|| rendezvous.poll_order()).collect()
    }

    fn begun(ranks: u32) -> Rendezvous {
        let mut rendezvous = Rendezvous::new(PATIENCE, false);
        rendezvous.begin(&(0..ranks).map(member).collect::<Vec<_>>(), &[], at(0));
        assert_eq!(drain(&mut rendezvous), [Order::RequestId(member(0), Generation(1))]);
        rendezvous
    }

    fn established(ranks: u32) -> Rendezvous {
        let mut rendezvous = begun(ranks);
        rendezvous.said(member(0), Said::Id(Generation(1), Some(id())), at(1));
        (0..ranks).for_each(|rank| rendezvous.said(member(rank), Said::Formed(Generation(1)), at(2)));
        let members: Vec<Member> = (0..ranks).map(member).collect();
        let orders = drain(&mut rendezvous);
        let form = Form::Fresh(id());
        let new = Order::NewSession { generation: Generation(1), form, members: members.clone() };
        assert_eq!(orders, [new, Order::Established(Generation(1), members)]);
        rendezvous
    }

    #[test]
    fn whoever_does_not_make_an_id_is_passed_over_and_in_the_end_it_stops() {
        let mut rendezvous = begun(3);
        rendezvous.tick(at(4));
        assert_eq!(drain(&mut rendezvous), []);
        rendezvous.tick(at(5));
        assert_eq!(drain(&mut rendezvous), [Order::RequestId(member(1), Generation(1))], "half a patience is over");
        rendezvous.said(member(0), Said::Id(Generation(1), Some(id())), at(6));
        assert_eq!(drain(&mut rendezvous), [], "it comes too late");
        rendezvous.said(member(1), Said::Id(Generation(1), None), at(6));
        assert_eq!(drain(&mut rendezvous), [Order::RequestId(member(2), Generation(1))], "its library makes none");
        rendezvous.tick(at(11));
        assert_eq!(drain(&mut rendezvous), [Order::Stop(Stop::NoId)]);
        assert_eq!(rendezvous.next_deadline(), None);
    }

    #[test]
    fn survivors_form_another() {
        let mut rendezvous = established(3);
        rendezvous.said(member(0), Said::Gone, at(10));
        assert_eq!(drain(&mut rendezvous), [Order::RequestId(member(1), Generation(2))]);
        rendezvous.said(member(1), Said::Id(Generation(1), Some(id())), at(10));
        assert_eq!(drain(&mut rendezvous), [], "an id of another communicator is none of this");
        rendezvous.said(member(2), Said::Gone, at(11));
        assert_eq!(drain(&mut rendezvous), [Order::Stop(Stop::Alone(member(1)))]);
        rendezvous.said(member(1), Said::Gone, at(12));
        assert_eq!(drain(&mut rendezvous), [], "it has stopped");
    }

    #[test]
    fn whoever_leaves_is_not_asked_again() {
        let mut rendezvous = established(3);
        rendezvous.begin(&[], &[member(0)], at(20));
        assert_eq!(drain(&mut rendezvous), [Order::RequestId(member(1), Generation(2))]);
        rendezvous.said(member(0), Said::Id(Generation(2), Some(id())), at(20));
        assert_eq!(drain(&mut rendezvous), []);
    }

    #[test]
    fn survivors_that_can_shrink_do_and_form_anew_where_it_fails() {
        let mut rendezvous = established(3);
        rendezvous.settings.can_shrink = true;
        rendezvous.said(member(1), Said::Gone, at(10));
        let form = Form::Shrink { gone: vec![1] };
        let members = vec![member(0), member(2)];
        let expected = Order::NewSession { generation: Generation(2), form, members };
        assert_eq!(drain(&mut rendezvous), [expected]);
        rendezvous.said(member(0), Said::Begun(Generation(2)), at(11));
        rendezvous.said(member(2), Said::NotFormed(Generation(2)), at(11));
        assert_eq!(drain(&mut rendezvous), [Order::RequestId(member(0), Generation(3))]);
    }

    #[test]
    fn a_joiner_that_does_not_begin_is_dropped_and_the_others_rebuild() {
        let mut rendezvous = established(2);
        rendezvous.begin(&[member(2)], &[], at(20));
        assert_eq!(drain(&mut rendezvous), [Order::RequestId(member(0), Generation(2))]);
        rendezvous.said(member(0), Said::Id(Generation(2), Some(id())), at(20));
        drain(&mut rendezvous);
        (0..2).for_each(|rank| rendezvous.said(member(rank), Said::Begun(Generation(2)), at(21)));
        rendezvous.tick(at(35));
        let expected = [Order::Drop(member(2)), Order::RequestId(member(0), Generation(3))];
        assert_eq!(drain(&mut rendezvous), expected);
    }

    #[test]
    fn attempts_that_never_succeed_drop_joiners_and_then_run_out() {
        let mut rendezvous = established(2);
        rendezvous.begin(&[member(2)], &[], at(20));
        drain(&mut rendezvous);
        let fail = |rendezvous: &mut Rendezvous, generation| {
            rendezvous.said(member(0), Said::Id(Generation(generation), Some(id())), at(20));
            rendezvous.said(member(0), Said::Begun(Generation(generation)), at(21));
            rendezvous.said(member(1), Said::NotFormed(Generation(generation)), at(21));
            rendezvous.said(member(2), Said::NotFormed(Generation(generation)), at(21));
            drain(rendezvous)
        };
        fail(&mut rendezvous, 2);
        fail(&mut rendezvous, 3);
        let third = fail(&mut rendezvous, 4);
        assert_eq!(third[1..], [Order::Drop(member(2)), Order::RequestId(member(0), Generation(5))]);
        fail(&mut rendezvous, 5);
        fail(&mut rendezvous, 6);
        assert_eq!(fail(&mut rendezvous, 7).last(), Some(&Order::Stop(Stop::NeverForms)));
    }
}
