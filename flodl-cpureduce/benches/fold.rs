//! A whole fold of four contributors with 16 MiB each, and the kernels on one chunk.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use flodl_cpureduce::{
    Consensus, Contributor, DivergenceMeter, Fold, Folded, Layout, Mass, contribution_chunk, kernel,
};
use std::hint::black_box;

const CONTRIBUTORS: u32 = 4;
const PARAMETERS: u64 = 4 << 20;
const CHUNK: usize = 65_536;

fn values(seed: u32) -> Vec<f32> {
    (0..CHUNK as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ seed) as f32 / 4e9 - 0.5).collect()
}

fn mass(value: f64) -> Mass {
    Mass::new(value).expect("a mass")
}

/// One contribution of every contributor, each chunk in memory of its own as a socket would leave it.
fn contributions(layout: Layout) -> Vec<Vec<Bytes>> {
    let theta = values(7);
    (1..=CONTRIBUTORS)
        .map(|m| layout.iter().map(|_| contribution_chunk(&theta, mass(f64::from(m))).0).collect())
        .collect()
}

/// Folds the round as a shell does: chunk by chunk of each contributor in turn, drained after every input.
fn round(layout: Layout, chunks: Vec<Vec<Bytes>>, consensus: Option<&mut Consensus>) -> u64 {
    let mut fold = Fold::new(1, layout, (0..CONTRIBUTORS).map(Contributor).collect()).expect("ascending");
    let mut consensus = consensus;
    if let Some(consensus) = consensus.as_deref_mut() {
        consensus.begin(1);
    }
    let mut bytes = 0;
    let mut streams: Vec<_> = chunks.into_iter().map(Vec::into_iter).collect();
    for index in 0..layout.chunks() {
        for (id, stream) in streams.iter_mut().enumerate() {
            let data = stream.next().expect("a chunk");
            fold.chunk(Contributor(id as u32), index, mass(id as f64 + 1.0), data).expect("the next chunk");
            while let Some(event) = fold.poll() {
                if let Folded::Chunk { index, mass, data } = event {
                    bytes += data.len() as u64;
                    if let Some(consensus) = consensus.as_deref_mut() {
                        black_box(consensus.finish_chunk(index, mass, Some(data)).expect("the next chunk"));
                    }
                }
            }
        }
    }
    bytes
}

fn fold(c: &mut Criterion) {
    let layout = Layout::new(PARAMETERS, 0, 0).expect("a layout");
    let mut group = c.benchmark_group("fold 4 x 16 MiB");
    group.sample_size(20).throughput(Throughput::Bytes(u64::from(CONTRIBUTORS) * layout.total_bytes()));
    group.bench_function("sum", |b| {
        b.iter_batched(|| contributions(layout), |chunks| round(layout, chunks, None), BatchSize::PerIteration);
    });
    group.bench_function("sum, divide, digest", |b| {
        let mut consensus = Consensus::empty(layout);
        b.iter_batched(
            || contributions(layout),
            |chunks| round(layout, chunks, Some(&mut consensus)),
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn kernels(c: &mut Criterion) {
    let theta = values(1);
    let (other, _) = contribution_chunk(&values(2), Mass::ONE);
    let mut out = vec![0; 4 * CHUNK];
    let mut group = c.benchmark_group("kernel, one chunk");
    group.throughput(Throughput::Bytes(4 * CHUNK as u64));
    group.bench_function("scale_copy_check", |b| {
        b.iter(|| kernel::scale_copy_check(black_box(&theta), 3.0, &mut out));
    });
    group.bench_function("add_assign", |b| b.iter(|| kernel::add_assign(&mut out, black_box(&other))));
    group.bench_function("divide", |b| b.iter(|| kernel::divide(&mut out, black_box(1.0))));
    group.bench_function("max_assign", |b| b.iter(|| kernel::max_assign(&mut out, black_box(&other))));
    group.bench_function("all_finite", |b| b.iter(|| kernel::all_finite(black_box(&other))));
    group.bench_function("squared_norm", |b| b.iter(|| kernel::squared_norm(black_box(&other))));
    group.bench_function("divergence", |b| {
        b.iter(|| {
            let mut meter = DivergenceMeter::default();
            meter.add(black_box(&theta), &other).expect("equal lengths");
            meter.divergence()
        });
    });
    group.finish();
}

criterion_group!(benches, fold, kernels);
criterion_main!(benches);
