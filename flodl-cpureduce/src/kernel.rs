//! The loops that touch every element.
//!
//! Data of a chunk is little-endian bytes of any alignment; values are read and written four or eight bytes at a
//! time, which compiles to plain vector loads and stores where the machine is little-endian and stays correct where
//! it is not. Every loop is compiled for several sets of vector instructions, of which the best that the machine has is
//! taken when it is called. Products and sums are each rounded (no fused multiply-add), so every machine gets the same
//! bits. Sums over a chunk are kept in `f64` lanes of fixed order for the same reason.
//!
//! All functions panic if the lengths of their arguments do not belong together, like `copy_from_slice`.

mod descend;
mod dispatch;
mod element;
mod hash;
mod measure;
mod narrow;
mod stream;
#[cfg(test)]
mod tests;

use crate::Momentum;
use dispatch::vectorised;
pub(crate) use hash::{Accumulators, HASH_BLOCK, SHORT_MAX, START, STRIPE, hash_end};
pub use stream::copy_around_cache;

/// The exponent bits of an `f32`: all set means infinite or not a number.
const EXPONENT: u32 = 0x7f80_0000;

/// Why two slices cannot be arguments of the same call.
const LENGTHS: &str = "slices of one chunk must have equally many elements";

/// How many elements share a scale in `int8` data.
pub const INT8_BLOCK: usize = 256;

/// What is measured between a replica's values and the consensus of the same elements.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Norms {
    /// Sum of the squares of `values - data`.
    pub squared_distance: f64,
    /// Sum of the squares of the data.
    pub squared_norm: f64,
}

/// The elements of `f32` data.
#[inline(always)]
fn words(data: &[u8]) -> &[[u8; 4]] {
    let (words, rest) = data.as_chunks();
    assert!(rest.is_empty(), "f32 data must be a multiple of 4 bytes");
    words
}

/// The elements of `f32` data, to be changed.
#[inline(always)]
fn words_mut(data: &mut [u8]) -> &mut [[u8; 4]] {
    let (words, rest) = data.as_chunks_mut();
    assert!(rest.is_empty(), "f32 data must be a multiple of 4 bytes");
    words
}

/// The elements of `i64` data.
#[inline(always)]
fn longs(data: &[u8]) -> &[[u8; 8]] {
    let (longs, rest) = data.as_chunks();
    assert!(rest.is_empty(), "i64 data must be a multiple of 8 bytes");
    longs
}

/// The elements of `i64` data, to be changed.
#[inline(always)]
fn longs_mut(data: &mut [u8]) -> &mut [[u8; 8]] {
    let (longs, rest) = data.as_chunks_mut();
    assert!(rest.is_empty(), "i64 data must be a multiple of 8 bytes");
    longs
}

/// 1 for infinite and not-a-number, so that a whole chunk is tested by or-ing.
#[inline(always)]
fn is_bad(value: f32) -> u32 {
    u32::from(value.to_bits() & EXPONENT == EXPONENT)
}

/// Bytes of so many elements as `int8` data: each block of [`INT8_BLOCK`] with its scale before it.
#[must_use]
pub const fn int8_bytes(elements: usize) -> usize {
    elements + 4 * elements.div_ceil(INT8_BLOCK)
}

vectorised! {
    /// `out = mass * src`. Returns whether every product is finite.
    pub fn scale_copy_check(src: &[f32], mass: f32, out: &mut [u8]) -> bool = element::scale_copy_check;

    /// `data *= mass` for `f32` data. Returns whether every product is finite.
    pub fn scale(data: &mut [u8], mass: f32) -> bool = element::scale;

    /// `sum += src` for `f32` data. Returns whether every sum is finite.
    pub fn add_assign(sum: &mut [u8], src: &[u8]) -> bool = element::add_assign;

    /// `out = a + b` for `f32` data. Returns whether every sum is finite.
    pub fn add(a: &[u8], b: &[u8], out: &mut [u8]) -> bool = element::add;

    /// `sum += mass * src`, product and sum each rounded. Returns whether every sum is finite.
    pub fn multiply_add(sum: &mut [u8], src: &[f32], mass: f32) -> bool = element::multiply_add;

    /// `data /= mass` for `f32` data. Returns whether every quotient is finite.
    pub fn divide(data: &mut [u8], mass: f32) -> bool = element::divide;

    /// `data /= mass` for `f32` data. Returns the sum of the squares of the quotients, or `None` where one is not finite.
    pub fn divide_measured(data: &mut [u8], mass: f32) -> Option<f64> = measure::divide_measured;

    /// The whole of a round in one pass over memory: `out` becomes the sum of `mass * values` over the parts in their
    /// order, divided by `total`, with the bits that [`scale_copy_check`], [`add_assign`] and [`divide`] give. Returns
    /// whether every average is finite.
    ///
    /// `squared_distances` is empty, or becomes for each part the sum of the squares of its values less the average.
    pub fn average(parts: &[(f32, &[f32])], total: f32, out: &mut [u8], squared_distances: &mut [f64]) -> bool =
        measure::average;

    /// `largest = max(largest, src)` element by element, for `i64` data.
    pub fn max_assign(largest: &mut [u8], src: &[u8]) = element::max_assign;

    /// Whether every value of `f32` data is finite.
    #[must_use]
    pub fn all_finite(data: &[u8]) -> bool = element::all_finite;

    /// Whether all values are finite.
    #[must_use]
    pub fn all_finite_of(values: &[f32]) -> bool = element::all_finite_of;

    /// Sum of the squares of values.
    #[must_use]
    pub fn squared_norm_of(values: &[f32]) -> f64 = measure::squared_norm_of;

    /// Sum of the squares of `f32` data.
    #[must_use]
    pub fn squared_norm(data: &[u8]) -> f64 = measure::squared_norm;

    /// Sum of the squares of `values - data`, for `f32` data.
    #[must_use]
    pub fn squared_distance(values: &[f32], data: &[u8]) -> f64 = measure::squared_distance;

    /// [`squared_distance`] and [`squared_norm`] in one pass.
    #[must_use]
    pub fn norms(values: &[f32], data: &[u8]) -> Norms = measure::norms;

    /// Writes `f32` data over `values` and returns the [`norms`] of what they were: the write-back of a replica that has
    /// trained nothing since its snapshot.
    pub fn take(values: &mut [f32], data: &[u8]) -> Norms = measure::take;

    /// `values += pull * (consensus - snapshot)`, for `f32` data: how a replica takes a result and keeps what it has
    /// trained since its snapshot.
    ///
    /// Where nothing was trained since and `pull` is 1 use [`read_f32`] instead: it gives the bits of the consensus,
    /// while a sum of differences is rounded.
    pub fn pull_towards(values: &mut [f32], consensus: &[u8], snapshot: &[f32], pull: f32) = descend::pull_towards;

    /// `values += pull * (consensus - values)`, for `f32` data: the same where nothing was trained since.
    pub fn pull(values: &mut [f32], consensus: &[u8], pull: f32) = descend::pull;

    /// A step of [`SlowMomentum`](crate::SlowMomentum): `next = momentum * velocity + (previous - average)`, and then
    /// `average = previous - learning_rate * next`.
    pub fn slow_momentum(
        previous: &[u8], average: &mut [u8], velocity: &[f32], next: &mut [f32], momentum: Momentum
    ) = descend::slow_momentum;

    /// A step of [`Nesterov`](crate::Nesterov): with `g = previous - average` it is `next = momentum * velocity + g`, and
    /// then `average = previous - learning_rate * (g + momentum * next)`.
    pub fn nesterov(
        previous: &[u8], average: &mut [u8], velocity: &[f32], next: &mut [f32], momentum: Momentum
    ) = descend::nesterov;

    /// Writes `f32` data into `out`.
    pub fn read_f32(data: &[u8], out: &mut [f32]) = element::read_f32;

    /// Takes full blocks into the sums of a digest.
    pub(crate) fn hash_blocks(sums: &mut Accumulators, blocks: &[[u8; HASH_BLOCK]]) = hash::hash_blocks;

    /// Writes `i64` data into `out`.
    pub fn read_i64(data: &[u8], out: &mut [i64]) = element::read_i64;

    /// `out = (sum / mass - base) + out`: the difference of an average from `base`, with what `out` holds of earlier
    /// rounding errors added. Returns whether all of it is finite.
    pub fn difference(sum: &[u8], mass: f32, base: &[u8], out: &mut [f32]) -> bool = narrow::difference;

    /// Rounds finite values to `bf16` (two little-endian bytes each, nearest, ties to even; what would round to infinity
    /// becomes the largest finite one). What rounding took away is left in `values`, exactly.
    pub fn to_bf16(values: &mut [f32], out: &mut [u8]) = narrow::to_bf16;

    /// `out = base + codes` for `bf16` codes and `f32` data. Returns whether every sum is finite.
    pub fn add_bf16(base: &[u8], codes: &[u8], out: &mut [u8]) -> bool = narrow::add_bf16;

    /// Rounds finite values to `int8` data of [`int8_bytes`]: blocks of [`INT8_BLOCK`], each an `f32` scale and then one
    /// `i8` for each value, which stands for their product. What rounding took away is left in `values`, exactly.
    ///
    /// The scale is the largest magnitude of the block over 127, or over the next smaller number of steps with which that
    /// magnitude comes back exactly.
    pub fn to_int8(values: &mut [f32], out: &mut [u8]) = narrow::to_int8;

    /// `out = base + scale * code` for `int8` codes and `f32` data, product and sum each rounded. Returns whether every
    /// sum is finite.
    pub fn add_int8(base: &[u8], codes: &[u8], out: &mut [u8]) -> bool = narrow::add_int8;
}
