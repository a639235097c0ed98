//! ElChe: a pure scheduler that gives unequal devices unequal work between two model averages.

mod batches;
mod permutation;
mod poison;
mod pool;
mod span;
mod spanset;
mod split;

pub use batches::{Batches, batches_in};
pub use permutation::Permutation;
pub use pool::{Pool, PoolError, Settled};
pub use span::{Slot, Span};
pub use split::largest_remainder;
