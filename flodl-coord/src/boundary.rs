//! Between two rounds, when everybody active holds the consensus: evaluations and checkpoints that are due begin.

use crate::context::Context;
use crate::output::{Output, SaveRequest};
use crate::roles::{Given, Trigger, name};
use crate::running::{Held, Running};
use core::time::Duration;
use flodl_elche::Slot;
use flodl_wire::message::Control;
use flodl_wire::message::record::{EventKind, Reason, Role};
use flodl_wire::message::report::{Evaluation, Intent};
use flodl_wire::{Rank, Version};

impl Running {
    /// A rank's program asks for something.
    pub(crate) fn intent(&mut self, rank: Rank, intent: Intent) {
        let role = match intent {
            Intent::EvalNow => Role::Evaluation,
            Intent::CheckpointNow => Role::Checkpoint,
        };
        self.roles.trigger(role, Trigger::Asked { by: rank });
    }

    /// Whether something is due that a rank does, for which everybody must hold the consensus.
    pub(crate) fn needs_everybody(&self, ctx: &Context<'_>) -> bool {
        let is_due = |role| self.roles.due(role).is_some();
        let begins = ctx.config.scheduling.deterministic || !self.saving.is_busy();
        is_due(Role::Evaluation) || (is_due(Role::Checkpoint) && self.agreed.agreement.saves && begins)
    }

    /// Whether a round waits until an older checkpoint set is written, so that the next one begins at a place that no disk
    /// decides.
    pub(crate) fn waits_for_a_set(&self, ctx: &Context<'_>) -> bool {
        let is_due = self.agreed.agreement.saves && self.roles.due(Role::Checkpoint).is_some();
        ctx.config.scheduling.deterministic && is_due && self.saving.is_busy()
    }

    /// Begins what of a due checkpoint needs no rank.
    pub(crate) fn begin_sets(&mut self, ctx: &mut Context<'_>) {
        if let Some(Held { version, .. }) = self.consensus
            && let Some(trigger) = self.roles.due(Role::Checkpoint)
            && !self.agreed.agreement.saves
            && self.is_at_root()
        {
            self.begin_set(ctx, version, &trigger.to_string());
        }
    }

    /// Begins what is due, before a window is planned. Gives what it will probably cost whom.
    pub(crate) fn begin_duties(&mut self, ctx: &mut Context<'_>) -> Vec<(Slot, Duration)> {
        let Some(Held { version, .. }) = self.consensus else { return Vec::new() };
        if let Some(trigger) = self.roles.due(Role::Checkpoint).filter(|_| self.is_at_root()) {
            self.begin_set(ctx, version, &trigger.to_string());
        }
        for role in [Role::Evaluation, Role::Checkpoint] {
            if self.give(ctx, role, version) == Given::NobodyLeft {
                let text = format!("no rank could do its part of the {} of {version}; training goes on", name(role));
                ctx.alert(Reason::new("nobody-left", text));
            }
        }
        self.roles.costs()
    }

    /// Asks for the checkpoint set of the consensus, unless that is asked for or there already. While an older one is being
    /// written it stays due.
    fn begin_set(&mut self, ctx: &mut Context<'_>, version: Version, why: &str) {
        if self.saving.wants(version) {
            self.save(ctx, version, why.to_owned());
        }
        let has_set = self.saving.is_writing(version) || self.saving.is_written(version);
        if has_set && !self.agreed.agreement.saves {
            self.roles.take_due(Role::Checkpoint);
        }
    }

    /// Orders a role's part of its next candidate. The part of a checkpoint comes with its set.
    pub(crate) fn give(&mut self, ctx: &mut Context<'_>, role: Role, version: Version) -> Given {
        let has_set = self.saving.is_writing(version) || self.saving.is_written(version);
        if role == Role::Checkpoint && !(has_set && self.agreed.agreement.saves) {
            return Given::Nothing;
        }
        self.roles.order(ctx, role, (&*self.scheduler, version))
    }

    /// Asks for the checkpoint set of `version`, the consensus in force.
    pub(crate) fn save(&mut self, ctx: &mut Context<'_>, version: Version, why: String) {
        let (agreed, ledger) = (&self.agreed, &self.ledger);
        let (epoch, coverage) = ledger.open_epochs();
        let request = SaveRequest {
            version,
            tensors: agreed.tensors.clone(),
            epoch,
            epochs: agreed.epochs,
            global_step: ledger.global_step,
            seed: ctx.config.seed,
            dataset_len: agreed.dataset_len,
            epoch_len: agreed.passes.longest(),
            batch_size: agreed.batch_size,
            coverage,
            anchor: self.scheduler.anchor(),
            why,
        };
        ctx.out.push_back(Output::Save(Box::new(request)));
        self.saving.begin(ctx, version);
    }

    /// A rank has evaluated, or could not. Whether that was awaited, and went well.
    pub(crate) fn evaluated(
        &mut self,
        ctx: &mut Context<'_>,
        answer: (Rank, u64),
        outcome: &Result<Evaluation, String>,
    ) -> Option<bool> {
        let (rank, _) = answer;
        let error = outcome.as_ref().map(|_| ()).map_err(String::as_str);
        let version = self.roles.answered(ctx, Role::Evaluation, answer, error)?;
        let why = outcome
            .as_ref()
            .err()
            .map(|error| Reason::new("evaluation-failed", format!("{rank} could not evaluate: {error}")).about([rank]));
        let result = outcome.as_ref().ok().copied();
        ctx.event(EventKind::Evaluated { rank, result, version: Some(version) }, why);
        if let Some(evaluation) = result {
            ctx.broadcast(Control::EvalBroadcast { version, rank, evaluation });
        }
        self.look_at_pace(ctx, rank);
        Some(result.is_some())
    }

    /// A rank has saved its part of a checkpoint, or could not.
    pub(crate) fn part_saved(
        &mut self,
        ctx: &mut Context<'_>,
        answer: (Rank, u64),
        outcome: &Result<(), String>,
    ) -> Option<bool> {
        let error = outcome.as_ref().map(|_| ()).map_err(String::as_str);
        self.roles.answered(ctx, Role::Checkpoint, answer, error)?;
        self.look_at_pace(ctx, answer.0);
        Some(outcome.is_ok())
    }

    /// A rank has done a duty: its window begins, unless it has another one.
    fn look_at_pace(&self, ctx: &mut Context<'_>, rank: Rank) {
        let from = self.roles.busy_until(rank).unwrap_or(ctx.now);
        if let Some(mut member) = ctx.members.get_mut(rank)
            && let Some(pace) = member.pace_mut()
        {
            pace.stepped(from);
        }
    }
}
