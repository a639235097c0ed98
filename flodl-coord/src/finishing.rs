//! After the final consensus: one evaluation, one checkpoint, and everybody's confirmed end.

use crate::Fate;
use crate::context::Context;
use crate::gate::shown;
use crate::id;
use crate::members::{Member, State};
use crate::output::{Output, SaveRequest};
use crate::running::{Running, Stopping};
use flodl_wire::message::Control;
use flodl_wire::message::record::{EventKind, Reason};
use flodl_wire::message::report::Evaluation;
use flodl_wire::{Rank, Time, Version};
use std::collections::BTreeSet;

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
    Evaluating { rank: Rank, schedule: u64, until: Time, tried: BTreeSet<Rank> },
    Saving { until: Time },
    Ending { until: Time },
}

impl Finishing {
    /// Goes on from the final commit (or from the loss of the last rank).
    pub(crate) fn start(ctx: &mut Context<'_>, running: Running, ending: Ending) -> Finishing {
        let mut finishing = Finishing { running, ending, stage: Stage::Saving { until: ctx.now }, saved: Saved::Not };
        finishing.stage = match finishing.ending {
            Ending::Deserted { .. } => finishing.save(ctx),
            Ending::Done | Ending::Stopped(_) => finishing.evaluate(ctx, BTreeSet::new()),
        };
        finishing
    }

    /// Asks the next candidate for the evaluation: the fastest first, then by rank. Goes on to saving where none is left.
    fn evaluate(&mut self, ctx: &mut Context<'_>, mut tried: BTreeSet<Rank>) -> Stage {
        let fastest = self.running.scheduler.fastest().map(id::rank);
        let able = |rank: &Rank| ctx.members.get(*rank).is_some_and(|m| m.is_active()) && !tried.contains(rank);
        let elected = fastest.filter(able).or_else(|| ctx.members.active().map(|m| m.rank).find(able));
        let Some(rank) = elected else {
            let text = "no rank could evaluate the final consensus";
            ctx.alert(Reason::new("not-evaluated", text));
            return self.save(ctx);
        };
        let schedule = tried.len() as u64;
        tried.insert(rank);
        ctx.tell(rank, Control::ExecuteEval { schedule });
        Stage::Evaluating { rank, schedule, until: ctx.now.plus(ctx.deadlines.callback), tried }
    }

    /// The elected rank has evaluated, or could not.
    pub(crate) fn evaluated(
        &mut self,
        ctx: &mut Context<'_>,
        from: Rank,
        schedule: u64,
        outcome: Result<Evaluation, String>,
    ) {
        let Stage::Evaluating { rank, schedule: asked, tried, .. } = &self.stage else { return };
        if *rank != from || *asked != schedule {
            return;
        }
        let tried = tried.clone();
        self.stage = match outcome {
            Ok(result) => {
                ctx.event(EventKind::Evaluated { rank: from, result: Some(result) }, None);
                self.save(ctx)
            }
            Err(error) => {
                let why = Reason::new("evaluation-failed", format!("{from} could not evaluate: {error}")).about([from]);
                ctx.event(EventKind::Evaluated { rank: from, result: None }, Some(why));
                self.evaluate(ctx, tried)
            }
        };
    }

    /// Asks for the checkpoint set; without a consensus there is nothing to save.
    fn save(&mut self, ctx: &mut Context<'_>) -> Stage {
        let Some(held) = self.running.consensus else { return self.shut_down(ctx) };
        let (agreed, ledger) = (&self.running.agreed, &self.running.ledger);
        let (epoch, coverage) = ledger.open_epochs();
        let request = SaveRequest {
            version: held.version,
            tensors: agreed.tensors.clone(),
            epoch,
            epochs: agreed.epochs,
            global_step: ledger.global_step,
            seed: ctx.config.seed,
            dataset_len: agreed.dataset_len,
            epoch_len: agreed.epoch_len,
            batch_size: agreed.batch_size,
            coverage,
            anchor: self.running.scheduler.anchor(),
            why: self.ending.reason().text,
        };
        ctx.out.push_back(Output::Save(Box::new(request)));
        Stage::Saving { until: ctx.now.plus(ctx.deadlines.callback) }
    }

    /// The checkpoint set is written, or not.
    pub(crate) fn saved(&mut self, ctx: &mut Context<'_>, version: Version, result: Result<String, String>) {
        if !matches!(self.stage, Stage::Saving { .. }) {
            return;
        }
        self.saved = if result.is_ok() { Saved::Written } else { Saved::Failed };
        let (path, why) = match result {
            Ok(path) => (Some(path), None),
            Err(error) => (None, Some(Reason::new("not-saved", format!("the checkpoint was not written: {error}")))),
        };
        ctx.event(EventKind::Checkpoint { version, path }, why);
        self.stage = self.shut_down(ctx);
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

    /// A rank says its last word.
    pub(crate) fn finished(&mut self, ctx: &mut Context<'_>, rank: Rank, digest: Option<(Version, u64)>) {
        self.running.last_word(ctx, rank, digest);
    }

    /// A rank is back from a lost link: it is told again what it may not have heard.
    pub(crate) fn reattached(&mut self, ctx: &mut Context<'_>, back: Rank) {
        match &self.stage {
            Stage::Evaluating { rank, schedule, .. } if *rank == back => {
                ctx.tell(back, Control::ExecuteEval { schedule: *schedule });
            }
            Stage::Ending { .. } => ctx.tell(back, self.last_order()),
            Stage::Evaluating { .. } | Stage::Saving { .. } => {}
        }
    }

    /// A rank's life is over.
    pub(crate) fn lose(&mut self, ctx: &mut Context<'_>, lost: Rank) {
        if let Stage::Evaluating { rank, tried, .. } = &self.stage
            && *rank == lost
        {
            let tried = tried.clone();
            self.stage = self.evaluate(ctx, tried);
        }
    }

    /// Ranks that are late, with their fate, once the end's own deadline is over.
    pub(crate) fn overdue(&mut self, ctx: &mut Context<'_>) -> Vec<(Rank, Fate)> {
        match &self.stage {
            Stage::Evaluating { rank, schedule, until, .. } if ctx.now >= *until => {
                let (from, schedule) = (*rank, *schedule);
                let within = ctx.deadlines.callback;
                self.evaluated(ctx, from, schedule, Err(format!("no answer within {within:?}")));
                Vec::new()
            }
            Stage::Saving { until } if ctx.now >= *until => {
                let version = self.running.consensus.map_or(Version(0), |held| held.version);
                self.saved(ctx, version, Err(format!("not done within {:?}", ctx.deadlines.callback)));
                Vec::new()
            }
            Stage::Ending { until } if ctx.now >= *until => {
                // Whose host is out of reach may not have heard of the end: it is told when it is back, if it comes in time.
                self.stage = Stage::Ending { until: ctx.now.plus(ctx.deadlines.shutdown) };
                let in_reach = ctx.members.living().filter(|m| !matches!(m.state, State::Detached { .. }));
                in_reach.map(|m| (m.rank, Fate::Overdue { within: ctx.deadlines.shutdown })).collect()
            }
            Stage::Evaluating { .. } | Stage::Saving { .. } | Stage::Ending { .. } => Vec::new(),
        }
    }

    /// When [`Finishing::overdue`] has something to say.
    pub(crate) fn deadline(&self) -> Time {
        match self.stage {
            Stage::Evaluating { until, .. } | Stage::Saving { until } | Stage::Ending { until } => until,
        }
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
            Stage::Evaluating { rank, .. } => {
                Some(Reason::new("evaluating", format!("waiting for the evaluation of {rank}")).about([*rank]))
            }
            Stage::Saving { .. } => Some(Reason::new("saving", "waiting for the checkpoint")),
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
