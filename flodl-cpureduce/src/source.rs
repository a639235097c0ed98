//! The ends of a round at a rank: making a contribution, measuring and reading a result.

use crate::{Mass, kernel};
use bytes::Bytes;
use thiserror::Error;

/// Below this norm an average is taken as zero, and nothing is measured relative to it.
const NORM_MIN: f64 = 1e-10;

/// A chunk of a contribution, `mass * values` as little-endian `f32`, and whether all of it is finite.
///
/// A rank whose replica is not finite contributes nothing: [`Absence::NonFinite`](crate::Absence::NonFinite).
/// Buffers take mass 1. To fill memory of your own use [`kernel::scale_copy_check`].
///
/// ```
/// use flodl_cpureduce::{Mass, contribution_chunk};
/// let (data, finite) = contribution_chunk(&[1.0, -2.0], Mass::new(3.0)?);
/// assert!(finite);
/// assert_eq!(data[..4], 3.0_f32.to_le_bytes());
/// assert_eq!(data[4..], (-6.0_f32).to_le_bytes());
/// # Ok::<(), flodl_cpureduce::MassError>(())
/// ```
#[must_use]
pub fn contribution_chunk(values: &[f32], mass: Mass) -> (Bytes, bool) {
    let mut data = vec![0; size_of_val(values)];
    let finite = kernel::scale_copy_check(values, mass.as_f32(), &mut data);
    (Bytes::from(data), finite)
}

/// A chunk of the integer section, little-endian `i64`. Integers are never scaled.
#[must_use]
pub fn integer_chunk(values: &[i64]) -> Bytes {
    let mut data = vec![0; size_of_val(values)];
    let (elements, _) = data.as_chunks_mut();
    for (element, value) in elements.iter_mut().zip(values) {
        *element = value.to_le_bytes();
    }
    Bytes::from(data)
}

/// Values and data of unequal length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{values} values meet {bytes} bytes of f32 data: take both from the same chunk")]
pub struct LengthMismatch {
    /// Number of values.
    pub values: usize,
    /// Bytes of data.
    pub bytes: usize,
}

/// Measures, chunk by chunk, how far a replica is from the average: `|theta - average| / |average|` over the
/// parameters, in the Euclidean norm.
///
/// ```
/// use flodl_cpureduce::{DivergenceMeter, Mass, contribution_chunk};
/// let (average, _) = contribution_chunk(&[3.0, 4.0], Mass::ONE);
/// let mut meter = DivergenceMeter::default();
/// meter.add(&[3.0, 5.0], &average)?;
/// assert_eq!(meter.divergence(), 1.0 / 5.0);
/// # Ok::<(), flodl_cpureduce::LengthMismatch>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DivergenceMeter {
    squared_distance: f64,
    squared_norm: f64,
}

impl DivergenceMeter {
    /// Adds a chunk: the replica's values and the average of the same elements (little-endian `f32`).
    ///
    /// # Errors
    /// [`LengthMismatch`]; nothing is added then.
    pub fn add(&mut self, theta: &[f32], average: &[u8]) -> Result<(), LengthMismatch> {
        if size_of_val(theta) != average.len() {
            return Err(LengthMismatch { values: theta.len(), bytes: average.len() });
        }
        let norms = kernel::norms(theta, average);
        self.squared_distance += norms.squared_distance;
        self.squared_norm += norms.squared_norm;
        Ok(())
    }

    /// What was added up elsewhere: the squares of the distance and of the average.
    #[must_use]
    pub const fn of(squared_distance: f64, squared_norm: f64) -> DivergenceMeter {
        DivergenceMeter { squared_distance, squared_norm }
    }

    /// `|theta - average| / |average|`; 0 where the norm of the average is at most 1e-10.
    #[must_use]
    pub fn divergence(&self) -> f64 {
        if self.average_norm() <= NORM_MIN { 0.0 } else { self.distance() / self.average_norm() }
    }

    /// `|theta - average|`.
    #[must_use]
    pub fn distance(&self) -> f64 {
        self.squared_distance.sqrt()
    }

    /// `|average|`.
    #[must_use]
    pub fn average_norm(&self) -> f64 {
        self.squared_norm.sqrt()
    }
}

/// Why vectors have no average.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum AverageError {
    /// A vector as long as the first is needed.
    #[error("vector {place} has {got} values where the first has {expected}: give vectors of one length")]
    Length {
        /// Which vector, from 0.
        place: usize,
        /// Values of the first.
        expected: usize,
        /// Values of this one.
        got: usize,
    },
    /// Without mass there is nothing to divide by.
    #[error("the vectors have no mass: give at least one a mass above 0")]
    NoMass,
    /// A value, a product or a sum is infinite or not a number.
    #[error("the average is not finite: check vector {place} and its mass")]
    NonFinite {
        /// The vector with which it stopped being finite, from 0.
        place: usize,
    },
}

/// The average `sum(m x) / sum(m)` of whole vectors at once, bit for bit what a round makes of them. Vectors of mass 0
/// are not looked at.
///
/// # Errors
/// [`AverageError`].
pub fn average(vectors: &[(Mass, &[f32])]) -> Result<Vec<f32>, AverageError> {
    let expected = vectors.first().map_or(0, |(_, values)| values.len());
    for (place, (_, values)) in vectors.iter().enumerate() {
        let got = values.len();
        if got != expected {
            return Err(AverageError::Length { place, expected, got });
        }
    }
    let heavy = || vectors.iter().filter(|(mass, _)| !mass.is_zero());
    let mass = heavy().fold(Mass::ZERO, |sum, (mass, _)| sum.plus(*mass));
    if mass.is_zero() {
        return Err(AverageError::NoMass);
    }
    let parts: Vec<(f32, &[f32])> = heavy().map(|(mass, values)| (mass.as_f32(), *values)).collect();
    let mut data = vec![0; size_of::<f32>() * expected];
    if !kernel::average(&parts, mass.as_f32(), &mut data, &mut []) {
        return Err(AverageError::NonFinite { place: first_not_finite(vectors) });
    }
    let mut out = vec![0.0; expected];
    kernel::read_f32(&data, &mut out);
    Ok(out)
}

/// The vector with which a sum stops being finite, or the last one that has mass where only the quotient is not.
fn first_not_finite(vectors: &[(Mass, &[f32])]) -> usize {
    let mut sum: Vec<u8> = Vec::new();
    let mut last = 0;
    for (place, (mass, values)) in vectors.iter().enumerate().filter(|(_, (mass, _))| !mass.is_zero()) {
        sum.resize(size_of_val(*values), 0);
        last = place;
        if !kernel::multiply_add(&mut sum, values, mass.as_f32()) {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divergence_is_zero_where_there_is_nothing_to_measure() {
        let mut meter = DivergenceMeter::default();
        assert_eq!(meter.divergence(), 0.0);
        let (zeros, _) = contribution_chunk(&[0.0; 3], Mass::ONE);
        meter.add(&[1.0, 2.0, 3.0], &zeros).unwrap();
        assert_eq!(meter.divergence(), 0.0);
        assert!(meter.distance() > 0.0);
    }

    #[test]
    fn divergence_adds_up_over_chunks_and_refuses_unequal_ones() {
        let (average, _) = contribution_chunk(&[1.0, 2.0, 2.0, 4.0], Mass::ONE);
        let mut whole = DivergenceMeter::default();
        whole.add(&[0.0, 2.0, 2.0, 8.0], &average).unwrap();
        let mut parts = DivergenceMeter::default();
        parts.add(&[0.0, 2.0, 2.0], &average[..12]).unwrap();
        assert_eq!(parts.add(&[8.0], &average), Err(LengthMismatch { values: 1, bytes: 16 }));
        parts.add(&[8.0], &average[12..]).unwrap();
        assert_eq!(whole, parts);
        assert_eq!(whole.divergence(), 17.0_f64.sqrt() / 5.0);
    }

    #[test]
    fn average_says_what_is_wrong() {
        let one = Mass::ONE;
        let check = |vectors: &[(Mass, &[f32])], expect| assert_eq!(average(vectors), expect);
        check(&[], Err(AverageError::NoMass));
        check(&[(Mass::ZERO, &[1.0])], Err(AverageError::NoMass));
        check(&[(one, &[1.0]), (one, &[])], Err(AverageError::Length { place: 1, expected: 1, got: 0 }));
        check(&[(one, &[1.0]), (one, &[f32::NAN])], Err(AverageError::NonFinite { place: 1 }));
        check(&[(one, &[3e38]), (one, &[3e38])], Err(AverageError::NonFinite { place: 1 }));
        check(&[(Mass::ZERO, &[f32::NAN]), (one, &[1.0]), (one, &[4.0])], Ok(vec![2.5]));
    }

    #[test]
    fn integers_are_little_endian() {
        assert_eq!(integer_chunk(&[1, -1])[..], [[1, 0, 0, 0, 0, 0, 0, 0], [255; 8]].concat());
    }
}
