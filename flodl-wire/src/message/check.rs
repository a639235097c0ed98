//! What a message's values must satisfy beyond their types. The codec asks on both sides.

use super::commit::{CommitHead, CommitRecord, LifeRecord};
use super::control::WindowPlan;
use super::join::{Emulation, Ready, RunConfig, ScalarSpec};
use super::nccl::NewSession;
use super::record::{EpochMetrics, Reason};
use super::report::{Evaluation, WindowReport};
use super::{Control, HostReport, Report};
use crate::codec::Flaw;
use crate::limits::{
    EPOCH_RANKS, LAST_LINES, MANIFEST_PART, RANK_WORDS, RANKS_MAX, SCALAR_NAME, SCALARS, SCHEDULER_STATE,
};
use crate::{Range, Rank};

/// Values that can contradict each other.
///
/// Figures that describe how training goes (losses, norms, divergence) may be anything: a NaN loss is for the coordinator
/// to judge, not a reason to close a connection.
pub trait Check {
    /// Whether they do.
    ///
    /// # Errors
    ///
    /// The first flaw found.
    fn check(&self) -> Result<(), Flaw>;
}

/// Whether a run can have that rank.
pub(crate) fn rank(rank: Rank) -> Result<(), Flaw> {
    if rank.0 < RANKS_MAX { Ok(()) } else { Err(Flaw::Rank { rank: rank.0 }) }
}

fn ranges(ranges: &[Range]) -> Result<(), Flaw> {
    match ranges.iter().find(|range| range.start > range.end) {
        None => Ok(()),
        Some(bad) => Err(Flaw::Range { start: bad.start, end: bad.end }),
    }
}

fn at_most(what: &'static str, len: usize, max: usize) -> Result<(), Flaw> {
    if len <= max { Ok(()) } else { Err(Flaw::TooMany { what, len, max }) }
}

fn number(what: &'static str, ok: bool) -> Result<(), Flaw> {
    if ok { Ok(()) } else { Err(Flaw::Number { what }) }
}

impl Check for Control {
    fn check(&self) -> Result<(), Flaw> {
        match self {
            Control::Admit(admit) => admit.ids.iter().try_for_each(|(id, _)| rank(*id)),
            Control::Admitted(config) => config.check(),
            Control::Refused { why } | Control::ShutdownWithSave { why } => why.check(),
            Control::Window(plan) => plan.check(),
            Control::ExtendPartition { leases, .. } => ranges(leases),
            Control::RequestParams { roster, .. } | Control::PrepareSync { roster, .. } => {
                in_rank_order(roster.iter().map(|entry| entry.rank))
            }
            Control::DeclareDead { rank: id, why, .. } => rank(*id).and_then(|()| why.check()),
            Control::EpochAggregated(metrics) => metrics.check(),
            Control::EvalBroadcast { rank: id, evaluation, .. } => rank(*id).and_then(|()| evaluation.check()),
            Control::SendManifest
            | Control::RoundDone { .. }
            | Control::ExecuteEval { .. }
            | Control::ExecuteCheckpoint { .. }
            | Control::Heartbeat
            | Control::Fenced { .. }
            | Control::Shutdown
            | Control::ControllerLost
            | Control::ControllerBack => Ok(()),
            Control::Restart { rank: id, .. } => rank(*id),
            Control::Commit(record) => record.check(),
            Control::CommitPart { part, parts, record } => commit_part((*part, *parts), record),
            Control::NewNcclSession(new) => new.check(),
            Control::SendConsensus { .. }
            | Control::Dismissed
            | Control::RequestNewNcclId { .. }
            | Control::SyncNow { .. } => Ok(()),
        }
    }
}

fn in_rank_order(ranks: impl Iterator<Item = Rank> + Clone) -> Result<(), Flaw> {
    ranks.clone().try_for_each(rank)?;
    match ranks.clone().zip(ranks.skip(1)).find(|(one, next)| one >= next) {
        None => Ok(()),
        Some((_, next)) => Err(Flaw::RankOrder { rank: next.0 }),
    }
}

impl Check for NewSession {
    fn check(&self) -> Result<(), Flaw> {
        in_rank_order(self.members.iter().map(|(member, _)| *member))
    }
}

fn commit_part((part, parts): (u32, u32), record: &CommitRecord) -> Result<(), Flaw> {
    number("the record's part number", part < parts)?;
    record.check()
}

impl Check for CommitRecord {
    fn check(&self) -> Result<(), Flaw> {
        self.head.check()?;
        self.lives.iter().try_for_each(Check::check)?;
        self.epochs.iter().try_for_each(|epoch| ranges(&epoch.committed).and_then(|()| ranges(&epoch.aside)))
    }
}

impl Check for CommitHead {
    fn check(&self) -> Result<(), Flaw> {
        at_most("the scheduler's memory", self.scheduler.len(), SCHEDULER_STATE)
    }
}

impl Check for LifeRecord {
    fn check(&self) -> Result<(), Flaw> {
        rank(self.rank)
    }
}

impl Check for RunConfig {
    fn check(&self) -> Result<(), Flaw> {
        self.emulation.map_or(Ok(()), |emulation| emulation.check())
    }
}

impl Check for Emulation {
    fn check(&self) -> Result<(), Flaw> {
        number("slowdown", self.slowdown.is_finite() && self.slowdown >= 1.0)
    }
}

impl Check for WindowPlan {
    fn check(&self) -> Result<(), Flaw> {
        ranges(&self.leases)?;
        number("quota_max", self.quota_max >= self.quota)
    }
}

impl Check for Reason {
    fn check(&self) -> Result<(), Flaw> {
        self.ranks.iter().try_for_each(|id| rank(*id))
    }
}

impl Check for Report {
    fn check(&self) -> Result<(), Flaw> {
        match self {
            Report::Manifest { part, parts, tensors } => {
                at_most("a manifest part", tensors.len(), MANIFEST_PART)?;
                number("the manifest's part number", part < parts)
            }
            Report::WindowReport(report) => report.check(),
            Report::SnapshotReady { ranges: trained, .. } => ranges(trained),
            Report::EvalResult { outcome: Ok(evaluation), .. } => evaluation.check(),
            Report::Ready(ready) => ready.check(),
            Report::Progress { .. }
            | Report::SyncAck(_)
            | Report::Heartbeat { .. }
            | Report::EvalResult { .. }
            | Report::Finished { .. }
            | Report::Failed { .. }
            | Report::Intent(_)
            | Report::CheckpointResult { .. }
            | Report::NewNcclIdGenerated { .. }
            | Report::NcclSession { .. }
            | Report::NcclAck(_) => Ok(()),
        }
    }
}

impl Check for Ready {
    fn check(&self) -> Result<(), Flaw> {
        at_most("the declared scalars", self.scalars.len(), SCALARS)?;
        self.scalars.iter().try_for_each(|ScalarSpec { name, .. }| scalar_name(name))
    }
}

fn scalar_name(name: &str) -> Result<(), Flaw> {
    at_most("a scalar's name", name.len(), SCALAR_NAME)
}

impl Check for WindowReport {
    fn check(&self) -> Result<(), Flaw> {
        ranges(&self.used)?;
        at_most("a window's scalars", self.scalars.len(), SCALARS)?;
        self.scalars.iter().try_for_each(|(name, _)| scalar_name(name))
    }
}

impl Check for EpochMetrics {
    fn check(&self) -> Result<(), Flaw> {
        at_most("an epoch's scalars", self.scalars.len(), SCALARS)?;
        self.scalars.iter().try_for_each(|(name, _)| scalar_name(name))?;
        at_most("an epoch's ranks", self.ranks.len(), EPOCH_RANKS)?;
        self.ranks.iter().try_for_each(|of| rank(of.rank))
    }
}

impl Check for Evaluation {
    fn check(&self) -> Result<(), Flaw> {
        number("accuracy", self.accuracy.is_none_or(|accuracy| (0.0..=1.0).contains(&accuracy)))
    }
}

impl Check for HostReport {
    fn check(&self) -> Result<(), Flaw> {
        match self {
            HostReport::RankExited { rank: id, last_lines, .. } => {
                rank(*id)?;
                at_most("the quoted output", last_lines.len(), LAST_LINES)
            }
            HostReport::RankUp { rank: id, .. }
            | HostReport::RankNotStarted { rank: id, .. }
            | HostReport::RankLost { rank: id, .. }
            | HostReport::WillRestart { rank: id, .. }
            | HostReport::Waiting { rank: id, .. } => rank(*id),
            HostReport::Heartbeat | HostReport::Leaving => Ok(()),
            HostReport::RankState(state) => {
                rank(state.rank)?;
                at_most("what a rank said", state.words.len(), RANK_WORDS)?;
                state.plan.as_deref().map_or(Ok(()), Check::check)?;
                state.words.iter().try_for_each(Check::check)
            }
            HostReport::CommitPart { part, parts, record } => commit_part((*part, *parts), record),
            HostReport::Back { .. } => Ok(()),
        }
    }
}
