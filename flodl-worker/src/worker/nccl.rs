//! A worker's rounds that ranks average among themselves: the boundary to what does it, and its place in a turn.

use super::{Clock, Worker};
use crate::session::{Failure, Input, Output, SnapshotTaken};
use crate::trainee::{Fault, Trainee};
use crate::user_code::user;
use flodl_wire::{Round, Time};

/// What averages replicas among the ranks themselves: NCCL, or whatever a test has in its place.
///
/// A communicator that loses a member is aborted, and never made smaller (`Session::never_shrunk` of flodl-nccl): once it is said
/// to be lost nothing of it is on the device any more.
///
/// Nothing here waits for a peer: what an order begins goes on behind it, and is asked for by [`Collectives::poll`].
pub trait Collectives<T> {
    /// A round begins: whether every float of the replica is finite. From now on, or from the first order to average it, a
    /// copy of what the round will overwrite is kept.
    ///
    /// # Errors
    /// A sentence; the rank ends.
    fn prepare(&mut self, trainee: &mut T, round: Round) -> Result<bool, Fault>;

    /// Begins what the session orders: [`Output::MakeNcclId`], [`Output::OpenSession`], [`Output::Collective`],
    /// [`Output::AbortCollective`] or [`Output::PeerDied`].
    ///
    /// # Errors
    /// A sentence; the rank ends.
    fn order(&mut self, trainee: &mut T, order: &Output, now: Time) -> Result<(), Fault>;

    /// What has come of orders since it was asked last, one word at a time: [`Input::NcclIdMade`], [`Input::NcclStands`] or
    /// [`Input::Collected`].
    ///
    /// # Errors
    /// A sentence; the rank ends.
    fn poll(&mut self, trainee: &mut T, now: Time) -> Result<Option<Input>, Fault>;

    /// When to ask next unless something else comes first; `None` where nothing is awaited.
    fn next_poll(&self) -> Option<Time>;

    /// The result counts, and is in the replica: lets go of the copy. Gives the digest of the replica, as of a result.
    ///
    /// # Errors
    /// A sentence; the rank ends.
    fn keep(&mut self, trainee: &mut T, round: Round) -> Result<u64, Fault>;

    /// The round came to nothing: the replica gets back what was copied, where anything was issued.
    ///
    /// # Errors
    /// A sentence; the rank ends.
    fn put_back(&mut self, trainee: &mut T, round: Round) -> Result<(), Fault>;
}

/// What a worker has of it.
pub(super) struct Averaging<'a, T> {
    collectives: Option<Box<dyn Collectives<T> + 'a>>,
    /// The round that was prepared and is not over.
    round: Option<Round>,
}

impl<T> Default for Averaging<'_, T> {
    fn default() -> Self {
        Averaging { collectives: None, round: None }
    }
}

impl<'a, T: Trainee> Worker<'a, T> {
    /// The same, which can average its replica with other ranks' by that.
    #[must_use]
    pub fn with_collectives(mut self, collectives: Box<dyn Collectives<T> + 'a>) -> Worker<'a, T> {
        self.nccl.collectives = Some(collectives);
        self
    }

    pub(super) fn next_poll(&self) -> Option<Time> {
        self.nccl.collectives.as_ref().and_then(|collectives| collectives.next_poll())
    }

    /// Does something with what averages and the replica.
    fn averaging<R>(
        &mut self,
        during: &'static str,
        work: impl FnOnce(&mut dyn Collectives<T>, &mut T) -> Result<R, Fault>,
    ) -> Result<R, Failure> {
        let (Some(collectives), trainee) = (&mut self.nccl.collectives, &mut self.job.trainee) else {
            return Err(Failure::NoNccl);
        };
        user(during, || work(&mut **collectives, trainee))
    }

    pub(super) fn prepare(&mut self, round: Round, clock: &mut dyn Clock) -> Result<SnapshotTaken, Failure> {
        let started = clock.now();
        let finite = self.averaging("copying the replica", |nccl, trainee| nccl.prepare(trainee, round))?;
        self.nccl.round = Some(round);
        Ok(SnapshotTaken { round, finite, took: clock.now().since(started) })
    }

    pub(super) fn order_collectives(&mut self, order: &Output, clock: &mut dyn Clock) -> Result<(), Failure> {
        let now = clock.now();
        self.averaging("averaging over NCCL", |nccl, trainee| nccl.order(trainee, order, now))
    }

    /// Hands the session what has come of its orders.
    pub(super) fn look_at_collectives(&mut self, clock: &mut dyn Clock) {
        while self.nccl.collectives.is_some() && !self.session.ended() {
            let now = clock.now();
            match self.averaging("averaging over NCCL", |nccl, trainee| nccl.poll(trainee, now)) {
                Ok(Some(input)) => self.session.handle(input, now),
                Ok(None) => return,
                Err(failure) => self.session.handle(Input::Failed(failure), now),
            }
        }
    }

    /// The digest of a result that is in the replica already, where the round left it there.
    pub(super) fn keep_result(&mut self, round: Round) -> Result<Option<u64>, Failure> {
        if self.nccl.round.take_if(|prepared| *prepared == round).is_none() {
            return Ok(None);
        }
        self.averaging("reading the model's tensors", |nccl, trainee| nccl.keep(trainee, round)).map(Some)
    }

    /// Whether the round left something in the replica that is not wanted; it is as it was now.
    pub(super) fn put_back_copy(&mut self, round: Round) -> Result<bool, Failure> {
        if self.nccl.round.take_if(|prepared| *prepared == round).is_none() {
            return Ok(false);
        }
        self.averaging("writing the model's tensors", |nccl, trainee| nccl.put_back(trainee, round))?;
        Ok(true)
    }
}
