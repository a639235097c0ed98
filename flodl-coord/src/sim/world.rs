//! The whole system in one place: every process with its production core, and what happens to them in which order.

use super::class::Class;
use super::controller::Controller;
use super::disk::Disk;
use super::fabric::{Event, Fabric, Vital};
use super::faults::Faults;
use super::host::Host;
use super::mutant::Mutant;
use super::net::{Arrived, ConnId, Lane, Node};
use super::options::{Options, Request};
use super::rng::Rng;
use super::seat::Seat;
use super::succession::Succession;
use super::violation::{Rule, Violation};
use crate::Input;
use crate::shell::limits::CONTROL_QUEUE;
use flodl_relay::limits::DIAL_PAUSE;
use flodl_relay::relay;
use flodl_wire::message::report::ExitStatus;
use flodl_wire::{Incarnation, Rank, SessionId, Time};
use std::rc::Rc;

/// Events after which a run that has not ended never will, beside those of its ranks.
const EVENTS: u64 = 500_000;
/// What the lives of a rank wait for one another, at most.
const FLAPPING_NS: f64 = 60e9;
/// For each rank so many more.
const EVENTS_A_RANK: u64 = 20_000;

/// A simulated system.
pub(crate) struct World {
    pub(crate) fab: Fabric,
    pub(crate) controller: Controller,
    /// The relay of each host, while there is one.
    pub(crate) hosts: Vec<Option<Host>>,
    /// Relays that each host has had.
    relays: Vec<u32>,
    pub(crate) seats: Vec<Option<Seat>>,
    pub(crate) faults: Faults,
    pub(crate) disk: Disk,
    pub(crate) succession: Succession,
    events_max: u64,
    /// Nobody checks the seals of frames (a mutant).
    trusting: bool,
}

impl World {
    /// The world of a request.
    pub(crate) fn new(request: Request) -> Result<World, crate::ConfigError> {
        let mut rng = Rng::new(request.seed ^ 0x666c_6f64_6c00_0000);
        let (options, rng) = Options::draw(request, &mut rng).timed(rng);
        World::of(options, rng)
    }

    /// The world of these options.
    pub(crate) fn of(options: Options, mut rng: Rng) -> Result<World, crate::ConfigError> {
        let options = Rc::new(options);
        let mut fab = Fabric::new(Rc::clone(&options), &mut rng);
        let faults = Faults::draw(&fab, &mut rng);
        for (index, strike) in faults.strikes.iter().enumerate() {
            fab.post(strike.at, Event::Strike(index));
        }
        for host in 0..options.hosts.len() as u32 {
            let dials = rng.below(20_000_000);
            fab.after(dials, Event::Dial(host));
        }
        // Counts that no speed decides make everybody wait for the slowest, and processes that wait give signs of life.
        let waits = if options.scheduling.deterministic { 4 } else { 1 };
        Ok(World {
            controller: Controller::new(&fab)?,
            hosts: options.hosts.iter().map(|_| None).collect(),
            relays: vec![0; options.hosts.len()],
            seats: Vec::new(),
            faults,
            succession: Succession::default(),
            disk: Disk::new(rng.fork(), fab.off(Mutant::SyncBeforeRename)),
            trusting: fab.off(Mutant::ExactSequence) || fab.off(Mutant::FrameSeal),
            events_max: EVENTS + EVENTS_A_RANK * u64::from(options.ranks()) * waits,
            fab,
        })
    }

    /// Runs until everything has ended, or a rule is broken.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let limit = self.limit();
        while self.controller.exit.is_none() && (self.fab.controller.alive || self.succession.due) {
            let until = Time(self.fab.healed.0.max(self.last_strike().0) + limit);
            self.step(until, "the run does not end")?;
        }
        // What the end asks for, and what the end of a controller makes everybody do.
        self.controller_ends();
        let patience = self.fab.options.work.patience.as_nanos() as u64;
        let until = Time(self.fab.now.max(self.fab.healed).0 + 6 * patience + 10_000_000_000);
        while self.somebody_lives() {
            self.step(until, "processes outlive the run")?;
        }
        self.check_disk();
        self.check_queues();
        self.fab.ledger.violation.take().map_or(Ok(()), Err)
    }

    /// Whether what waited for slow or stalled links stayed within what a shell lets wait.
    fn check_queues(&mut self) {
        let deepest = self.fab.net.deepest(Lane::Control);
        if deepest > CONTROL_QUEUE + 1 {
            self.fab.ledger.broken(Rule::Bounds, format!("{deepest} control frames waited for one connection"));
        }
    }

    /// Runs until that time, or until a rule is broken.
    pub(crate) fn run_until(&mut self, end: Time) -> Result<(), Violation> {
        while let Some(event) = self.fab.next(end) {
            self.dispatch(event);
            if let Some(violation) = self.fab.ledger.violation.take() {
                return Err(violation);
            }
        }
        Ok(())
    }

    fn last_strike(&self) -> Time {
        self.faults.strikes.last().map_or(Time::ZERO, |strike| strike.at)
    }

    /// How long everything may take once nothing is out of order any more: all of the work by the slowest rank alone, and
    /// every deadline in a row a few times.
    fn limit(&self) -> u64 {
        let options = &self.fab.options;
        let slowest = options.speeds.iter().map(|speed| speed.batch_ns).fold(0.0, f64::max);
        let work = &options.work;
        let batches = work.epochs * work.samples.div_ceil(u64::from(work.batch_size));
        let patience = work.patience.as_nanos() as f64;
        // Each evaluation that hangs is given up after thirty times the patience.
        let hanging = if options.has(Class::DutyHang) { 40.0 * f64::from(options.strikes) } else { 0.0 };
        (slowest * batches as f64 * 4.0 + patience * (100.0 + hanging) + options.expected_ns() * 10.0 + FLAPPING_NS)
            as u64
    }

    fn step(&mut self, until: Time, what: &str) -> Result<(), Violation> {
        match self.fab.next(until) {
            Some(event) if self.fab.events < self.events_max => self.dispatch(event),
            _ => {
                let rule = if self.controller.exit.is_some() { Rule::Orphans } else { Rule::Liveness };
                let living = self.living();
                self.fab.ledger.broken(rule, format!("{what}: {living} and nothing is out of order any more"));
            }
        }
        self.fab.ledger.violation.take().map_or(Ok(()), Err)
    }

    fn living(&self) -> String {
        let seats = self.fab.seats.iter().filter(|seat| seat.alive).count();
        let hosts = self.fab.hosts.iter().filter(|host| host.alive).count();
        format!("{seats} ranks and {hosts} hosts live")
    }

    fn somebody_lives(&self) -> bool {
        let seats = self.fab.seats.iter().any(|seat| seat.alive);
        seats || self.hosts.iter().zip(&self.fab.hosts).any(|(host, vital)| host.is_some() && vital.alive)
    }

    fn dispatch(&mut self, event: Event) {
        if let Event::Wake(node) = event
            && !self.fab.wakes(node)
        {
            return;
        }
        let (node, event) = match event {
            Event::Arrive(arrival) => match self.fab.net.arrive(arrival, self.fab.now, self.trusting) {
                Arrived::Lost => return,
                Arrived::Later(at) => return self.fab.post(at, Event::Arrive(arrival)),
                Arrived::Packet(node, packet) => (node, Event::Packet(node, arrival.conn, packet)),
            },
            Event::Wake(node) | Event::Packet(node, ..) => (node, event),
            Event::Beat(seat) | Event::Library(seat, _) => (Node::Seat(seat), event),
            Event::Agent { host, .. } => (Node::Host(host), event),
            Event::Told(generation, _) => match self.controller_of(generation) {
                Some(node) => (node, event),
                None => return,
            },
            Event::Part(session) => (self.owner_of(session), event),
            Event::Start { host, relay, life } => return self.start(host, relay, life),
            Event::Kill(Node::Seat(seat)) => return self.kill_seat(seat, ExitStatus::Signal(9)),
            Event::Kill(node) => return self.kill(node),
            Event::Strike(index) => return self.strike(index),
            Event::Resume(node) => return self.resume(node),
            Event::Dial(host) => return self.dial(host),
            Event::Redial { host, relay, first } => return self.redial(host, relay, first),
            Event::Succeed => return self.succeed(),
            Event::Return => return self.comes_back(),
            Event::PaperIsThere => return self.controller.paper().full.set(false),
        };
        self.deliver(node, event);
    }

    /// Gives a process an event, unless it is dead or stands still.
    fn deliver(&mut self, node: Node, event: Event) {
        let vital = self.fab.vital(node);
        if !vital.alive {
            return;
        }
        if vital.paused {
            return vital.backlog.push(event);
        }
        if !vital.burn() {
            match node {
                Node::Controller => self.controller_event(event),
                Node::Former => self.former_event(event),
                Node::Host(host) => self.host_event(host, event),
                Node::Seat(seat) => self.seat_event(seat, event),
            }
        }
        if self.fab.vital(node).blown {
            match node {
                Node::Seat(seat) => self.kill_seat(seat, ExitStatus::Signal(9)),
                node => self.kill(node),
            }
        }
    }

    fn controller_event(&mut self, event: Event) {
        self.controller.event(&mut self.fab, event);
        self.save_what_is_asked();
    }

    pub(crate) fn save_what_is_asked(&mut self) {
        while let Some(request) = self.controller.saves.pop_front() {
            self.save(&request);
        }
    }

    fn host_event(&mut self, index: u32, event: Event) {
        let Some(host) = &mut self.hosts[index as usize] else { return };
        let fab = &mut self.fab;
        match event {
            Event::Packet(_, conn, packet) => host.arrive(fab, conn, packet),
            Event::Agent { relay, input, .. } => host.told(fab, relay, *input),
            _ => host.wake(fab),
        }
        if host.ended {
            self.host_ends(index);
        }
    }

    fn seat_event(&mut self, index: u32, event: Event) {
        let Some(seat) = &mut self.seats[index as usize] else { return };
        let fab = &mut self.fab;
        match event {
            Event::Packet(_, conn, packet) => seat.arrive(fab, conn, packet),
            Event::Beat(_) => seat.beat(fab),
            Event::Library(_, came) => seat.library(fab, *came),
            _ => seat.wake(fab),
        }
        if let Some(code) = seat.status() {
            let end = format!("{:?}", seat.end);
            fab.say(|| format!("seat {index} ends: {end}"));
            self.kill_seat(index, ExitStatus::Code(code));
        }
    }

    // Processes begin and end.

    fn dial(&mut self, host: u32) {
        if self.succession.due {
            return self.fab.after(DIAL_PAUSE.as_nanos() as u64, Event::Dial(host));
        }
        if self.hosts[host as usize].is_some() || !self.fab.controller.alive || self.controller.exit.is_some() {
            return;
        }
        let conns = self.connect(host, Node::Controller);
        self.relays[host as usize] += 1;
        self.fab.hosts[host as usize] = Vital::new();
        let relay = Host::new(&mut self.fab, host, self.relays[host as usize], conns);
        let generation = self.controller.generation();
        self.hosts[host as usize] = Some(relay.under(generation));
        self.controller.connected(&mut self.fab, host, conns);
    }

    /// Two connections between a host and the controller.
    pub(crate) fn connect(&mut self, host: u32, upper: Node) -> (ConnId, ConnId) {
        let wide = self.fab.options.wide;
        let node = Node::Host(host);
        let control = self.fab.net.open(node, upper, Lane::Control, wide[0]);
        let data = self.fab.net.open(node, upper, Lane::Data, wide[1]);
        if self.fab.options.has(Class::Replay) || self.fab.options.has(Class::Flip) {
            self.fab.net.seal(control);
            self.fab.net.seal(data);
        }
        (control, data)
    }

    /// A relay whose link broke tries to connect again, until it gives up by itself.
    fn redial(&mut self, host: u32, relay: u32, first: SessionId) {
        let looks = |owner: &Host| owner.number() == relay && !owner.ended && owner.upstream().is_none();
        if !self.hosts[host as usize].as_ref().is_some_and(looks) || !self.fab.hosts[host as usize].alive {
            return;
        }
        if self.reaches_the_former((host, first)) {
            return;
        }
        let Fabric { controller, hosts, .. } = &self.fab;
        if !controller.alive || controller.paused || self.controller.exit.is_some() || hosts[host as usize].paused {
            return self.fab.after(DIAL_PAUSE.as_nanos() as u64, Event::Redial { host, relay, first });
        }
        let conns = self.connect(host, Node::Controller);
        let welcome = self.controller.resumed(&mut self.fab, (host, first), conns);
        self.save_what_is_asked();
        if let Some(owner) = &mut self.hosts[host as usize] {
            if welcome {
                owner.resumed(&mut self.fab, conns, (self.controller.generation(), first));
            } else {
                let why = "its host is here already".to_owned();
                owner.told(&mut self.fab, relay, relay::Input::NotResumed { why });
            }
        }
    }

    fn start(&mut self, host: u32, relay: u32, life: (Rank, Incarnation)) {
        let owner = self.hosts[host as usize].as_ref();
        if !self.fab.hosts[host as usize].alive || owner.is_none_or(|owner| owner.number() != relay || owner.ended) {
            return;
        }
        let index = self.seats.len() as u32;
        self.fab.seats.push(Vital::new());
        self.fab.host_of.push(host);
        let seat = Seat::new(&mut self.fab, index, (host, relay), life);
        let conns = seat.as_ref().map(Seat::conns);
        self.fab.seats[index as usize].alive = seat.is_some();
        self.seats.push(seat);
        let (Some(conns), Some(owner)) = (conns, &mut self.hosts[host as usize]) else { return };
        owner.seated(&mut self.fab, life, index);
        owner.welcome(&mut self.fab, life, conns);
    }

    /// A rank's process is over, with that status.
    pub(crate) fn kill_seat(&mut self, index: u32, status: ExitStatus) {
        let vital = &mut self.fab.seats[index as usize];
        if !vital.alive {
            return;
        }
        (vital.alive, vital.paused) = (false, false);
        vital.backlog.clear();
        let Some(seat) = self.seats[index as usize].take() else { return };
        let (rank, incarnation) = seat.life;
        self.fab.leaves_library(seat.life);
        self.fab.say(|| format!("{rank} ({incarnation}) is over: {status:?}"));
        let (control, data) = seat.conns();
        self.fab.close(Node::Seat(index), data, "the rank's process ended");
        self.fab.close(Node::Seat(index), control, "the rank's process ended");
        let input = relay::Input::Exited { rank, incarnation, status, last_lines: String::new() };
        let (host, relay) = (seat.host, seat.relay);
        let noticed = self.fab.rng.within(50_000, 5_000_000);
        self.fab.after(noticed, Event::Agent { host, relay, input: Box::new(input) });
    }

    fn kill(&mut self, node: Node) {
        let vital = self.fab.vital(node);
        if !vital.alive {
            return;
        }
        (vital.alive, vital.paused) = (false, false);
        vital.backlog.clear();
        self.fab.say(|| format!("{node:?} is killed"));
        for conn in self.fab.net.of(node) {
            self.fab.close(node, conn, "the process ended");
        }
        match node {
            Node::Host(host) => {
                self.hosts[host as usize] = None;
                self.guard(host);
            }
            Node::Controller => self.controller_died(),
            Node::Former | Node::Seat(_) => {}
        }
    }

    /// A relay that is gone takes its ranks along: its guard kills them.
    fn guard(&mut self, host: u32) {
        let seats: Vec<u32> = (0..self.seats.len() as u32)
            .filter(|&seat| self.seats[seat as usize].as_ref().is_some_and(|seat| seat.host == host))
            .collect();
        for seat in seats {
            let after = self.fab.rng.within(100_000, 20_000_000);
            self.fab.after(after, Event::Kill(Node::Seat(seat)));
        }
    }

    fn host_ends(&mut self, index: u32) {
        if !self.fab.off(Mutant::ControllerWatch) {
            self.kill(Node::Host(index));
        }
    }

    /// A machine loses its power: nothing of it says a word.
    pub(crate) fn machine_dies(&mut self, host: u32) {
        let seats: Vec<u32> = (0..self.seats.len() as u32)
            .filter(|&seat| self.seats[seat as usize].as_ref().is_some_and(|seat| seat.host == host))
            .collect();
        for node in seats.iter().map(|&seat| Node::Seat(seat)).chain([Node::Host(host)]) {
            for conn in self.fab.net.of(node) {
                self.fab.net.cut(conn, true, true);
            }
            let vital = self.fab.vital(node);
            (vital.alive, vital.paused) = (false, false);
            vital.backlog.clear();
        }
        for seat in seats {
            if let Some(seat) = self.seats[seat as usize].take() {
                self.fab.leaves_library(seat.life);
            }
        }
        self.hosts[host as usize] = None;
    }

    fn controller_ends(&mut self) {
        self.kill(Node::Controller);
        self.kill(Node::Former);
    }

    pub(crate) fn resume(&mut self, node: Node) {
        let vital = self.fab.vital(node);
        if !vital.paused {
            return;
        }
        vital.paused = false;
        let backlog = core::mem::take(&mut vital.backlog);
        self.fab.say(|| format!("{node:?} goes on with {} events", backlog.len()));
        for event in backlog {
            self.deliver(node, event);
        }
        // What its deadlines say now.
        let now = self.fab.local(node);
        self.fab.wake(node, Some(now));
    }

    /// A host's clock is ahead by so much more.
    pub(crate) fn jump(&mut self, host: u32, by: u64) {
        self.fab.ahead[host as usize] += by;
        let seats = (0..self.seats.len() as u32).filter(|&seat| self.fab.host_of[seat as usize] == host);
        let nodes: Vec<Node> = seats.map(Node::Seat).chain([Node::Host(host)]).collect();
        for node in nodes {
            let now = self.fab.local(node);
            self.fab.wake(node, Some(now));
        }
    }

    /// Tells the coordinator something after a while.
    pub(crate) fn tell(&mut self, after_ns: u64, input: Input) {
        self.fab.after(after_ns, Event::Told(self.controller.generation(), Box::new(input)));
    }
}
