//! How near to its ceiling a cluster comes: an hour of training without faults, with windows of budgets and of counts.
//!
//! The ceiling is the sum of what the ranks would do alone, not lowered for throttling. What is lost to it is everything
//! that a rank waits for: the barrier, the reduce, the first batch of a window, and what throttling takes.

use super::options::{Options, Plane, Request, Speed, Work};
use super::rng::Rng;
use super::world::World;
use crate::{Duties, MaxFailure, Scheduling};
use core::time::Duration;
use flodl_cpureduce::Codec;
use flodl_elche::{AnchorSettings, Mode, Windowing};
use flodl_wire::Time;
use serde_json::{Value, json};

const MS: f64 = 1e6;
const HOUR: Time = Time(3_600_000_000_000);
/// The fastest rank's batch.
const FASTEST_MS: f64 = 50.0;
const OVERHEAD_TARGET: f64 = 0.02;

/// A cluster, and what it must reach with budgets.
struct Cluster {
    name: &'static str,
    /// How many times longer than the fastest rank's each rank's batch is.
    slowness: Vec<f64>,
    least: f64,
}

/// One measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Which ranks.
    pub cluster: &'static str,
    /// `budget` or `count`.
    pub windowing: &'static str,
    /// Batches done over those of the ceiling.
    pub fraction: f64,
    /// What it must be at least.
    pub least: Option<f64>,
}

fn clusters() -> [Cluster; 3] {
    let spread = (0..64).map(|rank| 10f64.powf(f64::from(rank) / 63.0)).collect();
    [
        Cluster { name: "3", slowness: vec![1.0, 2.3, 2.3], least: 0.97 },
        Cluster { name: "8-mixed", slowness: vec![1.0, 1.0, 1.4, 1.4, 2.0, 2.5, 3.0, 4.0], least: 0.97 },
        Cluster { name: "64-spread", slowness: spread, least: 0.965 },
    ]
}

/// Measures every cluster both ways.
#[must_use]
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for cluster in clusters() {
        for (windowing, name) in [(Windowing::Budget, "budget"), (Windowing::Count, "count")] {
            let fraction = fraction(&cluster.slowness, windowing, HOUR);
            let least = (windowing == Windowing::Budget).then_some(cluster.least);
            rows.push(Row { cluster: cluster.name, windowing: name, fraction, least });
        }
    }
    rows
}

/// The rows as JSON.
#[must_use]
pub fn json(rows: &[Row]) -> Value {
    let row =
        |row: &Row| json!({ "cluster": row.cluster, "windowing": row.windowing, "ceiling_fraction": row.fraction });
    json!({ "rows": rows.iter().map(row).collect::<Vec<_>>() })
}

/// What fraction of the ceiling ranks of these speeds reach until `end`; 0 where the run breaks a rule.
fn fraction(slowness: &[f64], windowing: Windowing, end: Time) -> f64 {
    let options = cluster(slowness, windowing, end);
    let rates = options.speeds.iter().map(|speed| end.0 as f64 / speed.batch_ns);
    let ceiling: f64 = rates.sum();
    let Ok(mut world) = World::of(options, Rng::new(1)) else { return 0.0 };
    if world.run_until(end).is_err() {
        return 0.0;
    }
    let steps: u64 = world.seats.iter().flatten().map(|seat| seat.steps()).sum();
    steps as f64 / ceiling
}

/// A cluster of such ranks with a host each, an average of 50 ms, and more work than it can do until `end`.
pub(crate) fn cluster(slowness: &[f64], windowing: Windowing, end: Time) -> Options {
    let ranks = slowness.len() as u32;
    let speed = |&slowness: &f64| Speed {
        batch_ns: FASTEST_MS * MS * slowness,
        jitter: 0.1,
        drift: 1.0,
        throttled: 0.02,
        throttle: 1.6,
    };
    let speeds: Vec<Speed> = slowness.iter().map(speed).collect();
    let batches: f64 = speeds.iter().map(|speed| end.0 as f64 / speed.batch_ns).sum();
    // A request and an acknowledgement on the one, contributions and results on the other: 50 ms together.
    let plane = |ms: f64| Plane { latency_ns: ms * MS, jitter: 0.05, bandwidth: 1e9 };
    let anchor = AnchorSettings { overhead_target: Some(OVERHEAD_TARGET), ..AnchorSettings::default() };
    let work = Work {
        mode: Mode::CpuCadence,
        epochs: 1,
        samples: (batches * 1.2) as u64,
        epoch_splits: 1,
        batch_size: 1,
        parameters: 8,
        patience: Duration::from_secs(10),
        restarts: 0,
        max_failure: MaxFailure::None,
    };
    Options {
        request: Request { classes: Some(Vec::new()), ..Request::new(1, (ranks, ranks)) },
        hosts: vec![1; slowness.len()],
        speeds,
        wide: [plane(5.0), plane(20.0)],
        local: plane(0.02),
        work,
        scheduling: Scheduling { anchor, windowing, ..Scheduling::default() },
        duties: Duties::default(),
        classes: Vec::new(),
        wire: Codec::F32,
        strikes: 0,
        starting_ns: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_come_nearer_to_the_ceiling_than_counts() {
        let minutes = Time(10 * 60_000_000_000);
        let slowness = [1.0, 2.3, 2.3];
        let [budget, count] = [Windowing::Budget, Windowing::Count].map(|by| fraction(&slowness, by, minutes));
        assert!(budget > 0.95 && budget < 1.0, "{budget}");
        assert!(count > 0.5 && count < budget, "{count} against {budget}");
    }
}
