//! The steps of outer optimizers and of replicas towards a consensus.

use super::{LENGTHS, words, words_mut};
use crate::Momentum;

/// What an outer step has to go by, and what it gives: the new consensus in place of the average, and the next momentum.
#[inline(always)]
fn descend(
    previous: &[u8],
    average: &mut [u8],
    velocity: &[f32],
    next: &mut [f32],
    step: impl Fn(f32, f32) -> (f32, f32),
) {
    let (previous, average) = (words(previous), words_mut(average));
    assert_eq!(previous.len(), average.len(), "{LENGTHS}");
    assert_eq!(velocity.len(), average.len(), "{LENGTHS}");
    assert_eq!(next.len(), average.len(), "{LENGTHS}");
    for (((previous, average), &velocity), next) in previous.iter().zip(average).zip(velocity).zip(next) {
        let previous = f32::from_le_bytes(*previous);
        let (moved, by) = step(previous - f32::from_le_bytes(*average), velocity);
        *next = moved;
        *average = (previous - by).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn slow_momentum(p: &[u8], average: &mut [u8], velocity: &[f32], next: &mut [f32], momentum: Momentum) {
    let (rate, momentum) = (momentum.learning_rate(), momentum.momentum());
    descend(p, average, velocity, next, |gradient, velocity| {
        let moved = momentum * velocity + gradient;
        (moved, rate * moved)
    });
}

#[inline(always)]
pub(super) fn nesterov(p: &[u8], average: &mut [u8], velocity: &[f32], next: &mut [f32], momentum: Momentum) {
    let (rate, momentum) = (momentum.learning_rate(), momentum.momentum());
    descend(p, average, velocity, next, |gradient, velocity| {
        let moved = momentum * velocity + gradient;
        (moved, rate * (gradient + momentum * moved))
    });
}

#[inline(always)]
pub(super) fn pull_towards(values: &mut [f32], consensus: &[u8], snapshot: &[f32], pull: f32) {
    let consensus = words(consensus);
    assert_eq!(values.len(), consensus.len(), "{LENGTHS}");
    assert_eq!(values.len(), snapshot.len(), "{LENGTHS}");
    for ((value, consensus), &snapshot) in values.iter_mut().zip(consensus).zip(snapshot) {
        *value += pull * (f32::from_le_bytes(*consensus) - snapshot);
    }
}

#[inline(always)]
pub(super) fn pull(values: &mut [f32], consensus: &[u8], pull: f32) {
    let consensus = words(consensus);
    assert_eq!(values.len(), consensus.len(), "{LENGTHS}");
    for (value, consensus) in values.iter_mut().zip(consensus) {
        *value += pull * (f32::from_le_bytes(*consensus) - *value);
    }
}
