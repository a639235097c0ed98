//! The run itself: windows and rounds in turn, until the last epoch is committed or somebody stops it.
//!
//! This file has what it is told and when it moves on; `planning` has the next window, `averaging` the open round and `closing`
//! its end.
//!
//! Where ranks train on while they average (`overlap`), a round is opened together with the windows that begin at its
//! snapshots, and both go on side by side.
//!
//! Invariants: a rank that is `Training` holds leases of the window that it is in, and of the next one where that is planned;
//! outside a round nobody's samples are in one; never are two rounds open; an epoch is left only when every position of it
//! is committed or set aside.

use crate::agreement::Lists;
use crate::chronicle::Chronicle;
use crate::collecting::WithoutNccl;
use crate::communicators::Communicators;
use crate::context::Context;
use crate::formation::Agreed;
use crate::gate::{self, Fire, Hold};
use crate::id;
use crate::ledger::Ledger;
use crate::members::{State, Work, World};
use crate::metrics::Figures;
use crate::roles::Roles;
use crate::round::{OpenRound, Out, Unfinished};
use crate::saving::Saving;
use crate::{Breach, Deadlines, Fate, TooManyLost};
use core::time::Duration;
use flodl_elche::{Cadence, Policy, WindowSample};
use flodl_wire::message::control::{Next, RoundOutcome, WindowPlan};
use flodl_wire::message::record::{Body, EventKind, Node, RankWindow, Reason};
use flodl_wire::message::report::WindowReport;
use flodl_wire::{Range, Rank, Round, Time, Version, WindowId};
use std::collections::BTreeMap;

/// A run that is going on.
pub(crate) struct Running {
    pub(crate) agreed: Box<Agreed>,
    pub(crate) scheduler: Box<dyn Cadence>,
    pub(crate) ledger: Ledger,
    pub(crate) consensus: Option<Held>,
    pub(crate) cycle: Cycle,
    /// Where ranks average among themselves: their communicators.
    pub(crate) nccl: Option<Communicators>,
    /// Ranks train on while they average.
    pub(crate) overlaps: bool,
    pub(crate) window: WindowId,
    pub(crate) window_began: Time,
    pub(crate) next_round: Round,
    pub(crate) losses: Losses,
    /// The learning rate of each rank's last batch since the last round, where it has one.
    pub(crate) rates: BTreeMap<Rank, f64>,
    /// Why the next commit is the final one, though not every epoch is done.
    pub(crate) stopping: Option<Stopping>,
    /// The longest round so far.
    pub(crate) longest_round: Duration,
    /// Lists of tensors of those who would join.
    pub(crate) lists: Lists,
    /// The open window's orders, as a rank that is back may have missed them.
    pub(crate) orders: BTreeMap<Rank, WindowPlan>,
    /// The round that ended last.
    pub(crate) last_done: Option<(Round, RoundOutcome, Next)>,
    pub(crate) roles: Roles,
    pub(crate) saving: Saving,
    /// Why somebody waits for the end of the window, which waits for a duty to be done.
    pub(crate) cut_short: Option<Reason>,
    /// Of the open epochs.
    pub(crate) metrics: Figures,
    /// What others must know of commits, where the run is to survive its controller.
    pub(crate) chronicle: Option<Chronicle>,
}

/// Why a run ends before its time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopping {
    /// Somebody asked for it.
    Request,
    /// More ranks are missing than it bears.
    Losses(TooManyLost),
    /// Ranks cannot average among themselves any more.
    NoCommunicator(WithoutNccl),
    /// Nobody that is left holds the consensus.
    ConsensusLost,
}

impl Stopping {
    /// Why, for people and programs.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Stopping::Request => Reason::new("stopped", "stopped on request"),
            Stopping::Losses(lost) => Reason::from(&lost),
            Stopping::NoCommunicator(why) => why.reason(),
            Stopping::ConsensusLost => Reason::new(
                "consensus-lost",
                "no rank that is left holds the consensus: go on from the newest checkpoint",
            ),
        }
    }
}

/// The consensus in force.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) version: Version,
    pub(crate) digest: u64,
}

/// Where the cycle stands.
#[derive(Debug)]
pub(crate) enum Cycle {
    /// Ranks train.
    Window,
    /// Ranks average.
    Round(Box<OpenRound>),
}

/// The window's loss over all ranks.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Losses {
    pub(crate) sum: f64,
    pub(crate) count: u64,
}

/// Where the run goes after an input.
pub(crate) enum Step {
    /// Nowhere yet; [`Running::hold`] says why.
    Hold,
    /// On: look again.
    Again,
    /// The final consensus is committed.
    Final,
    /// Nobody is left.
    Deserted,
    /// These cannot be brought to hold the consensus: their life in the run is over.
    Expel(Vec<(Rank, Fate)>),
}

impl Running {
    /// Starts with round 0, which spreads the first parameters.
    pub(crate) fn start(ctx: &mut Context<'_>, agreed: Box<Agreed>, mut scheduler: Box<dyn Cadence>) -> Running {
        agreed.speeds.iter().for_each(|&(rank, speed)| scheduler.expect(id::slot(rank), speed));
        let overlaps = ctx.config.mode.policy() == Policy::Async;
        let ledger = Ledger::new((agreed.passes, agreed.epochs), agreed.batch_size, overlaps);
        let mut running = Running::idle((agreed, scheduler), ledger, Roles::new(ctx.config.duties), ctx.now);
        running.nccl = (!ctx.config.mode.is_cpu()).then(|| Communicators::new(ctx.config.patience));
        running.open_round(ctx, WindowId(0), Reason::new("first", "the first parameters are spread"));
        running
    }

    /// A run in which nothing has happened yet.
    pub(crate) fn idle(
        (agreed, scheduler): (Box<Agreed>, Box<dyn Cadence>),
        ledger: Ledger,
        roles: Roles,
        now: Time,
    ) -> Running {
        let mut metrics = Figures::new(&agreed.agreement.scalars);
        metrics.of(ledger.epoch, now);
        let lists = Lists::of(agreed.agreement.manifest, agreed.tensors.clone());
        Running {
            overlaps: ledger.overlaps(),
            agreed,
            scheduler,
            ledger,
            consensus: None,
            cycle: Cycle::Window,
            nccl: None,
            window: WindowId(0),
            window_began: now,
            next_round: Round(0),
            losses: Losses::default(),
            rates: BTreeMap::new(),
            stopping: None,
            longest_round: Duration::ZERO,
            lists,
            orders: BTreeMap::new(),
            last_done: None,
            roles,
            saving: Saving::default(),
            cut_short: None,
            metrics,
            chronicle: None,
        }
    }

    /// A rank's window is over.
    pub(crate) fn window_report(
        &mut self,
        ctx: &mut Context<'_>,
        rank: Rank,
        report: &WindowReport,
    ) -> Result<(), Breach> {
        let Some(mut member) = ctx.members.get_mut(rank) else { return Ok(()) };
        // One that is to take the consensus first, or to end, may have been out of reach when its window was over, or trains on
        // and does not know it yet.
        if matches!(member.state, State::Syncing | State::Leaving { .. }) && report.window <= self.window {
            return Ok(());
        }
        let leased = match member.state {
            State::Active(Work::Training { window, epoch, leased, .. })
                if window == report.window && epoch == report.epoch =>
            {
                leased
            }
            // Who had no share in a window may say that it is over when another one is planned already.
            State::Active(_) if report.window < self.window && report.used.is_empty() => return Ok(()),
            _ => return Err(Breach::Window),
        };
        self.ledger.report(rank, report)?;
        // Only a round may end a window before its first batch; otherwise windows would be planned for ever.
        if report.batches == 0 && leased > 0 && !self.ends_window_of(rank) {
            return Err(Breach::Idle { leased });
        }
        member.state = State::Active(Work::Reported { window: report.window, batches: report.batches });
        drop(member);
        let sample = sample(report);
        self.scheduler.observe(id::slot(rank), sample);
        if report.batches > 0 && report.lr.is_finite() {
            self.rates.insert(rank, report.lr);
        }
        if report.loss_sum.is_finite() {
            self.losses.sum += report.loss_sum;
            self.losses.count = self.losses.count.saturating_add(report.loss_count);
        }
        self.metrics.of(self.ledger.epoch, ctx.now).window(rank, report);
        ctx.record(Body::Node(Node::Rank(rank_window(rank, report))));
        if self.replica_is_equal(ctx, rank, report.replica_digest) {
            if let Some(mut member) = ctx.members.get_mut(rank) {
                member.missed = 0;
            }
        } else {
            self.resynchronise(ctx, rank);
        }
        Ok(())
    }

    /// Compares a rank's live tensors with the consensus that it says they hold. Where they cannot be compared they count
    /// as equal.
    pub(crate) fn replica_is_equal(&self, ctx: &mut Context<'_>, rank: Rank, digest: Option<(Version, u64)>) -> bool {
        let (Some((version, digest)), Some(held)) = (digest, self.consensus) else { return true };
        if version != held.version {
            return true;
        }
        let equal = digest == held.digest;
        ctx.event(EventKind::ReplicaDigest { rank, version, equal }, None);
        if !equal {
            let text = format!("the replica of {rank} is not the consensus of {version}: averaging did not reach it");
            ctx.alert(Reason::new("replica-differs", text).about([rank]));
        }
        equal
    }

    /// A rank does not hold what the others hold: what it trained goes back, and the next round gives it the consensus. A
    /// round that it contributes to already does that by itself.
    fn resynchronise(&mut self, ctx: &mut Context<'_>, rank: Rank) {
        let Some(mut member) = ctx.members.get_mut(rank) else { return };
        member.missed += 1;
        if matches!(self.cycle, Cycle::Round(_)) {
            return;
        }
        member.state = State::Syncing;
        drop(member);
        self.scheduler.leave(id::slot(rank));
        self.ledger.release(rank, false);
        self.extend(ctx);
    }

    /// When something here is overdue.
    pub(crate) fn deadline(&self, deadlines: &Deadlines) -> Option<Time> {
        let duties = [self.roles.deadline(), self.saving.deadline()];
        let nccl = self.nccl.as_ref().and_then(|nccl| nccl.deadline());
        let others = [self.round_deadline(deadlines), self.lists.deadline(), nccl];
        duties.into_iter().chain(others).flatten().min()
    }

    /// The next commit is to be the final one; a window that is open ends at each rank's next batch boundary.
    pub(crate) fn stop(&mut self, ctx: &mut Context<'_>, why: Stopping) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(why);
        self.end_window(ctx, why.reason());
    }

    /// An open window ends at each rank's next batch boundary; where one is on duty, after that.
    pub(crate) fn end_window(&mut self, ctx: &mut Context<'_>, why: Reason) {
        if !matches!(self.cycle, Cycle::Window) || ctx.members.tally().counts.take_part() == 0 {
            return;
        }
        if self.roles.hold().is_some() {
            self.cut_short = Some(why);
        } else {
            self.request_params(ctx, why);
        }
    }

    /// A stall's reason with what the window was planned for and what is left of the epoch.
    pub(crate) fn with_plan(&self, stall: Reason) -> Reason {
        let (level, anchor) = (self.ledger.level(), self.scheduler.anchor());
        let (window, epoch) = (self.window, self.ledger.epoch);
        let text = format!(
            "{} ({window} of {epoch}, anchor {anchor}: {} samples are free, {} are held)",
            stall.text, level.available, level.outstanding
        );
        Reason { text, ..stall }
    }

    /// Whether every sample of every epoch is committed or set aside.
    pub(crate) fn is_done(&self) -> bool {
        self.ledger.is_complete()
    }

    /// A rank's life is over: its samples go back, plans and the open round go on without it.
    pub(crate) fn lose(&mut self, ctx: &mut Context<'_>, rank: Rank, fate: &Fate) {
        let brought_itself_down = fate.brought_itself_down();
        self.out_of_round(rank, Out::Dead { brought_itself_down }, ctx.now);
        self.ledger.release(rank, brought_itself_down);
        self.scheduler.leave(id::slot(rank));
        if self.overlaps || matches!(self.cycle, Cycle::Window) {
            self.extend(ctx);
        }
        self.tell_quarantine(ctx);
    }

    /// Says which samples are set aside, if any new ones are.
    pub(crate) fn tell_quarantine(&mut self, ctx: &mut Context<'_>) {
        for (epoch, samples, ranges) in self.ledger.newly_quarantined() {
            self.metrics.of(epoch, ctx.now).set_aside(samples);
            let text = format!(
                "positions {} of {epoch} are set aside: every rank that held them came to grief",
                show(&ranges)
            );
            ctx.event(EventKind::Quarantined { epoch, samples }, Some(Reason::new("quarantined", text)));
        }
    }

    /// Does what can be done now.
    pub(crate) fn advance(&mut self, ctx: &mut Context<'_>) -> Step {
        if !ctx.members.anybody_lives() {
            return Step::Deserted;
        }
        if self.stopping == Some(Stopping::ConsensusLost) {
            return Step::Final;
        }
        self.roles.give_up_lost(ctx);
        if self.roles.hold().is_none()
            && let Some(why) = self.cut_short.take()
        {
            self.end_window(ctx, why);
        }
        if self.stopping.is_none() {
            self.take_in(ctx);
        } else if ctx.members.world().present == 0 {
            return Step::Final;
        }
        let World { missing, largest, .. } = ctx.members.world();
        if let Err(lost) = ctx.config.membership.max_failure.bears(missing, largest)
            && self.stopping.is_none()
        {
            ctx.alert(Reason::from(&lost));
            self.stop(ctx, Stopping::Losses(lost));
        }
        let astray = |&rank| Some((rank, Fate::OutOfSync { rounds: ctx.members.get(rank)?.missed }));
        let astray: Vec<_> = ctx.members.tally().marked.astray.iter().filter_map(astray).collect();
        if !astray.is_empty() {
            return Step::Expel(astray);
        }
        if let Some(step) = self.collect(ctx) {
            return step;
        }
        if let Cycle::Round(open) = &self.cycle {
            return match open.finished() {
                Ok(_) => self.close_round(ctx),
                Err(_) => self.beside_round(ctx),
            };
        }
        if self.overlaps
            && self.roles.hold().is_none()
            && let Some(why) = self.ends_windows(ctx)
        {
            return self.average(ctx, why);
        }
        match self.verdict(ctx) {
            Ok(fire) => {
                let why = Reason::from(&fire);
                self.average(ctx, why)
            }
            // Joiners get the consensus by a round that nobody adds to.
            Err(hold @ Hold::NobodyActive) => {
                let why = Reason::from(&hold);
                self.request_params(ctx, why)
            }
            Err(hold @ Hold::NothingMoved { available, .. }) => {
                let why = Reason::from(&hold);
                self.replan(ctx, available, why)
            }
            Err(_) => Step::Hold,
        }
    }

    /// What the gate says. Neither a round nor another window begins while somebody is on duty.
    pub(crate) fn verdict<'a>(&'a self, ctx: &'a Context<'_>) -> Result<Fire, Hold<'a>> {
        let verdict = gate::ready(ctx.members.tally(), self.window, self.ledger.level(), self.arming());
        let waits = matches!(verdict, Err(Hold::Training { .. } | Hold::Detached { .. } | Hold::NobodyHere { .. }));
        match self.roles.hold().filter(|_| !waits) {
            Some(hold) => Err(hold),
            None => verdict,
        }
    }

    /// Why it goes nowhere: the verdict of the gate, or of the open round.
    pub(crate) fn hold(&self, ctx: &Context<'_>) -> Option<Reason> {
        let unfinished = match &self.cycle {
            Cycle::Round(open) => open.finished().err(),
            Cycle::Window => None,
        };
        match (unfinished, self.all_begun().then(|| self.verdict(ctx))) {
            (Some(_), Some(Err(hold @ Hold::InFlight { .. }))) => Some(Reason::from(&hold)),
            (Some(Unfinished::Communicator), _) => self.hold_of_nccl(),
            (Some(unfinished), _) => Some(Reason::from(&unfinished)),
            (None, _) => self.verdict(ctx).err().as_ref().map(Reason::from),
        }
    }

    /// Nobody trained. More samples: another window without a round. None left: the epoch is over (everything that
    /// was not committed is set aside), unless somebody still holds some.
    pub(crate) fn replan(&mut self, ctx: &mut Context<'_>, available: u64, why: Reason) -> Step {
        if ctx.members.tally().counts.staying == 0 {
            // Nobody gets a window: the end of a round lets those who leave go.
            let is_open = matches!(self.cycle, Cycle::Round(_));
            return if is_open { Step::Hold } else { self.request_params(ctx, why) };
        }
        if available > 0 {
            ctx.event(EventKind::PlanChanged, Some(why));
            return self.plan_window(ctx);
        }
        if !self.ledger.epoch_is_complete() {
            return Step::Hold;
        }
        if self.is_done() {
            return self.request_params(ctx, why);
        }
        self.close_epochs(ctx);
        self.plan_window(ctx)
    }
}

fn show(ranges: &[Range]) -> String {
    let shown: Vec<String> = ranges.iter().map(|range| format!("{}..{}", range.start, range.end)).collect();
    shown.join(", ")
}

/// What a window says of its rank's speed.
fn sample(report: &WindowReport) -> WindowSample {
    let WindowReport { batches, first, rest, data_wait, .. } = *report;
    WindowSample { batches, first, rest, data_wait }
}

/// The figures of a rank's window, for the monitor.
fn rank_window(rank: Rank, report: &WindowReport) -> RankWindow {
    let sample = sample(report);
    RankWindow {
        rank,
        window: report.window,
        epoch: report.epoch,
        batches: report.batches,
        samples: report.samples,
        batch_time: sample.batch(),
        fill: sample.fill(),
        data_wait: report.data_wait,
        idle: report.idle,
        loss_sum: report.loss_sum,
        loss_count: report.loss_count,
        lr: report.lr,
    }
}
