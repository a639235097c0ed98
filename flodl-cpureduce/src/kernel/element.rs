//! The loops that make one value from one element of each argument.

use super::{LENGTHS, is_bad, longs, longs_mut, words, words_mut};

#[inline(always)]
pub(super) fn scale_copy_check(src: &[f32], mass: f32, out: &mut [u8]) -> bool {
    let out = words_mut(out);
    assert_eq!(src.len(), out.len(), "{LENGTHS}");
    let mut bad = 0;
    for (out, &value) in out.iter_mut().zip(src) {
        let scaled = value * mass;
        bad |= is_bad(scaled);
        *out = scaled.to_le_bytes();
    }
    bad == 0
}

#[inline(always)]
pub(super) fn scale(data: &mut [u8], mass: f32) -> bool {
    let mut bad = 0;
    for element in words_mut(data) {
        let value = f32::from_le_bytes(*element) * mass;
        bad |= is_bad(value);
        *element = value.to_le_bytes();
    }
    bad == 0
}

#[inline(always)]
pub(super) fn add_assign(sum: &mut [u8], src: &[u8]) -> bool {
    let (sum, src) = (words_mut(sum), words(src));
    assert_eq!(sum.len(), src.len(), "{LENGTHS}");
    let mut bad = 0;
    for (sum, src) in sum.iter_mut().zip(src) {
        let value = f32::from_le_bytes(*sum) + f32::from_le_bytes(*src);
        bad |= is_bad(value);
        *sum = value.to_le_bytes();
    }
    bad == 0
}

#[inline(always)]
pub(super) fn add(a: &[u8], b: &[u8], out: &mut [u8]) -> bool {
    let (a, b, out) = (words(a), words(b), words_mut(out));
    assert_eq!(a.len(), out.len(), "{LENGTHS}");
    assert_eq!(b.len(), out.len(), "{LENGTHS}");
    let mut bad = 0;
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        let value = f32::from_le_bytes(*a) + f32::from_le_bytes(*b);
        bad |= is_bad(value);
        *out = value.to_le_bytes();
    }
    bad == 0
}

#[inline(always)]
pub(super) fn multiply_add(sum: &mut [u8], src: &[f32], mass: f32) -> bool {
    let sum = words_mut(sum);
    assert_eq!(sum.len(), src.len(), "{LENGTHS}");
    let mut bad = 0;
    for (sum, &src) in sum.iter_mut().zip(src) {
        let value = f32::from_le_bytes(*sum) + mass * src;
        bad |= is_bad(value);
        *sum = value.to_le_bytes();
    }
    bad == 0
}

#[inline(always)]
pub(super) fn divide(data: &mut [u8], mass: f32) -> bool {
    let mut bad = 0;
    for element in words_mut(data) {
        let value = f32::from_le_bytes(*element) / mass;
        bad |= is_bad(value);
        *element = value.to_le_bytes();
    }
    bad == 0
}

#[inline(always)]
pub(super) fn max_assign(largest: &mut [u8], src: &[u8]) {
    let (largest, src) = (longs_mut(largest), longs(src));
    assert_eq!(largest.len(), src.len(), "{LENGTHS}");
    for (largest, src) in largest.iter_mut().zip(src) {
        *largest = i64::from_le_bytes(*largest).max(i64::from_le_bytes(*src)).to_le_bytes();
    }
}

#[inline(always)]
pub(super) fn all_finite(data: &[u8]) -> bool {
    words(data).iter().fold(0, |bad, element| bad | is_bad(f32::from_le_bytes(*element))) == 0
}

#[inline(always)]
pub(super) fn all_finite_of(values: &[f32]) -> bool {
    values.iter().fold(0, |bad, &value| bad | is_bad(value)) == 0
}

#[inline(always)]
pub(super) fn read_f32(data: &[u8], out: &mut [f32]) {
    let data = words(data);
    assert_eq!(data.len(), out.len(), "{LENGTHS}");
    for (out, element) in out.iter_mut().zip(data) {
        *out = f32::from_le_bytes(*element);
    }
}

#[inline(always)]
pub(super) fn read_i64(data: &[u8], out: &mut [i64]) {
    let data = longs(data);
    assert_eq!(data.len(), out.len(), "{LENGTHS}");
    for (out, element) in out.iter_mut().zip(data) {
        *out = i64::from_le_bytes(*element);
    }
}
