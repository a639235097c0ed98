//! A miniature coordinator and fold, for running workers in memory: it orders equal rounds and averages what it gets.

#![allow(clippy::unwrap_used, dead_code, reason = "helpers of several tests, none of which uses all")]

use bytes::Bytes;
use flodl_cpureduce::{Absence, Consensus, Contributor, DivergenceMeter, Fold, Folded, Layout, Mass, Section};
use flodl_wire::message::control::{Next, Part, RosterEntry, RoundOutcome, WindowPlan};
use flodl_wire::message::data::{Chunk, Codec};
use flodl_wire::message::join::{Emulation, Ready, RunConfig};
use flodl_wire::message::report::{Evaluation, SyncAck, WindowReport};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Epoch, Incarnation, Range, Rank, Round, RunId, SessionId, Time, Version, WindowId};
use flodl_worker::dataset::Dataset;
use flodl_worker::session::End;
use flodl_worker::trainee::{Fault, Trainee};
use flodl_worker::worker::{Clock, Event, Turn, Worker};
use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Samples that are their own indices.
pub(crate) struct Numbers(pub(crate) u64);

impl Dataset for Numbers {
    type Batch = Vec<u64>;

    fn len(&self) -> u64 {
        self.0
    }

    fn signature(&self) -> [u8; 32] {
        [1; 32]
    }

    fn batch(&self, indices: &[u64]) -> Result<Vec<u64>, Fault> {
        Ok(indices.to_vec())
    }
}

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
        deterministic: false,
        pass_len: ready.dataset.len,
        epoch_splits: 1,
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

/// Runs rounds over seats.
pub(crate) struct Conductor<'a, T: Trainee> {
    pub(crate) seats: Vec<Seat<'a, T>>,
    pub(crate) run: RunConfig,
    round: u64,
    window: u64,
    version: Option<Version>,
    consensus: Consensus,
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
        let sizes = run.layout;
        let consensus = Consensus::empty(Layout::new(sizes.parameters, sizes.buffers, sizes.integers).unwrap());
        let mut conductor = Conductor { seats, run, round: 0, window: 0, version: None, consensus, global_step: 0 };
        conductor.average(|rank| if rank == 0 { Part::Source } else { Part::Receive }, Next::Window);
        conductor
    }

    /// One window with these leases of that epoch, then its round.
    pub(crate) fn step(&mut self, epoch: u64, leases: &[Vec<Range>], next: Next) -> RoundResult {
        self.train(epoch, leases);
        self.average(|_| Part::Contribute, next)
    }

    /// One window with these leases of that epoch.
    pub(crate) fn train(&mut self, epoch: u64, leases: &[Vec<Range>]) {
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
                overlap: None,
            }));
        }
        self.global_step += quota_sum;
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
        let contributions: Vec<Vec<Data>> = self.seats.iter_mut().map(|seat| std::mem::take(&mut seat.data)).collect();
        let chunks = self.fold(round, &contributions);
        let mass = chunks[0].0;
        result.divergence = contributions.iter().filter_map(|data| self.divergence(data, &chunks)).collect();
        let version = if mass > 0.0 { self.version.map_or(Version(0), Version::next) } else { self.version.unwrap() };
        for seat in &mut self.seats {
            for (chunk, (mass, bytes)) in (0..).zip(&chunks) {
                let (mass, bytes) = (*mass, bytes.clone());
                seat.give(Event::Data(Data::Consensus(Chunk {
                    round,
                    version,
                    chunk,
                    mass,
                    codec: Codec::Exact,
                    bytes,
                })));
            }
        }
        if mass > 0.0 {
            self.consensus.commit(version.0).unwrap();
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
        result
    }

    /// The mass and the result of each chunk.
    fn fold(&mut self, round: Round, contributions: &[Vec<Data>]) -> Vec<(f64, Bytes)> {
        let members = (0..).map(Contributor).take(contributions.len()).collect();
        let mut fold = Fold::new(round.0, *self.consensus.layout(), members).unwrap();
        for (member, data) in (0..).map(Contributor).zip(contributions) {
            for message in data {
                match message {
                    Data::Contribution(Chunk { chunk, mass, bytes, .. }) => {
                        fold.chunk(member, *chunk, Mass::new(*mass).unwrap(), bytes.clone()).unwrap();
                    }
                    Data::Absent { from_chunk, .. } => fold.absent(member, *from_chunk, Absence::NonFinite).unwrap(),
                    other => panic!("{other:?}"),
                }
            }
        }
        self.consensus.begin(round.0);
        let mut chunks = Vec::new();
        while let Some(folded) = fold.poll() {
            let (index, mass, sum) = match folded {
                Folded::Chunk { index, mass, data } => (index, mass, Some(data)),
                Folded::Empty { index } => (index, Mass::ZERO, None),
                Folded::Dropped { .. } => continue,
                Folded::Done => break,
            };
            chunks.push((mass.value(), self.consensus.finish_chunk(index, mass, sum).unwrap()));
        }
        chunks
    }

    /// How far a contribution's parameters are from the average; `None` for a contribution of nothing.
    fn divergence(&self, data: &[Data], chunks: &[(f64, Bytes)]) -> Option<f64> {
        let mut meter = DivergenceMeter::default();
        let mut contributed = false;
        for (spec, (message, (_, average))) in self.consensus.layout().iter().zip(data.iter().zip(chunks)) {
            let Data::Contribution(Chunk { mass, bytes, .. }) = message else { return None };
            contributed |= *mass > 0.0;
            if spec.section == Section::Parameters {
                let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes) / *mass as f32);
                meter.add(&values.collect::<Vec<f32>>(), average).unwrap();
            }
        }
        contributed.then(|| meter.divergence())
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
