//! The flodl coordinator: who trains which samples for how long, when to average, who is dead.

mod input;
mod output;

pub use input::Input;
pub use output::{Output, SaveRequest};
