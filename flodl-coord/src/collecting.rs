//! A round over NCCL, from its last snapshot to the answers: a communicator of those who take part, the order to average, and
//! both once more where somebody is lost.
//!
//! Nobody is waited for without an end: snapshots and collectives have the round's ceiling, a communicator has the rendezvous's own
//! deadlines, and a host whose link broke has the patience. Where no communicator is to be had, the round is run again over the
//! CPU, which gives the controller the consensus, and the run is saved and ends; where one rank is left, it goes on alone.

use crate::collective::{Goal, Issued, Outcome};
use crate::communicators::{Communicators, Life, News};
use crate::context::Context;
use crate::ledger::Verdict;
use crate::members::{Member, State};
use crate::round::{Out, Over};
use crate::running::{Cycle, Running, Step, Stopping};
use crate::{Breach, id};
use flodl_nccl::session::Stop;
use flodl_wire::message::Control;
use flodl_wire::message::control::{Next, RoundOutcome};
use flodl_wire::message::nccl::{NcclAck, NcclId, Standing};
use flodl_wire::message::record::{EventKind, Reason, Role};
use flodl_wire::message::report::{FoldedPart, RankState};
use flodl_wire::{NcclSession, Rank};
use std::collections::BTreeSet;

/// Why there is no communicator for a round.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum WithoutNccl {
    /// No member makes an id.
    NoId,
    /// All begin, and no attempt succeeds.
    NeverForms,
    /// Its collectives are lost again and again, though nobody dies.
    NeverEnds,
    /// One rank averages with nobody.
    Alone,
    /// Some lack the consensus, and no rank that takes part has it.
    NoHolder,
}

impl WithoutNccl {
    /// Why, for people and programs.
    pub(crate) fn reason(self) -> Reason {
        let (code, text) = match self {
            WithoutNccl::NoId => ("nccl-no-id", "no rank's NCCL makes an id for a communicator"),
            WithoutNccl::NeverForms => {
                ("nccl-never-forms", "all ranks begin to form a communicator, and none comes to be")
            }
            WithoutNccl::NeverEnds => ("nccl-never-ends", "a round's collectives are lost again and again"),
            WithoutNccl::Alone => ("nccl-alone", "one rank is left, which averages over the CPU"),
            WithoutNccl::NoHolder => ("nccl-no-holder", "none of the ranks that take part holds the consensus"),
        };
        Reason::new(code, text)
    }

    /// Whether there is no use in trying again in a later round.
    fn is_final(self) -> bool {
        matches!(self, WithoutNccl::NoId | WithoutNccl::NeverForms | WithoutNccl::NeverEnds)
    }
}

impl Running {
    /// Whether the controller's root has the consensus in force.
    pub(crate) fn is_at_root(&self) -> bool {
        let Some(nccl) = &self.nccl else { return true };
        nccl.at_root == self.consensus.map(|held| held.version)
    }

    /// Whether the root is to have the consensus now: to save it, or because those who hold it are about to go. Nobody has
    /// trained since.
    pub(crate) fn wants_handover(&self, ctx: &Context<'_>) -> bool {
        let counts = ctx.members.tally().counts;
        if self.is_at_root() || counts.active == 0 || ctx.members.active().any(Member::has_window) {
            return false;
        }
        let is_due = self.roles.due(Role::Checkpoint).is_some() && !self.saving.is_busy();
        self.is_done() || self.stopping.is_some() || counts.staying == 0 || is_due
    }

    /// Whether the open round is averaged by the ranks among themselves.
    pub(crate) fn is_over_nccl(&self) -> bool {
        matches!(&self.cycle, Cycle::Round(open) if open.is_over_nccl())
    }

    fn life(ctx: &Context<'_>, rank: Rank) -> Option<Life> {
        Some((rank, ctx.members.get(rank)?.incarnation))
    }

    /// A rank has made an id, or cannot.
    pub(crate) fn nccl_id(
        &mut self,
        ctx: &mut Context<'_>,
        (rank, session): (Rank, NcclSession),
        outcome: Result<Box<NcclId>, String>,
    ) {
        let (Some(life), Some(nccl)) = (Self::life(ctx, rank), &mut self.nccl) else { return };
        if let Err(error) = &outcome {
            let text = format!("{rank} makes no id for a communicator: {error}");
            ctx.alert(Reason::new("nccl-no-id", text).about([rank]));
        }
        nccl.id_made(life, session, outcome.ok().map(|id| *id), ctx.now);
    }

    /// A rank says where it stands with a communicator.
    pub(crate) fn nccl_stands(
        &mut self,
        ctx: &mut Context<'_>,
        (rank, session): (Rank, NcclSession),
        standing: &Standing,
    ) {
        let (Some(life), Some(nccl)) = (Self::life(ctx, rank), &mut self.nccl) else { return };
        let is_lost = nccl.stands(life, session, standing, ctx.now);
        let (Standing::NotFormed { why } | Standing::Lost { why }) = standing else { return };
        let is_used = |issued: &Issued| issued.session == session;
        if is_lost && matches!(&self.cycle, Cycle::Round(open) if open.issued().is_some_and(is_used)) {
            let text = format!("{rank} has lost {session}: {why}");
            self.lose_collective(ctx, Reason::new("nccl-lost", text).about([rank]));
        }
    }

    /// A rank has answered a round over NCCL.
    pub(crate) fn nccl_answered(&mut self, rank: Rank, ack: NcclAck) -> Result<(), Breach> {
        if let Some(nccl) = &mut self.nccl {
            nccl.comes_out(rank, ack.session);
        }
        if let Cycle::Round(open) = &mut self.cycle {
            open.take_nccl_ack(rank, ack);
        }
        Ok(())
    }

    /// The collectives that were issued come to nothing, though nobody died of it.
    pub(crate) fn lose_collective(&mut self, ctx: &mut Context<'_>, why: Reason) {
        self.end_collective(ctx, (false, why));
    }

    fn end_collective(&mut self, ctx: &mut Context<'_>, (by_death, why): (bool, Reason)) {
        let (Cycle::Round(open), Some(nccl)) = (&mut self.cycle, &mut self.nccl) else { return };
        let (round, is_awaited) = (open.id, open.awaited().map(|(rank, _)| rank).collect());
        let Over::Nccl(collective) = &mut open.over else { return };
        let Some(session) = collective.issued.as_ref().map(|issued| issued.session) else { return };
        nccl.give_up(session);
        nccl.given_up |= !collective.lost(by_death);
        open.lacking.acks = is_awaited;
        open.parts.values_mut().for_each(|part| part.ack = None);
        ctx.event(EventKind::NcclLost { session, round }, Some(why));
    }

    /// Does what can be done for the open round, where it is over NCCL and every snapshot is taken.
    pub(crate) fn collect(&mut self, ctx: &mut Context<'_>) -> Option<Step> {
        let news = self.nccl.as_mut().map(|nccl| nccl.carry_out(ctx)).unwrap_or_default();
        let Cycle::Round(open) = &self.cycle else { return None };
        if !open.is_over_nccl() || open.folded.is_some() || !open.lacking.snapshots.is_empty() {
            return None;
        }
        let mut dropped = Vec::new();
        for news in news {
            match news {
                News::Dropped(rank, fate) => dropped.push((rank, fate)),
                News::Stopped(Stop::NoId) => return Some(self.again_over_cpu(ctx, WithoutNccl::NoId)),
                News::Stopped(Stop::NeverForms) => return Some(self.again_over_cpu(ctx, WithoutNccl::NeverForms)),
                News::Stopped(Stop::Alone(_) | Stop::Nobody) => {}
            }
        }
        if !dropped.is_empty() {
            return Some(Step::Expel(dropped));
        }
        if self.nccl.as_ref().is_some_and(|nccl| nccl.given_up) {
            return Some(self.again_over_cpu(ctx, WithoutNccl::NeverEnds));
        }
        let issued = open.issued().cloned();
        match issued {
            Some(issued) => self.look_at_collective(ctx, &issued),
            None => self.begin_collective(ctx),
        }
    }

    fn look_at_collective(&mut self, ctx: &mut Context<'_>, issued: &Issued) -> Option<Step> {
        let Cycle::Round(open) = &mut self.cycle else { return None };
        match open.outcome(issued) {
            Outcome::Open => None,
            Outcome::Nobody => {
                open.fold_nothing();
                None
            }
            Outcome::MemberDied(rank) => {
                let why = Reason::new("nccl-member-died", format!("{rank} died in it")).about([rank]);
                self.end_collective(ctx, (true, why));
                self.begin_collective(ctx)
            }
            Outcome::Answered => {
                // Somebody who has the result is to be in reach when the others are let go of.
                let in_reach = |rank: Rank| ctx.members.get(rank).is_some_and(Member::takes_part);
                if open.awaited().any(|(rank, _)| in_reach(rank))
                    && let Err(root) = open.conclude(issued, self.consensus)
                {
                    let text = format!("{root} gave another replica than the consensus to all: nobody takes it");
                    ctx.alert(Reason::new("digest-differs", text).about([root]));
                }
                None
            }
        }
    }

    /// Lets those who take part begin to average, or to form a communicator.
    fn begin_collective(&mut self, ctx: &mut Context<'_>) -> Option<Step> {
        let (Cycle::Round(open), Some(nccl)) = (&mut self.cycle, &mut self.nccl) else { return None };
        let who: BTreeSet<Life> = open.awaited().map(|(rank, part)| (rank, part.incarnation)).collect();
        let root = match open.goal(self.consensus.is_some()) {
            Goal::Nothing => {
                open.fold_nothing();
                return None;
            }
            Goal::NoHolder => return Some(self.again_over_cpu(ctx, WithoutNccl::NoHolder)),
            Goal::Average => None,
            Goal::Take(rank) => Some(rank),
        };
        if who.len() < 2 {
            return Some(self.again_over_cpu(ctx, WithoutNccl::Alone));
        }
        // Whose host is out of reach hears no order; it is back within the patience, or dead.
        let is_away = |&(rank, _): &Life| !ctx.members.get(rank).is_some_and(Member::takes_part);
        if who.iter().any(is_away) {
            nccl.abandon();
            return None;
        }
        let Some(session) = nccl.of(&who, ctx.now) else {
            let stopped = nccl.carry_out(ctx).into_iter().any(|news| matches!(news, News::Stopped(_)));
            return stopped.then(|| self.again_over_cpu(ctx, WithoutNccl::NoId));
        };
        let place = root.and_then(|root| (0..).zip(&who).find(|(_, (rank, _))| *rank == root)).map(|(place, _)| place);
        nccl.enter(session, who.iter().map(|(rank, _)| *rank));
        open.issue(Issued { session, members: who, root });
        open.counts_from = ctx.now;
        ctx.broadcast(Control::SyncNow { round: open.id, session, root: place });
        None
    }

    /// The open round is run again, under another number and over the CPU. Everybody keeps what it has and has trained.
    fn again_over_cpu(&mut self, ctx: &mut Context<'_>, why: WithoutNccl) -> Step {
        let Cycle::Round(open) = std::mem::replace(&mut self.cycle, Cycle::Window) else { return Step::Again };
        if let Some(nccl) = &mut self.nccl {
            nccl.abandon();
            nccl.given_up |= why.is_final();
        }
        for (&rank, part) in open.parts() {
            let lacks = why == WithoutNccl::NoHolder && part.is_unfit;
            if part.is_awaited() && !lacks {
                self.ledger.leave_round(rank, open.id);
                continue;
            }
            let blamed = lacks || matches!(part.out, Some(Out::Dead { brought_itself_down: true }));
            let verdict = Verdict { part: FoldedPart::None, steps: part.steps, unheard: part.unheard, blamed };
            self.ledger.settle(rank, open.id, verdict);
            self.make_joiner(ctx, rank);
        }
        let reason = why.reason();
        if why.is_final() {
            ctx.alert(reason.clone());
            self.stopping.get_or_insert(Stopping::NoCommunicator(why));
        }
        let (outcome, next) = (RoundOutcome::Again, Next::Window);
        self.last_done = Some((open.id, outcome, next));
        ctx.event(EventKind::RoundEmpty { round: open.id }, Some(reason.clone()));
        ctx.broadcast(Control::RoundDone { round: open.id, outcome, next });
        self.open_round(ctx, open.window, reason)
    }

    /// A rank takes the consensus before it trains again.
    fn make_joiner(&mut self, ctx: &mut Context<'_>, rank: Rank) {
        let Some(mut member) = ctx.members.get_mut(rank).filter(|member| member.is_active()) else { return };
        member.missed += 1;
        member.state = State::Syncing;
        drop(member);
        self.scheduler.leave(id::slot(rank));
    }

    /// A rank that is back is told again what it may have missed of the open round.
    pub(crate) fn tell_collective(&self, ctx: &mut Context<'_>, state: &RankState) {
        let Cycle::Round(open) = &self.cycle else { return };
        let in_it = open.is_over_nccl() && open.awaited().any(|(rank, _)| rank == state.rank);
        if !in_it {
            return;
        }
        if state.round != Some(open.id) {
            let control = Control::PrepareSync { round: open.id, roster: open.roster(ctx.members) };
            ctx.tell(state.rank, control);
        }
        if let Some(Issued { session, members, root }) = open.issued() {
            let place = |root: Rank| (0..).zip(members).find(|(_, (rank, _))| *rank == root).map(|(place, _)| place);
            let control = Control::SyncNow { round: open.id, session: *session, root: root.and_then(place) };
            ctx.tell(state.rank, control);
        }
    }

    /// Why the open round goes nowhere, where it waits for a communicator.
    pub(crate) fn hold_of_nccl(&self) -> Option<Reason> {
        self.nccl.as_ref().map(|nccl| nccl.hold())
    }

    /// Whether anybody may be inside a collective: until nobody is, nobody is told to end.
    pub(crate) fn anybody_inside(&self) -> bool {
        self.nccl.as_ref().is_some_and(Communicators::is_anybody_inside)
    }
}
