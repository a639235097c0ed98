//! Outer optimizers over rounds: their formulas, what an abandoned round leaves, and their state in a checkpoint.

use crate::plan::f32s;
use bytes::Bytes;
use flodl_cpureduce::{Consensus, Layout, Mass, Momentum, OuterRule, OuterStateError, contribution_chunk};

fn floats(values: &[f32]) -> Bytes {
    contribution_chunk(values, Mass::ONE).0
}

fn momentum(rate: f32, momentum: f32) -> Momentum {
    Momentum::new(rate, momentum).unwrap()
}

/// Five parameters in chunks of two, and a buffer.
fn layout() -> Layout {
    Layout::new(5, 1, 0).unwrap().with_chunk_bytes(8).unwrap()
}

fn started(rule: OuterRule, layout: Layout) -> Consensus {
    let model = floats(&[1.0, 2.0, -3.0, 0.5, 4.0, 9.0]);
    Consensus::from_bytes(layout, 0, model).unwrap().with_outer(rule.optimizer())
}

/// Finishes the chunks of a round in which every replica has moved towards 10; chunk `without` has nobody.
fn finish(consensus: &mut Consensus, round: u64, without: Option<u32>) {
    consensus.begin(round);
    let layout = *consensus.layout();
    for spec in layout.iter() {
        let average: Vec<f32> =
            f32s(&consensus.chunk(spec.index).unwrap()).iter().map(|x| x + 0.1 * (10.0 - x)).collect();
        let (mass, sum) =
            if without == Some(spec.index) { (Mass::ZERO, None) } else { (Mass::ONE, Some(floats(&average))) };
        consensus.finish_chunk(spec.index, mass, sum).unwrap();
    }
}

fn play(consensus: &mut Consensus, rounds: core::ops::Range<u64>) -> Bytes {
    for round in rounds {
        finish(consensus, round, None);
        consensus.commit(round).unwrap();
    }
    consensus.read_all().unwrap()
}

/// The parameter that begins at 1, by the formulas, in double precision.
fn reference(rule: OuterRule, rounds: usize) -> f64 {
    let (mut x, mut u) = (1.0_f64, 0.0);
    for _ in 0..rounds {
        let g = x - (x + 0.1 * (10.0 - x));
        x -= match rule {
            OuterRule::Average => g,
            OuterRule::SlowMomentum(with) => {
                u = f64::from(with.momentum()) * u + g;
                f64::from(with.learning_rate()) * u
            }
            OuterRule::Nesterov(with) => {
                u = f64::from(with.momentum()) * u + g;
                f64::from(with.learning_rate()) * (g + f64::from(with.momentum()) * u)
            }
        };
    }
    x
}

const RATE: f32 = 0.7;

fn rules() -> [OuterRule; 4] {
    let with = momentum(RATE, 0.9);
    let plain = momentum(1.0, 0.0);
    [OuterRule::Average, OuterRule::SlowMomentum(with), OuterRule::Nesterov(with), OuterRule::SlowMomentum(plain)]
}

#[test]
fn rounds_follow_the_formulas() {
    for rule in rules() {
        let mut consensus = started(rule, layout());
        for rounds in 1..=12 {
            let model = f32s(&play(&mut consensus, rounds..rounds + 1));
            let expect = reference(rule, rounds as usize);
            assert!((f64::from(model[0]) - expect).abs() < 2e-5, "{rule}, {rounds}: {} {expect}", model[0]);
            let buffer = 10.0 - 0.9_f64.powi(rounds as i32);
            assert!((f64::from(model[5]) - buffer).abs() < 2e-5, "buffers are averages whatever the rule");
        }
    }
    let plain = OuterRule::SlowMomentum(momentum(1.0, 0.0));
    assert!((reference(plain, 9) - reference(OuterRule::Average, 9)).abs() < 1e-12);
}

#[test]
fn a_state_that_is_restored_goes_on_bit_by_bit() {
    for rule in rules() {
        let mut without_end = started(rule, layout());
        play(&mut without_end, 1..6);
        let (model, state) = (without_end.read_all().unwrap(), without_end.outer_state());
        // What is open does not belong to the checkpoint.
        finish(&mut without_end, 6, None);
        assert_eq!(without_end.outer_state(), state);
        let expect = play(&mut without_end, 6..12);
        for chunk_bytes in [8, 16, 64] {
            let layout = layout().with_chunk_bytes(chunk_bytes).unwrap();
            let again = Consensus::from_bytes(layout, 5, model.clone()).unwrap();
            let mut again = again.with_outer(rule.optimizer());
            again.restore_outer(&state).unwrap();
            assert_eq!(again.outer_state(), state);
            assert_eq!(play(&mut again, 6..12), expect, "{rule}");
        }
    }
}

#[test]
fn an_abandoned_round_and_a_chunk_without_anybody_leave_the_state_as_it_was() {
    let rule = OuterRule::Nesterov(momentum(RATE, 0.9));
    let mut consensus = started(rule, layout());
    play(&mut consensus, 1..4);
    let (model, state) = (consensus.read_all().unwrap(), consensus.outer_state());
    finish(&mut consensus, 4, None);
    consensus.abandon();
    assert_eq!((consensus.read_all().unwrap(), consensus.outer_state()), (model.clone(), state.clone()));

    finish(&mut consensus, 4, Some(1));
    consensus.commit(4).unwrap();
    let after = consensus.outer_state();
    let (kept, moved) = (8 + 8..8 + 16, 8..8 + 8);
    assert_eq!(after[kept.clone()], state[kept]);
    assert_ne!(after[moved.clone()], state[moved]);
    assert_eq!(consensus.read_all().unwrap()[8..16], model[8..16]);
}

/// Chunk 1 makes its first step later than those around it, and a step out of range is not taken.
#[test]
fn the_state_of_a_chunk_that_has_made_no_step_is_zeros_in_its_place() {
    for rule in [OuterRule::SlowMomentum(momentum(2.0, 0.9)), OuterRule::Nesterov(momentum(2.0, 0.9))] {
        let mut consensus = started(rule, layout());
        finish(&mut consensus, 1, Some(1));
        consensus.commit(1).unwrap();
        let velocities = f32s(&consensus.outer_state()[8..28]);
        let expect = [-0.9, -0.8, 0.0, 0.0, -0.6];
        assert!(velocities.iter().zip(expect).all(|(got, expect)| (got - expect).abs() < 1e-6), "{velocities:?}");

        let (model, before) = (consensus.read_all().unwrap(), consensus.outer_state());
        consensus.begin(2);
        let far = floats(&[-3e38, -3e38]);
        for index in 0..4 {
            let here = consensus.chunk(index).unwrap();
            consensus.finish_chunk(index, Mass::ONE, Some(if index == 0 { far.clone() } else { here })).unwrap();
        }
        consensus.commit(2).unwrap();
        assert_eq!(consensus.read_all().unwrap()[..8], model[..8]);
        assert_eq!(consensus.outer_state()[8..16], before[8..16], "{rule}");
    }
}

#[test]
fn a_state_of_something_else_is_refused_and_changes_nothing() {
    let with = momentum(RATE, 0.9);
    let mut consensus = started(OuterRule::Nesterov(with), layout());
    play(&mut consensus, 1..4);
    let state = consensus.outer_state();
    let mut check = |state: &[u8], expect| {
        let before = consensus.outer_state();
        assert_eq!(consensus.restore_outer(state), Err(expect));
        assert_eq!(consensus.outer_state(), before);
    };
    check(&[], OuterStateError::Kind);
    check(&started(OuterRule::SlowMomentum(with), layout()).outer_state(), OuterStateError::Kind);
    for cut in [8, 15, 16, state.len() - 1] {
        check(&state[..cut], OuterStateError::Length { expected: 36, got: cut });
    }
    let mut damaged = state.clone();
    damaged[12] ^= 1;
    check(&damaged, OuterStateError::Digest);
    let mut poisoned = state[..28].to_vec();
    poisoned[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
    let digest = flodl_cpureduce::Digest::of(&poisoned).to_le_bytes();
    poisoned.extend(digest);
    check(&poisoned, OuterStateError::NonFinite);

    let mut average = started(OuterRule::Average, layout());
    assert_eq!(average.outer_state(), []);
    assert_eq!(average.restore_outer(&state), Err(OuterStateError::Kind));
    assert_eq!(average.restore_outer(&[]), Ok(()));
}
