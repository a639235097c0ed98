//! The boundary to a user's data: samples by index, in batches.

use crate::trainee::Fault;
use flodl_wire::message::join::DatasetInfo;

/// Samples `0..len`, each rank holding (or reaching) all of them. Which of them a rank reads is decided while it trains.
pub trait Dataset {
    /// What [`batch`](Dataset::batch) makes and a [`Trainee`](crate::trainee::Trainee) consumes.
    type Batch;

    /// Samples.
    fn len(&self) -> u64;

    /// Whether it holds none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// SHA-256 that two ranks share exactly when they hold the same samples in the same order. A run is refused to ranks
    /// whose signatures differ.
    fn signature(&self) -> [u8; 32];

    /// The samples of those indices, in that order, as one batch. Indices are below [`len`](Dataset::len), there is at
    /// least one, and one may occur twice where an epoch is longer than the dataset.
    ///
    /// # Errors
    /// Whatever keeps the samples from being read; it ends the rank.
    fn batch(&self, indices: &[u64]) -> Result<Self::Batch, Fault>;

    /// What ranks compare before they train together.
    fn info(&self) -> DatasetInfo {
        DatasetInfo { len: self.len(), signature: self.signature() }
    }
}

/// A dataset behind a reference is one too, so that train and test set may share what is loaded.
impl<D: Dataset + ?Sized> Dataset for &D {
    type Batch = D::Batch;

    fn len(&self) -> u64 {
        (**self).len()
    }

    fn signature(&self) -> [u8; 32] {
        (**self).signature()
    }

    fn batch(&self, indices: &[u64]) -> Result<Self::Batch, Fault> {
        (**self).batch(indices)
    }
}
