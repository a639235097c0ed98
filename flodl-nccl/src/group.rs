//! Calls that are put on their streams together.

use std::marker::PhantomData;

use crate::code::Progress;
use crate::comm::{Comm, enter_ready, same_shape};
use crate::error::CallError;
use crate::library::Library;
use crate::live::{self, OwnOp};
use crate::memory::{Buffer, Reduction, StreamRef};
use crate::slot::Inside;

/// An open group of calls on one thread: several collectives of a communicator, or one of each of several communicators.
///
/// It holds every communicator that it calls until it is closed; an abort waits for that.
#[derive(Debug)]
pub struct Group<'a> {
    library: &'a Library,
    inside: Vec<Inside<'a>>,
    own: Vec<(usize, OwnOp)>,
    is_open: bool,
    /// The library counts groups by thread.
    on_one_thread: PhantomData<*const ()>,
}

impl Library {
    /// Makes calls as one group: they reach their streams together, or, where one fails, not in full.
    ///
    /// # Errors
    ///
    /// Those of `calls`, after which the communicators that it called are to be aborted; [`CallError::Failed`] where the
    /// library refuses the group.
    pub fn group<'a>(
        &'a self,
        calls: impl FnOnce(&mut Group<'a>) -> Result<(), CallError>,
    ) -> Result<Progress, CallError> {
        live::group_start(self)?;
        let mut group =
            Group { library: self, inside: Vec::new(), own: Vec::new(), is_open: true, on_one_thread: PhantomData };
        let called = calls(&mut group);
        let closed = group.close();
        called.and(closed)
    }
}

impl<'a> Group<'a> {
    /// [`Comm::all_reduce`] as part of the group.
    ///
    /// # Errors
    ///
    /// Those of [`Comm::all_reduce`].
    pub fn all_reduce(
        &mut self,
        comm: &'a Comm,
        (send, receive): (Buffer, Buffer),
        reduction: Reduction,
        stream: StreamRef,
    ) -> Result<(), CallError> {
        same_shape(send, receive)?;
        let library = self.library;
        let at = self.hold(comm)?;
        let live = &mut self.inside[at].resting()?.live;
        let (op, own) = live.op(library, reduction, send.kind())?;
        let called = live.all_reduce(library, (send, receive), op, stream);
        self.own.extend(own.map(|own| (at, own)));
        called.map(|_| ())
    }

    /// [`Comm::broadcast`] as part of the group.
    ///
    /// # Errors
    ///
    /// Those of [`Comm::all_reduce`].
    pub fn broadcast(
        &mut self,
        comm: &'a Comm,
        (send, receive): (Buffer, Buffer),
        root: u32,
        stream: StreamRef,
    ) -> Result<(), CallError> {
        same_shape(send, receive)?;
        let root = comm.member(root)?;
        let at = self.hold(comm)?;
        self.inside[at].resting()?.live.broadcast(self.library, (send, receive), root, stream).map(|_| ())
    }

    /// Where the group holds the communicator, which it takes where it does not yet.
    fn hold(&mut self, comm: &'a Comm) -> Result<usize, CallError> {
        if let Some(at) = self.inside.iter().position(|inside| inside.is_of(&comm.shared.slot)) {
            return Ok(at);
        }
        if !comm.shared.library.is(self.library) {
            return Err(CallError::Argument("the communicator is of another library than the group".to_owned()));
        }
        self.inside.push(enter_ready(&comm.shared, comm.limit)?);
        Ok(self.inside.len() - 1)
    }

    fn close(&mut self) -> Result<Progress, CallError> {
        self.is_open = false;
        let closed = live::group_end(self.library);
        for inside in &mut self.inside {
            inside.resting()?.is_pending = closed != Ok(Progress::Ready);
        }
        let mut returned = Ok(());
        for (at, own) in self.own.drain(..) {
            let given_back = self.inside[at].resting()?.live.give_back(self.library, own);
            returned = returned.and(given_back.map(|_| ()));
        }
        closed.and_then(|progress| returned.map(|()| progress))
    }
}

impl Drop for Group<'_> {
    fn drop(&mut self) {
        // Open only where `calls` panicked. The thread must leave the group all the same.
        if self.is_open {
            drop(self.close());
        }
    }
}
