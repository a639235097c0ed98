//! Every message, by direction: [`control`] goes down, [`report`] goes up, [`data`] carries tensors both ways, [`join`]
//! is what both sides say about themselves, [`nccl`] is what they share of a communicator, [`record`] is what a person may
//! look at.
//!
//! Fields and variants are only ever appended: their order is the wire format.

pub(crate) mod check;
pub mod commit;
pub mod control;
pub mod data;
mod float;
pub mod join;
pub mod nccl;
pub mod record;
pub mod report;

pub use check::Check;
pub use commit::CommitRecord;
pub use control::Control;
pub use data::Data;
pub use record::Record;
pub use report::{HostReport, Report};
