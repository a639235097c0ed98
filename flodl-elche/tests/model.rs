//! What the scheduler is for, in computed time: devices of unequal speed are busy, and every epoch ends whole.

mod common;

use std::time::Duration;

use common::{Model, Pace, steady};
use flodl_elche::{AnchorSettings, Policy, Settings, Settled, Slot, Windowing};
use proptest::prelude::*;

fn ms(millis: f64) -> Duration {
    Duration::from_secs_f64(millis / 1e3)
}

/// Three devices 1 : 1/2.5 : 1/4 with a batch of 8 ms on the fastest.
fn unequal() -> Vec<Pace> {
    [8.0, 20.0, 32.0].map(|millis| steady(ms(millis))).into()
}

/// Batch times around `mean` by a fixed pseudo-random factor in [1 - spread, 1 + spread], and 1.6 times as long in a
/// stretch of every 50th 16 batches, as a device that throttles.
fn jittery(mean: f64, spread: f64, seed: u64) -> Pace {
    Box::new(move |batch| {
        let mut x = (batch + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed.wrapping_mul(0xd134_2543_de82_ef95);
        x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let uniform = (x >> 11) as f64 / (1u64 << 53) as f64;
        let throttled = if (batch / 16 + seed).is_multiple_of(50) { 1.6 } else { 1.0 };
        ms(mean * throttled * (1.0 + spread * (2.0 * uniform - 1.0)))
    })
}

#[test]
fn three_unequal_devices_are_busy() {
    let mut model = Model::new(Settings::default(), unequal(), ms(20.0));
    let windows: Vec<u64> = (0..8).map(|_| model.epoch(125 * 64)).collect();
    let fraction = model.fraction_of_ceiling();
    assert!(fraction > 0.93, "{fraction:.4} of the ceiling in {windows:?} windows");
    assert_eq!(model.batches.iter().sum::<u64>(), 8 * 125);
}

#[test]
fn budgets_beat_counts_where_devices_jitter() {
    let fraction = |windowing| {
        let paces = (0..8).map(|i| jittery(8.0 + 4.0 * i as f64, 0.3, i)).collect();
        // A fixed anchor, so that only the end of the window differs.
        let settings = Settings { windowing, anchor: AnchorSettings::fixed(16), ..Settings::default() };
        let mut model = Model::new(settings, paces, ms(50.0));
        for _ in 0..2 {
            model.epoch(64 * 8000);
        }
        // The reduce costs both the same: compare the time between the reduces.
        let reduces = ms(50.0) * model.rounds as u32;
        model.fraction_of_ceiling() * model.elapsed.as_secs_f64() / (model.elapsed - reduces).as_secs_f64()
    };
    let (budget, count) = (fraction(Windowing::Budget), fraction(Windowing::Count));
    assert!(budget > 0.97, "budget {budget:.4}");
    assert!(budget > count + 0.02, "budget {budget:.4}, count {count:.4}");
}

#[test]
fn sync_does_one_batch_a_member_and_round() {
    let sync = Settings { policy: Policy::Sync, ..Settings::default() };
    let mut model = Model::new(sync, unequal(), ms(1.0));
    assert_eq!(model.epoch(100 * 64), 34, "99 batches by three at a time, and the last one by one");
    assert_eq!(model.batches, [34, 33, 33], "the last batch is the fastest device's");
}

#[test]
fn one_member_alone_works() {
    for policy in [Policy::Sync, Policy::Cadence] {
        let settings = Settings { policy, ..Settings::default() };
        let mut model = Model::new(settings, vec![steady(ms(8.0))], ms(1.0));
        (0..3).for_each(|_| assert!(model.epoch(1000) > 0));
        assert_eq!(model.batches, [3 * 16]);
    }
}

#[test]
fn a_device_that_slows_down_does_not_hold_the_others() {
    let slows: Pace = Box::new(|batch| ms(if batch < 300 { 8.0 } else { 80.0 }));
    let mut model = Model::new(Settings::default(), vec![slows, steady(ms(8.0))], ms(20.0));
    model.epoch(64 * 6000);
    assert!(model.fraction_of_ceiling() > 0.93, "{:.4}", model.fraction_of_ceiling());
}

/// D3: the sample count is divisible by nothing in play and the last batch is short: no hang, all samples used.
#[test]
fn d3_nothing_divides_anything() {
    for policy in [Policy::Sync, Policy::Cadence] {
        for (members, batch_size, epoch_len) in [
            (1u32, 64u32, 1u64),
            (2, 64, 63),
            (3, 64, 65),
            (3, 7, 7919),
            (5, 61, 8009),
            (7, 1, 13),
            (16, 64, 127),
            (4, 1000, 999),
        ] {
            let paces = (0..members).map(|i| steady(ms(3.0 + 2.7 * f64::from(i)))).collect();
            let mut model = Model::new(Settings { policy, batch_size, ..Settings::default() }, paces, ms(2.0));
            for epoch in 1..=4 {
                model.epoch(epoch_len);
                let batches = epoch * epoch_len.div_ceil(u64::from(batch_size));
                let trained: u64 = model.batches.iter().sum();
                // Every lease but the pool's last is whole batches, so there is no short batch beyond the last.
                assert_eq!(trained, batches, "{policy}: {members} members, batch {batch_size}, {epoch_len} samples");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_epoch_ends_whole_whoever_dies(
        millis in prop::collection::vec(0.1f64..200.0, 1..7),
        (policy, windowing) in (prop::sample::select(vec![Policy::Sync, Policy::Cadence]),
            prop::sample::select(vec![Windowing::Budget, Windowing::Count])),
        batch_size in 1u32..100,
        epoch_len in 0u64..6000,
        max_batch_diff in prop::option::weighted(0.3, 0u32..10),
        deaths in prop::collection::vec((0usize..20, (0u32..7).prop_map(Slot), prop::sample::select(
            vec![Settled::Commit, Settled::GiveBack, Settled::Repeat, Settled::Poisoned])), 0..6),
    ) {
        let settings = Settings {
            policy,
            windowing,
            batch_size,
            max_batch_diff: max_batch_diff.filter(|_| policy != Policy::Sync),
            ..Settings::default()
        };
        let paces = millis.iter().enumerate().map(|(i, &mean)| jittery(mean, 0.3, i as u64)).collect();
        let mut model = Model::new(settings, paces, ms(5.0));
        let repeats = deaths.iter().any(|death| death.2 == Settled::Repeat);
        model.deaths = deaths;
        for _ in 0..3 {
            model.epoch(epoch_len);
        }
        prop_assert!(repeats || model.repeats == 0);
    }
}
