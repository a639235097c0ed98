//! A scheduler's memory over a restart: into the same run it is whole, into another world what can be mapped is.

use std::time::Duration;

use flodl_elche::{
    Cadence, Change, Demand, Elche, Guard, GuardKind, RoundFeedback, Settings, Slot, State, WindowSample,
};
use proptest::prelude::*;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn new(guard: GuardKind) -> Elche {
    Elche::new(Settings::default(), guard.build(1.0)).expect("the defaults are valid")
}

/// One window and its round, of members that take so many milliseconds a batch.
fn round(elche: &mut Elche, live: &[(Slot, u64)], divergence: f64, rate: f64) -> Vec<Change> {
    for &(slot, batch) in live {
        elche.observe(slot, WindowSample { batches: 9, first: ms(batch), rest: ms(8 * batch), data_wait: ms(0) });
    }
    elche.round_done(&RoundFeedback {
        window_wall: ms(400),
        reduce: ms(50),
        divergence: live.iter().map(|&(slot, _)| (slot, divergence)).collect(),
        steps: live.iter().map(|&(slot, _)| (slot, 9)).collect(),
        rates: live.iter().map(|&(slot, _)| (slot, rate)).collect(),
        ..RoundFeedback::default()
    })
}

fn quotas(elche: &mut Elche, live: &[(Slot, u64)]) -> Vec<u32> {
    let live: Vec<Slot> = live.iter().map(|&(slot, _)| slot).collect();
    let plan = elche.plan(&Demand { live: &live, remaining: 1 << 30, epoch_len: 1 << 30, callbacks: &[] });
    plan.shares.iter().map(|share| share.quota).collect()
}

/// Through JSON, as a checkpoint keeps it.
fn reread(elche: &Elche) -> State {
    let text = serde_json::to_string(&elche.state()).expect("finite numbers");
    serde_json::from_str(&text).expect("what was written")
}

fn restored(guard: GuardKind, state: &State) -> Elche {
    Elche::restore(Settings::default(), guard.build(1.0), state).expect("the defaults are valid")
}

const THREE: [(Slot, u64); 3] = [(Slot(0), 8), (Slot(1), 20), (Slot(2), 32)];

#[test]
fn a_restart_changes_nothing() {
    for guard in GuardKind::ALL {
        for cut in 0..14 {
            let mut elche = new(guard);
            THREE.iter().for_each(|&(slot, _)| elche.join(slot));
            let history = |i: u32| (0.02 * f64::from(i % 7) * f64::from(i), if i < 9 { 0.1 } else { 0.02 });
            for i in 0..cut {
                let (divergence, rate) = history(i);
                round(&mut elche, &THREE, divergence, rate);
            }
            let mut other = restored(guard, &reread(&elche));
            assert_eq!(other.state(), elche.state(), "{guard} after {cut}");
            THREE.iter().for_each(|&(slot, _)| other.join(slot));
            assert_eq!(other.state(), elche.state(), "{guard} after {cut}, all joined");
            for i in cut..20 {
                assert_eq!(quotas(&mut other, &THREE), quotas(&mut elche, &THREE));
                let (divergence, rate) = history(i);
                round(&mut elche, &THREE, divergence, rate);
                round(&mut other, &THREE, divergence, rate);
                assert_eq!((other.anchor(), other.state()), (elche.anchor(), elche.state()), "{guard} {cut} {i}");
            }
        }
    }
}

#[test]
fn another_world_takes_what_it_knows() {
    let mut elche = new(GuardKind::Trend);
    THREE.iter().for_each(|&(slot, _)| elche.join(slot));
    (0..8).for_each(|_| drop(round(&mut elche, &THREE, 0.01, 0.1)));
    let (state, anchor) = (reread(&elche), elche.anchor());
    assert!(anchor > 4 && state.anchor() == anchor);
    assert_eq!(state.members().collect::<Vec<_>>(), THREE.map(|(slot, _)| slot));

    // Smaller: the slowest one is missing.
    let mut smaller = restored(GuardKind::Trend, &state);
    THREE[..2].iter().for_each(|&(slot, _)| smaller.join(slot));
    assert_eq!(quotas(&mut smaller, &THREE[..2]), [anchor * 20 / 8, anchor]);

    // Larger: the new one begins with three batches.
    let mut larger = restored(GuardKind::Trend, &state);
    let four = [THREE[0], THREE[1], THREE[2], (Slot(3), 8)];
    four.iter().for_each(|&(slot, _)| larger.join(slot));
    assert_eq!(quotas(&mut larger, &four), [4 * anchor, anchor * 32 / 20, anchor, 3]);
    assert_eq!(larger.slowest(), Some(Slot(2)), "who was elected still is");

    // Who joins for a second time begins anew: it may be another process on another device.
    larger.leave(Slot(1));
    larger.join(Slot(1));
    assert_eq!(larger.batch_time(Slot(1)), None);
}

#[test]
fn another_guard_begins_anew_and_it_is_said() {
    let mut elche = new(GuardKind::Trend);
    THREE.iter().for_each(|&(slot, _)| elche.join(slot));
    (1..4).for_each(|i| drop(round(&mut elche, &THREE, 0.05 * f64::from(i), 0.1)));
    let state = reread(&elche);
    for (guard, kept) in [(GuardKind::Trend, true), (GuardKind::Msf, false), (GuardKind::None, false)] {
        let mut other = restored(guard, &state);
        let said = other.round_done(&RoundFeedback::default());
        assert_eq!(said[0], Change::Restored { anchor: elche.anchor(), members: 3, guard: kept }, "{guard}");
    }
}

#[test]
fn what_cannot_be_is_left_out() {
    let mut elche = new(GuardKind::Msf);
    THREE.iter().for_each(|&(slot, _)| elche.join(slot));
    (1..4).for_each(|i| drop(round(&mut elche, &THREE, 0.05 * f64::from(i), 0.1)));
    let text = serde_json::to_string(&elche.state()).expect("finite numbers");
    for (what, with) in [
        ("0.008", "-1.0"),
        ("0.008", "1e300"),
        ("\"anchor\":16", "\"anchor\":4000000000"),
        ("\"anchor\":16", "\"anchor\":0"),
        ("\"last\":0.1", "\"last\":-0.1"),
        ("\"memory\":[", "\"memory\":[7,"),
        ("\"disarmed\":null", "\"disarmed\":4294967295"),
        ("\"reduce\":[", "\"reduce\":[-5,1e308,"),
    ] {
        let changed = text.replace(what, with);
        assert_ne!(changed, text, "{what} is in {text}");
        let state: State = serde_json::from_str(&changed).expect("numbers of the right kind");
        let mut other = restored(GuardKind::Msf, &state);
        THREE.iter().for_each(|&(slot, _)| other.join(slot));
        for _ in 0..6 {
            let planned = quotas(&mut other, &THREE);
            assert!(planned.iter().all(|&quota| quota >= 1), "{changed}: {planned:?}");
            round(&mut other, &THREE, 0.1, 0.1);
            assert!((1..=1000).contains(&other.anchor()), "{changed}");
        }
    }
}

/// A guard whose memory is not finite does not spoil the rest where the format can hold it.
#[test]
fn a_guard_of_ones_own_is_asked_by_name() {
    struct Own(f64);
    impl Guard for Own {
        fn judge(&mut self, _round: &flodl_elche::GuardInput) -> flodl_elche::Judgement {
            flodl_elche::Judgement::CONTENT
        }
        fn memory(&self) -> Vec<f64> {
            vec![self.0]
        }
        fn recall(&mut self, memory: &[f64]) -> bool {
            memory.first().is_some_and(|&first| {
                self.0 = first;
                true
            })
        }
    }
    let elche = Elche::new(Settings::default(), Box::new(Own(7.0))).unwrap();
    let again = Elche::restore(Settings::default(), Box::new(Own(0.0)), &reread(&elche)).unwrap();
    assert_eq!(again.state(), elche.state());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_state_survives_its_text(
        rounds in prop::collection::vec((prop::collection::vec((0u32..9, 1u64..500), 0..6), 0.0f64..2.0, 0.0f64..1.0), 0..20),
        guard in prop::sample::select(GuardKind::ALL.to_vec()),
    ) {
        let mut elche = new(guard);
        (0..9).for_each(|slot| elche.join(Slot(slot)));
        for (live, divergence, rate) in &rounds {
            let live: Vec<(Slot, u64)> = live.iter().map(|&(slot, batch)| (Slot(slot), batch)).collect();
            round(&mut elche, &live, *divergence, *rate);
        }
        let state = reread(&elche);
        prop_assert_eq!(&state, &elche.state());
        prop_assert_eq!(restored(guard, &state).state(), state);
    }
}
