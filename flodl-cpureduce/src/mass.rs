//! Mass: the weight of a contribution.

use core::fmt;
use thiserror::Error;

/// The weight of a contribution, or of a sum of contributions.
///
/// It is zero, or a number that is a positive normal `f32` when rounded: data is scaled and divided in `f32`, and a
/// weight that is lost or infinite there would turn an average into zeros or infinities.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Mass(f64);

/// Why a number is no mass.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum MassError {
    /// Negative, infinite, not a number, or outside what `f32` can hold.
    #[error("{value} is no mass: use 0 or a number from 1.2e-38 to 3.4e38")]
    OutOfRange {
        /// The number.
        value: f64,
    },
    /// An exponent that gives no usable mass for this number of steps.
    #[error("{steps} steps to the power {gamma} is no mass: use a finite exponent near 1")]
    Exponent {
        /// Steps of the contribution.
        steps: u64,
        /// The exponent.
        gamma: f64,
    },
}

impl Mass {
    /// No weight: the contribution adds nothing.
    pub const ZERO: Mass = Mass(0.0);
    /// The weight of a contributor that moved, for buffers and integers, and of the source of round 0.
    pub const ONE: Mass = Mass(1.0);

    /// A mass of that value.
    ///
    /// # Errors
    /// [`MassError::OutOfRange`] unless the value is 0 or from `f32::MIN_POSITIVE` to `f32::MAX`.
    pub fn new(value: f64) -> Result<Self, MassError> {
        if value == 0.0 {
            Ok(Self::ZERO)
        } else if value >= f64::from(f32::MIN_POSITIVE) && value <= f64::from(f32::MAX) {
            Ok(Self(value))
        } else {
            Err(MassError::OutOfRange { value })
        }
    }

    /// The mass `steps^gamma` of a contribution that took so many optimizer steps; 0 for no steps, whatever `gamma`.
    ///
    /// # Errors
    /// [`MassError::Exponent`] if the power is not a mass.
    ///
    /// ```
    /// use flodl_cpureduce::Mass;
    /// assert_eq!(Mass::from_steps(9, 0.5)?, Mass::new(3.0)?);
    /// assert_eq!(Mass::from_steps(0, 0.0)?, Mass::ZERO);
    /// assert!(Mass::from_steps(9, f64::NAN).is_err());
    /// # Ok::<(), flodl_cpureduce::MassError>(())
    /// ```
    pub fn from_steps(steps: u64, gamma: f64) -> Result<Self, MassError> {
        if steps == 0 {
            return Ok(Self::ZERO);
        }
        match Self::new((steps as f64).powf(gamma)) {
            Ok(mass) if !mass.is_zero() => Ok(mass),
            _ => Err(MassError::Exponent { steps, gamma }),
        }
    }

    /// The value, finite and not negative.
    #[must_use]
    pub const fn value(self) -> f64 {
        self.0
    }

    /// The value as data is scaled and divided with it.
    #[must_use]
    pub const fn as_f32(self) -> f32 {
        self.0 as f32
    }

    /// Whether a contribution of this mass adds nothing.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == 0.0
    }

    /// The mass of two contributions together. Stays at the largest mass rather than become infinite.
    #[must_use]
    pub fn plus(self, other: Mass) -> Mass {
        Mass((self.0 + other.0).min(f64::from(f32::MAX)))
    }
}

impl fmt::Display for Mass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_usable_numbers_are_masses() {
        for good in [0.0, -0.0, 1.0, 0.25, 1e30, f64::from(f32::MIN_POSITIVE), f64::from(f32::MAX)] {
            assert_eq!(Mass::new(good).map(Mass::value), Ok(good));
        }
        for bad in [-1.0, 1e-40, -1e-300, 1e39, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(Mass::new(bad), Err(MassError::OutOfRange { value: bad }));
        }
        assert!(Mass::new(f64::NAN).is_err());
        assert!(Mass::new(-0.0).unwrap().value().is_sign_positive());
    }

    #[test]
    fn every_mass_is_a_usable_f32() {
        for value in [f64::from(f32::MIN_POSITIVE), 1.0 / 3.0, f64::from(f32::MAX)] {
            assert!(Mass::new(value).unwrap().as_f32().is_normal());
        }
        let most = Mass::new(f64::from(f32::MAX)).unwrap();
        assert_eq!(most.plus(most), most);
    }

    #[test]
    fn steps_make_mass() {
        assert_eq!(Mass::from_steps(7, 1.0).unwrap().value(), 7.0);
        assert_eq!(Mass::from_steps(7, 0.0), Ok(Mass::ONE));
        for gamma in [0.0, 1.0, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Mass::from_steps(0, gamma), Ok(Mass::ZERO));
        }
        for gamma in [f64::INFINITY, f64::NEG_INFINITY, 1000.0, -1000.0] {
            assert_eq!(Mass::from_steps(2, gamma), Err(MassError::Exponent { steps: 2, gamma }));
        }
    }
}
