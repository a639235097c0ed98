//! Averaging over NCCL: what a [`Worker`](crate::worker::Worker) is given to average its replica with other ranks' on GPUs.
//!
//! The library and the device are driven by a thread of their own, so that no call holds up training or messages. A call that
//! does not come back is noticed by yet another thread and ends the process with the status 75: nothing but that frees the
//! device. The run goes on without this rank, or starts it again.
//!
//! A replica's numbers go to the device when a round begins and come back with its result, through the host, as its model lends
//! them; the replica itself stays what it is until the round counts.

#![expect(clippy::disallowed_methods, reason = "it reads the clock that the library's deadlines are counted by")]

mod driver;
mod thread;

use crate::reduce::{CpuReduce, ManifestError};
use crate::session::{Input, Output, ResultWhole};
use crate::trainee::{Fault, Trainee};
use crate::user_code::fault;
use crate::worker::Collectives;
use async_channel::{Receiver, Sender, unbounded};
use core::time::Duration;
use flodl_nccl::average::{AverageError, Outer};
use flodl_nccl::{Cuda, CudaError, Device, Library, LoadError};
use flodl_wire::message::join::{LayoutSizes, TensorSpec};
use flodl_wire::{Incarnation, Rank, Round, Time};
use thiserror::Error;
use thread::{Collected, NcclThread, News, Order};

/// Between two looks at what the thread says while an answer is awaited, and while none is.
const ASK_EVERY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Why a rank cannot average over NCCL.
#[derive(Debug, Error)]
pub enum NcclError {
    /// There is no NCCL.
    #[error(transparent)]
    Library(#[from] LoadError),
    /// There is no driver, or it refuses.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// What was loaded does not fit.
    #[error(transparent)]
    Average(#[from] AverageError),
    /// The model cannot be averaged.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The driver finds no device.
    #[error("the CUDA driver finds no device: run with --mode cpu-cadence")]
    NoDevice,
    /// The model is larger than this machine counts.
    #[error("the model has more numbers than this machine counts")]
    TooLarge,
    /// A result of another length than the model's.
    #[error("a result came back with another length than the model's")]
    Length,
    /// The system gives no thread.
    #[error("the system gives no thread: {0}")]
    Thread(std::io::Error),
    /// The thread that drives NCCL panicked.
    #[error("driving NCCL panicked: {0}")]
    Panicked(String),
}

/// The library and the device that a rank averages with.
#[derive(Clone, Debug)]
pub struct Place {
    /// The library.
    pub library: Library,
    /// The device.
    pub device: Device,
}

impl Place {
    /// What this machine has: the NCCL that [`Library::find`] finds, and the device whose number is `local_rank`, counted
    /// again from the first where there are fewer.
    ///
    /// # Errors
    /// [`NcclError`] where one of both is missing.
    pub fn find(local_rank: usize) -> Result<Place, NcclError> {
        let library = Library::find()?;
        let mut devices = Cuda::load()?.devices()?;
        match devices.len() {
            0 => Err(NcclError::NoDevice),
            count => Ok(Place { library, device: devices.swap_remove(local_rank % count) }),
        }
    }
}

/// Who averages what.
#[derive(Copy, Clone, Debug)]
struct Part {
    /// The rank.
    rank: Rank,
    /// Which of its lives.
    incarnation: Incarnation,
    /// The run's patience, from which every deadline follows.
    patience: Duration,
    /// The model's sizes.
    sizes: LayoutSizes,
    /// What is made of an average.
    outer: Outer,
}

type FindPlace = Box<dyn FnOnce() -> Result<Place, NcclError> + Send>;

/// What averages a rank's replica over NCCL. Nothing is loaded or allocated before a run wants it.
pub struct Nccl {
    who: (Rank, Incarnation, Duration),
    manifest: Vec<TensorSpec>,
    outer: Outer,
    /// Where the thread is to find its place, until it is started.
    place: Option<FindPlace>,
    on_stuck: fn(u8),
    thread: Option<NcclThread>,
    said: Sender<News>,
    news: Receiver<News>,
    /// The replica's numbers on their way, and a result until it counts.
    staging: Option<CpuReduce>,
    /// Answers that are awaited.
    awaited: u32,
    next: Option<Time>,
}

impl Nccl {
    /// For a model of that manifest, as that rank in that life; deadlines follow from the patience. `place` is called, on the
    /// thread that drives NCCL, when a run first wants it; `on_stuck` where the library does not come back, with the status
    /// that the process is to end with at once.
    #[must_use]
    pub fn new(
        who: (Rank, Incarnation, Duration),
        manifest: Vec<TensorSpec>,
        place: impl FnOnce() -> Result<Place, NcclError> + Send + 'static,
        on_stuck: fn(u8),
    ) -> Nccl {
        let (said, news) = unbounded();
        Nccl {
            who,
            manifest,
            outer: Outer::Average,
            place: Some(Box::new(place)),
            on_stuck,
            thread: None,
            said,
            news,
            staging: None,
            awaited: 0,
            next: None,
        }
    }

    /// The same with an outer optimizer, which all ranks must have alike.
    #[must_use]
    pub fn with_outer(self, outer: Outer) -> Nccl {
        Nccl { outer, ..self }
    }

    fn staging(&mut self) -> Result<&mut CpuReduce, NcclError> {
        let made = match self.staging.take() {
            Some(made) => made,
            None => CpuReduce::new(&self.manifest)?,
        };
        Ok(self.staging.insert(made))
    }

    fn tell(&mut self, order: Order) -> Result<(), NcclError> {
        if let Some(place) = self.place.take() {
            let sizes = self.staging()?.sizes();
            let (rank, incarnation, patience) = self.who;
            let part = Part { rank, incarnation, patience, sizes, outer: self.outer };
            self.thread = Some(NcclThread::start(place, part, self.said.clone(), self.on_stuck)?);
        }
        self.awaited += u32::from(matches!(order, Order::MakeId(_) | Order::Open(_) | Order::Collect(_)));
        if let Some(thread) = &self.thread {
            thread.order(order);
        }
        Ok(())
    }

    fn heard(&mut self, news: News) -> Result<Input, NcclError> {
        self.awaited = self.awaited.saturating_sub(1);
        Ok(match news {
            News::IdMade(session, outcome) => Input::NcclIdMade { session, outcome },
            News::Stands(session, standing) => {
                // The same order is answered again when it is done.
                self.awaited += u32::from(standing == flodl_wire::message::nccl::Standing::Begun);
                Input::NcclStands { session, standing }
            }
            News::Collected(collected) => {
                let Collected { session, round, floats, integers, divergence, pre_norm, post_norm } = *collected;
                let digest = self.staging()?.take_result(&floats, &integers).ok_or(NcclError::Length)?;
                let result = ResultWhole { round, digest, divergence, pre_norm, post_norm };
                Input::Collected { session, result }
            }
            News::Unusable(error) => return Err(error),
        })
    }

    fn ask_again(&mut self, now: Time) {
        let pause = if self.awaited > 0 { ASK_EVERY.0 } else { ASK_EVERY.1 };
        self.next = self.thread.is_some().then(|| now.plus(pause));
    }
}

impl<T: Trainee> Collectives<T> for Nccl {
    fn prepare(&mut self, trainee: &mut T, round: Round) -> Result<bool, Fault> {
        let staging = self.staging()?;
        let finite = staging.snapshot(trainee, round).map_err(fault)?;
        let (floats, integers) = staging.contents();
        let load = Order::Load(floats.to_vec(), integers.to_vec());
        self.tell(load)?;
        Ok(finite)
    }

    fn order(&mut self, _trainee: &mut T, order: &Output, now: Time) -> Result<(), Fault> {
        let order = match order {
            Output::MakeNcclId { session } => Order::MakeId(*session),
            Output::OpenSession(membership) => Order::Open(membership.clone()),
            Output::Collective(collective) => Order::Collect(*collective),
            Output::AbortCollective { session } => Order::Abort(*session),
            Output::PeerDied { rank, incarnation } => Order::PeerDied(*rank, *incarnation),
            _ => return Ok(()),
        };
        self.tell(order)?;
        self.ask_again(now);
        Ok(())
    }

    fn poll(&mut self, _trainee: &mut T, now: Time) -> Result<Option<Input>, Fault> {
        let heard = self.news.try_recv().ok().map(|news| self.heard(news)).transpose()?;
        self.ask_again(now);
        Ok(heard)
    }

    fn next_poll(&self) -> Option<Time> {
        self.next
    }

    fn keep(&mut self, trainee: &mut T, round: Round) -> Result<u64, Fault> {
        let digest = self.staging()?.apply(trainee).map_err(fault)?;
        self.tell(Order::Settle { round, counts: true })?;
        Ok(digest)
    }

    fn put_back(&mut self, _trainee: &mut T, round: Round) -> Result<(), Fault> {
        self.staging()?.forget();
        Ok(self.tell(Order::Settle { round, counts: false })?)
    }
}
