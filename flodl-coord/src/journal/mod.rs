//! What a controller writes down of its run, to be gone on with by another one when it has died.
//!
//! The journal is written behind the run: nobody waits for it, and a record that is not written makes nothing wrong, because
//! relays keep the record of the newest commit as well and whoever comes next takes the newest of all. What only the journal
//! has are the run's settings and its model's list of tensors, which are written before the run begins.
//!
//! Nothing here touches a file. [`Journal`] says what to write where, a [`Store`] does it, and [`read`] makes sense of what
//! is found later.

mod entry;
mod format;
mod image;
mod writer;

pub use entry::{Entry, Formed, Start};
pub use format::{Damage, Found, read};
pub use image::{Image, NotResumable, Restored};
pub use writer::{Journal, Store};
