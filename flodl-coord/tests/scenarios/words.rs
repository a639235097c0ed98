//! How what a coordinator wants done reads in a scenario.

use flodl_coord::Output;
use flodl_wire::message::Control;
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome};
use flodl_wire::message::record::{Body, Event, EventKind};
use flodl_wire::{Incarnation, Range, Rank, SessionId};

/// The line of an output; `None` where it tells a reader nothing. `host` names the host of a session.
pub(crate) fn line(output: &Output, host: impl Fn(SessionId) -> String) -> Option<String> {
    match output {
        Output::ToHost { session, control } => Some(format!("{}: {}", host(*session), to_host(control)?)),
        Output::ToRank { rank, incarnation, control, .. } => {
            Some(format!("{}: {}", life(*rank, *incarnation), to_rank(control)?))
        }
        Output::Broadcast(control) => Some(format!("all: {}", to_all(control)?)),
        Output::Layout(_) | Output::Restore { .. } | Output::Journal(_) => None,
        Output::CloseHost { session } => Some(format!("{}: is closed", host(*session))),
        Output::Save(request) => Some(format!("save v{}: {}", request.version.0, request.why)),
        Output::Record(Body::Event(event)) => of_event(event),
        Output::Record(_) => None,
        Output::End { exit } => Some(format!("exit {exit}")),
    }
}

fn life(rank: Rank, incarnation: Incarnation) -> String {
    if incarnation.0 == 1 { rank.0.to_string() } else { format!("{}#{}", rank.0, incarnation.0) }
}

fn to_host(control: &Control) -> Option<String> {
    match control {
        Control::Admit(admit) => {
            let ids = admit.ids.iter().map(|&(rank, incarnation)| life(rank, incarnation));
            Some(format!("may start {}", list(ids)))
        }
        Control::Restart { rank, incarnation } => Some(format!("starts {}", life(*rank, *incarnation))),
        Control::Dismissed => Some("is not waited for any more".to_owned()),
        control => to_rank(control),
    }
}

fn to_rank(control: &Control) -> Option<String> {
    let text = match control {
        Control::Admitted(_) => "admitted".to_owned(),
        Control::Refused { why } => format!("refused: {}", why.text),
        Control::SendManifest => return None,
        Control::Window(plan) => {
            format!("window {} of epoch {}: {}", plan.window.0, plan.epoch.0, ranges(&plan.leases))
        }
        Control::ExtendPartition { window, leases } => format!("window {} goes on: {}", window.0, ranges(leases)),
        Control::ExecuteEval { .. } => "evaluates".to_owned(),
        Control::ExecuteCheckpoint { version, .. } => format!("saves its part of v{}", version.0),
        Control::Fenced { incarnation } => format!("fenced, life {}", incarnation.0),
        Control::RequestNewNcclId { session } => format!("makes an id for communicator {}", session.0),
        Control::ControllerBack => "its place is known".to_owned(),
        control => return to_all(control),
    };
    Some(text)
}

fn to_all(control: &Control) -> Option<String> {
    match control {
        Control::RequestParams { round, roster } => Some(format!("round {}: {}", round.0, parts(roster))),
        Control::PrepareSync { round, roster } => Some(format!("round {} over NCCL: {}", round.0, parts(roster))),
        Control::NewNcclSession(new) => {
            let members = new.members.iter().map(|&(rank, incarnation)| life(rank, incarnation));
            Some(format!("communicator {}: {}", new.session.0, list(members)))
        }
        Control::SyncNow { round, session, root } => {
            let what = root.map_or("average".to_owned(), |root| format!("take what place {root} has"));
            Some(format!("round {} on communicator {}: {what}", round.0, session.0))
        }
        Control::RoundDone { round, outcome, next } => {
            let outcome = match outcome {
                RoundOutcome::Committed { version } => format!("v{}", version.0),
                RoundOutcome::Nothing => "nothing".to_owned(),
                RoundOutcome::Again => "again".to_owned(),
            };
            let last = if *next == Next::Final { ", the last" } else { "" };
            Some(format!("round {} is {outcome}{last}", round.0))
        }
        Control::DeclareDead { rank, incarnation, .. } => Some(format!("{} is dead", life(*rank, *incarnation))),
        Control::Shutdown => Some("the end".to_owned()),
        Control::ShutdownWithSave { why } => Some(format!("the end: {}", why.text)),
        _ => None,
    }
}

fn parts(roster: &[RosterEntry]) -> String {
    let part = |entry: &RosterEntry| {
        let word = match entry.part {
            Part::Source => "=source",
            Part::Contribute => "",
            Part::Receive => "=receives",
        };
        format!("{}{word}", life(entry.rank, entry.incarnation))
    };
    list(roster.iter().map(part))
}

fn of_event(event: &Event) -> Option<String> {
    let why = event.reason.as_ref().map_or("", |reason| reason.text.as_str());
    let text = match &event.kind {
        EventKind::HostLost { host } => format!("host {} is lost: {why}", host.name()),
        EventKind::HostBack { host } => format!("host {} is back", host.name()),
        EventKind::Formed { ranks } => format!("the run is {}", list(ranks.iter().map(|rank| rank.0.to_string()))),
        EventKind::RoundCommitted { version, committed, repeats, partial, digests_equal, .. } => {
            let of = |&(rank, samples): &(Rank, u64)| format!("{}={samples}", rank.0);
            let mut text = format!("v{} has {}", version.0, list(committed.iter().map(of)));
            if *repeats > 0 {
                let partial = list(partial.iter().map(|rank| rank.0.to_string()));
                text.push_str(&format!(", {repeats} come again because a part of {partial} is in it"));
            }
            if !digests_equal {
                text.push_str(", not everybody holds it");
            }
            text
        }
        EventKind::RoundEmpty { .. } => "nothing was folded".to_owned(),
        EventKind::NcclReady { session, .. } => format!("communicator {} is ready", session.0),
        EventKind::NcclLost { session, .. } => format!("communicator {} is lost: {why}", session.0),
        EventKind::EpochDone { epoch } => format!("epoch {} is done", epoch.0),
        EventKind::Death { rank, incarnation } => format!("{} is lost: {why}", life(*rank, *incarnation)),
        EventKind::Stall => format!("stall: {why}"),
        EventKind::Alert => format!("alert: {why}"),
        EventKind::ReplicaDigest { rank, equal: false, .. } => format!("{} holds another replica", rank.0),
        EventKind::Evaluated { rank, result: None, .. } => format!("{} has not evaluated: {why}", rank.0),
        EventKind::Checkpoint { version, path: None } => format!("v{} is not saved: {why}", version.0),
        EventKind::Quarantined { samples, .. } => format!("{samples} samples are set aside"),
        EventKind::RankFinished { rank } => format!("{} has finished", rank.0),
        _ => return None,
    };
    Some(text)
}

fn ranges(ranges: &[Range]) -> String {
    list(ranges.iter().map(|range| format!("{}..{}", range.start, range.end)))
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "nothing".to_owned() } else { items.join(" ") }
}
