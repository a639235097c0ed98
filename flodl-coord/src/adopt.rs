//! Ranks that go on under another controller, each where it stands.

use crate::chronicle::Chronicle;
use crate::context::Context;
use crate::formation::{Agreed, run_config};
use crate::id;
use crate::ledger::Ledger;
use crate::members::{State, Work};
use crate::roles::Roles;
use crate::running::{Held, Running};
use crate::stalled::Pace;
use flodl_elche::{Cadence, WindowSample};
use flodl_wire::commit::CommitState;
use flodl_wire::message::commit::CommitHead;
use flodl_wire::message::control::{Next, RoundOutcome, WindowPlan};
use flodl_wire::message::report::{RankState, SyncAck};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Rank, Round, Time, WindowId};

/// Brings the ranks back into the run that `commit` is the newest record of. Gives what they said, which counts now.
pub(crate) fn adopt(
    running: &mut Running,
    ctx: &mut Context<'_>,
    mut states: Vec<RankState>,
    commit: Option<&CommitState>,
) -> Vec<(Rank, Report)> {
    // Where two claim the same samples the later window has them: they went back before it was planned.
    states.sort_by_key(|state| std::cmp::Reverse(state.plan.as_ref().map(|plan| plan.window)));
    let newest = states.iter().filter_map(|state| state.window).max();
    running.window = running.window.max(newest.unwrap_or_default());
    let rounds = states.iter().filter_map(|state| state.round);
    running.rounds_until(rounds.max().unwrap_or_default());
    let mut words = Vec::new();
    for state in states {
        running.adopt_rank(ctx, &state, commit);
        words.extend(state.words.into_iter().map(|word| (state.rank, word)));
    }
    words
}

impl Running {
    /// Goes on from the record of a commit, with nobody training yet. Without one the first parameters are still to be
    /// spread.
    pub(crate) fn resumed(
        (agreed, scheduler, ledger, roles): (Box<Agreed>, Box<dyn Cadence>, Ledger, Roles),
        commit: Option<&CommitState>,
        chronicle: Chronicle,
        now: Time,
    ) -> Running {
        let head = commit.map(CommitState::head);
        let next = |head: &CommitHead| if head.is_final { Next::Final } else { Next::Window };
        let done =
            |head: &CommitHead| (head.moment.round, RoundOutcome::Committed { version: head.version }, next(head));
        Running {
            consensus: head.map(|head| Held { version: head.version, digest: head.digest }),
            window: head.map_or(WindowId(0), |head| head.window),
            next_round: head.map_or(Round(1), |head| Round(head.moment.round.0 + 1)),
            last_done: head.map(done),
            chronicle: Some(chronicle),
            ..Running::idle((agreed, scheduler), ledger, roles, now)
        }
    }

    /// Rounds up to that one are over, whatever became of them.
    pub(crate) fn rounds_until(&mut self, last: Round) {
        self.next_round = self.next_round.max(Round(last.0 + 1));
    }

    fn adopt_rank(&mut self, ctx: &mut Context<'_>, state: &RankState, commit: Option<&CommitState>) {
        let rank = state.rank;
        ctx.tell(rank, Control::ControllerBack);
        let is_in_run = ctx.members.get(rank).is_some_and(|member| member.state.is_in_run());
        if !is_in_run {
            return;
        }
        if state.words.iter().any(|word| matches!(word, Report::Finished { .. })) {
            // It was told to end under the controller before, and has.
            if let Some(mut member) = ctx.members.get_mut(rank) {
                member.state = State::Leaving { finished: true };
            }
            return;
        }
        if !state.admitted {
            let config = run_config(ctx, &self.agreed, (rank, ctx.members.world().present));
            ctx.tell(rank, Control::Admitted(Box::new(config)));
        }
        let was_in = self.round_over(ctx, state);
        // It takes the consensus by the next round. Where ranks trained on nobody knows what a replica holds beside it.
        if self.overlaps || !self.holds(state, was_in) {
            return;
        }
        let settled = commit.map_or(WindowId(0), |commit| commit.head().window);
        // Whom a round has stopped before its first batch has nothing that counts.
        let idle = |word: &Report| matches!(word, Report::WindowReport(report) if report.batches == 0);
        let stopped = state.words.iter().any(idle);
        let plan = state.plan.as_deref().filter(|plan| plan.window > settled && !stopped);
        let work = match plan {
            Some(plan) => match self.adopt_orders(ctx, rank, plan) {
                Some(work) => work,
                None => return,
            },
            None => Work::Idle,
        };
        let slot = id::slot(rank);
        self.scheduler.join(slot);
        let says_its_pace = state.words.iter().any(|word| matches!(word, Report::WindowReport(_)));
        if let Some(pace) = state.pace.filter(|_| !says_its_pace) {
            let flodl_wire::message::report::Pace { batches, first, rest, data_wait } = pace;
            self.scheduler.observe(slot, WindowSample { batches, first, rest, data_wait });
        }
        if let Some(mut member) = ctx.members.get_mut(rank) {
            member.state = State::Active(work);
        }
    }

    /// Tells a rank how the round ended that it was in. Which one that is, where it is the newest commit's.
    fn round_over(&self, ctx: &mut Context<'_>, state: &RankState) -> Option<Round> {
        let round = state.round.filter(|_| !state.round_done)?;
        let (outcome, next) = match self.last_done {
            Some((last, outcome, next)) if last == round => (outcome, next),
            _ => (RoundOutcome::Again, Next::Window),
        };
        ctx.tell(state.rank, Control::RoundDone { round, outcome, next });
        matches!(outcome, RoundOutcome::Committed { .. }).then_some(round)
    }

    /// Whether a rank holds the consensus in force, or does once it has applied that round's result.
    fn holds(&self, state: &RankState, applies: Option<Round>) -> bool {
        let Some(held) = self.consensus else { return false };
        let Some(round) = applies else { return state.version == Some(held.version) };
        let has_it =
            |ack: &SyncAck| ack.round == round && ack.received().is_some_and(|received| received.digest == held.digest);
        state.words.iter().any(|word| matches!(word, Report::SyncAck(ack) if has_it(ack)))
    }

    /// The rank has its leases as it had. `None`: somebody else has some of them by now.
    fn adopt_orders(&mut self, ctx: &Context<'_>, rank: Rank, plan: &WindowPlan) -> Option<Work> {
        let epoch = plan.epoch;
        if epoch != self.ledger.epoch || !self.ledger.adopt(rank, &plan.leases) {
            return None;
        }
        self.orders.insert(rank, plan.clone());
        let (window, quota_max, leased) = (plan.window, plan.quota_max, flodl_wire::id::samples(&plan.leases));
        let room = (u64::from(quota_max) * u64::from(self.ledger.batch_size())).saturating_sub(leased);
        Some(Work::Training { window, epoch, quota_max, leased, room, pace: Pace::start(ctx.now, plan.budget) })
    }
}
