//! The flodl worker: the training loop of one rank, from dataset to checkpoint.

pub mod checkpoint;
pub mod dataset;
#[cfg(feature = "cpu")]
pub mod id;
pub mod loader;
#[cfg(feature = "cpu")]
pub mod reduce;
#[cfg(feature = "cpu")]
pub mod session;
#[cfg(feature = "shell")]
pub mod shell;
pub mod trainee;
#[cfg(feature = "shell")]
pub mod trainer;
#[cfg(feature = "cpu")]
pub mod worker;

pub use flodl_wire::message::join::{Dtype, Section, TensorSpec};
