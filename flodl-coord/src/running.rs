//! The run itself: windows and rounds in turn, until the last epoch is committed or somebody stops it.

use crate::context::Context;
use crate::formation::Agreed;
use crate::gate::{self, Hold};
use crate::id;
use crate::ledger::{Ledger, Settlement};
use crate::members::{State, Work};
use crate::reason;
use crate::round::OpenRound;
use crate::{Breach, Fate};
use flodl_elche::{Cadence, Demand, Plan, RoundFeedback, Slot, WindowSample};
use flodl_wire::message::Control;
use flodl_wire::message::control::{Next, Part, RoundOutcome, WindowPlan};
use flodl_wire::message::record::{Body, EventKind, Node, RankWindow, Reason, RootRound};
use flodl_wire::message::report::{Folded, FoldedPart, SyncAck, WindowReport};
use flodl_wire::{Range, Rank, Round, Time, Version, WindowId};

/// A run that is going on.
pub(crate) struct Running {
    pub(crate) agreed: Box<Agreed>,
    pub(crate) scheduler: Box<dyn Cadence>,
    pub(crate) ledger: Ledger,
    pub(crate) consensus: Option<Held>,
    cycle: Cycle,
    window: WindowId,
    window_began: Time,
    next_round: Round,
    losses: Losses,
    /// Somebody asked for the end: the next commit is the final one.
    stopping: bool,
}

/// The consensus in force.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) version: Version,
    pub(crate) digest: u64,
}

/// Where the cycle stands.
enum Cycle {
    /// Ranks train.
    Window,
    /// Ranks average.
    Round(OpenRound),
}

/// The window's loss over all ranks.
#[derive(Copy, Clone, Debug, Default)]
struct Losses {
    sum: f64,
    count: u64,
}

/// Where the run goes after an input.
pub(crate) enum Step {
    /// Nowhere yet, and why.
    Hold(Reason),
    /// On: look again.
    Again,
    /// The final consensus is committed.
    Final,
    /// Nobody is left.
    Deserted,
}

/// What a commit found out.
struct Closing {
    outcome: RoundOutcome,
    next: Next,
    unequal: Vec<Rank>,
}

impl Running {
    /// Starts with round 0, which spreads the first parameters.
    pub(crate) fn start(ctx: &mut Context<'_>, agreed: Box<Agreed>, scheduler: Box<dyn Cadence>) -> Running {
        let ledger = Ledger::new(agreed.epoch_len, agreed.epochs, agreed.batch_size);
        let round = open_round(ctx, Round(0), false);
        Running {
            agreed,
            scheduler,
            ledger,
            consensus: None,
            cycle: Cycle::Round(round),
            window: WindowId(0),
            window_began: ctx.now,
            next_round: Round(1),
            losses: Losses::default(),
            stopping: false,
        }
    }

    /// A rank's window is over.
    pub(crate) fn window_report(
        &mut self,
        ctx: &mut Context<'_>,
        rank: Rank,
        report: &WindowReport,
    ) -> Result<(), Breach> {
        let Some(member) = ctx.members.get_mut(rank) else { return Ok(()) };
        match member.state {
            State::Active(Work::Training { window, .. }) if window == report.window => {}
            _ => return Err(Breach::Window),
        }
        self.ledger.report(rank, &report.used)?;
        member.state = State::Active(Work::Reported { window: report.window, batches: report.batches });
        let sample = WindowSample {
            batches: report.batches,
            first: report.first,
            rest: report.rest,
            data_wait: report.data_wait,
        };
        self.scheduler.observe(id::slot(rank), sample);
        if report.loss_sum.is_finite() {
            self.losses.sum += report.loss_sum;
            self.losses.count += report.loss_count;
        }
        ctx.record(Body::Node(Node::Rank(rank_window(rank, report))));
        self.check_replica(ctx, rank, report.replica_digest);
        Ok(())
    }

    /// Compares a rank's live tensors with the consensus that it says they hold.
    pub(crate) fn check_replica(&mut self, ctx: &mut Context<'_>, rank: Rank, digest: Option<(Version, u64)>) {
        let (Some((version, digest)), Some(held)) = (digest, self.consensus) else { return };
        if version != held.version {
            return;
        }
        let equal = digest == held.digest;
        ctx.event(EventKind::ReplicaDigest { rank, version, equal }, None);
        if !equal {
            let text = format!("the replica of {rank} is not the consensus of {version}: averaging did not reach it");
            ctx.alert(Reason::new("replica-differs", text).about([rank]));
            if let Some(member) = ctx.members.get_mut(rank).filter(|member| member.is_active()) {
                member.state = State::Syncing;
                self.ledger.release(rank, false);
            }
        }
    }

    /// A rank has taken its snapshot.
    pub(crate) fn snapshot(
        &mut self,
        rank: Rank,
        (round, steps): (Round, u64),
        ranges: &[Range],
    ) -> Result<(), Breach> {
        let Cycle::Round(open) = &mut self.cycle else { return Ok(()) };
        let Some(part) = open.parts.get_mut(&rank).filter(|part| open.id == round && part.steps.is_none()) else {
            return Ok(());
        };
        if part.part == Part::Contribute {
            self.ledger.enter_round(rank, round, ranges)?;
        }
        part.steps = Some(steps);
        Ok(())
    }

    /// A rank has the round's result, or knows that it will not come.
    pub(crate) fn acknowledged(&mut self, rank: Rank, ack: SyncAck) {
        if let Cycle::Round(open) = &mut self.cycle
            && open.id == ack.round
            && let Some(part) = open.parts.get_mut(&rank)
        {
            part.ack = Some(ack);
        }
    }

    /// The root has folded the round.
    pub(crate) fn folded(&mut self, folded: Folded) {
        if let Cycle::Round(open) = &mut self.cycle
            && open.id == folded.round
        {
            open.folded = Some(folded);
        }
    }

    /// The next commit is to be the final one; a window that is open ends at each rank's next batch boundary.
    pub(crate) fn stop(&mut self, ctx: &mut Context<'_>) {
        self.stopping = true;
        if matches!(self.cycle, Cycle::Window) {
            self.request_params(ctx);
        }
    }

    /// A rank's life is over: its samples go back, plans and the open round go on without it.
    ///
    /// In an open round its whole contribution may be folded already, even where its word of the snapshot got lost: what
    /// it has trained waits for the fold's verdict.
    pub(crate) fn lose(&mut self, ctx: &mut Context<'_>, rank: Rank, fate: &Fate) {
        if let Cycle::Round(open) = &self.cycle
            && open.parts.get(&rank).is_some_and(|part| part.part == Part::Contribute)
        {
            self.ledger.enter_round_at_death(rank, open.id);
        }
        self.ledger.release(rank, fate.brought_itself_down());
        self.scheduler.leave(id::slot(rank));
        if matches!(self.cycle, Cycle::Window) {
            self.extend(ctx);
        }
        self.tell_quarantine(ctx);
    }

    /// Says which samples are set aside, if any new ones are.
    fn tell_quarantine(&mut self, ctx: &mut Context<'_>) {
        let epoch = self.ledger.epoch;
        if let Some((samples, ranges)) = self.ledger.newly_quarantined() {
            let text = format!(
                "positions {} of {epoch} are set aside: every rank that held them came to grief",
                show(&ranges)
            );
            ctx.event(EventKind::Quarantined { epoch, samples }, Some(Reason::new("quarantined", text)));
        }
    }

    /// Samples that came back go to ranks that are still training and have room.
    fn extend(&mut self, ctx: &mut Context<'_>) {
        let batch = u64::from(self.ledger.batch_size());
        let mut grants = Vec::new();
        for member in ctx.members.iter_mut() {
            let State::Active(Work::Training { window, quota_max, leased }) = &mut member.state else { continue };
            let room = (u64::from(*quota_max) * batch).saturating_sub(*leased);
            let leases = self.ledger.lease(member.rank, room);
            if !leases.is_empty() {
                *leased += flodl_wire::id::samples(&leases);
                grants.push((member.rank, Control::ExtendPartition { window: *window, leases }));
            }
        }
        for (rank, grant) in grants {
            ctx.tell(rank, grant);
        }
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, ctx: &mut Context<'_>) -> Step {
        if ctx.members.living().next().is_none() {
            return Step::Deserted;
        }
        match &self.cycle {
            Cycle::Round(open) => match open.finished(ctx.members) {
                Ok(_) => self.close_round(ctx),
                Err(unfinished) => Step::Hold(Reason::from(&unfinished)),
            },
            Cycle::Window => match gate::ready(ctx.members, self.window, self.ledger.level()) {
                Ok(_) => self.request_params(ctx),
                Err(Hold::NobodyActive) => self.request_params(ctx),
                Err(Hold::NothingMoved { available, outstanding }) => self.replan(ctx, available, outstanding),
                Err(hold) => Step::Hold(Reason::from(&hold)),
            },
        }
    }

    /// Nobody trained. More samples: another window without a round. None left: the epoch is over (everything that
    /// was not committed is set aside).
    fn replan(&mut self, ctx: &mut Context<'_>, available: u64, outstanding: u64) -> Step {
        if available > 0 {
            let why = Reason::from(&Hold::NothingMoved { available, outstanding });
            ctx.event(EventKind::PlanChanged, Some(why));
            return self.plan_window(ctx);
        }
        if self.ledger.is_last_epoch() {
            return self.request_params(ctx);
        }
        self.open_next_epoch(ctx);
        self.plan_window(ctx)
    }

    fn request_params(&mut self, ctx: &mut Context<'_>) -> Step {
        let round = open_round(ctx, self.next_round, self.consensus.is_some());
        self.next_round = Round(self.next_round.0 + 1);
        self.cycle = Cycle::Round(round);
        Step::Again
    }

    fn close_round(&mut self, ctx: &mut Context<'_>) -> Step {
        let Cycle::Round(open) = std::mem::replace(&mut self.cycle, Cycle::Window) else { return Step::Again };
        let Ok(folded) = open.finished(ctx.members) else { return Step::Again };
        let folded = folded.clone();
        let settled = self.settle(&open, &folded);
        self.tell_quarantine(ctx);
        let closing = self.decide(&open, &folded);
        if let RoundOutcome::Committed { version } = closing.outcome {
            self.consensus = Some(Held { version, digest: folded.digest });
            self.commit_members(ctx, &open, &closing.unequal);
        }
        self.record_round(ctx, &open, (&folded, &settled, &closing));
        ctx.broadcast(Control::RoundDone { round: open.id, outcome: closing.outcome, next: closing.next });
        self.feed_scheduler(ctx, &open);
        if closing.next == Next::Final {
            return Step::Final;
        }
        if self.consensus.is_none() || ctx.members.active().next().is_none() {
            return self.request_params(ctx);
        }
        if self.ledger.epoch_is_complete() {
            self.open_next_epoch(ctx);
        }
        self.plan_window(ctx)
    }

    /// Commits or gives back what each rank trained for this round.
    fn settle(&mut self, open: &OpenRound, folded: &Folded) -> Vec<(Rank, Settlement)> {
        let mut settled = Vec::new();
        for &(rank, _, part) in &folded.ranks {
            let settlement = self.ledger.settle(rank, open.id, part);
            let steps = open.parts.get(&rank).and_then(|part| part.steps).unwrap_or(0);
            if part == FoldedPart::Whole && settlement.committed > 0 {
                self.ledger.global_step += steps;
            }
            settled.push((rank, settlement));
        }
        settled
    }

    /// What becomes of the round. A round 0 counts only with its source's whole contribution; a round that folded
    /// nothing hands the consensus that exists to those who lack it, and otherwise changes nothing.
    fn decide(&self, open: &OpenRound, folded: &Folded) -> Closing {
        let whole = |part: Part| {
            folded.ranks.iter().any(|&(rank, _, how)| {
                how == FoldedPart::Whole && open.parts.get(&rank).is_some_and(|p| p.part == part)
            })
        };
        let outcome = match self.consensus {
            None if whole(Part::Source) => RoundOutcome::Committed { version: Version(0) },
            None => RoundOutcome::Nothing,
            Some(held) if folded.any_mass => RoundOutcome::Committed { version: held.version.next() },
            Some(held) if open.parts.values().any(|part| part.part == Part::Receive && part.whole().is_some()) => {
                RoundOutcome::Committed { version: held.version }
            }
            Some(_) => RoundOutcome::Nothing,
        };
        let done = self.ledger.epoch_is_complete() && self.ledger.is_last_epoch();
        let has_consensus = self.consensus.is_some() || outcome != RoundOutcome::Nothing;
        let next = if (done || self.stopping) && has_consensus { Next::Final } else { Next::Window };
        Closing { outcome, next, unequal: open.other_digests(folded.digest) }
    }

    /// Who has the whole result holds the consensus now; who has not is a joiner in the next round.
    fn commit_members(&mut self, ctx: &mut Context<'_>, open: &OpenRound, unequal: &[Rank]) {
        for (&rank, part) in &open.parts {
            let Some(member) = ctx.members.get_mut(rank).filter(|member| member.takes_part()) else { continue };
            let holds = part.whole().is_some() && !unequal.contains(&rank);
            if holds && !member.is_active() {
                self.scheduler.join(id::slot(rank));
            }
            member.state = if holds { State::Active(Work::Idle) } else { State::Syncing };
        }
        for &rank in unequal {
            let text = format!("{rank} received another result than the root sent in {}", open.id);
            ctx.alert(Reason::new("digest-differs", text).about([rank]));
        }
    }

    fn record_round(
        &mut self,
        ctx: &mut Context<'_>,
        open: &OpenRound,
        (folded, settled, closing): (&Folded, &[(Rank, Settlement)], &Closing),
    ) {
        let round = open.id;
        let RoundOutcome::Committed { version } = closing.outcome else {
            let text = "nothing was folded: everybody keeps what it has";
            ctx.event(EventKind::RoundEmpty { round }, Some(Reason::new("no-mass", text)));
            return;
        };
        let partial = |&(rank, _, part): &(Rank, _, FoldedPart)| matches!(part, FoldedPart::Chunks(_)).then_some(rank);
        let kind = EventKind::RoundCommitted {
            round,
            version,
            committed: settled.iter().filter(|(_, s)| s.committed > 0).map(|&(rank, s)| (rank, s.committed)).collect(),
            repeats: settled.iter().map(|(_, settlement)| settlement.repeats).sum(),
            partial: folded.ranks.iter().filter_map(partial).collect(),
            digests_equal: closing.unequal.is_empty(),
        };
        ctx.event(kind, None);
        let losses = std::mem::take(&mut self.losses);
        let divergence = |(&rank, part): (&Rank, &crate::round::RoundPart)| Some((rank, part.ack?.divergence?));
        let root = RootRound {
            round,
            window: self.window,
            wall: ctx.now.since(self.window_began),
            reduce: ctx.now.since(open.requested),
            anchor: self.scheduler.anchor(),
            loss: (losses.count > 0).then(|| losses.sum / losses.count as f64),
            divergence: open.parts.iter().filter_map(divergence).collect(),
        };
        ctx.record(Body::Node(Node::Root(root)));
    }

    fn feed_scheduler(&mut self, ctx: &mut Context<'_>, open: &OpenRound) {
        if self.window == WindowId(0) {
            return;
        }
        let alive = |rank: &Rank| ctx.members.get(*rank).is_some_and(|member| !member.is_gone());
        let acks = || open.parts.iter().filter(|(rank, _)| alive(rank)).filter_map(|(&r, p)| Some((r, p, p.ack?)));
        let steps = |steps: Option<u64>| u32::try_from(steps.unwrap_or(0)).unwrap_or(u32::MAX);
        let feedback = RoundFeedback {
            window_wall: ctx.now.since(self.window_began),
            reduce: ctx.now.since(open.requested),
            waits: acks().map(|(rank, _, ack)| (id::slot(rank), ack.waited)).collect(),
            divergence: acks().filter_map(|(rank, _, ack)| Some((id::slot(rank), ack.divergence?))).collect(),
            steps: acks().map(|(rank, part, _)| (id::slot(rank), steps(part.steps))).collect(),
            norms: Vec::new(),
        };
        for change in self.scheduler.round_done(&feedback) {
            ctx.event(EventKind::PlanChanged, Some(reason::of_change(&change)));
        }
    }

    fn open_next_epoch(&mut self, ctx: &mut Context<'_>) {
        ctx.event(EventKind::EpochDone { epoch: self.ledger.epoch }, None);
        self.ledger.next_epoch();
    }

    fn plan_window(&mut self, ctx: &mut Context<'_>) -> Step {
        let live: Vec<Slot> = ctx.members.active().map(|member| id::slot(member.rank)).collect();
        let level = self.ledger.level();
        if level.available == self.ledger.epoch_len() {
            self.ledger.reserve(&self.scheduler.weights(&live));
        }
        let demand =
            Demand { live: &live, remaining: level.available, epoch_len: self.ledger.epoch_len(), callbacks: &[] };
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
        for share in &plan.shares {
            let rank = id::rank(share.slot);
            let leases = self.ledger.lease(rank, share.lease);
            let leased = flodl_wire::id::samples(&leases);
            if let Some(member) = ctx.members.get_mut(rank) {
                let (window, quota_max) = (self.window, share.quota_max);
                member.state = State::Active(Work::Training { window, quota_max, leased });
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
            ctx.tell(rank, Control::Window(plan));
        }
    }
}

fn open_round(ctx: &mut Context<'_>, id: Round, consensus: bool) -> OpenRound {
    let round = OpenRound::open(id, ctx.members, (consensus, ctx.now));
    ctx.event(EventKind::RoundRequested { round: id }, None);
    let roster = round.roster(ctx.members);
    ctx.broadcast(Control::RequestParams { round: id, roster });
    round
}

fn show(ranges: &[Range]) -> String {
    let shown: Vec<String> = ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
    shown.join(", ")
}

/// The figures of a rank's window, for the monitor.
fn rank_window(rank: Rank, report: &WindowReport) -> RankWindow {
    let batch_time = match report.batches {
        0 => None,
        1 => Some(report.first),
        n => Some(report.rest / (n - 1)),
    };
    RankWindow {
        rank,
        window: report.window,
        epoch: report.epoch,
        batches: report.batches,
        samples: report.samples,
        batch_time,
        fill: batch_time.map_or(report.first, |time| report.first.saturating_sub(time)),
        data_wait: report.data_wait,
        idle: report.idle,
        loss_sum: report.loss_sum,
        loss_count: report.loss_count,
        lr: report.lr,
    }
}
