//! After the final consensus: one evaluation, one checkpoint, and everybody's confirmed end.

use crate::Fate;
use crate::chronicle::Chronicle;
use crate::context::Context;
use crate::gate::shown;
use crate::members::{Member, State};
use crate::roles::{Given, Trigger};
use crate::running::{Running, Stopping};
use flodl_wire::message::Control;
use flodl_wire::message::record::{Reason, Role};
use flodl_wire::message::report::{Evaluation, RankState};
use flodl_wire::{Rank, Time, Version};

/// The end of a run that had begun.
pub(crate) struct Finishing {
    running: Running,
    ending: Ending,
    stage: Stage,
    saved: Saved,
}

/// What became of the checkpoint set.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Saved {
    /// It was not asked for (yet): there may be nothing to save.
    Not,
    /// It is written.
    Written,
    /// It could not be written.
    Failed,
}

/// Why the run ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ending {
    /// Everything is trained.
    Done,
    /// Before its time.
    Stopped(Stopping),
    /// Nobody is left; the last one's fate.
    Deserted { brought_itself_down: bool },
}

enum Stage {
    /// A rank evaluates.
    Evaluating,
    /// The set is being written, or a rank saves its part.
    Saving,
    /// Everybody is told to end.
    Ending { until: Time },
}

impl Finishing {
    /// Goes on from the final commit (or from the loss of the last rank).
    pub(crate) fn start(ctx: &mut Context<'_>, mut running: Running, ending: Ending) -> Finishing {
        running.roles.retire();
        let mut finishing = Finishing { running, ending, stage: Stage::Saving, saved: Saved::Not };
        match finishing.ending {
            Ending::Deserted { .. } => finishing.save(ctx),
            Ending::Done | Ending::Stopped(_) => {
                finishing.running.roles.trigger(Role::Evaluation, Trigger::End);
                finishing.evaluate(ctx);
            }
        }
        finishing
    }

    /// Asks the next candidate for the evaluation. Goes on to saving where none is left.
    fn evaluate(&mut self, ctx: &mut Context<'_>) {
        let version = self.running.consensus.map(|held| held.version);
        if version.map(|version| self.running.give(ctx, Role::Evaluation, version)) == Some(Given::Ordered) {
            self.stage = Stage::Evaluating;
            return;
        }
        ctx.alert(Reason::new("not-evaluated", "no rank could evaluate the final consensus"));
        self.save(ctx);
    }

    /// The elected rank has evaluated, or could not.
    pub(crate) fn evaluated(
        &mut self,
        ctx: &mut Context<'_>,
        answer: (Rank, u64),
        outcome: &Result<Evaluation, String>,
    ) {
        match self.running.evaluated(ctx, answer, outcome) {
            Some(true) => self.save(ctx),
            Some(false) => self.evaluate(ctx),
            None => {}
        }
    }

    /// Asks for the checkpoint set, unless that is being written or there, and for the part of it that a rank has; without a
    /// consensus there is nothing to save.
    fn save(&mut self, ctx: &mut Context<'_>) {
        let Some(held) = self.running.consensus else {
            self.stage = self.shut_down(ctx);
            return;
        };
        self.stage = Stage::Saving;
        if !self.running.is_at_root() {
            let text =
                format!("{} is lost with the last rank that held it: the controller has not got it", held.version);
            ctx.alert(Reason::new("consensus-lost", text));
            self.saved = Saved::Failed;
            self.stage = self.shut_down(ctx);
            return;
        }
        let saving = &self.running.saving;
        if saving.is_written(held.version) {
            self.saved = Saved::Written;
        } else if !saving.is_writing(held.version) {
            self.running.save(ctx, held.version, self.ending.reason().text);
        }
        self.running.roles.trigger(Role::Checkpoint, Trigger::End);
        self.save_part(ctx, held.version);
        self.go_on(ctx);
    }

    /// Asks the next candidate for its part of the checkpoint.
    fn save_part(&mut self, ctx: &mut Context<'_>, version: Version) {
        if self.running.give(ctx, Role::Checkpoint, version) == Given::NobodyLeft {
            ctx.alert(Reason::new("nobody-left", "no rank could do its part of the final checkpoint"));
        }
    }

    /// A checkpoint set is written, or not.
    pub(crate) fn saved(&mut self, ctx: &mut Context<'_>, version: Version, result: Result<String, String>) {
        self.running.saving.done(ctx, version, result);
        self.go_on(ctx);
    }

    /// The elected rank has saved its part of the checkpoint, or could not.
    pub(crate) fn part_saved(&mut self, ctx: &mut Context<'_>, answer: (Rank, u64), outcome: &Result<(), String>) {
        let done = self.running.part_saved(ctx, answer, outcome);
        if done == Some(false)
            && let Some(held) = self.running.consensus
        {
            self.save_part(ctx, held.version);
        }
        self.go_on(ctx);
    }

    /// Ends the run once nothing is being saved any more.
    fn go_on(&mut self, ctx: &mut Context<'_>) {
        let Some(held) = self.running.consensus.filter(|_| matches!(self.stage, Stage::Saving)) else { return };
        if self.running.saving.is_writing(held.version) || self.running.roles.hold().is_some() {
            return;
        }
        self.saved = if self.running.saving.is_written(held.version) { Saved::Written } else { Saved::Failed };
        self.stage = self.shut_down(ctx);
    }

    /// A rank makes progress. Until when it may stand still, where it is on duty.
    pub(crate) fn moved(&mut self, rank: Rank, now: Time) -> Option<Time> {
        self.running.roles.moved(rank, now)
    }

    fn last_order(&self) -> Control {
        match self.ending {
            Ending::Done => Control::Shutdown,
            Ending::Stopped(_) | Ending::Deserted { .. } => Control::ShutdownWithSave { why: self.ending.reason() },
        }
    }

    fn shut_down(&mut self, ctx: &mut Context<'_>) -> Stage {
        ctx.broadcast(self.last_order());
        let living: Vec<(Rank, bool)> =
            ctx.members.living().map(|member| (member.rank, member.state.is_in_run())).collect();
        for (rank, is_in_run) in living {
            if !is_in_run {
                // It was on its way in; its relay ends it.
                ctx.members.leave(rank, &Fate::Finished, ctx.now);
            } else if let Some(mut member) = ctx.members.get_mut(rank) {
                let leaving = State::Leaving { finished: matches!(member.state, State::Leaving { finished: true }) };
                match &mut member.state {
                    State::Detached { was, .. } => **was = leaving,
                    state => *state = leaving,
                }
            }
        }
        Stage::Ending { until: ctx.now.plus(ctx.deadlines.shutdown) }
    }

    /// What others must know of the run's commits.
    pub(crate) fn chronicle(&mut self) -> Option<&mut Chronicle> {
        self.running.chronicle.as_mut()
    }

    /// A rank says its last word.
    pub(crate) fn finished(&mut self, ctx: &mut Context<'_>, rank: Rank, digest: Option<(Version, u64)>) {
        self.running.last_word(ctx, rank, digest);
    }

    /// A rank is back from a lost link: it is told again what it may not have heard.
    pub(crate) fn reattached(&mut self, ctx: &mut Context<'_>, state: &RankState) {
        self.running.tell_missed(ctx, state);
        self.running.roles.again(ctx, state.rank);
        if matches!(self.stage, Stage::Ending { .. }) {
            ctx.tell(state.rank, self.last_order());
        }
    }

    /// Asks the next candidate where one is gone.
    pub(crate) fn give_up_lost(&mut self, ctx: &mut Context<'_>) {
        for role in self.running.roles.give_up_lost(ctx) {
            match (role, self.running.consensus) {
                (Role::Evaluation, _) => self.evaluate(ctx),
                (Role::Checkpoint, Some(held)) => self.save_part(ctx, held.version),
                (Role::Checkpoint, None) => {}
            }
        }
        self.go_on(ctx);
    }

    /// Ranks that are late, with their fate, once the end's own deadline is over.
    pub(crate) fn overdue(&mut self, ctx: &mut Context<'_>) -> Vec<(Rank, Fate)> {
        for (role, rank, schedule, still) in self.running.roles.overdue(ctx.now) {
            let error = format!("no answer within {still:?}");
            match role {
                Role::Evaluation => self.evaluated(ctx, (rank, schedule), &Err(error)),
                Role::Checkpoint => self.part_saved(ctx, (rank, schedule), &Err(error)),
            }
        }
        self.running.saving.overdue(ctx);
        self.go_on(ctx);
        match &self.stage {
            Stage::Ending { until } if ctx.now >= *until => {
                // Whose host is out of reach may not have heard of the end: it is told when it is back, if it comes in time.
                self.stage = Stage::Ending { until: ctx.now.plus(ctx.deadlines.shutdown) };
                let in_reach = ctx.members.living().filter(|m| !matches!(m.state, State::Detached { .. }));
                in_reach.map(|m| (m.rank, Fate::Overdue { within: ctx.deadlines.shutdown })).collect()
            }
            Stage::Evaluating | Stage::Saving | Stage::Ending { .. } => Vec::new(),
        }
    }

    /// When [`Finishing::overdue`] has something to say.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let end = match self.stage {
            Stage::Ending { until } => Some(until),
            Stage::Evaluating | Stage::Saving => None,
        };
        [end, self.running.roles.deadline(), self.running.saving.deadline()].into_iter().flatten().min()
    }

    /// The exit status with its reason, once everybody's end is confirmed.
    pub(crate) fn advance(&self, ctx: &Context<'_>) -> Option<(i32, Option<Reason>)> {
        if !matches!(self.stage, Stage::Ending { .. }) || ctx.members.anybody_lives() {
            return None;
        }
        let exit = self.exit(ctx);
        Some((exit, (exit != 0).then(|| self.reason(ctx))))
    }

    /// What is waited for.
    pub(crate) fn hold(&self, ctx: &Context<'_>) -> Option<Reason> {
        match &self.stage {
            Stage::Evaluating => self.running.roles.hold().as_ref().map(Reason::from),
            Stage::Saving => Some(Reason::new("saving", "waiting for the checkpoint")),
            Stage::Ending { .. } => {
                let late = ctx.members.living().map(|member| member.rank);
                Some(Reason::new("ending", "waiting for ranks to end").about(late))
            }
        }
    }

    /// Why the exit status is not 0.
    fn reason(&self, ctx: &Context<'_>) -> Reason {
        let ranks = |which: fn(&Member) -> bool| -> Vec<Rank> {
            ctx.members.iter().filter(|member| which(member)).map(|member| member.rank).collect()
        };
        let mut lost = ranks(|member| member.past.missing || member.is_lost());
        let back = ranks(|member| member.past.losses > 0 && !member.past.missing && !member.is_lost());
        let without = if lost.is_empty() { String::new() } else { format!(", without {}", shown(&lost)) };
        let again = if back.is_empty() { String::new() } else { format!(", lost and back again: {}", shown(&back)) };
        lost.extend(back);
        let unsaved = if self.saved == Saved::Failed { "; the checkpoint was not written" } else { "" };
        let why = self.ending.reason();
        Reason { text: format!("{}{without}{again}{unsaved}", why.text), ..why }.about(lost)
    }

    fn exit(&self, ctx: &Context<'_>) -> i32 {
        match self.ending {
            Ending::Done if self.saved != Saved::Written => 1,
            Ending::Done if ctx.members.any_loss() => 3,
            Ending::Done => 0,
            Ending::Stopped(_) if self.saved == Saved::Written => 4,
            Ending::Stopped(_) => 1,
            Ending::Deserted { brought_itself_down } if brought_itself_down || self.saved == Saved::Failed => 1,
            Ending::Deserted { .. } => 4,
        }
    }

    /// Whether the checkpoint set is written.
    pub(crate) fn is_saved(&self) -> bool {
        self.saved == Saved::Written
    }
}

impl Ending {
    fn reason(&self) -> Reason {
        match self {
            Ending::Done => Reason::new("done", "every epoch is done"),
            Ending::Stopped(why) => why.reason(),
            Ending::Deserted { .. } => Reason::new("deserted", "no rank is left"),
        }
    }
}
