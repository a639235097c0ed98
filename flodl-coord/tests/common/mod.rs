//! A world in virtual time: the coordinator, ranks and hosts that do as they are told, a root that folds, and faults at
//! any moment. One queue of events, one seeded generator; equal scenarios give equal runs.

#![allow(dead_code, reason = "each test program uses its part of the world")]

pub(crate) mod oracle;
pub(crate) mod overlap;
pub(crate) mod puppet;
pub(crate) mod root;
pub(crate) mod script;

use flodl_coord::{Config, Coordinator, Duties, Input, MaxFailure, Membership, Output, Scheduling, Slowing};
use flodl_elche::Mode;
use flodl_wire::message::report::ExitStatus;
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{HostId, Incarnation, Rank, Round, RunId, SessionId, Time};
use oracle::{Oracle, Outcome};
use puppet::Puppet;
use root::Open;
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const LIFE: Incarnation = Incarnation(1);
pub(crate) const DIGEST: u64 = 0xd16e;
pub(crate) const MS: u64 = 1_000_000;

/// Time passes up to `to`, and the coordinator is called whenever it has asked for that.
pub(crate) fn pass(coordinator: &mut Coordinator, to: Time) -> Vec<Output> {
    let mut outputs = Vec::new();
    while let Some(due) = coordinator.next_deadline().filter(|due| *due <= to) {
        coordinator.tick(due);
        outputs.extend(std::iter::from_fn(|| coordinator.poll()));
    }
    outputs
}

/// What a test wants to happen.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) mode: Mode,
    pub(crate) epochs: u64,
    pub(crate) batch_size: u32,
    pub(crate) samples: u64,
    /// Time of a batch, per rank.
    pub(crate) batch_ms: Vec<u64>,
    /// Ranks that have measured a step before they are ready.
    pub(crate) warm: Vec<u32>,
    /// Hosts that the ranks are spread over, in order.
    pub(crate) hosts: u32,
    pub(crate) faults: Vec<Fault>,
    pub(crate) stops_at_ms: Vec<u64>,
    pub(crate) odds: Odds,
    pub(crate) save_fails: bool,
    pub(crate) max_failure: MaxFailure,
    /// How often a host starts each of its ranks again.
    pub(crate) restarts: u32,
    /// Hosts that come later: when, with how many ranks.
    pub(crate) late: Vec<(u64, u32)>,
    /// Hosts, by a rank of theirs, that leave by plan then.
    pub(crate) leaves: Vec<(u64, u32)>,
    pub(crate) seed: u64,
}

/// Something that happens to a rank.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) at_ms: u64,
    pub(crate) rank: u32,
    pub(crate) kind: Kind,
    /// How much of a contribution that is on its way is folded: 0 nothing, 1 a part, 2 all of it.
    pub(crate) folded: u8,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its process ends by this signal.
    Signal(i32),
    /// Its connection is gone; the exit status never comes.
    Lost,
    /// Its connection is gone, then its process's exit by this signal is told.
    LostThenSignal(i32),
    /// It says that it cannot go on, then ends with status 1.
    Fails,
    /// Nothing comes from it for so long, then it goes on.
    Silent(u64),
    /// The link to its host is gone.
    HostLost,
    /// Nothing comes from its host any more.
    HostSilent,
    /// It gives signs of life and does nothing more.
    Hangs,
}

/// How often the living misbehave, in percent of the occasions.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Odds {
    /// A rank does not get the whole result.
    pub(crate) incomplete: u8,
    /// A rank gets another result than the root sent.
    pub(crate) digest: u8,
    /// A replica is not what it should be.
    pub(crate) replica: u8,
    /// A contribution is not folded, or only in part, though its rank lives (it was not finite).
    pub(crate) left_out: u8,
    /// An evaluation fails.
    pub(crate) evaluation: u8,
    /// Messages take up to so many milliseconds.
    pub(crate) jitter_ms: u8,
}

/// What the queue holds.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// For the coordinator.
    Input(Input),
    /// A rank's contribution is at the root.
    Data {
        rank: Rank,
        round: Round,
    },
    Strike(Fault),
    WakesUp(Rank),
    /// A host comes with so many ranks.
    Comes(u32),
    /// The host of that rank leaves by plan.
    Leaves(Rank),
    /// That life's process has started.
    Begins(SessionId, Rank, Incarnation),
}

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) coordinator: Coordinator,
    pub(crate) now: Time,
    pub(crate) queue: BTreeMap<(Time, u64), Event>,
    posted: u64,
    dice: u64,
    pub(crate) puppets: Vec<Puppet>,
    pub(crate) open: Option<Open>,
    pub(crate) oracle: Oracle,
    silent_hosts: Vec<SessionId>,
    sessions: u64,
}

pub(crate) fn scenario(batch_ms: &[u64]) -> Scenario {
    Scenario {
        mode: Mode::CpuCadence,
        epochs: 3,
        batch_size: 64,
        samples: 8000,
        batch_ms: batch_ms.to_vec(),
        warm: Vec::new(),
        hosts: 1,
        faults: Vec::new(),
        stops_at_ms: Vec::new(),
        odds: Odds::default(),
        save_fails: false,
        max_failure: MaxFailure::None,
        restarts: 0,
        late: Vec::new(),
        leaves: Vec::new(),
        seed: 1,
    }
}

pub(crate) fn config(scenario: &Scenario) -> Config {
    Config {
        run_id: RunId([1; 16]),
        world_size: scenario.batch_ms.len() as u32,
        min_ranks: 1,
        mode: scenario.mode,
        epochs: Some(scenario.epochs),
        epoch_splits: 1,
        batch_size: Some(scenario.batch_size),
        seed: 0,
        patience: Duration::from_secs(10),
        slow: Slowing::default(),
        membership: Membership { max_failure: scenario.max_failure, ..Membership::default() },
        scheduling: Scheduling::default(),
        duties: Duties::default(),
    }
}

impl World {
    pub(crate) fn new(scenario: Scenario) -> World {
        let coordinator = Coordinator::new(config(&scenario), Time::ZERO).expect("a valid configuration");
        let ranks = scenario.batch_ms.len() as u32;
        let hosts = scenario.hosts.clamp(1, ranks);
        let puppets = (0..ranks).map(|rank| Puppet::new(SessionId(u64::from(rank * hosts / ranks) + 1))).collect();
        World {
            dice: scenario.seed | 1,
            scenario,
            coordinator,
            now: Time::ZERO,
            queue: BTreeMap::new(),
            posted: 0,
            puppets,
            open: None,
            oracle: Oracle::default(),
            silent_hosts: Vec::new(),
            sessions: u64::from(hosts),
        }
    }

    pub(crate) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.puppets.len() as u32).map(Rank)
    }

    pub(crate) fn puppet(&mut self, rank: Rank) -> &mut Puppet {
        &mut self.puppets[rank.0 as usize]
    }

    /// A number below `n`.
    pub(crate) fn roll(&mut self, n: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) % n.max(1)
    }

    pub(crate) fn happens(&mut self, percent: u8) -> bool {
        percent > 0 && self.roll(100) < u64::from(percent)
    }

    /// A message's way: a millisecond, or more and in any order among senders.
    pub(crate) fn way(&mut self) -> u64 {
        MS + self.roll(u64::from(self.scenario.odds.jitter_ms) * MS + 1)
    }

    pub(crate) fn post(&mut self, after_ns: u64, event: Event) {
        self.posted += 1;
        self.queue.insert((Time(self.now.0 + after_ns), self.posted), event);
    }

    /// What a rank says arrives in the order in which it says it.
    pub(crate) fn say(&mut self, after_ns: u64, rank: Rank, report: Report) {
        let now = self.now.0;
        let puppet = self.puppet(rank);
        let at = (now + after_ns).max(puppet.said.0);
        puppet.said = Time(at);
        let session = puppet.session;
        let incarnation = self.puppet(rank).life;
        self.post(at - now, Event::Input(Input::FromRank { session, rank, incarnation, report }));
    }

    pub(crate) fn of_host(&mut self, after_ns: u64, rank: Rank, report: HostReport) {
        let session = self.puppet(rank).session;
        self.post(after_ns, Event::Input(Input::FromHost { session, report }));
    }

    pub(crate) fn exits(&mut self, after_ns: u64, rank: Rank, status: ExitStatus) {
        let incarnation = self.puppet(rank).life;
        let report = HostReport::RankExited { rank, incarnation, status, last_lines: String::new() };
        self.of_host(after_ns, rank, report);
    }

    /// The whole run.
    pub(crate) fn run(mut self) -> Outcome {
        self.begin();
        for _ in 0..200_000 {
            if self.oracle.outcome.exit.is_some() {
                self.oracle.outcome.ended = self.now;
                return self.oracle.outcome;
            }
            self.step();
        }
        panic!(
            "the run does not end: {:?} at {:?}: {:?}",
            self.oracle.outcome.exit, self.now, self.oracle.outcome.sentences
        );
    }

    fn begin(&mut self) {
        let mut hosts: BTreeMap<SessionId, u32> = BTreeMap::new();
        for puppet in &self.puppets {
            *hosts.entry(puppet.session).or_default() += 1;
        }
        for (session, rank_count) in hosts {
            let host = HostId::from_name(&format!("host{}", session.0)).expect("a name");
            self.post(0, Event::Input(Input::HostConnected { session, host, rank_count }));
        }
        for rank in self.ranks() {
            let (session, way) = (self.puppet(rank).session, self.way());
            self.begins(way, session, (rank, LIFE));
        }
        for (at_ms, count) in self.scenario.late.clone() {
            self.post(at_ms * MS, Event::Comes(count));
        }
        for (at_ms, rank) in self.scenario.leaves.clone() {
            self.post(at_ms * MS, Event::Leaves(Rank(rank)));
        }
        for fault in self.scenario.faults.clone() {
            self.post(fault.at_ms * MS, Event::Strike(fault.clone()));
        }
        for at_ms in self.scenario.stops_at_ms.clone() {
            self.post(at_ms * MS, Event::Input(Input::Stop));
        }
    }

    /// A life begins: its host says whether it would start the rank again, and the rank is ready.
    fn begins(&mut self, after_ns: u64, session: SessionId, (rank, incarnation): (Rank, Incarnation)) {
        if incarnation.0 <= self.scenario.restarts {
            let report = HostReport::WillRestart { rank, incarnation };
            self.post(after_ns, Event::Input(Input::FromHost { session, report }));
        }
        let Scenario { samples, warm, batch_ms, .. } = &self.scenario;
        let batch = batch_ms.get(rank.0 as usize).copied().map(Duration::from_millis);
        let ready = puppet::ready(*samples, batch.filter(|_| warm.contains(&rank.0)));
        self.say(after_ns, rank, ready);
    }

    /// A host may start these: lives that the world does not know yet begin.
    fn admits(&mut self, session: SessionId, ids: &[(Rank, Incarnation)]) {
        for &(rank, incarnation) in ids {
            let known = self.puppets.get(rank.0 as usize).is_some_and(|puppet| puppet.life == incarnation);
            if !known {
                self.post(5 * MS, Event::Begins(session, rank, incarnation));
            }
        }
    }

    fn born(&mut self, session: SessionId, rank: Rank, incarnation: Incarnation) {
        let at = rank.0 as usize;
        while self.puppets.len() <= at {
            self.puppets.push(Puppet::new(session));
            self.scenario.batch_ms.push(10);
        }
        self.puppets[at] = Puppet::new(session);
        self.puppets[at].life = incarnation;
        let way = self.way();
        self.begins(way, session, (rank, incarnation));
    }

    fn comes(&mut self, rank_count: u32) {
        self.sessions += 1;
        let session = SessionId(self.sessions);
        let host = HostId::from_name(&format!("late{}", session.0)).expect("a name");
        self.coordinator.handle(Input::HostConnected { session, host, rank_count }, self.now);
    }

    fn step(&mut self) {
        let next = self.queue.keys().next().map(|key| key.0);
        let tick = self.coordinator.next_deadline().expect("a run that goes on has a deadline");
        if let Some(at) = next.filter(|at| *at <= tick) {
            let (_, event) = self.queue.pop_first().expect("an event");
            self.now = at;
            self.happen(event);
        } else {
            self.now = self.now.max(tick);
            self.keep_alive();
            self.coordinator.tick(self.now);
        }
        self.drain();
    }

    /// The drain invariant: every output is taken after each input.
    fn drain(&mut self) {
        while let Some(output) = self.coordinator.poll() {
            self.obey(output);
        }
    }

    fn keep_alive(&mut self) {
        for rank in self.ranks() {
            let (session, speaks) = (self.puppet(rank).session, self.puppet(rank).speaks());
            if self.silent_hosts.contains(&session) {
                continue;
            }
            let report = HostReport::Heartbeat;
            self.coordinator.handle(Input::FromHost { session, report }, self.now);
            if speaks {
                let report = Report::Heartbeat { step: 0 };
                let incarnation = self.puppet(rank).life;
                let input = Input::FromRank { session, rank, incarnation, report };
                self.coordinator.handle(input, self.now);
            }
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Input(input) => {
                if self.comes_through(&input) {
                    self.coordinator.handle(input, self.now);
                }
            }
            Event::Data { rank, round } => self.data(rank, round),
            Event::Strike(fault) => self.strike(&fault),
            Event::Comes(count) => self.comes(count),
            Event::Leaves(rank) => {
                let session = self.puppet(rank).session;
                if self.puppet(rank).alive && !self.silent_hosts.contains(&session) {
                    let report = HostReport::Leaving;
                    self.coordinator.handle(Input::FromHost { session, report }, self.now);
                }
            }
            Event::Begins(session, rank, incarnation) => self.born(session, rank, incarnation),
            Event::WakesUp(rank) => {
                let held = std::mem::take(&mut self.puppet(rank).held);
                self.puppet(rank).silent = false;
                for input in held {
                    self.happen(Event::Input(input));
                    self.drain();
                }
            }
        }
    }

    /// Whether an input still comes to pass: the dead say nothing, the silent later.
    fn comes_through(&mut self, input: &Input) -> bool {
        match input {
            Input::FromRank { session, rank, incarnation, report } => {
                let cut = self.silent_hosts.contains(session);
                let puppet = self.puppet(*rank);
                if puppet.life != *incarnation {
                    return false;
                }
                let heard = puppet.speaks() && !puppet.hangs && !cut;
                if let Report::WindowReport(report) = report
                    && puppet.alive
                {
                    puppet.keep(report);
                    puppet.unheard &= !heard;
                }
                if matches!(report, Report::SnapshotReady { .. }) && puppet.alive {
                    puppet.ahead.unheard &= !heard;
                }
                if puppet.silent {
                    puppet.held.push(input.clone());
                }
                heard
            }
            Input::FromHost { session, .. } => !self.silent_hosts.contains(session),
            Input::Folded(folded) => self.open.as_ref().is_some_and(|open| open.round == folded.round),
            _ => true,
        }
    }

    fn strike(&mut self, fault: &Fault) {
        let rank = Rank(fault.rank);
        if !self.puppet(rank).alive {
            return;
        }
        let session = self.puppet(rank).session;
        match fault.kind {
            Kind::Signal(signal) => self.exits(0, rank, ExitStatus::Signal(signal)),
            Kind::Lost | Kind::LostThenSignal(_) => {
                let error = "end of file".to_owned();
                let incarnation = self.puppet(rank).life;
                self.of_host(0, rank, HostReport::RankLost { rank, incarnation, error });
                if let Kind::LostThenSignal(signal) = fault.kind {
                    self.exits(20 * MS, rank, ExitStatus::Signal(signal));
                }
            }
            Kind::Fails => {
                let report = Report::Failed { error: "the loss is not a number".to_owned() };
                let incarnation = self.puppet(rank).life;
                self.coordinator.handle(Input::FromRank { session, rank, incarnation, report }, self.now);
                self.exits(20 * MS, rank, ExitStatus::Code(1));
            }
            Kind::Silent(for_ms) => {
                self.puppet(rank).silent = true;
                self.post(for_ms * MS, Event::WakesUp(rank));
                return;
            }
            // A run waits for processes that start for as long as a person lets it.
            Kind::Hangs if self.puppet(rank).alive && !self.puppet(rank).admitted => {
                return self.post(10 * MS, Event::Strike(fault.clone()));
            }
            Kind::Hangs => {
                self.puppet(rank).hangs = true;
                return;
            }
            Kind::HostLost => {
                let error = "connection reset".to_owned();
                self.post(0, Event::Input(Input::HostLost { session, error }));
            }
            Kind::HostSilent => self.silent_hosts.push(session),
        }
        let all = matches!(fault.kind, Kind::HostLost | Kind::HostSilent);
        for other in self.ranks() {
            if other == rank || (all && self.puppet(other).session == session) {
                self.puppet(other).alive = false;
                self.cut_off(other, fault.folded);
            }
        }
    }

    fn obey(&mut self, output: Output) {
        match output {
            Output::ToRank { rank, incarnation, control, .. } => {
                if self.puppet(rank).life == incarnation {
                    self.rank(rank, control);
                }
            }
            Output::Broadcast(control) => {
                self.root(&control);
                for rank in self.ranks() {
                    self.rank(rank, control.clone());
                }
            }
            Output::Save(request) => {
                self.oracle.outcome.saved = Some(request.version);
                let result =
                    if self.scenario.save_fails { Err("disk full".to_owned()) } else { Ok("checkpoints/v1".into()) };
                self.post(MS, Event::Input(Input::Saved { version: request.version, result }));
            }
            Output::Record(flodl_wire::message::record::Body::Event(event)) => {
                self.oracle.note(event.kind, event.reason);
            }
            Output::ToHost { session, control: Control::Admit(admit) } => self.admits(session, &admit.ids),
            Output::ToHost { session, control: Control::Restart { rank, incarnation } } => {
                self.puppet(rank).alive = false;
                self.cut_off(rank, 0);
                self.post(20 * MS, Event::Begins(session, rank, incarnation));
            }
            Output::Record(_)
            | Output::ToHost { .. }
            | Output::Layout(_)
            | Output::CloseHost { .. }
            | Output::Restore { .. }
            | Output::Journal(_) => {}
            Output::End { exit } => self.oracle.outcome.exit = Some(exit),
        }
    }

    /// What a rank hears: nothing where it is dead.
    fn rank(&mut self, rank: Rank, control: Control) {
        if self.puppet(rank).alive {
            self.hears(rank, control);
        }
    }
}
