//! NCCL at run time: finding and loading its library, what its version can do, and the ids of communicators.
//!
//! Nothing is linked. The library is looked for when a program asks for it ([`Library::find`]), and a machine without it
//! gets an error that says what to do. Every result of the library is read as an integer, so that a code which only a
//! newer version has is an error value.
//!
//! Read first: [`SearchPath`] (the places a loader tries, in order), [`Library`] (the one that was loaded) and
//! [`Capability`] (what is worth asking of a version).
//!
//! ```
//! use flodl_nccl::{Capability, Features, Library, Version};
//!
//! let features = Features::of(Version::from_code(21_403)?);
//! assert!(features.has(Capability::NonBlocking));
//! match Library::find() {
//!     Ok(library) => assert!(library.version() >= Version::new(2, 0, 0)),
//!     Err(error) => assert!(error.to_string().contains("FLODL_NCCL")),
//! }
//! # Ok::<(), flodl_nccl::VersionError>(())
//! ```
//!
//! The crate has no features.

#![deny(unsafe_code)]

mod code;
mod environment;
mod error;
mod features;
#[expect(unsafe_code, reason = "it loads the library and asks it what needs no communicator")]
mod library;
mod search;
#[expect(unsafe_code, reason = "it opens libraries and gives symbols their types")]
#[allow(dead_code, reason = "the declarations are whole, and callers take what they need")]
mod sys;
mod unique_id;
mod version;

pub use code::{ErrorCode, Progress};
pub use environment::Environment;
pub use error::{CallError, End};
pub use features::{Capability, Features, MissingCapability};
pub use library::{Attempt, Library, LoadError, Unfit};
pub use search::{Candidate, SearchPath, Source};
pub use unique_id::UniqueId;
pub use version::{Version, VersionError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
