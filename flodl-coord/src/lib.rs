//! The flodl coordinator: who trains which samples for how long, when to average, who is dead.

mod config;
mod context;
mod coordinator;
mod fate;
mod finishing;
mod formation;
mod gate;
mod id;
mod input;
mod ledger;
mod members;
mod output;
mod reason;
mod round;
mod running;
mod watch;

pub use config::{Config, ConfigError, Deadlines, PATIENCE_MAX, PATIENCE_MIN, RANKS_MAX, Slowing};
pub use coordinator::Coordinator;
pub use fate::{Breach, Fate};
pub use gate::{Fire, Hold};
pub use input::Input;
pub use output::{Output, SaveRequest};
