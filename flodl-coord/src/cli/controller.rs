//! `flodl run` and `flodl serve`: the controller put together, and everything it leaves behind.

use super::args::{DutyArgs, RunArgs, SchedulingArgs, ServeArgs, TrainingArgs};
use super::console::Console;
use super::failure::Failure;
use super::hooks::Hooks;
use super::journal::{self, FileStore, Lock, Recorder};
use super::look::Tone;
use super::root::{Reduction, Root};
use super::rundir::RunDir;
use super::saver::{self, Saver};
use super::signals::Requests;
use super::sink::Watched;
use super::ticket::Credentials;
use super::{Extensions, FAILED, local, sink, summary};
use crate::journal::{Entry, Image, Journal, Restored, Start};
use crate::shell::{Acceptor, Clock, Driver, Gate, Ports, limits, settle};
use crate::{Config, Coordinator, Deadlines, Duties, Duty, Membership, Scheduling, Slowing};
use async_channel::bounded;
use async_io::Async;
use core::cell::Cell;
use core::fmt::Display;
use core::num::NonZeroU32;
use core::str::FromStr;
use core::time::Duration;
use flodl_elche::{AnchorSettings, Guard, GuardKind};
use flodl_monitor::Store;
use flodl_relay::coding::capabilities;
use flodl_relay::root::{Codec, Outer, OuterRule};
use flodl_wire::{Rank, RunId, Secret};
use flodl_worker::checkpoint::{OUTER_FILE, read_latest, read_outer};
use smol::future;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use zeroize::Zeroizing;

/// How long after the end connections may still take what was queued for them.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The file of a run's folder that names its outer optimizer, where one was asked for.
const OUTER: &str = "outer";

/// The same of how sums and averages travel between hosts.
const WIRE: &str = "wire";

/// `flodl run`.
pub(crate) fn run(args: &RunArgs, extensions: Extensions, console: &Console) -> Result<ExitCode, Failure> {
    let config = config(&args.training, args.ranks)?;
    let bound = bind("127.0.0.1:0")?;
    let setup = Setup::new(config, &args.training, console)?;
    let host = local::Host::new(&args.program, (args.ranks, args.restarts), &setup)?;
    Controller::open(setup, bound, None, extensions)?.run(Some(host))
}

/// `flodl serve`.
pub(crate) fn serve(args: &ServeArgs, extensions: Extensions, console: &Console) -> Result<ExitCode, Failure> {
    let Some(ranks) = args.ranks else {
        let dir = args.resume_journal.as_deref().ok_or_else(|| Failure::usage("give -n, the ranks of the run"))?;
        return resume(dir, extensions, console);
    };
    let config = config(&args.training, ranks)?;
    let bound = bind(&args.listen)?;
    let setup = Setup::new(config, &args.training, console)?;
    let lock = Lock::take(&setup.dir).map_err(Failure::failed)?;
    let journal = Journal::new(FileStore::new(&setup.dir), Image::default());
    let past = Past { journal, lock, generation: 0, restored: None };
    let controller = Controller::open(setup, bound, Some(past), extensions)?;
    let dir = controller.setup.dir.path().display();
    console.say(&format!("waiting for hosts; let one in with: flodl ticket HOST --run-dir {dir}"));
    // Over NCCL the ranks alone hold the consensus, and there is nothing to go on from.
    if controller.setup.config.mode.is_cpu() {
        console.say(&format!("should this controller die: flodl serve --resume-journal {dir}"));
    }
    controller.run(None)
}

/// `flodl serve --resume-journal`: another controller for a run whose own has died.
fn resume(path: &Path, extensions: Extensions, console: &Console) -> Result<ExitCode, Failure> {
    let dir = RunDir::open(path)?;
    let lock = Lock::take(&dir).map_err(Failure::failed)?;
    let Credentials { secret, run_id, .. } = Credentials::read(&dir).map_err(Failure::failed)?;
    let (image, restored, torn) = journal::restored(&dir, run_id).map_err(Failure::failed)?;
    let config = restored.start.config.clone();
    let generation = restored.start.generation + 1;
    console.say(&format!("run {} goes on, everything it leaves is in {}", config.run_id, dir.path().display()));
    if torn > 0 {
        console.say(&format!("the last {torn} bytes of its journal were not finished and count for nothing"));
    }
    let bound = bind(&restored.start.address)?;
    let guard = extensions.guard.is_none().then_some(config.scheduling.guard);
    let keep = restored.start.keep_checkpoints;
    let outer: Option<OuterRule> = extensions.outer.is_none().then(|| asked(&dir, OUTER)).transpose()?.flatten();
    let wire = asked(&dir, WIRE)?.unwrap_or_default();
    let past = kept_outer(&dir);
    if extensions.outer.is_some() || outer.is_some_and(|rule| rule != OuterRule::Average) {
        let name = outer.map_or_else(|| "of the program".to_owned(), |rule| rule.to_string());
        let from =
            past.as_ref().map_or("begins anew".to_owned(), |(version, _)| format!("is that of version {version}"));
        console.say(&format!("outer optimizer {name}: its momentum {from}"));
    }
    let past_outer = past.map(|(_, state)| state).unwrap_or_default();
    let console = console.clone();
    let setup = Setup { config, secret, summary: None, guard, outer, past_outer, wire, keep, console, dir };
    let journal = Journal::new(FileStore::new(&setup.dir), image);
    let past = Past { journal, lock, generation, restored: Some(Box::new(restored)) };
    Controller::open(setup, bound, Some(past), extensions)?.run(None)
}

/// The newest state of the outer optimizer that a run has written down, and the version that it belongs to.
fn kept_outer(dir: &RunDir) -> Option<(u64, Vec<u8>)> {
    let set = read_latest(&dir.file(saver::FOLDER)).ok().map(|found| found.path.join(OUTER_FILE));
    let files = set.into_iter().chain([dir.file(OUTER_FILE)]);
    files.filter_map(|file| read_outer(&file).ok()).max_by_key(|(version, _)| *version)
}

/// What the run in a folder was asked to have, in that file of it.
fn asked<T: FromStr<Err: Display>>(dir: &RunDir, name: &str) -> Result<Option<T>, Failure> {
    let file = dir.file(name);
    if !file.exists() {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&dir.read(name).map_err(Failure::failed)?).into_owned();
    let damaged = |error: T::Err| Failure::failed(format!("{}: {error}", file.display()));
    text.trim().parse().map(Some).map_err(damaged)
}

/// What is written down of a run, for the controller after this one; and from the one before it.
struct Past {
    journal: Journal<FileStore>,
    lock: Lock,
    generation: u64,
    restored: Option<Box<Restored>>,
}

/// A run's settings and its folder.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) secret: Secret,
    pub(crate) dir: RunDir,
    pub(crate) summary: Option<PathBuf>,
    /// The guard asked for.
    pub(crate) guard: Option<GuardKind>,
    /// The outer optimizer asked for.
    pub(crate) outer: Option<OuterRule>,
    /// The state that it had.
    pub(crate) past_outer: Vec<u8>,
    /// How sums and averages travel between hosts.
    pub(crate) wire: Codec,
    /// Checkpoint sets that are kept.
    pub(crate) keep: NonZeroU32,
    pub(crate) console: Console,
}

impl Setup {
    /// Makes the run's folder, and says what people should know before it starts.
    fn new(config: Config, args: &TrainingArgs, console: &Console) -> Result<Setup, Failure> {
        let short: String = config.run_id.to_string().chars().take(8).collect();
        let path = args.run_dir.clone().unwrap_or_else(|| PathBuf::from(format!("flodl-run-{short}")));
        let dir = RunDir::create(&path)?;
        console.say(&format!("run {}, everything it leaves is in {}", config.run_id, dir.path().display()));
        console.say(&Deadlines::from_patience(config.patience).to_string());
        emulations(&config.slow).for_each(|text| console.say(&text));
        let secret = secret()?;
        let (summary, guard) = (args.summary.clone(), args.scheduling.guard);
        let (keep, wire) = (args.duties.keep_checkpoints, args.wire);
        if wire != Codec::F32 {
            console.say(&format!("between hosts sums and averages travel as {wire} differences"));
            dir.write(WIRE, format!("{wire}\n").as_bytes()).map_err(Failure::failed)?;
        }
        if let Some(rule) = args.outer {
            dir.write(OUTER, format!("{rule}\n").as_bytes()).map_err(Failure::failed)?;
        }
        let (outer, past_outer, console) = (args.outer, Vec::new(), console.clone());
        Ok(Setup { config, secret, dir, summary, guard, outer, past_outer, wire, keep, console })
    }
}

/// The settings of a new run, checked.
fn config(args: &TrainingArgs, ranks: u32) -> Result<Config, Failure> {
    let factors = by_rank("--slow", &args.slow)?;
    let config = Config {
        run_id: run_id()?,
        world_size: ranks,
        min_ranks: args.min_ranks,
        mode: args.mode,
        epochs: args.epochs,
        epoch_splits: args.epoch_splits,
        batch_size: args.batch_size,
        seed: args.seed,
        patience: args.patience,
        slow: Slowing { step_at_least: args.step_ms, factors },
        membership: Membership { max_failure: args.max_failure, leave_grace: args.leave_grace },
        scheduling: Scheduling { deterministic: args.deterministic, ..scheduling(&args.scheduling)? },
        duties: duties(&args.duties),
    };
    config.validate().map_err(Failure::usage)?;
    fits_nccl(args)?;
    Ok(config)
}

/// What averages over NCCL are not made with is refused: ranks are not told of it.
fn fits_nccl(args: &TrainingArgs) -> Result<(), Failure> {
    let outer = args.outer.filter(|rule| *rule != OuterRule::Average).map(|rule| format!("--outer {rule}"));
    let setting = outer.or_else(|| (args.wire != Codec::F32).then(|| format!("--wire {}", args.wire)));
    match setting.filter(|_| !args.mode.is_cpu()) {
        Some(setting) => Err(Failure::usage(format!(
            "{setting} contradicts --mode {}: averages over NCCL are plain; leave it out or take a mode over the CPU",
            args.mode
        ))),
        None => Ok(()),
    }
}

/// Who evaluates and saves, and how often, as the command line says.
fn duties(args: &DutyArgs) -> Duties {
    Duties {
        evaluation: Duty { by: args.eval_rank, epochs: args.eval_epochs, rounds: args.eval_rounds },
        checkpoint: Duty { by: args.checkpoint_rank, epochs: args.checkpoint_epochs, rounds: args.checkpoint_rounds },
    }
}

/// How windows are planned, as the command line says.
pub(crate) fn scheduling(args: &SchedulingArgs) -> Result<Scheduling, Failure> {
    let anchor = AnchorSettings {
        start: args.anchor,
        min: args.min_anchor,
        max: args.max_anchor,
        overhead_target: args.overhead_target,
    };
    let speeds = by_rank("--speed", &args.speed)?;
    let guard = args.guard.unwrap_or_default();
    Ok(Scheduling { guard, speeds, anchor, max_batch_diff: args.max_batch_diff, ..Scheduling::default() })
}

/// What an option that may be repeated says of each rank, once.
fn by_rank(option: &str, list: &[(Rank, f64)]) -> Result<BTreeMap<Rank, f64>, Failure> {
    let mut map = BTreeMap::new();
    for &(rank, value) in list {
        if let Some(earlier) = map.insert(rank, value) {
            let text = format!("{option} names {rank} twice, with {earlier} and {value}: give one number a rank");
            return Err(Failure::usage(text));
        }
    }
    Ok(map)
}

/// The program's own guard where it brings one, else the one asked for.
fn guard(own: Option<Box<dyn Guard>>, asked: Option<GuardKind>) -> Result<Box<dyn Guard>, Failure> {
    match (own, asked) {
        (Some(own), Some(asked)) => {
            let text = format!(
                "--guard {asked} contradicts this program, which brings the guard {:?}: leave it out",
                own.name()
            );
            Err(Failure::usage(text))
        }
        (Some(own), None) => Ok(own),
        (None, asked) => Ok(asked.unwrap_or_default().build(1.0)),
    }
}

/// The program's own outer optimizer where it brings one, else the one asked for.
fn outer(own: Option<Box<dyn Outer>>, asked: Option<OuterRule>) -> Result<Option<Box<dyn Outer>>, Failure> {
    match (own, asked) {
        (Some(own), Some(asked)) => {
            let text = format!(
                "--outer {asked} contradicts this program, which brings an outer optimizer: leave it out ({own:?})"
            );
            Err(Failure::usage(text))
        }
        (own, asked) => Ok(own.or_else(|| asked.map(OuterRule::optimizer))),
    }
}

/// What makes ranks slower on purpose, so that nobody takes such figures for a device's.
fn emulations(slow: &Slowing) -> impl Iterator<Item = String> {
    let least = slow.step_at_least.map(|least| format!("emulation: every step takes at least {least:?}"));
    let factor = |(rank, factor): (&Rank, &f64)| format!("emulation: the steps of {rank} take {factor} times as long");
    least.into_iter().chain(slow.factors.iter().map(factor).collect::<Vec<_>>())
}

fn run_id() -> Result<RunId, Failure> {
    let mut bytes = [0; 16];
    randomise(&mut bytes)?;
    Ok(RunId(bytes))
}

/// A new secret; its bytes are overwritten here whatever happens.
fn secret() -> Result<Secret, Failure> {
    let mut bytes = Zeroizing::new([0; 32]);
    randomise(&mut bytes[..])?;
    Ok(Secret::from_bytes(*bytes))
}

fn randomise(bytes: &mut [u8]) -> Result<(), Failure> {
    getrandom::fill(bytes).map_err(|error| Failure::failed(format!("the system gives no random bytes: {error}")))
}

/// Coordinator and door of one run, ready to start.
struct Controller {
    setup: Setup,
    core: Coordinator,
    clock: Clock,
    gate: Arc<Gate>,
    listener: Async<TcpListener>,
    requests: Requests,
    own: Own,
    earlier: Store,
    /// Held to the end, where other hosts may join.
    journal: Option<(Journal<FileStore>, Lock)>,
}

/// What the program brings for others than the coordinator.
struct Own {
    outer: Option<Box<dyn Outer>>,
    hooks: Hooks,
}

impl Controller {
    /// Says where it listens, to people and in the run directory. With a `past` other hosts may join, and the run survives
    /// its controller.
    fn open(
        setup: Setup,
        (listener, address): (Async<TcpListener>, SocketAddr),
        past: Option<Past>,
        extensions: Extensions,
    ) -> Result<Controller, Failure> {
        let credentials =
            Credentials { run_id: setup.config.run_id, secret: setup.secret.clone(), address: address.to_string() };
        credentials.write(&setup.dir).map_err(Failure::failed)?;
        setup.console.say(&format!("listening on {address}"));
        let (earlier, until) = sink::earlier(setup.dir.path());
        let clock = Clock::from(until);
        let Extensions { guard: own, outer, on_epoch, on_eval } = extensions;
        if let Some(own) = own.as_ref().filter(|_| setup.config.scheduling.deterministic) {
            let text = format!("--deterministic contradicts this program, which brings the guard {:?}", own.name());
            return Err(Failure::usage(text));
        }
        if let Some(outer) = outer.as_ref().filter(|_| !setup.config.mode.is_cpu()) {
            let mode = setup.config.mode;
            let text = format!("--mode {mode} contradicts this program, which brings an outer optimizer ({outer:?})");
            return Err(Failure::usage(text));
        }
        let (guard, outer) = (guard(own, setup.guard)?, self::outer(outer, setup.outer)?);
        let generation = past.as_ref().map_or(0, |past| past.generation);
        let gate = Gate::new(setup.secret.clone(), setup.config.run_id, setup.config.patience, past.is_some());
        let gate = Arc::new(gate.of_generation(generation).choosing(capabilities(setup.wire)));
        let (core, journal) = match past {
            None => (Coordinator::with_guard(setup.config.clone(), guard, clock.now()), None),
            Some(Past { mut journal, lock, restored, .. }) => {
                let (run_id, config, address) = (setup.config.run_id, setup.config.clone(), address.to_string());
                let keep_checkpoints = setup.keep;
                let start = Start { run_id, generation, address, keep_checkpoints, config: config.clone() };
                let unwritten = |error| Failure::failed(format!("the journal cannot be written: {error}"));
                journal.write(Entry::Start(Box::new(start))).map_err(unwritten)?;
                let core = match restored {
                    Some(restored) => Coordinator::resume(*restored, generation, guard, clock.now()),
                    None => Coordinator::with_guard(config, guard, clock.now()).map(|core| core.recording(generation)),
                };
                (core, Some((journal, lock)))
            }
        };
        let (core, requests) = (core.map_err(Failure::usage)?, Requests::listen()?);
        let own = Own { outer, hooks: Hooks { on_epoch, on_eval } };
        Ok(Controller { core, clock, gate, listener, requests, own, earlier, journal, setup })
    }

    /// Runs to the end, and leaves what a run leaves.
    fn run(self, host: Option<local::Host>) -> Result<ExitCode, Failure> {
        let Controller { mut setup, core, clock, gate, listener, requests, own, earlier, journal } = self;
        let patience = setup.config.patience;
        let (record, records) = bounded(limits::RECORDS);
        let watched = Watched { earlier, dir: setup.dir.path().to_owned(), is_local: host.is_some(), clock };
        let monitor = sink::start(records, watched, (setup.console.clone(), own.hooks))
            .map_err(|error| Failure::failed(format!("the monitor's thread cannot be started: {error}")))?;
        let (event, events) = bounded(limits::EVENTS);
        let (link, links) = bounded(1);
        let (busy, idle) = bounded(1);
        let acceptor = Acceptor::new(gate, clock, event.clone(), link, &busy);
        let past = std::mem::take(&mut setup.past_outer);
        let keep = journal.is_some().then(|| setup.dir.file(OUTER_FILE));
        let reduction = Reduction { outer: own.outer, past, keep, codec: setup.wire };
        let root = Root::start(patience, reduction, event.clone())?;
        let (saver, desk) = Saver::new(setup.config.run_id, &setup.dir, setup.keep, root.clone());
        let (journal, lock) = journal.unzip();
        let recorder = journal.map(|journal| Recorder::start(journal, event.clone())).transpose()?;
        let journal = recorder.as_ref().map(Recorder::entries);
        let ports = Ports { records: record, root: Box::new(root.clone()), saves: Box::new(desk), journal };
        let driver = Driver::new(core, clock, ports);
        let tasks = [
            smol::spawn(acceptor.clone().listen(listener)),
            smol::spawn(root.clone().serve_all(links)),
            smol::spawn(saver.save_all(event.clone())),
        ];
        let host = host.map(|host| host.start(acceptor, root)).transpose()?;
        let asked = Cell::new(0);
        let exit = smol::block_on(async {
            let insisted = async {
                requests.forward(event, &asked).await;
                i32::from(FAILED)
            };
            let exit = future::or(driver.drive(events), insisted).await;
            drop((tasks, busy));
            settle(&idle, LAST_WORDS).await;
            if let Some(host) = host {
                // Somebody who asked twice does not want ranks to be waited for.
                let wait = if asked.get() < 2 { patience + LAST_WORDS } else { Duration::ZERO };
                host.end(wait).await;
            }
            exit
        });
        recorder.into_iter().for_each(Recorder::finish);
        drop(lock);
        let seen = monitor.join();
        setup.console.finish();
        match seen {
            Ok(seen) => summary::leave(&seen, exit, &setup),
            Err(_) => setup.console.tell(Tone::Bad, "the monitor's thread panicked: there is no summary"),
        }
        Ok(u8::try_from(exit).unwrap_or(FAILED).into())
    }
}

/// Listens on `address`, `HOST:PORT`.
fn bind(address: &str) -> Result<(Async<TcpListener>, SocketAddr), Failure> {
    let unresolved =
        |error| Failure::failed(format!("--listen {address} is not an address of this machine as HOST:PORT ({error})"));
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(unresolved)?.collect();
    let listen = || {
        let listener = TcpListener::bind(&addresses[..])?;
        let address = listener.local_addr()?;
        Ok((Async::new(listener)?, address))
    };
    listen().map_err(|error: std::io::Error| {
        Failure::failed(format!("cannot listen on {address}: {error}; give another address with --listen"))
    })
}
