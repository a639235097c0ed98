//! What one rank does for all between two rounds: it evaluates the consensus, or saves what of a checkpoint only a rank has.
//!
//! Something triggers a role (so many epochs, so many rounds, a rank's request, the end). At the next round's end, before a
//! window is planned, every active rank holds the consensus: the role's rank is ordered to do its part then, and its window
//! is shorter by what that will probably cost. No round begins before its answer. Where it fails, dies or hangs, the next
//! candidate is asked at the end of the next round, of the consensus in force then.
//!
//! Invariants: a role has at most one order out; the rank of an order was active when it was given and is the only one whose
//! answer counts, once; what triggered a role is forgotten only when it was done or nobody is left to try.

use crate::Fate;
use crate::context::Context;
use crate::duties::{Duties, Elect};
use crate::gate::Hold;
use crate::id;
use crate::members::{Member, State};
use core::fmt;
use core::time::Duration;
use flodl_elche::{Cadence, CostEstimate, Slot};
use flodl_wire::message::Control;
use flodl_wire::message::record::{EventKind, Reason, Role};
use flodl_wire::{Epoch, Incarnation, Rank, Time, Version};
use std::collections::{BTreeMap, BTreeSet};

/// Both roles.
#[derive(Debug)]
pub(crate) struct Roles {
    duties: Duties,
    evaluation: Desk,
    checkpoint: Desk,
    next_schedule: u64,
}

/// One role.
#[derive(Debug, Default)]
struct Desk {
    /// Who has it, and whether it was chosen by its speed (or asked for).
    holder: Option<(Rank, bool)>,
    /// What triggered it, while nobody is at it.
    due: Option<Trigger>,
    order: Option<Order>,
    /// Those who failed since it was last done.
    tried: BTreeSet<Rank>,
    costs: BTreeMap<Rank, CostEstimate>,
}

/// An order that is out.
#[derive(Clone, Debug, PartialEq)]
struct Order {
    schedule: u64,
    rank: Rank,
    incarnation: Incarnation,
    version: Version,
    trigger: Trigger,
    /// When the rank could begin.
    began: Time,
    /// When it was last heard to move.
    moved: Time,
    /// How long it may stand still.
    ceiling: Duration,
}

/// What made a role due.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// So many epochs are over.
    Epochs { every: u64, epoch: Epoch },
    /// So many rounds are.
    Rounds { every: u64, version: Version },
    /// A rank asks for it.
    Asked { by: Rank },
    /// The run is over.
    End,
}

/// What came of trying to give an order.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Given {
    /// There was nothing to do, or it is being done.
    Nothing,
    /// Somebody is at it now.
    Ordered,
    /// Everybody there is has been tried.
    NobodyLeft,
}

impl Order {
    fn until(&self) -> Time {
        self.moved.plus(self.ceiling)
    }

    fn is_of(&self, member: &Member) -> bool {
        (member.rank, member.incarnation) == (self.rank, self.incarnation)
    }
}

impl Desk {
    /// What a duty will cost that rank: what it cost it before, else what it cost the quickest.
    fn expected(&self, rank: Rank) -> Option<Duration> {
        let own = self.costs.get(&rank).and_then(CostEstimate::expected);
        own.or_else(|| self.costs.values().filter_map(CostEstimate::expected).min())
    }

    fn is_able(&self, ctx: &Context<'_>, rank: Rank) -> bool {
        let able = |member: &Member| member.is_active() && member.leaving.is_none();
        ctx.members.get(rank).is_some_and(able) && !self.tried.contains(&rank)
    }

    /// Who does it next, why, and whether that was chosen by more than its number.
    fn candidate(&self, ctx: &Context<'_>, by: Elect, scheduler: &dyn Cadence) -> Option<(Rank, bool, String)> {
        let able = |rank: &Rank| self.is_able(ctx, *rank);
        if let Elect::Rank(rank) = by
            && able(&rank)
        {
            return Some((rank, true, "it was asked for".to_owned()));
        }
        if let Some((rank, true)) = self.holder.filter(|(rank, _)| able(rank)) {
            return Some((rank, true, "it has it".to_owned()));
        }
        let batch = |rank: Rank| scheduler.batch_time(id::slot(rank));
        let timed = |rank: Rank| Some((batch(rank)?, rank));
        let overall = scheduler.fastest().map(id::rank).filter(able).and_then(timed);
        let others = || ctx.members.active().map(|member| member.rank).filter(able);
        if let Some((batch, rank)) = overall.or_else(|| others().filter_map(timed).min()) {
            let text = format!("it is the fastest that can do it, with {:.1} ms a batch", batch.as_secs_f64() * 1e3);
            return Some((rank, true, text));
        }
        let rank = others().next()?;
        Some((rank, false, "no speed is known yet, and its number is the lowest".to_owned()))
    }
}

impl Roles {
    pub(crate) fn new(duties: Duties) -> Roles {
        Roles { duties, evaluation: Desk::default(), checkpoint: Desk::default(), next_schedule: 0 }
    }

    /// Those of a controller of so many before it. What made a role due under them is forgotten, and their orders have other
    /// numbers: nobody takes an answer to one of those for an answer to its own.
    pub(crate) fn of_generation(duties: Duties, generation: u64) -> Roles {
        Roles { next_schedule: generation << 32, ..Roles::new(duties) }
    }

    fn desk(&mut self, role: Role) -> &mut Desk {
        match role {
            Role::Evaluation => &mut self.evaluation,
            Role::Checkpoint => &mut self.checkpoint,
        }
    }

    fn orders(&self) -> impl Iterator<Item = (Role, &Order)> {
        let both = [(Role::Evaluation, &self.evaluation), (Role::Checkpoint, &self.checkpoint)];
        both.into_iter().filter_map(|(role, desk)| Some((role, desk.order.as_ref()?)))
    }

    fn orders_mut(&mut self) -> impl Iterator<Item = &mut Order> {
        [&mut self.evaluation, &mut self.checkpoint].into_iter().filter_map(|desk| desk.order.as_mut())
    }

    /// The run is over: only what it asks for itself still counts.
    pub(crate) fn retire(&mut self) {
        for desk in [&mut self.evaluation, &mut self.checkpoint] {
            (desk.due, desk.order) = (None, None);
            desk.tried.clear();
        }
    }

    // What triggers a role.

    /// It is due. What made it due first is kept.
    pub(crate) fn trigger(&mut self, role: Role, trigger: Trigger) {
        self.desk(role).due.get_or_insert(trigger);
    }

    /// A new version is committed.
    pub(crate) fn committed(&mut self, version: Version) {
        for (role, every) in
            [(Role::Evaluation, self.duties.evaluation.rounds), (Role::Checkpoint, self.duties.checkpoint.rounds)]
        {
            if let Some(every) = every.filter(|&every| version.0 > 0 && version.0 % every == 0) {
                self.trigger(role, Trigger::Rounds { every: every.get(), version });
            }
        }
    }

    /// An epoch is over.
    pub(crate) fn epoch_done(&mut self, epoch: Epoch) {
        let done = epoch.0.saturating_add(1);
        for (role, every) in
            [(Role::Evaluation, self.duties.evaluation.epochs), (Role::Checkpoint, self.duties.checkpoint.epochs)]
        {
            if let Some(every) = every.filter(|&every| done % every == 0) {
                self.trigger(role, Trigger::Epochs { every: every.get(), epoch });
            }
        }
    }

    /// Takes what made a role due, where nobody is to be ordered for it.
    pub(crate) fn take_due(&mut self, role: Role) -> Option<Trigger> {
        self.desk(role).due.take()
    }

    /// What makes a role due.
    pub(crate) fn due(&self, role: Role) -> Option<Trigger> {
        match role {
            Role::Evaluation => self.evaluation.due,
            Role::Checkpoint => self.checkpoint.due,
        }
    }

    // Orders and answers.

    /// Orders what is due of its next candidate. Everybody active must hold the consensus `version`.
    pub(crate) fn order(
        &mut self,
        ctx: &mut Context<'_>,
        role: Role,
        (scheduler, version): (&dyn Cadence, Version),
    ) -> Given {
        let by = match role {
            Role::Evaluation => self.duties.evaluation.by,
            Role::Checkpoint => self.duties.checkpoint.by,
        };
        let schedule = self.next_schedule;
        let desk = self.desk(role);
        let Some(trigger) = desk.due.filter(|_| desk.order.is_none()) else { return Given::Nothing };
        let Some((rank, by_merit, why)) = desk.candidate(ctx, by, scheduler) else {
            desk.due = None;
            desk.tried.clear();
            return Given::NobodyLeft;
        };
        let Some(incarnation) = ctx.members.get(rank).map(|member| member.incarnation) else { return Given::Nothing };
        if desk.holder.replace((rank, by_merit)).is_none_or(|(before, _)| before != rank) {
            ctx.event(EventKind::Elected { role, rank }, Some(Reason::new("elected", why).about([rank])));
        }
        let ceiling = ctx.deadlines.callback_ceiling(desk.expected(rank));
        let (began, moved) = (ctx.now, ctx.now);
        desk.due = None;
        desk.order = Some(Order { schedule, rank, incarnation, version, trigger, began, moved, ceiling });
        let reason = Reason::from(&trigger).about(desk.tried.iter().copied());
        self.next_schedule += 1;
        ctx.event(EventKind::RoleOrdered { role, schedule, rank, version }, Some(reason));
        ctx.tell(rank, control(role, schedule, version));
        Given::Ordered
    }

    /// A rank is back from a lost link: it may not have heard what it is to do.
    pub(crate) fn again(&mut self, ctx: &mut Context<'_>, rank: Rank) {
        let its = |&(_, order): &(Role, &Order)| order.rank == rank;
        let orders: Vec<Control> =
            self.orders().filter(its).map(|(role, order)| control(role, order.schedule, order.version)).collect();
        orders.into_iter().for_each(|order| ctx.tell(rank, order));
        self.moved(rank, ctx.now);
    }

    /// A rank answers an order. Gives the version it was about, where the answer was awaited.
    pub(crate) fn answered(
        &mut self,
        ctx: &mut Context<'_>,
        role: Role,
        (from, schedule): (Rank, u64),
        outcome: Result<(), &str>,
    ) -> Option<Version> {
        let awaited = |order: &mut Order| (order.rank, order.schedule) == (from, schedule);
        let order = self.desk(role).order.take_if(awaited)?;
        let took = ctx.now.since(order.began);
        let done = outcome.is_ok();
        let reason = outcome.err().map(|error| failed(role, from, error));
        ctx.event(EventKind::RoleDone { role, schedule, rank: from, done, took }, reason);
        // What else this rank was told to do it begins only now.
        for other in self.orders_mut().filter(|other| other.rank == from) {
            (other.began, other.moved) = (ctx.now, ctx.now);
        }
        let desk = self.desk(role);
        if done {
            desk.costs.entry(from).or_default().observe(took);
            if !std::mem::take(&mut desk.tried).is_empty() {
                // It can what others could not.
                desk.holder = Some((from, true));
            }
        } else {
            desk.retry(&order);
        }
        Some(order.version)
    }

    /// Gives up the orders of ranks that are gone, out of reach or without the consensus; gives whose.
    pub(crate) fn give_up_lost(&mut self, ctx: &mut Context<'_>) -> Vec<Role> {
        let mut lost = Vec::new();
        for (role, desk) in [(Role::Evaluation, &mut self.evaluation), (Role::Checkpoint, &mut self.checkpoint)] {
            let gone = |order: &mut Order| {
                !ctx.members.get(order.rank).is_some_and(|member| order.is_of(member) && holds_consensus(&member.state))
            };
            let Some(order) = desk.order.take_if(gone) else { continue };
            desk.retry(&order);
            desk.costs.remove(&order.rank);
            let Order { schedule, rank, began, .. } = order;
            let why = failed(role, rank, "it is not in the run any more");
            let took = ctx.now.since(began);
            ctx.event(EventKind::RoleDone { role, schedule, rank, done: false, took }, Some(why));
            lost.push(role);
        }
        lost
    }

    // Time.

    /// A rank makes progress at whatever it does. Until when it may stand still, where that is an order.
    pub(crate) fn moved(&mut self, rank: Rank, now: Time) -> Option<Time> {
        let mut until = None;
        for order in self.orders_mut().filter(|order| order.rank == rank) {
            order.moved = now;
            until = until.max(Some(order.until()));
        }
        until
    }

    /// Until when a rank may stand still because of an order.
    pub(crate) fn busy_until(&self, rank: Rank) -> Option<Time> {
        self.orders().filter(|(_, order)| order.rank == rank).map(|(_, order)| order.until()).max()
    }

    /// When [`Roles::overdue`] has something to say.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.orders().map(|(_, order)| order.until()).min()
    }

    /// The orders that are past their ceiling: which role, whose and for how long nothing moved.
    pub(crate) fn overdue(&self, now: Time) -> Vec<(Role, Rank, u64, Duration)> {
        let late = self.orders().filter(|(_, order)| now >= order.until());
        late.map(|(role, order)| (role, order.rank, order.schedule, now.since(order.moved))).collect()
    }

    /// The ranks of such orders, which hang.
    pub(crate) fn hanging(&self, now: Time) -> Vec<(Rank, Fate)> {
        self.overdue(now).into_iter().map(|(_, rank, _, still)| (rank, Fate::Stalled { still })).collect()
    }

    // What they mean for the others.

    /// What is waited for.
    pub(crate) fn hold(&self) -> Option<Hold<'static>> {
        let on = |role, desk: &Desk| Some((desk.order.as_ref()?.rank, role));
        let ranks = [on(Role::Evaluation, &self.evaluation), on(Role::Checkpoint, &self.checkpoint)];
        ranks.iter().any(Option::is_some).then_some(Hold::OnDuty { ranks })
    }

    /// What the orders that are out will probably cost whom.
    pub(crate) fn costs(&self) -> Vec<(Slot, Duration)> {
        let both = [&self.evaluation, &self.checkpoint];
        let cost = |desk: &Desk| {
            let rank = desk.order.as_ref()?.rank;
            Some((id::slot(rank), desk.expected(rank)?))
        };
        both.into_iter().filter_map(cost).collect()
    }
}

impl Desk {
    /// The next candidate is to do what this order was for.
    fn retry(&mut self, order: &Order) {
        self.tried.insert(order.rank);
        self.due = Some(order.trigger);
    }
}

fn control(role: Role, schedule: u64, version: Version) -> Control {
    match role {
        Role::Evaluation => Control::ExecuteEval { schedule },
        Role::Checkpoint => Control::ExecuteCheckpoint { schedule, version },
    }
}

/// Whether it is active, or was when its link broke.
fn holds_consensus(state: &State) -> bool {
    match state {
        State::Active(_) => true,
        State::Detached { was, .. } => holds_consensus(was),
        _ => false,
    }
}

fn failed(role: Role, rank: Rank, why: &str) -> Reason {
    let (code, what) = match role {
        Role::Evaluation => ("evaluation-failed", "evaluate"),
        Role::Checkpoint => ("not-saved", "save its part"),
    };
    Reason::new(code, format!("{rank} could not {what}: {why}")).about([rank])
}

/// The name of a role's duty.
pub(crate) fn name(role: Role) -> &'static str {
    match role {
        Role::Evaluation => "evaluation",
        Role::Checkpoint => "checkpoint",
    }
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trigger::Epochs { every: 1, epoch } => write!(f, "{epoch} is over"),
            Trigger::Epochs { every, epoch } => write!(f, "{epoch} is over, the last of {every}"),
            Trigger::Rounds { every: 1, version } => write!(f, "{version} is committed"),
            Trigger::Rounds { every, version } => write!(f, "{version} is committed, the last of {every}"),
            Trigger::Asked { by } => write!(f, "{by} asked for it"),
            Trigger::End => f.write_str("the run is over"),
        }
    }
}

impl From<&Trigger> for Reason {
    fn from(trigger: &Trigger) -> Reason {
        let code = match trigger {
            Trigger::Epochs { .. } => "every-epochs",
            Trigger::Rounds { .. } => "every-rounds",
            Trigger::Asked { .. } => "asked",
            Trigger::End => "end",
        };
        Reason::new(code, trigger.to_string())
    }
}
