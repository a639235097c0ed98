//! What a cluster would do in each mode, before anybody trains: the scheduler itself in computed time, over a cost model
//! for averages.
//!
//! Batch times are given; what an average costs is modelled where it was not measured:
//!
//! - Over the **CPU** each host adds its ranks' parameters up at [`FOLD_RATE`], the root takes one copy from each host and
//!   gives one back over its own link, and all of it is a stream of chunks, so the slowest stage counts. Copying a
//!   rank's parameters out and in comes on top, and four link latencies (request, chunks, result, commit).
//! - Over **NCCL** a ring: `2 (n - 1) / n` copies over the slowest link and `2 (n - 1)` latencies (Patarasuk and Yuan,
//!   "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009). Inside one host the link is
//!   [`PCIE_RATE`].
//!
//! Not modelled: jitter (see the comparison of clusters in docs/PERFORMANCE.md), evaluation, checkpoints, deaths, and
//! what a longer window does to learning.

use std::time::Duration;

use crate::config::{AnchorSettings, Settings, SettingsError};
use crate::elche::Elche;
use crate::guard::NoGuard;
use crate::mode::{Mode, Policy};
use crate::model::Model;
use crate::span::Slot;

/// Bytes a second at which a host reads and adds parameters.
pub const FOLD_RATE: f64 = 2e9;
/// Bytes a second between two GPUs of one host.
pub const PCIE_RATE: f64 = 12e9;
/// Latency between two GPUs of one host, in seconds.
const PCIE_LATENCY: f64 = 20e-6;
/// Windows until the scheduler has found its length, and windows that are then looked at.
const SETTLING: usize = 40;
const WATCHED: usize = 30;

/// A cluster and what it trains.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Each host's ranks, by what a batch takes them.
    pub hosts: Vec<Vec<Duration>>,
    /// Samples a batch.
    pub batch_size: u32,
    /// Samples an epoch.
    pub epoch_len: u64,
    /// Bytes of the averaged parameters.
    pub bytes: u64,
    /// Between hosts.
    pub link: Link,
    /// What an average over the CPU was measured to take; none: it is modelled.
    pub measured: Option<Duration>,
}

/// A network between hosts.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Link {
    /// Bytes a second, each way.
    pub bytes_s: f64,
    /// One way.
    pub latency: Duration,
}

/// What a mode would do.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// The mode.
    pub mode: Mode,
    /// Samples a second over all ranks.
    pub samples_s: f64,
    /// That over what the ranks would train alone, in [0, 1].
    pub ceiling_fraction: f64,
    /// Batches of the slowest rank in a window, once it has found its length.
    pub anchor: u32,
    /// A window with its average.
    pub window: Duration,
    /// An average.
    pub reduce: Duration,
    /// Bytes a second over the busiest link between hosts, both ways; 0 on one host.
    pub link_bytes_s: f64,
    /// Throughput over that of averaging every step over the same back end.
    pub over_lockstep: f64,
}

impl Cluster {
    /// All ranks' batch times, in the order of hosts.
    pub fn batches(&self) -> impl Iterator<Item = Duration> {
        self.hosts.iter().flatten().copied()
    }

    /// Samples a second if every rank trained alone.
    pub fn ceiling(&self) -> f64 {
        self.batches().map(|batch| f64::from(self.batch_size) / batch.as_secs_f64().max(1e-9)).sum()
    }

    /// What an average takes.
    pub fn reduce(&self, mode: Mode) -> Duration {
        let bytes = self.bytes as f64;
        let hosts = self.hosts.len() as f64;
        let ranks = self.batches().count() as f64;
        let seconds = if !mode.is_cpu() {
            let (rate, latency) = match self.hosts.len() {
                0 | 1 => (PCIE_RATE, PCIE_LATENCY),
                _ => (self.link.bytes_s, self.link.latency.as_secs_f64()),
            };
            2.0 * (ranks - 1.0).max(0.0) * (bytes / ranks.max(1.0) / rate + latency)
        } else if let Some(measured) = self.measured {
            return measured;
        } else {
            let largest = self.hosts.iter().map(Vec::len).max().unwrap_or(0) as f64;
            let fold = largest * bytes / FOLD_RATE;
            let (link, latency) = match self.hosts.len() {
                0 | 1 => (0.0, 0.0),
                _ => (hosts * bytes / self.link.bytes_s, self.link.latency.as_secs_f64()),
            };
            fold.max(link) + 2.0 * bytes / FOLD_RATE + 4.0 * latency
        };
        // A round takes some time whatever it averages.
        Duration::try_from_secs_f64(seconds.max(1e-6)).unwrap_or(Duration::MAX)
    }

    /// What `mode` would do, with the anchor so bounded (which does not apply to lockstep).
    ///
    /// # Errors
    ///
    /// Where the anchor's settings contradict each other.
    pub fn forecast(&self, mode: Mode, anchor: AnchorSettings) -> Result<Forecast, SettingsError> {
        let lockstep = if mode.is_cpu() { Mode::CpuSync } else { Mode::NcclSync };
        let every_step = self.run(lockstep, AnchorSettings::default())?;
        let anchor = if mode.policy() == Policy::Sync { AnchorSettings::default() } else { anchor };
        let forecast = self.run(mode, anchor)?;
        let over_lockstep = if every_step.samples_s > 0.0 { forecast.samples_s / every_step.samples_s } else { 1.0 };
        Ok(Forecast { over_lockstep, ..forecast })
    }

    fn run(&self, mode: Mode, anchor: AnchorSettings) -> Result<Forecast, SettingsError> {
        let policy = mode.policy();
        let settings = Settings { policy, anchor, batch_size: 1, ..Settings::default() };
        let elche = Elche::new(settings, Box::new(NoGuard))?;
        let epoch = self.epoch_len.div_ceil(u64::from(self.batch_size.max(1)));
        let mut model = Model::new(Box::new(elche), policy, epoch);
        model.round.reduce = self.reduce(mode);
        for (slot, batch) in (0..).map(Slot).zip(self.batches()) {
            model.join(slot, Box::new(move |_| batch));
        }
        (0..SETTLING).for_each(|_| drop(model.window()));
        let (mut batches, mut wall) = (0, Duration::ZERO);
        for _ in 0..WATCHED {
            let window = model.window();
            batches += window.batches();
            wall = wall.saturating_add(window.wall);
        }
        let seconds = wall.as_secs_f64().max(1e-9);
        let samples_s = batches as f64 * f64::from(self.batch_size) / seconds;
        let hosts = self.hosts.len() as f64;
        let copies = match self.hosts.len() {
            0 | 1 => 0.0,
            _ if mode.is_cpu() => 2.0 * hosts,
            _ => 4.0 * (hosts - 1.0) / hosts,
        };
        Ok(Forecast {
            mode,
            samples_s,
            ceiling_fraction: samples_s / self.ceiling().max(1e-9),
            anchor: model.scheduler().anchor(),
            window: wall / WATCHED as u32,
            reduce: model.round.reduce,
            link_bytes_s: copies * self.bytes as f64 * WATCHED as f64 / seconds,
            over_lockstep: 1.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(hosts: &[&[u64]], megabytes: u64) -> Cluster {
        let host = |ranks: &&[u64]| ranks.iter().map(|&ms| Duration::from_millis(ms)).collect();
        Cluster {
            hosts: hosts.iter().map(host).collect(),
            batch_size: 64,
            epoch_len: 64 * 1_000_000,
            bytes: megabytes * 1_000_000,
            link: Link { bytes_s: 125e6, latency: Duration::from_micros(200) },
            measured: None,
        }
    }

    #[test]
    fn unequal_devices_gain_over_lockstep_and_stay_below_the_ceiling() {
        let cluster = cluster(&[&[8, 20, 32]], 20);
        for mode in Mode::ALL {
            let forecast = cluster.forecast(mode, AnchorSettings::default()).unwrap();
            assert!(forecast.ceiling_fraction <= 1.0 + 1e-9, "{forecast:?}");
            let (low, high) = match mode.policy() {
                Policy::Sync => (0.15, 0.45),
                Policy::Cadence => (0.96, 1.0),
                Policy::Async => (0.98, 1.0 + 1e-9),
            };
            assert!((low..=high).contains(&forecast.ceiling_fraction), "{forecast:?}");
            assert_eq!(forecast.over_lockstep > 2.0, mode.policy() != Policy::Sync, "{forecast:?}");
            assert_eq!(forecast.link_bytes_s, 0.0, "one host");
        }
    }

    #[test]
    fn averages_cost_what_the_model_says() {
        let ms = |cluster: &Cluster, mode| (cluster.reduce(mode).as_secs_f64() * 1e3).round();
        let one = cluster(&[&[10, 10]], 100);
        // Two copies folded at 2 GB/s, and one out and in.
        assert_eq!(ms(&one, Mode::CpuCadence), 200.0);
        let two = cluster(&[&[10], &[10]], 100);
        // Two copies over 1 Gbit/s, one out and in, four latencies.
        assert_eq!(ms(&two, Mode::CpuCadence), 1701.0);
        assert_eq!(ms(&two, Mode::NcclCadence), 800.0);
        let measured = Cluster { measured: Some(Duration::from_millis(70)), ..two };
        assert_eq!((ms(&measured, Mode::CpuAsync), ms(&measured, Mode::NcclSync)), (70.0, 800.0));
    }

    #[test]
    fn a_slow_link_asks_for_long_windows_and_extremes_do_not_panic() {
        let slow = cluster(&[&[10], &[10]], 100).forecast(Mode::CpuCadence, AnchorSettings::default()).unwrap();
        assert_eq!(slow.anchor, 1000);
        assert!(slow.link_bytes_s > 0.0);
        for odd in [cluster(&[], 1), cluster(&[&[]], 1), cluster(&[&[0]], 0), cluster(&[&[u64::MAX / 1_000_000]], 1)] {
            for mode in Mode::ALL {
                let forecast = odd.forecast(mode, AnchorSettings::default()).unwrap();
                assert!(forecast.samples_s.is_finite() && forecast.ceiling_fraction.is_finite(), "{forecast:?}");
            }
        }
        let bad = AnchorSettings { min: Some(9), max: Some(8), ..AnchorSettings::default() };
        assert!(slow.mode.is_cpu() && cluster(&[&[5]], 1).forecast(Mode::CpuCadence, bad).is_err());
    }
}
