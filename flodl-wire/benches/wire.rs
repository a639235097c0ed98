//! What frames, messages and handshakes cost. `cargo bench -p flodl-wire`; numbers are for comparison on one machine only.
//!
//! The relations that are promised are measured in the same run: a chunk against HMAC-SHA256 of the same bytes, which
//! authenticates and does not hide.

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use flodl_wire::codec::{decode, encode};
use flodl_wire::frame::{Sealer, Stream};
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::{Control, Data, HostReport, Report};
use flodl_wire::{Epoch, Frame, Incarnation, Opener, Range, Rank, WindowId};
use hmac::{Hmac, KeyInit, Mac};
use std::hint::black_box;

#[path = "../tests/common/mod.rs"]
mod common;

/// Bytes of elements in a chunk.
const SIZES: [(&str, usize); 4] = [("64 B", 64), ("1 KiB", 1 << 10), ("64 KiB", 64 << 10), ("1 MiB", 1 << 20)];

fn contribution(len: usize) -> Data {
    Data::Contribution(common::samples::chunk(vec![0x3f; len]))
}

fn pair() -> (Sealer, Opener) {
    let (_, dialled, accepted) = common::handshake(common::data_hello());
    (dialled.sealer, accepted.opener)
}

fn seal(sealer: &mut Sealer, data: &Data, out: &mut Vec<u8>) {
    sealer.seal_data(Stream::Host, Incarnation(0), data, out).expect("it belongs here");
}

/// Chunks of several sizes: sealed, opened, both, and what HMAC-SHA256 takes for the same elements.
fn chunks(criterion: &mut Criterion) {
    for (name, len) in SIZES {
        let data = contribution(len);
        let mut group = criterion.benchmark_group("chunk");
        group.throughput(Throughput::Bytes(len as u64));
        let (mut sealer, mut out) = (pair().0, Vec::new());
        group.bench_function(BenchmarkId::new("seal", name), |bencher| {
            bencher.iter(|| {
                out.clear();
                seal(&mut sealer, black_box(&data), &mut out);
            });
        });
        let (mut sealer, mut opener) = pair();
        group.bench_function(BenchmarkId::new("seal and open", name), |bencher| {
            bencher.iter(|| {
                out.clear();
                seal(&mut sealer, black_box(&data), &mut out);
                opener.feed(&mut &out[..]).expect("it is the next").expect("it is whole")
            });
        });
        let Data::Contribution(chunk) = &data else { unreachable!() };
        let mac = |bytes: &[u8]| {
            let mut mac = Hmac::<sha2::Sha256>::new_from_slice(&[7; 32]).expect("any length will do");
            mac.update(black_box(bytes));
            mac
        };
        group.bench_function(BenchmarkId::new("HMAC-SHA256 made", name), |bencher| {
            bencher.iter(|| mac(&chunk.bytes).finalize().into_bytes());
        });
        group.bench_function(BenchmarkId::new("HMAC-SHA256 made and checked", name), |bencher| {
            bencher.iter(|| {
                let tag = mac(&chunk.bytes).finalize().into_bytes();
                mac(&chunk.bytes).verify(&tag).is_ok()
            });
        });
        // A frame opens once: a fresh batch is sealed outside the measurement, for a fresh decoder.
        let batch = ((1 << 20) / len).clamp(1, 256);
        group.throughput(Throughput::Bytes((batch * len) as u64));
        let sealed = || {
            let ((mut sealer, mut opener), mut bytes) = (pair(), Vec::new());
            // The decoder's first buffer is fresh memory, as no later one is.
            seal(&mut sealer, &data, &mut bytes);
            opener.feed(&mut &bytes[..]).expect("it is the next");
            bytes.clear();
            (0..batch).for_each(|_| seal(&mut sealer, &data, &mut bytes));
            (opener, bytes)
        };
        group.bench_function(BenchmarkId::new("open", name), |bencher| {
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
}

/// An order of the length that most have.
fn order() -> Control {
    let leases = (0..4).map(|i| Range { start: 70_000 + i * 1000, end: 70_640 + i * 1000 }).collect();
    let plan = WindowPlan {
        window: WindowId(120),
        epoch: Epoch(2),
        leases,
        quota: 40,
        quota_max: 250,
        budget: Some(core::time::Duration::from_millis(8250)),
        global_step: 70_000,
        quota_sum: 960,
        overlap: None,
    };
    Control::Window(plan)
}

/// Every kind of message that is sent often.
fn messages(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("message");
    macro_rules! coded {
        ($name:literal, $type:ty, $message:expr) => {
            let message: $type = $message;
            let bytes = encode(&message).expect("it is valid");
            let name = format!("{} ({} bytes)", $name, bytes.len());
            group.bench_function(BenchmarkId::new("encode", &name), |bencher| {
                bencher.iter(|| encode(black_box(&message)))
            });
            let id = BenchmarkId::new("decode", &name);
            group.bench_function(id, |bencher| bencher.iter(|| decode::<$type>(black_box(&bytes))));
        };
    }
    coded!("window", Control, order());
    coded!("request for parameters", Control, common::samples::controls().swap_remove(8));
    coded!("heartbeat", Report, Report::Heartbeat { step: 70_000 });
    coded!("window report", Report, common::samples::reports().swap_remove(2));
    coded!("relay's heartbeat", HostReport, HostReport::Heartbeat);
    group.finish();

    let (_, mut below, mut above) = common::handshake(common::relay_hello());
    let (mut out, message) = (Vec::new(), order());
    let len = encode(&message).expect("it is valid").len();
    assert!((60..64).contains(&len), "{len} bytes");
    criterion.bench_function(&format!("an order of {len} bytes, encoded, sealed, opened, decoded"), |bencher| {
        bencher.iter(|| {
            out.clear();
            let frame =
                Frame::control(Stream::Rank(Rank(3)), Incarnation(1), black_box(&message)).expect("it is valid");
            above.sealer.seal(&frame, &mut out).expect("it belongs here");
            let frame = below.opener.feed(&mut &out[..]).expect("it is the next").expect("it is whole");
            frame.to_control()
        });
    });
    criterion.bench_function("a handshake, both sides", |bencher| {
        bencher.iter(|| common::handshake(common::relay_hello()));
    });
}

criterion_group!(benches, chunks, messages);
criterion_main!(benches);
