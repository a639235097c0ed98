//! Communicators: one rank's membership in a group of ranks that average together.
//!
//! Calls return at once. What goes on behind them is asked with [`Comm::poll`] or waited for with [`Comm::settle`]; where
//! a collective ends is the business of its stream. From any other thread an [`AbortHandle`] ends it all.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::code::Progress;
use crate::cuda::{CudaError, Device};
use crate::ending::{self, EndError, Shared, Way};
use crate::error::{CallError, End};
use crate::features::Capability;
use crate::library::Library;
use crate::live::{self, Live, Unborn};
use crate::memory::{Buffer, Reduction, StreamRef};
use crate::slot::{Inside, Slot};
use crate::unique_id::UniqueId;
use crate::wait;

/// Why the communicators of a process's devices were not formed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum InitAllError {
    /// A device cannot be used.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The library refuses.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// One rank's place in a communicator that is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The id that every rank of the communicator brings.
    pub id: UniqueId,
    /// This rank, from 0 on.
    pub rank: u32,
    /// How many ranks there will be.
    pub size: u32,
}

/// A communicator, owned by the thread that averages. Dropping it aborts it in the background, and never blocks or panics.
#[derive(Debug)]
pub struct Comm {
    pub(crate) shared: Arc<Shared>,
    rank: u32,
    size: u32,
    pub(crate) limit: Duration,
}

impl Comm {
    /// Begins to form a communicator on the calling thread's current device.
    ///
    /// It is ready once every rank has come: [`settle`](Self::settle). `limit` bounds how long any call on it waits for
    /// another thread's, and how long dropping it waits before it gives up.
    ///
    /// # Errors
    ///
    /// [`CallError::Missing`] with a library that has no non-blocking communicators, [`CallError::Argument`] for a rank
    /// that is not below the size, [`CallError::Failed`] where the library refuses or there is no device.
    pub fn init_rank(library: &Library, place: Place, limit: Duration) -> Result<Self, CallError> {
        live::no_group()?;
        Self::begin(library, place, limit)
    }

    fn begin(library: &Library, place: Place, limit: Duration) -> Result<Self, CallError> {
        library.features().require(Capability::NonBlocking)?;
        let Place { id, rank, size } = place;
        let (raw_rank, raw_size) = numbers(place)?;
        let (live, progress) = Live::init(library, raw_size, id, raw_rank)?;
        Ok(Self::of(library, live, progress, (rank, size), limit))
    }

    /// Begins to become a member of a communicator that grows (2.29.2 or newer), on the calling thread's current device. The
    /// id is [`grow_id`](Self::grow_id)'s, and new ranks count on from those that there are.
    ///
    /// # Errors
    ///
    /// Those of [`init_rank`](Self::init_rank).
    pub fn join(library: &Library, place: Place, limit: Duration) -> Result<Self, CallError> {
        live::no_group()?;
        let Place { id, rank, size } = place;
        let (raw_rank, raw_size) = numbers(place)?;
        let (live, progress) = Live::join(library, raw_size, id, raw_rank)?;
        Ok(Self::of(library, live, progress, (rank, size), limit))
    }

    /// Begins to form a communicator of these devices, one rank each, all in this process (one thread's group of calls).
    ///
    /// The last device is current afterwards.
    ///
    /// # Errors
    ///
    /// [`InitAllError`] where a device or the library refuses; what was begun is aborted in the background.
    pub fn init_all(library: &Library, devices: &[Device], limit: Duration) -> Result<Vec<Self>, InitAllError> {
        let size = u32::try_from(devices.len()).unwrap_or(u32::MAX);
        let id = library.unique_id()?;
        live::group_start(library)?;
        let begin = |(rank, device): (u32, &Device)| {
            device.make_current()?;
            Ok(Self::begin(library, Place { id, rank, size }, limit)?)
        };
        let (mut comms, mut begun) = (Vec::new(), Ok::<(), InitAllError>(()));
        for place in (0..size).zip(devices) {
            match begin(place) {
                Ok(comm) => comms.push(comm),
                Err(error) => {
                    begun = Err(error);
                    break;
                }
            }
        }
        // The group is closed whatever happened in it, or the thread's next call would still belong to it; and before what
        // was begun in it is dropped, because the library finishes that when the group is closed.
        let closed = live::group_end(library);
        begun?;
        closed?;
        comms.iter().for_each(|comm| comm.shared.slot.mark_pending());
        Ok(comms)
    }

    fn of(library: &Library, live: Live, progress: Progress, (rank, size): (u32, u32), limit: Duration) -> Self {
        let slot = Slot::new(live, progress == Progress::InProgress);
        Self { shared: Arc::new(Shared { library: library.clone(), slot }), rank, size, limit }
    }

    /// This rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// What ends it from another thread.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle { shared: Arc::clone(&self.shared) }
    }

    /// How it ended, where it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.shared.slot.end()
    }

    /// Waits until it has ended, whoever ends it; `None` past the limit. Only then, and once its streams are idle, may
    /// memory be freed that collectives of it were given.
    #[must_use]
    pub fn wait_for_end(&self, limit: Duration) -> Option<End> {
        self.shared.slot.wait_for_end(limit)
    }

    /// Asks how it stands: whether the last call is done, and whether an error has come to light since.
    ///
    /// # Errors
    ///
    /// [`CallError::Failed`] with an error of the communicator, after which it can only be aborted.
    pub fn poll(&self) -> Result<Progress, CallError> {
        poll(&self.shared, self.limit)
    }

    /// Waits until the last call is done.
    ///
    /// # Errors
    ///
    /// Those of [`poll`](Self::poll), and [`CallError::Deadline`] past the limit.
    pub fn settle(&self, limit: Duration) -> Result<(), CallError> {
        wait::until(limit, || Ok((self.poll()? == Progress::Ready).then_some(())))
    }

    /// Puts an all-reduce on a stream: `receive` gets what comes of every rank's `send`. Both may be the same.
    ///
    /// # Errors
    ///
    /// [`CallError::InProgress`] where the last call is not done, [`CallError::Argument`] for buffers that do not fit
    /// each other, [`CallError::Failed`] with the library's error.
    pub fn all_reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        reduction: Reduction,
        stream: StreamRef,
    ) -> Result<Progress, CallError> {
        same_shape(send, receive)?;
        let library = &self.shared.library;
        let mut returned = Ok(());
        let issued = self.issue(|live| {
            let (op, own) = live.op(library, reduction, send.kind())?;
            let issued = live.all_reduce(library, (send, receive), op, stream);
            returned = own.map_or(Ok(()), |own| live.give_back(library, own).map(|_| ()));
            issued
        })?;
        returned.map(|()| issued)
    }

    /// Puts a broadcast on a stream: `receive` gets rank `root`'s `send`. Both may be the same.
    ///
    /// # Errors
    ///
    /// Those of [`all_reduce`](Self::all_reduce).
    pub fn broadcast(
        &self,
        send: Buffer,
        receive: Buffer,
        root: u32,
        stream: StreamRef,
    ) -> Result<Progress, CallError> {
        same_shape(send, receive)?;
        let root = self.member(root)?;
        self.issue(|live| live.broadcast(&self.shared.library, (send, receive), root, stream))
    }

    /// Ends what is in flight on every rank that calls it, and keeps the communicator for [`shrink`](Self::shrink)
    /// (2.28.7 or newer). To be waited for with [`settle`](Self::settle).
    ///
    /// # Errors
    ///
    /// [`CallError::Missing`] with an older library, [`CallError::Failed`] with its error.
    pub fn revoke(&self) -> Result<Progress, CallError> {
        // Whether the last call is done does not matter: revoking is what ends it.
        let mut inside = self.shared.slot.enter(self.limit)?;
        let resting = inside.resting()?;
        let progress = resting.live.revoke(&self.shared.library)?;
        resting.is_pending = progress == Progress::InProgress;
        Ok(progress)
    }

    /// Makes communicators of the ranks with the same color, in order of their keys (2.18.3 or newer). Every rank calls
    /// it; one that brings no color gets no communicator.
    ///
    /// # Errors
    ///
    /// [`CallError::Missing`] with an older library, [`CallError::Deadline`] where not every rank has come within the
    /// limit, [`CallError::Failed`] with the library's error.
    pub fn split(&self, color: Option<u16>, part: Part, limit: Duration) -> Result<Option<Self>, CallError> {
        let Part { rank, size } = part;
        let key = c_int::try_from(rank).map_err(|_| CallError::Argument("the key is too large".to_owned()))?;
        let (unborn, progress) = {
            let mut inside = self.ready()?;
            let resting = inside.resting()?;
            let (unborn, progress) = resting.live.split(&self.shared.library, color, key)?;
            resting.is_pending = progress == Progress::InProgress;
            (unborn, progress)
        };
        self.born(unborn, progress, (rank, size), limit)
    }

    /// Ends what is in flight and makes a communicator without these ranks, in the order of those that stay (2.27.3 or
    /// newer). Every rank that stays calls it; this communicator is aborted afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`split`](Self::split), and [`CallError::Argument`] where this rank itself would go.
    pub fn shrink(&self, gone: &[u32], limit: Duration) -> Result<Self, CallError> {
        let mut excluded = gone.iter().map(|rank| self.member(*rank)).collect::<Result<Vec<c_int>, _>>()?;
        excluded.sort_unstable();
        excluded.dedup();
        if gone.contains(&self.rank) {
            return Err(CallError::Argument(format!("rank {} cannot shrink itself away", self.rank)));
        }
        let below = gone.iter().filter(|rank| **rank < self.rank).count();
        let left = |all: u32, fewer: usize| all.saturating_sub(u32::try_from(fewer).unwrap_or(u32::MAX));
        let place = (left(self.rank, below), left(self.size, excluded.len()));
        let (unborn, progress) = {
            let mut inside = self.shared.slot.enter(self.limit)?;
            let resting = inside.resting()?;
            let (unborn, progress) = resting.live.shrink(&self.shared.library, &mut excluded)?;
            resting.is_pending = progress == Progress::InProgress;
            (unborn, progress)
        };
        let none = || CallError::Argument("the library made no communicator for this rank".to_owned());
        self.born(unborn, progress, place, limit)?.ok_or_else(none)
    }

    /// Makes the id for new members, once for each time that it grows (2.29.2 or newer).
    ///
    /// # Errors
    ///
    /// [`CallError::Missing`] with an older library, [`CallError::Failed`] with its error.
    pub fn grow_id(&self) -> Result<UniqueId, CallError> {
        let mut inside = self.ready()?;
        inside.resting()?.live.grow_id(&self.shared.library)
    }

    /// Makes a communicator of its members, who keep their ranks, and new ones, who [`join`](Self::join) (2.29.2 or newer).
    /// Nothing may be in flight. The member that made the id brings it. This communicator is aborted afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`split`](Self::split), and [`CallError::Argument`] where it would not become larger.
    pub fn grow(&self, id: Option<UniqueId>, size: u32, limit: Duration) -> Result<Self, CallError> {
        if size <= self.size {
            return Err(CallError::Argument(format!("{size} ranks are no more than the {} there are", self.size)));
        }
        let (_, raw_size) = numbers(Place { id: UniqueId::from_bytes([0; UniqueId::BYTES]), rank: self.rank, size })?;
        let (unborn, progress) = {
            let mut inside = self.ready()?;
            let resting = inside.resting()?;
            let (unborn, progress) = resting.live.grow(&self.shared.library, raw_size, id)?;
            resting.is_pending = progress == Progress::InProgress;
            (unborn, progress)
        };
        let none = || CallError::Argument("the library made no communicator for this rank".to_owned());
        self.born(unborn, progress, (self.rank, size), limit)?.ok_or_else(none)
    }

    /// The address of a new communicator is there once the parent is ready, and not before.
    fn born(
        &self,
        unborn: Unborn,
        progress: Progress,
        place: (u32, u32),
        limit: Duration,
    ) -> Result<Option<Self>, CallError> {
        if progress == Progress::InProgress {
            self.settle(limit)?;
        }
        let library = &self.shared.library;
        Ok(unborn.take().map(|live| Self::of(library, live, Progress::InProgress, place, self.limit)))
    }

    /// Ends it in order, with every rank: completes what was asked for, then frees it. Where that takes longer than
    /// `limit`, it is aborted.
    ///
    /// # Errors
    ///
    /// [`EndError`] where the abort does not come back either.
    pub fn close(self, limit: Duration) -> Result<End, EndError> {
        let is_final = self.issue(|live| live.finalize(&self.shared.library)).and_then(|_| self.settle(limit)).is_ok();
        ending::end(&self.shared, if is_final { Way::Destroy } else { Way::Abort }, limit)
    }

    /// Ends it at once: what is in flight ends, whatever the peers do.
    ///
    /// # Errors
    ///
    /// [`EndError`] where it does not end within `limit`.
    pub fn abort(self, limit: Duration) -> Result<End, EndError> {
        ending::end(&self.shared, Way::Abort, limit)
    }

    /// Takes the communicator for a call of its own, which would belong to a group that is open on this thread.
    fn ready(&self) -> Result<Inside<'_>, CallError> {
        live::no_group()?;
        enter_ready(&self.shared, self.limit)
    }

    fn issue(&self, call: impl FnOnce(&mut Live) -> Result<Progress, CallError>) -> Result<Progress, CallError> {
        let mut inside = self.ready()?;
        let resting = inside.resting()?;
        let progress = call(&mut resting.live)?;
        resting.is_pending = progress == Progress::InProgress;
        Ok(progress)
    }

    pub(crate) fn member(&self, rank: u32) -> Result<c_int, CallError> {
        let none = || CallError::Argument(format!("rank {rank} is not one of {}", self.size));
        if rank < self.size { c_int::try_from(rank).map_err(|_| none()) } else { Err(none()) }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.shared.slot.end().is_none() {
            ending::end_in_background(&self.shared, self.limit);
        }
    }
}

/// A rank's part of a split: its place among those with the same color, who are this many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// The rank in the new communicator; also the key that orders it.
    pub rank: u32,
    /// How many ranks bring this color.
    pub size: u32,
}

/// Ends a communicator from another thread: for watchdogs. Cloning shares it, and it outlives its communicator.
#[derive(Debug, Clone)]
pub struct AbortHandle {
    shared: Arc<Shared>,
}

impl AbortHandle {
    /// Aborts the communicator, or waits for whoever ends it. Says how it ended; a second abort is no error.
    ///
    /// # Errors
    ///
    /// [`EndError`] where it has not ended within `limit`, counted for a call that is inside and for the abort apiece.
    pub fn abort(&self, limit: Duration) -> Result<End, EndError> {
        ending::end(&self.shared, Way::Abort, limit)
    }

    /// Asks how the communicator stands, as [`Comm::poll`] does.
    ///
    /// # Errors
    ///
    /// Those of [`Comm::poll`]; [`CallError::Busy`] where a call is inside for longer than `limit`.
    pub fn poll(&self, limit: Duration) -> Result<Progress, CallError> {
        poll(&self.shared, limit)
    }

    /// How it ended, where it has.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.shared.slot.end()
    }
}

/// A place as the library takes it: the rank and the size.
fn numbers(Place { rank, size, .. }: Place) -> Result<(c_int, c_int), CallError> {
    if rank >= size {
        return Err(CallError::Argument(format!("rank {rank} is not one of {size}: ranks count from 0")));
    }
    let number = |value: u32| {
        c_int::try_from(value).map_err(|_| CallError::Argument(format!("{value} ranks are more than NCCL counts")))
    };
    Ok((number(rank)?, number(size)?))
}

fn poll(shared: &Shared, limit: Duration) -> Result<Progress, CallError> {
    let mut inside = shared.slot.enter(limit)?;
    let resting = inside.resting()?;
    let progress = resting.live.poll(&shared.library)?;
    resting.is_pending = progress == Progress::InProgress;
    Ok(progress)
}

/// Takes a communicator whose last call is done.
pub(crate) fn enter_ready(shared: &Shared, limit: Duration) -> Result<Inside<'_>, CallError> {
    let mut inside = shared.slot.enter(limit)?;
    let resting = inside.resting()?;
    if resting.is_pending {
        if resting.live.poll(&shared.library)? == Progress::InProgress {
            return Err(CallError::InProgress);
        }
        resting.is_pending = false;
    }
    Ok(inside)
}

pub(crate) fn same_shape(send: Buffer, receive: Buffer) -> Result<(), CallError> {
    if send.count() == receive.count() && send.kind() == receive.kind() {
        return Ok(());
    }
    Err(CallError::Argument(format!(
        "{} of {:?} cannot be received as {} of {:?}",
        send.count(),
        send.kind(),
        receive.count(),
        receive.kind()
    )))
}
