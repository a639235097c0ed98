//! The `flodl` program as a function, so that a controller with another guard is ten lines.
//!
//! This is the only place that knows coordinator, relay, root and monitor at once: `controller` puts them together for
//! `flodl run` and `flodl serve`, `join` starts a relay alone.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a program has a clock, threads and signals")]

mod args;
mod console;
mod controller;
mod failure;
mod hooks;
mod join;
mod journal;
mod local;
mod look;
mod painter;
mod plan;
mod recorded;
mod root;
mod rundir;
mod saver;
mod signals;
mod sink;
mod summary;
mod ticket;

use args::{Cli, Command};
use clap::Parser;
use console::{Console, Tidy};
use failure::Failure;
use flodl_elche::Guard;
use flodl_relay::root::Outer;
use flodl_wire::message::record::EpochMetrics;
use look::{Look, Tone};
use std::env;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

pub use hooks::{Evaluated, Hook};

/// The exit status of a run that failed.
pub const FAILED: u8 = 1;
/// The exit status of a command line that cannot be followed.
pub const USAGE: u8 = 2;

/// What a program of one's own may put in place of the defaults.
#[derive(Default)]
pub struct Extensions {
    /// Decides whether windows may grow; `None`: windows grow towards the overhead target alone.
    pub guard: Option<Box<dyn Guard>>,
    /// Makes the consensus of an average; `None`: the average is the consensus.
    pub outer: Option<Box<dyn Outer>>,
    /// Hears how each epoch went that is over. It is called from the thread that keeps the records: what takes long there
    /// leaves records out, and never holds training up.
    pub on_epoch: Option<Hook<EpochMetrics>>,
    /// Hears what each evaluation found, in the same way.
    pub on_eval: Option<Hook<Evaluated>>,
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extensions")
            .field("guard", &self.guard.as_ref().map(|guard| guard.name()))
            .field("outer", &self.outer)
            .field("on_epoch", &self.on_epoch.is_some())
            .field("on_eval", &self.on_eval.is_some())
            .finish()
    }
}

/// Runs the command line of this process and gives its exit status: 0 done, 1 failed, 2 usage, 3 done but degraded, 4
/// stopped early and saved.
///
/// A program with another guard, which keeps a list of its evaluations:
///
/// ```no_run
/// use flodl_coord::cli::{Extensions, main};
/// use flodl_elche::NoGuard;
///
/// fn program() -> std::process::ExitCode {
///     main(Extensions {
///         guard: Some(Box::new(NoGuard)),
///         on_eval: Some(Box::new(|found| println!("{}: {:?}", found.version, found.evaluation))),
///         ..Extensions::default()
///     })
/// }
/// ```
#[must_use]
pub fn main(extensions: Extensions) -> ExitCode {
    run(env::args_os(), extensions)
}

fn run(args: impl IntoIterator<Item = OsString>, extensions: Extensions) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output and is a success. A closed terminal cannot be told about itself.
            error.print().ok();
            return if error.use_stderr() { USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    // The guard has nobody to speak to, and as few threads as it can.
    if let Command::Guard(_) = cli.command {
        return flodl_relay::agent::guard_main();
    }
    let console = match Console::stderr(Look::of_stderr(cli.color, cli.quiet)) {
        Ok(console) => console,
        Err(error) => {
            let text = format!("flodl: no thread for the console can be started: {error}; see ulimit -u\n");
            io::stderr().write_all(text.as_bytes()).ok();
            return FAILED.into();
        }
    };
    let tidy = Tidy(&console);
    let done = follow(cli.command, extensions, &console);
    let status = done.unwrap_or_else(|Failure { exit, text }| {
        console.tell(Tone::Bad, &text);
        exit.into()
    });
    drop(tidy);
    status
}

fn follow(command: Command, extensions: Extensions, console: &Console) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => controller::run(&args, extensions, console),
        Command::Serve(args) => controller::serve(&args, extensions, console),
        Command::Ticket(args) => write_ticket(&args),
        Command::Join(args) => join::join(&args, console),
        Command::Plan(args) => plan::plan(&args).map(answered),
        Command::Replay(args) => recorded::replay(&args).map(answered),
        Command::Guard(_) => Ok(flodl_relay::agent::guard_main()),
    }
}

fn write_ticket(args: &args::TicketArgs) -> Result<ExitCode, Failure> {
    let here = env::current_dir().map_err(|error| Failure::failed(format!("there is no current folder: {error}")))?;
    let told = ticket::write(args, &here).map_err(Failure::failed)?;
    tell(told.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// An answer is all there was to do.
fn answered(text: String) -> ExitCode {
    tell(&text);
    ExitCode::SUCCESS
}

/// Writes an answer to standard output; where nobody reads it, nobody misses it.
fn tell(text: &str) {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).ok();
}
