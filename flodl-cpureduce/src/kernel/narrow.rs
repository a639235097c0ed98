//! The loops that round values to fewer bits and back: `bf16`, and `i8` with one scale for each block.

use super::{INT8_BLOCK, LENGTHS, is_bad, words, words_mut};

/// Added to a number of magnitude below 2^22 and taken off again, this rounds it to the nearest integer, ties to even,
/// without an instruction that old machines lack. The sum's lowest bits are that integer in two's complement.
const ROUNDER: f32 = 12_582_912.0; // 1.5 * 2^23

/// The largest finite `bf16` in the upper half of an `f32`.
const BF16_MAX: u32 = 0x7f7f_0000;

/// Bytes of a full block with its scale.
const BLOCK_BYTES: usize = INT8_BLOCK + 4;

#[inline(always)]
fn pairs(data: &[u8]) -> &[[u8; 2]] {
    let (pairs, rest) = data.as_chunks();
    assert!(rest.is_empty(), "bf16 data must be a multiple of 2 bytes");
    pairs
}

/// The nearest `bf16`, ties to even, in the upper half; values that would round to infinity stay at the largest.
#[inline(always)]
fn rounded_bf16(value: f32) -> u32 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let rounded = (magnitude + 0x7fff + ((magnitude >> 16) & 1)) & 0xffff_0000;
    (bits & 0x8000_0000) | rounded.min(BF16_MAX)
}

#[inline(always)]
fn widened(pair: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(pair)) << 16)
}

#[inline(always)]
pub(super) fn difference(sum: &[u8], mass: f32, base: &[u8], out: &mut [f32]) -> bool {
    let (sum, base) = (words(sum), words(base));
    assert_eq!(sum.len(), out.len(), "{LENGTHS}");
    assert_eq!(base.len(), out.len(), "{LENGTHS}");
    let mut bad = 0;
    for ((out, sum), base) in out.iter_mut().zip(sum).zip(base) {
        let value = (f32::from_le_bytes(*sum) / mass - f32::from_le_bytes(*base)) + *out;
        bad |= is_bad(value);
        *out = value;
    }
    bad == 0
}

#[inline(always)]
pub(super) fn to_bf16(values: &mut [f32], out: &mut [u8]) {
    let (out, rest) = out.as_chunks_mut::<2>();
    assert!(rest.is_empty() && out.len() == values.len(), "{LENGTHS}");
    for (value, out) in values.iter_mut().zip(out) {
        let rounded = rounded_bf16(*value);
        *out = ((rounded >> 16) as u16).to_le_bytes();
        *value -= f32::from_bits(rounded);
    }
}

#[inline(always)]
pub(super) fn add_bf16(base: &[u8], codes: &[u8], out: &mut [u8]) -> bool {
    let (base, codes, out) = (words(base), pairs(codes), words_mut(out));
    assert_eq!(base.len(), out.len(), "{LENGTHS}");
    assert_eq!(codes.len(), out.len(), "{LENGTHS}");
    let mut bad = 0;
    for ((out, base), code) in out.iter_mut().zip(base).zip(codes) {
        let value = f32::from_le_bytes(*base) + widened(*code);
        bad |= is_bad(value);
        *out = value.to_le_bytes();
    }
    bad == 0
}

/// The largest scale of at most 127 steps that gives `largest` back exactly, so that zeros, constants and single
/// outliers of any size survive. 127 steps almost always do.
#[inline(always)]
fn int8_scale(largest: f32) -> f32 {
    let mut steps = 127.0;
    while steps > 1.0 {
        let scale = largest / steps;
        if scale * steps == largest {
            return scale;
        }
        steps -= 1.0;
    }
    largest
}

#[inline(always)]
pub(super) fn to_int8(values: &mut [f32], out: &mut [u8]) {
    assert_eq!(out.len(), super::int8_bytes(values.len()), "{LENGTHS}");
    for (block, out) in values.chunks_mut(INT8_BLOCK).zip(out.chunks_mut(BLOCK_BYTES)) {
        let largest = block.iter().fold(0, |largest: i32, value| largest.max((value.to_bits() & 0x7fff_ffff) as i32));
        let scale = int8_scale(f32::from_bits(largest as u32));
        let (head, codes) = out.split_at_mut(4);
        head.copy_from_slice(&scale.to_le_bytes());
        let divisor = if scale == 0.0 { 1.0 } else { scale };
        for (value, code) in block.iter_mut().zip(codes) {
            let shifted = *value / divisor + ROUNDER;
            *code = shifted.to_bits() as u8;
            *value -= (shifted - ROUNDER) * scale;
        }
    }
}

#[inline(always)]
pub(super) fn add_int8(base: &[u8], codes: &[u8], out: &mut [u8]) -> bool {
    let (base, out) = (words(base), words_mut(out));
    assert_eq!(base.len(), out.len(), "{LENGTHS}");
    assert_eq!(codes.len(), super::int8_bytes(out.len()), "{LENGTHS}");
    let mut bad = 0;
    for ((out, base), codes) in out.chunks_mut(INT8_BLOCK).zip(base.chunks(INT8_BLOCK)).zip(codes.chunks(BLOCK_BYTES)) {
        let Some((scale, codes)) = codes.split_first_chunk() else { continue };
        let scale = f32::from_le_bytes(*scale);
        for ((out, base), &code) in out.iter_mut().zip(base).zip(codes) {
            let step = f32::from(code as i8) * scale;
            let value = f32::from_le_bytes(*base) + step;
            bad |= is_bad(value);
            *out = value.to_le_bytes();
        }
    }
    bad == 0
}
