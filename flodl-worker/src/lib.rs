//! The flodl worker: the training loop of one rank, from dataset to checkpoint.

pub mod dataset;
pub mod loader;
pub mod trainee;
