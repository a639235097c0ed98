//! What a plan costs the coordinator, by the number of members.

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use flodl_elche::{Cadence, Demand, Elche, NoGuard, RoundFeedback, Settings, Slot, WindowSample};

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
            group.bench_function(BenchmarkId::new(name, n), |b| b.iter(|| black_box(elche.plan(&demand))));
        }
    }
    group.finish();
}

criterion_group!(benches, plan);
criterion_main!(benches);
