//! Coming into a run that has begun: hosts that join late, and ranks whose next life begins.
//!
//! Nobody waits for a newcomer and nobody gives it anything of its own: once it is ready and agrees with the run it is a
//! rank without the consensus, takes part in the next round with mass 0, and trains from the window after it. Who lives the
//! old life of a rank is fenced.

use crate::agreement::{self, Agreement};
use crate::context::Context;
use crate::coordinator::{Coordinator, Phase};
use crate::formation::{refuse, run_config};
use crate::members::{MemberMut, State};
use crate::running::Running;
use crate::{Breach, Fate, Output};
use flodl_wire::message::Control;
use flodl_wire::message::Report;
use flodl_wire::message::join::Ready;
use flodl_wire::message::record::EventKind;
use flodl_wire::{Incarnation, Rank, SessionId, Time};

impl Coordinator {
    /// A life has ended; where its relay would start the rank again, the next one waits for its time.
    pub(crate) fn hold(&mut self, rank: Rank, fate: &Fate, now: Time) {
        let goes_on = match &self.phase {
            Phase::Forming(_) => true,
            Phase::Running(running) => running.stopping.is_none(),
            Phase::Returning(_) | Phase::Finishing(_) | Phase::Ended => false,
        };
        let Some(member) = self.members.get(rank).filter(|member| goes_on && member.returns && fate.may_return())
        else {
            return;
        };
        let (session, until) = (member.session, member.past.flaps.until());
        if self.members.host(session).is_some() {
            self.members.begin((rank, session), State::Held { until }, now);
        }
    }

    /// Lets a rank's relay begin the life whose time has come.
    pub(crate) fn start_held(&mut self, rank: Rank, now: Time) {
        let Some(mut member) = self.members.get_mut(rank) else { return };
        let (session, incarnation) = (member.session, member.incarnation);
        member.state = State::Starting;
        member.past.flaps.born(now);
        self.out.push_back(Output::ToHost { session, control: Control::Restart { rank, incarnation } });
    }

    /// Answers a life that is over and does not know it.
    pub(crate) fn fence(&mut self, (session, rank, incarnation): (SessionId, Rank, Incarnation), report: &Report) {
        // Its own last words need no answer.
        if !matches!(report, Report::Failed { .. } | Report::Finished { .. }) {
            let control = Control::Fenced { incarnation };
            self.out.push_back(Output::ToRank { session, rank, incarnation, control });
        }
    }
}

/// A rank is ready, before the run or in it.
pub(crate) fn ready(ctx: &mut Context<'_>, rank: Rank, ready: Box<Ready>) -> Result<(), Breach> {
    agreement::check(&ready)?;
    let is_starting = |member: &MemberMut<'_>| matches!(member.state, State::Starting);
    let Some(mut member) = ctx.members.get_mut(rank).filter(is_starting) else { return Ok(()) };
    member.state = State::Joining(ready);
    drop(member);
    ctx.event(EventKind::RankReady { rank }, None);
    Ok(())
}

impl Running {
    /// Takes in whoever is ready and agrees with the run, and refuses who does not.
    pub(crate) fn take_in(&mut self, ctx: &mut Context<'_>) {
        // Whose list of tensors is on its way is looked at when it is there.
        let looked_at = ctx.members.tally().joining.iter().filter(|rank| !self.lists.is_asked(**rank));
        let joining = |rank: &Rank| match &ctx.members.get(*rank)?.state {
            State::Joining(ready) => Some((*rank, Agreement::of(ready))),
            _ => None,
        };
        let joining: Vec<(Rank, Agreement)> = looked_at.filter_map(joining).collect();
        for (rank, its) in joining {
            if its == self.agreed.agreement {
                self.welcome(ctx, rank);
            } else if !self.lists.awaits(ctx, its.manifest, rank) {
                let why = self.lists.difference((rank, &its), ("the run", &self.agreed.agreement));
                refuse(ctx, rank, why);
            }
        }
    }

    fn welcome(&self, ctx: &mut Context<'_>, rank: Rank) {
        ctx.members.enter(rank);
        let config = run_config(ctx, &self.agreed, (rank, ctx.members.world().present));
        ctx.tell(rank, Control::Admitted(Box::new(config)));
        if let Some(incarnation) = ctx.members.get(rank).map(|member| member.incarnation) {
            ctx.event(EventKind::RankJoined { rank, incarnation }, None);
        }
    }
}
