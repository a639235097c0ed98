//! Leaving by plan: the window ends for everybody, the leaver's work is averaged with the others', and it goes.

use crate::context::Context;
use crate::coordinator::{Coordinator, Phase, context};
use crate::id;
use crate::members::{Member, MemberMut, State};
use crate::running::{Cycle, Running};
use crate::{Fate, Output};
use flodl_wire::message::Control;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::{Rank, SessionId, Time, Version};

impl Coordinator {
    /// A host goes, and its ranks with it.
    pub(crate) fn host_leaves(&mut self, session: SessionId, now: Time) {
        self.watch.moved(now);
        let until = now.plus(self.config.membership.leave_grace);
        let mut idle = Vec::new();
        let ranks = self.members.host(session).map_or_else(Vec::new, |link| link.ranks.clone());
        for rank in ranks {
            let ours = |member: &MemberMut<'_>| member.session == session && !member.is_gone();
            let Some(mut member) = self.members.get_mut(rank).filter(ours) else { continue };
            member.returns = false;
            if member.state.is_in_run() {
                member.leaving.get_or_insert(until);
            } else {
                idle.push((member.rank, member.incarnation));
            }
        }
        for (rank, incarnation) in idle {
            self.out.push_back(Output::ToRank { session, rank, incarnation, control: Control::Shutdown });
            self.lose(rank, Fate::Left, now);
        }
        if let Phase::Running(running) = &mut self.phase {
            let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
            running.end_window_for_leavers(&mut ctx);
        }
    }
}

impl Running {
    /// Those who leave bring in what they have trained. Who has trained nothing may go at once.
    fn end_window_for_leavers(&mut self, ctx: &mut Context<'_>) {
        if !matches!(self.cycle, Cycle::Window) {
            return;
        }
        // Where ranks train on the gate sees to it that their windows end.
        let is_active = |rank: &Rank| ctx.members.get(*rank).is_some_and(Member::is_active);
        if !self.overlaps && ctx.members.tally().marked.leavers.iter().any(is_active) {
            self.end_window(ctx, Reason::new("leaving", "somebody leaves, and brings in what it has trained"));
        } else {
            self.let_go(ctx);
        }
    }

    /// A rank that was told to end says its last word.
    pub(crate) fn last_word(&self, ctx: &mut Context<'_>, rank: Rank, digest: Option<(Version, u64)>) {
        self.replica_is_equal(ctx, rank, digest);
        if let Some(mut member) = ctx.members.get_mut(rank)
            && let State::Leaving { finished } = &mut member.state
        {
            *finished = true;
        }
    }

    /// No round is open: who leaves can go, for nothing of it is outstanding.
    pub(crate) fn let_go(&mut self, ctx: &mut Context<'_>) {
        let outside = |member: &Member| member.takes_part() && !member.has_window();
        let can_go = |rank: &Rank| ctx.members.get(*rank).is_some_and(outside);
        let leavers: Vec<Rank> = ctx.members.tally().marked.leavers.iter().copied().filter(can_go).collect();
        for rank in leavers {
            self.ledger.release(rank, false);
            self.scheduler.leave(id::slot(rank));
            ctx.tell(rank, Control::Shutdown);
            if let Some(mut member) = ctx.members.get_mut(rank) {
                member.state = State::Leaving { finished: false };
            }
            let why = Reason::new("left", "what it trained is averaged").about([rank]);
            ctx.event(EventKind::RankLeft { rank }, Some(why));
        }
    }
}
