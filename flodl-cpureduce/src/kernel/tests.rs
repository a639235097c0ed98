//! Every loop at every level of the machine against its definition, element by element and bit by bit.

use super::dispatch::{Level, at_every_level};
use super::*;
use proptest::prelude::*;

/// Lengths around the lanes, the vector widths, the blocks and the chunk.
const SIZES: [usize; 18] = [0, 1, 3, 7, 8, 9, 15, 16, 17, 64, 255, 256, 257, 1003, 1025, 65_535, 65_536, 65_537];

/// Numbers that come from a seed (xorshift64).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Mostly ordinary values; of the rest any bits at all, subnormal ones, zeros and the ends of the range.
    fn value(&mut self) -> f32 {
        let drawn = self.next();
        let bits = (drawn >> 32) as u32;
        match drawn % 64 {
            0 => f32::from_bits(bits),
            1 => f32::from_bits(bits & 0x807f_ffff),
            2 => [0.0, -0.0, f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45][bits as usize % 6],
            _ => (bits as f32 / 4e9 - 0.5) * 8.0,
        }
    }

    fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    fn finite(&mut self, n: usize) -> Vec<f32> {
        self.values(n).into_iter().map(|value| if value.is_finite() { value } else { 1.5 }).collect()
    }
}

fn plain(n: usize, seed: u64) -> Vec<f32> {
    Draw(seed).values(n).into_iter().map(|value| if value.abs() < 8.0 { value } else { 1.0 }).collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(data: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; data.len() / 4];
    read_f32(data, &mut out);
    out
}

/// Data that begins so many bytes after an address of its own alignment.
fn shifted(values: &[f32], by: usize) -> Vec<u8> {
    [vec![0; by], bytes(values)].concat()
}

/// The same bits; of a value that is no number only that it is none.
#[track_caller]
fn assert_same(got: &[f32], expected: &[f32], level: Level) {
    assert_eq!(got.len(), expected.len());
    for (place, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(same, "{level:?}, element {place}: {got:e} instead of {expected:e}");
    }
}

#[track_caller]
fn assert_same_sum(got: f64, expected: f64, level: Level) {
    assert!(got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()), "{level:?}: {got} {expected}");
}

fn all_are_finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

/// A sum in sixteen lanes by its definition.
fn lanes(terms: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = [0.0; 16];
    for (place, term) in terms.enumerate() {
        lanes[place % 16] += term;
    }
    lanes.iter().sum()
}

fn square(value: f32) -> f64 {
    f64::from(value) * f64::from(value)
}

fn squared_difference((a, b): (&f32, &f32)) -> f64 {
    let difference = f64::from(*a) - f64::from(*b);
    difference * difference
}

fn map(a: &[f32], b: &[f32], op: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    a.iter().zip(b).map(|(&a, &b)| op(a, b)).collect()
}

/// The sum of the values and their scaled, or the scaled ones, in data at an odd address.
fn check_elementwise(level: Level, (a, b): (&[f32], &[f32]), mass: f32, shift: usize) {
    let scaled = map(a, b, |a, _| a * mass);
    let mut data = vec![0; 4 * a.len() + shift];
    assert_eq!(scale_copy_check(a, mass, &mut data[shift..]), all_are_finite(&scaled));
    assert_same(&floats(&data[shift..]), &scaled, level);

    let other = shifted(b, 3);
    let sum = map(&scaled, b, |a, b| a + b);
    let mut out = data.clone();
    assert_eq!(add(&data[shift..], &other[3..], &mut out[shift..]), all_are_finite(&sum));
    assert_same(&floats(&out[shift..]), &sum, level);
    assert_eq!(add_assign(&mut data[shift..], &other[3..]), all_are_finite(&sum));
    assert_same(&floats(&data[shift..]), &sum, level);
    assert_eq!(all_finite(&data[shift..]), all_are_finite(&sum));

    let more = map(&sum, a, |sum, a| sum + mass * a);
    assert_eq!(multiply_add(&mut data[shift..], a, mass), all_are_finite(&more));
    assert_same(&floats(&data[shift..]), &more, level);
    let more = map(&more, a, |more, _| more * mass);
    assert_eq!(scale(&mut data[shift..], mass), all_are_finite(&more));
    assert_same(&floats(&data[shift..]), &more, level);

    let quotient = map(&more, a, |more, _| more / mass);
    let mut copy = data.clone();
    assert_eq!(divide(&mut data[shift..], mass), all_are_finite(&quotient));
    assert_same(&floats(&data[shift..]), &quotient, level);
    let norm = divide_measured(&mut copy[shift..], mass);
    assert_eq!(norm.is_some(), all_are_finite(&quotient));
    assert_same(&floats(&copy[shift..]), &quotient, level);
    if let Some(norm) = norm {
        assert_same_sum(norm, lanes(quotient.iter().copied().map(square)), level);
    }

    let mut pulled = a.to_vec();
    pull_towards(&mut pulled, &data[shift..], b, mass);
    let expected: Vec<f32> = (0..a.len()).map(|i| a[i] + mass * (quotient[i] - b[i])).collect();
    assert_same(&pulled, &expected, level);
}

fn check_measures(level: Level, a: &[f32], b: &[f32]) {
    let data = shifted(b, 1);
    let data = &data[1..];
    let (distance, norm) = (lanes(a.iter().zip(b).map(squared_difference)), lanes(b.iter().copied().map(square)));
    assert_same_sum(squared_norm(data), norm, level);
    assert_same_sum(squared_distance(a, data), distance, level);
    let both = norms(a, data);
    assert_same_sum(both.squared_distance, distance, level);
    assert_same_sum(both.squared_norm, norm, level);
    let mut taken = a.to_vec();
    let both = take(&mut taken, data);
    assert_same(&taken, b, level);
    assert_same_sum(both.squared_distance, distance, level);
    assert_same_sum(both.squared_norm, norm, level);
}

fn check_average(level: Level, parts: &[(f32, &[f32])], total: f32) {
    let n = parts[0].1.len();
    let mut out = vec![0; 4 * n + 2];
    let mut distances = vec![f64::NAN; parts.len()];
    let finite = average(parts, total, &mut out[2..], &mut distances);
    let mut sum: Option<Vec<f32>> = None;
    for (mass, values) in parts {
        sum = Some(match sum {
            None => values.iter().map(|value| value * mass).collect(),
            Some(sum) => map(&sum, values, |sum, value| sum + value * mass),
        });
    }
    let expected: Vec<f32> = sum.unwrap_or_default().iter().map(|sum| sum / total).collect();
    assert_same(&floats(&out[2..]), &expected, level);
    assert_eq!(finite, all_are_finite(&expected));
    for (distance, (_, values)) in distances.iter().zip(parts) {
        let blocks = values.chunks(1024).zip(expected.chunks(1024));
        let by_block = blocks.fold(0.0, |sum, (a, b)| sum + lanes(a.iter().zip(b).map(squared_difference)));
        assert_same_sum(*distance, by_block, level);
    }
    assert_eq!(average(parts, total, &mut out[2..], &mut []), finite);
    assert_same(&floats(&out[2..]), &expected, level);
}

/// The nearest of the two `bf16` around a finite value, the even one where both are equally near.
fn nearest_bf16(value: f32) -> f32 {
    let down = f32::from_bits(value.to_bits() & 0xffff_0000);
    let up = f32::from_bits((value.to_bits() & 0xffff_0000).wrapping_add(0x1_0000));
    if up.is_infinite() {
        return down;
    }
    let (below, above) = ((f64::from(value) - f64::from(down)).abs(), (f64::from(up) - f64::from(value)).abs());
    let even = down.to_bits() & 0x1_0000 == 0;
    if below < above || (below == above && even) { down } else { up }
}

fn check_bf16(level: Level, values: &[f32], base: &[f32]) {
    let mut left = values.to_vec();
    let mut codes = vec![0; 2 * values.len() + 1];
    to_bf16(&mut left, &mut codes[1..]);
    let rounded: Vec<f32> = values.iter().copied().map(nearest_bf16).collect();
    assert_same(&left, &map(values, &rounded, |value, rounded| value - rounded), level);
    for ((&value, &rounded), &left) in values.iter().zip(&rounded).zip(&left) {
        assert_eq!(f64::from(rounded) + f64::from(left), f64::from(value), "nothing is lost");
    }
    let expected = map(base, &rounded, |base, rounded| base + rounded);
    let mut out = vec![0; 4 * values.len() + 3];
    assert_eq!(add_bf16(&shifted(base, 2)[2..], &codes[1..], &mut out[3..]), all_are_finite(&expected));
    assert_same(&floats(&out[3..]), &expected, level);
}

/// The scale and the codes of a block by their definition.
fn int8_block(block: &[f32]) -> (f32, Vec<i8>) {
    let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let exact = |steps: &f32| largest / steps * steps == largest;
    let scale = largest / (1..=127_u8).rev().map(f32::from).find(exact).unwrap();
    let code = |value: &f32| if scale == 0.0 { 0 } else { (value / scale).round_ties_even() as i8 };
    (scale, block.iter().map(code).collect())
}

fn check_int8(level: Level, values: &[f32], base: &[f32]) {
    let mut left = values.to_vec();
    let mut codes = vec![0; int8_bytes(values.len()) + 1];
    to_int8(&mut left, &mut codes[1..]);
    let mut expected = Vec::new();
    let mut decoded = Vec::new();
    for block in values.chunks(INT8_BLOCK) {
        let (scale, codes) = int8_block(block);
        expected.extend(scale.to_le_bytes());
        expected.extend(codes.iter().map(|code| *code as u8));
        decoded.extend(codes.iter().map(|code| f32::from(*code) * scale));
    }
    assert_eq!(codes[1..], expected, "{level:?}");
    assert_same(&left, &map(values, &decoded, |value, decoded| value - decoded), level);
    for ((&value, &decoded), &left) in values.iter().zip(&decoded).zip(&left) {
        assert_eq!(f64::from(decoded) + f64::from(left), f64::from(value), "nothing is lost");
    }
    let expected = map(base, &decoded, |base, decoded| base + decoded);
    let mut out = vec![0; 4 * values.len() + 1];
    assert_eq!(add_int8(&shifted(base, 2)[2..], &codes[1..], &mut out[1..]), all_are_finite(&expected));
    assert_same(&floats(&out[1..]), &expected, level);
}

fn check_difference(level: Level, (sum, base): (&[f32], &[f32]), mass: f32, left: &[f32]) {
    let mut out = left.to_vec();
    let finite = difference(&shifted(sum, 1)[1..], mass, &shifted(base, 3)[3..], &mut out);
    let expected: Vec<f32> = (0..sum.len()).map(|i| (sum[i] / mass - base[i]) + left[i]).collect();
    assert_same(&out, &expected, level);
    assert_eq!(finite, all_are_finite(&expected));
}

fn check_outer(level: Level, (previous, average): (&[f32], &[f32]), velocity: &[f32]) {
    let momentum = Momentum::new(0.7, 0.9).unwrap();
    let n = previous.len();
    for is_nesterov in [false, true] {
        let mut data = shifted(average, 1);
        let mut next = vec![0.0; n];
        let kernel = if is_nesterov { nesterov } else { slow_momentum };
        kernel(&shifted(previous, 2)[2..], &mut data[1..], velocity, &mut next, momentum);
        let gradient = map(previous, average, |previous, average| previous - average);
        let moved = map(velocity, &gradient, |velocity, gradient| 0.9 * velocity + gradient);
        let by = map(&gradient, &moved, |g, moved| if is_nesterov { 0.7 * (g + 0.9 * moved) } else { 0.7 * moved });
        assert_same(&next, &moved, level);
        assert_same(&floats(&data[1..]), &map(previous, &by, |previous, by| previous - by), level);
    }
    let mut values = velocity.to_vec();
    pull(&mut values, &shifted(average, 3)[3..], 0.3);
    assert_same(&values, &map(velocity, average, |value, average| value + 0.3 * (average - value)), level);
}

/// All loops with values from that seed.
fn check_all(n: usize, seed: u64) {
    let mut draw = Draw(seed | 1);
    // Chunks of ordinary values, and chunks in which a few or many are not.
    let poisoned = seed.is_multiple_of(3);
    let (a, b, c) = if poisoned {
        (draw.values(n), draw.values(n), draw.values(n))
    } else {
        (plain(n, seed | 1), plain(n, seed | 3), plain(n, seed | 5))
    };
    let (finite, base) = (draw.finite(n), draw.finite(n));
    let mass = [1.0, 3.0, 0.1, 1e-30, 1e30, f32::MIN_POSITIVE][(seed / 7 % 6) as usize];
    at_every_level(|level| {
        check_elementwise(level, (&a, &b), mass, (seed % 8) as usize);
        check_measures(level, &a, &b);
        check_average(level, &[(mass, &a), (2.0, &b), (0.7, &c)], mass + 2.7);
        check_average(level, &[(mass, &a)], mass);
        check_difference(level, (&a, &b), mass, &c);
        check_outer(level, (&a, &b), &c);
        check_bf16(level, &finite, &base);
        check_int8(level, &finite, &base);
    });
}

#[test]
fn every_level_matches_the_definitions_at_every_size() {
    for (place, n) in SIZES.into_iter().enumerate() {
        check_all(n, 0x9e37_79b9 + 1000 * place as u64);
        check_all(n, 3 * (0x51_7cc1 + 1000 * place as u64));
    }
}

proptest! {
    #[test]
    fn every_level_matches_the_definitions(n in 0..700_usize, seed in any::<u64>()) {
        check_all(n, seed);
    }
}

#[test]
fn int8_gives_edge_values_back_exactly() {
    let outlier = |value: f32| (0..300).map(|i| if i == 200 { value } else { 0.0 }).collect::<Vec<_>>();
    let mut blocks: Vec<Vec<f32>> = vec![vec![0.0; 256], vec![-0.0; 3], (0..256).map(|i| (i as f32) - 128.0).collect()];
    blocks[2][0] = 0.0;
    // Values whose 127th part times 127 is another one are among these: 1.99 times a power of two.
    for value in [1.0, -3.3, 1.99, 1.995, 1e-45, 3e-45, 1e-40, 1e-38, f32::MIN_POSITIVE, 1e38, f32::MAX, f32::MIN] {
        blocks.extend([vec![value; 256], vec![value; 1], outlier(value)]);
    }
    at_every_level(|level| {
        for block in &blocks {
            let mut left = block.clone();
            let mut codes = vec![0; int8_bytes(block.len())];
            to_int8(&mut left, &mut codes);
            assert!(left.iter().all(|left| *left == 0.0), "{level:?}: {:?} of {:?}", left, block[0]);
            let mut out = vec![0; 4 * block.len()];
            assert!(add_int8(&bytes(&vec![0.0; block.len()]), &codes, &mut out));
            assert_eq!(floats(&out), *block, "{level:?}");
        }
    });
}

#[test]
fn bf16_gives_what_it_can_hold_back_exactly_and_stays_finite() {
    let exact = [0.0, -0.0, 1.0, -0.75, 255.0, 1e-40, f32::MIN_POSITIVE, f32::from_bits(BF16_TOP)]
        .map(|value: f32| f32::from_bits(value.to_bits() & 0xffff_0000));
    at_every_level(|level| {
        let mut left = exact;
        to_bf16(&mut left, &mut [0; 16]);
        assert_eq!(left, [0.0; 8], "{level:?}");
        let mut ends = [f32::MAX, f32::MIN];
        let mut codes = [0; 4];
        to_bf16(&mut ends, &mut codes);
        assert_eq!(codes, [0x7f, 0x7f, 0x7f, 0xff], "the largest finite one of either sign");
        assert_eq!(ends[0], f32::MAX - f32::from_bits(BF16_TOP));
        // Halfway between two: the even one. Just above: the upper one.
        let mut ties = [f32::from_bits(0x3f80_8000), f32::from_bits(0x3f81_8000), f32::from_bits(0x3f80_8001)];
        let mut codes = [0; 6];
        to_bf16(&mut ties, &mut codes);
        assert_eq!(codes, [0x80, 0x3f, 0x82, 0x3f, 0x81, 0x3f]);
    });
}

/// The largest finite `bf16`.
const BF16_TOP: u32 = 0x7f7f_0000;

#[test]
fn one_bad_value_anywhere_is_seen() {
    at_every_level(|level| {
        for n in SIZES.into_iter().filter(|&n| (1..2000).contains(&n)) {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
                for place in [0, n / 2, n - 1] {
                    let mut a = plain(n, 3);
                    assert!(all_finite(&bytes(&a)));
                    a[place] = bad;
                    assert!(!all_finite(&bytes(&a)), "{level:?}");
                    assert!(!scale_copy_check(&a, 1.0, &mut vec![0; 4 * n]));
                    assert!(!add_assign(&mut bytes(&plain(n, 4)), &bytes(&a)));
                    assert!(!multiply_add(&mut bytes(&plain(n, 4)), &a, 1.0));
                    assert!(!divide(&mut bytes(&a), 2.0));
                    assert!(!average(&[(1.0, &a)], 1.0, &mut vec![0; 4 * n], &mut []));
                    assert!(!difference(&bytes(&a), 1.0, &bytes(&plain(n, 4)), &mut vec![0.0; n]));
                }
            }
        }
    });
    assert!(all_finite(&bytes(&[0.0, -0.0, f32::MIN_POSITIVE / 2.0, f32::MAX, f32::MIN])));
}

#[test]
fn a_result_out_of_range_is_seen() {
    assert!(!scale_copy_check(&[2e38], 2.0, &mut [0; 4]));
    assert!(!add_assign(&mut bytes(&[2e38]), &bytes(&[2e38])));
    assert!(!multiply_add(&mut bytes(&[2e38]), &[1e38], 2.0));
    assert!(!divide(&mut bytes(&[2e38]), 0.5));
    assert!(!add_bf16(&bytes(&[3e38]), &[0x7f, 0x7f], &mut [0; 4]));
}

#[test]
fn a_copy_around_the_cache_writes_all_of_it_and_nothing_else() {
    let data = bytes(&Draw(5).values(1100));
    at_every_level(|level| {
        for length in [0, 1, 31, 63, 64, 65, 127, 128, 1000, 4096] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (3, 33), (17, 63)] {
                let mut out = vec![0xa5; to + length + 70];
                copy_around_cache(&data[from..from + length], &mut out[to..to + length]);
                assert_eq!(out[to..to + length], data[from..from + length], "{level:?}");
                assert!(out[..to].iter().chain(&out[to + length..]).all(|byte| *byte == 0xa5), "{level:?}");
            }
        }
    });
}

#[test]
fn every_level_gives_the_same_digest() {
    let data = bytes(&Draw(77).values(9000));
    at_every_level(|level| {
        for length in [0, 1, 240, 241, 1024, 1025, 2048, 35_999, 36_000] {
            assert_eq!(crate::Digest::of(&data[..length]), xxhash_rust::xxh3::xxh3_64(&data[..length]), "{level:?}");
        }
    });
}

#[test]
fn integers_take_the_largest() {
    let raw = |values: &[i64]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    at_every_level(|level| {
        let mut largest = raw(&[i64::MIN, 5, -1, i64::MAX]);
        max_assign(&mut largest, &raw(&[-3, 4, 0, 1]));
        let mut out = [0; 4];
        read_i64(&largest, &mut out);
        assert_eq!(out, [-3, 5, 0, i64::MAX], "{level:?}");
    });
}

#[test]
#[should_panic(expected = "equally many elements")]
fn unequal_lengths_panic() {
    add_assign(&mut [0; 8], &[0; 4]);
}

#[test]
#[should_panic(expected = "equally many elements")]
fn codes_of_another_length_panic() {
    add_int8(&[0; 8], &[0; 5], &mut [0; 8]);
}
