//! What a plan and a round cost the coordinator, by the number of members.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use flodl_elche::{Cadence, Demand, Elche, NoGuard, Plan, RoundFeedback, Settings, Slot, WindowSample};

/// A measured scheduler over `n` members whose speeds spread over a factor of four.
fn measured(n: u32) -> (Elche, Vec<Slot>) {
    let live: Vec<Slot> = (0..n).map(Slot).collect();
    let mut elche = Elche::new(Settings::default(), Box::new(NoGuard)).expect("the defaults are valid");
    for &slot in &live {
        elche.join(slot);
        let batch = Duration::from_micros(8_000 + u64::from(slot.0 * 7919 % 24_000));
        elche.observe(slot, WindowSample { batches: 3, first: batch, rest: batch * 2, data_wait: Duration::ZERO });
    }
    let (window_wall, reduce) = (Duration::from_millis(200), Duration::from_millis(20));
    elche.round_done(&RoundFeedback { window_wall, reduce, ..RoundFeedback::default() });
    (elche, live)
}

fn plan(c: &mut Criterion) {
    let mut group = c.benchmark_group("plan");
    for n in [3, 1000, 10_000] {
        let (mut elche, live) = measured(n);
        let epoch_len = u64::from(n) * 64 * 1000;
        for (name, remaining) in [("full", epoch_len), ("tail", u64::from(n) * 64 * 5)] {
            let demand = Demand { live: &live, remaining, epoch_len, callbacks: &[] };
            let mut plan = Plan::default();
            group.bench_function(BenchmarkId::new(name, n), |b| {
                b.iter(|| {
                    elche.plan_into(&demand, &mut plan);
                    black_box(&plan);
                });
            });
        }
    }
    group.finish();
}

/// What a committed round costs: a report of each member, and the round's own figures of each.
fn round(c: &mut Criterion) {
    let mut group = c.benchmark_group("round");
    for n in [3, 1000, 10_000] {
        let (mut elche, live) = measured(n);
        let feedback = RoundFeedback {
            window_wall: Duration::from_millis(200),
            reduce: Duration::from_millis(20),
            waits: live.iter().map(|&slot| (slot, Duration::from_millis(1))).collect(),
            divergence: live.iter().map(|&slot| (slot, 0.01)).collect(),
            steps: live.iter().map(|&slot| (slot, 9)).collect(),
            rates: live.iter().map(|&slot| (slot, 0.1)).collect(),
            ..RoundFeedback::default()
        };
        let mut changes = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(n), |b| {
            b.iter(|| {
                for &slot in &live {
                    let batch = Duration::from_micros(8_000 + u64::from(slot.0 * 7919 % 24_000));
                    elche.observe(
                        slot,
                        WindowSample { batches: 3, first: batch, rest: batch * 2, ..Default::default() },
                    );
                }
                elche.round_done_into(&feedback, &mut changes);
                black_box(&changes);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, plan, round);
criterion_main!(benches);
