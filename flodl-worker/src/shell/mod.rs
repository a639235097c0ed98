//! The process around a worker: its environment, its two connections, its threads.
//!
//! Training runs on the thread that calls [`run`]; one more thread does all input and output. Between them are bounded
//! channels: orders and results one way, with room for a whole result, reports and chunks the other.

#![expect(clippy::disallowed_methods, reason = "the shell is where the clock is read")]

mod clock;
mod dial;
mod environment;
mod key;
mod link;
pub(crate) mod pace;
#[cfg(target_os = "linux")]
mod shared;
mod talk;

pub use dial::DialError;
pub use environment::{Environment, EnvironmentError, PATIENCE_DEFAULT};
pub use key::KeyError;

use crate::reduce::Passage;
use crate::session::{End, Failure};
use crate::trainee::Trainee;
use crate::worker::{Clock, Event, Job, JobError, Prepared, Turn, Worker};
use clock::{RealClock, time_since};
use flodl_wire::Rank;
use link::{IoThread, Next, Wakeup};
use std::time::Instant;
use talk::Voice;
use thiserror::Error;

/// Why there was no training, or why it ended.
#[derive(Debug, Error)]
pub enum TrainError {
    /// This process was not started as a rank.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// It was not given its keys.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It has nothing that can be trained.
    #[error(transparent)]
    Job(#[from] JobError),
    /// It cannot reach its relay.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The system gives it no thread.
    #[error("the system gives no thread for input and output: {0}")]
    Thread(std::io::Error),
    /// It was part of the run and could not go on.
    #[error("{failure}")]
    Ended {
        /// Who it was.
        rank: Rank,
        /// Why.
        failure: Failure,
    },
}

/// Connects to the relay that `environment` names and trains `job` until the run is over. Answers with the replica and with how
/// it ended, which is never `Failed`.
///
/// # Errors
/// See [`TrainError`].
pub fn run<T: Trainee>(environment: &Environment, job: Job<'_, T>) -> Result<(T, End), TrainError> {
    let keys = key::read_keys(environment.key_fd)?;
    // Reading a large dataset's signature may take longer than a relay waits in silence: it comes before anybody waits.
    let mut prepared = Prepared::new(job)?;
    prepared.warm_up()?;
    let memory = memory(environment);
    let links = async_io::block_on(dial::dial(environment, keys, note))?;
    let (rank, incarnation) = (environment.rank, environment.incarnation);
    let (origin, patience) = (Instant::now(), links.control.patience);
    #[cfg(feature = "nccl")]
    let nccl = nccl(&prepared, (rank, incarnation, patience));
    let mut worker = prepared.begin((rank, incarnation), patience, time_since(origin));
    #[cfg(feature = "nccl")]
    {
        worker = worker.with_collectives(Box::new(nccl));
    }
    let chunks = usize::try_from(worker.result_chunks()).unwrap_or(usize::MAX);
    let voice = Voice { rank, incarnation, patience, origin };
    let bell = memory.map(|(passage, bell)| {
        worker.share(passage);
        bell
    });
    let io = IoThread::start(links, voice, chunks, bell).map_err(TrainError::Thread)?;
    let end = work(&mut worker, &io, &mut RealClock::new(origin, io.gone()));
    io.finish();
    match end {
        End::Failed(failure) => Err(TrainError::Ended { rank, failure }),
        end => Ok((worker.into_trainee(), end)),
    }
}

/// What averages over NCCL, where the run wants that.
#[cfg(feature = "nccl")]
fn nccl<T: Trainee>(
    prepared: &Prepared<'_, T>,
    who: (Rank, flodl_wire::Incarnation, core::time::Duration),
) -> crate::nccl::Nccl {
    use crate::nccl::{Nccl, Place};
    let local = std::env::var("FLODL_LOCAL_RANK").ok().and_then(|local| local.parse().ok()).unwrap_or(0);
    let stuck = |status| {
        note(format!("NCCL does not come back, so this process ends with status {status}"));
        flodl_nccl::session::end_process(status)
    };
    Nccl::new(who, prepared.manifest().to_vec(), move || Place::find(local), stuck)
}

/// Events in, turns out, until it is over. All that has come is handled before each turn, and before any deadline.
fn work<T: Trainee>(worker: &mut Worker<'_, T>, io: &IoThread, clock: &mut RealClock) -> End {
    loop {
        take_events(worker, io, clock);
        let event = match worker.turn(clock) {
            Turn::Report(report) => io.report(report),
            Turn::Data(data) if worker.session().overlaps() => io.data_ahead(data),
            Turn::Data(data) => io.data(data),
            Turn::Worked => None,
            Turn::End(end) => return end,
            Turn::Idle => {
                let deadline = clock.instant(worker.next_deadline().unwrap_or_default());
                match io.event_before(deadline, || worker.can_go_on()) {
                    Next::Event(event) => Some(event),
                    Next::Work => None,
                    Next::Late => {
                        take_events(worker, io, clock);
                        Some(Event::Tick)
                    }
                }
            }
        };
        if let Some(event) = event {
            worker.handle(event, clock.now());
        }
        io.set_steps(worker.steps());
    }
}

/// Memory that this rank shares with its relay, and what it is woken by there. Without any, chunks go through the socket.
#[cfg(target_os = "linux")]
fn memory(environment: &Environment) -> Option<(Box<dyn Passage>, Wakeup)> {
    match shared::Shared::take_up(environment.shm_fds?) {
        Ok(shared) => {
            let bell = shared.bell();
            Some((Box::new(shared), bell))
        }
        Err(error) => {
            note(format!("{environment}: {error}"));
            None
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn memory(_: &Environment) -> Option<(Box<dyn Passage>, Wakeup)> {
    None
}

fn take_events<T: Trainee>(worker: &mut Worker<'_, T>, io: &IoThread, clock: &mut RealClock) {
    while let Some(event) = io.try_event() {
        worker.handle(event, clock.now());
    }
    worker.handle(Event::Heard, io.heard());
}

/// One line for whoever watches this process; its relay prefixes it with the rank.
#[expect(clippy::print_stderr, reason = "a rank that waits says so where people look, before it can tell anybody else")]
fn note(line: String) {
    eprintln!("{line}");
}
