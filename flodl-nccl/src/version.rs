//! NCCL's version and the integer it is reported as.

use std::fmt;

use thiserror::Error;

/// A version of NCCL, ordered as releases are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number, 0 to 99.
    pub minor: u16,
    /// Third number, 0 to 99.
    pub patch: u16,
}

/// Why an integer is no version of NCCL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum VersionError {
    /// `ncclGetVersion` reports a positive number.
    #[error("the library reports version code {code}, which is no version: check that it is NCCL")]
    NotPositive {
        /// The code.
        code: i32,
    },
    /// Older than version 1, or with a number that does not fit.
    #[error("the library reports version code {code}, which belongs to no release: check that it is NCCL")]
    NoRelease {
        /// The code.
        code: i32,
    },
}

/// From this code on a version is written with five digits or more.
const WIDE_FROM: u32 = 10_000;

impl Version {
    /// A version from its three numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch }
    }

    /// Reads what `ncclGetVersion` writes.
    ///
    /// Up to 2.8 the code is `major * 1000 + minor * 100 + patch`, from 2.9 on `major * 10000 + minor * 100 + patch`
    /// (the macro `NCCL_VERSION` of `nccl.h`). No narrow code reaches 10 000, so the two forms never meet.
    ///
    /// # Errors
    ///
    /// [`VersionError`] for a code that no release reports: zero, negative, below version 1, or too large.
    pub fn from_code(code: i32) -> Result<Self, VersionError> {
        let value = u32::try_from(code).map_err(|_| VersionError::NotPositive { code })?;
        if value == 0 {
            return Err(VersionError::NotPositive { code });
        }
        let (major, minor, patch) = if value < WIDE_FROM {
            (value / 1000, value % 1000 / 100, value % 100)
        } else {
            (value / 10_000, value % 10_000 / 100, value % 100)
        };
        let number = |part: u32| u16::try_from(part).map_err(|_| VersionError::NoRelease { code });
        let version = Self::new(number(major)?, number(minor)?, number(patch)?);
        if version.major == 0 { Err(VersionError::NoRelease { code }) } else { Ok(version) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_both_forms_are_read() {
        let cases = [
            (1000, "1.0.0"),
            (2402, "2.4.2"),
            (2804, "2.8.4"),
            (20_906, "2.9.6"),
            (21_403, "2.14.3"),
            (22_809, "2.28.9"),
            (23_007, "2.30.7"),
            (30_001, "3.0.1"),
        ];
        for (code, expected) in cases {
            assert_eq!(Version::from_code(code).map(|version| version.to_string()), Ok(expected.to_owned()), "{code}");
        }
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for code in [0, -1, i32::MIN] {
            assert_eq!(Version::from_code(code), Err(VersionError::NotPositive { code }));
        }
        for code in [1, 999, i32::MAX] {
            assert_eq!(Version::from_code(code), Err(VersionError::NoRelease { code }));
        }
    }

    #[test]
    fn versions_are_ordered_by_number_and_not_by_text() {
        assert!(Version::new(2, 9, 6) < Version::new(2, 14, 0));
        assert!(Version::new(2, 30, 0) > Version::new(2, 29, 99));
    }
}
