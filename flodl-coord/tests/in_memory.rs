//! The production cores of coordinator, root, host folds and workers, joined in memory and in virtual time: real parameters
//! are trained and averaged, nothing is a stand-in but clock and wires.

use flodl_coord::{Config, Coordinator, Duties, Input, Membership, Output, Scheduling, Slowing};
use flodl_elche::Mode;
use flodl_relay::fold::{self, HostFold, Member, Order};
use flodl_relay::root::{self, Root};
use flodl_wire::message::control::{Part, RosterEntry, RoundOutcome};
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::join::{Dtype, Emulation, Section, TensorSpec, TrainerSettings};
use flodl_wire::message::record::{Body, EventKind};
use flodl_wire::message::report::ExitStatus;
use flodl_wire::message::{Control, Data, HostReport, Report};
use flodl_wire::{HostId, Incarnation, Rank, RunId, SessionId, Time, Version};
use flodl_worker::dataset::Dataset;
use flodl_worker::session::End;
use flodl_worker::trainee::{
    EvalOutcome, Fault, StepContext, StepOutcome, TensorMut, TensorReader, TensorRef, TensorWriter, Trainee,
};
use flodl_worker::worker::{Callbacks, Clock, Event, Job, Turn, Worker};
use std::collections::BTreeMap;
use std::time::Duration;

const LIFE: Incarnation = Incarnation(1);
const PATIENCE: Duration = Duration::from_secs(10);
const LATENCY: u64 = 100_000;
const MS: u64 = 1_000_000;
const SAMPLES: u64 = 1000;

/// Fits y = 3 x - 1 by gradient descent; counts its steps in an integer tensor.
struct Line {
    weight: [f32; 1],
    bias: [f32; 1],
    steps: [i64; 1],
}

impl Trainee for Line {
    type Batch = Vec<(f32, f32)>;

    fn manifest(&self) -> Vec<TensorSpec> {
        let spec = |name: &str, dtype, section| TensorSpec { name: name.into(), dtype, shape: vec![1], section };
        vec![
            spec("weight", Dtype::F32, Section::Parameters),
            spec("bias", Dtype::F32, Section::Parameters),
            spec("steps", Dtype::I64, Section::Integers),
        ]
    }

    fn step(&mut self, batch: &Self::Batch, _: &StepContext) -> Result<StepOutcome, Fault> {
        let (mut dw, mut db, mut loss_sum) = (0.0, 0.0, 0.0);
        for &(x, y) in batch {
            let error = self.weight[0] * x + self.bias[0] - y;
            loss_sum += f64::from(error * error);
            dw += error * x;
            db += error;
        }
        self.weight[0] -= 0.3 * dw / batch.len() as f32;
        self.bias[0] -= 0.3 * db / batch.len() as f32;
        self.steps[0] += 1;
        Ok(StepOutcome { loss_sum, samples: batch.len() as u64 })
    }

    fn evaluate(&mut self, batch: &Self::Batch) -> Result<EvalOutcome, Fault> {
        let loss = |&(x, y): &(f32, f32)| f64::from((self.weight[0] * x + self.bias[0] - y).powi(2));
        Ok(EvalOutcome { loss_sum: batch.iter().map(loss).sum(), correct: None, samples: batch.len() as u64 })
    }

    fn read_tensors(&self, reader: &mut dyn TensorReader) -> Result<(), Fault> {
        reader.read(TensorRef::F32(&self.weight));
        reader.read(TensorRef::F32(&self.bias));
        reader.read(TensorRef::I64(&self.steps));
        Ok(())
    }

    fn write_tensors(&mut self, writer: &mut dyn TensorWriter) -> Result<(), Fault> {
        writer.write(TensorMut::F32(&mut self.weight));
        writer.write(TensorMut::F32(&mut self.bias));
        writer.write(TensorMut::I64(&mut self.steps));
        Ok(())
    }
}

struct Points;

impl Dataset for Points {
    type Batch = Vec<(f32, f32)>;

    fn len(&self) -> u64 {
        SAMPLES
    }

    fn signature(&self) -> [u8; 32] {
        [3; 32]
    }

    fn batch(&self, indices: &[u64]) -> Result<Self::Batch, Fault> {
        let point = |&index: &u64| {
            let x = index as f32 / SAMPLES as f32 * 2.0 - 1.0;
            (x, 3.0 * x - 1.0)
        };
        Ok(indices.iter().map(point).collect())
    }
}

/// A rank's own time: a batch takes as long as its device needs.
struct Device {
    now: Time,
    batch: Duration,
}

impl Clock for Device {
    fn now(&mut self) -> Time {
        self.now
    }

    fn step_done(&mut self, started: Time, _: Option<&Emulation>) -> Time {
        self.now = started.plus(self.batch);
        self.now
    }
}

struct Seat {
    worker: Worker<'static, Line>,
    device: Device,
    alive: bool,
    end: Option<End>,
}

enum Happens {
    Coordinator(Input),
    Worker(Rank, Event),
    Turn(Rank),
    Fold(SessionId, fold::Input),
    Root(root::Input),
    /// SIGKILL.
    Kill(Rank),
}

/// Everything of a run.
struct System {
    coordinator: Coordinator,
    root: Root,
    folds: BTreeMap<SessionId, HostFold>,
    seats: Vec<(SessionId, Seat)>,
    queue: BTreeMap<(Time, u64), Happens>,
    posted: u64,
    now: Time,
    ended: Option<i32>,
    events: Vec<EventKind>,
    saved: Option<(Version, Vec<u8>)>,
}

impl System {
    /// One host per inner list, one rank per batch time in it (milliseconds).
    fn new(hosts: &[&[u64]], mode: Mode) -> System {
        let world_size = hosts.iter().map(|ranks| ranks.len() as u32).sum();
        let config = Config {
            run_id: RunId([1; 16]),
            world_size,
            min_ranks: 1,
            mode,
            epochs: Some(4),
            epoch_splits: 1,
            batch_size: Some(32),
            seed: 5,
            patience: PATIENCE,
            slow: Slowing::default(),
            membership: Membership::default(),
            scheduling: Scheduling::default(),
            duties: Duties::default(),
        };
        let coordinator = Coordinator::new(config, Time::ZERO).expect("valid");
        let mut system = System {
            coordinator,
            root: Root::new(PATIENCE),
            folds: BTreeMap::new(),
            seats: Vec::new(),
            queue: BTreeMap::new(),
            posted: 0,
            now: Time::ZERO,
            ended: None,
            events: Vec::new(),
            saved: None,
        };
        for (number, ranks) in hosts.iter().enumerate() {
            system.host(SessionId(number as u64 + 1), ranks);
        }
        system
    }

    fn host(&mut self, session: SessionId, batch_ms: &[u64]) {
        self.folds.insert(session, HostFold::new(PATIENCE));
        let host = HostId::from_name(&format!("host{}", session.0)).expect("a name");
        let rank_count = batch_ms.len() as u32;
        self.post(0, Happens::Coordinator(Input::HostConnected { session, host, rank_count }));
        for &ms in batch_ms {
            let rank = Rank(self.seats.len() as u32);
            let line = Line { weight: [rank.0 as f32], bias: [0.5], steps: [0] };
            let job = Job {
                trainee: line,
                train_set: Box::new(Points),
                eval_set: Some(Box::new(Points)),
                schedule: Box::new(|_| 0.3),
                settings: TrainerSettings::default(),
                callbacks: Callbacks::default(),
            };
            let worker = Worker::new(job, (rank, LIFE), PATIENCE, Time::ZERO).expect("a manifest");
            let device = Device { now: Time::ZERO, batch: Duration::from_millis(ms) };
            self.seats.push((session, Seat { worker, device, alive: true, end: None }));
            self.post(MS, Happens::Turn(rank));
        }
    }

    fn post(&mut self, after: u64, happens: Happens) {
        self.posted += 1;
        self.queue.insert((Time(self.now.0 + after), self.posted), happens);
    }

    fn run(&mut self) -> i32 {
        for _ in 0..1_000_000 {
            if let Some(exit) = self.ended {
                return exit;
            }
            let next = self.queue.keys().next().map(|key| key.0);
            let deadline = self.coordinator.next_deadline();
            match (next, deadline) {
                (Some(at), deadline) if deadline.is_none_or(|deadline| at <= deadline) => {
                    let (_, happens) = self.queue.pop_first().expect("an event");
                    self.now = at;
                    self.happen(happens);
                }
                (_, Some(deadline)) => {
                    self.now = self.now.max(deadline);
                    self.heartbeats();
                    self.coordinator.tick(self.now);
                }
                _ => panic!("nothing is due and the run has not ended"),
            }
            self.drain();
        }
        panic!("the run does not end");
    }

    fn heartbeats(&mut self) {
        let alive: Vec<_> = self.seats.iter().enumerate().filter(|(_, (_, seat))| seat.alive).collect();
        for (rank, session) in alive.iter().map(|(i, (session, _))| (Rank(*i as u32), *session)).collect::<Vec<_>>() {
            let report = Report::Heartbeat { step: 0 };
            self.coordinator.handle(Input::FromRank { session, rank, incarnation: LIFE, report }, self.now);
        }
        for session in self.folds.keys().copied().collect::<Vec<_>>() {
            self.coordinator.handle(Input::FromHost { session, report: HostReport::Heartbeat }, self.now);
        }
    }

    fn happen(&mut self, happens: Happens) {
        let now = self.now;
        match happens {
            Happens::Coordinator(input) => self.coordinator.handle(input, now),
            Happens::Worker(rank, event) => {
                let (_, seat) = &mut self.seats[rank.0 as usize];
                if seat.alive && seat.end.is_none() {
                    seat.device.now = seat.device.now.max(now);
                    seat.worker.handle(event, now);
                    self.post(0, Happens::Turn(rank));
                }
            }
            Happens::Turn(rank) => self.turn(rank),
            Happens::Fold(session, input) => {
                let fold = self.folds.get_mut(&session).expect("a fold");
                fold.handle(input, now);
                for output in std::iter::from_fn(|| fold.poll()).collect::<Vec<_>>() {
                    match output {
                        fold::Output::Up(data) => {
                            self.post(LATENCY, Happens::Root(root::Input::Data { session, data }))
                        }
                        fold::Output::Waiting { .. } => {}
                        other => panic!("the fold complains: {other:?}"),
                    }
                }
            }
            Happens::Root(input) => {
                self.root.handle(input, now);
                self.drain_root();
            }
            Happens::Kill(rank) => self.kill(rank),
        }
    }

    fn turn(&mut self, rank: Rank) {
        let (session, seat) = &mut self.seats[rank.0 as usize];
        let session = *session;
        if !seat.alive || seat.end.is_some() || seat.device.now > self.now {
            // Busy with a batch: it comes back when that is done.
            return;
        }
        match seat.worker.turn(&mut seat.device) {
            Turn::Report(report) => {
                let input = Input::FromRank { session, rank, incarnation: LIFE, report };
                self.post(LATENCY, Happens::Coordinator(input));
                self.post(0, Happens::Turn(rank));
            }
            Turn::Data(data) => {
                let input = fold::Input::Data { rank, incarnation: LIFE, data };
                self.post(LATENCY, Happens::Fold(session, input));
                self.post(0, Happens::Turn(rank));
            }
            Turn::Worked => {
                let busy = seat.device.now.since(self.now).as_nanos() as u64;
                self.post(busy, Happens::Turn(rank));
            }
            Turn::Idle => {}
            Turn::End(end) => {
                seat.end = Some(end);
                self.exited(session, rank, ExitStatus::Code(0));
            }
        }
    }

    fn exited(&mut self, session: SessionId, rank: Rank, status: ExitStatus) {
        let report = HostReport::RankExited { rank, incarnation: LIFE, status, last_lines: String::new() };
        self.post(2 * LATENCY, Happens::Coordinator(Input::FromHost { session, report }));
    }

    fn kill(&mut self, rank: Rank) {
        let (session, seat) = &mut self.seats[rank.0 as usize];
        let session = *session;
        seat.alive = false;
        self.post(LATENCY, Happens::Fold(session, fold::Input::Ended { rank, incarnation: LIFE }));
        self.exited(session, rank, ExitStatus::Signal(9));
    }

    fn drain(&mut self) {
        while let Some(output) = self.coordinator.poll() {
            match output {
                Output::ToRank { rank, control, .. } => {
                    self.learn_layout(rank, &control);
                    self.post(LATENCY, Happens::Worker(rank, Event::Control(control)));
                }
                Output::Broadcast(control) => self.broadcast(&control),
                Output::Layout(sizes) => self.root.handle(root::Input::Layout(sizes), self.now),
                Output::Save(request) => {
                    self.saved = self.root.consensus_bytes().map(|(version, bytes)| (version, bytes.to_vec()));
                    let result = Ok("here".to_owned());
                    self.post(MS, Happens::Coordinator(Input::Saved { version: request.version, result }));
                }
                Output::Record(Body::Event(event)) => self.events.push(event.kind),
                Output::End { exit } => self.ended = Some(exit),
                Output::Record(_)
                | Output::ToHost { .. }
                | Output::CloseHost { .. }
                | Output::Restore { .. }
                | Output::Journal(_) => {}
            }
            self.drain_root();
        }
    }

    fn learn_layout(&mut self, rank: Rank, control: &Control) {
        if let Control::Admitted(config) = control {
            let session = self.seats[rank.0 as usize].0;
            self.post(0, Happens::Fold(session, fold::Input::Order(Order::Layout(config.layout))));
        }
    }

    /// The root hears first, then each relay's fold, then the ranks.
    fn broadcast(&mut self, control: &Control) {
        self.root.handle(root::Input::Control(control.clone()), self.now);
        for session in self.folds.keys().copied().collect::<Vec<_>>() {
            for order in self.orders(session, control) {
                self.post(LATENCY / 2, Happens::Fold(session, fold::Input::Order(order)));
            }
        }
        for rank in (0..self.seats.len() as u32).map(Rank) {
            self.post(LATENCY, Happens::Worker(rank, Event::Control(control.clone())));
        }
    }

    /// What a relay makes of a broadcast for its fold.
    fn orders(&self, session: SessionId, control: &Control) -> Vec<Order> {
        let member = |e: &RosterEntry| Member { rank: e.rank, incarnation: e.incarnation, part: e.part };
        match control {
            Control::RequestParams { round, roster } => {
                let members = roster.iter().filter(|entry| entry.session == session).map(member).collect();
                let version = self.root.consensus_bytes().map_or(Version(0), |(version, _)| version);
                vec![Order::Open { round: *round, version, members }]
            }
            Control::RoundDone { round, .. } => vec![Order::Close { round: *round }],
            Control::DeclareDead { rank, incarnation, .. } => {
                vec![Order::Drop { rank: *rank, incarnation: *incarnation, why: AbsentWhy::Dead }]
            }
            _ => Vec::new(),
        }
    }

    fn drain_root(&mut self) {
        while let Some(output) = self.root.poll() {
            match output {
                root::Output::Result { session, chunk } => {
                    let local = |(i, (of, _)): (usize, &(SessionId, Seat))| (*of == session).then_some(Rank(i as u32));
                    for rank in self.seats.iter().enumerate().filter_map(local).collect::<Vec<_>>() {
                        let event = Event::Data(Data::Consensus(chunk.clone()));
                        self.post(LATENCY, Happens::Worker(rank, event));
                    }
                }
                root::Output::Folded(folded) => self.post(LATENCY, Happens::Coordinator(Input::Folded(folded))),
                root::Output::Waiting { .. } | root::Output::Restored { .. } => {}
                other => panic!("the root complains: {other:?}"),
            }
        }
    }

    /// Samples committed, repeats, and whether every digest was equal.
    fn accounts(&self) -> (u64, u64, bool) {
        let mut accounts = (0, 0, true);
        for event in &self.events {
            match event {
                EventKind::RoundCommitted { committed, repeats, digests_equal, .. } => {
                    accounts.0 += committed.iter().map(|&(_, samples)| samples).sum::<u64>();
                    accounts.1 += repeats;
                    accounts.2 &= digests_equal;
                }
                EventKind::ReplicaDigest { equal, .. } => accounts.2 &= equal,
                _ => {}
            }
        }
        accounts
    }

    fn replicas(&self) -> Vec<(f32, f32, i64)> {
        let living = self.seats.iter().filter(|(_, seat)| seat.alive);
        living
            .map(|(_, seat)| seat.worker.trainee())
            .map(|line| (line.weight[0], line.bias[0], line.steps[0]))
            .collect()
    }

    fn assert_learned(&self) {
        let replicas = self.replicas();
        assert!(replicas.windows(2).all(|pair| pair[0] == pair[1]), "replicas differ: {replicas:?}");
        let (weight, bias, _) = replicas[0];
        assert!((weight - 3.0).abs() < 0.05 && (bias + 1.0).abs() < 0.05, "learned {weight} x + {bias}");
    }
}

#[test]
fn two_workers_and_a_coordinator_train_one_model() {
    for mode in [Mode::CpuCadence, Mode::CpuSync] {
        let mut system = System::new(&[&[8, 20]], mode);
        assert_eq!(system.run(), 0);
        assert_eq!(system.accounts(), (4 * SAMPLES, 0, true));
        system.assert_learned();
        assert!(system.seats.iter().all(|(_, seat)| matches!(seat.end, Some(End::Finished { .. }))));
    }
}

#[test]
fn d5_three_ranks_on_two_hosts_end_every_round_bit_equal() {
    let mut system = System::new(&[&[8, 20], &[32]], Mode::CpuCadence);
    assert_eq!(system.run(), 0);
    assert_eq!(system.accounts(), (4 * SAMPLES, 0, true));
    system.assert_learned();
    let (_, bytes) = system.saved.clone().expect("a consensus");
    let (weight, bias, steps) = system.replicas()[0];
    let expected: Vec<u8> =
        [weight.to_le_bytes(), bias.to_le_bytes()].concat().into_iter().chain(steps.to_le_bytes()).collect();
    assert_eq!(bytes, expected, "what is saved is what the ranks hold");
}

#[test]
fn one_worker_alone_is_a_run() {
    let mut system = System::new(&[&[10]], Mode::CpuCadence);
    assert_eq!(system.run(), 0);
    assert_eq!(system.accounts(), (4 * SAMPLES, 0, true));
    system.assert_learned();
}

#[test]
fn a10_a_rank_killed_at_any_moment_costs_nobody_else_a_sample() {
    for at_ms in (3..650).step_by(7) {
        let mut system = System::new(&[&[8, 20], &[32]], Mode::CpuCadence);
        system.post(at_ms * MS, Happens::Kill(Rank(1)));
        let exit = system.run();
        let (committed, _, digests_equal) = system.accounts();
        assert_eq!((exit, committed, digests_equal), (3, 4 * SAMPLES, true), "killed at {at_ms} ms");
        system.assert_learned();
    }
}

#[test]
fn a11_rank_0_killed_in_the_first_round_is_replaced_as_the_source() {
    for at_us in (0..4000).step_by(50) {
        let mut system = System::new(&[&[8, 20], &[32]], Mode::CpuCadence);
        system.post(at_us * 1000, Happens::Kill(Rank(0)));
        assert_eq!(system.run(), 3, "killed at {at_us} us");
        assert_eq!(system.accounts().0, 4 * SAMPLES);
        system.assert_learned();
    }
}

#[test]
fn the_roster_names_one_source_and_only_in_round_0() {
    let mut system = System::new(&[&[8], &[8]], Mode::CpuCadence);
    let mut sources = Vec::new();
    while system.ended.is_none() {
        let (_, happens) = system.queue.pop_first().map_or_else(
            || panic!("nothing is due"),
            |(key, happens)| {
                system.now = key.0;
                (key, happens)
            },
        );
        if let Happens::Worker(Rank(0), Event::Control(Control::RequestParams { round, roster })) = &happens {
            let count = roster.iter().filter(|entry| entry.part == Part::Source).count();
            sources.push((round.0, count));
        }
        if let Happens::Worker(_, Event::Control(Control::RoundDone { outcome, .. })) = &happens {
            assert!(matches!(outcome, RoundOutcome::Committed { .. }));
        }
        system.happen(happens);
        system.drain();
    }
    assert_eq!(sources[0], (0, 1));
    assert!(sources.len() > 2 && sources[1..].iter().all(|&(_, count)| count == 0), "{sources:?}");
}
