//! What a whole round on one host costs the memory, without the signals between processes: from four replicas of their own
//! to four replicas that hold the average, with digest and divergence; a plain copy of one model beside it.
//!
//! `copied`: each replica is scaled into a buffer that stays in the cache, the sum is divided and digested into a full-size
//! result, and when all of it is there each replica is measured against it and overwritten. `owned`: the average is made
//! from the replicas where they are, with the distances, and written into the other half of each. The bytes moved are those
//! that must pass between cache and memory: for a model of S bytes and four ranks, `copied` reads 4 S and writes S, reads
//! the result and a replica 4 times and writes it, which makes 17 S; `owned` reads 4 S and writes 4 S, which makes 8 S.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use flodl_cpureduce::{CHUNK_BYTES, Digest, kernel};
use std::hint::black_box;
use std::time::Duration;

const RANKS: usize = 4;
const CHUNK: usize = CHUNK_BYTES as usize / 4;

/// Elements of the models.
const SIZES: [(usize, &str); 3] = [(1 << 18, "1 MiB"), (1 << 22, "16 MiB"), (1 << 24, "64 MiB")];

fn masses() -> [f32; RANKS] {
    [4.0, 2.0, 1.0, 3.0]
}

const MASS: f32 = 10.0;

struct Ranks {
    replicas: Vec<Vec<f32>>,
    /// The other halves, for the owned form.
    others: Vec<Vec<u8>>,
    result: Vec<u8>,
}

impl Ranks {
    fn new(n: usize) -> Ranks {
        let replica = |seed: u32| {
            (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ (seed << 9)) as f32 / 4e9 - 0.5).collect()
        };
        Ranks {
            replicas: (0..RANKS as u32).map(replica).collect(),
            // Not zeros, which the system would lend without any memory behind them.
            others: vec![vec![1; 4 * n]; RANKS],
            result: vec![1; 4 * n],
        }
    }
}

/// The copied form on one thread.
fn copied(ranks: &mut Ranks) -> (u64, f64) {
    let mut contribution = vec![0; 4 * CHUNK];
    let mut sum = vec![0; 4 * CHUNK];
    let mut digest = Digest::new();
    for (place, result) in ranks.result.chunks_mut(4 * CHUNK).enumerate() {
        let at = place * CHUNK..place * CHUNK + result.len() / 4;
        let sum = &mut sum[..result.len()];
        for (rank, (replica, mass)) in ranks.replicas.iter().zip(masses()).enumerate() {
            let contribution = &mut contribution[..result.len()];
            let finite = kernel::scale_copy_check(&replica[at.clone()], mass, contribution);
            assert!(finite);
            if rank == 0 {
                sum.copy_from_slice(contribution);
            } else {
                kernel::add_assign(sum, contribution);
            }
        }
        kernel::divide(sum, MASS);
        digest.update(sum);
        kernel::copy_around_cache(sum, result);
    }
    let mut distance = 0.0;
    for replica in &mut ranks.replicas {
        for (replica, result) in replica.chunks_mut(CHUNK).zip(ranks.result.chunks(4 * CHUNK)) {
            distance += kernel::take(replica, result).squared_distance;
        }
    }
    (digest.finish(), distance)
}

/// The owned form on one thread. `around` the cache, or through it.
fn owned(ranks: &mut Ranks, around: bool) -> (u64, f64) {
    let mut average = vec![0; 4 * CHUNK];
    let mut digest = Digest::new();
    let mut distance = 0.0;
    let n = ranks.result.len() / 4;
    for first in (0..n).step_by(CHUNK) {
        let at = first..(first + CHUNK).min(n);
        let mut distances = [0.0; RANKS];
        let parts: Vec<(f32, &[f32])> =
            masses().into_iter().zip(&ranks.replicas).map(|(mass, replica)| (mass, &replica[at.clone()])).collect();
        let average = &mut average[..4 * at.len()];
        assert!(kernel::average(&parts, MASS, average, &mut distances));
        distance += distances.iter().sum::<f64>();
        digest.update(average);
        for other in &mut ranks.others {
            let other = &mut other[4 * at.start..4 * at.end];
            if around {
                kernel::copy_around_cache(average, other);
            } else {
                other.copy_from_slice(average);
            }
        }
    }
    (digest.finish(), distance)
}

fn rounds(c: &mut Criterion) {
    for (n, name) in SIZES {
        let mut group = c.benchmark_group(format!("round, 4 x {name}"));
        group.sample_size(20).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
        let mut ranks = Ranks::new(n);
        let model = 4 * n as u64;
        group.throughput(Throughput::Bytes(17 * model));
        group.bench_function("copied", |b| b.iter(|| black_box(copied(&mut ranks))));
        let mut ranks = Ranks::new(n);
        group.throughput(Throughput::Bytes(8 * model));
        group.bench_function("owned, through the cache", |b| b.iter(|| black_box(owned(&mut ranks, false))));
        group.bench_function("owned, around the cache", |b| b.iter(|| black_box(owned(&mut ranks, true))));
        group.throughput(Throughput::Bytes(2 * model));
        group.bench_function("memcpy of one model", |b| {
            b.iter(|| ranks.others[0].copy_from_slice(black_box(&ranks.result)));
        });
        group.finish();
    }
}

criterion_group!(benches, rounds);
criterion_main!(benches);
