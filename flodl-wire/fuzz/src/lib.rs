//! The parsers' fuzz targets, as `tests/corpus.rs` has them too.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/fuzzed/mod.rs"]
pub mod fuzzed;
