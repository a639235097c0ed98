//! What a finished run's timeline tells of its ranks and averages, and the same run under other settings (`flodl replay`).

use super::args::ReplayArgs;
use super::failure::Failure;
use crate::id;
use core::time::Duration;
use flodl_elche::forecast::{Cluster, Link};
use flodl_elche::model::Model;
use flodl_elche::{Change, Elche, GuardKind, Mode, Settings};
use flodl_monitor::timeline::Reader;
use flodl_wire::message::Record;
use flodl_wire::message::record::{Body, Meta, Node, RankWindow, RootRound};
use flodl_wire::{Rank, Round};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// One rank's windows: batches done until the end of each, and what a batch took in it.
type Paces = Vec<(u64, Duration)>;

/// A run as its timeline has it.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    meta: Option<Box<Meta>>,
    paces: BTreeMap<Rank, Paces>,
    fills: Vec<Duration>,
    rates: Vec<f64>,
    rounds: Vec<RootRound>,
}

impl Recorded {
    /// The timeline in a run's folder. Lines that are no records are passed over, as by everything that reads timelines.
    pub(crate) fn read(folder: &Path) -> Result<Recorded, Failure> {
        let mut recorded = Recorded::default();
        for record in Reader::open(folder).map_err(Failure::usage)?.flatten() {
            recorded.take(record);
        }
        Ok(recorded)
    }

    fn take(&mut self, record: Record) {
        match record.body {
            Body::Meta(meta) => self.meta = Some(meta),
            Body::Node(Node::Rank(window)) => self.take_window(&window),
            Body::Node(Node::Root(round)) if round.round > Round(0) => self.rounds.push(round),
            Body::Node(Node::Root(_) | Node::Epoch(_)) | Body::Event(_) => {}
        }
    }

    fn take_window(&mut self, window: &RankWindow) {
        let Some(batch) = window.batch_time.filter(|_| window.batches > 0) else { return };
        let paces = self.paces.entry(window.rank).or_default();
        let before = paces.last().map_or(0, |&(batches, _)| batches);
        paces.push((before.saturating_add(u64::from(window.batches)), batch));
        self.fills.push(window.fill);
        self.rates.push(window.lr);
    }

    fn meta(&self) -> Result<&Meta, String> {
        let meta = self.meta.as_deref().filter(|_| !self.paces.is_empty() && !self.rounds.is_empty());
        meta.ok_or_else(|| "the run's timeline holds no finished window: nothing can be told from it".to_owned())
    }

    fn reduce(&self) -> Option<Duration> {
        median(self.rounds.iter().map(|round| round.reduce).collect())
    }

    /// The cluster that it ran on.
    pub(crate) fn cluster(&self) -> Result<Cluster, String> {
        let meta = self.meta()?;
        let batch = |rank: &Rank| median(self.paces.get(rank)?.iter().map(|&(_, batch)| batch).collect());
        let host = |ranks: &Vec<Rank>| ranks.iter().filter_map(batch).collect::<Vec<Duration>>();
        Ok(Cluster {
            hosts: meta.hosts.iter().map(|(_, ranks)| host(ranks)).filter(|host| !host.is_empty()).collect(),
            batch_size: meta.batch_size,
            epoch_len: meta.epoch_len,
            bytes: meta.parameters.saturating_mul(4),
            link: Link { bytes_s: 125e6, latency: Duration::from_micros(200) },
            measured: self.reduce(),
        })
    }

    /// The run's batches and wall time.
    fn totals(&self) -> (u64, Duration) {
        let batches = self.paces.values().filter_map(|paces| paces.last()).map(|&(batches, _)| batches).sum();
        (batches, self.rounds.iter().map(|round| round.wall).sum())
    }

    /// Trains the same batches again in computed time.
    fn again(&self, settings: Settings, guard: GuardKind) -> Result<Replay, Failure> {
        let meta = self.meta().map_err(Failure::failed)?;
        let epoch = meta.epoch_len.div_ceil(u64::from(meta.batch_size.max(1)));
        let policy = settings.policy;
        let elche = Elche::new(settings, guard.build(1.0)).map_err(Failure::usage)?;
        let mut model = Model::new(Box::new(elche), policy, epoch);
        for (&rank, paces) in &self.paces {
            let paces = paces.clone();
            model.join(id::slot(rank), Box::new(move |batch| pace(&paces, batch)));
        }
        model.round.fill = median(self.fills.clone()).unwrap_or_default();
        let (batches, _) = self.totals();
        let mut replay = Replay::default();
        while replay.batches < batches && replay.windows < batches {
            let at = replay.windows as usize;
            if let Some(round) = self.rounds.get(at).or(self.rounds.last()) {
                model.round.reduce = round.reduce;
                model.round.divergence = round.divergence.iter().map(|&(_, d)| d).reduce(f64::max);
            }
            model.round.rate = self.rates.get(at * self.paces.len()).copied().filter(|rate| rate.is_finite());
            let window = model.window();
            replay.windows += 1;
            replay.batches += window.batches();
            replay.wall += window.wall;
            replay.anchor = window.plan.anchor;
            let said = window.plan.reasons.iter().chain(&window.changes).filter(|change| tells(change));
            replay.changes.extend(said.map(|change| (replay.windows, change.to_string())));
        }
        Ok(replay)
    }
}

/// What a rank's `batch`th batch took, from 0; beyond the end of the run as in its last window.
fn pace(paces: &Paces, batch: u64) -> Duration {
    let at = paces.partition_point(|&(end, _)| end <= batch);
    paces.get(at).or(paces.last()).map_or(Duration::ZERO, |&(_, took)| took)
}

fn median(mut values: Vec<Duration>) -> Option<Duration> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// A replayed run.
#[derive(Debug, Default)]
struct Replay {
    windows: u64,
    batches: u64,
    wall: Duration,
    anchor: u32,
    changes: Vec<(u64, String)>,
}

/// What changed the length of windows, or speeds.
fn tells(change: &Change) -> bool {
    matches!(
        change,
        Change::Anchor { .. }
            | Change::Judged { .. }
            | Change::Rearmed { .. }
            | Change::Regime { .. }
            | Change::Elected { .. }
    )
}

/// Replays a run; the text for standard output.
pub(crate) fn replay(args: &ReplayArgs) -> Result<String, Failure> {
    let recorded = Recorded::read(&args.run)?;
    let meta = recorded.meta().map_err(Failure::failed)?;
    let mode: Mode = meta.mode.parse().map_err(Failure::failed)?;
    let scheduling = super::controller::scheduling(&args.scheduling)?;
    let settings = Settings {
        policy: mode.policy(),
        batch_size: 1,
        anchor: scheduling.anchor,
        max_batch_diff: scheduling.max_batch_diff,
        speed_hints: scheduling.speeds.iter().map(|(&rank, &speed)| (id::slot(rank), speed)).collect(),
        ..Settings::default()
    };
    let replay = recorded.again(settings, scheduling.guard)?;
    let (batches, wall) = recorded.totals();
    let rate =
        |batches: u64, wall: Duration| batches as f64 * f64::from(meta.batch_size) / wall.as_secs_f64().max(1e-9);
    let (was, would) = (rate(batches, wall), rate(replay.batches, replay.wall));
    let recorded_anchor = recorded.rounds.last().map_or(0, |round| round.anchor);
    if args.json {
        let change = |(window, text): &(u64, String)| json!({ "window": window, "change": text });
        let side = |windows: u64, batches: u64, wall: Duration, anchor: u32, rate: f64| -> Value {
            json!({
                "windows": windows, "batches": batches, "wall_s": wall.as_secs_f64(), "anchor": anchor,
                "samples_per_s": rate,
            })
        };
        let json = json!({
            "recorded": side(recorded.rounds.len() as u64, batches, wall, recorded_anchor, was),
            "replayed": side(replay.windows, replay.batches, replay.wall, replay.anchor, would),
            "changes": replay.changes.iter().map(change).collect::<Vec<_>>(),
            "assumed": ASSUMED,
        });
        return Ok(format!("{json:#}"));
    }
    let mut text = String::new();
    writeln!(
        text,
        "recorded: {} windows, {batches} batches in {wall:.1?}, {was:.0} samples/s, anchor {recorded_anchor}",
        recorded.rounds.len()
    )
    .ok();
    let Replay { windows, batches, wall, anchor, changes } = &replay;
    writeln!(
        text,
        "replayed: {windows} windows, {batches} batches in {wall:.1?}, {would:.0} samples/s, anchor {anchor}"
    )
    .ok();
    for (window, change) in changes {
        writeln!(text, "  {window}: {change}").ok();
    }
    write!(text, "assumed: {ASSUMED}").ok();
    Ok(text)
}

const ASSUMED: &str = "each rank's batches take what they took at the same count; averages and divergences are those of the \
                       same round; nobody dies, evaluates or saves";

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::Time;

    fn recorded(windows: u64) -> Recorded {
        let ms = Duration::from_millis;
        let mut recorded = Recorded::default();
        let meta = Meta {
            mode: "cpu-cadence".to_owned(),
            batch_size: 64,
            epoch_len: 64 * 10_000,
            samples: 64 * 10_000,
            epoch_splits: 1,
            parameters: 1000,
            hosts: vec![(flodl_wire::HostId::from_name("a").expect("a name"), vec![Rank(0), Rank(1)])],
            ..meta()
        };
        let mut take = |body| recorded.take(Record { at: Time::ZERO, body });
        take(Body::Meta(Box::new(meta)));
        for round in 1..=windows {
            for (rank, batch) in [(0, 10), (1, 40)] {
                let batches = 160 / batch as u32;
                take(Body::Node(Node::Rank(window(Rank(rank), batches, ms(batch)))));
            }
            take(Body::Node(Node::Root(RootRound {
                round: Round(round),
                window: flodl_wire::WindowId(round),
                wall: ms(260),
                reduce: ms(100),
                anchor: 4,
                loss: None,
                divergence: vec![(Rank(0), 0.01 * round as f64)],
            })));
        }
        recorded
    }

    fn meta() -> Meta {
        Meta {
            run_id: flodl_wire::RunId([1; 16]),
            flodl: String::new(),
            world_size: 2,
            mode: String::new(),
            epochs: 1,
            batch_size: 1,
            dataset_len: 1,
            epoch_len: 1,
            samples: 1,
            epoch_splits: 1,
            seed: 0,
            parameters: 1,
            patience: Duration::from_secs(10),
            emulated: Vec::new(),
            hosts: Vec::new(),
        }
    }

    fn window(rank: Rank, batches: u32, batch: Duration) -> RankWindow {
        RankWindow {
            rank,
            window: flodl_wire::WindowId(1),
            epoch: flodl_wire::Epoch(0),
            batches,
            samples: u64::from(batches) * 64,
            batch_time: Some(batch),
            fill: Duration::ZERO,
            data_wait: Duration::ZERO,
            idle: Duration::ZERO,
            loss_sum: 0.0,
            loss_count: 0,
            lr: 0.1,
        }
    }

    #[test]
    fn a_cluster_is_read_out_of_a_run() {
        let cluster = recorded(5).cluster().expect("there are windows");
        assert_eq!(cluster.hosts, [[10, 40].map(Duration::from_millis)]);
        assert_eq!((cluster.measured, cluster.bytes), (Some(Duration::from_millis(100)), 4000));
        assert!(recorded(0).cluster().is_err());
    }

    #[test]
    fn other_settings_give_another_run() {
        let recorded = recorded(40);
        assert_eq!(recorded.totals(), (800, Duration::from_millis(40 * 260)));
        let run = |guard| {
            let settings = Settings { batch_size: 1, ..Settings::default() };
            recorded.again(settings, guard).unwrap_or_else(|failure| panic!("{}", failure.text))
        };
        let (free, guarded) = (run(GuardKind::None), run(GuardKind::Trend));
        // 800 batches in 10.4 s were recorded.
        let per_second = free.batches as f64 / free.wall.as_secs_f64();
        assert!(free.batches >= 800 && free.anchor > 4 && per_second > 100.0, "{free:?}");
        assert!(guarded.windows > free.windows, "a guard that forbids growth makes more windows: {guarded:?}");
        assert!(guarded.changes.iter().any(|(_, change)| change.contains("divergence rose")), "{guarded:?}");
    }

    #[test]
    fn a_rank_beyond_its_record_goes_on_as_it_ended() {
        let paces: Paces = vec![(2, Duration::from_millis(5)), (4, Duration::from_millis(9))];
        assert_eq!([0, 1, 2, 3, 4, 99].map(|batch| pace(&paces, batch).as_millis()), [5, 5, 9, 9, 9, 9]);
    }
}
