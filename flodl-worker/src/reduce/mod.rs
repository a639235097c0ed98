//! A rank's part in an average over the CPU: copy the replica out, send it in chunks, measure the result as it streams by,
//! write it back.
//!
//! [`CpuReduce`] holds two copies of the model, allocated once: the snapshot, as numbers, and the round's result, as the bytes
//! that came. Nothing of the result touches the replica before [`CpuReduce::apply`].

mod cpu;
mod flat;
#[cfg(test)]
mod tests;

pub use cpu::{CpuReduce, Measured, ReduceError};
pub use flat::{LayoutMismatch, ManifestError};
