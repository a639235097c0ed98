//! The next window: who gets which samples for how long, and who gets those that come back in mid-window.

use crate::context::Context;
use crate::id;
use crate::ledger::For;
use crate::members::{Member, State, Work};
use crate::reason;
use crate::running::{Cycle, Running, Step};
use crate::stalled::Pace;
use core::time::Duration;
use flodl_elche::{Demand, Plan, Slot};
use flodl_wire::limits::{EPOCH_RANKS, LATE_UNKNOWN};
use flodl_wire::message::Control;
use flodl_wire::message::control::{Overlap, WindowPlan};
use flodl_wire::message::record::{Body, EventKind, Node};
use flodl_wire::{Rank, Round, Time, WindowId};
use std::collections::BTreeMap;

/// A snapshot is late by a batch of the slowest rank at most; a batch may take so many times as long as one does.
const LATE_BATCHES: u32 = 3;

impl Running {
    /// Tells of epochs of which every sample is committed or set aside, oldest first, and how they went.
    pub(crate) fn close_epochs(&mut self, ctx: &mut Context<'_>) {
        while let Some(epoch) = self.ledger.close_epoch() {
            let mut metrics = self.metrics.end(epoch, self.consensus.map(|held| held.version), ctx.now);
            ctx.record(Body::Node(Node::Epoch(Box::new(metrics.clone()))));
            if metrics.ranks.len() > EPOCH_RANKS {
                metrics.ranks.clear();
            }
            ctx.broadcast(Control::EpochAggregated(Box::new(metrics)));
            ctx.event(EventKind::EpochDone { epoch }, None);
            self.roles.epoch_done(epoch);
        }
    }

    /// Plans a window over what is free, and gives the orders: it begins at once, for nobody is in one.
    ///
    /// Duties that are due begin first. Where ranks train on while they average that is only once everybody waited for a round:
    /// otherwise a replica may be the consensus with more on top.
    pub(crate) fn plan_window(&mut self, ctx: &mut Context<'_>) -> Step {
        let apart =
            self.overlaps && (!matches!(self.cycle, Cycle::Window) || ctx.members.active().any(Member::has_window));
        let callbacks = if apart { Vec::new() } else { self.begin_duties(ctx) };
        for (rank, work) in self.plan(ctx, (None, &callbacks)) {
            if let Some(mut member) = ctx.members.get_mut(rank) {
                member.state = State::Active(work);
            }
        }
        // Beside a round the time counts from where its windows began.
        if matches!(self.cycle, Cycle::Window) {
            self.window_began = ctx.now;
        }
        Step::Again
    }

    /// Plans the windows that begin at the snapshots of the round that is opened next. Who leaves gets none.
    pub(crate) fn plan_next(&mut self, ctx: &mut Context<'_>) -> BTreeMap<Rank, Work> {
        self.plan(ctx, (Some(self.next_round), &[]))
    }

    fn plan(
        &mut self,
        ctx: &mut Context<'_>,
        (begins, callbacks): (Option<Round>, &[(Slot, Duration)]),
    ) -> BTreeMap<Rank, Work> {
        let stays = |member: &&Member| member.leaving.is_none();
        let live: Vec<Slot> = ctx.members.active().filter(stays).map(|member| id::slot(member.rank)).collect();
        let weights = self.scheduler.weights(&live);
        self.ledger.reserve(&weights);
        let remaining = self.ledger.level().available;
        let demand = Demand { live: &live, remaining, epoch_len: self.ledger.epoch_len(), callbacks };
        let plan = self.scheduler.plan(&demand);
        self.window = WindowId(self.window.0 + 1);
        for change in &plan.reasons {
            reason::tell(ctx, change);
        }
        let quotas = plan.shares.iter().map(|share| (id::rank(share.slot), share.quota)).collect();
        let (window, epoch, anchor) = (self.window, self.ledger.epoch, plan.anchor);
        ctx.event(EventKind::WindowPlanned { window, epoch, anchor, quotas }, None);
        self.order(ctx, (&plan, &weights), begins)
    }

    /// Leases each rank its part and tells it. What each of them will be doing then.
    fn order(
        &mut self,
        ctx: &mut Context<'_>,
        (plan, weights): (&Plan, &[(Slot, f64)]),
        begins: Option<Round>,
    ) -> BTreeMap<Rank, Work> {
        let (window, epoch) = (self.window, self.ledger.epoch);
        let global_step = self.ledger.global_step.saturating_add(self.uncommitted(ctx));
        let slowest = plan.shares.iter().filter_map(|share| self.scheduler.batch_time(share.slot)).max();
        let late = slowest.map_or(ctx.deadlines.silence * LATE_UNKNOWN, |batch| batch.saturating_mul(LATE_BATCHES));
        let mut works = BTreeMap::new();
        self.orders.clear();
        let batch_size = u64::from(self.ledger.batch_size());
        for share in &plan.shares {
            let rank = id::rank(share.slot);
            let lease = if begins.is_some() { For::Next(epoch) } else { For::This(epoch) };
            let leases = self.ledger.lease(rank, share.lease, (lease, weights));
            let (quota_max, leased) = (share.quota_max, flodl_wire::id::samples(&leases));
            let batch = self.scheduler.batch_time(share.slot);
            let expected = batch.map(|batch| share.budget.unwrap_or(batch.saturating_mul(share.quota)).max(batch));
            // Who is on duty first may take its time for that.
            let pace = Pace::start(self.roles.busy_until(rank).unwrap_or(ctx.now), expected);
            let room = (u64::from(quota_max) * batch_size).saturating_sub(leased);
            works.insert(rank, Work::Training { window, epoch, quota_max, leased, room, pace });
            let plan = WindowPlan {
                window,
                epoch,
                leases,
                quota: share.quota,
                quota_max,
                budget: share.budget,
                global_step,
                quota_sum: plan.quota_sum,
                overlap: self.overlaps.then_some(Overlap { begins, lead: share.lead, late }),
            };
            self.orders.insert(rank, plan.clone());
            ctx.tell(rank, Control::Window(plan));
        }
        works
    }

    /// Batches of windows that are over and not averaged: the schedule of the learning rate counts them, too.
    fn uncommitted(&self, ctx: &Context<'_>) -> u64 {
        let reported = |member: &Member| match member.state {
            State::Active(Work::Reported { batches, .. }) => u64::from(batches),
            _ => 0,
        };
        if matches!(self.cycle, Cycle::Window) && self.overlaps { ctx.members.iter().map(reported).sum() } else { 0 }
    }

    /// Samples that came back go to ranks that are still training and have room.
    pub(crate) fn extend(&mut self, ctx: &mut Context<'_>) {
        let mut from = Rank(0);
        while self.ledger.level().available > 0
            && let Some(rank) = ctx.members.tally().roomy_from(from)
        {
            from = Rank(rank.0.saturating_add(1));
            let Some(mut member) = ctx.members.get_mut(rank) else { continue };
            let State::Active(Work::Training { window, epoch, leased, room, .. }) = &mut member.state else { continue };
            let leases = self.ledger.lease(rank, *room, (For::This(*epoch), &[]));
            let samples = flodl_wire::id::samples(&leases);
            (*leased, *room) = (*leased + samples, room.saturating_sub(samples));
            if let Some(order) = self.orders.get_mut(&rank) {
                order.leases.extend(leases.iter().copied());
            }
            let grant = Control::ExtendPartition { window: *window, leases };
            drop(member);
            if samples > 0 {
                ctx.tell(rank, grant);
            }
        }
    }
}

impl Work {
    /// The same, which begins now.
    pub(crate) fn begun(self, now: Time) -> Work {
        match self {
            Work::Training { window, epoch, quota_max, leased, room, mut pace } => {
                pace.stepped(now);
                Work::Training { window, epoch, quota_max, leased, room, pace }
            }
            other => other,
        }
    }
}
