//! A host's link that breaks, and comes back.
//!
//! A broken link is not a death: the host's ranks keep what they have for as long as the patience, and the gate waits for
//! those that train. A round that is open goes on without them, because what was on its way through the link is lost; what
//! of theirs was not folded is trained again, and they take the consensus by the next round.
//!
//! Nothing is sent twice. When the relay is back it says once for each rank where it stands, and is told what is true now.
//! Until then the rank hears of no round: it might still be in one that is long over.

use crate::context::Context;
use crate::coordinator::{Coordinator, Phase, context};
use crate::formation::run_config;
use crate::id;
use crate::members::{HostLink, MemberMut, State, Work};
use crate::round::{OpenRound, Out, RoundPart};
use crate::running::{Cycle, Running};
use crate::{Fate, Output};
use flodl_wire::message::control::{Next, RoundOutcome};
use flodl_wire::message::join::Admit;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::message::report::RankState;
use flodl_wire::message::{Control, Report};
use flodl_wire::{HostId, Incarnation, Rank, SessionId, Time};

/// How a link was lost.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// It broke: its relay may come back.
    Broken,
    /// Nothing came through it for the patience: that much was waited already.
    Silent,
}

impl Coordinator {
    pub(crate) fn host_lost(&mut self, session: SessionId, (loss, error): (Loss, &str), now: Time) {
        let Some(link) = self.members.remove_host(session) else { return };
        self.watch.moved(now);
        // A host whose ranks have all ended as they should closes its connection because it is done.
        let done = !link.ranks.is_empty() && link.ranks.iter().all(|&rank| self.has_finished(rank));
        if !done {
            let why = Reason::new("host-lost", error).about(link.ranks.iter().copied());
            self.ctx(now).event(EventKind::HostLost { host: link.host }, Some(why));
        }
        let until = match loss {
            Loss::Broken => now.plus(self.deadlines.detached),
            Loss::Silent => now,
        };
        for rank in link.ranks {
            let ours = |member: &MemberMut<'_>| member.session == session && !member.is_gone();
            let Some(mut member) = self.members.get_mut(rank).filter(ours) else { continue };
            if matches!(member.state, State::Leaving { finished: true }) {
                drop(member);
                self.lose(rank, Fate::Finished, now);
                continue;
            }
            // Its host may have been back already, without having said yet where the rank stands.
            let was = match std::mem::replace(&mut member.state, State::Starting) {
                State::Detached { was, .. } => was,
                state => Box::new(state),
            };
            member.state = State::Detached { until, error: error.to_owned(), was };
            drop(member);
            let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
            match &mut self.phase {
                // Its list of tensors does not come any more; it is asked again when it is back, unless another one has given it.
                Phase::Forming(forming) => forming.lists.forget(rank),
                Phase::Running(running) => {
                    running.lists.forget(rank);
                    running.cut(&mut ctx, rank);
                }
                Phase::Returning(_) | Phase::Finishing(_) | Phase::Ended => {}
            }
        }
        self.look_at_members(now);
    }

    fn has_finished(&self, rank: Rank) -> bool {
        self.members.get(rank).is_some_and(|member| {
            matches!(member.state, State::Leaving { finished: true } | State::Gone(Fate::Finished | Fate::Left))
        })
    }

    /// A lost host's relay is back, through another session.
    pub(crate) fn host_resumed(&mut self, session: SessionId, (host, first): (HostId, SessionId), now: Time) {
        self.watch.moved(now);
        let Some((was, ranks)) = self.members.parted((host, first)) else {
            return self.refuse_unknown(session, host, now);
        };
        let again = now.plus(self.deadlines.detached);
        for &rank in &ranks {
            let ours = |member: &MemberMut<'_>| member.session == was;
            let Some(mut member) = self.members.get_mut(rank).filter(ours) else { continue };
            member.session = session;
            if let State::Detached { until, was, .. } = &mut member.state {
                *until = again;
                // It has no process that could say where it stands.
                if matches!(**was, State::Held { .. }) {
                    member.state = std::mem::replace(was, State::Starting);
                }
            }
        }
        self.members.insert_host(session, HostLink { host, first, ranks: ranks.clone(), seen: now });
        self.ctx(now).event(EventKind::HostBack { host }, None);
        self.bring_up_to_date(session, now);
        self.begin_again(session, &ranks);
    }

    /// Nobody knows of any rank of it.
    pub(crate) fn refuse_unknown(&mut self, session: SessionId, host: HostId, now: Time) {
        let text = format!("host {} comes back to a run that does not know it: start join anew", host.name());
        let why = Reason::new("unknown-host", text);
        self.ctx(now).alert(why.clone());
        self.out.push_back(Output::ToHost { session, control: Control::Refused { why } });
        self.out.push_back(Output::CloseHost { session });
    }

    /// Its relay may never have heard of the lives that it was to begin: nothing is known of them. It takes what it has
    /// heard before as said once more, and says where those stand that it has begun.
    pub(crate) fn begin_again(&mut self, session: SessionId, ranks: &[Rank]) {
        let starting = |rank: &Rank| match self.members.get(*rank) {
            Some(member) if matches!(&member.state, State::Detached { was, .. } if matches!(**was, State::Starting)) => {
                Some((*rank, member.incarnation, member.past.losses == 0))
            }
            _ => None,
        };
        let starting: Vec<(Rank, Incarnation, bool)> = ranks.iter().filter_map(starting).collect();
        let none_known = starting.len() == ranks.len() && starting.iter().all(|&(.., is_first)| is_first);
        if none_known {
            let ids = starting.iter().map(|&(rank, incarnation, _)| (rank, incarnation)).collect();
            let admit = Admit { session, ids, world_size: self.config.world_size };
            self.out.push_back(Output::ToHost { session, control: Control::Admit(admit) });
        }
        for (rank, incarnation, is_first) in starting {
            if let Some(mut member) = self.members.get_mut(rank).filter(|_| none_known || !is_first) {
                member.state = State::Starting;
            }
            if !is_first {
                self.out.push_back(Output::ToHost { session, control: Control::Restart { rank, incarnation } });
            }
        }
    }

    /// A rank of a host that is back says, through its relay, where it stands.
    pub(crate) fn rank_state(&mut self, session: SessionId, state: RankState, now: Time) {
        let RankState { rank, incarnation, .. } = state;
        let known = self.members.speaks_for(session, rank, incarnation);
        if !known || !self.reattach(rank, now) {
            // Who was let go may not have heard it.
            let let_go = known && self.has_finished(rank);
            let control = if let_go { Control::Shutdown } else { Control::Fenced { incarnation } };
            self.out.push_back(Output::ToRank { session, rank, incarnation, control });
            return;
        }
        self.ctx(now).tell(rank, Control::ControllerBack);
        for word in &state.words {
            self.repeated(rank, word.clone(), now);
        }
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        match &mut self.phase {
            Phase::Forming(_) => {}
            Phase::Running(running) => running.reattached(&mut ctx, &state),
            Phase::Finishing(finishing) => finishing.reattached(&mut ctx, &state),
            Phase::Returning(_) | Phase::Ended => {}
        }
    }

    /// It is what it was. False where its life is over.
    fn reattach(&mut self, rank: Rank, now: Time) -> bool {
        let Some(mut member) = self.members.get_mut(rank) else { return false };
        if let State::Detached { was, .. } = &mut member.state {
            member.state = std::mem::replace(was, State::Starting);
        }
        member.seen = member.seen.map(|_| now);
        if let State::Active(Work::Training { pace, .. }) = &mut member.state {
            pace.stepped(now);
        }
        !member.is_gone()
    }

    /// What a rank said around the loss. Most of it was heard; the rest is heard now. Of a round that was open when the link
    /// broke nothing counts any more, unless ranks average it among themselves.
    pub(crate) fn repeated(&mut self, rank: Rank, word: Report, now: Time) {
        let state = self.members.get(rank).map(|member| &member.state);
        let counts = match (&word, state) {
            (Report::WindowReport(report), Some(State::Active(Work::Training { window, .. }))) => {
                *window == report.window
            }
            (Report::SnapshotReady { .. }, _) => {
                matches!(&self.phase, Phase::Running(running) if running.is_over_nccl())
            }
            (Report::WindowReport(_) | Report::SyncAck(_), _) => false,
            _ => true,
        };
        if counts {
            self.rank_report(rank, word, now);
        }
    }
}

impl Running {
    /// A rank's link is gone.
    fn cut(&mut self, ctx: &mut Context<'_>, rank: Rank) {
        let in_round = matches!(&self.cycle, Cycle::Round(open) if open.parts().contains_key(&rank));
        // What ranks average among themselves does not go through their hosts.
        if in_round && !self.is_over_nccl() {
            self.out_of_round(rank, Out::Cut, ctx.now);
            self.outdate(ctx, rank);
        }
    }

    /// What a rank holds that is or was out of reach is not the consensus any more: it takes the next one before it trains
    /// again.
    fn outdate(&mut self, ctx: &mut Context<'_>, rank: Rank) {
        let Some(mut member) = ctx.members.get_mut(rank) else { return };
        let state = match &mut member.state {
            State::Detached { was, .. } => &mut **was,
            state => state,
        };
        if matches!(state, State::Active(_)) {
            *state = State::Syncing;
            drop(member);
            self.scheduler.leave(id::slot(rank));
            self.ledger.release(rank, false);
        }
    }

    /// A version was committed without those that are detached, and without those that came back while the round was open.
    pub(crate) fn outdate_absent(&mut self, ctx: &mut Context<'_>, round: &OpenRound) {
        let is_in_it = |rank: &Rank| round.parts().get(rank).is_some_and(RoundPart::is_awaited);
        let back = ctx.members.active().map(|member| member.rank).filter(|rank| !is_in_it(rank));
        let absent: Vec<Rank> = ctx.members.tally().detached.iter().copied().chain(back).collect();
        for rank in absent {
            self.outdate(ctx, rank);
        }
    }

    /// Tells a rank that is back that it was let in, and how the round ended that it is in, where it has missed that.
    pub(crate) fn tell_missed(&self, ctx: &mut Context<'_>, state: &RankState) {
        let rank = state.rank;
        let is_in_run = ctx.members.get(rank).is_some_and(|member| member.state.is_in_run());
        if is_in_run && !state.admitted {
            let config = run_config(ctx, &self.agreed, (rank, ctx.members.world().present));
            ctx.tell(rank, Control::Admitted(Box::new(config)));
        }
        if let Some(round) = state.round.filter(|_| !state.round_done) {
            let is_open = matches!(&self.cycle, Cycle::Round(open) if open.id == round);
            let (outcome, next) = match self.last_done {
                Some((last, outcome, next)) if last == round => (outcome, next),
                // Whatever it came to, the rank has missed more since.
                _ => (RoundOutcome::Nothing, Next::Window),
            };
            if !is_open {
                ctx.tell(rank, Control::RoundDone { round, outcome, next });
            }
        }
    }

    /// Tells a rank that is back what it has missed.
    fn reattached(&mut self, ctx: &mut Context<'_>, state: &RankState) {
        let rank = state.rank;
        let Some(now_in) = ctx.members.get(rank).map(|member| member.state.clone()) else { return };
        self.tell_missed(ctx, state);
        self.roles.again(ctx, rank);
        match now_in {
            State::Active(Work::Training { window, .. }) if state.window != Some(window) => {
                if let Some(plan) = self.orders.get(&rank).cloned() {
                    ctx.tell(rank, Control::Window(plan));
                }
            }
            State::Leaving { finished: false } => ctx.tell(rank, Control::Shutdown),
            _ => {}
        }
        // The round ends its window, which it may not have heard of either.
        self.tell_collective(ctx, state);
    }
}
