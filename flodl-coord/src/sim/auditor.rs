//! What the coordinator is told and says, held against the accounts.

use super::fabric::Fabric;
use super::violation::Rule;
use crate::{Input, Output};
use flodl_wire::message::Control;
use flodl_wire::message::control::{Next, WindowPlan};
use flodl_wire::message::record::{Body, EventKind, Reason};
use flodl_wire::message::report::{Received, WindowReport};
use flodl_wire::message::{HostReport, Report};
use flodl_wire::{Epoch, Incarnation, Range, Rank, SessionId, WindowId};
use std::collections::BTreeMap;

/// Who holds a position of the open window.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Hold {
    Free,
    Leased(Rank),
    Trained(Rank),
}

/// What was seen of the coordinator.
#[derive(Debug, Default)]
pub(crate) struct Auditor {
    /// Lives that the coordinator has declared dead, with its reason.
    dead: BTreeMap<Rank, Incarnation>,
    window: Option<WindowId>,
    holds: Vec<Hold>,
    /// What each rank was given of it.
    leases: BTreeMap<Rank, Vec<Range>>,
    quarantined: u64,
    /// The open round's roster and the root's digest of its result.
    pub(crate) roster: Vec<(SessionId, Rank, Incarnation)>,
    pub(crate) digest: Option<u64>,
    losses: u32,
    finals: u32,
}

impl Auditor {
    /// What a rank would say that received the whole result.
    pub(crate) fn received(&self, digest: u64) -> Received {
        Received { digest, divergence: Some(0.0), pre_norm: 1.0, post_norm: 1.0 }
    }

    /// The coordinator is told something.
    pub(crate) fn input(&mut self, fab: &mut Fabric, input: &Input) {
        match input {
            Input::Folded(folded) => self.digest = Some(folded.digest),
            Input::FromRank { rank, report: Report::WindowReport(report), .. } => self.reported(fab, *rank, report),
            Input::FromHost { report: HostReport::RankNotStarted { rank, .. }, .. } => {
                fab.touched.insert(*rank);
            }
            _ => {}
        }
    }

    fn reported(&mut self, fab: &Fabric, rank: Rank, report: &WindowReport) {
        if self.window != Some(report.window) || self.dead.contains_key(&rank) {
            return;
        }
        let epoch = fab.ledger.epoch;
        for at in positions(&report.used) {
            if let Some(hold) = self.holds.get_mut(at as usize)
                && *hold == Hold::Leased(rank)
                && report.epoch == epoch
            {
                *hold = Hold::Trained(rank);
            }
        }
        for at in self.leases.remove(&rank).iter().flat_map(|leases| positions(leases)) {
            if let Some(hold) = self.holds.get_mut(at as usize).filter(|hold| **hold == Hold::Leased(rank)) {
                *hold = Hold::Free;
            }
        }
    }

    /// The coordinator wants something done.
    pub(crate) fn output(&mut self, fab: &mut Fabric, output: &Output) {
        match output {
            Output::ToRank { rank, incarnation, control, .. } => self.tells(fab, *rank, *incarnation, control),
            Output::Broadcast(control) => self.broadcast(fab, control),
            Output::Record(Body::Event(event)) => self.event(fab, &event.kind, event.reason.as_ref()),
            Output::End { exit } => self.end(fab, *exit),
            _ => {}
        }
    }

    fn tells(&mut self, fab: &mut Fabric, rank: Rank, incarnation: Incarnation, control: &Control) {
        let leases = match control {
            Control::Window(plan) => {
                self.open_window(fab, plan);
                &plan.leases
            }
            Control::ExtendPartition { leases, .. } => leases,
            _ => return,
        };
        if self.dead.get(&rank).is_some_and(|dead| *dead >= incarnation) {
            fab.ledger.broken(Rule::DeadPlan, format!("{rank} ({incarnation}) is dead and was given a plan"));
        }
        self.leases.entry(rank).or_default().extend(leases);
        for at in positions(leases) {
            if fab.ledger.is_committed(at) {
                fab.ledger.broken(Rule::ExactlyOnce, format!("position {at} is committed and was leased to {rank}"));
            }
            let Some(hold) = self.holds.get_mut(at as usize) else { continue };
            let other = match *hold {
                Hold::Free => None,
                Hold::Leased(other) | Hold::Trained(other) => Some(other),
            };
            *hold = Hold::Leased(rank);
            if let Some(other) = other.filter(|other| !self.dead.contains_key(other)) {
                fab.ledger.broken(Rule::Lease, format!("position {at} is {other}'s and was leased to {rank}"));
            }
        }
    }

    fn open_window(&mut self, fab: &mut Fabric, plan: &WindowPlan) {
        if self.window == Some(plan.window) {
            return;
        }
        if self.window.is_some_and(|window| window >= plan.window) {
            fab.ledger.broken(Rule::Growth, format!("{} was opened after {:?}", plan.window, self.window));
        }
        self.window = Some(plan.window);
        if plan.epoch != fab.ledger.epoch {
            self.epoch_is_over(fab);
            fab.ledger.next_epoch(plan.epoch);
        }
        self.leases.clear();
        self.holds.clear();
        self.holds.resize(fab.options.work.samples as usize, Hold::Free);
    }

    fn epoch_is_over(&mut self, fab: &mut Fabric) {
        let (missing, epoch) = (fab.ledger.missing(), fab.ledger.epoch);
        if missing != self.quarantined {
            let what = format!("{epoch} was left with {missing} samples missing and {} set aside", self.quarantined);
            fab.ledger.broken(Rule::ExactlyOnce, what);
        }
        self.quarantined = 0;
    }

    fn broadcast(&mut self, fab: &mut Fabric, control: &Control) {
        match control {
            Control::RequestParams { round, roster } => {
                for entry in roster {
                    if self.dead.get(&entry.rank).is_some_and(|dead| *dead >= entry.incarnation) {
                        fab.ledger.broken(Rule::DeadPlan, format!("{} is dead and in {round}", entry.rank));
                    }
                }
                self.roster = roster.iter().map(|entry| (entry.session, entry.rank, entry.incarnation)).collect();
                fab.ledger.opened(*round, roster);
            }
            Control::RoundDone { round, outcome, next } => {
                fab.ledger.closed(*round, *outcome);
                self.finals += u32::from(*next == Next::Final);
                // Everything trained for it is committed or has gone back.
                self.holds.iter_mut().for_each(|hold| *hold = Hold::Free);
            }
            Control::DeclareDead { rank, incarnation, .. } => {
                self.dead.insert(*rank, *incarnation);
            }
            _ => {}
        }
    }

    fn event(&mut self, fab: &mut Fabric, kind: &EventKind, reason: Option<&Reason>) {
        match kind {
            EventKind::RoundCommitted { committed, repeats, .. } => self.committed(fab, committed, *repeats),
            EventKind::Death { rank, incarnation } => {
                self.losses += 1;
                self.dead.insert(*rank, *incarnation);
                let why = reason.map_or("no reason", |reason| reason.text.as_str());
                let accused = reason.is_some_and(|reason| reason.code == "protocol-breach");
                if !fab.touched.contains(rank) || (accused && !fab.forged.contains(rank)) {
                    fab.ledger.broken(Rule::Innocence, format!("{rank} is lost and nothing was done to it: {why}"));
                }
            }
            EventKind::Quarantined { samples, .. } => self.quarantined += samples,
            // What such a rank trained goes back at once.
            EventKind::ReplicaDigest { rank, equal: false, .. } => self.release(*rank),
            _ => {}
        }
    }

    fn committed(&self, fab: &mut Fabric, committed: &[(Rank, u64)], repeats: u64) {
        fab.ledger.claim(committed, repeats);
    }

    fn release(&mut self, rank: Rank) {
        let its = |hold: &&mut Hold| matches!(**hold, Hold::Leased(of) | Hold::Trained(of) if of == rank);
        self.holds.iter_mut().filter(its).for_each(|hold| *hold = Hold::Free);
    }

    fn end(&mut self, fab: &mut Fabric, exit: i32) {
        if self.finals > 0 && exit == 0 {
            self.epoch_is_over(fab);
        }
        let last = Epoch(fab.options.work.epochs.saturating_sub(1));
        if (exit == 0 || exit == 3) && fab.ledger.epoch != last {
            fab.ledger.broken(Rule::Exit, format!("exit status {exit} in {}, the last is {last}", fab.ledger.epoch));
        }
        if exit == 0 && self.losses > 0 {
            fab.ledger.broken(Rule::Exit, format!("exit status 0 with {} ranks lost", self.losses));
        }
    }
}

fn positions(ranges: &[Range]) -> impl Iterator<Item = u64> + '_ {
    ranges.iter().flat_map(|range| range.start..range.end)
}
