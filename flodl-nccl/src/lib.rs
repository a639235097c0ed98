//! What has to be known before NCCL is called: where its library is looked for and what a version of it can do.
//!
//! This crate is not the NCCL back end: it loads no library and makes no call, and flodl averages over the CPU. It holds
//! the decisions that need no device, as pure functions over their arguments, so that they are the same and tested on
//! every machine.
//!
//! Read first: [`SearchPath`] (the places a loader tries, in order), [`Version`] (what `ncclGetVersion` reports) and
//! [`Capability`] (what is worth asking of a version).
//!
//! ```
//! use flodl_nccl::{Capability, Features, Version};
//!
//! let features = Features::of(Version::from_code(21_403)?);
//! assert!(features.has(Capability::NonBlocking));
//! assert_eq!(
//!     features.require(Capability::Shrink).map_err(|missing| missing.to_string()),
//!     Err("shrinking a communicator needs NCCL 2.27.3 or newer, the library found is 2.14.3".to_owned()),
//! );
//! # Ok::<(), flodl_nccl::VersionError>(())
//! ```
//!
//! The crate has no features.

#![forbid(unsafe_code)]

mod features;
mod search;
mod version;

pub use features::{Capability, Features, MissingCapability};
pub use search::{Candidate, SearchPath, Source};
pub use version::{Version, VersionError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
