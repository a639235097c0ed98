//! What a version of NCCL can do.
//!
//! One table says since when; nothing else in the crate compares versions.

use std::fmt;

use thiserror::Error;

use crate::version::Version;

/// Something NCCL learnt at some version, and averaging wants to know of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Capability {
    /// Communicators whose calls return at once, the only ones that can be aborted safely.
    NonBlocking,
    /// Several communicators out of one (`ncclCommSplit`).
    Split,
    /// Initialisation with several unique ids (`ncclCommInitRankScalable`).
    ScalableInit,
    /// A smaller communicator out of one that lost members (`ncclCommShrink` with abort).
    Shrink,
    /// Ending what is in flight without ending the communicator (`ncclCommRevoke`).
    Revoke,
    /// A larger communicator out of one that gains members (`ncclCommGrow`).
    Grow,
    /// Collectives that end with an error when they take too long.
    Timeout,
    /// Two ranks on one GPU, experimental (`NCCL_MULTI_RANK_GPU_ENABLE=1`).
    SharedGpu,
}

impl Capability {
    /// Every capability, in the order in which NCCL gained them.
    pub const ALL: [Self; 8] = [
        Self::NonBlocking,
        Self::Split,
        Self::ScalableInit,
        Self::Shrink,
        Self::Revoke,
        Self::Grow,
        Self::Timeout,
        Self::SharedGpu,
    ];

    /// The first version that has it.
    #[must_use]
    pub const fn since(self) -> Version {
        match self {
            Self::NonBlocking => Version::new(2, 14, 3),
            Self::Split => Version::new(2, 18, 3),
            Self::ScalableInit => Version::new(2, 23, 4),
            Self::Shrink => Version::new(2, 27, 3),
            Self::Revoke => Version::new(2, 28, 7),
            Self::Grow => Version::new(2, 29, 2),
            Self::Timeout | Self::SharedGpu => Version::new(2, 30, 0),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NonBlocking => "aborting a communicator safely",
            Self::Split => "splitting a communicator",
            Self::ScalableInit => "initialising with several ids",
            Self::Shrink => "shrinking a communicator",
            Self::Revoke => "revoking a communicator's work",
            Self::Grow => "growing a communicator",
            Self::Timeout => "ending a collective at a deadline",
            Self::SharedGpu => "running two ranks on one GPU",
        })
    }
}

/// What the library that was found can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    version: Version,
}

/// Why something cannot be asked of the library that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{capability} needs NCCL {} or newer, the library found is {found}", .capability.since())]
pub struct MissingCapability {
    /// What was asked.
    pub capability: Capability,
    /// The version that was found.
    pub found: Version,
}

impl Features {
    /// The features of a version.
    #[must_use]
    pub const fn of(version: Version) -> Self {
        Self { version }
    }

    /// The version they are the features of.
    #[must_use]
    pub const fn version(self) -> Version {
        self.version
    }

    /// Whether the library has the capability.
    #[must_use]
    pub fn has(self, capability: Capability) -> bool {
        self.version >= capability.since()
    }

    /// Insists on a capability.
    ///
    /// # Errors
    ///
    /// [`MissingCapability`], which names the version that is needed and the one that was found.
    pub fn require(self, capability: Capability) -> Result<(), MissingCapability> {
        if self.has(capability) { Ok(()) } else { Err(MissingCapability { capability, found: self.version }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_has_what_came_up_to_it() {
        let cases: [(Version, &[Capability]); 9] = [
            (Version::new(2, 8, 4), &[]),
            (Version::new(2, 14, 2), &[]),
            (Version::new(2, 14, 3), &Capability::ALL[..1]),
            (Version::new(2, 18, 3), &Capability::ALL[..2]),
            (Version::new(2, 23, 4), &Capability::ALL[..3]),
            (Version::new(2, 27, 3), &Capability::ALL[..4]),
            (Version::new(2, 28, 9), &Capability::ALL[..5]),
            (Version::new(2, 29, 2), &Capability::ALL[..6]),
            (Version::new(2, 30, 7), &Capability::ALL),
        ];
        for (version, expected) in cases {
            let features = Features::of(version);
            let has: Vec<Capability> =
                Capability::ALL.into_iter().filter(|capability| features.has(*capability)).collect();
            assert_eq!(has, expected, "{version}");
        }
    }

    #[test]
    fn a_missing_capability_says_what_is_needed_and_what_was_found() {
        let features = Features::of(Version::new(2, 28, 9));
        assert_eq!(features.require(Capability::Revoke), Ok(()));
        let missing = features.require(Capability::Grow);
        let expected = MissingCapability { capability: Capability::Grow, found: Version::new(2, 28, 9) };
        assert_eq!(missing, Err(expected));
        assert_eq!(
            expected.to_string(),
            "growing a communicator needs NCCL 2.29.2 or newer, the library found is 2.28.9"
        );
    }

    #[test]
    fn all_is_in_order_of_version() {
        assert!(Capability::ALL.windows(2).all(|pair| pair[0].since() <= pair[1].since()));
    }
}
