//! A miniature coordinator and fold, for running workers in memory: it orders equal rounds and averages what it gets.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of several tests, none of which uses all")]

use flodl_cpureduce::{DivergenceMeter, Mass, average};
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::data::{Chunk, Codec};
use flodl_wire::message::join::{Emulation, Ready, RunConfig};
use flodl_wire::message::report::{Evaluation, SyncAck, WindowReport};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Epoch, Incarnation, Range, Rank, Round, RunId, SessionId, Time, Version, WindowId};
use flodl_worker::session::End;
use flodl_worker::trainee::Trainee;
use flodl_worker::worker::{Clock, Event, Turn, Worker};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// A clock that moves by the time a batch takes on this rank, and never otherwise.
pub(crate) struct BatchClock {
    pub(crate) now: Time,
    pub(crate) batch: Duration,
}

impl Clock for BatchClock {
    fn now(&mut self) -> Time {
        self.now
    }

    fn step_done(&mut self, started: Time, _: Option<&Emulation>) -> Time {
        self.now = started.plus(self.batch);
        self.now
    }
}

/// A rank under test, and what it has said.
pub(crate) struct Seat<'a, T: Trainee> {
    pub(crate) worker: Worker<'a, T>,
    pub(crate) clock: BatchClock,
    pub(crate) reports: Vec<Report>,
    pub(crate) data: Vec<Data>,
    pub(crate) end: Option<End>,
}

impl<'a, T: Trainee> Seat<'a, T> {
    pub(crate) fn new(worker: Worker<'a, T>, batch: Duration) -> Seat<'a, T> {
        let clock = BatchClock { now: Time::ZERO, batch };
        let mut seat = Seat { worker, clock, reports: Vec::new(), data: Vec::new(), end: None };
        seat.drain();
        seat
    }

    /// Gives an event, then takes turns until there is nothing to do.
    pub(crate) fn give(&mut self, event: Event) {
        self.worker.handle(event, self.clock.now);
        self.drain();
    }

    pub(crate) fn order(&mut self, message: Control) {
        self.give(Event::Control(message));
    }

    pub(crate) fn drain(&mut self) {
        loop {
            match self.worker.turn(&mut self.clock) {
                Turn::Report(report) => self.reports.push(report),
                Turn::Data(data) => self.data.push(data),
                Turn::Worked => {}
                Turn::Idle => break,
                Turn::End(end) => {
                    self.end = Some(end);
                    break;
                }
            }
        }
    }

    pub(crate) fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    pub(crate) fn ready(&self) -> Ready {
        match self.reports.first() {
            Some(Report::Ready(ready)) => (**ready).clone(),
            other => panic!("a rank begins with Ready, not with {other:?}"),
        }
    }
}

/// Settings that fit what a rank said in its `Ready`.
pub(crate) fn run_config(ready: &Ready, world_size: u32, epochs: u64) -> RunConfig {
    RunConfig {
        run_id: RunId([7; 16]),
        world_size,
        mode: "cpu-cadence".to_owned(),
        epochs,
        batch_size: ready.trainer.batch_size.unwrap_or(4),
        seed: 11,
        dataset_len: ready.dataset.len,
        epoch_len: ready.dataset.len,
        layout: ready.layout,
        patience: PATIENCE,
        emulation: None,
    }
}

pub(crate) fn roster(world_size: u32, part: impl Fn(u32) -> Part) -> Vec<RosterEntry> {
    (0..world_size)
        .map(|rank| RosterEntry {
            rank: Rank(rank),
            incarnation: Incarnation(1),
            session: SessionId(1),
            part: part(rank),
        })
        .collect()
}

/// What one round gave.
#[derive(Debug, Default)]
pub(crate) struct RoundResult {
    pub(crate) reports: Vec<WindowReport>,
    pub(crate) acks: Vec<SyncAck>,
    pub(crate) ranges: Vec<Range>,
    pub(crate) divergence: Vec<f64>,
}

/// Runs rounds over seats whose models have one section, the parameters.
pub(crate) struct Conductor<'a, T: Trainee> {
    pub(crate) seats: Vec<Seat<'a, T>>,
    pub(crate) run: RunConfig,
    round: u64,
    window: u64,
    version: Option<Version>,
    consensus: Vec<f32>,
    global_step: u64,
}

impl<'a, T: Trainee> Conductor<'a, T> {
    pub(crate) fn new(mut seats: Vec<Seat<'a, T>>, epochs: u64) -> Conductor<'a, T> {
        let world_size = u32::try_from(seats.len()).unwrap();
        let run = run_config(&seats[0].ready(), world_size, epochs);
        for seat in &mut seats {
            seat.order(Control::Admitted(Box::new(run.clone())));
            seat.take_reports();
        }
        Conductor::admitted(seats, run)
    }

    /// The same for seats that were admitted with `run`.
    pub(crate) fn admitted(seats: Vec<Seat<'a, T>>, run: RunConfig) -> Conductor<'a, T> {
        let mut conductor =
            Conductor { seats, run, round: 0, window: 0, version: None, consensus: Vec::new(), global_step: 0 };
        conductor.average(|rank| if rank == 0 { Part::Source } else { Part::Receive }, Next::Window);
        conductor
    }

    /// One window with these leases of that epoch, then its round.
    pub(crate) fn step(&mut self, epoch: u64, leases: &[Vec<Range>], next: Next) -> RoundResult {
        self.window += 1;
        let batch_size = u64::from(self.run.batch_size);
        let quotas: Vec<u32> = leases
            .iter()
            .map(|lease| u32::try_from(flodl_wire::id::samples(lease).div_ceil(batch_size)).unwrap())
            .collect();
        let quota_sum = quotas.iter().map(|&quota| u64::from(quota)).sum();
        for ((seat, lease), &quota) in self.seats.iter_mut().zip(leases).zip(&quotas) {
            seat.order(Control::Window(WindowPlan {
                window: WindowId(self.window),
                epoch: Epoch(epoch),
                leases: lease.clone(),
                quota,
                quota_max: quota,
                budget: None,
                global_step: self.global_step,
                quota_sum,
            }));
        }
        self.global_step += quota_sum;
        self.average(|_| Part::Contribute, next)
    }

    /// One round among all seats.
    pub(crate) fn average(&mut self, part: impl Fn(u32) -> Part, next: Next) -> RoundResult {
        let round = Round(self.round);
        self.round += 1;
        let roster = roster(self.run.world_size, part);
        let mut result = RoundResult::default();
        for seat in &mut self.seats {
            seat.order(Control::RequestParams { round, roster: roster.clone() });
        }
        let contributions: Vec<(Mass, Vec<f32>)> =
            self.seats.iter_mut().map(|seat| contribution(std::mem::take(&mut seat.data))).collect();
        let slices: Vec<(Mass, &[f32])> = contributions.iter().map(|(mass, values)| (*mass, &values[..])).collect();
        let mass: f64 = slices.iter().map(|(mass, _)| mass.value()).sum();
        if mass > 0.0 {
            // Contributions come scaled, so they are summed with mass 1 and divided once.
            let ones: Vec<(Mass, &[f32])> =
                slices.iter().filter(|(mass, _)| !mass.is_zero()).map(|(_, values)| (Mass::ONE, *values)).collect();
            let count = ones.len() as f32;
            let mean = average(&ones).unwrap();
            self.consensus = mean.iter().map(|value| value * count / mass as f32).collect();
        }
        let version = if mass > 0.0 { self.version.map_or(Version(0), Version::next) } else { self.version.unwrap() };
        for seat in &mut self.seats {
            for data in result_chunks(round, version, mass, &self.consensus) {
                seat.give(Event::Data(data));
            }
        }
        let outcome = if mass > 0.0 { RoundOutcome::Committed { version } } else { RoundOutcome::Nothing };
        self.version = Some(version);
        for seat in &mut self.seats {
            seat.order(Control::RoundDone { round, outcome, next });
            for report in seat.take_reports() {
                match report {
                    Report::WindowReport(report) => result.reports.push(*report),
                    Report::SnapshotReady { ranges, .. } => result.ranges.extend(ranges),
                    Report::SyncAck(ack) => result.acks.push(ack),
                    Report::Progress { .. } => {}
                    other => panic!("unexpected: {other:?}"),
                }
            }
        }
        for (mass, values) in &slices {
            let mut meter = DivergenceMeter::default();
            let theta: Vec<f32> = values.iter().map(|value| value / mass.as_f32()).collect();
            let bytes: Vec<u8> = self.consensus.iter().flat_map(|value| value.to_le_bytes()).collect();
            if !mass.is_zero() {
                meter.add(&theta, &bytes).unwrap();
                result.divergence.push(meter.divergence());
            }
        }
        result
    }

    /// The final evaluation at the first seat, and the end of all.
    pub(crate) fn finish(&mut self) -> Evaluation {
        self.seats[0].order(Control::ExecuteEval { schedule: 1 });
        let reports = self.seats[0].take_reports();
        let [Report::EvalResult { outcome: Ok(evaluation), .. }] = reports[..] else { panic!("{reports:?}") };
        for seat in &mut self.seats {
            seat.order(Control::Shutdown);
            let version = self.version;
            assert_eq!(seat.end, Some(End::Finished { version }));
        }
        evaluation
    }
}

/// The values that came in chunks, with their mass; zero and nothing for `Absent`.
fn contribution(data: Vec<Data>) -> (Mass, Vec<f32>) {
    let mut values = Vec::new();
    let mut mass = Mass::ZERO;
    for (place, message) in data.into_iter().enumerate() {
        match message {
            Data::Contribution(chunk) => {
                assert_eq!(chunk.chunk as usize, place);
                mass = Mass::new(chunk.mass).unwrap();
                values.extend(chunk.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            }
            Data::Absent { .. } => return (Mass::ZERO, Vec::new()),
            other => panic!("{other:?}"),
        }
    }
    (mass, values)
}

/// A result in the chunks of the layout.
pub(crate) fn result_chunks(round: Round, version: Version, mass: f64, values: &[f32]) -> Vec<Data> {
    let chunk_elements = flodl_cpureduce::CHUNK_BYTES as usize / 4;
    let chunk = |(place, values): (usize, &[f32])| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let chunk = u32::try_from(place).unwrap();
        Data::Consensus(Chunk { round, version, chunk, mass, codec: Codec::Exact, bytes: bytes.into() })
    };
    values.chunks(chunk_elements).enumerate().map(chunk).collect()
}

/// Leases of an epoch in consecutive windows, by the ranks' batches a window: `windows[w][rank]`.
pub(crate) fn windows(epoch_len: u64, batch_size: u64, batches: &[u64]) -> Vec<Vec<Vec<Range>>> {
    let mut next = 0;
    let mut windows = Vec::new();
    while next < epoch_len {
        let mut take = |batches: u64| {
            let start = next;
            next = epoch_len.min(next + batches * batch_size);
            vec![Range { start, end: next }]
        };
        windows.push(batches.iter().map(|&batches| take(batches)).collect());
    }
    windows
}

/// How often each position occurs.
pub(crate) fn counted(ranges: &[Range]) -> BTreeMap<u64, u32> {
    let mut counts = BTreeMap::new();
    for position in ranges.iter().flat_map(|range| range.start..range.end) {
        *counts.entry(position).or_insert(0) += 1;
    }
    counts
}
