//! The laws of a plan, under any order of joins, leaves, reports, rounds and demands, however wild their figures.

use std::time::Duration;

use flodl_elche::{
    AnchorSettings, Cadence, Change, Demand, Elche, GuardKind, Norms, Plan, Policy, RoundFeedback, Settings, Slot,
    WindowSample, Windowing, batches_in,
};
use proptest::prelude::*;

const SLOTS: u32 = 6;

#[derive(Clone, Debug)]
enum Op {
    Join(Slot),
    Leave(Slot),
    Observe(Slot, WindowSample),
    Round(RoundFeedback),
    Plan { live: Vec<Slot>, remaining: u64, more: u64, callbacks: Vec<(Slot, Duration)> },
}

fn slot() -> impl Strategy<Value = Slot> {
    (0..SLOTS).prop_map(Slot)
}

/// Sane, zero, and as wild as the type allows.
fn duration() -> impl Strategy<Value = Duration> {
    prop_oneof![
        8 => (1u64..200_000).prop_map(Duration::from_micros),
        1 => Just(Duration::ZERO),
        1 => Just(Duration::MAX),
        1 => any::<Duration>(),
    ]
}

fn sample() -> impl Strategy<Value = WindowSample> {
    let batches = prop_oneof![6 => 0u32..40, 1 => any::<u32>()];
    (batches, duration(), duration(), duration()).prop_map(|(batches, first, rest, data_wait)| WindowSample {
        batches,
        first,
        rest,
        data_wait,
    })
}

/// Any number, the wildest among them.
fn figure() -> impl Strategy<Value = f64> {
    let wild = [f64::NAN, 0.0, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300, f64::MIN_POSITIVE];
    prop_oneof![2 => any::<f64>(), 2 => 0.0f64..1.0, 2 => prop::sample::select(wild.to_vec())]
}

/// A report that cannot be.
fn absurd_sample() -> impl Strategy<Value = WindowSample> {
    let batches = prop_oneof![Just(2u32), Just(9), Just(u32::MAX)];
    let times = prop_oneof![Just(Duration::ZERO), Just(Duration::from_nanos(1)), Just(Duration::MAX)];
    let absurd = |(batches, time): (u32, Duration)| WindowSample { batches, first: time, rest: time, data_wait: time };
    prop_oneof![
        (batches, times).prop_map(absurd),
        duration().prop_filter("a time", |time| !time.is_zero()).prop_map(move |time| absurd((0, time))),
    ]
}

fn feedback() -> impl Strategy<Value = RoundFeedback> {
    let waits = prop::collection::vec((slot(), duration()), 0..4);
    let figures = prop::collection::vec((slot(), figure()), 0..4);
    (duration(), duration(), waits, figures).prop_map(|(window_wall, reduce, waits, divergence)| {
        let norms = divergence.iter().map(|&(slot, x)| (slot, Norms { pre: x, post: x })).collect();
        let steps = divergence.iter().map(|&(slot, x)| (slot, x.to_bits() as u32)).collect();
        let rates = divergence.clone();
        RoundFeedback { window_wall, reduce, waits, divergence, steps, norms, rates }
    })
}

fn op() -> impl Strategy<Value = Op> {
    let live = prop::collection::btree_set(slot(), 0..SLOTS as usize);
    let callbacks = prop_oneof![3 => Just(vec![]), 1 => prop::collection::vec((slot(), duration()), 0..3)];
    let remaining = prop_oneof![6 => 0u64..20_000, 2 => 0u64..300, 1 => any::<u64>()];
    let more = prop_oneof![Just(0u64), 0u64..20_000, any::<u64>()];
    prop_oneof![
        2 => slot().prop_map(Op::Join),
        1 => slot().prop_map(Op::Leave),
        6 => (slot(), sample()).prop_map(|(slot, sample)| Op::Observe(slot, sample)),
        3 => feedback().prop_map(Op::Round),
        4 => (live, remaining, more, callbacks).prop_map(|(live, remaining, more, callbacks)| {
            Op::Plan { live: live.into_iter().collect(), remaining, more, callbacks }
        }),
    ]
}

prop_compose! {
    fn settings()(
        policy in prop_oneof![3 => Just(Policy::Cadence), 1 => Just(Policy::Sync), 1 => Just(Policy::Async)],
        count in prop::bool::weighted(0.3),
        batch_size in 1u32..100,
        anchors in (1u32..20, 0u32..100),
        overhead_target in 0.001f64..0.5,
        max_batch_diff in prop::option::weighted(0.3, 0u32..10),
        overshoot in prop::option::weighted(0.3, 0u32..30),
        hints in prop::collection::btree_map(slot(), 0.01f64..100.0, 0..3),
    ) -> Settings {
        Settings {
            policy,
            windowing: if count { Windowing::Count } else { Windowing::Budget },
            batch_size,
            anchor: match policy {
                Policy::Sync => AnchorSettings::default(),
                _ if anchors.1 == 0 => AnchorSettings::fixed(anchors.0),
                _ => AnchorSettings {
                    start: None,
                    min: Some(anchors.0),
                    max: Some(anchors.0 + anchors.1),
                    overhead_target: Some(overhead_target),
                },
            },
            max_batch_diff: max_batch_diff.filter(|_| policy != Policy::Sync),
            overshoot: overshoot.filter(|_| policy == Policy::Async),
            speed_hints: hints.into_iter().collect(),
            deterministic: false,
        }
    }
}

/// The same where nothing measured may count, with the anchor that it would begin with.
fn fixed(settings: Settings) -> Settings {
    let start = (settings.policy != Policy::Sync).then(|| settings.first_anchor());
    let anchor = AnchorSettings { start, ..AnchorSettings::default() };
    Settings { anchor, overshoot: None, deterministic: true, ..settings }
}

fn elche(settings: &Settings) -> Elche {
    // Which guard it is follows from the batch size, so that each is drawn.
    let guard = GuardKind::ALL[settings.batch_size as usize % GuardKind::ALL.len()];
    Elche::new(settings.clone(), guard.build(1.0)).expect("the strategy draws valid settings")
}

/// Applies an operation; a plan where it was one.
fn apply(elche: &mut Elche, op: &Op) -> Option<Plan> {
    match op {
        Op::Join(slot) => elche.join(*slot),
        Op::Leave(slot) => elche.leave(*slot),
        Op::Observe(slot, sample) => elche.observe(*slot, *sample),
        Op::Round(outcome) => drop(elche.round_done(outcome)),
        Op::Plan { live, remaining, more, callbacks } => {
            let epoch_len = remaining.saturating_add(*more);
            return Some(elche.plan(&Demand { live, remaining: *remaining, epoch_len, callbacks }));
        }
    }
    None
}

fn check(settings: &Settings, plan: &Plan, live: &[Slot], remaining: u64) {
    let slots: Vec<Slot> = plan.shares.iter().map(|share| share.slot).collect();
    assert_eq!(slots, live, "one share for each live member, ascending, and none for another");
    let left = batches_in(remaining, settings.batch_size);
    let quotas: u64 = plan.shares.iter().map(|share| u64::from(share.quota)).sum();
    let leases: u128 = plan.shares.iter().map(|share| u128::from(share.lease)).sum();
    assert_eq!(plan.quota_sum, quotas);
    assert!(quotas <= left && leases <= u128::from(remaining), "{quotas} of {left}, {leases} of {remaining}");
    assert_eq!(leases > 0, left > 0 && !live.is_empty(), "somebody has work exactly where there is some");
    let (min, max) = match settings.policy {
        Policy::Sync => (1, 1),
        // A short epoch wins over the minimum.
        _ => (1, settings.anchor.most()),
    };
    assert!((min..=max).contains(&plan.anchor));
    for share in &plan.shares {
        assert!(share.quota <= share.quota_max);
        let whole = (u64::from(share.quota_max) + u64::from(share.lead)) * u64::from(settings.batch_size);
        assert!(share.lease <= whole && whole - share.lease < u64::from(settings.batch_size), "{share:?}");
        assert_eq!(share.lease == 0, share.quota == 0, "{share:?}");
        if let Some(budget) = share.budget {
            assert!(share.quota > 0 && !budget.is_zero());
            assert!(!plan.tail || share.quota == share.quota_max, "the last leases hold what is planned: {share:?}");
            assert!(settings.policy != Policy::Sync && settings.windowing == Windowing::Budget);
        } else {
            assert_eq!(share.quota, share.quota_max, "without a budget the lease ends the window");
            assert_eq!(share.lead, 0, "who has no budget cannot run ahead of it");
        }
        if let Some(diff) = settings.max_batch_diff {
            let most = share.quota_max.saturating_add(share.lead);
            assert!(most <= plan.anchor.saturating_add(diff), "{share:?} at anchor {}", plan.anchor);
        }
        if settings.policy == Policy::Sync {
            assert!(share.quota <= 1);
        }
        let ahead = if settings.policy == Policy::Async { settings.overshoot.unwrap_or(15) } else { 0 };
        assert!(share.lead <= ahead);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn plans_keep_their_laws(settings in settings(), ops in prop::collection::vec(op(), 0..60)) {
        let mut elche = elche(&settings);
        for op in &ops {
            let plan = apply(&mut elche, op);
            if let (Some(plan), Op::Plan { live, remaining, .. }) = (plan, op) {
                check(&settings, &plan, live, *remaining);
            }
        }
    }

    #[test]
    fn equal_inputs_give_equal_plans(settings in settings(), ops in prop::collection::vec(op(), 0..60)) {
        let (mut one, mut other) = (elche(&settings), elche(&settings));
        for op in &ops {
            prop_assert_eq!(apply(&mut one, op), apply(&mut other, op));
        }
    }

    #[test]
    fn absurd_reports_change_no_plan(
        settings in settings(),
        ops in prop::collection::vec((op(), slot(), absurd_sample()), 0..40),
    ) {
        let (mut plain, mut fed) = (elche(&settings), elche(&settings));
        for (op, slot, absurd) in &ops {
            fed.observe(*slot, *absurd);
            let (plain, fed) = (apply(&mut plain, op), apply(&mut fed, op));
            prop_assert_eq!(plain.map(|plan| plan.shares), fed.map(|plan| plan.shares));
        }
    }

    #[test]
    fn deterministic_plans_follow_nothing_that_is_measured(
        settings in settings().prop_map(fixed),
        ops in prop::collection::vec((op(), prop::option::of((slot(), sample())), feedback()), 0..60),
    ) {
        let (mut quick, mut slow) = (elche(&settings), elche(&settings));
        for (op, more, feedback) in &ops {
            if let Some((slot, sample)) = more {
                slow.observe(*slot, *sample);
                slow.expect(*slot, f64::from(sample.batches));
            }
            let (plain, other) = match op {
                Op::Round(_) => (apply(&mut quick, op), apply(&mut slow, &Op::Round(feedback.clone()))),
                Op::Observe(..) => (apply(&mut quick, op), None),
                Op::Plan { live, remaining, more, .. } => {
                    let idle = Op::Plan { live: live.clone(), remaining: *remaining, more: *more, callbacks: vec![] };
                    (apply(&mut quick, op), apply(&mut slow, &idle))
                }
                _ => (apply(&mut quick, op), apply(&mut slow, op)),
            };
            prop_assert_eq!(quick.weights(&[Slot(0), Slot(1)]), slow.weights(&[Slot(0), Slot(1)]));
            let (Some(plain), Some(other)) = (plain, other) else { continue };
            if let Op::Plan { live, remaining, .. } = op {
                check(&settings, &plain, live, *remaining);
            }
            prop_assert!(plain.shares.iter().all(|share| share.budget.is_none() && share.lead == 0));
            prop_assert_eq!((plain.anchor, plain.shares), (other.anchor, other.shares));
        }
    }

    #[test]
    fn absurd_round_times_do_not_move_the_anchor(
        settings in settings(),
        ops in prop::collection::vec(op(), 0..40),
        wall in prop_oneof![Just(Duration::ZERO), Just(Duration::MAX)],
        reduce in prop_oneof![Just(Duration::ZERO), Just(Duration::MAX)],
    ) {
        let mut elche = elche(&settings);
        for op in &ops {
            apply(&mut elche, op);
        }
        let before = elche.anchor();
        let divergence = vec![(Slot(0), f64::NAN), (Slot(1), f64::INFINITY)];
        let absurd = RoundFeedback { window_wall: wall, reduce, divergence, ..RoundFeedback::default() };
        let changes = elche.round_done(&absurd);
        prop_assert_eq!(elche.anchor(), before);
        let rejected = changes.iter().filter(|change| matches!(change, Change::FeedbackRejected { .. })).count();
        prop_assert_eq!(rejected, 3, "both divergences and the times");
    }
}

/// Joins members that take so many milliseconds a batch, and lets each report one window.
fn measured(settings: &Settings, millis: &[u64]) -> Elche {
    let mut elche = elche(settings);
    for (slot, &ms) in (0..).map(Slot).zip(millis) {
        let batch = Duration::from_millis(ms);
        elche.join(slot);
        elche.observe(slot, WindowSample { batches: 3, first: batch, rest: batch * 2, data_wait: Duration::ZERO });
    }
    elche.round_done(&RoundFeedback::default());
    elche
}

fn quotas(elche: &mut Elche, live: &[Slot]) -> Vec<u32> {
    let plan = elche.plan(&Demand { live, remaining: 1 << 20, epoch_len: 1 << 20, callbacks: &[] });
    plan.shares.iter().map(|share| share.quota).collect()
}

#[test]
fn the_dead_leave_every_computation() {
    let live = [0, 1, 2].map(Slot);
    let mut elche = measured(&Settings::default(), &[10, 20, 40]);
    assert_eq!((elche.fastest(), elche.slowest()), (Some(Slot(0)), Some(Slot(2))));
    assert_eq!(quotas(&mut elche, &live), [16, 8, 4]);
    elche.leave(Slot(2));
    assert_eq!(quotas(&mut elche, &live[..2]), [8, 4]);
    assert_eq!((elche.slowest(), elche.batch_time(Slot(2))), (Some(Slot(1)), None));
    elche.leave(Slot(0));
    elche.leave(Slot(1));
    assert_eq!((elche.slowest(), elche.fastest()), (None, None));
}

#[test]
fn a_joiner_begins_with_three_batches_and_then_gets_its_share() {
    let live = [0, 1, 2].map(Slot);
    let mut elche = measured(&Settings::default(), &[10, 20]);
    elche.join(Slot(2));
    assert_eq!(quotas(&mut elche, &live), [8, 4, 3]);
    let ms = Duration::from_millis;
    elche.observe(Slot(2), WindowSample { batches: 3, first: ms(90), rest: ms(10), data_wait: ms(0) });
    assert_eq!(quotas(&mut elche, &live), [8, 4, 16], "the first batch's fill does not count");
}

#[test]
fn hints_shape_the_first_window_and_scale_with_what_is_measured() {
    let speed_hints = vec![(Slot(0), 4.0), (Slot(1), 1.0), (Slot(2), 2.0)];
    let mut elche = elche(&Settings { speed_hints, ..Settings::default() });
    let live = [0, 1, 2].map(Slot);
    live.iter().for_each(|&slot| elche.join(slot));
    assert_eq!(elche.slowest(), Some(Slot(1)));
    assert_eq!(quotas(&mut elche, &live), [16, 4, 8]);
    let ms = Duration::from_millis;
    elche.observe(Slot(1), WindowSample { batches: 3, first: ms(80), rest: ms(160), data_wait: ms(0) });
    assert_eq!(elche.weights(&live).iter().map(|&(_, w)| w.round()).collect::<Vec<_>>(), [50.0, 13.0, 25.0]);
    assert_eq!(quotas(&mut elche, &live), [16, 4, 8]);
}

#[test]
fn deterministic_windows_are_counts_by_the_hints_and_keep_their_length() {
    let live = [0, 1, 2].map(Slot);
    let anchor = AnchorSettings { start: Some(8), ..AnchorSettings::default() };
    let equal = Settings { anchor, deterministic: true, ..Settings::default() };
    assert_eq!(quotas(&mut measured(&equal, &[10, 20, 40]), &live), [8, 8, 8]);
    let hinted = Settings { speed_hints: vec![(Slot(0), 4.0), (Slot(1), 1.0)], ..equal };
    let mut elche = measured(&hinted, &[10, 20, 40]);
    assert_eq!(quotas(&mut elche, &live), [32, 8, 13], "who has no hint takes the median time of the others");
    assert_eq!(elche.batch_time(Slot(2)), Some(Duration::from_millis(40)), "for deadlines and for people");
}

#[test]
fn every_change_says_why() {
    let mut elche = measured(&Settings::default(), &[10, 40]);
    let live = [Slot(0), Slot(1)];
    let demand = Demand { live: &live, remaining: 64 * 30, epoch_len: 64 * 30, callbacks: &[] };
    let said = |plan: Plan| plan.reasons.iter().map(Change::to_string).collect::<Vec<_>>();
    assert_eq!(said(elche.plan(&demand)), ["30 batches left in the epoch, 2 windows: 15 batches in this one"]);
    assert_eq!(said(elche.plan(&demand))[0], "the next window follows without a round: nothing was trained");
}
