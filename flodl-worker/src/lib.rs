//! The flodl worker: the training loop of one rank, from dataset to checkpoint.
//!
//! It is what a user's program links: a model behind [`trainee::Trainee`], its samples behind [`dataset::Dataset`], and the
//! `trainer::Trainer` that makes a rank of both. It is neither a model library nor the scheduler: it trains the positions it is
//! leased until its budget, its lease or an order ends the window, and the coordinator decides all of that.
//!
//! Read these first: [`trainee::Trainee`] (the boundary), `session::Session` (a rank's side of the protocol, without IO) and
//! [`checkpoint`] (what a run leaves).
//!
//! ```
//! use flodl_worker::dataset::Dataset;
//! use flodl_worker::loader::idx::LabelledImages;
//!
//! let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/softmax/data");
//! let test = LabelledImages::read_split(digits.as_ref(), "t10k")?;
//! let batch = test.batch(&[0, 1999])?;
//! assert_eq!((test.len(), batch.labels.len(), batch.pixels.len()), (2000, 2, 2 * 28 * 28));
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```
//!
//! # Features
//!
//! - `cpu` (default): `session`, `reduce` and `worker`, a whole rank without IO that averages over the CPU.
//! - `shell` (default): `shell` and `trainer`, the process around it.
//! - `nccl`: `nccl`, averaging on GPUs over NCCL, which is looked for when a run wants it (`--mode nccl-cadence`).
//! - `torch`: `torch`, networks of tch; it links libtorch 2.11, which `LIBTORCH` names.
//!
//! Without features there are datasets, loaders and checkpoints.
#![cfg_attr(feature = "shell", doc = "\n---\n")]
#![cfg_attr(feature = "shell", doc = include_str!("../README.md"))]

#[cfg(feature = "cpu")]
mod chance;
pub mod checkpoint;
pub mod dataset;
#[cfg(feature = "cpu")]
mod evaluating;
#[cfg(feature = "cpu")]
mod id;
pub mod loader;
#[cfg(feature = "nccl")]
pub mod nccl;
#[cfg(feature = "cpu")]
pub mod reduce;
#[cfg(feature = "cpu")]
pub mod session;
#[cfg(feature = "shell")]
pub mod shell;
#[cfg(feature = "torch")]
pub mod torch;
pub mod trainee;
#[cfg(feature = "shell")]
pub mod trainer;
#[cfg(feature = "cpu")]
mod user_code;
#[cfg(feature = "cpu")]
pub mod worker;

pub use flodl_wire::message::join::{Dtype, Reduction, ScalarSpec, Section, TensorSpec};
