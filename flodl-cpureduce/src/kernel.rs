//! The loops that touch every element.
//!
//! Data of a chunk is little-endian bytes of any alignment; values are read and written four or eight bytes at a
//! time, which compiles to plain vector loads and stores where the machine is little-endian and stays correct where
//! it is not. Products and sums are each rounded (no fused multiply-add), so every machine gets the same bits. Sums
//! over a chunk are kept in `f64` lanes of fixed order for the same reason.
//!
//! All functions panic if the lengths of their arguments do not belong together, like `copy_from_slice`.

/// Sums over a chunk run in this many independent lanes, so that they vectorise in one fixed order.
const LANES: usize = 8;

/// The exponent bits of an `f32`: all set means infinite or not a number.
const EXPONENT: u32 = 0x7f80_0000;

/// Why two slices cannot be arguments of the same call.
const LENGTHS: &str = "slices of one chunk must have equally many elements";

/// The elements of `f32` data.
#[inline]
fn words(data: &[u8]) -> &[[u8; 4]] {
    let (words, rest) = data.as_chunks();
    assert!(rest.is_empty(), "f32 data must be a multiple of 4 bytes");
    words
}

/// The elements of `f32` data, to be changed.
#[inline]
fn words_mut(data: &mut [u8]) -> &mut [[u8; 4]] {
    let (words, rest) = data.as_chunks_mut();
    assert!(rest.is_empty(), "f32 data must be a multiple of 4 bytes");
    words
}

/// The elements of `i64` data.
#[inline]
fn longs(data: &[u8]) -> &[[u8; 8]] {
    let (longs, rest) = data.as_chunks();
    assert!(rest.is_empty(), "i64 data must be a multiple of 8 bytes");
    longs
}

/// 1 for infinite and not-a-number, so that a whole chunk is tested by or-ing.
#[inline]
fn is_bad(value: f32) -> u32 {
    u32::from(value.to_bits() & EXPONENT == EXPONENT)
}

/// `out = mass * src`. Returns whether every product is finite.
pub fn scale_copy_check(src: &[f32], mass: f32, out: &mut [u8]) -> bool {
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

/// `sum += src` for `f32` data. Returns whether every sum is finite.
pub fn add_assign(sum: &mut [u8], src: &[u8]) -> bool {
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

/// `data /= mass` for `f32` data. Returns whether every quotient is finite.
pub fn divide(data: &mut [u8], mass: f32) -> bool {
    let mut bad = 0;
    for element in words_mut(data) {
        let value = f32::from_le_bytes(*element) / mass;
        bad |= is_bad(value);
        *element = value.to_le_bytes();
    }
    bad == 0
}

/// `largest = max(largest, src)` element by element, for `i64` data.
pub fn max_assign(largest: &mut [u8], src: &[u8]) {
    let (largest, rest) = largest.as_chunks_mut::<8>();
    assert!(rest.is_empty(), "i64 data must be a multiple of 8 bytes");
    let src = longs(src);
    assert_eq!(largest.len(), src.len(), "{LENGTHS}");
    for (largest, src) in largest.iter_mut().zip(src) {
        *largest = i64::from_le_bytes(*largest).max(i64::from_le_bytes(*src)).to_le_bytes();
    }
}

/// Whether every value of `f32` data is finite.
#[must_use]
pub fn all_finite(data: &[u8]) -> bool {
    words(data).iter().fold(0, |bad, element| bad | is_bad(f32::from_le_bytes(*element))) == 0
}

/// Sum of the squares of `f32` data.
#[must_use]
pub fn squared_norm(data: &[u8]) -> f64 {
    let mut lanes = [0.0; LANES];
    let (blocks, rest) = words(data).as_chunks::<LANES>();
    for block in blocks {
        for (lane, element) in lanes.iter_mut().zip(block) {
            let value = f64::from(f32::from_le_bytes(*element));
            *lane += value * value;
        }
    }
    for (lane, element) in lanes.iter_mut().zip(rest) {
        let value = f64::from(f32::from_le_bytes(*element));
        *lane += value * value;
    }
    lanes.iter().sum()
}

/// Sum of the squares of `values - data`, for `f32` data.
#[must_use]
pub fn squared_distance(values: &[f32], data: &[u8]) -> f64 {
    let data = words(data);
    assert_eq!(values.len(), data.len(), "{LENGTHS}");
    let mut lanes = [0.0; LANES];
    let (data_blocks, data_rest) = data.as_chunks::<LANES>();
    let (value_blocks, value_rest) = values.as_chunks::<LANES>();
    for (data, values) in data_blocks.iter().zip(value_blocks) {
        for ((lane, element), &value) in lanes.iter_mut().zip(data).zip(values) {
            let distance = f64::from(value) - f64::from(f32::from_le_bytes(*element));
            *lane += distance * distance;
        }
    }
    for ((lane, element), &value) in lanes.iter_mut().zip(data_rest).zip(value_rest) {
        let distance = f64::from(value) - f64::from(f32::from_le_bytes(*element));
        *lane += distance * distance;
    }
    lanes.iter().sum()
}

/// `values += pull * (consensus - snapshot)`, for `f32` data: how a replica takes a result and keeps what it has
/// trained since its snapshot.
///
/// Where nothing was trained since and `pull` is 1 use [`read_f32`] instead: it gives the bits of the consensus,
/// while a sum of differences is rounded.
pub fn pull_towards(values: &mut [f32], consensus: &[u8], snapshot: &[f32], pull: f32) {
    let consensus = words(consensus);
    assert_eq!(values.len(), consensus.len(), "{LENGTHS}");
    assert_eq!(values.len(), snapshot.len(), "{LENGTHS}");
    for ((value, consensus), &snapshot) in values.iter_mut().zip(consensus).zip(snapshot) {
        *value += pull * (f32::from_le_bytes(*consensus) - snapshot);
    }
}

/// Writes `f32` data into `out`.
pub fn read_f32(data: &[u8], out: &mut [f32]) {
    let data = words(data);
    assert_eq!(data.len(), out.len(), "{LENGTHS}");
    for (out, element) in out.iter_mut().zip(data) {
        *out = f32::from_le_bytes(*element);
    }
}

/// Writes `i64` data into `out`.
pub fn read_i64(data: &[u8], out: &mut [i64]) {
    let data = longs(data);
    assert_eq!(data.len(), out.len(), "{LENGTHS}");
    for (out, element) in out.iter_mut().zip(data) {
        *out = i64::from_le_bytes(*element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lengths around the lanes and the vector widths.
    const SIZES: [usize; 8] = [0, 1, 3, 7, 8, 9, 64, 1003];

    fn values(n: usize, seed: u32) -> Vec<f32> {
        (0..n as u32).map(|i| ((i.wrapping_mul(2_654_435_761) ^ seed) as f32 / 4e9 - 0.5) * 8.0).collect()
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn elementwise_kernels_match_one_by_one() {
        for n in SIZES {
            let (a, b) = (values(n, 1), values(n, 99));
            let mut out = vec![0; 4 * n];
            assert!(scale_copy_check(&a, 3.0, &mut out));
            assert_eq!(out, bytes(&a.iter().map(|x| x * 3.0).collect::<Vec<_>>()));
            assert!(add_assign(&mut out, &bytes(&b)));
            assert_eq!(out, bytes(&a.iter().zip(&b).map(|(x, y)| x * 3.0 + y).collect::<Vec<_>>()));
            assert!(divide(&mut out, 7.0));
            assert_eq!(out, bytes(&a.iter().zip(&b).map(|(x, y)| (x * 3.0 + y) / 7.0).collect::<Vec<_>>()));
            let mut read = vec![0.0; n];
            read_f32(&out, &mut read);
            assert_eq!(bytes(&read), out);

            let mut pulled = a.clone();
            pull_towards(&mut pulled, &out, &b, 0.5);
            let expect: Vec<f32> = (0..n).map(|i| a[i] + 0.5 * (read[i] - b[i])).collect();
            assert_eq!(pulled, expect);
        }
    }

    #[test]
    fn data_may_lie_at_any_address() {
        let mut padded = vec![0; 1];
        padded.extend(bytes(&values(9, 5)));
        let mut sum = vec![0; 3];
        sum.extend(bytes(&values(9, 6)));
        assert!(add_assign(&mut sum[3..], &padded[1..]));
        let expect: Vec<f32> = values(9, 6).iter().zip(values(9, 5)).map(|(x, y)| x + y).collect();
        assert_eq!(sum[3..], bytes(&expect));
    }

    #[test]
    fn norms_match_exact_sums() {
        for n in SIZES {
            // Small integers: every partial sum is exact, so the order of the lanes cannot hide a lost element.
            let a: Vec<f32> = (0..n).map(|i| (i % 11) as f32).collect();
            let b: Vec<f32> = (0..n).map(|i| (i % 7) as f32).collect();
            let norm: f64 = b.iter().map(|x| f64::from(x * x)).sum();
            let distance: f64 = a.iter().zip(&b).map(|(x, y)| f64::from((x - y) * (x - y))).sum();
            assert_eq!(squared_norm(&bytes(&b)), norm);
            assert_eq!(squared_distance(&a, &bytes(&b)), distance);
        }
    }

    #[test]
    fn one_bad_value_anywhere_is_seen() {
        for n in SIZES.into_iter().filter(|&n| n > 0) {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
                for place in [0, n / 2, n - 1] {
                    let mut a = values(n, 3);
                    assert!(all_finite(&bytes(&a)));
                    a[place] = bad;
                    assert!(!all_finite(&bytes(&a)));
                    assert!(!scale_copy_check(&a, 1.0, &mut vec![0; 4 * n]));
                    assert!(!add_assign(&mut bytes(&values(n, 4)), &bytes(&a)));
                    assert!(!divide(&mut bytes(&a), 2.0));
                }
            }
        }
        assert!(all_finite(&bytes(&[0.0, -0.0, f32::MIN_POSITIVE / 2.0, f32::MAX, f32::MIN])));
    }

    #[test]
    fn a_result_out_of_range_is_seen() {
        assert!(!scale_copy_check(&[2e38], 2.0, &mut [0; 4]));
        assert!(!add_assign(&mut bytes(&[2e38]), &bytes(&[2e38])));
        assert!(!divide(&mut bytes(&[2e38]), 0.5));
    }

    #[test]
    fn integers_take_the_largest() {
        let raw = |values: &[i64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let mut largest = raw(&[i64::MIN, 5, -1, i64::MAX]);
        max_assign(&mut largest, &raw(&[-3, 4, 0, 1]));
        let mut out = [0; 4];
        read_i64(&largest, &mut out);
        assert_eq!(out, [-3, 5, 0, i64::MAX]);
    }

    #[test]
    #[should_panic(expected = "equally many elements")]
    fn unequal_lengths_panic() {
        add_assign(&mut [0; 8], &[0; 4]);
    }
}
