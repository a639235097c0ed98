//! A communicator of the library as an owned value: every raw call on one is in this file.
//!
//! Ownership is what makes the calls sound. A [`Live`] is made by the library and never copied; calls borrow it
//! mutably, so that two threads are never inside one communicator; and what ends it takes it by value, so that nothing can
//! be called after it and exactly one of abort and destroy happens.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::code::{ErrorCode, Progress};
use crate::error::CallError;
use crate::features::Capability;
use crate::library::Library;
use crate::memory::{Buffer, DataType, Reduction, StreamRef};
use crate::sys::nccl::{Code, Config, NO_COLOR, RawComm, SCALAR_HOST_IMMEDIATE, SHRINK_ABORT};
use crate::unique_id::UniqueId;

/// A communicator that has not ended. Dropping it forgets it: the library keeps it until the process ends.
#[derive(Debug)]
pub(crate) struct Live(NonNull<c_void>);

// SAFETY: a communicator is tied to no thread; the library asks only that no two are inside it at once.
unsafe impl Send for Live {}

/// Where the library writes the address of a communicator. A non-blocking call may write it after it has returned, so the
/// place is never freed: eight bytes a communicator.
#[derive(Debug, Clone, Copy)]
struct Place(&'static AtomicPtr<c_void>);

impl Place {
    fn new() -> Self {
        Self(Box::leak(Box::new(AtomicPtr::new(ptr::null_mut()))))
    }

    fn raw(self) -> *mut RawComm {
        self.0.as_ptr()
    }

    fn take(self) -> Option<Live> {
        NonNull::new(self.0.swap(ptr::null_mut(), Ordering::Acquire)).map(Live)
    }
}

/// A communicator that is being made out of another; it is there once the parent is ready.
#[derive(Debug)]
pub(crate) struct Unborn(Place);

impl Unborn {
    /// The new communicator, where the rank is part of one. To be asked when the parent is ready.
    pub(crate) fn take(self) -> Option<Live> {
        self.0.take()
    }
}

/// A reduction that was made for one call, and must be given back after it.
#[derive(Debug)]
pub(crate) struct OwnOp(Code);

impl Live {
    /// Begins to make a communicator, on the calling thread's current device.
    pub(crate) fn init(
        library: &Library,
        size: c_int,
        id: UniqueId,
        rank: c_int,
    ) -> Result<(Self, Progress), CallError> {
        const CALL: &str = "ncclCommInitRankConfig";
        let function = library.gated(library.api().init_rank_config, Capability::NonBlocking, CALL)?;
        let place = Place::new();
        let mut config = Config::NON_BLOCKING;
        // SAFETY: the place lives for good, the configuration is whole and read before the call returns.
        let code = unsafe { function(place.raw(), size, id.raw(), rank, &raw mut config) };
        let progress = library.done(CALL, code)?;
        match place.take() {
            Some(live) => Ok((live, progress)),
            None => Err(CallError::Failed { call: CALL, code: ErrorCode::Internal, detail: String::new() }),
        }
    }

    /// Begins to make a rank a member of a communicator that grows, on the calling thread's current device.
    pub(crate) fn join(
        library: &Library,
        size: c_int,
        id: UniqueId,
        rank: c_int,
    ) -> Result<(Self, Progress), CallError> {
        const CALL: &str = "ncclCommGrow";
        let function = library.gated(library.api().grow, Capability::Grow, CALL)?;
        let place = Place::new();
        let mut config = Config::NON_BLOCKING;
        let id = id.raw();
        // SAFETY: without a communicator of its own the rank brings the id, which is read before the call returns, as is the
        // configuration; the place lives for good.
        let code = unsafe { function(ptr::null_mut(), size, &raw const id, rank, place.raw(), &raw mut config) };
        let progress = library.done(CALL, code)?;
        match place.take() {
            Some(live) => Ok((live, progress)),
            None => Err(CallError::Failed { call: CALL, code: ErrorCode::Internal, detail: String::new() }),
        }
    }

    /// Makes the id that new members bring when the communicator grows.
    pub(crate) fn grow_id(&mut self, library: &Library) -> Result<UniqueId, CallError> {
        const CALL: &str = "ncclCommGetUniqueId";
        let function = library.gated(library.api().grow_id, Capability::Grow, CALL)?;
        let mut id = UniqueId::from_bytes([0; UniqueId::BYTES]).raw();
        // SAFETY: the communicator is live and nobody else is inside it; an id of this size is written.
        let code = unsafe { function(self.raw(), &raw mut id) };
        match library.done(CALL, code)? {
            Progress::Ready => Ok(UniqueId::from_bytes(id.0)),
            Progress::InProgress => Err(CallError::InProgress),
        }
    }

    /// Begins to make a communicator of this one's members and new ones. Whoever made the id brings it.
    pub(crate) fn grow(
        &mut self,
        library: &Library,
        size: c_int,
        id: Option<UniqueId>,
    ) -> Result<(Unborn, Progress), CallError> {
        const CALL: &str = "ncclCommGrow";
        /// A member keeps its rank.
        const SAME: c_int = -1;
        let function = library.gated(library.api().grow, Capability::Grow, CALL)?;
        let place = Place::new();
        let mut config = Config::NON_BLOCKING;
        let id = id.map(UniqueId::raw);
        let brought = id.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the communicator is live and nobody else is inside it; the id and the configuration are read before the call
        // returns, and the place lives for good.
        let code = unsafe { function(self.raw(), size, brought, SAME, place.raw(), &raw mut config) };
        Ok((Unborn(place), library.done(CALL, code)?))
    }

    /// How the communicator stands.
    pub(crate) fn poll(&mut self, library: &Library) -> Result<Progress, CallError> {
        const CALL: &str = "ncclCommGetAsyncError";
        let function = library.function(library.api().get_async_error, CALL)?;
        let mut state: Code = 0;
        // SAFETY: the communicator is live and nobody else is inside it; one integer is written.
        let code = unsafe { function(self.raw(), &raw mut state) };
        library.done(CALL, code)?;
        library.done(CALL, state)
    }

    /// Makes the operator of a reduction over a type: a built-in code, or an own one.
    pub(crate) fn op(
        &mut self,
        library: &Library,
        reduction: Reduction,
        kind: DataType,
    ) -> Result<(Code, Option<OwnOp>), CallError> {
        const CALL: &str = "ncclRedOpCreatePreMulSum";
        let factor = match reduction {
            Reduction::Sum => return Ok((0, None)),
            Reduction::Max => return Ok((2, None)),
            Reduction::Min => return Ok((3, None)),
            Reduction::Average => return Ok((4, None)),
            Reduction::PreMulSum(factor) => factor,
        };
        let function = library.function(library.api().create_pre_mul_sum, CALL)?;
        let unscaled = || CallError::Argument(format!("{kind:?} cannot be multiplied: sum it, or take its largest"));
        let mut scalar = u64::from_ne_bytes(kind.factor(factor).ok_or_else(unscaled)?);
        let mut op: Code = 0;
        // SAFETY: the communicator is live and nobody else is inside it; the scalar holds a value of the type and is read
        // before the call returns, which is what the residence says.
        let code =
            unsafe { function(&raw mut op, (&raw mut scalar).cast(), kind.code(), SCALAR_HOST_IMMEDIATE, self.raw()) };
        library.done(CALL, code)?;
        Ok((op, Some(OwnOp(op))))
    }

    /// Gives an operator back; the call that used it has returned.
    pub(crate) fn give_back(&mut self, library: &Library, op: OwnOp) -> Result<Progress, CallError> {
        const CALL: &str = "ncclRedOpDestroy";
        let function = library.function(library.api().destroy_red_op, CALL)?;
        // SAFETY: the operator was made for this communicator, and is given back once.
        library.done(CALL, unsafe { function(op.0, self.raw()) })
    }

    /// Puts an all-reduce on a stream. The buffers are of one length and type.
    pub(crate) fn all_reduce(
        &mut self,
        library: &Library,
        (send, receive): (Buffer, Buffer),
        op: Code,
        stream: StreamRef,
    ) -> Result<Progress, CallError> {
        const CALL: &str = "ncclAllReduce";
        let function = library.function(library.api().all_reduce, CALL)?;
        let (count, kind) = (send.count(), send.kind().code());
        // SAFETY: the communicator is live and nobody else is inside it; whoever made the views of memory and stream has
        // promised that they outlive the collective.
        let code = unsafe { function(send.address(), receive.address(), count, kind, op, self.raw(), stream.raw()) };
        library.done(CALL, code)
    }

    /// Puts a broadcast on a stream. The buffers are of one length and type.
    pub(crate) fn broadcast(
        &mut self,
        library: &Library,
        (send, receive): (Buffer, Buffer),
        root: c_int,
        stream: StreamRef,
    ) -> Result<Progress, CallError> {
        const CALL: &str = "ncclBroadcast";
        let function = library.function(library.api().broadcast, CALL)?;
        let (count, kind) = (send.count(), send.kind().code());
        // SAFETY: as for the all-reduce.
        let code = unsafe { function(send.address(), receive.address(), count, kind, root, self.raw(), stream.raw()) };
        library.done(CALL, code)
    }

    /// Begins to split; `color` is `None` for a rank that will be in no new communicator.
    pub(crate) fn split(
        &mut self,
        library: &Library,
        color: Option<u16>,
        key: c_int,
    ) -> Result<(Unborn, Progress), CallError> {
        const CALL: &str = "ncclCommSplit";
        let function = library.gated(library.api().split, Capability::Split, CALL)?;
        let place = Place::new();
        let mut config = Config::NON_BLOCKING;
        // SAFETY: the communicator is live and nobody else is inside it; the place lives for good.
        let code =
            unsafe { function(self.raw(), color.map_or(NO_COLOR, c_int::from), key, place.raw(), &raw mut config) };
        Ok((Unborn(place), library.done(CALL, code)?))
    }

    /// Ends what is in flight and begins to make a communicator without these ranks.
    pub(crate) fn shrink(
        &mut self,
        library: &Library,
        excluded: &mut [c_int],
    ) -> Result<(Unborn, Progress), CallError> {
        const CALL: &str = "ncclCommShrink";
        let function = library.gated(library.api().shrink, Capability::Shrink, CALL)?;
        let count = c_int::try_from(excluded.len()).map_err(|_| CallError::Argument("too many ranks".to_owned()))?;
        let place = Place::new();
        let mut config = Config::NON_BLOCKING;
        // SAFETY: as for the split; the list is as long as it says and read before the call returns.
        let code =
            unsafe { function(self.raw(), excluded.as_mut_ptr(), count, place.raw(), &raw mut config, SHRINK_ABORT) };
        Ok((Unborn(place), library.done(CALL, code)?))
    }

    /// Ends what is in flight; after it the communicator can only be split, shrunk or ended.
    pub(crate) fn revoke(&mut self, library: &Library) -> Result<Progress, CallError> {
        const CALL: &str = "ncclCommRevoke";
        let function = library.gated(library.api().revoke, Capability::Revoke, CALL)?;
        // SAFETY: the communicator is live and nobody else is inside it.
        library.done(CALL, unsafe { function(self.raw(), 0) })
    }

    /// Begins to complete what all ranks have asked for.
    pub(crate) fn finalize(&mut self, library: &Library) -> Result<Progress, CallError> {
        const CALL: &str = "ncclCommFinalize";
        let function = library.function(library.api().finalize, CALL)?;
        // SAFETY: the communicator is live and nobody else is inside it.
        library.done(CALL, unsafe { function(self.raw()) })
    }

    /// Frees the communicator. May wait for what is in flight.
    pub(crate) fn destroy(self, library: &Library) -> Result<Progress, CallError> {
        const CALL: &str = "ncclCommDestroy";
        let function = library.function(library.api().destroy, CALL)?;
        // SAFETY: the communicator is live, and this value was the only way to it.
        library.done(CALL, unsafe { function(self.raw()) })
    }

    /// Ends what is in flight and frees the communicator. Can hang.
    pub(crate) fn abort(self, library: &Library) -> Result<Progress, CallError> {
        const CALL: &str = "ncclCommAbort";
        let function = library.function(library.api().abort, CALL)?;
        // SAFETY: the communicator is live, and this value was the only way to it.
        library.done(CALL, unsafe { function(self.raw()) })
    }

    const fn raw(&self) -> RawComm {
        self.0.as_ptr()
    }
}

thread_local! {
    /// Whether this thread's calls belong to a group.
    static IN_GROUP: Cell<bool> = const { Cell::new(false) };
}

/// Refuses a call that would belong to this thread's open group without being held by it: the communicator could be freed
/// before the group is closed.
pub(crate) fn no_group() -> Result<(), CallError> {
    match IN_GROUP.get() {
        true => {
            Err(CallError::Argument("a group is open on this thread: make the call through it, or after it".to_owned()))
        }
        false => Ok(()),
    }
}

/// Opens a group of calls on this thread, which has none.
pub(crate) fn group_start(library: &Library) -> Result<Progress, CallError> {
    const CALL: &str = "ncclGroupStart";
    no_group()?;
    let function = library.function(library.api().group_start, CALL)?;
    // SAFETY: the function counts on the calling thread.
    let started = library.done(CALL, unsafe { function() })?;
    IN_GROUP.set(true);
    Ok(started)
}

/// Closes it, which puts its calls on their streams.
pub(crate) fn group_end(library: &Library) -> Result<Progress, CallError> {
    const CALL: &str = "ncclGroupEnd";
    IN_GROUP.set(false);
    let function = library.function(library.api().group_end, CALL)?;
    // SAFETY: every communicator of the group is held by the caller until this returns; others are refused meanwhile
    // ([`no_group`]).
    library.done(CALL, unsafe { function() })
}
