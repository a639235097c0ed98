//! Everything the summary and the progress line need, in memory that does not grow with the length of the run.

use crate::rank::{RankLog, State, why};
use crate::recent::Recent;
use core::time::Duration;
use flodl_wire::message::record::{Body, EpochMetrics, Event, EventKind, Meta, Node, RankWindow, Reason, Record};
use flodl_wire::message::report::Evaluation;
use flodl_wire::{Epoch, Rank, Round, Time, Version};
use std::collections::{BTreeMap, VecDeque};

/// The most deaths and the most refusals kept with their reasons; further ones are counted.
pub const LISTED: usize = 1000;

/// What is known of a run: give it every record in order, then ask.
///
/// Absent is not zero: what no record has told yet is `None`.
#[derive(Clone, Debug, Default)]
pub struct Store {
    meta: Option<Box<Meta>>,
    ranks: BTreeMap<Rank, RankLog>,
    formed: Option<usize>,
    rounds: Rounds,
    epochs: Epochs,
    clock: Clock,
    deaths: Losses,
    refused: Losses,
    outcome: Outcome,
    history: History,
}

/// What was found along the way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The epochs that are over, without their ranks; the last [`LISTED`].
    pub epochs: VecDeque<EpochMetrics>,
    /// The evaluations that found something; the last [`LISTED`].
    pub evaluations: VecDeque<Evaluated>,
}

/// An evaluation that found something.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Of which consensus, where that was told.
    pub version: Option<Version>,
    /// Where.
    pub rank: Rank,
    /// What.
    pub found: Evaluation,
}

/// Adds one, and forgets the oldest where there are too many.
fn remember<T>(list: &mut VecDeque<T>, one: T) {
    if list.len() >= LISTED {
        list.pop_front();
    }
    list.push_back(one);
}

/// The rounds so far, and what they committed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rounds {
    /// Rounds after round 0 that ended, with a result or without.
    pub ended: u64,
    /// The newest committed version.
    pub version: Option<Version>,
    /// Samples committed, each position of an epoch once.
    pub committed: u64,
    /// Samples given back after part of them had been folded.
    pub repeats: u64,
    /// Samples set aside for good.
    pub quarantined: u64,
    /// Whether all digests so far were equal, the consensus's at the ranks and the replicas' after applying it.
    pub digests_equal: Option<bool>,
    /// The newest round's loss in which somebody trained.
    pub loss: Option<f64>,
    /// The epoch of the newest window.
    pub epoch: Option<Epoch>,
}

/// What is known of the newest epoch, of the newest that is over, and of the model's newest evaluation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Epochs {
    /// The newest epoch that ranks trained in, with the sum of their losses and the samples behind it.
    losses: Option<(Epoch, f64, u64)>,
    /// When the open epoch's first window was planned.
    began: Option<Time>,
    /// The newest epoch that is over.
    pub(crate) done: Option<EpochEnd>,
    /// The newest evaluation's accuracy, of whatever version.
    pub(crate) accuracy: Option<f64>,
}

/// An epoch that is over.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct EpochEnd {
    pub(crate) epoch: Epoch,
    /// Mean of the training loss over all samples that were trained in it.
    pub(crate) loss: Option<f64>,
    pub(crate) took: Duration,
}

impl Epochs {
    fn window(&mut self, window: &RankWindow) {
        let known = self.losses.filter(|&(epoch, ..)| epoch == window.epoch);
        // A rank that is late with an earlier epoch's window does not bring that epoch back.
        if known.is_some() || self.losses.is_none_or(|(epoch, ..)| epoch < window.epoch) {
            let (_, sum, count) = known.unwrap_or((window.epoch, 0.0, 0));
            self.losses = Some((window.epoch, sum + window.loss_sum, count.saturating_add(window.loss_count)));
        }
    }

    fn end(&mut self, at: Time, epoch: Epoch) {
        let known = self.losses.filter(|&(known, _, count)| known == epoch && count > 0);
        let loss = known.map(|(_, sum, count)| sum / count as f64);
        let took = self.began.take().map_or(Duration::ZERO, |began| at.since(began));
        self.done = Some(EpochEnd { epoch, loss, took });
    }
}

/// The run's times, all by the coordinator's clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clock {
    /// Of the first `WindowPlanned`.
    pub(crate) start: Option<Time>,
    /// Of the last round's end.
    pub(crate) end: Option<Time>,
    /// Commits of the last seconds.
    pub(crate) recent: Recent,
}

/// Ranks that the run lost, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses {
    /// The first [`LISTED`], with why.
    pub listed: Vec<(Rank, String)>,
    /// How many more.
    pub more: u64,
}

impl Losses {
    fn add(&mut self, rank: Rank, why: String) {
        if self.listed.len() < LISTED {
            self.listed.push((rank, why));
        } else {
            self.more = self.more.saturating_add(1);
        }
    }
}

/// How it ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The evaluation of the newest version; an earlier version's is forgotten when a round commits.
    pub evaluation: Option<Evaluation>,
    /// The newest checkpoint set: its version and its directory.
    pub saved: Option<(Version, String)>,
    /// The newest version that could not be saved, and why.
    pub not_saved: Option<(Version, String)>,
    /// The exit status.
    pub exit: Option<i32>,
    /// Why the run ended, where there is more to say than the status does.
    pub why: Option<String>,
}

impl Store {
    /// A store of nothing.
    #[must_use]
    pub fn new() -> Store {
        Store::default()
    }

    /// Takes the next record.
    pub fn take(&mut self, record: &Record) {
        match &record.body {
            Body::Meta(meta) => self.meta = Some(meta.clone()),
            Body::Node(Node::Rank(window)) => {
                self.epochs.window(window);
                self.rank(window.rank).window(window);
            }
            Body::Node(Node::Root(round)) => self.rounds.loss = round.loss.or(self.rounds.loss),
            Body::Node(Node::Epoch(metrics)) => {
                let metrics = EpochMetrics { ranks: Vec::new(), ..EpochMetrics::clone(metrics) };
                remember(&mut self.history.epochs, metrics);
            }
            Body::Event(event) => self.event(record.at, event),
        }
    }

    fn event(&mut self, at: Time, event: &Event) {
        let reason = event.reason.as_ref();
        match &event.kind {
            EventKind::RankReady { .. }
            | EventKind::RankRefused { .. }
            | EventKind::RankFinished { .. }
            | EventKind::Death { .. }
            | EventKind::HostJoined { .. }
            | EventKind::RankJoined { .. }
            | EventKind::RankLeft { .. }
            | EventKind::Formed { .. } => self.membership(at, &event.kind, reason),
            EventKind::WindowPlanned { epoch, quotas, .. } => self.planned(at, *epoch, quotas),
            EventKind::RoundCommitted { round, version, committed, repeats, digests_equal, .. } => {
                self.rounds.version = self.rounds.version.max(Some(*version));
                self.digest(*digests_equal);
                self.commit(committed, *repeats);
                self.round_ended(at, *round);
                self.outcome.evaluation = None;
            }
            EventKind::Resumed { version, committed, repeats, .. } => {
                // What the controller before it recorded may lack its end, or be of an average that nobody applied.
                self.rounds.version = *version;
                self.rounds.committed = *committed;
                self.rounds.repeats = *repeats;
            }
            EventKind::RoundEmpty { round } => self.round_ended(at, *round),
            EventKind::Quarantined { samples, .. } => {
                self.rounds.quarantined = self.rounds.quarantined.saturating_add(*samples);
            }
            EventKind::ReplicaDigest { equal, .. } => self.digest(*equal),
            EventKind::Evaluated { result, rank, version } => {
                let (rank, version) = (*rank, *version);
                if let Some(found) = *result {
                    remember(&mut self.history.evaluations, Evaluated { version, rank, found });
                }
                self.outcome.evaluation = *result;
                self.epochs.accuracy = result.and_then(|found| found.accuracy).or(self.epochs.accuracy);
            }
            EventKind::EpochDone { epoch } => self.epochs.end(at, *epoch),
            EventKind::Checkpoint { version, path: Some(path) } => self.outcome.saved = Some((*version, path.clone())),
            EventKind::Checkpoint { version, path: None } => self.outcome.not_saved = Some((*version, why(reason))),
            EventKind::RunEnded { exit } => {
                self.outcome.exit = Some(*exit);
                self.outcome.why = reason.map(|reason| why(Some(reason)));
            }
            EventKind::HostLost { .. }
            | EventKind::HostBack { .. }
            | EventKind::PlanChanged
            | EventKind::Elected { .. }
            | EventKind::RoleOrdered { .. }
            | EventKind::RoleDone { .. }
            | EventKind::RoundRequested { .. }
            | EventKind::NcclReady { .. }
            | EventKind::NcclLost { .. }
            | EventKind::Stall
            | EventKind::Alert => {}
        }
    }

    fn membership(&mut self, at: Time, kind: &EventKind, reason: Option<&Reason>) {
        match kind {
            EventKind::HostJoined { host, ranks } => {
                ranks.iter().for_each(|&rank| self.rank(rank).host = Some(*host));
            }
            EventKind::RankReady { rank } => self.rank(*rank).state = State::Ready,
            EventKind::Formed { ranks } => {
                self.formed = Some(ranks.len());
                ranks.iter().for_each(|&rank| self.activate(rank, at));
            }
            EventKind::RankJoined { rank, .. } => self.rank(*rank).state = State::Ready,
            EventKind::RankLeft { rank } => self.rank(*rank).active.end(at),
            EventKind::RankRefused { rank } => {
                self.rank(*rank).state = State::Refused { why: why(reason) };
                self.refused.add(*rank, why(reason));
            }
            EventKind::RankFinished { rank } => {
                let rank = self.rank(*rank);
                rank.state = State::Finished;
                rank.active.end(at);
            }
            EventKind::Death { rank, .. } => {
                self.deaths.add(*rank, why(reason));
                if self.rank(*rank).state == State::Active {
                    self.clock.recent.changed();
                }
                let rank = self.rank(*rank);
                rank.state = State::Dead { why: why(reason) };
                rank.active.end(at);
            }
            _ => {}
        }
    }

    fn planned(&mut self, at: Time, epoch: Epoch, quotas: &[(Rank, u32)]) {
        self.rounds.epoch = Some(epoch);
        self.epochs.began = self.epochs.began.or(Some(at));
        if self.clock.start.is_none() {
            self.clock.start = Some(at);
            self.clock.recent.mark(at, self.rounds.committed);
        }
        quotas.iter().for_each(|&(rank, _)| self.activate(rank, at));
    }

    fn activate(&mut self, rank: Rank, at: Time) {
        let start = self.clock.start;
        let rank = self.rank(rank);
        rank.state = State::Active;
        rank.active.begin(at, start);
    }

    fn commit(&mut self, committed: &[(Rank, u64)], repeats: u64) {
        for &(rank, samples) in committed {
            let log = self.rank(rank);
            log.committed = log.committed.saturating_add(samples);
            self.rounds.committed = self.rounds.committed.saturating_add(samples);
        }
        self.rounds.repeats = self.rounds.repeats.saturating_add(repeats);
    }

    fn round_ended(&mut self, at: Time, round: Round) {
        if round >= Round(1) {
            self.rounds.ended = self.rounds.ended.saturating_add(1);
            self.clock.end = Some(at);
            self.clock.recent.mark(at, self.rounds.committed);
        }
    }

    fn digest(&mut self, equal: bool) {
        self.rounds.digests_equal = Some(equal && self.rounds.digests_equal.unwrap_or(true));
    }

    fn rank(&mut self, rank: Rank) -> &mut RankLog {
        self.ranks.entry(rank).or_default()
    }

    /// The run's settings, once told.
    #[must_use]
    pub fn meta(&self) -> Option<&Meta> {
        self.meta.as_deref()
    }

    /// Every rank that was heard of, by number.
    pub fn ranks(&self) -> impl Iterator<Item = (Rank, &RankLog)> {
        self.ranks.iter().map(|(&rank, log)| (rank, log))
    }

    /// How many ranks the run started with; `None` before it did.
    #[must_use]
    pub fn formed(&self) -> Option<usize> {
        self.formed
    }

    /// The rounds so far.
    #[must_use]
    pub fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// The ranks that died.
    #[must_use]
    pub fn deaths(&self) -> &Losses {
        &self.deaths
    }

    /// The ranks that were not taken into the run.
    #[must_use]
    pub fn refused(&self) -> &Losses {
        &self.refused
    }

    /// How it ended.
    #[must_use]
    pub fn outcome(&self) -> &Outcome {
        &self.outcome
    }

    /// What was found along the way.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    pub(crate) fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }
}
