//! A rank's part in an average over the CPU: copy the replica out, send it in chunks, measure the result as it streams by,
//! write it back.
//!
//! [`CpuReduce`] holds two copies of the model, allocated once: the snapshot, as numbers, and the round's result, as the bytes
//! that came. Nothing of the result touches the replica before [`CpuReduce::apply`]. Where rank and relay share memory
//! ([`Passage`]) the second copy is not used, and the first one only where the replica has to be copied at all.

mod cpu;
mod flat;
mod passage;
#[cfg(test)]
mod tests;

pub use cpu::{CpuReduce, Measured, ReduceError};
pub use flat::{LayoutMismatch, ManifestError};
pub use passage::{Label, Passage, Passed, Told};
