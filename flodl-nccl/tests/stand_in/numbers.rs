//! Sums over NCCL's types: read as `f64` (integers of 64 bits as they are), reduced in rank order, rounded once at the end.

/// What a collective does with the contributions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Op {
    Sum,
    Max,
    Min,
    Average,
    /// Each rank's own factor before the sum.
    PreMulSum(f64),
    /// The contribution of one rank, for all.
    CopyFrom(usize),
}

impl Op {
    /// `ncclRedOp_t` of the built-in ones.
    pub(crate) fn built_in(code: i32) -> Option<Self> {
        [Some(Self::Sum), None, Some(Self::Max), Some(Self::Min), Some(Self::Average)]
            .get(usize::try_from(code).ok()?)
            .copied()
            .flatten()
    }

    /// Itself as two numbers.
    pub(crate) fn numbered(self) -> (u64, u64) {
        match self {
            Self::Sum => (0, 0),
            Self::Max => (1, 0),
            Self::Min => (2, 0),
            Self::Average => (3, 0),
            Self::PreMulSum(factor) => (4, factor.to_bits()),
            Self::CopyFrom(root) => (5, root as u64),
        }
    }

    /// The operator of two numbers.
    pub(crate) fn of(number: u64, value: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Sum,
            1 => Self::Max,
            2 => Self::Min,
            3 => Self::Average,
            4 => Self::PreMulSum(f64::from_bits(value)),
            5 => Self::CopyFrom(value as usize),
            _ => return None,
        })
    }
}

/// The size of a type of `ncclDataType_t`; `None` for those that are not known here.
pub(crate) fn size_of_kind(kind: i32) -> Option<usize> {
    match kind {
        0 | 1 => Some(1),
        6 | 9 => Some(2),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        _ => None,
    }
}

/// Reads `count` values at an address.
pub(crate) fn read(address: usize, count: usize, kind: i32) -> Option<Vec<f64>> {
    let size = size_of_kind(kind)?;
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, count * size) };
    Some(values(bytes, size, kind))
}

fn values(bytes: &[u8], size: usize, kind: i32) -> Vec<f64> {
    bytes.chunks_exact(size).map(|bytes| value(bytes, kind)).collect()
}

fn value(bytes: &[u8], kind: i32) -> f64 {
    let wide = |count: usize| {
        let mut all = [0_u8; 8];
        all[..count].copy_from_slice(&bytes[..count]);
        u64::from_le_bytes(all)
    };
    match kind {
        0 => f64::from(wide(1) as i8),
        1 => f64::from(wide(1) as u8),
        2 => f64::from(wide(4) as i32),
        3 => f64::from(wide(4) as u32),
        4 => wide(8) as i64 as f64,
        5 => wide(8) as f64,
        6 => f64::from(f32_of_half(wide(2) as u16)),
        7 => f64::from(f32::from_bits(wide(4) as u32)),
        8 => f64::from_bits(wide(8)),
        _ => f64::from(f32::from_bits((wide(2) as u32) << 16)),
    }
}

fn push(bytes: &mut Vec<u8>, value: f64, kind: i32) {
    match kind {
        0 => bytes.extend((value as i8).to_le_bytes()),
        1 => bytes.extend((value as u8).to_le_bytes()),
        2 => bytes.extend((value as i32).to_le_bytes()),
        3 => bytes.extend((value as u32).to_le_bytes()),
        4 => bytes.extend((value as i64).to_le_bytes()),
        5 => bytes.extend((value as u64).to_le_bytes()),
        6 => bytes.extend(half_of_f32(value as f32).to_le_bytes()),
        7 => bytes.extend((value as f32).to_le_bytes()),
        8 => bytes.extend(value.to_le_bytes()),
        _ => bytes.extend(bfloat_of_f32(value as f32).to_le_bytes()),
    }
}

/// Rounds to the nearest bfloat16, ties to even.
fn bfloat_of_f32(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) as u16
}

fn f32_of_half(half: u16) -> f32 {
    let sign = if half & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from((half >> 10) & 0x1f), f32::from(half & 0x3ff));
    match exponent {
        0 => sign * fraction * 2_f32.powi(-24),
        31 if fraction == 0.0 => sign * f32::INFINITY,
        31 => f32::NAN,
        _ => sign * (1.0 + fraction / 1024.0) * 2_f32.powi(exponent - 15),
    }
}

/// Rounds to the nearest half, ties to even.
fn half_of_f32(value: f32) -> u16 {
    let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
    let size = value.abs();
    if size.is_nan() {
        return sign | 0x7e00;
    }
    if size >= 65_520.0 {
        return sign | 0x7c00;
    }
    // The spacing of halves around the value; rounding to a multiple of it may carry into the next exponent by itself.
    let exponent = size.log2().floor().max(-14.0) as i32;
    let steps = (size / 2_f32.powi(exponent - 10)).round_ties_even() as u16;
    sign | if exponent == -14 && steps < 1024 { steps } else { ((exponent + 15) as u16 - 1) * 1024 + steps }
}

/// Reduces contributions in rank order. Integers of 64 bits are never rounded.
pub(crate) fn reduce(contributions: &[(Op, &[u8])], own: Op, kind: i32) -> Vec<u8> {
    let size = size_of_kind(kind).unwrap_or(1);
    if let Op::CopyFrom(root) = own {
        return contributions[root].1.to_vec();
    }
    if matches!(kind, 4 | 5) {
        return reduce_longs(contributions, own, kind == 4);
    }
    let scaled = |(op, bytes): &(Op, &[u8])| -> Vec<f64> {
        let factor = if let Op::PreMulSum(factor) = op { *factor } else { 1.0 };
        values(bytes, size, kind).iter().map(|value| factor * value).collect()
    };
    let mut result = scaled(&contributions[0]);
    for contribution in &contributions[1..] {
        for (sum, value) in result.iter_mut().zip(scaled(contribution)) {
            *sum = match own {
                Op::Max => sum.max(value),
                Op::Min => sum.min(value),
                _ => *sum + value,
            };
        }
    }
    if own == Op::Average {
        result.iter_mut().for_each(|sum| *sum /= contributions.len() as f64);
    }
    let mut bytes = Vec::new();
    result.iter().for_each(|value| push(&mut bytes, *value, kind));
    bytes
}

fn reduce_longs(contributions: &[(Op, &[u8])], own: Op, is_signed: bool) -> Vec<u8> {
    let wide = |bytes: &[u8; 8]| match is_signed {
        true => i128::from(i64::from_le_bytes(*bytes)),
        false => i128::from(u64::from_le_bytes(*bytes)),
    };
    let longs = |(_, bytes): &(Op, &[u8])| bytes.as_chunks::<8>().0.iter().map(wide).collect::<Vec<i128>>();
    let mut result = longs(&contributions[0]);
    for contribution in &contributions[1..] {
        for (sum, value) in result.iter_mut().zip(longs(contribution)) {
            *sum = match own {
                Op::Max => value.max(*sum),
                Op::Min => value.min(*sum),
                _ => *sum + value,
            };
        }
    }
    let share = if own == Op::Average { contributions.len() as i128 } else { 1 };
    result.iter().flat_map(|sum| ((sum / share) as u64).to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_averages_and_factors() {
        let bytes = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let (one, other) = (bytes(&[1.0, 2.0]), bytes(&[3.0, 5.0]));
        let of_two = |op| values(&reduce(&[(op, &one), (op, &other)], op, 8), 8, 8);
        assert_eq!(of_two(Op::Sum), [4.0, 7.0]);
        assert_eq!(of_two(Op::Average), [2.0, 3.5]);
        assert_eq!(of_two(Op::Max), [3.0, 5.0]);
        assert_eq!(of_two(Op::CopyFrom(1)), [3.0, 5.0]);
        let (one, other) = (bytes(&[1.0]), bytes(&[4.0]));
        let unequal: [(Op, &[u8]); 2] = [(Op::PreMulSum(2.0), &one), (Op::PreMulSum(0.5), &other)];
        assert_eq!(values(&reduce(&unequal, Op::PreMulSum(2.0), 8), 8, 8), [4.0]);
    }

    #[test]
    fn integers_of_64_bits_are_exact() {
        let (one, other) = ((i64::MAX - 3).to_le_bytes(), (i64::MAX - 2).to_le_bytes());
        let both: [(Op, &[u8]); 2] = [(Op::Max, &one), (Op::Max, &other)];
        assert_eq!(reduce(&both, Op::Max, 4), other);
        assert_eq!(reduce(&both, Op::Min, 4), one);
        let (one, other) = ((-5_i64).to_le_bytes(), i64::MIN.to_le_bytes());
        assert_eq!(reduce(&[(Op::Max, &one), (Op::Max, &other)], Op::Max, 4), one);
    }

    #[test]
    fn operators_cross_processes() {
        for op in [Op::Sum, Op::Max, Op::Min, Op::Average, Op::PreMulSum(-0.3), Op::CopyFrom(7)] {
            let (number, value) = op.numbered();
            assert_eq!(Op::of(number, value), Some(op));
        }
        assert_eq!(Op::of(9, 0), None);
    }

    #[test]
    fn every_half_and_bfloat_comes_back_as_it_was() {
        for half in 0..=u16::MAX {
            let value = f32_of_half(half);
            assert!(value.is_nan() || half_of_f32(value) == half, "half {half:#x}");
            let value = f32::from_bits(u32::from(half) << 16);
            assert!(value.is_nan() || bfloat_of_f32(value) == half, "bfloat {half:#x}");
        }
        assert_eq!(half_of_f32(1.0 + 2_f32.powi(-11)), 0x3c00, "a tie goes to the even one");
        assert_eq!(bfloat_of_f32(1.0 + 2_f32.powi(-8)), 0x3f80, "a tie goes to the even one");
    }
}
