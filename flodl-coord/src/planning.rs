//! The next window: who gets which samples for how long, and who gets those that come back in mid-window.

use crate::context::Context;
use crate::id;
use crate::members::{State, Work};
use crate::metrics::Metrics;
use crate::reason;
use crate::running::{Cycle, Running, Step};
use crate::stalled::Pace;
use flodl_elche::{Demand, Plan, Slot};
use flodl_wire::limits::EPOCH_RANKS;
use flodl_wire::message::Control;
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::record::{Body, EventKind, Node};
use flodl_wire::{Rank, WindowId};

impl Running {
    pub(crate) fn open_next_epoch(&mut self, ctx: &mut Context<'_>) {
        self.close_epoch(ctx);
        self.ledger.next_epoch();
    }

    /// Tells that every sample of the open epoch is committed or set aside, and how it went.
    pub(crate) fn close_epoch(&mut self, ctx: &mut Context<'_>) {
        let epoch = self.ledger.epoch;
        let next = Metrics::begin(&self.agreed.agreement.scalars, ctx.now);
        let over = std::mem::replace(&mut self.metrics, next);
        let mut metrics = over.end(epoch, self.consensus.map(|held| held.version), ctx.now);
        ctx.record(Body::Node(Node::Epoch(Box::new(metrics.clone()))));
        if metrics.ranks.len() > EPOCH_RANKS {
            metrics.ranks.clear();
        }
        ctx.broadcast(Control::EpochAggregated(Box::new(metrics)));
        ctx.event(EventKind::EpochDone { epoch }, None);
        self.roles.epoch_done(epoch);
    }

    /// Plans a window over what is free of the open epoch, and gives the orders.
    pub(crate) fn plan_window(&mut self, ctx: &mut Context<'_>) -> Step {
        let callbacks = self.begin_duties(ctx);
        let live: Vec<Slot> = ctx.members.active().map(|member| id::slot(member.rank)).collect();
        let level = self.ledger.level();
        if level.available == self.ledger.epoch_len() {
            self.ledger.reserve(&self.scheduler.weights(&live));
        }
        let demand = Demand {
            live: &live,
            remaining: level.available,
            epoch_len: self.ledger.epoch_len(),
            callbacks: &callbacks,
        };
        let plan = self.scheduler.plan(&demand);
        self.window = WindowId(self.window.0 + 1);
        self.window_began = ctx.now;
        self.cycle = Cycle::Window;
        for change in &plan.reasons {
            ctx.event(EventKind::PlanChanged, Some(reason::of_change(change)));
        }
        let quotas = plan.shares.iter().map(|share| (id::rank(share.slot), share.quota)).collect();
        let (window, epoch, anchor) = (self.window, self.ledger.epoch, plan.anchor);
        ctx.event(EventKind::WindowPlanned { window, epoch, anchor, quotas }, None);
        self.order(ctx, &plan);
        Step::Again
    }

    /// Leases each rank its part and tells it.
    fn order(&mut self, ctx: &mut Context<'_>, plan: &Plan) {
        self.orders.clear();
        let batch_size = u64::from(self.ledger.batch_size());
        for share in &plan.shares {
            let rank = id::rank(share.slot);
            let leases = self.ledger.lease(rank, share.lease);
            let leased = flodl_wire::id::samples(&leases);
            if let Some(mut member) = ctx.members.get_mut(rank) {
                let (window, quota_max) = (self.window, share.quota_max);
                let batch = self.scheduler.batch_time(share.slot);
                let expected = batch.map(|batch| share.budget.unwrap_or(batch.saturating_mul(share.quota)).max(batch));
                // Who is on duty first may take its time for that.
                let pace = Pace::start(self.roles.busy_until(rank).unwrap_or(ctx.now), expected);
                let room = (u64::from(quota_max) * batch_size).saturating_sub(leased);
                member.state = State::Active(Work::Training { window, quota_max, leased, room, pace });
            }
            let plan = WindowPlan {
                window: self.window,
                epoch: self.ledger.epoch,
                leases,
                quota: share.quota,
                quota_max: share.quota_max,
                budget: share.budget,
                global_step: self.ledger.global_step,
                quota_sum: plan.quota_sum,
            };
            self.orders.insert(rank, plan.clone());
            ctx.tell(rank, Control::Window(plan));
        }
    }

    /// Samples that came back go to ranks that are still training and have room.
    pub(crate) fn extend(&mut self, ctx: &mut Context<'_>) {
        let mut from = Rank(0);
        while self.ledger.level().available > 0
            && let Some(rank) = ctx.members.tally().roomy_from(from)
        {
            from = Rank(rank.0.saturating_add(1));
            let Some(mut member) = ctx.members.get_mut(rank) else { continue };
            let State::Active(Work::Training { window, leased, room, .. }) = &mut member.state else { continue };
            let leases = self.ledger.lease(rank, *room);
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
