//! What ranks must share to form a communicator.

use std::fmt;

#[cfg(feature = "library")]
use crate::sys::nccl::{ID_BYTES, RawUniqueId};

/// The id of a communicator that is to be: one rank asks the library for it, and every rank brings it to
/// `Comm::init_rank`.
///
/// It holds an address and a secret of the rank that made it, so it travels inside authenticated frames and is never
/// printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId([u8; Self::BYTES]);

impl UniqueId {
    /// Its length in bytes.
    pub const BYTES: usize = 128;

    /// An id that another rank sent.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    /// Its bytes, to be sent.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    #[cfg(feature = "library")]
    pub(crate) const fn raw(self) -> RawUniqueId {
        RawUniqueId(self.0)
    }
}

#[cfg(feature = "library")]
const _: () = assert!(UniqueId::BYTES == ID_BYTES, "what the library makes fits");

impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}
