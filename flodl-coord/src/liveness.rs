//! Time passing: whose deadline is over, and what a member's death does, in one place and order. All deadlines of
//! members and hosts are here.

use crate::coordinator::{Coordinator, Phase, context};
use crate::members::{Member, State, Work};
use crate::reattach::Loss;
use crate::stalled::Verdict;
use crate::{Fate, Output};
use core::time::Duration;
use flodl_wire::message::Control;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::{Rank, Time};

impl Coordinator {
    /// Lets time pass: deadlines that are over take effect.
    pub fn tick(&mut self, now: Time) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let now = self.called(now);
        let silence = self.deadlines.silence;
        for session in self.members.silent_hosts(now) {
            self.out.push_back(Output::CloseHost { session });
            let error = format!("nothing was heard from its relay for {silence:?}");
            self.host_lost(session, (Loss::Silent, &error), now);
        }
        self.look_at_members(now);
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        let late = match &mut self.phase {
            Phase::Forming(forming) => forming.lists.overdue(&ctx),
            Phase::Finishing(finishing) => finishing.overdue(&mut ctx),
            Phase::Running(running) => {
                let late = running.lists.overdue(&ctx);
                late.into_iter().chain(running.overdue(&mut ctx)).collect()
            }
            Phase::Returning(_) | Phase::Ended => Vec::new(),
        };
        for (rank, fate) in late {
            self.expel(rank, fate, now);
        }
        if self.watch.beat(now) {
            self.out.push_back(Output::Broadcast(Control::Heartbeat));
        }
        self.advance(now);
    }

    /// When to tick next; `None` once the run has ended.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        self.due().map(|due| self.still.outside(due))
    }

    pub(crate) fn due(&self) -> Option<Time> {
        let phase = match &self.phase {
            Phase::Ended => return None,
            Phase::Forming(forming) => forming.lists.deadline(),
            Phase::Returning(returning) => returning.deadline(),
            Phase::Finishing(finishing) => finishing.deadline(),
            Phase::Running(running) => running.deadline(&self.deadlines),
        };
        phase.into_iter().chain(self.members.next_look()).chain([self.watch.next()]).min()
    }

    /// Ends a member's life in the run, and tells it why.
    pub(crate) fn expel(&mut self, rank: Rank, fate: Fate, now: Time) {
        self.ctx(now).tell(rank, Control::Refused { why: fate.reason(rank) });
        self.lose(rank, fate, now);
    }

    pub(crate) fn stepped(&mut self, rank: Rank, step: u64, now: Time) {
        if let Some(mut member) = self.members.get_mut(rank)
            && member.step != step
        {
            member.step = step;
            let duty = match &mut self.phase {
                Phase::Running(running) => running.roles.moved(rank, now),
                Phase::Finishing(finishing) => finishing.moved(rank, now),
                Phase::Forming(_) | Phase::Returning(_) | Phase::Ended => None,
            };
            if let Some(pace) = member.pace_mut() {
                pace.stepped(duty.unwrap_or(now));
            }
            self.watch.moved(now);
        }
    }

    /// A member's life is over: the one place where that happens.
    pub(crate) fn lose(&mut self, rank: Rank, fate: Fate, now: Time) {
        let Some(member) = self.members.get(rank).filter(|member| !member.is_gone()) else { return };
        let incarnation = member.incarnation;
        let formed = self.members.leave(rank, &fate, now);
        self.watch.moved(now);
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        if fate.is_loss() {
            ctx.event(EventKind::Death { rank, incarnation }, Some(fate.reason(rank)));
        } else {
            ctx.event(EventKind::RankFinished { rank }, None);
        }
        match &mut self.phase {
            Phase::Forming(forming) => forming.lists.forget(rank),
            Phase::Running(running) => {
                running.lists.forget(rank);
                if formed {
                    running.lose(&mut ctx, rank, &fate);
                }
            }
            Phase::Finishing(finishing) => finishing.give_up_lost(&mut ctx),
            Phase::Returning(_) | Phase::Ended => {}
        }
        if fate.is_loss() {
            let why = fate.reason(rank);
            self.out.push_back(Output::Broadcast(Control::DeclareDead { rank, incarnation, why }));
        }
        self.watch.last_loss(fate.brought_itself_down());
        self.hold(rank, &fate, now);
        self.write_lives(&[rank], now);
    }

    /// Looks at those members of whom something may be due: lives that are over, lives that may begin, and ranks that make
    /// no steps, which are named once each and dead at the ceiling.
    pub(crate) fn look_at_members(&mut self, now: Time) {
        for rank in self.members.take_due(now) {
            let Some(mut member) = self.members.get_mut(rank) else { continue };
            if let State::Held { until } = member.state {
                drop(member);
                if now >= until {
                    self.start_held(rank, now);
                }
                continue;
            }
            if member.life_deadline(&self.deadlines).is_some_and(|at| now >= at) {
                let fate = fate_at_deadline(&member, (self.deadlines.silence, self.config.membership.leave_grace), now);
                drop(member);
                self.lose(rank, fate, now);
                continue;
            }
            let State::Active(Work::Training { window, pace, .. }) = &mut member.state else { continue };
            let (window, verdict) = (*window, pace.look(&self.deadlines, now));
            drop(member);
            match verdict {
                Verdict::Goes => {}
                Verdict::Stalled { still } => {
                    let text = format!("{rank} has made no step of {window} for {:.1} s", still.as_secs_f64());
                    self.ctx(now).alert(Reason::new("rank-stalled", text).about([rank]));
                }
                Verdict::Dead { still } => self.expel(rank, Fate::Stalled { still }, now),
            }
        }
    }
}

fn fate_at_deadline(member: &Member, (patience, leave_grace): (Duration, Duration), now: Time) -> Fate {
    match (&member.state, &member.doubt) {
        (State::Detached { error, .. }, _) => Fate::HostLost { error: error.clone() },
        (_, Some((_, fate))) => fate.clone(),
        (_, None) if member.leaving.is_some_and(|until| now >= until) => Fate::Overdue { within: leave_grace },
        (_, None) => Fate::Silent { patience },
    }
}
