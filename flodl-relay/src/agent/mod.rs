//! The processes of a host: starts ranks, carries their output, ends them, and leaves none behind.
//!
//! Three things see to it that no process survives its relay, however the relay ends:
//!
//! - Every rank asks the kernel for `SIGKILL` when its parent dies. That signal belongs to the *thread* that started it, so
//!   one thread starts all ranks and lives as long as the [`Agent`].
//! - Every rank leads a session and a process group of its own, so a group id names all its descendants.
//! - A *guard* process ([`guard_main`]) holds a pipe to the agent, over which it is told those group ids. At the pipe's end
//!   of file, for whatever reason, it kills the groups.
//!
//! A rank finds its keys in an inherited pipe whose descriptor number is in `FLODL_KEY_FD`; they are never in its arguments
//! or environment. Its standard output and error go together, byte by byte, into `rank<k>.log` of the run directory, and
//! line by line, made harmless and within limits, to whoever shows them live.

mod allocator;
mod guard;
mod output;
mod process;
mod shown;

pub use guard::guard_main;

use crate::limits;
use async_channel::Sender;
use flodl_wire::message::report::ExitStatus;
use flodl_wire::secret::RankKeys;
use flodl_wire::{Incarnation, Rank};
use guard::Guard;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

/// Takes a line of the relay's own for people, without its end. Called from several threads; it must not block.
pub type Sink = Arc<dyn Fn(&str) + Send + Sync>;

/// Takes a line that a rank wrote, without its end and without anything that could harm a terminal. Called from several
/// threads; a call that blocks holds up that rank's output, and then the rank.
pub type RankSink = Arc<dyn Fn(Rank, &str) + Send + Sync>;

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program, searched for in `PATH` where it holds no slash.
    pub path: OsString,
    /// Its arguments.
    pub args: Vec<OsString>,
}

impl Program {
    /// A program with arguments.
    pub fn new(path: impl Into<OsString>, args: impl IntoIterator<Item = impl Into<OsString>>) -> Program {
        Program { path: path.into(), args: args.into_iter().map(Into::into).collect() }
    }
}

/// What an [`Agent`] starts, and where its ranks' output goes.
#[derive(Clone)]
pub struct AgentConfig {
    /// What every rank runs.
    pub program: Program,
    /// What runs [`guard_main`], usually this very program with a hidden subcommand.
    pub guard: Program,
    /// Where `rank<k>.log` is appended to; it exists.
    pub run_dir: PathBuf,
    /// Where lines for people go.
    pub sink: Sink,
    /// Where the lines that ranks write go beside their logs, if anywhere. What it gets is limited
    /// ([`limits::SHOWN_LINES`], [`limits::SHOWN_BYTES`]), with a count of what was left out.
    pub shown: Option<RankSink>,
}

/// One rank to be started.
pub struct Launch {
    /// Who.
    pub rank: Rank,
    /// Which life.
    pub incarnation: Incarnation,
    /// What its environment holds beside this process's own and `FLODL_KEY_FD`.
    pub env: Vec<(&'static str, OsString)>,
    /// What it reads from `FLODL_KEY_FD`, as [`RankKeys::to_bytes`] writes them.
    pub keys: RankKeys,
    /// Memory that it shares with its relay: its lane, the bells, the board. Their descriptors are inherited, and their
    /// numbers in `FLODL_SHM_FDS`.
    pub shared: Option<[OwnedFd; 3]>,
}

/// What became of a rank's process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It runs.
    Started {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// Its process id, which is also its group's.
        pid: u32,
    },
    /// It could not be started.
    NotStarted {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// A sentence that says what to do.
        error: String,
    },
    /// It has ended, and with it every process of its group.
    Exited {
        /// Who.
        rank: Rank,
        /// Which life.
        incarnation: Incarnation,
        /// How.
        status: ExitStatus,
        /// The last lines it wrote.
        last_lines: String,
    },
}

/// Why a host's processes cannot be looked after.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The guard did not start, so nothing would end the ranks after this process's death.
    #[error("cannot start the guard process {program:?}: {source}")]
    Guard {
        /// What was to be run.
        program: OsString,
        /// Why it failed.
        source: io::Error,
    },
    /// No thread for starting ranks.
    #[error("cannot start the thread that starts ranks: {0}; the limit of threads may be reached (ulimit -u)")]
    Thread(io::Error),
}

/// Owns the processes of a host. Dropping it kills every group and waits for their end.
pub struct Agent {
    shared: Arc<Shared>,
    launches: Option<mpsc::Sender<Launch>>,
    spawner: Option<JoinHandle<()>>,
}

impl Agent {
    /// Starts the guard and the thread that starts ranks. What becomes of the ranks is sent to `events`.
    ///
    /// # Errors
    ///
    /// When guard or thread cannot be started.
    pub fn start(config: AgentConfig, events: Sender<Event>) -> Result<Agent, AgentError> {
        let guard = Guard::start(&config.guard)
            .map_err(|source| AgentError::Guard { program: config.guard.path.clone(), source })?;
        let shared = Arc::new(Shared {
            config,
            events,
            guard,
            living: Mutex::new(Living { groups: BTreeMap::new(), closed: false }),
            fewer: Condvar::new(),
        });
        // As long as the one admission of this host, whose length the wire bounds: a limit that made the relay's task wait
        // here could wait for a spawner that waits for that task to take its events.
        let (launches, queue) = mpsc::channel::<Launch>();
        let spawner = thread::Builder::new().name("flodl-spawner".to_owned()).spawn({
            let shared = Arc::clone(&shared);
            move || queue.into_iter().for_each(|launch| process::launch(&shared, launch))
        });
        let spawner = spawner.map_err(AgentError::Thread)?;
        Ok(Agent { shared, launches: Some(launches), spawner: Some(spawner) })
    }

    /// Starts a rank; the outcome comes as an [`Event`].
    pub fn launch(&self, launch: Launch) {
        let queued = self.launches.as_ref().is_some_and(|launches| launches.send(launch).is_ok());
        debug_assert!(queued, "the spawner lives as long as the agent");
    }

    /// Kills a rank's group, if that life's process runs. Its end comes as an [`Event`].
    pub fn kill(&self, rank: Rank, incarnation: Incarnation) {
        let living = self.shared.living();
        if let Some(group) = living.groups.get(&(rank, incarnation)) {
            kill_group(*group);
        }
    }

    /// Kills every group. Their ends come as [`Event`]s.
    pub fn kill_all(&self) {
        self.shared.living().groups.values().copied().for_each(kill_group);
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        {
            let mut living = self.shared.living();
            living.closed = true;
            living.groups.values().copied().for_each(kill_group);
        }
        self.launches = None;
        if let Some(spawner) = self.spawner.take()
            && spawner.join().is_err()
        {
            (self.shared.config.sink)("the thread that starts ranks panicked");
        }
        let living = self.shared.living();
        let waited =
            self.shared.fewer.wait_timeout_while(living, limits::KILL_WAIT, |living| !living.groups.is_empty());
        let (living, _) = waited.unwrap_or_else(PoisonError::into_inner);
        for ((rank, _), group) in &living.groups {
            let pid = group.as_raw_nonzero();
            (self.shared.config.sink)(&format!("{rank} (process {pid}) does not end even after SIGKILL"));
        }
        drop(living);
        self.shared.guard.end();
    }
}

/// What the agent, its spawner and its waiters share.
struct Shared {
    config: AgentConfig,
    events: Sender<Event>,
    guard: Guard,
    living: Mutex<Living>,
    /// Signalled when a group is gone.
    fewer: Condvar,
}

/// The groups that may be killed by id: each leader is alive or not yet reaped, so the id is still its own.
struct Living {
    groups: BTreeMap<(Rank, Incarnation), Pid>,
    /// The agent is going: nothing is started any more.
    closed: bool,
}

impl Shared {
    fn living(&self) -> MutexGuard<'_, Living> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the relay. When nobody listens any more there is nothing to tell.
    fn tell(&self, event: Event) {
        if self.events.send_blocking(event).is_err() {
            self.events.close();
        }
    }
}

/// Kills a group. That it is gone already is what was wanted.
fn kill_group(group: Pid) {
    match kill_process_group(group, Signal::KILL) {
        Ok(()) | Err(_) => {}
    }
}
