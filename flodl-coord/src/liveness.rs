//! Time passing: whose deadline is over, and what a member's death does, in one place and order. All deadlines of
//! members and hosts are here.

use crate::coordinator::{Coordinator, Phase, context};
use crate::members::{Member, State, Work};
use crate::reattach::Loss;
use crate::stalled::Verdict;
use crate::{Fate, Output};
use flodl_wire::message::Control;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::{Rank, SessionId, Time};

impl Coordinator {
    /// Lets time pass: deadlines that are over take effect.
    pub fn tick(&mut self, now: Time) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        for (session, error) in self.silent_hosts(now) {
            self.out.push_back(Output::CloseHost { session });
            self.host_lost(session, (Loss::Silent, &error), now);
        }
        for (rank, fate) in self.overdue_members(now) {
            self.lose(rank, fate, now);
        }
        self.start_held(now);
        for (rank, fate) in self.stalled_members(now) {
            self.expel(rank, fate, now);
        }
        let mut ctx = context(&self.config, self.deadlines, &mut self.members, &mut self.out, now);
        let late = match &mut self.phase {
            Phase::Forming(forming) => forming.lists.overdue(&ctx),
            Phase::Finishing(finishing) => finishing.overdue(&mut ctx),
            Phase::Running(running) => {
                let late = running.lists.overdue(&ctx);
                late.into_iter().chain(running.overdue(&ctx)).collect()
            }
            Phase::Ended => Vec::new(),
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
        let phase = match &self.phase {
            Phase::Ended => return None,
            Phase::Forming(forming) => forming.lists.deadline(),
            Phase::Finishing(finishing) => Some(finishing.deadline()),
            Phase::Running(running) => running.deadline(&self.deadlines),
        };
        let hosts = self.members.hosts().map(|(_, link)| link.seen.plus(self.deadlines.silence));
        let members = self.members.living().filter_map(|member| self.member_deadline(member));
        let paces = self.members.living().filter_map(|member| match &member.state {
            State::Active(Work::Training { pace, .. }) => Some(pace.deadline(&self.deadlines)),
            _ => None,
        });
        hosts.chain(members).chain(paces).chain(phase).chain([self.watch.next()]).min()
    }

    /// Ends a member's life in the run, and tells it why.
    pub(crate) fn expel(&mut self, rank: Rank, fate: Fate, now: Time) {
        self.ctx(now).tell(rank, Control::Refused { why: fate.reason(rank) });
        self.lose(rank, fate, now);
    }

    pub(crate) fn stepped(&mut self, rank: Rank, step: u64, now: Time) {
        if let Some(member) = self.members.get_mut(rank)
            && member.step != step
        {
            member.step = step;
            if let State::Active(Work::Training { pace, .. }) = &mut member.state {
                pace.stepped(now);
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
            Phase::Finishing(finishing) => finishing.lose(&mut ctx, rank),
            Phase::Ended => {}
        }
        if fate.is_loss() {
            let why = fate.reason(rank);
            self.out.push_back(Output::Broadcast(Control::DeclareDead { rank, incarnation, why }));
        }
        self.watch.last_loss(fate.brought_itself_down());
        self.hold(rank, &fate, now);
    }

    /// Names ranks that make no steps, once each, and gives those whose time for it is over.
    fn stalled_members(&mut self, now: Time) -> Vec<(Rank, Fate)> {
        let mut dead = Vec::new();
        let mut named = Vec::new();
        for member in self.members.iter_mut() {
            let State::Active(Work::Training { window, pace, .. }) = &mut member.state else { continue };
            match pace.look(&self.deadlines, now) {
                Verdict::Goes => {}
                Verdict::Stalled { still } => {
                    let text = format!("{} has made no step of {window} for {:.1} s", member.rank, still.as_secs_f64());
                    named.push(Reason::new("rank-stalled", text).about([member.rank]));
                }
                Verdict::Dead { still } => dead.push((member.rank, Fate::Stalled { still })),
            }
        }
        for reason in named {
            self.ctx(now).alert(reason);
        }
        dead
    }

    fn silent_hosts(&self, now: Time) -> Vec<(SessionId, String)> {
        let silence = self.deadlines.silence;
        let silent = self.members.hosts().filter(|(_, link)| now >= link.seen.plus(silence));
        silent.map(|(session, _)| (session, format!("nothing was heard from its relay for {silence:?}"))).collect()
    }

    pub(crate) fn overdue_members(&self, now: Time) -> Vec<(Rank, Fate)> {
        let due = |member: &&Member| {
            !matches!(member.state, State::Held { .. }) && self.member_deadline(member).is_some_and(|at| now >= at)
        };
        self.members.living().filter(due).map(|member| (member.rank, self.fate_at_deadline(member, now))).collect()
    }

    fn member_deadline(&self, member: &Member) -> Option<Time> {
        if let State::Detached { until, .. } | State::Held { until } = member.state {
            return Some(until);
        }
        if matches!(member.state, State::Leaving { finished: true }) {
            return None;
        }
        let doubt = member.doubt.as_ref().map(|(until, _)| *until);
        let silence = member.seen.map(|seen| seen.plus(self.deadlines.silence));
        doubt.into_iter().chain(silence).chain(member.leaving).min()
    }

    fn fate_at_deadline(&self, member: &Member, now: Time) -> Fate {
        match (&member.state, &member.doubt) {
            (State::Detached { error, .. }, _) => Fate::HostLost { error: error.clone() },
            (_, Some((_, fate))) => fate.clone(),
            (_, None) if member.leaving.is_some_and(|until| now >= until) => {
                Fate::Overdue { within: self.config.membership.leave_grace }
            }
            (_, None) => Fate::Silent { patience: self.deadlines.silence },
        }
    }
}
