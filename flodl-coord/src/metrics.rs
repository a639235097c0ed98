//! An epoch's figures over all ranks: losses weighted by the samples behind them, waits by the longest, and the users' own
//! figures by the reduction that they declared.
//!
//! What ranks report counts for the epoch that they trained in, whatever becomes of it; what is committed is counted apart.
//! A window that runs over the end of an epoch is reported as a whole, and counts for the oldest one that is open
//! then.

use core::time::Duration;
use flodl_wire::message::join::{Reduction, ScalarSpec};
use flodl_wire::message::record::{Divergence, EpochMetrics, RankEpoch};
use flodl_wire::message::report::WindowReport;
use flodl_wire::{Epoch, Rank, Time, Version};
use std::collections::BTreeMap;

/// What the open epochs have come to so far.
#[derive(Debug)]
pub(crate) struct Figures {
    declared: Vec<ScalarSpec>,
    open: BTreeMap<Epoch, Metrics>,
}

impl Figures {
    pub(crate) fn new(declared: &[ScalarSpec]) -> Figures {
        Figures { declared: declared.to_vec(), open: BTreeMap::new() }
    }

    /// Those of an epoch, which has begun now where nothing is known of it.
    pub(crate) fn of(&mut self, epoch: Epoch, now: Time) -> &mut Metrics {
        self.open.entry(epoch).or_insert_with(|| Metrics::begin(&self.declared, now))
    }

    /// An epoch is over. The next one begins, unless it has.
    pub(crate) fn end(&mut self, epoch: Epoch, version: Option<Version>, now: Time) -> EpochMetrics {
        let metrics = self.of(epoch, now).end(epoch, version, now);
        self.open.retain(|&open, _| open > epoch);
        self.of(Epoch(epoch.0.saturating_add(1)), now);
        metrics
    }
}

/// What an epoch has come to so far.
#[derive(Debug)]
pub(crate) struct Metrics {
    declared: Vec<ScalarSpec>,
    scalars: Vec<Scalar>,
    ranks: BTreeMap<Rank, Part>,
    began: Time,
    rounds: u64,
    repeats: u64,
    quarantined: u64,
    reduce: Duration,
    divergence: Spread,
}

/// One of the users' own figures.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Scalar {
    reduction: Reduction,
    value: f64,
    /// The samples behind it; 0: nothing was reported.
    weight: f64,
}

/// One rank's part.
#[derive(Copy, Clone, Debug, Default)]
struct Part {
    batches: u64,
    committed: u64,
    loss_sum: f64,
    loss_count: u64,
    wait: Duration,
    data_wait: Duration,
}

/// How far replicas were from the averages.
#[derive(Copy, Clone, Debug, Default)]
struct Spread {
    sum: f64,
    count: u64,
    max: f64,
    last: Option<f64>,
}

impl Scalar {
    fn take(&mut self, value: f64, weight: f64) {
        if !value.is_finite() {
            return;
        }
        let first = self.weight == 0.0;
        let total = self.weight + weight;
        self.value = match self.reduction {
            _ if first => value,
            Reduction::Mean => self.value + (value - self.value) * (weight / total),
            Reduction::Sum => self.value + value,
            Reduction::Min => self.value.min(value),
            Reduction::Max => self.value.max(value),
            Reduction::Last => value,
        };
        self.weight = total;
    }
}

impl Part {
    fn loss(&self) -> Option<f64> {
        (self.loss_count > 0).then(|| self.loss_sum / self.loss_count as f64)
    }
}

impl Metrics {
    /// For an epoch that begins now.
    pub(crate) fn begin(declared: &[ScalarSpec], now: Time) -> Metrics {
        let scalar = |of: &ScalarSpec| Scalar { reduction: of.reduction, value: 0.0, weight: 0.0 };
        Metrics {
            declared: declared.to_vec(),
            scalars: declared.iter().map(scalar).collect(),
            ranks: BTreeMap::new(),
            began: now,
            rounds: 0,
            repeats: 0,
            quarantined: 0,
            reduce: Duration::ZERO,
            divergence: Spread::default(),
        }
    }

    /// A rank reports a window. What is no number does not count.
    pub(crate) fn window(&mut self, rank: Rank, report: &WindowReport) {
        let part = self.ranks.entry(rank).or_default();
        part.batches = part.batches.saturating_add(u64::from(report.batches));
        part.wait = part.wait.saturating_add(report.idle);
        part.data_wait = part.data_wait.saturating_add(report.data_wait);
        if report.loss_sum.is_finite() {
            part.loss_sum += report.loss_sum;
            part.loss_count = part.loss_count.saturating_add(report.loss_count);
        }
        if report.samples == 0 {
            return;
        }
        for (name, value) in &report.scalars {
            if let Some(at) = self.declared.iter().position(|of| of.name == *name) {
                self.scalars[at].take(*value, report.samples as f64);
            }
        }
    }

    /// A round made a new version: what it took, and how far the replicas were from it.
    pub(crate) fn round(&mut self, reduce: Duration, divergence: impl Iterator<Item = f64>) {
        self.rounds += 1;
        self.reduce = self.reduce.saturating_add(reduce);
        let mut last: Option<f64> = None;
        for far in divergence.filter(|far| far.is_finite()) {
            self.divergence.sum += far;
            self.divergence.count += 1;
            self.divergence.max = self.divergence.max.max(far);
            last = Some(last.map_or(far, |most| most.max(far)));
        }
        self.divergence.last = last.or(self.divergence.last);
    }

    /// A round settled so many samples of a rank's that are of this epoch.
    pub(crate) fn settled(&mut self, rank: Rank, committed: u64, repeats: u64) {
        self.repeats = self.repeats.saturating_add(repeats);
        if committed > 0 {
            self.ranks.entry(rank).or_default().committed += committed;
        }
    }

    /// So many samples were set aside.
    pub(crate) fn set_aside(&mut self, samples: u64) {
        self.quarantined = self.quarantined.saturating_add(samples);
    }

    /// The epoch is over.
    pub(crate) fn end(&self, epoch: Epoch, version: Option<Version>, now: Time) -> EpochMetrics {
        let committed: u64 = self.ranks.values().map(|part| part.committed).sum();
        let (loss_sum, loss_count) = self
            .ranks
            .values()
            .fold((0.0, 0u64), |(sum, count), part| (sum + part.loss_sum, count.saturating_add(part.loss_count)));
        let all = self.declared.iter().zip(&self.scalars);
        let known = all.filter(|(_, scalar)| scalar.weight > 0.0);
        let Spread { sum, count, max, last } = self.divergence;
        EpochMetrics {
            epoch,
            version,
            wall: now.since(self.began),
            rounds: self.rounds,
            batches: self.ranks.values().map(|part| part.batches).sum(),
            committed,
            repeats: self.repeats,
            quarantined: self.quarantined,
            loss: (loss_count > 0).then(|| loss_sum / loss_count as f64),
            scalars: known.map(|(of, scalar)| (of.name.clone(), scalar.value)).collect(),
            wait: self.ranks.values().map(|part| part.wait).max().unwrap_or_default(),
            reduce: self.reduce,
            divergence: last.map(|last| Divergence { mean: sum / count as f64, max, last }),
            ranks: self.ranks.iter().map(|(&rank, part)| rank_epoch(rank, part, committed)).collect(),
        }
    }
}

fn rank_epoch(rank: Rank, part: &Part, all: u64) -> RankEpoch {
    let Part { batches, committed, wait, data_wait, .. } = *part;
    let share = if all > 0 { committed as f64 / all as f64 } else { 0.0 };
    RankEpoch { rank, batches, committed, share, loss: part.loss(), wait, data_wait }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn declared() -> Vec<ScalarSpec> {
        [Reduction::Mean, Reduction::Sum, Reduction::Min, Reduction::Max, Reduction::Last]
            .map(|reduction| ScalarSpec { name: format!("{reduction:?}"), reduction })
            .to_vec()
    }

    fn report(samples: u64, loss_sum: f64, value: f64) -> WindowReport {
        let scalars = declared().into_iter().map(|of| (of.name, value)).collect();
        let (batches, idle, data_wait) = (2, 3 * MS, MS);
        WindowReport { samples, batches, loss_sum, loss_count: samples, idle, data_wait, scalars, ..Default::default() }
    }

    #[test]
    fn every_figure_is_put_together_as_declared() {
        let mut metrics = Metrics::begin(&declared(), Time(1_000_000));
        metrics.window(Rank(0), &report(30, 15.0, 0.5));
        metrics.window(Rank(0), &report(30, 15.0, 0.25));
        metrics.window(Rank(2), &report(40, 60.0, 1.0));
        metrics.round(MS, [0.1, 0.3].into_iter());
        metrics.round(MS, [0.2].into_iter());
        metrics.settled(Rank(0), 60, 0);
        metrics.settled(Rank(2), 20, 20);
        metrics.set_aside(1);
        let EpochMetrics { ranks, divergence, scalars, .. } = metrics.end(Epoch(4), Some(Version(9)), Time(9_000_000));
        let whole = metrics.end(Epoch(4), Some(Version(9)), Time(9_000_000));
        assert_eq!((whole.epoch, whole.version, whole.wall), (Epoch(4), Some(Version(9)), 8 * MS));
        assert_eq!((whole.rounds, whole.batches, whole.reduce, whole.wait), (2, 6, 2 * MS, 6 * MS));
        assert_eq!((whole.committed, whole.repeats, whole.quarantined, whole.loss), (80, 20, 1, Some(0.9)));
        let value = |name: &str| scalars.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
        let mean = (30.0 * 0.5 + 30.0 * 0.25 + 40.0 * 1.0) / 100.0;
        assert!((value("Mean").unwrap_or_default() - mean).abs() < 1e-12, "{scalars:?}");
        assert_eq!(["Sum", "Min", "Max", "Last"].map(value), [Some(1.75), Some(0.25), Some(1.0), Some(1.0)]);
        let divergence = divergence.expect("was told");
        assert!((divergence.mean - 0.2).abs() < 1e-12);
        assert_eq!((divergence.max, divergence.last), (0.3, 0.2));
        let parts: Vec<_> = ranks.iter().map(|of| (of.rank, of.committed, of.share, of.loss)).collect();
        assert_eq!(parts, [(Rank(0), 60, 0.75, Some(0.5)), (Rank(2), 20, 0.25, Some(1.5))]);
    }

    #[test]
    fn what_is_committed_of_a_later_epoch_is_counted_there() {
        let mut figures = Figures::new(&[]);
        figures.of(Epoch(4), Time::ZERO).settled(Rank(0), 60, 0);
        figures.of(Epoch(5), Time(1_000_000)).settled(Rank(0), 10, 0);
        let over = figures.end(Epoch(4), None, Time(2_000_000));
        assert_eq!((over.committed, over.wall), (60, 2 * MS));
        let over = figures.end(Epoch(5), None, Time(4_000_000));
        assert_eq!((over.committed, over.wall), (10, 3 * MS));
        assert_eq!(figures.end(Epoch(6), None, Time(5_000_000)).wall, MS);
    }

    #[test]
    fn what_is_no_number_or_not_declared_does_not_count() {
        let mut metrics = Metrics::begin(&declared()[..1], Time::ZERO);
        metrics.window(Rank(0), &report(10, f64::NAN, f64::INFINITY));
        metrics.window(Rank(1), &report(0, 0.0, 7.0));
        metrics.round(MS, [f64::NAN].into_iter());
        let end = metrics.end(Epoch(0), None, Time::ZERO);
        assert_eq!((end.loss, end.scalars, end.divergence, end.batches), (None, Vec::new(), None, 4));
        assert!(end.ranks.iter().all(|rank| rank.share == 0.0));
    }
}
