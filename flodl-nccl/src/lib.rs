//! NCCL for averaging that outlives dead ranks: loaded at run time, never blocking, aborted from any thread.
//!
//! Nothing is linked. The library is looked for when a program asks for it ([`Library::find`]), and a machine without it
//! gets an error that says what to do. Every result of the library is read as an integer, so that a code which only a
//! newer version has is an error value.
//!
//! Read first: [`Library`] (the one that was loaded), [`Comm`] (one rank's communicator) and [`AbortHandle`] (what ends it
//! from a watchdog's thread); then `average`, a replica on its device and its rounds, and [`session`], the decisions around
//! them as state machines without input and output: who makes an id, when to abort, what to restore and do again.
//!
//! # What holds
//!
//! - No call waits for a peer without a deadline, and those that average wait for none. What goes on behind one is asked with
//!   [`Comm::poll`]; split, shrink and close wait for it up to their limit.
//!   "In progress" is not success: until it is over, the next call is refused.
//! - A thread is inside a communicator alone. An abort that finds one inside waits for it, for a limited time.
//! - Exactly one of abort and destroy happens, and nothing is called after it. What comes late gets [`CallError::Ended`].
//! - An abort that does not come back is [`EndError::LibraryHangs`]: only the end of the process helps then.
//! - Dropping a communicator aborts it in the background; it neither blocks nor panics.
//!
//! ```
//! # #[cfg(feature = "library")] {
//! use flodl_nccl::{Capability, Features, Library, Version};
//!
//! let features = Features::of(Version::from_code(21_403)?);
//! assert!(features.has(Capability::NonBlocking));
//! match Library::find() {
//!     Ok(library) => assert!(library.version() >= Version::new(2, 0, 0)),
//!     Err(error) => assert!(error.to_string().contains("FLODL_NCCL")),
//! }
//! # }
//! # Ok::<(), flodl_nccl::VersionError>(())
//! ```
//!
//! # Features
//!
//! - `library` (default): finding, loading and calling NCCL. Without it there is [`session`]'s decision making alone, for
//!   whoever decides and calls nothing.

#![deny(unsafe_code)]

#[cfg(feature = "library")]
pub mod average;
mod code;
#[cfg(feature = "library")]
mod comm;
#[cfg(feature = "library")]
#[expect(unsafe_code, reason = "it calls the CUDA driver")]
mod cuda;
#[cfg(feature = "library")]
mod ending;
#[cfg(feature = "library")]
mod environment;
#[cfg(feature = "library")]
mod error;
mod features;
#[cfg(feature = "library")]
mod group;
#[cfg(feature = "library")]
#[expect(unsafe_code, reason = "it loads the library and asks it what needs no communicator")]
mod library;
#[cfg(feature = "library")]
#[expect(unsafe_code, reason = "every raw call on a communicator is in it")]
mod live;
#[cfg(feature = "library")]
#[expect(unsafe_code, reason = "views of memory that others own")]
mod memory;
#[cfg(feature = "library")]
mod search;
pub mod session;
#[cfg(feature = "library")]
mod slot;
#[cfg(feature = "library")]
#[expect(unsafe_code, reason = "it opens libraries and gives symbols their types")]
mod sys;
mod unique_id;
mod version;
#[cfg(feature = "library")]
mod wait;

pub use code::ErrorCode;
#[cfg(feature = "library")]
pub use code::Progress;
#[cfg(feature = "library")]
pub use comm::{AbortHandle, Comm, InitAllError, Part, Place};
#[cfg(feature = "library")]
pub use cuda::{Cuda, CudaError, Device, Memory, Stream};
#[cfg(feature = "library")]
pub use ending::EndError;
#[cfg(feature = "library")]
pub use environment::Environment;
#[cfg(feature = "library")]
pub use error::{CallError, End};
pub use features::{Capability, Features, MissingCapability};
#[cfg(feature = "library")]
pub use group::Group;
#[cfg(feature = "library")]
pub use library::{Attempt, Library, LoadError, Unfit};
#[cfg(feature = "library")]
pub use memory::{Buffer, DataType, Reduction, StreamRef};
#[cfg(feature = "library")]
pub use search::{Candidate, SearchPath, Source};
pub use unique_id::UniqueId;
pub use version::{Version, VersionError};

#[cfg(all(doctest, feature = "library"))]
#[doc = include_str!("../README.md")]
struct Readme;
