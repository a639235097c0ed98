//! What the coordinator takes for an input and for a whole round, by the number of ranks.
//!
//! Only its own time counts: `handle`, `next_deadline` and every `poll`, as a shell calls them.

#[path = "cluster/mod.rs"]
mod cluster;

use std::time::Duration;

use cluster::{Cluster, Cost};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};

const SIZES: [u32; 3] = [10, 1_000, 10_000];

fn each(cost: Cost, of: u64) -> Duration {
    cost.took.mul_f64(of as f64 / cost.inputs.max(1) as f64)
}

fn inputs(c: &mut Criterion) {
    let mut group = c.benchmark_group("tick");
    for ranks in SIZES {
        let mut cluster = Cluster::training(ranks);
        for _ in 0..3 {
            cluster.round();
        }
        group.bench_function(BenchmarkId::new("heartbeat", ranks), |b| {
            b.iter_custom(|count| cluster.heartbeats(count).took);
        });
        group.bench_function(BenchmarkId::new("window report", ranks), |b| {
            b.iter_custom(|count| each(cluster.round().reports, count));
        });
        group.bench_function(BenchmarkId::new("snapshot", ranks), |b| {
            b.iter_custom(|count| each(cluster.round().snapshots, count));
        });
        group.bench_function(BenchmarkId::new("acknowledgement", ranks), |b| {
            b.iter_custom(|count| each(cluster.round().acks, count));
        });
        group.bench_function(BenchmarkId::new("death", ranks), |b| {
            let deaths = (ranks / 2).min(200);
            b.iter_custom(|count| each(Cluster::training(ranks).deaths(deaths), count));
        });
    }
    group.finish();
}

fn round(c: &mut Criterion) {
    let mut group = c.benchmark_group("tick round");
    group.sample_size(10);
    for ranks in SIZES {
        let mut cluster = Cluster::training(ranks);
        for _ in 0..3 {
            cluster.round();
        }
        group.bench_function(BenchmarkId::from_parameter(ranks), |b| {
            b.iter_custom(|count| (0..count).map(|_| cluster.round().all.took).sum());
        });
    }
    group.finish();
}

criterion_group!(benches, inputs, round);
criterion_main!(benches);
