//! Who shares a communicator: the rendezvous of flodl-nccl, in the words of this run.
//!
//! A communicator cannot lose a member and cannot take one in, so each is made of exactly those that take part in a round, when
//! a round needs it: there are no leaves, joins or deaths between two rounds, only another list of members than before. An
//! id comes from one of them, and whoever does not begin to form it in time is gone.
//!
//! Invariants: the number of a communicator only grows; one that is ready is ready at all of its members; whoever was let into
//! a collective is `inside` it until it has answered, said that the communicator is gone, or died.

use crate::context::Context;
use crate::{Fate, id};
use flodl_nccl::session::{Form, Order, Patience, Rendezvous, Said, Stop, Waits};
use flodl_wire::message::Control;
use flodl_wire::message::nccl::{NcclId, NewSession, Standing};
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::{Incarnation, NcclSession, Rank, Time, Version};
use std::collections::{BTreeMap, BTreeSet};

/// One life of a rank.
pub(crate) type Life = (Rank, Incarnation);

/// A run's communicators, of which one is in use at a time.
#[derive(Debug)]
pub(crate) struct Communicators {
    rendezvous: Rendezvous,
    /// Whom the rendezvous brings together.
    members: BTreeSet<Life>,
    /// It is at that.
    is_forming: bool,
    ready: Option<(NcclSession, BTreeSet<Life>)>,
    pub(crate) inside: BTreeMap<Rank, NcclSession>,
    /// No communicator is to be had any more.
    pub(crate) given_up: bool,
    /// The consensus that the controller's root has: ranks average among themselves, and hand it over where it is needed.
    pub(crate) at_root: Option<Version>,
}

/// What came of a rendezvous.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum News {
    /// Who did not begin in time, with its fate.
    Dropped(Rank, Fate),
    /// There will be no communicator.
    Stopped(Stop),
}

impl Communicators {
    /// None yet.
    pub(crate) fn new(patience: core::time::Duration) -> Communicators {
        Communicators {
            // What a rank's library can do is not known here, and a new one can be formed by any.
            rendezvous: Rendezvous::new(Patience(patience), false),
            members: BTreeSet::new(),
            is_forming: false,
            ready: None,
            inside: BTreeMap::new(),
            given_up: false,
            at_root: None,
        }
    }

    /// The communicator of exactly these. Where there is none it is being formed from now on.
    pub(crate) fn of(&mut self, who: &BTreeSet<Life>, now: Time) -> Option<NcclSession> {
        if let Some((session, _)) = self.ready.as_ref().filter(|(_, members)| members == who) {
            return Some(*session);
        }
        if !(self.is_forming && self.members == *who) {
            let apart =
                |one: &BTreeSet<Life>, other| one.difference(other).copied().map(id::member).collect::<Vec<_>>();
            let (joiners, leavers) = (apart(who, &self.members), apart(&self.members, who));
            (self.ready, self.is_forming, self.members) = (None, true, who.clone());
            self.rendezvous.begin(&joiners, &leavers, id::moment(now));
        }
        None
    }

    /// Nobody waits for a communicator any more; what is being formed comes to nothing.
    pub(crate) fn abandon(&mut self) {
        self.is_forming = false;
    }

    /// These go into a collective.
    pub(crate) fn enter(&mut self, session: NcclSession, who: impl Iterator<Item = Rank>) {
        self.inside = who.map(|rank| (rank, session)).collect();
    }

    /// A rank is in no collective: it has taken a snapshot, or its life is over.
    pub(crate) fn is_outside(&mut self, rank: Rank) {
        self.inside.remove(&rank);
    }

    /// A rank has come out of a collective of that communicator.
    pub(crate) fn comes_out(&mut self, rank: Rank, of: NcclSession) {
        if self.inside.get(&rank) == Some(&of) {
            self.inside.remove(&rank);
        }
    }

    /// Whether anybody may still be in a collective.
    pub(crate) fn is_anybody_inside(&self) -> bool {
        !self.inside.is_empty()
    }

    /// The communicator is of no use any more.
    pub(crate) fn give_up(&mut self, session: NcclSession) {
        self.ready.take_if(|(ready, _)| *ready == session);
    }

    /// A rank that was asked for an id has made one, or cannot.
    pub(crate) fn id_made(&mut self, life: Life, session: NcclSession, made: Option<NcclId>, now: Time) {
        self.said(life, Said::Id(id::generation(session), made.map(id::unique)), now);
    }

    /// A member says where it stands. Whether the communicator was ready, and is lost by that.
    pub(crate) fn stands(&mut self, life: Life, session: NcclSession, standing: &Standing, now: Time) -> bool {
        let of = id::generation(session);
        match standing {
            // Whatever it was in before has been ended.
            Standing::Begun => {
                self.is_outside(life.0);
                self.said(life, Said::Begun(of), now);
            }
            Standing::Ready => self.said(life, Said::Formed(of), now),
            Standing::NotFormed { .. } | Standing::Lost { .. } => {
                self.comes_out(life.0, session);
                let was_ready =
                    |(ready, members): &mut (NcclSession, BTreeSet<Life>)| *ready == session && members.contains(&life);
                if self.ready.take_if(was_ready).is_some() {
                    return true;
                }
                self.said(life, Said::NotFormed(of), now);
            }
        }
        false
    }

    fn said(&mut self, life: Life, said: Said, now: Time) {
        if self.is_forming {
            self.rendezvous.said(id::member(life), said, id::moment(now));
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Time) {
        if self.is_forming {
            self.rendezvous.tick(id::moment(now));
        }
    }

    /// When [`Communicators::tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.rendezvous.next_deadline().filter(|_| self.is_forming).map(id::time)
    }

    /// Says what the rendezvous has to say. What came of it otherwise.
    pub(crate) fn carry_out(&mut self, ctx: &mut Context<'_>) -> Vec<News> {
        let mut news = Vec::new();
        while let Some(order) = self.rendezvous.poll_order() {
            match order {
                Order::RequestId(member, generation) => {
                    let session = id::session(generation);
                    ctx.tell(Rank(member.rank), Control::RequestNewNcclId { session });
                }
                Order::NewSession { generation, form: Form::Fresh(unique), members } => {
                    let (session, members) = (id::session(generation), members.into_iter().map(id::life).collect());
                    let new = NewSession { session, id: id::nccl_id(unique), members };
                    ctx.broadcast(Control::NewNcclSession(Box::new(new)));
                }
                // Nobody is asked to shrink one.
                Order::NewSession { form: Form::Shrink { .. }, .. } => {}
                Order::Established(generation, members) => {
                    let (session, members) = (id::session(generation), members.into_iter().map(id::life));
                    let members: BTreeSet<Life> = members.collect();
                    let ranks = members.iter().map(|(rank, _)| *rank).collect();
                    ctx.event(EventKind::NcclReady { session, ranks }, None);
                    self.ready = Some((session, members));
                    self.is_forming = false;
                }
                Order::Drop(member) => {
                    self.members.remove(&id::life(member));
                    news.push(News::Dropped(Rank(member.rank), Fate::NoCommunicator));
                }
                Order::Stop(why) => {
                    self.is_forming = false;
                    news.push(News::Stopped(why));
                }
            }
        }
        news
    }

    /// What is waited for before a round can be averaged.
    pub(crate) fn hold(&self) -> Reason {
        let ranks = |members: &[flodl_nccl::session::Member]| members.iter().map(|member| Rank(member.rank)).collect();
        let (what, ranks): (&str, Vec<Rank>) = match self.rendezvous.waits().filter(|_| self.is_forming) {
            Some(Waits::Id(member)) => ("the id of a communicator from", vec![Rank(member.rank)]),
            Some(Waits::Formed(members)) => ("a communicator of", ranks(&members)),
            None => return Reason::new("communicator", "every snapshot is taken, and there is no communicator"),
        };
        Reason::new("communicator", format!("waiting for {what} {}", crate::gate::shown(&ranks))).about(ranks)
    }
}
