//! What ranks and the coordinator say of a communicator: the id that its members bring, and where each of them stands.

use super::report::SyncAck;
use crate::{Incarnation, NcclSession, Rank};
use core::fmt;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The status of a rank's process that ends itself because its library does not come back from a call, an abort at the latest:
/// nothing but its end frees the device. (`EX_TEMPFAIL` of `sysexits.h`.)
pub const STUCK_EXIT: i32 = 75;

/// The id of a communicator that is to be: one rank's library makes it, and every member brings it.
///
/// It holds an address and a secret of whoever made it, so it travels inside sealed frames alone and is never printed.
#[derive(Copy, Clone, PartialEq, Eq)]
pub struct NcclId(pub [u8; Self::BYTES]);

impl NcclId {
    /// Its length in bytes.
    pub const BYTES: usize = 128;
}

impl fmt::Debug for NcclId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NcclId(..)")
    }
}

/// Its bytes, without a count ahead of them.
type Quarters = [[u8; NcclId::BYTES / 4]; 4];

impl Serialize for NcclId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut quarters: Quarters = Default::default();
        quarters.as_flattened_mut().copy_from_slice(&self.0);
        quarters.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for NcclId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<NcclId, D::Error> {
        let quarters = Quarters::deserialize(deserializer)?;
        let mut id = [0; NcclId::BYTES];
        id.copy_from_slice(quarters.as_flattened());
        Ok(NcclId(id))
    }
}

/// A communicator that is to be formed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSession {
    /// Its number. Whatever communicator a member had before is aborted first.
    pub session: NcclSession,
    /// What all members bring.
    pub id: NcclId,
    /// Its members in rank order; a member's place in the list is its number in the communicator.
    pub members: Vec<(Rank, Incarnation)>,
}

/// Where a member stands with a communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It has ended the communicator that it had before and begun to form this one.
    Begun,
    /// This one is ready at this member: rounds can be averaged on it.
    Ready,
    /// This one will not come to be at this member.
    NotFormed {
        /// A sentence.
        why: String,
    },
    /// This one is lost, in a collective or between two: its work was ended, and nothing of it runs any more.
    Lost {
        /// A sentence.
        why: String,
    },
}

/// A member's answer to a round that was averaged on a communicator.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NcclAck {
    /// On which; a round that is issued again is answered again.
    pub session: NcclSession,
    /// The answer.
    pub ack: SyncAck,
}
