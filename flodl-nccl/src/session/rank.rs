//! A rank's part: forming, averaging, stopping and starting over.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use super::{Generation, Member, Moment, Patience, Round, STUCK_EXIT};
use crate::code::ErrorCode;
use crate::features::{Capability, Features};
use crate::unique_id::UniqueId;

/// How a communicator is formed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// Anew, with an id that a member made.
    Fresh(UniqueId),
    /// Out of the one that lost members, which is aborted once the new one is ready.
    Shrink {
        /// The places in the old communicator that are left out.
        gone: Vec<u32>,
    },
}

/// What a rank hears: from the coordinator, from its own library and device, and of the time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The coordinator asks for an id.
    RequestId(Generation),
    /// The library has made it, or not.
    IdMade(Generation, Option<UniqueId>),
    /// The coordinator forms a communicator of these members, in order of their places.
    NewSession {
        /// Its number.
        generation: Generation,
        /// How.
        form: Form,
        /// Every member; this rank is one of them.
        members: Vec<Member>,
    },
    /// The communicator is ready.
    Formed(Generation),
    /// The coordinator lets a round begin.
    SyncNow(Round),
    /// Every collective of the round is done, and so is its stream.
    Collected(Round),
    /// The round counts: nobody will be asked to do it again.
    RoundDone(Round),
    /// The communicator has an error, or a call on it failed.
    Broken(ErrorCode),
    /// The coordinator says that a member is dead.
    Dead(Member),
    /// There is no coordinator: nobody will say who is dead, so all peers count as dead.
    CoordinatorLost,
    /// The coordinator is there again; who is dead in its eyes it says anew.
    CoordinatorBack,
    /// The coordinator ends the communicator in order, between two rounds.
    EndSession(Generation),
    /// The round is over, and nobody waits for what this rank still does on that communicator.
    Abandoned(Generation),
    /// What was to end the work of this communicator has come back.
    Stopped(Generation, Stopped),
    /// Time has passed.
    Tick,
}

/// How an abort, a revocation or a close came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// The communicator is gone.
    Ended,
    /// Its work has ended; it can be shrunk.
    Revoked,
    /// It has not come back in time, and never will.
    Stuck,
}

/// Why a communicator's work was ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A member died.
    PeerDied(Member),
    /// The coordinator is gone.
    CoordinatorLost,
    /// The library reported an error.
    Broken(ErrorCode),
    /// Not every member came in time.
    FormingTooLong,
    /// A collective took longer than anything that is merely slow.
    RoundTooLong,
    /// There is no communicator to do it on.
    NoSession,
    /// The coordinator forms another.
    Replaced,
    /// Its round was over before it was done.
    Abandoned,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PeerDied(member) => return write!(f, "{member} died"),
            Self::Broken(code) => return write!(f, "{code}"),
            Self::CoordinatorLost => "the coordinator is lost",
            Self::FormingTooLong => "not every member came in time",
            Self::RoundTooLong => "a collective took longer than anything that is merely slow",
            Self::NoSession => "there is no communicator to do it on",
            Self::Replaced => "another one is formed",
            Self::Abandoned => "its round was over before it was done",
        })
    }
}

/// What a rank tells the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// The id that it was asked for; `None` where the library makes none.
    Id(Generation, Option<UniqueId>),
    /// It has begun to form the communicator.
    Begun(Generation),
    /// The communicator is ready at this rank.
    Formed(Generation),
    /// It is not, and will not be.
    NotFormed(Generation, Why),
    /// The round is done at this rank.
    Acked(Round),
    /// The round is not done at this rank, whose communicator is lost; it waits to be issued again on another.
    NotDone(Generation, Round, Why),
    /// The communicator is lost between two rounds.
    Lost(Generation, Why),
    /// The communicator has ended in order.
    Closed(Generation),
}

/// What a rank is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Ask the library for an id.
    MakeId(Generation),
    /// Begin to form a communicator.
    Form {
        /// Its number.
        generation: Generation,
        /// How.
        form: Form,
        /// This rank's place.
        place: u32,
        /// Number of members.
        size: u32,
        /// How long it may take.
        limit: Duration,
    },
    /// Keep a copy of what the round will overwrite.
    Copy(Round),
    /// Put back what the copy of the round holds.
    Restore(Round),
    /// Issue the round's collectives.
    Issue(Round),
    /// The copy is not needed any more.
    Release(Round),
    /// Abort the communicator, within this time; one that it was being made of as well.
    Abort(Generation, Duration),
    /// End its work and keep it, within this time.
    Revoke(Generation, Duration),
    /// Finalize and destroy it, with every member, within this time; abort it where that fails.
    Close(Generation, Duration),
    /// Tell the coordinator.
    Send(Report),
    /// End the process with this status: a thread is stuck in the library for good.
    EndProcess(u8),
}

/// A communicator that exists, or is being formed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    generation: Generation,
    members: Vec<Member>,
}

/// A communicator that the coordinator has ordered.
type Next = (Generation, Form, Vec<Member>);

#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
enum State {
    /// No communicator.
    Out,
    Forming {
        group: Group,
        until: Moment,
    },
    Ready {
        group: Group,
    },
    InRound {
        group: Group,
        round: Round,
        since: Moment,
        until: Moment,
    },
    /// Its work is being ended; afterwards the report goes out and the order is carried out.
    Stopping {
        generation: Generation,
        until: Moment,
        report: Option<Report>,
        next: Option<Next>,
    },
    /// It waits to be shrunk, which ends what is still in flight.
    Waiting {
        generation: Generation,
        until: Moment,
    },
    Closing {
        generation: Generation,
        until: Moment,
    },
    /// The process is about to end.
    Stuck,
}

#[derive(Debug)]
struct Settings {
    own: Member,
    patience: Patience,
    features: Features,
    /// The coordinator may have a smaller communicator made out of one that lost members.
    shrinks: bool,
}

/// A rank's session: inputs with the time, and effects to be drained after each.
#[derive(Debug)]
pub struct Session {
    settings: Settings,
    state: State,
    /// The newest communicator that was ordered; their numbers only grow.
    newest: Generation,
    /// The members that the coordinator has declared dead.
    dead: BTreeSet<Member>,
    /// The round whose copy is kept.
    copy: Option<Round>,
    longest: Duration,
    effects: VecDeque<Effect>,
}

impl Session {
    /// A rank without a communicator.
    #[must_use]
    pub fn new(own: Member, patience: Patience, features: Features) -> Self {
        Self {
            settings: Settings { own, patience, features, shrinks: true },
            state: State::Out,
            newest: Generation(0),
            dead: BTreeSet::new(),
            copy: None,
            longest: Duration::ZERO,
            effects: VecDeque::new(),
        }
    }

    /// The same under a coordinator that only ever has communicators formed anew: one that lost a member is aborted at once, and
    /// nothing of it goes on while another one is waited for.
    #[must_use]
    pub fn never_shrunk(mut self) -> Self {
        self.settings.shrinks = false;
        self
    }

    /// The next thing to do; after each input all of them are to be taken.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When a [`Input::Tick`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        match &self.state {
            State::Forming { until, .. }
            | State::InRound { until, .. }
            | State::Stopping { until, .. }
            | State::Waiting { until, .. }
            | State::Closing { until, .. } => Some(*until),
            State::Out | State::Ready { .. } | State::Stuck => None,
        }
    }

    /// Whether rounds can be issued.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready { .. })
    }

    /// Takes an input. What does not fit the state came late and is dropped.
    pub fn handle(&mut self, input: Input, now: Moment) {
        if self.state == State::Stuck {
            return;
        }
        match input {
            Input::RequestId(generation) => self.effects.push_back(Effect::MakeId(generation)),
            Input::IdMade(generation, id) => self.send(Report::Id(generation, id)),
            Input::NewSession { generation, form, members } => self.new_session(generation, form, members, now),
            Input::Formed(generation) => self.formed(generation),
            Input::SyncNow(round) => self.begin_round(round, now),
            Input::Collected(round) => self.collected(round, now),
            Input::RoundDone(round) => self.release(round),
            Input::Broken(code) => self.stop(Why::Broken(code), now),
            Input::Dead(member) => self.died(member, now),
            Input::CoordinatorLost => self.stop(Why::CoordinatorLost, now),
            Input::CoordinatorBack => self.dead.clear(),
            Input::EndSession(generation) => self.close(generation, now),
            Input::Abandoned(generation) => self.abandon(generation, now),
            Input::Stopped(generation, how) => self.stopped(generation, how, now),
            Input::Tick => self.tick(now),
        }
    }

    fn send(&mut self, report: Report) {
        self.effects.push_back(Effect::Send(report));
    }

    fn group(&self) -> Option<&Group> {
        match &self.state {
            State::Forming { group, .. } | State::Ready { group } | State::InRound { group, .. } => Some(group),
            State::Out | State::Stopping { .. } | State::Waiting { .. } | State::Closing { .. } | State::Stuck => None,
        }
    }

    /// The communicator that exists or is being formed.
    fn generation(&self) -> Option<Generation> {
        match &self.state {
            State::Stopping { generation, .. }
            | State::Waiting { generation, .. }
            | State::Closing { generation, .. } => Some(*generation),
            _ => self.group().map(|group| group.generation),
        }
    }

    fn new_session(&mut self, generation: Generation, form: Form, members: Vec<Member>, now: Moment) {
        if generation <= self.newest {
            return;
        }
        self.newest = generation;
        self.carry_out((generation, form, members), now);
    }

    fn carry_out(&mut self, order: Next, now: Moment) {
        match &mut self.state {
            State::Out => self.form(order, now),
            State::Waiting { .. } if matches!(order.1, Form::Shrink { .. }) => self.form(order, now),
            // A communicator that waits for a shrink that never comes is aborted, and then the order carried out.
            State::Stopping { next, .. } => *next = Some(order),
            State::Waiting { .. } | State::Closing { .. } => self.stop_for(None, Some(order), now),
            // The shrink itself ends what is in flight.
            State::Ready { .. } | State::InRound { .. } if matches!(order.1, Form::Shrink { .. }) => {
                self.form(order, now)
            }
            State::Forming { .. } | State::Ready { .. } | State::InRound { .. } => {
                self.stop_for(Some(Why::Replaced), Some(order), now);
            }
            State::Stuck => {}
        }
    }

    fn form(&mut self, (generation, form, members): Next, now: Moment) {
        if let Some(dead) = members.iter().find(|member| self.dead.contains(member)) {
            let why = Why::PeerDied(*dead);
            self.send(Report::NotFormed(generation, why));
            // A communicator that was to be shrunk is still there.
            if self.group().is_some() || matches!(self.state, State::Waiting { .. }) {
                self.stop_for(None, None, now);
            }
            return;
        }
        if matches!(form, Form::Shrink { .. }) && self.generation().is_none() {
            // What was to be shrunk is gone.
            return self.send(Report::NotFormed(generation, Why::NoSession));
        }
        let Some(place) = members.iter().position(|member| *member == self.settings.own) else {
            return self.send(Report::NotFormed(generation, Why::NoSession));
        };
        let limit = self.settings.patience.forming();
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let (place, size) = (number(place), number(members.len()));
        self.send(Report::Begun(generation));
        self.effects.push_back(Effect::Form { generation, form, place, size, limit });
        self.state = State::Forming { group: Group { generation, members }, until: now.after(limit) };
    }

    fn formed(&mut self, generation: Generation) {
        if let State::Forming { group, .. } = &self.state
            && group.generation == generation
        {
            self.state = State::Ready { group: group.clone() };
            self.send(Report::Formed(generation));
        }
    }

    fn begin_round(&mut self, round: Round, now: Moment) {
        // Without a communicator there is nothing to say: the coordinator hears of the loss anyway.
        let State::Ready { group } = &self.state else { return };
        let group = group.clone();
        if self.copy == Some(round) {
            self.effects.push_back(Effect::Restore(round));
        } else {
            self.effects.push_back(Effect::Copy(round));
            self.copy = Some(round);
        }
        self.effects.push_back(Effect::Issue(round));
        let until = now.after(self.settings.patience.ceiling(self.longest));
        self.state = State::InRound { group, round, since: now, until };
    }

    fn collected(&mut self, done: Round, now: Moment) {
        if let State::InRound { group, round, since, .. } = &self.state
            && *round == done
        {
            self.longest = self.longest.max(now.since(*since));
            self.state = State::Ready { group: group.clone() };
            self.send(Report::Acked(done));
        }
    }

    fn release(&mut self, round: Round) {
        let is_open = matches!(self.state, State::InRound { round: open, .. } if open == round);
        if self.copy == Some(round) && !is_open {
            self.copy = None;
            self.effects.push_back(Effect::Release(round));
        }
    }

    fn died(&mut self, member: Member, now: Moment) {
        if member == self.settings.own {
            return;
        }
        self.dead.insert(member);
        let concerns_us = self.group().is_some_and(|group| group.members.contains(&member));
        if concerns_us {
            self.stop(Why::PeerDied(member), now);
        } else if matches!(self.state, State::Closing { .. }) {
            // Closing is a collective: one that died will not come to it.
            self.stop_for(None, None, now);
        }
    }

    /// Ends the communicator's work because of something that happened.
    fn stop(&mut self, why: Why, now: Moment) {
        let is_usable = matches!(self.state, State::Ready { .. } | State::InRound { .. });
        let Settings { features, shrinks, .. } = &self.settings;
        let can_shrink = *shrinks && features.has(Capability::Shrink) && matches!(why, Why::PeerDied(_));
        if !is_usable || !can_shrink {
            if self.group().is_some() || matches!(self.state, State::Closing { .. }) {
                self.stop_for(Some(why), None, now);
            }
            return;
        }
        let Some(generation) = self.generation() else { return };
        let report = self.report_of(why);
        let limit = self.settings.patience.ending();
        if self.settings.features.has(Capability::Revoke) {
            self.effects.push_back(Effect::Revoke(generation, limit));
            self.state = State::Stopping { generation, until: now.after(limit * 3), report, next: None };
        } else {
            self.effects.extend(report.map(Effect::Send));
            self.state = State::Waiting { generation, until: now.after(limit) };
        }
    }

    fn report_of(&self, why: Why) -> Option<Report> {
        match &self.state {
            State::Forming { group, .. } => Some(Report::NotFormed(group.generation, why)),
            State::InRound { group, round, .. } => Some(Report::NotDone(group.generation, *round, why)),
            State::Ready { group } => Some(Report::Lost(group.generation, why)),
            State::Closing { generation, .. } => Some(Report::Lost(*generation, why)),
            State::Out | State::Stopping { .. } | State::Waiting { .. } | State::Stuck => None,
        }
    }

    /// Aborts, whatever the state; whoever carries it out waits for a call that is inside and for the abort apiece.
    fn stop_for(&mut self, why: Option<Why>, next: Option<Next>, now: Moment) {
        let Some(generation) = self.generation() else { return };
        let report = why.and_then(|why| self.report_of(why));
        let limit = self.settings.patience.ending();
        self.effects.push_back(Effect::Abort(generation, limit));
        self.state = State::Stopping { generation, until: now.after(limit * 3), report, next };
    }

    fn close(&mut self, generation: Generation, now: Moment) {
        if matches!(&self.state, State::Ready { group } if group.generation == generation) {
            let limit = self.settings.patience.ending();
            self.effects.push_back(Effect::Close(generation, limit));
            self.state = State::Closing { generation, until: now.after(limit * 3) };
        }
    }

    fn abandon(&mut self, of: Generation, now: Moment) {
        if matches!(&self.state, State::InRound { group, .. } if group.generation == of) {
            self.stop(Why::Abandoned, now);
        }
    }

    fn stopped(&mut self, of: Generation, how: Stopped, now: Moment) {
        let is_awaited = matches!(
            self.state,
            State::Stopping { generation, .. } | State::Closing { generation, .. } if generation == of
        );
        if !is_awaited {
            // An earlier communicator's, or the second word on one.
            return;
        }
        match (how, std::mem::replace(&mut self.state, State::Out)) {
            (Stopped::Stuck, _) => self.end_process(),
            (Stopped::Revoked, State::Stopping { report, next, .. }) => {
                self.state = State::Waiting { generation: of, until: now.after(self.settings.patience.ending()) };
                self.effects.extend(report.map(Effect::Send));
                if let Some(next) = next {
                    self.carry_out(next, now);
                }
            }
            (Stopped::Ended, State::Stopping { report, next, .. }) => {
                self.effects.extend(report.map(Effect::Send));
                if let Some(next) = next {
                    self.form(next, now);
                }
            }
            _ => self.send(Report::Closed(of)),
        }
    }

    fn tick(&mut self, now: Moment) {
        if self.next_deadline().is_none_or(|until| now < until) {
            return;
        }
        match &self.state {
            State::Forming { .. } => self.stop(Why::FormingTooLong, now),
            State::InRound { .. } => self.stop(Why::RoundTooLong, now),
            State::Waiting { .. } => self.stop_for(None, None, now),
            State::Stopping { .. } | State::Closing { .. } => self.end_process(),
            State::Out | State::Ready { .. } | State::Stuck => {}
        }
    }

    fn end_process(&mut self) {
        self.state = State::Stuck;
        self.effects.push_back(Effect::EndProcess(STUCK_EXIT));
    }
}
