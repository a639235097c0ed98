//! Rounds as a whole, against a reference that knows nothing of chunks in flight.
#![expect(clippy::unwrap_used, reason = "the helpers of tests are tests: what must not fail there fails the test")]

mod accuracy;
mod arrival;
mod codecs;
mod consensus;
mod failures;
mod hostile;
mod outer;
mod plan;
mod streaming;
mod threads;
mod tiers;
