//! One rank's process: how it is started, and who waits for its end.

use super::allocator;
use super::guard::Announcer;
use super::output::{Log, Output};
use super::{Event, Launch, Shared, kill_group};
use flodl_wire::message::report::ExitStatus;
use flodl_wire::{Incarnation, Rank};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::set_parent_process_death_signal;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, getppid, setsid, waitid};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

/// Starts a rank and tells what became of it. Runs on the spawner's thread.
pub(super) fn launch(shared: &Arc<Shared>, launch: Launch) {
    let (rank, incarnation) = (launch.rank, launch.incarnation);
    if let Err(error) = start(shared, launch) {
        shared.tell(Event::NotStarted { rank, incarnation, error });
    }
}

/// A process that runs, with its output followed.
struct Running {
    rank: Rank,
    incarnation: Incarnation,
    child: Child,
    group: Pid,
    output: Output,
}

fn start(shared: &Arc<Shared>, launch: Launch) -> Result<(), String> {
    let (rank, incarnation) = (launch.rank, launch.incarnation);
    let path = shared.config.run_dir.join(format!("rank{}.log", rank.0));
    let log = Log::open(&path).map_err(|error| format!("cannot write {rank}'s log {}: {error}", path.display()))?;
    let resources = |error: io::Error| {
        format!("cannot start {rank}: {error}; the limit of open files or threads may be reached (ulimit -a)")
    };
    let (reader, writer) = io::pipe().map_err(resources)?;
    let output = Output::follow(rank, reader, log, &shared.config).map_err(resources)?;
    let keys = key_pipe(&launch).map_err(resources)?;
    let mut command = Command::new(&shared.config.program.path);
    command.args(&shared.config.program.args).envs(launch.env.iter().map(|(name, value)| (name, value)));
    command.envs(allocator::settings(|name| std::env::var_os(name).is_some()).iter().copied());
    command.env("FLODL_KEY_FD", keys.as_raw_fd().to_string());
    if let Some(shared) = &launch.shared {
        command.env("FLODL_SHM_FDS", shared.each_ref().map(|file| file.as_raw_fd().to_string()).join(","));
    }
    command.stdin(Stdio::null()).stdout(writer.try_clone().map_err(resources)?).stderr(writer);
    let guard = shared.guard.announcer();
    let guard =
        guard.map_err(|error| format!("cannot start {rank}: {error}, and without it ranks could be orphaned"))?;
    let (announced, announce) = io::pipe().map_err(resources)?;
    let entrance = Entrance { parent: getpid(), keys, shared: launch.shared, guard, announce };
    // SAFETY: `enter` makes system calls only: it neither allocates nor locks, which is what a forked child may do.
    unsafe { command.pre_exec(move || entrance.enter()) };

    // From here to the list of the living nothing may come between: a kill of everything waits for the lock.
    let mut living = shared.living();
    if living.closed {
        return Err(format!("{rank} was not started: the relay is ending"));
    }
    let spawned = command.spawn();
    drop(command);
    let child = spawned.map_err(|error| {
        disown(shared, announced);
        let program = &shared.config.program.path;
        format!("cannot start {program:?} as {rank}: {error}; check the program's path and that it may be executed")
    })?;
    let pid = child.id();
    let group = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(|| format!("{rank} has no process id"))?;
    living.groups.insert((rank, incarnation), group);
    drop(living);
    shared.tell(Event::Started { rank, incarnation, pid });

    let running = Running { rank, incarnation, child, group, output };
    let waiter = thread::Builder::new().name(format!("flodl-wait-{}", rank.0)).spawn({
        let shared = Arc::clone(shared);
        move || wait(&shared, running)
    });
    waiter.map(drop).map_err(|error| {
        kill_group(group);
        shared.living().groups.remove(&(rank, incarnation));
        resources(error)
    })
}

/// A pipe that holds the rank's keys and nothing else: they can be read once.
fn key_pipe(launch: &Launch) -> io::Result<PipeReader> {
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(&*launch.keys.to_bytes())?;
    Ok(reader)
}

/// What a forked child does before it becomes the rank's program.
struct Entrance {
    parent: Pid,
    keys: PipeReader,
    shared: Option<[OwnedFd; 3]>,
    guard: Announcer,
    /// Tells the parent what the guard was told, in case that the program then does not start.
    announce: PipeWriter,
}

impl Entrance {
    /// A session and group of its own, which the guard knows; death with its parent's thread; the descriptors kept that are
    /// meant for it.
    fn enter(&self) -> io::Result<()> {
        let group = setsid()?;
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above; then nobody sends the signal.
        if getppid() != Some(self.parent) {
            return Err(Errno::SRCH.into());
        }
        fcntl_setfd(self.keys.as_fd(), FdFlags::empty())?;
        for file in self.shared.iter().flatten() {
            fcntl_setfd(file, FdFlags::empty())?;
        }
        rustix::io::write(&self.announce, &group.as_raw_nonzero().get().to_ne_bytes())?;
        self.guard.announce(group)
    }
}

/// A program did not start, and its process is gone: the guard must forget the group that it may have announced.
fn disown(shared: &Shared, mut announced: PipeReader) {
    let mut id = [0; 4];
    if announced.read_exact(&mut id).is_ok()
        && let Some(group) = Pid::from_raw(i32::from_ne_bytes(id))
    {
        shared.guard.remove(group);
    }
}

/// Waits for a rank's end, ends what it left behind, and tells.
fn wait(shared: &Shared, mut running: Running) {
    // The process stays unreaped, so that its id is nobody else's while the group is killed and forgotten.
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    while matches!(waitid(WaitId::Pid(running.group), ended), Err(Errno::INTR)) {}
    kill_group(running.group);
    let mut living = shared.living();
    living.groups.remove(&(running.rank, running.incarnation));
    shared.guard.remove(running.group);
    drop(living);
    let status = match running.child.wait() {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => ExitStatus::Code(code),
            (None, Some(signal)) => ExitStatus::Signal(signal),
            (None, None) => ExitStatus::Unknown,
        },
        Err(_) => ExitStatus::Unknown,
    };
    shared.fewer.notify_all();
    let last_lines = running.output.last_lines();
    let (rank, incarnation) = (running.rank, running.incarnation);
    shared.tell(Event::Exited { rank, incarnation, status, last_lines });
}
