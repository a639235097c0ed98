//! Datasets that are read from files.

pub mod idx;
