//! The open round: how it is averaged, what ranks and folds say in it, and who is late.
//!
//! What is different where ranks average among themselves is in `collecting`.

use crate::context::Context;
use crate::ledger::Told;
use crate::members::{Member, State, Work};
use crate::round::{OpenRound, Out, Over, RoundPart};
use crate::running::{Cycle, Running, Step, Stopping};
use crate::{Breach, Deadlines, Fate};
use core::time::Duration;
use flodl_wire::message::Control;
use flodl_wire::message::control::Part;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::message::report::{Folded, SyncAck};
use flodl_wire::{Rank, Round, Time, WindowId};

/// Whose fold waits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Folder {
    Host,
    Root,
}

/// What a rank says of its snapshot.
pub(crate) struct Snapshot {
    pub(crate) round: Round,
    /// Optimizer steps in it since the last one that was folded.
    pub(crate) steps: u64,
    /// The positions trained in those steps.
    pub(crate) told: Told,
}

impl Running {
    /// A rank has taken its snapshot.
    pub(crate) fn snapshot(&mut self, ctx: &mut Context<'_>, rank: Rank, snapshot: &Snapshot) -> Result<(), Breach> {
        let Snapshot { round, steps, ref told } = *snapshot;
        let Cycle::Round(open) = &mut self.cycle else { return Ok(()) };
        let awaited = |part: &&RoundPart| open.id == round && part.is_awaited() && part.steps.is_none();
        let Some(part) = open.parts().get(&rank).filter(awaited) else { return Ok(()) };
        if part.part == Part::Contribute {
            if ctx.members.get(rank).is_some_and(Member::is_training) {
                return Err(Breach::Order { round });
            }
            self.ledger.enter_round(rank, round, told)?;
        }
        open.take_snapshot(rank, (steps, !told.ranges.is_empty()), ctx.now);
        if let Some(nccl) = &mut self.nccl {
            nccl.is_outside(rank);
        }
        let begins = open.next.as_mut().and_then(|next| next.remove(&rank));
        if self.overlaps
            && let Some(mut member) = ctx.members.get_mut(rank).filter(|member| member.is_active())
        {
            member.state = State::Active(begins.unwrap_or(Work::Idle).begun(ctx.now));
        }
        Ok(())
    }

    /// A rank has the round's result, or knows that it will not come. Its first word counts.
    pub(crate) fn acknowledged(&mut self, rank: Rank, ack: SyncAck) -> Result<(), Breach> {
        if let Cycle::Round(open) = &mut self.cycle
            && open.id == ack.round
            && let Some(part) = open.parts().get(&rank).filter(|part| part.is_awaited() && part.ack.is_none())
        {
            if part.part == Part::Contribute && part.steps.is_none() {
                return Err(Breach::Order { round: ack.round });
            }
            open.take_ack(rank, ack);
        }
        Ok(())
    }

    /// The root has folded the round. Its first word counts.
    pub(crate) fn folded(&mut self, folded: Folded, now: Time) {
        if let Cycle::Round(open) = &mut self.cycle
            && open.id == folded.round
            && open.folded.is_none()
        {
            open.folded = Some(folded);
            // Who answers has the whole ceiling for it, however long the fold took.
            open.counts_from = now;
            open.nobody_late = false;
        }
    }

    /// The fold of a rank's host waits for it, or the root for that host: a stall report will name the rank.
    ///
    /// Gives those that are cut off from their folds: the round goes on without them.
    pub(crate) fn fold_waits(
        &mut self,
        ctx: &Context<'_>,
        by: Folder,
        round: Round,
        of: (Rank, u32),
    ) -> Vec<(Rank, Fate)> {
        if let Cycle::Round(open) = &mut self.cycle
            && open.id == round
            && let Some(session) = ctx.members.get(of.0).map(|member| member.session)
        {
            match by {
                Folder::Host => open.waits.of_host(session, of, ctx.now),
                Folder::Root => open.waits.of_root(session, of, ctx.now),
            }
            open.nobody_late = false;
            return open.cut_off(ctx.members, ctx.now);
        }
        Vec::new()
    }

    /// Who has kept the open round waiting past its ceiling: somebody that is alive and neither contributes nor answers.
    pub(crate) fn overdue(&mut self, ctx: &mut Context<'_>) -> Vec<(Rank, Fate)> {
        self.saving.overdue(ctx);
        let hanging = self.roles.hanging(ctx.now);
        if !hanging.is_empty() {
            return hanging;
        }
        if let Some(nccl) = &mut self.nccl {
            nccl.tick(ctx.now);
        }
        let due = self.round_deadline(&ctx.deadlines).is_some_and(|at| ctx.now >= at);
        let Cycle::Round(open) = &mut self.cycle else { return Vec::new() };
        if !due {
            return Vec::new();
        }
        if open.issued().is_some() {
            self.lose_collective(ctx, Reason::new("collective-too-long", "it takes longer than anything that is slow"));
            return Vec::new();
        }
        let still = ctx.now.since(open.counts_from);
        let late = open.late(ctx.members, still);
        open.nobody_late = late.is_empty();
        if !late.is_empty() {
            // They held up the others, who have the whole ceiling from now on.
            open.counts_from = ctx.now;
        }
        late
    }

    pub(crate) fn round_deadline(&self, deadlines: &Deadlines) -> Option<Time> {
        match &self.cycle {
            Cycle::Round(open) if !open.nobody_late => {
                // Whoever is in a collective gives it up by itself, and is heard first.
                let grace = if open.issued().is_some() { deadlines.silence } else { Duration::ZERO };
                Some(open.counts_from.plus(deadlines.round_ceiling(self.longest_round)).plus(grace))
            }
            Cycle::Round(_) | Cycle::Window => None,
        }
    }

    /// Nothing more is expected of a rank in the open round. Its whole contribution may be folded already, even where its
    /// word of the snapshot got lost: what it has trained waits for the fold's verdict. Which of its leases it has trained
    /// nobody knows where its window report got lost too: they go back, and are repeats if it is folded.
    pub(crate) fn out_of_round(&mut self, rank: Rank, out: Out, now: Time) {
        if let Some(nccl) = self.nccl.as_mut().filter(|_| matches!(out, Out::Dead { .. })) {
            nccl.is_outside(rank);
        }
        let Cycle::Round(open) = &mut self.cycle else { return };
        let told = open.parts().get(&rank).is_some_and(|part| part.steps.is_some());
        let unheard = self.ledger.unheard(rank, told);
        if open.leave(rank, (out, unheard), now) {
            self.ledger.enter_round_at_death(rank, open.id);
        }
    }

    /// Opens a round, for the reason that the gate gave or for another.
    pub(crate) fn request_params(&mut self, ctx: &mut Context<'_>, why: Reason) -> Step {
        self.open_round(ctx, self.window, why)
    }

    /// Opens the round that ends that window.
    pub(crate) fn open_round(&mut self, ctx: &mut Context<'_>, window: WindowId, why: Reason) -> Step {
        let over = match self.back_end(ctx) {
            Ok(over) => over,
            Err(step) => return step,
        };
        // Where the consensus only changes hands no window ends.
        let window = if over == Over::Handover { WindowId(0) } else { window };
        let id = self.next_round;
        let round = Box::new(OpenRound::open(ctx, (id, window), self.consensus.is_some(), over));
        ctx.event(EventKind::RoundRequested { round: id }, Some(why));
        let roster = round.roster(ctx.members);
        ctx.broadcast(match round.over {
            Over::Cpu | Over::Handover => Control::RequestParams { round: id, roster },
            Over::Nccl(_) => Control::PrepareSync { round: id, roster },
        });
        self.next_round = Round(id.0 + 1);
        self.cut_short = None;
        self.cycle = Cycle::Round(round);
        Step::Again
    }

    /// How the next round is averaged. Not at all where some lack the consensus and neither a rank nor the root has it.
    fn back_end(&mut self, ctx: &mut Context<'_>) -> Result<Over, Step> {
        let counts = ctx.members.tally().counts;
        let Some(nccl) = &self.nccl else { return Ok(Over::Cpu) };
        if self.wants_handover(ctx) {
            return Ok(Over::Handover);
        }
        if counts.active == 0 && self.consensus.is_some() {
            if self.is_at_root() {
                return Ok(Over::Cpu);
            }
            // Whoever is out of reach may have it.
            if !ctx.members.tally().detached.is_empty() {
                return Err(Step::Hold);
            }
            self.consensus = None;
            self.stopping = Some(Stopping::ConsensusLost);
            ctx.alert(Stopping::ConsensusLost.reason());
            return Err(Step::Final);
        }
        let alone = counts.take_part() < 2;
        Ok(if alone || nccl.given_up { Over::Cpu } else { Over::Nccl(Default::default()) })
    }
}
