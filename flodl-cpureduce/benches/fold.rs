//! A whole fold of four contributors with 64 MiB each, by one thread and by several; a plain copy of 64 MiB beside it.

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use flodl_cpureduce::{Codec, Consensus, Contributor, Fold, Folded, Layout, Mass, OuterRule, Work, contribution_chunk};
use std::hint::black_box;
use std::sync::mpsc;
use std::time::Duration;

const CONTRIBUTORS: u32 = 4;
const PARAMETERS: u64 = 16 << 20;
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

fn consume(fold: &mut Fold, consensus: &mut Option<&mut Consensus>) -> u64 {
    let mut bytes = 0;
    while let Some(event) = fold.poll() {
        if let Folded::Chunk { index, mass, data } = event {
            bytes += data.len() as u64;
            if let Some(consensus) = consensus {
                black_box(consensus.finish_chunk(index, mass, Some(data)).expect("the next chunk"));
            }
        }
    }
    bytes
}

fn opened(layout: Layout, consensus: &mut Option<&mut Consensus>) -> Fold {
    if let Some(consensus) = consensus {
        consensus.begin(1);
    }
    Fold::new(1, layout, (0..CONTRIBUTORS).map(Contributor).collect()).expect("ascending")
}

/// Folds the round as a shell does: chunk by chunk of each contributor in turn, drained after every input.
fn round(layout: Layout, chunks: Vec<Vec<Bytes>>, mut consensus: Option<&mut Consensus>) -> u64 {
    let mut fold = opened(layout, &mut consensus);
    let mut streams: Vec<_> = chunks.into_iter().map(Vec::into_iter).collect();
    let mut bytes = 0;
    for index in 0..layout.chunks() {
        for (id, stream) in streams.iter_mut().enumerate() {
            let data = stream.next().expect("a chunk");
            fold.chunk(Contributor(id as u32), index, mass(id as f64 + 1.0), data).expect("the next chunk");
            bytes += consume(&mut fold, &mut consensus);
        }
    }
    bytes
}

/// The same with other threads that add up; at most so many chunks wait for one of them.
fn round_on(threads: usize, layout: Layout, chunks: Vec<Vec<Bytes>>, mut consensus: Option<&mut Consensus>) -> u64 {
    const WAITING_MAX: usize = 4;
    let mut fold = opened(layout, &mut consensus);
    let mut bytes = 0;
    std::thread::scope(|scope| {
        let (sums, back) = mpsc::channel();
        let queues: Vec<_> = (0..threads)
            .map(|_| {
                let (queue, work) = mpsc::sync_channel::<Work>(WAITING_MAX);
                let sums = sums.clone();
                scope.spawn(move || work.into_iter().for_each(|work| sums.send(work.run()).expect("the fold runs")));
                queue
            })
            .collect();
        let mut streams: Vec<_> = chunks.into_iter().map(Vec::into_iter).collect();
        let mut out = 0;
        for index in 0..layout.chunks() {
            for (id, stream) in streams.iter_mut().enumerate() {
                let data = stream.next().expect("a chunk");
                fold.chunk(Contributor(id as u32), index, mass(id as f64 + 1.0), data).expect("the next chunk");
            }
            let work = fold.take_work().expect("the chunk is complete");
            queues[index as usize % threads].send(work).expect("the thread runs");
            out += 1;
            while out > WAITING_MAX * threads {
                fold.put_back(back.recv().expect("a sum"));
                out -= 1;
            }
            bytes += consume(&mut fold, &mut consensus);
        }
        drop(queues);
        for _ in 0..out {
            fold.put_back(back.recv().expect("a sum"));
        }
        bytes += consume(&mut fold, &mut consensus);
    });
    bytes
}

fn fold(c: &mut Criterion) {
    let layout = Layout::new(PARAMETERS, 0, 0).expect("a layout");
    let mut group = c.benchmark_group("fold 4 x 64 MiB");
    group.sample_size(10).warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Bytes(u64::from(CONTRIBUTORS) * layout.total_bytes()));
    group.bench_function("sum", |b| {
        b.iter_batched(|| contributions(layout), |chunks| round(layout, chunks, None), BatchSize::PerIteration);
    });
    for threads in [1, 2] {
        group.bench_function(format!("sum on {threads} other threads"), |b| {
            b.iter_batched(
                || contributions(layout),
                |chunks| round_on(threads, layout, chunks, None),
                BatchSize::PerIteration,
            );
        });
    }
    let model = || Bytes::from(vec![0; layout.total_bytes() as usize]);
    let nesterov: OuterRule = "nesterov:0.7,0.9".parse().expect("a rule");
    let held = || Consensus::from_bytes(layout, 0, model()).expect("of that size");
    let roots = [
        ("average", held()),
        ("nesterov", held().with_outer(nesterov.optimizer())),
        ("bf16", held().with_codec(Codec::Bf16)),
        ("int8", held().with_codec(Codec::Int8)),
    ];
    for (name, mut consensus) in roots {
        group.bench_function(format!("sum, divide, digest: {name}"), |b| {
            b.iter_batched(
                || contributions(layout),
                |chunks| round(layout, chunks, Some(&mut consensus)),
                BatchSize::PerIteration,
            );
        });
    }
    let mut consensus = held();
    group.bench_function("sum on 1 other thread, divide, digest: average", |b| {
        b.iter_batched(
            || contributions(layout),
            |chunks| round_on(1, layout, chunks, Some(&mut consensus)),
            BatchSize::PerIteration,
        );
    });
    group.throughput(Throughput::Bytes(layout.total_bytes()));
    let (from, mut to) = (vec![1_u8; layout.total_bytes() as usize], vec![0; layout.total_bytes() as usize]);
    group.bench_function("memcpy of 64 MiB", |b| b.iter(|| to.copy_from_slice(black_box(&from))));
    group.finish();
}

criterion_group!(benches, fold);
criterion_main!(benches);
