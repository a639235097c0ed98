//! A sentence for each event that a person wants on the terminal.

use crate::rank::why;
use crate::text::{count, plain, ranks};
use flodl_wire::message::record::{Event, EventKind, Role};
use flodl_wire::{Incarnation, Version};

/// What `event` says to a person, on one line; `None` for those that come with every window.
#[must_use]
pub fn describe(event: &Event) -> Option<String> {
    let why = || plain(&why(event.reason.as_ref()));
    let because = || event.reason.as_ref().map(|_| format!(": {}", why())).unwrap_or_default();
    let told = match &event.kind {
        EventKind::HostJoined { host, ranks: its } => {
            format!("host {} joined with {}", plain(&host.name()), ranks(its))
        }
        EventKind::HostLost { host } => format!("host {} is lost{}", plain(&host.name()), because()),
        EventKind::RankRefused { rank } => format!("{rank} is refused: {}", why()),
        EventKind::Formed { ranks: all } => format!("the run starts with {}", ranks(all)),
        EventKind::RoundCommitted { round, digests_equal: false, .. } => {
            format!("{round}: the ranks received different results, their digests disagree{}", because())
        }
        EventKind::RoundCommitted { round, repeats, .. } if *repeats > 0 => {
            format!(
                "{round}: {} had been averaged in part and will be trained again{}",
                count(*repeats, "sample"),
                because()
            )
        }
        EventKind::RoundEmpty { round } => format!("{round} ended without a result{}", because()),
        EventKind::Death { rank, .. } => format!("{rank} died: {}", why()),
        EventKind::Stall => format!("nothing moves: {}", why()),
        EventKind::Alert => format!("attention: {}", why()),
        EventKind::ReplicaDigest { rank, version, equal: false } => {
            format!("{rank} differs from {version} after applying it{}", because())
        }
        EventKind::Evaluated { rank, result: Some(found), version } => {
            let accuracy = found.accuracy.map(|accuracy| format!("accuracy {accuracy:.4}, ")).unwrap_or_default();
            let of = version.map(|version| format!(" of {version}")).unwrap_or_default();
            format!(
                "evaluation{of} on {rank}: {accuracy}loss {:.4} over {}",
                found.loss,
                count(found.samples, "sample")
            )
        }
        // The reason names the rank itself.
        EventKind::Evaluated { result: None, .. } if event.reason.is_some() => format!("evaluation failed: {}", why()),
        EventKind::Evaluated { rank, result: None, .. } => format!("evaluation on {rank} failed"),
        EventKind::Checkpoint { version, path: Some(path) } => format!("saved {version} in {}", plain(path)),
        EventKind::Checkpoint { version, path: None } => format!("{version} was not saved: {}", why()),
        EventKind::Quarantined { samples, .. } => {
            format!("{} set aside and not trained{}", count(*samples, "sample"), because())
        }
        EventKind::RankJoined { rank, incarnation: Incarnation(1) } => format!("{rank} joined the run"),
        EventKind::RankJoined { rank, incarnation } => format!("{rank} is back in the run ({incarnation})"),
        EventKind::RankLeft { rank } => format!("{rank} leaves the run{}", because()),
        EventKind::Resumed { version, committed, .. } => resumed(*version, *committed),
        EventKind::NcclReady { .. } | EventKind::NcclLost { .. } => of_nccl(&event.kind, &because())?,
        EventKind::HostBack { host } => format!("host {} is back", plain(&host.name())),
        // The part of an evaluation that is told is what it found.
        EventKind::RoleDone { role: Role::Checkpoint, done: false, .. } => format!("checkpoint: {}", why()),
        EventKind::RunEnded { exit } if event.reason.is_some() => {
            format!("the run ends with exit status {exit}: {}", why())
        }
        EventKind::RankReady { .. }
        | EventKind::WindowPlanned { .. }
        | EventKind::PlanChanged
        | EventKind::Elected { .. }
        | EventKind::RoleOrdered { .. }
        | EventKind::RoleDone { .. }
        | EventKind::RoundRequested { .. }
        | EventKind::RoundCommitted { .. }
        | EventKind::EpochDone { .. }
        | EventKind::ReplicaDigest { .. }
        | EventKind::RankFinished { .. }
        | EventKind::RunEnded { .. } => return None,
    };
    Some(told)
}

fn resumed(version: Option<Version>, committed: u64) -> String {
    match version {
        Some(version) => {
            format!("another controller goes on with the run at {version}: {committed} samples are committed")
        }
        None => "another controller goes on with the run, which has not averaged yet".to_owned(),
    }
}

/// What is told of communicators.
fn of_nccl(kind: &EventKind, because: &str) -> Option<String> {
    match kind {
        EventKind::NcclReady { session, ranks: its } => Some(format!("{session} is ready, with {}", ranks(its))),
        EventKind::NcclLost { session, round } => {
            Some(format!("{round} is averaged again, {session} is lost{because}"))
        }
        _ => None,
    }
}
