//! The thread that drives NCCL for one rank: orders in, news out.

use super::driver::Driver;
use super::{NcclError, Part, Place};
use crate::session::{Collective, Membership};
use crate::user_code::panic_message;
use async_channel::Sender;
use core::time::Duration;
use flodl_nccl::session::Watchdog;
use flodl_wire::message::nccl::{NcclId, Standing};
use flodl_wire::{Incarnation, NcclSession, Rank, Round};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// Between two looks at the library and the device while something goes on there, and while nothing does.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));

/// What is wanted of the thread, in the order in which it is to be done.
#[derive(Debug)]
pub(super) enum Order {
    /// Let the library make an id for that communicator; answer [`News::IdMade`].
    MakeId(NcclSession),
    /// Form that communicator; answer [`News::Stands`], and again whenever that changes.
    Open(Membership),
    /// A round begins with this replica: parameters and then buffers, and integers.
    Load(Vec<f32>, Vec<i64>),
    /// Average what was loaded; answer [`News::Collected`], or [`News::Stands`] where the communicator is lost.
    Collect(Collective),
    /// Nobody waits any more for what goes on on that communicator.
    Abort(NcclSession),
    /// That life of a rank is over.
    PeerDied(Rank, Incarnation),
    /// The round is over.
    Settle { round: Round, counts: bool },
}

/// What the thread has to say.
#[derive(Debug)]
pub(super) enum News {
    /// An id, or a sentence.
    IdMade(NcclSession, Result<NcclId, String>),
    /// Where this rank stands with a communicator.
    Stands(NcclSession, Standing),
    /// A round's result.
    Collected(Box<Collected>),
    /// There is no NCCL or no device, or it fails for good.
    Unusable(NcclError),
}

/// What a round came to at this rank. Norms are over the parameters.
#[derive(Debug)]
pub(super) struct Collected {
    pub(super) session: NcclSession,
    pub(super) round: Round,
    /// Parameters, then buffers.
    pub(super) floats: Vec<f32>,
    pub(super) integers: Vec<i64>,
    pub(super) divergence: f64,
    pub(super) pre_norm: f64,
    pub(super) post_norm: f64,
}

/// The worker's end of the thread.
#[derive(Debug)]
pub(super) struct NcclThread {
    orders: Option<mpsc::Sender<Order>>,
    thread: Option<JoinHandle<()>>,
    patience: Duration,
}

impl NcclThread {
    /// Starts it. What it has to say goes to `news`. `on_stuck` is called, on a thread of its own, where the library does not
    /// come back, with the status that the process is to end with at once.
    pub(super) fn start(
        place: impl FnOnce() -> Result<Place, NcclError> + Send + 'static,
        part: Part,
        news: Sender<News>,
        on_stuck: impl Fn(u8) + Send + Clone + 'static,
    ) -> Result<NcclThread, NcclError> {
        let (orders, ordered) = mpsc::channel();
        let told = news.clone();
        let drive = move || {
            let watchdog = Watchdog::start(on_stuck.clone()).map_err(NcclError::Thread)?;
            drive(Driver::new(place()?, part, watchdog)?, &ordered, &news, &on_stuck)
        };
        let thread = thread::Builder::new().name("flodl-nccl".to_owned()).spawn(move || {
            let error = match catch_unwind(AssertUnwindSafe(drive)) {
                Ok(Ok(())) => return,
                Ok(Err(error)) => error,
                Err(payload) => NcclError::Panicked(panic_message(&*payload)),
            };
            // Nobody hears it where the worker has ended.
            drop(told.try_send(News::Unusable(error)));
        });
        let thread = Some(thread.map_err(NcclError::Thread)?);
        Ok(NcclThread { orders: Some(orders), thread, patience: part.patience })
    }

    /// Hands an order over. One that comes after the thread's end is lost: its last news has said why.
    pub(super) fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            drop(orders.send(order));
        }
    }
}

impl Drop for NcclThread {
    /// Ends it: what there is of a communicator is aborted. Waits for that, no longer than four times the patience.
    fn drop(&mut self) {
        self.orders = None;
        let until = Instant::now() + self.patience * 4;
        let is_at_it = |thread: &JoinHandle<()>| !thread.is_finished();
        while self.thread.as_ref().is_some_and(is_at_it) && Instant::now() < until {
            thread::sleep(LOOK_EVERY.0);
        }
        // A panic in it was caught there.
        self.thread.take_if(|thread| thread.is_finished()).map(JoinHandle::join);
    }
}

/// Orders in, news out, until nobody orders any more or the library is stuck.
fn drive(
    mut driver: Driver,
    orders: &mpsc::Receiver<Order>,
    news: &Sender<News>,
    on_stuck: &impl Fn(u8),
) -> Result<(), NcclError> {
    loop {
        let pause = if driver.is_busy() { LOOK_EVERY.0 } else { LOOK_EVERY.1 };
        match orders.recv_timeout(pause) {
            Ok(order) => driver.take(order)?,
            Err(RecvTimeoutError::Timeout) => driver.look(),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
        while let Some(said) = driver.poll() {
            match said {
                // Nobody hears it where the worker has ended.
                Ok(said) => drop(news.try_send(said)),
                Err(status) => {
                    on_stuck(status);
                    // The library may still write to the replica: nothing of it is let go of.
                    std::mem::forget(driver);
                    return Ok(());
                }
            }
        }
    }
}
