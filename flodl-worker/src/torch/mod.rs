//! Networks of tch (libtorch) under flodl: [`TorchModel`] is a [`Trainee`](crate::trainee::Trainee), [`TensorSet`] a
//! [`Dataset`](crate::dataset::Dataset).
#![doc = include_str!("README.md")]

mod data;
mod lend;
mod losses;
mod model;
mod optimizer;
#[cfg(target_os = "linux")]
mod pages;
mod place;
#[cfg(test)]
mod tests;

pub use data::{Batch, DataError, TensorSet};
pub use model::{ModelError, TorchModel};
pub use optimizer::{AdamW, Memory, Optimizer, Rule, Sgd, State, StateError};
pub use place::{rank_device, share_cores};
