//! The command line: what can be asked of `flodl`, and the sentences for what cannot.

use super::look::Color;
use crate::{Elect, MaxFailure};
use clap::{Args, Parser, Subcommand, ValueEnum};
use core::num::{NonZeroU32, NonZeroU64};
use core::time::Duration;
use flodl_elche::{GuardKind, Mode};
use flodl_relay::root::{Codec, OuterRule};
use flodl_wire::limits::RANKS_MAX;
use flodl_wire::{HostId, Rank};
use std::ffi::OsString;
use std::path::PathBuf;

/// Trains one model over unequal devices.
#[derive(Debug, Parser)]
#[command(name = "flodl", version, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// When to use colours [default: auto, which is on a terminal unless NO_COLOR is set]
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        global = true,
        hide_possible_values = true,
        hide_default_value = true,
        default_value_t
    )]
    pub(crate) color: Color,
    /// Show neither progress nor what ranks write, only what needs attention (and the summary)
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train on this machine: the controller and all ranks in one command
    Run(RunArgs),
    /// Run the controller of a training run whose ranks come from `flodl join`
    Serve(ServeArgs),
    /// Write the ticket with which one host joins a run
    Ticket(TicketArgs),
    /// Start this host's ranks and join them to the run that a ticket names
    Join(JoinArgs),
    /// Forecast what a cluster would do in each mode
    Plan(PlanArgs),
    /// Plan a finished run's windows again with other settings, in computed time
    Replay(ReplayArgs),
    /// Watch over a relay's processes (started by `flodl` itself)
    #[command(hide = true)]
    Guard(GuardArgs),
}

/// `flodl run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Ranks to start
    #[arg(short = 'n', long = "ranks", value_name = "RANKS", value_parser = ranks(), allow_negative_numbers = true)]
    pub(crate) ranks: u32,
    /// Start each rank again up to so many times after its end; it waits 1 s, then 2 s, ... up to 60 s before each
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0)]
    pub(crate) restarts: u32,
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
}

/// `flodl serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Ranks of the whole run, over all hosts
    #[arg(
        short = 'n',
        long = "ranks",
        value_name = "TOTAL",
        value_parser = ranks(),
        allow_negative_numbers = true,
        required_unless_present = "resume_journal"
    )]
    pub(crate) ranks: Option<u32>,
    /// Where to listen for hosts; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    pub(crate) listen: String,
    /// Go on with the run in this run directory, whose controller has died: at its address, with its settings, and with
    /// the ranks that its hosts still run. Start it within the patience, for so long they wait
    #[arg(long, value_name = "RUN_DIR", conflicts_with_all = ["ranks", "listen", "TrainingArgs"])]
    pub(crate) resume_journal: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
}

/// `flodl ticket`.
#[derive(Debug, Args)]
pub(crate) struct TicketArgs {
    /// Name of the host: up to 16 letters, digits, '-', '_' and '.'; each host of a run needs its own
    #[arg(value_name = "HOST", value_parser = host)]
    pub(crate) host: HostName,
    /// Run directory of `flodl serve` [default: the only flodl-run-* folder here]
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Write the ticket to standard output and no file, for ssh
    #[arg(long)]
    pub(crate) stdout: bool,
}

/// `flodl join`.
#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The ticket that `flodl ticket HOST` wrote; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) ticket: PathBuf,
    /// The controller's address, where it is another than the ticket says
    #[arg(value_name = "ADDR")]
    pub(crate) address: Option<String>,
    /// Ranks to start on this host
    #[arg(short = 'n', long = "ranks", value_name = "RANKS", value_parser = ranks(), allow_negative_numbers = true)]
    pub(crate) ranks: u32,
    /// Folder for the logs of this host's ranks: new or empty [default: flodl-join-HOST-RUN]
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Start each rank again up to so many times after its end; it waits 1 s, then 2 s, ... up to 60 s before each
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 3)]
    pub(crate) restarts: u32,
    #[command(flatten)]
    pub(crate) program: ProgramArgs,
}

/// `flodl plan`.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// The cluster: a description in TOML (batch_size, samples, parameters, link_gbit_s, link_latency_ms, and [[rank]]
    /// with batch_ms, host and count), or the folder of a finished run
    #[arg(value_name = "CLUSTER.toml|RUN")]
    pub(crate) cluster: PathBuf,
    /// The part of the time that may go to waiting and averaging [default: 0.03]
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true)]
    pub(crate) overhead_target: Option<f64>,
    /// Batches of the slowest rank in the shortest window [default: 4]
    #[arg(long, value_name = "BATCHES", allow_negative_numbers = true)]
    pub(crate) min_anchor: Option<u32>,
    /// Batches of the slowest rank in the longest window [default: 1000]
    #[arg(long, value_name = "BATCHES", allow_negative_numbers = true)]
    pub(crate) max_anchor: Option<u32>,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flodl replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The folder of a finished run
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,
    #[command(flatten)]
    pub(crate) scheduling: SchedulingArgs,
    /// As JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `flodl guard`.
#[derive(Debug, Args)]
pub(crate) struct GuardArgs {
    /// What the relay hands it.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) rest: Vec<OsString>,
}

/// What each rank executes, and what is seen of it.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    /// What ranks write: prefixed (shown live, each line behind its rank, not faster than one can read) or none; their
    /// logs have all of it either way
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true, default_value_t)]
    pub(crate) rank_output: RankOutput,
    /// Send chunks between this host's ranks and their relay through sockets, not through shared memory
    #[arg(long)]
    pub(crate) no_shm: bool,
    /// The training program and its arguments, after `--`
    #[arg(last = true, required = true, num_args = 1.., value_name = "PROGRAM")]
    pub(crate) program: Vec<OsString>,
}

/// What is shown of the output of ranks.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RankOutput {
    /// Each line with its rank before it.
    #[default]
    Prefixed,
    /// Nothing.
    None,
}

/// How to train, the same for `run` and `serve`.
#[derive(Debug, Args)]
pub(crate) struct TrainingArgs {
    /// How work is shared out and averaged: cpu-cadence (each rank trains as much as it can in the same time, then all
    /// average), cpu-async (the same, and ranks train on while they average) or cpu-sync (each rank trains one batch, then
    /// all average); nccl-cadence and nccl-sync average between GPUs, for programs that can
    #[arg(long, value_name = "MODE", default_value_t = Mode::CpuCadence)]
    pub(crate) mode: Mode,
    /// Epochs: passes over the dataset, or parts of them with --epoch-splits [default: what the program asks for, else 1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: Option<u64>,
    /// Cut each pass over the dataset into so many epochs, which are evaluated, saved and told of each
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) epoch_splits: u32,
    /// Samples a batch [default: what the program asks for, else 64]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch_size: Option<u32>,
    /// Emulation: stretch each step of a rank by a factor >= 1, as if its device were slower (repeatable)
    #[arg(long, value_name = "RANK=FACTOR", value_parser = slow)]
    pub(crate) slow: Vec<(Rank, f64)>,
    /// Emulation: a step takes at least so many milliseconds, on every rank
    #[arg(long, value_name = "MS", allow_negative_numbers = true, value_parser = milliseconds)]
    pub(crate) step_ms: Option<Duration>,
    #[command(flatten)]
    pub(crate) scheduling: SchedulingArgs,
    /// What an average becomes before it is the consensus: average (what it is), slow-momentum:RATE,MOMENTUM or
    /// nesterov:RATE,MOMENTUM, for example nesterov:0.7,0.9 [default: the program's own, else average]
    #[arg(long, value_name = "RULE")]
    pub(crate) outer: Option<OuterRule>,
    /// How sums and averages travel between hosts: f32 (as they are), bf16 or int8 (differences from the last average, in
    /// half or a quarter of the bytes; what rounding takes away is added the next time). Inside a host always f32
    #[arg(long, value_name = "CODEC", default_value_t)]
    pub(crate) wire: Codec,
    #[command(flatten)]
    pub(crate) duties: DutyArgs,
    /// Folder for what the run leaves: new or empty [default: flodl-run-RUN]
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,
    /// Also write the summary (JSON) to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Seed of everything random
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Two runs with the same settings, seed and program leave the same model, bit by bit, whatever the timing: counts by
    /// --speed (equal without it) instead of measured speeds, windows that keep the length of --anchor, and generators set
    /// anew for each batch; a rank that dies or comes late ends that, and is named
    #[arg(long)]
    pub(crate) deterministic: bool,
    /// How long a rank may be silent before it counts as dead, in seconds; all other deadlines follow from it
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, default_value = "10")]
    pub(crate) patience: Duration,
    /// Start with so many ranks where the others ended or were refused first
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1)]
    pub(crate) min_ranks: u32,
    /// End the run, and save, when so many ranks are missing at the same time: a number, a percentage of the largest world
    /// so far (25%), or none
    #[arg(long, value_name = "N|P%|none", allow_negative_numbers = true, default_value_t = MaxFailure::None)]
    pub(crate) max_failure: MaxFailure,
    /// How long a host or rank that leaves by plan may take to bring its work in, in seconds
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, default_value = "20")]
    pub(crate) leave_grace: Duration,
}

/// How windows are planned.
#[derive(Debug, Args)]
#[command(next_help_heading = "Scheduling")]
pub(crate) struct SchedulingArgs {
    /// What watches how far the replicas drift apart, and shortens windows where they do: none, trend (the divergence
    /// keeps rising) or msf (it grows exponentially with the steps) [default: the program's own, else none]
    #[arg(long, value_name = "GUARD")]
    pub(crate) guard: Option<GuardKind>,
    /// The relative speed of a rank, for the windows before it is measured; larger is faster (repeatable)
    #[arg(long, value_name = "RANK=RATIO", value_parser = ratio)]
    pub(crate) speed: Vec<(Rank, f64)>,
    /// The part of the time that may go to waiting and averaging, above 0 and at most 0.5: windows grow until it is met
    /// [default: 0.03]
    #[arg(long, value_name = "FRACTION", allow_negative_numbers = true)]
    pub(crate) overhead_target: Option<f64>,
    /// Batches of the slowest rank in the first window [default: 4]
    #[arg(long, value_name = "BATCHES", allow_negative_numbers = true)]
    pub(crate) anchor: Option<u32>,
    /// Batches of the slowest rank in the shortest window [default: 4]
    #[arg(long, value_name = "BATCHES", allow_negative_numbers = true)]
    pub(crate) min_anchor: Option<u32>,
    /// Batches of the slowest rank in the longest window [default: 1000]
    #[arg(long, value_name = "BATCHES", allow_negative_numbers = true)]
    pub(crate) max_anchor: Option<u32>,
    /// How many batches more than the slowest a rank may do in a window [default: as many as it can]
    #[arg(long, value_name = "BATCHES", allow_negative_numbers = true)]
    pub(crate) max_batch_diff: Option<u32>,
}

/// Who evaluates and saves for all, and how often.
#[derive(Debug, Args)]
#[command(next_help_heading = "Evaluation and checkpoints (of the final consensus in any case)")]
pub(crate) struct DutyArgs {
    /// Evaluate after every N epochs
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) eval_epochs: Option<NonZeroU64>,
    /// Evaluate after every N averages
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) eval_rounds: Option<NonZeroU64>,
    /// Who evaluates: fastest (the rank with the shortest batch time), or a rank's number; where it fails, another does
    #[arg(long, value_name = "fastest|RANK", allow_negative_numbers = true, default_value_t)]
    pub(crate) eval_rank: Elect,
    /// Save a checkpoint set after every N epochs
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) checkpoint_epochs: Option<NonZeroU64>,
    /// Save a checkpoint set after every N averages
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) checkpoint_rounds: Option<NonZeroU64>,
    /// Whose program does its own part of a checkpoint (Trainer::on_checkpoint): fastest, or a rank's number
    #[arg(long, value_name = "fastest|RANK", allow_negative_numbers = true, default_value_t)]
    pub(crate) checkpoint_rank: Elect,
    /// Checkpoint sets that are kept, the newest ones
    #[arg(long, value_name = "K", allow_negative_numbers = true, default_value = "3")]
    pub(crate) keep_checkpoints: NonZeroU32,
}

/// A host's name that is also a [`HostId`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName {
    /// As given.
    pub(crate) name: String,
    /// The id made from it.
    pub(crate) id: HostId,
}

fn ranks() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX))
}

fn host(text: &str) -> Result<HostName, String> {
    match HostId::from_name(text) {
        Some(id) => Ok(HostName { name: text.to_owned(), id }),
        None => Err("a host name has 1 to 16 letters, digits, '-', '_' or '.'".to_owned()),
    }
}

fn slow(text: &str) -> Result<(Rank, f64), String> {
    assignment(text, "RANK=FACTOR")
}

fn ratio(text: &str) -> Result<(Rank, f64), String> {
    assignment(text, "RANK=RATIO")
}

/// A rank and a number for it, written as `form` says.
fn assignment(text: &str, form: &str) -> Result<(Rank, f64), String> {
    let hint = || format!("write {form}, for instance 1=2.5, not \"{text}\"");
    let (rank, factor) = text.split_once('=').ok_or_else(hint)?;
    let rank = rank.trim().parse().map_err(|_| hint())?;
    let factor: f64 = factor.trim().parse().map_err(|_| hint())?;
    if factor.is_finite() { Ok((Rank(rank), factor)) } else { Err(hint()) }
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    duration(text, 1e-3, 60_000.0, "milliseconds")
}

fn seconds(text: &str) -> Result<Duration, String> {
    duration(text, 1.0, 1e6, "seconds")
}

/// A number of `unit`s of `scale` seconds each, within 0..=`max`.
fn duration(text: &str, scale: f64, max: f64, unit: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if (0.0..=max).contains(&number) => Ok(Duration::from_secs_f64(number * scale)),
        _ => Err(format!("give {unit} as a number between 0 and {max}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, String> {
        Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_full_run_line_is_understood() {
        let line = "flodl run -n 3 --mode cpu-sync --epochs 2 --batch-size 32 --slow 1=2.5 --slow 2=4 --step-ms 0.5 \
                    --patience 1.5 --seed 7 --min-ranks 2 --max-failure 25% --leave-grace 5 -- ./train --lr 0.1";
        let Command::Run(run) = parse(line).expect("is valid").command else { panic!("not a run") };
        assert_eq!((run.ranks, run.training.mode), (3, Mode::CpuSync));
        assert_eq!((run.training.epochs, run.training.batch_size), (Some(2), Some(32)));
        assert_eq!(run.training.slow, [(Rank(1), 2.5), (Rank(2), 4.0)]);
        assert_eq!(run.training.step_ms, Some(Duration::from_micros(500)));
        assert_eq!(run.training.patience, Duration::from_millis(1500));
        assert_eq!((run.training.seed, run.training.min_ranks), (7, 2));
        assert_eq!(run.training.max_failure, MaxFailure::Percent(25));
        assert_eq!(run.training.leave_grace, Duration::from_secs(5));
        assert_eq!(run.program.program, ["./train", "--lr", "0.1"]);
        assert_eq!(run.training.wire, Codec::F32);
    }

    #[test]
    fn how_it_looks_can_be_said_before_and_behind_the_subcommand() {
        for (line, expected) in [
            ("flodl run -n 1 -- ./train --quiet", (Color::Auto, false, RankOutput::Prefixed)),
            ("flodl --color never run -n 1 --rank-output none -- ./train", (Color::Never, false, RankOutput::None)),
            ("flodl run -q --color=always -n 1 -- ./train", (Color::Always, true, RankOutput::Prefixed)),
        ] {
            let cli = parse(line).expect("is valid");
            let Command::Run(run) = cli.command else { panic!("not a run") };
            assert_eq!((cli.color, cli.quiet, run.program.rank_output), expected, "{line}");
        }
    }

    #[test]
    fn scheduling_options_are_understood() {
        let line = "flodl run -n 2 --guard msf --speed 0=4 --speed 1=1 --overhead-target 0.1 --anchor 8 --min-anchor 2 \
                    --max-anchor 50 --max-batch-diff 9 -- ./train";
        let Command::Run(run) = parse(line).expect("is valid").command else { panic!("not a run") };
        let told = run.training.scheduling;
        assert_eq!(
            (told.guard, told.speed.as_slice()),
            (Some(GuardKind::Msf), [(Rank(0), 4.0), (Rank(1), 1.0)].as_slice())
        );
        assert_eq!((told.overhead_target, told.anchor), (Some(0.1), Some(8)));
        assert_eq!((told.min_anchor, told.max_anchor, told.max_batch_diff), (Some(2), Some(50), Some(9)));
    }

    #[test]
    fn join_takes_an_address_beside_the_ticket() {
        let line = "flodl join --ticket t 10.0.0.1:7070 -n 2 -- ./train";
        let Command::Join(join) = parse(line).expect("is valid").command else { panic!("not a join") };
        assert_eq!((join.address.as_deref(), join.ranks), (Some("10.0.0.1:7070"), 2));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cases = [
            ("flodl run -- ./train", "--ranks"),
            ("flodl run -n 0 -- ./train", "1..=65536"),
            ("flodl run -n 2", "PROGRAM"),
            ("flodl run -n 2 ./train", "unexpected argument"),
            ("flodl run -n 2 --slow 1:2 -- ./train", "write RANK=FACTOR"),
            ("flodl run -n 2 --slow 1=nan -- ./train", "write RANK=FACTOR"),
            ("flodl run -n 2 --speed 1 -- ./train", "write RANK=RATIO"),
            ("flodl run -n 2 --guard dog -- ./train", "take none, trend or msf"),
            ("flodl run -n 2 --outer momentum -- ./train", "use average, slow-momentum:RATE,MOMENTUM"),
            ("flodl run -n 2 --outer nesterov:0.7,1.5 -- ./train", "--outer"),
            ("flodl serve -n 2 --wire int4", "use f32, bf16 or int8"),
            ("flodl run -n 2 --min-anchor -4 -- ./train", "--min-anchor"),
            ("flodl run -n 2 --step-ms -4 -- ./train", "--step-ms"),
            ("flodl run -n -2 -- ./train", "--ranks"),
            ("flodl run -n 2 --epochs -1 -- ./train", "--epochs"),
            ("flodl run -n 2 --seed -1 -- ./train", "--seed"),
            ("flodl run -n 2 --patience -1 -- ./train", "--patience"),
            ("flodl run -n 2 --patience soon -- ./train", "give seconds as a number"),
            ("flodl run -n 2 --max-failure 0 -- ./train", "a percentage of the run's ranks"),
            ("flodl run -n 2 --mode fast -- ./train", "cpu-cadence"),
            ("flodl run -n 2 --epochs 0 -- ./train", "--epochs"),
            ("flodl ticket ../up", "1 to 16 letters"),
            ("flodl run -n 2 --color pink -- ./train", "auto, always, never"),
            ("flodl run -n 2 --rank-output all -- ./train", "prefixed, none"),
            ("flodl serve -n 2 --rank-output none", "--rank-output"),
            ("flodl fly", "unrecognized subcommand"),
        ];
        for (line, part) in cases {
            let error = parse(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
