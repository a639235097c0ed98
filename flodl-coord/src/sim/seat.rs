//! A rank's process: the production worker, trained by a simulated device, and around it what the shell does.

use super::class::Class;
use super::collectives::{Came, Library, Line};
use super::fabric::{Event, Fabric};
use super::gathering;
use super::ledger::Snapshot;
use super::model::{Log, Numbers, Trained, Vectors};
use super::mutant::Mutant;
use super::net::{ConnId, Lane, Node, Packet};
use super::options::Speed;
use super::rng::Rng;
use super::violation::Rule;
use bytes::Bytes;
use flodl_nccl::session::STUCK_EXIT;
use flodl_wire::message::control::{Next, RoundOutcome};
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::join::{Emulation, TrainerSettings};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Frame, Incarnation, Rank, Round, Time, Version, WindowId};
use flodl_worker::session::{End, Lost};
use flodl_worker::worker::{self, Callbacks, Clock, Job, Turn, Worker};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// Batches that a throttled episode lasts on the average.
const EPISODE: f64 = 20.0;
/// A batch is evaluated in that part of a step.
const EVALUATES_IN: u64 = 3;
const HOUR_NS: f64 = 3.6e12;

/// A device: how long a batch takes.
#[derive(Debug)]
pub(crate) struct Device {
    speed: Speed,
    rng: Rng,
    started: Time,
    throttled: bool,
    /// Slower by this factor until then, in simulated time.
    pub(crate) slowed: (f64, Time),
}

impl Device {
    fn new(speed: Speed, rng: Rng, started: Time) -> Device {
        Device { speed, rng, started, throttled: false, slowed: (1.0, Time::ZERO) }
    }

    fn batch_ns(&mut self, now: Time) -> u64 {
        let Speed { batch_ns, jitter, drift, throttled, throttle } = self.speed;
        let turns = if self.throttled { 1.0 / EPISODE } else { throttled / (EPISODE * (1.0 - throttled)) };
        self.throttled ^= self.rng.chance(turns);
        let age = now.0.saturating_sub(self.started.0) as f64 / HOUR_NS;
        let mut ns = batch_ns * self.rng.around_one(jitter) * drift.powf(age.min(4.0));
        if self.throttled {
            ns *= throttle;
        }
        if now < self.slowed.1 {
            ns *= self.slowed.0;
        }
        ns.max(1.0) as u64
    }
}

/// The worker's clock during a turn: a step lasts what the device needs.
struct TurnClock<'a> {
    device: &'a mut Device,
    ahead: u64,
    local: Time,
}

impl Clock for TurnClock<'_> {
    fn now(&mut self) -> Time {
        self.local
    }

    fn batch_evaluated(&mut self) {
        let batch = self.device.batch_ns(Time(self.local.0.saturating_sub(self.ahead)));
        self.local = Time(self.local.0 + batch / EVALUATES_IN);
    }

    fn step_done(&mut self, started: Time, _: Option<&Emulation>) -> Time {
        let batch = self.device.batch_ns(Time(started.0.saturating_sub(self.ahead)));
        self.local = Time(started.0 + batch);
        self.local
    }
}

/// Faults that wait for their occasion in a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Armed {
    /// The next chunk of a contribution is too short.
    pub(crate) wrong_shape: bool,
    /// The next contribution is followed by one of the round before.
    pub(crate) stale: bool,
    /// The next chunk of a result that comes is changed.
    pub(crate) corrupt_chunk: bool,
}

/// What a rank that trains on while it averages was allowed, and has done.
#[derive(Clone, Debug, Default)]
struct Ahead {
    /// How far it may run ahead of each window that it was given.
    leads: BTreeMap<WindowId, u32>,
    /// The window that it reported last, with its steps then, until its next snapshot.
    reported: Option<(WindowId, u64)>,
    /// Its last snapshot.
    snapshot: Vec<f32>,
    /// Steps of the contribution before.
    steps_before: u64,
    /// What was in the last contribution, until a consensus is applied: a round that is run again gives it back.
    given: Option<(Round, Trained, u64)>,
    /// The round that was last said to be run again. A rank in a batch takes its snapshot for it only after that.
    again: Option<Round>,
}

/// The process.
pub(crate) struct Seat {
    me: u32,
    pub(crate) life: (Rank, Incarnation),
    pub(crate) host: u32,
    /// The host's relay that owns it.
    pub(crate) relay: u32,
    worker: Worker<'static, Vectors>,
    pub(crate) log: Rc<RefCell<Log>>,
    pub(crate) device: Device,
    pub(crate) armed: Armed,
    control: ConnId,
    data: ConnId,
    inbox: VecDeque<worker::Event>,
    /// When anything came last, on its own clock.
    heard: Time,
    /// A batch is being trained until then.
    busy: Time,
    introduced: bool,
    applied: u64,
    corrupt: bool,
    ahead: Ahead,
    /// Its library, where ranks average among themselves.
    line: Option<Rc<RefCell<Line>>>,
    /// What it sent first in its last contribution.
    last_sent: Option<Data>,
    /// It evaluates for ever.
    hangs: bool,
    /// An order that waits for the window's end (a mutant).
    late_duty: Option<worker::Event>,
    pub(crate) end: Option<End>,
}

impl Seat {
    /// A process that has connected to its relay.
    pub(crate) fn new(fab: &mut Fabric, me: u32, owner: (u32, u32), life: (Rank, Incarnation)) -> Option<Seat> {
        let (host, relay) = owner;
        let node = Node::Seat(me);
        let options = Rc::clone(&fab.options);
        let (control, data) = (
            fab.net.open(node, Node::Host(host), Lane::Control, options.local),
            fab.net.open(node, Node::Host(host), Lane::Data, options.local),
        );
        let log = Rc::new(RefCell::new(Log::default()));
        let job = Job {
            trainee: Vectors::new(options.work.parameters, life.0.0, Rc::clone(&log)),
            train_set: Box::new(Numbers::new(options.work.samples, Rc::clone(&log))),
            eval_set: Some(Box::new(Numbers::new(4, Rc::default()))),
            schedule: Box::new(|_| 0.05),
            settings: TrainerSettings::default(),
            callbacks: Callbacks::default(),
        };
        let local = fab.local(node);
        let mut worker = Worker::new(job, life, options.work.patience, local).ok()?;
        let line = (!options.work.mode.is_cpu()).then(|| Rc::new(RefCell::new(Line::default())));
        if let Some(line) = &line {
            line.borrow_mut().keeps_no_copy = fab.off(Mutant::RestoreBeforeRetry);
            let version = gathering::version(options.request.seed);
            let library = Library::new(crate::id::member(life), options.work.patience, version, Rc::clone(line));
            worker = worker.with_collectives(Box::new(library));
        }
        let speed = options.speed(life.0);
        let device = Device::new(speed, fab.rng.fork(), fab.now);
        let beat = options.work.patience.as_nanos() as u64 / 10;
        fab.after(beat, Event::Beat(me));
        fab.wake(node, Some(local));
        Some(Seat {
            me,
            life,
            host,
            relay,
            worker,
            log,
            device,
            armed: Armed::default(),
            control,
            data,
            inbox: VecDeque::new(),
            heard: local,
            busy: Time::ZERO,
            introduced: false,
            applied: 0,
            corrupt: false,
            ahead: Ahead::default(),
            line,
            last_sent: None,
            hangs: false,
            late_duty: None,
            end: None,
        })
    }

    pub(crate) fn conns(&self) -> (ConnId, ConnId) {
        (self.control, self.data)
    }

    fn node(&self) -> Node {
        Node::Seat(self.me)
    }

    pub(crate) fn arrive(&mut self, fab: &mut Fabric, conn: ConnId, packet: Packet) {
        let lane = if conn == self.control { "control" } else { "data" };
        self.heard = fab.local(self.node());
        let event = match packet {
            Packet::Frame(frame) => match fab.control(&frame) {
                Ok(Control::Heartbeat) => return,
                Ok(end @ (Control::Shutdown | Control::ShutdownWithSave { .. })) => {
                    fab.nobody_is_inside(self.life);
                    worker::Event::Control(end)
                }
                Ok(Control::ExecuteEval { schedule }) => return self.told_to_evaluate(fab, schedule),
                Ok(control) => worker::Event::Control(self.planned(fab, control)),
                Err(error) => worker::Event::Lost(Lost::Broken { channel: lane, error: error.to_string() }),
            },
            Packet::Data(data) => worker::Event::Data(self.changed(data)),
            Packet::End(_) | Packet::Sealed { .. } => worker::Event::Lost(Lost::Closed { channel: lane }),
        };
        self.inbox.push_back(event);
        if self.busy <= fab.now {
            self.run(fab);
        }
    }

    /// Remembers how far it may run ahead, and what a round that is run again will hold once more.
    fn planned(&mut self, fab: &mut Fabric, mut control: Control) -> Control {
        if let Control::RoundDone { round, outcome: RoundOutcome::Again, .. } = control {
            self.ahead.again = Some(round);
            self.give_back();
        }
        // A window that begins at once ends what it may run ahead of the one before.
        if matches!(&control, Control::Window(plan) if plan.overlap.is_some_and(|overlap| overlap.begins.is_none())) {
            self.has_run_ahead(fab);
        }
        if let Control::Admitted(run) = &mut control
            && fab.off(Mutant::FixedPlace)
        {
            run.deterministic = false;
        }
        if let Control::Window(plan) = &mut control
            && let Some(overlap) = &mut plan.overlap
        {
            self.ahead.leads.insert(plan.window, overlap.lead);
            if fab.off(Mutant::LeadLimit) {
                overlap.lead = u32::MAX;
            }
        }
        control
    }

    /// Faults that wait for an evaluation strike here.
    fn told_to_evaluate(&mut self, fab: &mut Fabric, schedule: u64) {
        match fab.duty_fault.take() {
            Some(Class::DutyError) => self.log.borrow_mut().eval_fails = true,
            Some(Class::DutyHang) => {
                fab.touched.insert(self.life.0);
                self.hangs = true;
            }
            Some(Class::DutyCrash) => {
                fab.touched.insert(self.life.0);
                fab.vital(self.node()).fuse = Some(2);
            }
            _ => {}
        }
        let event = worker::Event::Control(Control::ExecuteEval { schedule });
        if fab.off(Mutant::DutyBeforeWindow) {
            self.late_duty = Some(event);
        } else {
            self.inbox.push_back(event);
        }
        if self.busy <= fab.now {
            self.run(fab);
        }
    }

    /// A chunk of a result, as this rank's memory holds it.
    fn changed(&mut self, data: Data) -> Data {
        match data {
            Data::Consensus(chunk) if chunk.chunk == 0 && core::mem::take(&mut self.armed.corrupt_chunk) => {
                let mut bytes = chunk.bytes.to_vec();
                if let Some(byte) = bytes.first_mut() {
                    *byte ^= 1;
                }
                self.log.borrow_mut().corrupted = true;
                Data::Consensus(Chunk { bytes: bytes.into(), ..chunk })
            }
            data => data,
        }
    }

    pub(crate) fn beat(&mut self, fab: &mut Fabric) {
        let every = fab.options.work.patience.as_nanos() as u64 / 10;
        fab.after(every, Event::Beat(self.me));
        if self.introduced {
            let report = Report::Heartbeat { step: self.worker.steps() };
            self.report(fab, &report);
        }
    }

    pub(crate) fn wake(&mut self, fab: &mut Fabric) {
        if self.busy <= fab.now {
            self.run(fab);
            let local = fab.local(self.node());
            if self.end.is_none() && self.worker.next_deadline().is_some_and(|at| at <= local) {
                self.worker.handle(worker::Event::Tick, local);
                self.run(fab);
            }
        } else {
            let until = Time(fab.local(self.node()).0 + (self.busy.0 - fab.now.0));
            fab.wake(self.node(), Some(until));
        }
    }

    /// Does what there is to do, until a batch takes its time or there is nothing.
    fn run(&mut self, fab: &mut Fabric) {
        let node = self.node();
        let local = fab.local(node);
        while self.end.is_none() && !self.hangs && !fab.vital(node).blown {
            if fab.gathering.stuck.contains(&self.life) {
                return;
            }
            while let Some(event) = self.inbox.pop_front() {
                self.worker.handle(event, local);
            }
            self.worker.handle(worker::Event::Heard, self.heard);
            let mut clock = TurnClock { device: &mut self.device, ahead: local.0 - fab.now.0, local };
            let turn = self.worker.turn(&mut clock);
            let until = clock.local;
            self.ask_library(fab);
            match turn {
                Turn::Report(mut report) => {
                    if matches!(report, Report::WindowReport(_)) {
                        self.inbox.extend(self.late_duty.take());
                    }
                    self.miscounted(fab, &mut report);
                    self.account(fab, &report);
                    self.report(fab, &report);
                }
                Turn::Data(data) => self.contribute(fab, data),
                Turn::Worked if until > local => {
                    self.busy = Time(fab.now.0 + (until.0 - local.0));
                    fab.wake(node, Some(until));
                    return;
                }
                Turn::Worked => self.check_applied(fab),
                Turn::Idle => {
                    fab.wake(node, self.worker.next_deadline());
                    return;
                }
                Turn::End(end) => self.end = Some(end),
            }
        }
    }

    /// Something comes of what its session wanted of the library.
    pub(crate) fn library(&mut self, fab: &mut Fabric, came: Came) {
        let Some(line) = self.line.as_ref().filter(|_| fab.is_heard(self.life, &came)) else { return };
        if matches!(came, Came::Never) {
            line.borrow_mut().exit = Some(STUCK_EXIT);
            return;
        }
        line.borrow_mut().came.push_back(came);
        if self.busy <= fab.now {
            self.run(fab);
        }
    }

    fn ask_library(&mut self, fab: &mut Fabric) {
        let Some(line) = self.line.clone() else { return };
        loop {
            let want = line.borrow_mut().wants.pop_front();
            let Some(want) = want else { return };
            fab.library(self.me, self.life, want);
        }
    }

    fn report(&mut self, fab: &mut Fabric, report: &Report) {
        self.introduced = true;
        if let Ok(frame) = Frame::report(self.life.0, self.life.1, report) {
            fab.frame(self.node(), self.control, frame);
        }
        if let Report::SyncAck(ack) = report
            && fab.off(Mutant::CommitBeforeApply)
        {
            let version = fab.ledger.version.map_or(Version(0), Version::next);
            let outcome = RoundOutcome::Committed { version };
            let done = Control::RoundDone { round: ack.round, outcome, next: Next::Window };
            self.inbox.push_back(worker::Event::Control(done));
        }
    }

    /// What was in the contribution to a round that is run again is trained and not contributed.
    fn give_back(&mut self) {
        let again = self.ahead.again;
        if let Some((_, trained, steps)) = self.ahead.given.take_if(|(given, ..)| Some(*given) == again) {
            let mut log = self.log.borrow_mut();
            log.steps += steps;
            log.trained.samples += trained.samples;
            log.trained.sum = log.trained.sum.wrapping_add(trained.sum);
        }
    }

    /// Looks how far it has run ahead of the window that it reported last.
    fn has_run_ahead(&mut self, fab: &mut Fabric) {
        let Some((window, at)) = self.ahead.reported.take() else { return };
        let steps_ever = self.log.borrow().steps_ever;
        let (lead, ran) = (self.ahead.leads.get(&window).copied().unwrap_or(0), steps_ever - at);
        if ran > u64::from(lead) {
            let what = format!("{} ran {ran} batches ahead of {window}, where {lead} were allowed", self.life.0);
            fab.ledger.broken(Rule::Lead, what);
        }
    }

    /// Tells the accounts what this rank has really trained for a round.
    fn account(&mut self, fab: &mut Fabric, report: &Report) {
        if let Report::EvalResult { schedule, .. } = report {
            // Who was told again after a lost link may have begun its window.
            let excused = self.corrupt || fab.touched.contains(&self.life.0);
            fab.ledger.evaluated(self.life, *schedule, &self.worker.trainee().bytes(), excused);
        }
        if let Report::WindowReport(report) = report {
            self.ahead.reported = Some((report.window, self.log.borrow().steps_ever));
        }
        let Report::SnapshotReady { round, steps, ranges, epoch } = report else { return };
        self.has_run_ahead(fab);
        let mut log = self.log.borrow_mut();
        let snapshot = Snapshot {
            steps: (*steps, core::mem::take(&mut log.steps)),
            epoch: *epoch,
            ranges: ranges.clone(),
            model: self.worker.trainee().clone(),
            base: self.worker.session().version(),
            trained: core::mem::take(&mut log.trained),
            corrupt: self.corrupt,
        };
        drop(log);
        self.ahead.given = Some((*round, snapshot.trained, snapshot.steps.1));
        self.ahead.snapshot = snapshot.model.floats().collect();
        fab.ledger.snapshot(self.life, *round, snapshot);
        self.give_back();
    }

    /// What a rank would say that counts its steps from the snapshot before the last.
    fn miscounted(&mut self, fab: &Fabric, report: &mut Report) {
        if let Report::SnapshotReady { steps, .. } = report {
            let own = *steps;
            if fab.off(Mutant::StepsSinceSnapshot) {
                *steps += self.ahead.steps_before;
            }
            self.ahead.steps_before = own;
        }
    }

    fn contribute(&mut self, fab: &mut Fabric, data: Data) {
        let stale = self.last_sent.clone().filter(|_| self.armed.stale);
        let data = match data {
            Data::Contribution(chunk) if core::mem::take(&mut self.armed.wrong_shape) => {
                let short = chunk.bytes.len().saturating_sub(4);
                Data::Contribution(Chunk { bytes: chunk.bytes.slice(..short), ..chunk })
            }
            Data::Absent { round, why: AbsentWhy::NonFinite, .. } if fab.off(Mutant::FiniteTest) => {
                return self.contribute_anyway(fab, round);
            }
            data => data,
        };
        if let Data::Contribution(chunk) = &data
            && chunk.chunk == 0
        {
            if let Some(Data::Contribution(old)) = stale.filter(|_| chunk.round.0 > 1) {
                self.armed.stale = false;
                fab.send(self.node(), self.data, Packet::Data(Data::Contribution(old)));
            }
            self.last_sent = Some(data.clone());
        }
        fab.send(self.node(), self.data, Packet::Data(data));
    }

    /// What a rank would send that does not test its values: large ones in place of those that are no numbers.
    fn contribute_anyway(&self, fab: &mut Fabric, round: Round) {
        let model = self.worker.trainee();
        let version = self.worker.session().version().unwrap_or_default();
        let weights: Vec<u8> = model.weights.iter().flat_map(|_| 1e30f32.to_le_bytes()).collect();
        let means: Vec<u8> = model.means.iter().flat_map(|_| 1e30f32.to_le_bytes()).collect();
        let steps: Vec<u8> = model.steps.iter().flat_map(|steps| steps.to_le_bytes()).collect();
        for (chunk, bytes) in (0..).zip([weights, means, steps].map(Bytes::from)) {
            let chunk = Chunk { round, version, chunk, mass: 1.0, codec: Codec::Exact, bytes };
            fab.send(self.node(), self.data, Packet::Data(Data::Contribution(chunk)));
        }
    }

    /// Where a consensus was written into the replica: is it the one, in its place or on top of what was trained since the
    /// snapshot?
    fn check_applied(&mut self, fab: &mut Fabric) {
        let applied = self.log.borrow().applied;
        if applied == self.applied {
            return;
        }
        (self.applied, self.ahead.given) = (applied, None);
        let (bytes, version) = (self.worker.trainee().bytes(), self.worker.session().version());
        let corrupted = core::mem::take(&mut self.log.borrow_mut().corrupted);
        // The counter of steps tells whether anything was trained since: a consensus has the largest there is.
        let counter = |bytes: &[u8]| bytes.last_chunk::<8>().copied();
        let on_top = self.log.borrow().steps > 0
            && counter(&bytes) != fab.ledger.bytes_of(self.life.0, version).and_then(counter);
        if on_top {
            // Nobody compares what was trained since with anything.
            self.corrupt = false;
            if !corrupted {
                self.check_on_top(fab, version);
            }
            return;
        }
        {
            let mut log = self.log.borrow_mut();
            (log.trained, log.steps) = (Trained::default(), 0);
        }
        if corrupted {
            self.corrupt = bytes != fab.ledger.consensus;
            return;
        }
        self.corrupt = false;
        fab.ledger.applied(self.life, version, &bytes);
    }

    fn check_on_top(&self, fab: &mut Fabric, version: Option<Version>) {
        let Some(consensus) = fab.ledger.bytes_of(self.life.0, version).map(<[u8]>::to_vec) else { return };
        let log = self.log.borrow();
        let floats = consensus.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let moves = floats.zip(&log.before).zip(&self.ahead.snapshot);
        for (index, (now, ((consensus, before), snapshot))) in self.worker.trainee().floats().zip(moves).enumerate() {
            let expected = f64::from(consensus) + f64::from(*before) - f64::from(*snapshot);
            let size = consensus.abs() + before.abs() + snapshot.abs();
            let off = (f64::from(now) - expected).abs();
            // What was trained since may have broken it; the next snapshot tells.
            let broken = !now.is_finite() && !before.is_finite();
            if broken {
                continue;
            }
            if off.is_nan() || off > 1e-6 * f64::from(size) + 1e-30 {
                let what =
                    format!("{} has {now} at {index} where {expected} is its training on {version:?}", self.life.0);
                return fab.ledger.broken(Rule::Equal, what);
            }
        }
    }

    /// Training steps of this life.
    pub(crate) fn steps(&self) -> u64 {
        self.worker.session().steps_ever()
    }

    /// A process that has ended by itself: its status.
    pub(crate) fn status(&self) -> Option<i32> {
        let stuck = self.line.as_ref().and_then(|line| line.borrow().exit).map(i32::from);
        stuck.or_else(|| self.end.as_ref().map(|end| i32::from(matches!(end, End::Failed(_)))))
    }
}
