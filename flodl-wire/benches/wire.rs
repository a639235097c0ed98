//! What a frame and a message cost. `cargo bench -p flodl-wire`; numbers are for comparison on one machine only.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use flodl_wire::codec::{decode, encode};
use flodl_wire::frame::Stream;
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::{Control, Data, HostReport};
use flodl_wire::{Epoch, Frame, Incarnation, Range, WindowId};
use std::hint::black_box;

#[path = "../tests/common/mod.rs"]
mod common;

/// One chunk of 256 KiB, as rounds send it.
fn chunks(criterion: &mut Criterion) {
    const LEN: usize = 256 << 10;
    let data = Data::Contribution(common::samples::chunk(vec![0x3f; LEN]));
    let (_, mut dialled, _) = common::handshake(common::data_hello());
    let mut group = criterion.benchmark_group("256 KiB chunk");
    group.throughput(Throughput::Bytes(LEN as u64));
    let mut out = Vec::new();
    group.bench_function("seal", |bencher| {
        bencher.iter(|| {
            out.clear();
            dialled.sealer.seal_data(Stream::Host, Incarnation(0), black_box(&data), &mut out).is_ok()
        });
    });
    // A frame opens once: a fresh batch of them is sealed outside the measurement, for a fresh decoder.
    const BATCH: usize = 64;
    let sealed = || {
        let (_, mut dialled, accepted) = common::handshake(common::data_hello());
        let mut bytes = Vec::new();
        for _ in 0..BATCH {
            let sealed = dialled.sealer.seal_data(Stream::Host, Incarnation(0), &data, &mut bytes);
            assert_eq!(sealed, Ok(()));
        }
        (accepted.opener, bytes)
    };
    group.throughput(Throughput::Bytes((BATCH * LEN) as u64));
    group.bench_function("open, 64 of them", |bencher| {
        bencher.iter_batched_ref(
            sealed,
            |(opener, bytes)| {
                let mut input = &bytes[..];
                while let Ok(Some(frame)) = opener.feed(&mut input) {
                    black_box(frame);
                }
                assert!(input.is_empty());
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

/// The messages that are sent most.
fn messages(criterion: &mut Criterion) {
    let leases = (0..8).map(|i| Range { start: i * 1000, end: i * 1000 + 640 }).collect();
    let window = Control::Window(WindowPlan {
        window: WindowId(12),
        epoch: Epoch(2),
        leases,
        quota: 40,
        quota_max: 300,
        budget: None,
        global_step: 70_000,
        quota_sum: 96,
        overlap: None,
    });
    let bytes = encode(&window).unwrap_or_default();
    criterion.bench_function("encode a window", |bencher| bencher.iter(|| encode(black_box(&window))));
    criterion.bench_function("decode a window", |bencher| bencher.iter(|| decode::<Control>(black_box(&bytes))));
    let (_, mut dialled, mut accepted) = common::handshake(common::relay_hello());
    let mut out = Vec::new();
    criterion.bench_function("a heartbeat, made, sealed, opened, read", |bencher| {
        bencher.iter(|| {
            out.clear();
            let frame = Frame::host_report(&HostReport::Heartbeat).expect("it is valid");
            dialled.sealer.seal(&frame, &mut out).expect("it belongs here");
            let frame = accepted.opener.feed(&mut &out[..]).expect("it is the next").expect("it is whole");
            frame.to_host_report()
        });
    });
    criterion
        .bench_function("a handshake, both sides", |bencher| bencher.iter(|| common::handshake(common::relay_hello())));
}

criterion_group!(benches, chunks, messages);
criterion_main!(benches);
