//! The loops that sum over a chunk, most of them while they write it.
//!
//! Sums run in [`LANES`] independent `f64` lanes, added up in their order at the end, so that they vectorise and are the
//! same on every machine.

use super::{LENGTHS, Norms, is_bad, words, words_mut};

/// Independent partial sums: as many as hide the latency of an addition.
const LANES: usize = 16;

/// Elements that are gone over several times: they stay in the first-level cache. A multiple of [`LANES`].
const BLOCK: usize = 1024;

/// One lane for the element at each place modulo [`LANES`].
type Lanes = [f64; LANES];

#[inline(always)]
fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

#[inline(always)]
fn squared_difference(a: f32, b: f32) -> f64 {
    let distance = f64::from(a) - f64::from(b);
    distance * distance
}

#[inline(always)]
fn total(lanes: &Lanes) -> f64 {
    lanes.iter().sum()
}

/// Adds the squares of elements, of which the first belongs to the first lane.
#[inline(always)]
fn add_squares(lanes: &mut Lanes, data: &[[u8; 4]]) {
    let mut own = *lanes;
    let (blocks, rest) = data.as_chunks::<LANES>();
    for block in blocks {
        for (lane, element) in own.iter_mut().zip(block) {
            *lane += square(f32::from_le_bytes(*element));
        }
    }
    for (lane, element) in own.iter_mut().zip(rest) {
        *lane += square(f32::from_le_bytes(*element));
    }
    *lanes = own;
}

/// Adds the squares of the differences of elements, of which the first belongs to the first lane.
#[inline(always)]
fn add_distances(lanes: &mut Lanes, values: &[f32], data: &[[u8; 4]]) {
    let mut own = *lanes;
    let (value_blocks, value_rest) = values.as_chunks::<LANES>();
    let (data_blocks, data_rest) = data.as_chunks::<LANES>();
    for (values, data) in value_blocks.iter().zip(data_blocks) {
        for ((lane, &value), element) in own.iter_mut().zip(values).zip(data) {
            *lane += squared_difference(value, f32::from_le_bytes(*element));
        }
    }
    for ((lane, &value), element) in own.iter_mut().zip(value_rest).zip(data_rest) {
        *lane += squared_difference(value, f32::from_le_bytes(*element));
    }
    *lanes = own;
}

#[inline(always)]
pub(super) fn squared_norm(data: &[u8]) -> f64 {
    let mut lanes = [0.0; LANES];
    add_squares(&mut lanes, words(data));
    total(&lanes)
}

#[inline(always)]
pub(super) fn squared_norm_of(values: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (lane, &value) in lanes.iter_mut().zip(block) {
            *lane += square(value);
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(rest) {
        *lane += square(value);
    }
    total(&lanes)
}

#[inline(always)]
pub(super) fn squared_distance(values: &[f32], data: &[u8]) -> f64 {
    let data = words(data);
    assert_eq!(values.len(), data.len(), "{LENGTHS}");
    let mut lanes = [0.0; LANES];
    add_distances(&mut lanes, values, data);
    total(&lanes)
}

/// Two loops over each block, which the compiler vectorises where it does not one loop with both sums.
#[inline(always)]
pub(super) fn norms(values: &[f32], data: &[u8]) -> Norms {
    let data = words(data);
    assert_eq!(values.len(), data.len(), "{LENGTHS}");
    let (mut distance, mut norm) = ([0.0; LANES], [0.0; LANES]);
    for (values, data) in values.chunks(BLOCK).zip(data.chunks(BLOCK)) {
        add_distances(&mut distance, values, data);
        add_squares(&mut norm, data);
    }
    Norms { squared_distance: total(&distance), squared_norm: total(&norm) }
}

#[inline(always)]
pub(super) fn take(values: &mut [f32], data: &[u8]) -> Norms {
    let data = words(data);
    assert_eq!(values.len(), data.len(), "{LENGTHS}");
    let (mut distance, mut norm) = ([0.0; LANES], [0.0; LANES]);
    for (values, data) in values.chunks_mut(BLOCK).zip(data.chunks(BLOCK)) {
        add_distances(&mut distance, values, data);
        add_squares(&mut norm, data);
        for (value, element) in values.iter_mut().zip(data) {
            *value = f32::from_le_bytes(*element);
        }
    }
    Norms { squared_distance: total(&distance), squared_norm: total(&norm) }
}

#[inline(always)]
pub(super) fn divide_measured(data: &mut [u8], mass: f32) -> Option<f64> {
    let mut bad = 0;
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = words_mut(data).as_chunks_mut::<LANES>();
    for block in blocks {
        for (lane, element) in lanes.iter_mut().zip(block) {
            let value = f32::from_le_bytes(*element) / mass;
            bad |= is_bad(value);
            *lane += square(value);
            *element = value.to_le_bytes();
        }
    }
    for (lane, element) in lanes.iter_mut().zip(rest) {
        let value = f32::from_le_bytes(*element) / mass;
        bad |= is_bad(value);
        *lane += square(value);
        *element = value.to_le_bytes();
    }
    (bad == 0).then(|| total(&lanes))
}

#[inline(always)]
pub(super) fn average(parts: &[(f32, &[f32])], total: f32, out: &mut [u8], squared_distances: &mut [f64]) -> bool {
    let out = words_mut(out);
    assert!(parts.iter().all(|(_, values)| values.len() == out.len()), "{LENGTHS}");
    assert!(squared_distances.is_empty() || squared_distances.len() == parts.len(), "one distance for each part");
    squared_distances.fill(0.0);
    let mut sums = [0.0; BLOCK];
    let mut bad = 0;
    for (place, out) in out.chunks_mut(BLOCK).enumerate() {
        let at = place * BLOCK..place * BLOCK + out.len();
        let sums = &mut sums[..out.len()];
        for (nth, (mass, values)) in parts.iter().enumerate() {
            let values = &values[at.clone()];
            if nth == 0 {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = value * mass);
            } else {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * mass);
            }
        }
        for (sum, out) in sums.iter_mut().zip(out) {
            *sum /= total;
            bad |= is_bad(*sum);
            *out = sum.to_le_bytes();
        }
        for (squared, (_, values)) in squared_distances.iter_mut().zip(parts) {
            *squared += block_distance(&values[at.clone()], sums);
        }
    }
    bad == 0
}

#[inline(always)]
fn block_distance(values: &[f32], others: &[f32]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    let (other_blocks, other_rest) = others.as_chunks::<LANES>();
    for (values, others) in blocks.iter().zip(other_blocks) {
        for ((lane, &value), &other) in lanes.iter_mut().zip(values).zip(others) {
            *lane += squared_difference(value, other);
        }
    }
    for ((lane, &value), &other) in lanes.iter_mut().zip(rest).zip(other_rest) {
        *lane += squared_difference(value, other);
    }
    total(&lanes)
}
