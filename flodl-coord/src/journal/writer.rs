//! What to write where.

use super::{Entry, Image, format};
use flodl_wire::codec::EncodeError;
use std::io;

/// A journal is written anew, with only what counts, once it has grown by so many bytes...
const COMPACT_FROM: usize = 1 << 20;
/// ... and by so many times what counts.
const COMPACT_AT: usize = 8;

/// Where a journal lies. Calls come one at a time, from somewhere that may wait.
pub trait Store {
    /// Writes `bytes` behind what is there, for good. Where that fails nothing of them may be left.
    ///
    /// # Errors
    ///
    /// The system's.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Puts `bytes` in the place of everything, for good: whoever looks later finds all of the one or all of the other.
    ///
    /// # Errors
    ///
    /// The system's.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal<S> {
    store: S,
    image: Image,
    /// Records in the store; `None`: it is not known what is there, so all of it is written anew.
    records: Option<u64>,
    /// Bytes since it was written anew, and bytes then.
    grown: usize,
    base: usize,
}

impl<S: Store> Journal<S> {
    /// A journal in `store` that goes on from `image`. Whatever is in the store is replaced with the first entry.
    #[must_use]
    pub fn new(store: S, image: Image) -> Journal<S> {
        Journal { store, image, records: None, grown: 0, base: 0 }
    }

    /// Writes an entry. After a failure the next entry writes everything anew, so nothing that was told is missing then.
    ///
    /// # Errors
    ///
    /// The store's, or an entry that is too long.
    pub fn write(&mut self, entry: Entry) -> io::Result<()> {
        let number = self.records.take();
        let bytes = match number {
            Some(number) if !self.is_full() => Some(format::record(number, &entry).map_err(unwritable)?),
            Some(_) | None => None,
        };
        self.image.take(entry);
        if let (Some(number), Some(bytes)) = (number, bytes) {
            self.store.append(&bytes)?;
            self.records = Some(number + 1);
            self.grown += bytes.len();
            return Ok(());
        }
        let (bytes, records) = self.whole().map_err(unwritable)?;
        self.store.replace(&bytes)?;
        (self.records, self.grown, self.base) = (Some(records), 0, bytes.len());
        Ok(())
    }

    /// What has been told so far.
    #[must_use]
    pub const fn image(&self) -> &Image {
        &self.image
    }

    /// Where it lies.
    #[must_use]
    pub const fn store(&self) -> &S {
        &self.store
    }

    /// The same, for what tests do to it.
    #[cfg(all(test, feature = "cli"))]
    pub(crate) fn store_mut(&mut self) -> &mut S {
        &mut self.store
    }

    fn is_full(&self) -> bool {
        self.grown >= COMPACT_FROM && self.grown >= self.base.saturating_mul(COMPACT_AT)
    }

    fn whole(&self) -> Result<(Vec<u8>, u64), EncodeError> {
        let (mut bytes, mut records) = (format::header(), 0);
        for entry in self.image.entries() {
            bytes.extend(format::record(records, &entry)?);
            records += 1;
        }
        Ok((bytes, records))
    }
}

fn unwritable(error: EncodeError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}
