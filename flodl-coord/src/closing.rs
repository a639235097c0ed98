//! A round's end: what it commits, what goes back, who holds the consensus now, and what follows.
//!
//! The order matters and is kept in one place, `close_round`: first the samples are settled, then the outcome is decided
//! from what was settled, then members change state, then everybody is told.
//!
//! Invariants: every range of the round is settled (committed, given back or set aside), also of ranks that the root did
//! not name; nothing is committed unless the round makes a new version; who trained something that is not in the
//! consensus takes a result over it before it trains again.

use crate::chronicle::remember;
use crate::context::Context;
use crate::id;
use crate::ledger::{Settlement, Verdict};
use crate::members::{Member, State, Work};
use crate::reason;
use crate::round::{OpenRound, Out, Over, RoundPart};
use crate::running::{Cycle, Held, Running, Step};
use flodl_elche::{Norms, RoundFeedback};
use flodl_wire::message::Control;
use flodl_wire::message::commit::{CommitHead, Moment};
use flodl_wire::message::control::{Next, Part, RoundOutcome};
use flodl_wire::message::record::{Body, EventKind, Node, Reason, RootRound};
use flodl_wire::message::report::{Folded, FoldedPart};
use flodl_wire::{Epoch, Rank, Round, Version, WindowId};
use std::collections::{BTreeMap, BTreeSet};

/// What a round's end found out.
struct Closing {
    outcome: RoundOutcome,
    next: Next,
    /// Who holds the consensus from now on.
    holders: BTreeSet<Rank>,
    /// Who received another result than the root sent.
    unequal: BTreeSet<Rank>,
    settled: BTreeMap<Rank, Settlement>,
}

impl Running {
    /// Ends the open round, whose fold and answers are all there.
    pub(crate) fn close_round(&mut self, ctx: &mut Context<'_>) -> Step {
        let Cycle::Round(open) = std::mem::replace(&mut self.cycle, Cycle::Window) else { return Step::Again };
        let Ok(mut folded) = open.finished().cloned() else { return Step::Again };
        let parts = open.parts_folded(&folded);
        folded.any_mass &= self.counts(ctx, &open, (&folded, &parts));
        let settled = self.settle(ctx, &open, (folded.any_mass, &parts));
        self.tell_quarantine(ctx);
        let closing = self.decide(ctx, &open, (&folded, &parts), settled);
        if let RoundOutcome::Committed { version } = closing.outcome {
            self.consensus = Some(Held { version, digest: folded.digest });
            if let Some(nccl) = self.nccl.as_mut().filter(|_| !open.is_over_nccl()) {
                nccl.at_root = Some(version);
            }
        }
        if let Some(nccl) = &mut self.nccl {
            nccl.abandon();
        }
        self.update_members(ctx, &open, &closing);
        self.record_round(ctx, &open, &closing);
        self.last_done = Some((open.id, closing.outcome, closing.next));
        if matches!(closing.outcome, RoundOutcome::Committed { .. }) {
            self.outdate_absent(ctx, &open);
        }
        // A round that was held up says nothing of how long one takes: ten times that would be the next one's ceiling.
        let took = ctx.now.since(open.requested);
        if took < ctx.deadlines.round_ceiling(self.longest_round) {
            self.longest_round = self.longest_round.max(took);
        }
        if folded.any_mass && open.over != Over::Handover {
            self.feed_scheduler(ctx, &open);
            self.roles.committed(self.consensus.map_or(Version(0), |held| held.version));
        }
        self.write_down(ctx, open.id, &closing);
        ctx.broadcast(Control::RoundDone { round: open.id, outcome: closing.outcome, next: closing.next });
        if closing.next == Next::Final {
            return Step::Final;
        }
        if self.wants_handover(ctx) {
            return self.hand_over(ctx);
        }
        self.let_go(ctx);
        if self.consensus.is_none() || ctx.members.tally().counts.active == 0 {
            // The gate says whether there is somebody to average with.
            return Step::Again;
        }
        self.close_epochs(ctx);
        let goes_on = self.overlaps && (self.stopping.is_some() || ctx.members.active().any(Member::has_window));
        if goes_on {
            // The windows that began at this round's snapshots last as long as they last.
            self.begin_sets(ctx);
            self.window_began = ctx.now;
            return Step::Again;
        }
        if self.wants_handover(ctx) {
            return self.hand_over(ctx);
        }
        self.plan_window(ctx)
    }

    /// Where ranks average among themselves: one of them gives the controller the consensus.
    fn hand_over(&mut self, ctx: &mut Context<'_>) -> Step {
        self.request_params(ctx, Reason::new("handover", "the controller takes the consensus, to save it"))
    }

    /// Whether what the root has folded is a consensus. One that has another than the ranks have fills what nobody gave with
    /// that; and who hands over may hold something else by then.
    fn counts(&self, ctx: &mut Context<'_>, open: &OpenRound, (folded, parts): (&Folded, &Parts)) -> bool {
        if open.is_over_nccl() || self.is_at_root() {
            return true;
        }
        let differs = self.consensus.is_some_and(|held| held.digest != folded.digest);
        if open.over == Over::Handover && folded.any_mass && differs {
            let source = open.parts().iter().find(|(_, part)| part.part == Part::Source).map(|(rank, _)| *rank);
            let text = "a rank gave another replica than the consensus to the controller, which does not take it";
            ctx.alert(Reason::new("digest-differs", text).about(source));
            return false;
        }
        parts.values().any(|&part| part == FoldedPart::Whole)
    }

    /// Tells those who keep it what is true now, ahead of everybody who acts on it.
    fn write_down(&mut self, ctx: &mut Context<'_>, round: Round, closing: &Closing) {
        let (RoundOutcome::Committed { version }, Some(held)) = (closing.outcome, self.consensus) else { return };
        let Some(chronicle) = &mut self.chronicle else { return };
        let (epoch, epochs) = self.ledger.recorded();
        let settled = || closing.settled.values();
        let head = CommitHead {
            moment: Moment { round, ..Moment::default() },
            version,
            digest: held.digest,
            is_final: closing.next == Next::Final,
            window: self.window,
            epoch,
            global_step: self.ledger.global_step,
            committed: settled().map(|settlement| settlement.committed).sum(),
            repeats: settled().map(|settlement| settlement.repeats).sum(),
            scheduler: remember(self.scheduler.state()),
        };
        chronicle.commit(ctx, head, epochs);
    }

    /// Commits or gives back what each rank trained for this round. Without mass there is no new version to commit into.
    fn settle(
        &mut self,
        ctx: &Context<'_>,
        open: &OpenRound,
        (any_mass, parts): (bool, &Parts),
    ) -> BTreeMap<Rank, Settlement> {
        let (mut settled, oldest) = (BTreeMap::new(), self.ledger.epoch);
        for (&rank, part) in open.parts() {
            let counts = any_mass && self.consensus.is_some();
            let folded = if counts { part_of(parts, rank) } else { FoldedPart::None };
            let blamed = blamed(ctx, rank, part);
            let verdict = Verdict { part: folded, steps: part.steps, unheard: part.unheard, blamed };
            let settlement = self.ledger.settle(rank, open.id, verdict);
            let Settlement { committed, later, repeats, .. } = settlement;
            self.metrics.of(oldest, ctx.now).settled(rank, committed - later, repeats);
            if later > 0 {
                self.metrics.of(Epoch(oldest.0 + 1), ctx.now).settled(rank, later, 0);
            }
            settled.insert(rank, settlement);
        }
        settled
    }

    fn decide(
        &self,
        ctx: &Context<'_>,
        open: &OpenRound,
        (folded, parts): (&Folded, &Parts),
        settled: BTreeMap<Rank, Settlement>,
    ) -> Closing {
        let outcome = self.outcome(open, (folded.any_mass, parts), &settled);
        let unequal = open.other_digests(folded.digest);
        let able = |rank: &Rank, part: &RoundPart| {
            part.out.is_none() && ctx.members.get(*rank).is_some_and(|member| member.takes_part())
        };
        let holds = |rank: &Rank, part: &RoundPart| match outcome {
            RoundOutcome::Committed { .. } => part.received().is_some() && !unequal.contains(rank),
            RoundOutcome::Nothing | RoundOutcome::Again => {
                part.part == Part::Contribute && given_back(&settled, *rank) == 0
            }
        };
        let holding = open.parts().iter().filter(|(rank, part)| able(rank, part) && holds(rank, part));
        let holders: BTreeSet<Rank> = holding.map(|(&rank, _)| rank).collect();
        let has_consensus = self.consensus.is_some() || outcome != RoundOutcome::Nothing;
        // The final consensus is held by somebody, who can evaluate it, and by the controller, which saves it.
        let stops = self.stopping.is_some() && open.next.is_none();
        let is_final = (self.is_done() || stops) && has_consensus && !holders.is_empty() && !open.is_over_nccl();
        let next = if is_final { Next::Final } else { Next::Window };
        Closing { outcome, next, holders, unequal, settled }
    }

    /// What becomes of the round. A round 0 counts only with its source's whole contribution. A round that folded nothing
    /// hands the consensus that exists to those who lack it (joiners, and who trained what was not folded), and otherwise
    /// changes nothing.
    fn outcome(
        &self,
        open: &OpenRound,
        (any_mass, parts): (bool, &Parts),
        settled: &BTreeMap<Rank, Settlement>,
    ) -> RoundOutcome {
        let sourced =
            |(rank, part): (&Rank, &RoundPart)| part.part == Part::Source && part_of(parts, *rank) == FoldedPart::Whole;
        let helped = |(rank, part): (&Rank, &RoundPart)| {
            part.received().is_some() && (part.part == Part::Receive || given_back(settled, *rank) > 0)
        };
        match self.consensus {
            None if open.parts().iter().any(sourced) => RoundOutcome::Committed { version: Version(0) },
            None => RoundOutcome::Nothing,
            Some(held) if any_mass => RoundOutcome::Committed { version: held.version.next() },
            Some(held) if (open.is_over_nccl() || self.is_at_root()) && open.parts().iter().any(helped) => {
                RoundOutcome::Committed { version: held.version }
            }
            Some(_) if open.is_over_nccl() || self.is_at_root() => RoundOutcome::Nothing,
            // What the root sent is a consensus that is in force no more: not even a broken replica takes it.
            Some(_) => RoundOutcome::Again,
        }
    }

    /// Who holds the consensus can train; who does not is a joiner in the next round.
    ///
    /// A round that somebody held up until it was let go may have reached nobody in time: that is none of the others' fault.
    fn update_members(&mut self, ctx: &mut Context<'_>, open: &OpenRound, closing: &Closing) {
        let reached = open.parts().values().any(|part| part.received().is_some());
        let held_up = !reached && open.parts().values().any(|part| part.out.is_some());
        for (&rank, part) in open.parts().iter().filter(|(_, part)| part.out.is_none()) {
            let Some(mut member) = ctx.members.get_mut(rank).filter(|member| member.takes_part()) else { continue };
            if closing.holders.contains(&rank) {
                if !member.is_active() {
                    self.scheduler.join(id::slot(rank));
                    member.state = State::Active(Work::Idle);
                } else if !self.overlaps {
                    member.state = State::Active(Work::Idle);
                }
                continue;
            }
            // While no consensus exists only its source can be at fault.
            if (self.consensus.is_some() && !held_up) || part.part == Part::Source {
                member.missed += 1;
            }
            member.state = State::Syncing;
            drop(member);
            self.scheduler.leave(id::slot(rank));
            self.ledger.release(rank, false);
        }
        for &rank in &closing.unequal {
            let text = format!("{rank} received another result than the root sent in {}", open.id);
            ctx.alert(Reason::new("digest-differs", text).about([rank]));
        }
    }

    fn record_round(&mut self, ctx: &mut Context<'_>, open: &OpenRound, closing: &Closing) {
        let round = open.id;
        let RoundOutcome::Committed { version } = closing.outcome else {
            let text = "nothing was folded: everybody keeps what it has";
            ctx.event(EventKind::RoundEmpty { round }, Some(Reason::new("no-mass", text)));
            return;
        };
        let settled = || closing.settled.iter().map(|(&rank, settlement)| (rank, settlement));
        let kind = EventKind::RoundCommitted {
            round,
            version,
            committed: settled().filter(|(_, s)| s.committed > 0).map(|(rank, s)| (rank, s.committed)).collect(),
            repeats: settled().map(|(_, settlement)| settlement.repeats).sum(),
            partial: settled().filter(|(_, settlement)| settlement.repeats > 0).map(|(rank, _)| rank).collect(),
            digests_equal: closing.unequal.is_empty(),
        };
        ctx.event(kind, None);
        if open.over == Over::Handover {
            return;
        }
        let losses = std::mem::take(&mut self.losses);
        let divergence = |(&rank, part): (&Rank, &RoundPart)| Some((rank, part.received()?.divergence?));
        let root = RootRound {
            round,
            window: open.window,
            wall: ctx.now.since(self.window_began),
            reduce: ctx.now.since(open.requested),
            anchor: self.scheduler.anchor(),
            loss: (losses.count > 0).then(|| losses.sum / losses.count as f64),
            divergence: open.parts().iter().filter_map(divergence).collect(),
        };
        self.metrics.of(self.ledger.epoch, ctx.now).round(root.reduce, root.divergence.iter().map(|&(_, far)| far));
        ctx.record(Body::Node(Node::Root(root)));
    }

    /// Tells the scheduler what a round with a new version cost.
    fn feed_scheduler(&mut self, ctx: &mut Context<'_>, open: &OpenRound) {
        let rates = std::mem::take(&mut self.rates);
        if open.window == WindowId(0) {
            return;
        }
        let in_it = |rank: &Rank| open.parts().get(rank).is_some_and(|part| part.out.is_none());
        let parts =
            || open.parts().iter().filter(|(_, part)| part.out.is_none()).map(|(&rank, part)| (id::slot(rank), part));
        let acks = || parts().filter_map(|(slot, part)| Some((slot, part.ack?)));
        let received = || parts().filter_map(|(slot, part)| Some((slot, part.received()?)));
        let steps = |part: &RoundPart| u32::try_from(part.steps.unwrap_or(0)).unwrap_or(u32::MAX);
        let feedback = RoundFeedback {
            window_wall: ctx.now.since(self.window_began),
            reduce: ctx.now.since(open.requested),
            waits: acks().map(|(slot, ack)| (slot, ack.waited)).collect(),
            divergence: received().filter_map(|(slot, received)| Some((slot, received.divergence?))).collect(),
            steps: parts().filter(|(_, part)| part.ack.is_some()).map(|(slot, part)| (slot, steps(part))).collect(),
            norms: received()
                .map(|(slot, received)| (slot, Norms { pre: received.pre_norm, post: received.post_norm }))
                .collect(),
            rates: rates.iter().filter(|(rank, _)| in_it(rank)).map(|(&rank, &rate)| (id::slot(rank), rate)).collect(),
        };
        for change in self.scheduler.round_done(&feedback) {
            reason::tell(ctx, &change);
        }
    }
}

/// How much of whose contribution is in a round; nothing of those that are not there.
type Parts = BTreeMap<Rank, FoldedPart>;

fn part_of(parts: &Parts, rank: Rank) -> FoldedPart {
    parts.get(&rank).copied().unwrap_or(FoldedPart::None)
}

fn given_back(settled: &BTreeMap<Rank, Settlement>, rank: Rank) -> u64 {
    settled.get(&rank).map_or(0, |settlement| settlement.given_back)
}

/// Whether a rank is to blame where its contribution is missing: it brought itself down, or it lives and well (then its
/// replica was not finite).
fn blamed(ctx: &Context<'_>, rank: Rank, part: &RoundPart) -> bool {
    match part.out {
        Some(Out::Dead { brought_itself_down }) => brought_itself_down,
        Some(Out::Cut) => false,
        None => ctx.members.get(rank).is_some_and(|member| member.doubt.is_none()),
    }
}
