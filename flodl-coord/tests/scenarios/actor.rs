//! A rank of a scenario, as its host sees it.

use flodl_wire::message::control::{RoundOutcome, WindowPlan};
use flodl_wire::message::report::RankState;
use flodl_wire::message::{Control, Report};
use flodl_wire::{Incarnation, Range, Rank, Round};

/// A rank as its host sees it.
pub(crate) struct Actor {
    pub(crate) host: String,
    pub(crate) life: Incarnation,
    pub(crate) alive: bool,
    /// Its model is another one than the run's.
    pub(crate) other: bool,
    pub(crate) plan: Option<WindowPlan>,
    /// Trained since its last snapshot that was folded.
    pub(crate) used: Vec<Range>,
    pub(crate) batches: u32,
    pub(crate) step: u64,
    pub(crate) admitted: bool,
    pub(crate) round: Option<(Round, bool)>,
    /// What it said since its window began or its round ended.
    pub(crate) words: Vec<Report>,
    pub(crate) asked: Option<u64>,
}

impl Actor {
    pub(crate) fn new(host: String, life: Incarnation) -> Actor {
        Actor {
            host,
            life,
            alive: true,
            other: false,
            plan: None,
            used: Vec::new(),
            batches: 0,
            step: 0,
            admitted: false,
            round: None,
            words: Vec::new(),
            asked: None,
        }
    }

    pub(crate) fn hears(&mut self, control: &Control) {
        match control {
            Control::Admitted(_) => self.admitted = true,
            Control::Window(plan) => {
                self.plan = Some(plan.clone());
                self.words.clear();
            }
            Control::ExtendPartition { leases, .. } => {
                if let Some(plan) = &mut self.plan {
                    plan.leases.extend(leases);
                }
            }
            Control::RequestParams { round, .. } | Control::PrepareSync { round, .. } => {
                self.round = Some((*round, false));
            }
            // What it has trained is in the next round.
            Control::RoundDone { round, outcome: RoundOutcome::Again, .. } => self.round = Some((*round, true)),
            Control::RoundDone { round, .. } if self.round.is_some_and(|(open, _)| open == *round) => {
                self.round = Some((*round, true));
                (self.used, self.batches) = (Vec::new(), 0);
                self.words.clear();
            }
            Control::ExecuteEval { schedule } => self.asked = Some(*schedule),
            Control::Refused { .. } | Control::Fenced { .. } => self.alive = false,
            _ => {}
        }
    }
}

/// What a relay says of a rank when its link is there again.
pub(crate) fn state((&rank, actor): (&u32, &Actor)) -> RankState {
    RankState {
        rank: Rank(rank),
        incarnation: actor.life,
        window: actor.plan.as_ref().map(|plan| plan.window),
        round: actor.round.map(|(round, _)| round),
        round_done: actor.round.is_some_and(|(_, done)| done),
        admitted: actor.admitted,
        words: actor.words.clone(),
        version: None,
        plan: None,
        pace: None,
    }
}
