//! What the coordinator is told and says, held against the accounts.

use super::fabric::Fabric;
use super::ledger::Over;
use super::violation::Rule;
use crate::shell::limits::PARTING;
use crate::{Input, Output};
use flodl_elche::Mode;
use flodl_wire::message::Control;
use flodl_wire::message::control::{RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::nccl::NcclAck;
use flodl_wire::message::record::{Body, EventKind, Reason, Role};
use flodl_wire::message::report::{RankState, Received, WindowReport};
use flodl_wire::message::{HostReport, Report};
use flodl_wire::{Epoch, HostId, Incarnation, NcclSession, Range, Rank, Round, SessionId, Time, Version, WindowId};
use std::collections::{BTreeMap, BTreeSet};

/// A position: its epoch, and where it is in that.
type At = (u64, u64);

/// Who holds a position. One that nobody holds is in no list.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Hold {
    Leased(Rank),
    Trained(Rank),
}

impl Hold {
    fn rank(self) -> Rank {
        match self {
            Hold::Leased(rank) | Hold::Trained(rank) => rank,
        }
    }
}

/// What was seen of the coordinator.
#[derive(Debug, Default)]
pub(crate) struct Auditor {
    /// Lives that the coordinator has declared dead, with its reason.
    dead: BTreeMap<Rank, (Incarnation, Time)>,
    /// Who was told that its life is over, since a controller has taken over.
    fenced: BTreeSet<Rank>,
    /// The newest life of each rank that the coordinator gave out.
    newest: BTreeMap<Rank, Incarnation>,
    window: Option<WindowId>,
    /// Where each window's positions count from.
    bases: BTreeMap<WindowId, Epoch>,
    holds: BTreeMap<At, Hold>,
    /// What each rank was given for the window that it is in, and where windows overlap for the next one.
    leases: BTreeMap<Rank, [Vec<At>; 2]>,
    quarantined: BTreeMap<Epoch, u64>,
    /// The open round's roster and the root's digest of its result.
    pub(crate) roster: Vec<(SessionId, Rank, Incarnation)>,
    pub(crate) digest: Option<u64>,
    /// Ranks average it among themselves, on that communicator last.
    over_nccl: bool,
    pub(crate) communicator: Option<NcclSession>,
    /// Ranks that have its result, and those that gave something to it.
    answered: BTreeSet<Rank>,
    gave: BTreeSet<Rank>,
    /// Those whose snapshot was not told of yet, with the size of the lease of the window that ends with it.
    unheard: BTreeMap<Rank, u64>,
    /// Who is in the open round, and was not let go since it began.
    in_round: BTreeSet<Rank>,
    /// The newest window that each rank was given, the one that it is in or was last, and the newest that it said is over.
    given: BTreeMap<Rank, WindowId>,
    begun: BTreeMap<Rank, WindowId>,
    over: BTreeMap<Rank, WindowId>,
    losses: u32,
    /// Lives that have said where they stand since the controller died last.
    back: BTreeSet<(Rank, Incarnation)>,
    detached: Detached,
    pub(crate) attendance: Attendance,
}

/// Ranks whose host's link is lost.
#[derive(Debug, Default)]
struct Detached {
    /// The host of each session that was ever open.
    hosts: BTreeMap<SessionId, HostId>,
    /// Until when the host of a lost session may come back, and its ranks with it.
    until: BTreeMap<SessionId, Time>,
    /// The session of each rank.
    sessions: BTreeMap<Rank, SessionId>,
    /// When each session was opened.
    opened: BTreeMap<SessionId, Time>,
}

impl Detached {
    fn opens(&mut self, session: SessionId, host: HostId, now: Time) {
        self.hosts.insert(session, host);
        self.opened.insert(session, now);
    }

    fn until(&self, rank: Rank) -> Option<Time> {
        self.until.get(self.sessions.get(&rank)?).copied()
    }
}

/// How many were there in the rounds that committed samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Attendance {
    pub(crate) rounds: u64,
    /// Processes that lived at the commit, and of them those on the roster and those with samples in it; over all rounds.
    pub(crate) alive: u64,
    pub(crate) participating: u64,
    pub(crate) contributing: u64,
    /// The smallest fraction of the living that contributed to a round.
    pub(crate) least: Option<f64>,
    pub(crate) samples: u64,
}

impl Auditor {
    /// What a rank would say that received the whole result.
    pub(crate) fn received(&self, digest: u64) -> Received {
        Received { digest, divergence: Some(0.0), pre_norm: 1.0, post_norm: 1.0 }
    }

    /// The controller has died: who comes back from here on comes back to another one.
    pub(crate) fn controller_died(&mut self) {
        self.back.clear();
    }

    /// The coordinator is told something.
    pub(crate) fn input(&mut self, fab: &mut Fabric, input: &Input) {
        match input {
            Input::Folded(folded) => self.digest = Some(folded.digest),
            Input::FromRank { session, rank, incarnation, report } => {
                self.talks(fab, *session, (*rank, *incarnation));
                self.said(fab, (*rank, *incarnation), report);
            }
            Input::FromHost { session, report: HostReport::RankState(state) } => self.restated(fab, *session, state),
            Input::HostConnected { session, host, .. } => {
                self.detached.opens(*session, *host, fab.now);
            }
            Input::HostResumed { session, host, .. } => {
                self.detached.opens(*session, *host, fab.now);
                let same_host = |lost: &SessionId| self.detached.hosts.get(lost) == Some(host);
                self.detached.until.retain(|lost, _| !same_host(lost));
            }
            Input::HostLost { session, .. } => {
                self.cut(fab, *session);
                let until = fab.now.plus(fab.options.work.patience);
                self.detached.until.insert(*session, until);
            }
            Input::FromHost { report: HostReport::RankNotStarted { rank, .. }, .. } => {
                fab.touched.insert(*rank);
            }
            _ => {}
        }
    }

    /// The ranks of a broken link come out of the open round. Where windows overlap they have nothing any more then.
    fn cut(&mut self, fab: &mut Fabric, session: SessionId) {
        // What ranks average among themselves goes through no link of theirs.
        if self.over_nccl {
            return;
        }
        let of = |(_, at): &(&Rank, &SessionId)| **at == session;
        let ranks: Vec<Rank> = self.detached.sessions.iter().filter(of).map(|(rank, _)| *rank).collect();
        for rank in ranks {
            if self.out_of_round(fab, rank) && Auditor::overlaps(fab) {
                self.release(rank);
            }
        }
    }

    /// What it was leased and has not told of goes back unheard. Whether it was in an open round.
    fn out_of_round(&mut self, fab: &mut Fabric, rank: Rank) -> bool {
        let was_in = self.in_round.remove(&rank);
        if let Some(&incarnation) = self.newest.get(&rank).filter(|_| was_in) {
            let unheard = if Auditor::overlaps(fab) {
                self.unheard.get(&rank).copied().unwrap_or(0)
            } else {
                self.holds.values().filter(|hold| **hold == Hold::Leased(rank)).count() as u64
            };
            fab.ledger.out_of_round((rank, incarnation), unheard);
        }
        was_in
    }

    /// What a rank said around the loss of its link counts as if it had said it now.
    fn restated(&mut self, fab: &Fabric, session: SessionId, state: &RankState) {
        self.detached.sessions.insert(state.rank, session);
        self.back.insert((state.rank, state.incarnation));
        let life = (state.rank, state.incarnation);
        for word in &state.words {
            match word {
                Report::WindowReport(report) => self.reported(fab, life, report),
                Report::SnapshotReady { .. } | Report::NcclAck(_) if self.over_nccl => self.said(fab, life, word),
                _ => {}
            }
        }
    }

    /// Whether that life is over, and when it ended.
    fn died(&self, (rank, incarnation): (Rank, Incarnation)) -> Option<Time> {
        self.dead.get(&rank).filter(|(dead, _)| *dead >= incarnation).map(|&(_, at)| at)
    }

    /// The dead fall silent: they are killed, or fenced once their host is back.
    fn talks(&self, fab: &mut Fabric, session: SessionId, life: (Rank, Incarnation)) {
        let Some(died) = self.died(life) else { return };
        let since = self.detached.opened.get(&session).map_or(died, |opened| died.max(*opened)).max(fab.healed);
        if fab.now > since.plus(fab.options.work.patience * 3).plus(PARTING) {
            let what = format!("{} ({}) has been dead since {died:?} and talks on", life.0, life.1);
            fab.ledger.broken(Rule::DeadPlan, what);
        }
    }

    fn overlaps(fab: &Fabric) -> bool {
        fab.options.work.mode == Mode::CpuAsync
    }

    fn said(&mut self, fab: &Fabric, life: (Rank, Incarnation), report: &Report) {
        match report {
            Report::WindowReport(report) => self.reported(fab, life, report),
            Report::SnapshotReady { ranges, epoch, .. } => self.snapshot(fab, life, (*epoch, ranges)),
            Report::SyncAck(ack) if ack.received().is_some_and(|received| Some(received.digest) == self.digest) => {
                self.answered.insert(life.0);
            }
            Report::NcclAck(NcclAck { session, .. }) if self.communicator == Some(*session) => {
                self.answered.insert(life.0);
            }
            _ => {}
        }
    }

    fn reported(&mut self, fab: &Fabric, life: (Rank, Incarnation), report: &WindowReport) {
        if self.died(life).is_some() {
            return;
        }
        self.over.insert(life.0, report.window);
        // Where windows overlap, the next snapshot says what was trained.
        if self.window != Some(report.window) || Auditor::overlaps(fab) {
            return;
        }
        let used = fab.ledger.positions(report.epoch, &report.used);
        self.end_lease(life.0, &used);
    }

    fn snapshot(&mut self, fab: &Fabric, life: (Rank, Incarnation), (base, ranges): (Epoch, &[Range])) {
        let rank = life.0;
        // What it says after its death, or of a round that goes on without it, is not heard.
        if self.died(life).is_some() || !self.in_round.contains(&rank) {
            return;
        }
        self.unheard.remove(&rank);
        self.begun.extend(self.given.get(&rank).map(|&window| (rank, window)));
        if !ranges.is_empty() {
            self.gave.insert(rank);
        }
        if Auditor::overlaps(fab) {
            let trained = fab.ledger.positions(base, ranges);
            self.end_lease(rank, &trained);
        }
    }

    /// A rank's window is over: this was trained of it, and the rest is free.
    fn end_lease(&mut self, rank: Rank, trained: &[At]) {
        for at in trained {
            if self.holds.get(at) == Some(&Hold::Leased(rank)) {
                self.holds.insert(*at, Hold::Trained(rank));
            }
        }
        let Some([this, next]) = self.leases.get_mut(&rank) else { return };
        for at in core::mem::replace(this, core::mem::take(next)) {
            if self.holds.get(&at) == Some(&Hold::Leased(rank)) {
                self.holds.remove(&at);
            }
        }
    }

    /// The coordinator wants something done.
    pub(crate) fn output(&mut self, fab: &mut Fabric, output: &Output) {
        match output {
            Output::ToHost { session, control: Control::Admit(admit) } => {
                self.detached.sessions.extend(admit.ids.iter().map(|&(rank, _)| (rank, *session)));
                self.newest.extend(admit.ids.iter().copied());
            }
            Output::ToHost { control: Control::Restart { rank, incarnation }, .. } => {
                self.newest.insert(*rank, *incarnation);
            }
            Output::ToRank { rank, incarnation, control, .. } => self.tells(fab, *rank, *incarnation, control),
            Output::Broadcast(control) => self.broadcast(fab, control),
            Output::Record(Body::Event(event)) => self.event(fab, &event.kind, event.reason.as_ref()),
            Output::End { exit } => self.end(fab, *exit),
            _ => {}
        }
    }

    fn tells(&mut self, fab: &mut Fabric, rank: Rank, incarnation: Incarnation, control: &Control) {
        let dead = self.died((rank, incarnation)).is_some();
        let (window, leases, begins_later) = match control {
            Control::Window(plan) if self.knows(rank, plan) => return self.gives_again(fab, rank, plan),
            Control::Window(plan) => {
                self.open_window(fab, plan);
                self.given.insert(rank, plan.window);
                (plan.window, &plan.leases, plan.overlap.is_some_and(|overlap| overlap.begins.is_some()))
            }
            Control::ExtendPartition { window, leases } => (*window, leases, false),
            Control::Fenced { incarnation: fenced } if !dead && *fenced == incarnation => {
                return fab.ledger.broken(Rule::Reattach, format!("{rank} ({incarnation}) lives and was fenced"));
            }
            Control::Fenced { .. } => {
                self.fenced.insert(rank);
                return;
            }
            Control::ControllerBack if dead => {
                return fab.ledger.broken(Rule::Reattach, format!("{rank} ({incarnation}) is dead and was taken back"));
            }
            Control::ExecuteEval { schedule } => return self.evaluates(fab, (rank, incarnation), *schedule),
            _ => return,
        };
        if dead {
            fab.ledger.broken(Rule::DeadPlan, format!("{rank} ({incarnation}) is dead and was given a plan"));
        }
        let base = self.bases.get(&window).copied().unwrap_or(Epoch(0));
        let positions = fab.ledger.positions(base, leases);
        self.leases.entry(rank).or_default()[usize::from(begins_later)].extend(&positions);
        if !begins_later {
            self.begun.insert(rank, window);
        }
        if let (Some(lease), false) = (self.unheard.get_mut(&rank), begins_later) {
            *lease += positions.len() as u64;
        }
        for at in positions {
            if fab.ledger.is_committed(at) {
                fab.ledger.broken(Rule::ExactlyOnce, format!("position {at:?} is committed and was leased to {rank}"));
            }
            if let Some(other) = self.holds.insert(at, Hold::Leased(rank)).map(Hold::rank) {
                fab.ledger.broken(Rule::Lease, format!("position {at:?} is {other}'s and was leased to {rank}"));
            }
        }
    }

    /// An order that was lost with a link: it may hold nothing but what its rank was given.
    fn gives_again(&self, fab: &mut Fabric, rank: Rank, plan: &WindowPlan) {
        let positions = fab.ledger.positions(plan.epoch, &plan.leases);
        let other = positions.into_iter().find(|at| self.holds.get(at) != Some(&Hold::Leased(rank)));
        if let Some(at) = other {
            fab.ledger.broken(Rule::Reattach, format!("position {at:?} was given to {rank} again and is not its"));
        }
    }

    /// Somebody is told to evaluate (or told again): one at a time, and nobody that is dead.
    fn evaluates(&mut self, fab: &mut Fabric, life: (Rank, Incarnation), schedule: u64) {
        if self.dead.get(&life.0).is_some_and(|(dead, _)| *dead >= life.1) {
            fab.ledger.broken(Rule::Duty, format!("{} is dead and was told to evaluate", life.0));
        }
        if fab.ledger.on_duty.get(&life) != Some(&schedule) {
            self.no_duties(fab, "another evaluation");
        }
        // Whose link broke is told again, though its answer may be on its way.
        if fab.ledger.did_duty.get(&life) != Some(&schedule) {
            fab.ledger.on_duty.insert(life, schedule);
        }
    }

    /// Whoever is told to do something for all is waited for, as long as it lives and can answer.
    fn no_duties(&self, fab: &mut Fabric, what: &str) {
        let dead = |life: &(Rank, Incarnation)| self.dead.get(&life.0).is_some_and(|(dead, _)| *dead >= life.1);
        fab.ledger.on_duty.retain(|life, _| !dead(life));
        let at_it = fab.ledger.on_duty.keys().map(|(rank, _)| *rank).find(|rank| !fab.touched.contains(rank));
        if let Some(rank) = at_it {
            fab.ledger.broken(Rule::Duty, format!("{what} begins while {rank} evaluates"));
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
        self.bases.insert(plan.window, plan.epoch);
        if !Auditor::overlaps(fab) {
            self.leases.clear();
            self.holds.clear();
        }
    }

    fn epoch_is_over(&mut self, fab: &mut Fabric, epoch: Epoch) {
        let (missing, aside) = (fab.ledger.missing(epoch), self.quarantined.remove(&epoch).unwrap_or(0));
        // Another controller may give those another try whose setting aside was not written down.
        let forgotten = fab.ledger.resumed && missing < aside;
        if missing != aside && !forgotten {
            let what = format!("{epoch} was left with {missing} samples missing and {aside} set aside");
            fab.ledger.broken(Rule::ExactlyOnce, what);
        }
        fab.ledger.close(epoch);
    }

    /// A round is over: what was trained for it is committed or has gone back, and who does not hold what it came to has
    /// nothing any more.
    fn round_done(&mut self, outcome: RoundOutcome) {
        self.holds.retain(|_, hold| matches!(hold, Hold::Leased(_)));
        let lost: Vec<Rank> = match outcome {
            RoundOutcome::Committed { .. } => {
                // Who was out of reach when it began is not even in it.
                let ranks = self.roster.iter().map(|(_, rank, _)| *rank).chain(self.leases.keys().copied());
                ranks.filter(|rank| !self.answered.contains(rank)).collect()
            }
            RoundOutcome::Nothing | RoundOutcome::Again => self.gave.iter().copied().collect(),
        };
        lost.into_iter().for_each(|rank| self.release(rank));
        self.answered.clear();
        self.gave.clear();
    }

    fn broadcast(&mut self, fab: &mut Fabric, control: &Control) {
        match control {
            Control::RequestParams { round, roster } => self.opened(fab, (*round, roster), Over::Folds),
            Control::PrepareSync { round, roster } => {
                self.opened(fab, (*round, roster), Over::Nccl { session: None, collected: BTreeMap::new() });
            }
            Control::SyncNow { round, session, .. } => {
                self.communicator = Some(*session);
                self.answered.clear();
                fab.ledger.issued(*round, *session);
            }
            Control::RoundDone { round, outcome, .. } => {
                fab.ledger.closed(*round, *outcome);
                self.unheard.clear();
                self.in_round.clear();
                self.round_done(*outcome);
            }
            Control::DeclareDead { rank, incarnation, .. } => {
                self.dead.entry(*rank).or_insert((*incarnation, fab.now)).0 = *incarnation;
            }
            _ => {}
        }
    }

    fn opened(&mut self, fab: &mut Fabric, (round, roster): (Round, &[RosterEntry]), over: Over) {
        self.no_duties(fab, "a round");
        for entry in roster {
            if self.died((entry.rank, entry.incarnation)).is_some() {
                fab.ledger.broken(Rule::DeadPlan, format!("{} is dead and in {round}", entry.rank));
            }
        }
        self.over_nccl = matches!(over, Over::Nccl { .. });
        self.communicator = None;
        self.roster = roster.iter().map(|entry| (entry.session, entry.rank, entry.incarnation)).collect();
        self.in_round = roster.iter().map(|entry| entry.rank).collect();
        let lease = |rank| self.leases.get(&rank).map_or(0, |[this, _]| this.len() as u64);
        self.unheard = self.in_round.iter().map(|&rank| (rank, lease(rank))).collect();
        let early = self.in_round.iter().copied().filter(|rank| self.is_in_window(*rank)).collect();
        fab.ledger.opened(round, roster, (early, over));
    }

    fn event(&mut self, fab: &mut Fabric, kind: &EventKind, reason: Option<&Reason>) {
        match kind {
            EventKind::RoundCommitted { committed, repeats, .. } => self.committed(fab, committed, *repeats),
            EventKind::Death { rank, incarnation } => {
                self.losses += 1;
                self.out_of_round(fab, *rank);
                fab.ledger.let_go.insert(*rank);
                self.dead.insert(*rank, (*incarnation, fab.now));
                // What it holds goes back; what is in a round is settled with it.
                self.release(*rank);
                let why = reason.map_or("no reason", |reason| reason.text.as_str());
                if let Some(until) = self.detached.until(*rank).filter(|until| fab.now < *until) {
                    let what = format!("{rank} is lost, and its host could have come back until {until:?}: {why}");
                    fab.ledger.broken(Rule::Reattach, what);
                }
                let accused = reason.is_some_and(|reason| reason.code == "protocol-breach");
                if !fab.touched.contains(rank) || (accused && !fab.forged.contains(rank)) {
                    fab.ledger.broken(Rule::Innocence, format!("{rank} is lost and nothing was done to it: {why}"));
                }
            }
            EventKind::EpochDone { epoch } => self.epoch_is_over(fab, *epoch),
            EventKind::RoleDone { role: Role::Evaluation, schedule, rank, done: true, .. }
                if fab.ledger.on_duty.values().any(|open| open == schedule) =>
            {
                fab.ledger.broken(Rule::Duty, format!("the evaluation of {rank} is over before its answer"));
            }
            EventKind::Resumed { version, .. } => self.resumes(fab, *version),
            EventKind::Quarantined { epoch, samples } => *self.quarantined.entry(*epoch).or_default() += samples,
            EventKind::RankLeft { rank } => {
                fab.ledger.let_go.insert(*rank);
            }
            EventKind::Alert if reason.is_some_and(|reason| reason.code == "unrepeatable") => {
                fab.ledger.unrepeatable = true;
            }
            // What such a rank trained goes back at once.
            EventKind::ReplicaDigest { rank, equal: false, .. } => self.release(*rank),
            _ => {}
        }
    }

    /// Another controller goes on.
    fn resumes(&mut self, fab: &mut Fabric, version: Option<Version>) {
        let back = core::mem::take(&mut self.back);
        fab.ledger.resumes(version, &back);
        // It waits for nobody that only the controller before it had told to evaluate.
        fab.ledger.on_duty.clear();
        self.newest.extend(back);
        // What only the controller before it knew is forgotten: nobody has heard of it. Whom it turns away it knows to be dead.
        let fenced = core::mem::take(&mut self.fenced);
        self.dead.retain(|rank, _| fenced.contains(rank));
        (self.window, self.losses) = (None, 0);
        self.leases.clear();
        self.holds.clear();
        self.unheard.clear();
        self.in_round.clear();
        // Numbers of windows that nobody has heard of are given again.
        self.given.clear();
        self.begun.clear();
    }

    fn committed(&mut self, fab: &mut Fabric, committed: &[(Rank, u64)], repeats: u64) {
        fab.ledger.claim(committed, repeats);
        if committed.is_empty() {
            return;
        }
        let alive = fab.seats.iter().filter(|seat| seat.alive).count() as u64;
        let contributing = committed.len() as u64;
        let fraction = contributing as f64 / alive.max(1) as f64;
        let Attendance { rounds, alive: all, participating, contributing: all_contributing, least, samples } =
            &mut self.attendance;
        *rounds += 1;
        *all += alive;
        *participating += self.roster.len() as u64;
        *all_contributing += contributing;
        *least = Some(least.map_or(fraction, |least| least.min(fraction)));
        *samples += committed.iter().map(|&(_, samples)| samples).sum::<u64>();
    }

    fn release(&mut self, rank: Rank) {
        self.holds.retain(|_, hold| hold.rank() != rank);
        self.leases.remove(&rank);
    }

    /// Whether a rank is in a window that it has not said to be over.
    fn is_in_window(&self, rank: Rank) -> bool {
        self.begun.get(&rank) > self.over.get(&rank)
    }

    /// Positions that a rank holds.
    pub(crate) fn held_by(&self, rank: Rank) -> u64 {
        self.holds.values().filter(|hold| hold.rank() == rank).count() as u64
    }

    /// Whether that order was given to its rank before.
    pub(crate) fn knows(&self, rank: Rank, plan: &WindowPlan) -> bool {
        self.given.get(&rank) == Some(&plan.window)
    }

    /// The newest life of a rank and the session that it is reached through.
    pub(crate) fn newest(&self, rank: Rank) -> Option<(SessionId, Incarnation)> {
        Some((*self.detached.sessions.get(&rank)?, *self.newest.get(&rank)?))
    }

    fn end(&mut self, fab: &mut Fabric, exit: i32) {
        let epochs = fab.options.work.epochs;
        if (exit == 0 || exit == 3) && fab.ledger.closed != epochs {
            let closed = fab.ledger.closed;
            fab.ledger.broken(Rule::Exit, format!("exit status {exit} with {closed} of {epochs} epochs closed"));
        }
        if exit == 0 && self.losses > 0 {
            fab.ledger.broken(Rule::Exit, format!("exit status 0 with {} ranks lost", self.losses));
        }
    }
}
