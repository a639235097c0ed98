//! The flodl relay: one per host, owns the host's training processes and folds their contributions.

#[cfg(feature = "shell")]
pub mod agent;
pub mod fold;
mod id;
pub mod limits;
pub mod relay;
pub mod root;
pub mod routes;
#[cfg(feature = "shell")]
pub mod shell;
