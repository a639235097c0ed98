//! The relay of a [flodl](https://github.com/flodl/flodl) training run, and the root reducer above all relays.
//!
#![doc = include_str!("../README.md")]

#[cfg(feature = "shell")]
pub mod agent;
pub mod coding;
pub mod fold;
mod id;
pub mod limits;
pub mod relay;
pub mod root;
pub mod routes;
#[cfg(feature = "shell")]
pub mod shell;
