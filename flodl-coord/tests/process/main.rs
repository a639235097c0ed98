//! `flodl` as people run it: real processes, real sockets, real signals. The trainers are this package's example `trainer`
//! and, in `digits`, flodl-worker's example of that name.
//!
//! Every test has a folder of its own, polls with deadlines instead of sleeping, and leaves no process behind.

#![allow(clippy::disallowed_methods, reason = "a test that waits for processes has a clock")]
#![allow(clippy::print_stdout, reason = "a test that fails or is skipped says more")]

mod bits;
mod console;
mod digits;
mod duties;
mod faults;
mod harness;
mod hostile;
mod joins;
mod losses;
mod model;
mod nccl;
mod proxy;
mod restarts;
mod rounding;
mod runs;
mod screen;
mod terminal;
mod usage;
