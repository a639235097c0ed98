//! Each kernel on one chunk, which is in the cache, and on 64 MiB, which are not; a plain copy of the same size beside it.

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use flodl_cpureduce::{Digest, Momentum, kernel};
use std::hint::black_box;
use std::time::Duration;

/// Elements of a chunk and of 64 MiB.
const SIZES: [(usize, &str); 2] = [(1 << 16, "256 KiB"), (1 << 24, "64 MiB")];

fn values(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ seed) as f32 / 4e9 - 0.5).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

type Group<'a> = BenchmarkGroup<'a, WallTime>;

fn copies(group: &mut Group<'_>, n: usize) {
    let data = bytes(&values(n, 1));
    let mut out = vec![1; 4 * n];
    let chunk = data[..data.len().min(1 << 18)].to_vec();
    group.bench_function("memcpy", |b| b.iter(|| out.copy_from_slice(black_box(&data))));
    group.bench_function("memcpy out of the cache", |b| {
        b.iter(|| out.chunks_mut(chunk.len()).for_each(|out| out.copy_from_slice(black_box(&chunk))));
    });
    group.bench_function("copy_around_cache out of the cache", |b| {
        b.iter(|| out.chunks_mut(chunk.len()).for_each(|out| kernel::copy_around_cache(black_box(&chunk), out)));
    });
}

fn folding(group: &mut Group<'_>, n: usize) {
    let theta = values(n, 2);
    let data = bytes(&values(n, 3));
    let mut out = vec![1; 4 * n];
    group.bench_function("scale_copy_check", |b| {
        b.iter(|| kernel::scale_copy_check(black_box(&theta), 3.0, &mut out));
    });
    group.bench_function("add_assign", |b| b.iter(|| kernel::add_assign(&mut out, black_box(&data))));
    group.bench_function("multiply_add", |b| b.iter(|| kernel::multiply_add(&mut out, black_box(&theta), 0.5)));
    group.bench_function("divide", |b| b.iter(|| kernel::divide(&mut out, black_box(1.0))));
    group.bench_function("divide_measured", |b| b.iter(|| kernel::divide_measured(&mut out, black_box(1.0))));
    group.bench_function("max_assign", |b| b.iter(|| kernel::max_assign(&mut out, black_box(&data))));
    let momentum = Momentum::new(0.7, 0.9).expect("in range");
    let mut next = vec![0.0; n];
    group.bench_function("nesterov", |b| {
        b.iter(|| kernel::nesterov(black_box(&data), &mut out, &theta, &mut next, momentum));
    });
}

fn reading(group: &mut Group<'_>, n: usize) {
    let theta = values(n, 4);
    let data = bytes(&values(n, 5));
    let mut replica = theta.clone();
    group.bench_function("all_finite", |b| b.iter(|| kernel::all_finite(black_box(&data))));
    group.bench_function("squared_norm", |b| b.iter(|| kernel::squared_norm(black_box(&data))));
    group.bench_function("norms", |b| b.iter(|| kernel::norms(black_box(&theta), &data)));
    group.bench_function("take", |b| b.iter(|| kernel::take(&mut replica, black_box(&data))));
    group.bench_function("read_f32", |b| b.iter(|| kernel::read_f32(black_box(&data), &mut replica)));
    group.bench_function("pull_towards", |b| {
        b.iter(|| kernel::pull_towards(&mut replica, black_box(&data), &theta, 0.5));
    });
    group.bench_function("digest", |b| b.iter(|| Digest::of(black_box(&data))));
    group.bench_function("xxhash-rust", |b| b.iter(|| xxhash_rust::xxh3::xxh3_64(black_box(&data))));
}

fn codecs(group: &mut Group<'_>, n: usize) {
    let theta = values(n, 6);
    let (data, base) = (bytes(&theta), bytes(&values(n, 7)));
    let mut left = theta.clone();
    let mut halves = vec![1; 2 * n];
    let mut quarters = vec![0; kernel::int8_bytes(n)];
    let mut out = vec![1; 4 * n];
    group.bench_function("difference", |b| {
        b.iter(|| kernel::difference(black_box(&data), 3.0, &base, &mut left));
    });
    left.copy_from_slice(&theta);
    group.bench_function("to_bf16", |b| b.iter(|| kernel::to_bf16(black_box(&mut left), &mut halves)));
    left.copy_from_slice(&theta);
    group.bench_function("to_int8", |b| b.iter(|| kernel::to_int8(black_box(&mut left), &mut quarters)));
    left.copy_from_slice(&theta);
    kernel::to_bf16(&mut left, &mut halves);
    left.copy_from_slice(&theta);
    kernel::to_int8(&mut left, &mut quarters);
    group.bench_function("add_bf16", |b| b.iter(|| kernel::add_bf16(&base, black_box(&halves), &mut out)));
    group.bench_function("add_int8", |b| b.iter(|| kernel::add_int8(&base, black_box(&quarters), &mut out)));
}

fn kernels(c: &mut Criterion) {
    for (n, name) in SIZES {
        let mut group = c.benchmark_group(format!("kernel, {name}"));
        group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(600));
        // The bytes of the values, whatever a kernel reads and writes beside them.
        group.throughput(Throughput::Bytes(4 * n as u64));
        copies(&mut group, n);
        folding(&mut group, n);
        reading(&mut group, n);
        codecs(&mut group, n);
        group.finish();
    }
}

criterion_group!(benches, kernels);
criterion_main!(benches);
