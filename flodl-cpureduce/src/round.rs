//! One round: the streamed fold of many contributions into one sum, and the record of whose work is in it.

mod fold;
mod record;
mod work;

pub use fold::{AHEAD_BYTES_MAX, Fold, FoldError, Folded, Reject};
pub use record::{Outcome, Record};
pub(crate) use work::writable;
pub use work::{Summed, Work};

use core::fmt;

/// Who contributes to a fold: a rank at its host's relay, a relay at the root. Folds add in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Contributor(pub u32);

impl fmt::Display for Contributor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "contributor {}", self.0)
    }
}

/// Why a contributor is not in a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Absence {
    /// It holds no consensus yet.
    Joining,
    /// It took no step since its last folded contribution.
    NothingTrained,
    /// A value of it, or of the sum that it is part of, is infinite or not a number.
    NonFinite,
    /// It is dead.
    Dead,
    /// The link to it is gone.
    LinkLost,
    /// Its contribution is relative to another consensus than the one in force.
    Stale,
    /// Nobody below it contributes.
    Empty,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Absence::Joining => "it holds no consensus yet",
            Absence::NothingTrained => "it took no step",
            Absence::NonFinite => "it holds a value that is not finite",
            Absence::Dead => "it is dead",
            Absence::LinkLost => "the link to it is gone",
            Absence::Stale => "it is relative to another consensus",
            Absence::Empty => "nobody below it contributes",
        })
    }
}
