//! The command line of `flodl-sim`.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program talks to a person")]

use super::campaign::{self, Report};
use super::ceiling;
use super::churn;
use super::class::Class;
use super::mutant::Mutant;
use super::options::Request;
use super::survey::{self, Survey};
use clap::Parser;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Ranks up to which a single seed is run a second time, to compare.
const TWICE_MAX: u32 = 2048;

/// Runs the whole system in virtual time, with faults, and checks it after every step.
#[derive(Debug, Parser)]
#[command(name = "flodl-sim", version)]
#[command(args_conflicts_with_subcommands = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// Ranks of a run: a number, or the fewest and the most (both included).
    #[arg(long, default_value = "3..64", value_parser = ranks)]
    ranks: (u32, u32),
    /// Seeds: a number of them from 0 on, or the first and the one after the last.
    #[arg(long, default_value = "0..300", value_parser = seeds)]
    seeds: (u64, u64),
    /// One seed alone; prints what it drew first.
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// Faults that are enabled in every run; without this each seed enables some of all. Empty: none.
    #[arg(long, value_parser = classes)]
    faults: Option<Classes>,
    /// Turn one protection off.
    #[arg(long, value_parser = mutant)]
    mutant: Option<Mutant>,
    /// Another timing of the same work: other devices, links and moments of faults.
    #[arg(long, default_value = "0")]
    timing: u64,
    /// Also the self-test: for each protection, look for a seed that notices when it is off.
    #[arg(long)]
    mutants: bool,
    /// With --seed: every message, line by line.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Where the figures go.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// One simulated hour of three clusters, with windows of budgets and of counts: how near to the ceiling they come.
    Ceiling {
        /// Where the rows go.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// One simulated hour of 32 ranks of which one is killed every half minute and started again: who contributes, and what
    /// is left of the work. Then the same with ranks that fall silent.
    Churn {
        /// Where the rows go.
        #[arg(long)]
        json: Option<PathBuf>,
    },
}

#[derive(Clone, Debug)]
struct Classes(Vec<Class>);

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    match (&args.command, args.seed) {
        (Some(Command::Ceiling { json }), _) => ceilings(json.as_deref()),
        (Some(Command::Churn { json }), _) => churned(json.as_deref()),
        (None, Some(seed)) => one(&args, seed),
        (None, None) => many(&args),
    }
}

fn ceilings(file: Option<&Path>) -> ExitCode {
    let rows = ceiling::rows();
    println!("{:<10} {:<8} {:>8} {:>8}", "cluster", "windows", "fraction", "at least");
    for row in &rows {
        let least = row.least.map_or(String::new(), |least| format!("{least:>8}"));
        println!("{:<10} {:<8} {:>8.4} {least}", row.cluster, row.windowing, row.fraction);
    }
    let missed = rows.iter().any(|row| row.least.is_some_and(|least| row.fraction < least));
    let written = file.is_none_or(|file| write(file, &ceiling::json(&rows)));
    if missed || !written { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn churned(file: Option<&Path>) -> ExitCode {
    let rows = churn::rows();
    println!(
        "{:<8} {:>6} {:>7} {:>7} {:>13} {:>13} {:>7} {:>7}",
        "faults", "struck", "rounds", "alive", "participating", "contributing", "least", "work"
    );
    for row in &rows {
        println!(
            "{:<8} {:>6} {:>7} {:>7.2} {:>13.2} {:>13.2} {:>7.3} {:>7.3}",
            row.faults, row.struck, row.rounds, row.alive, row.participating, row.contributing, row.least, row.work
        );
    }
    let missed = rows.iter().any(|row| !row.holds());
    let written = file.is_none_or(|file| write(file, &churn::json(&rows)));
    if missed || !written { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn write(file: &Path, value: &serde_json::Value) -> bool {
    std::fs::write(file, format!("{value:#}\n"))
        .inspect_err(|error| eprintln!("flodl-sim: cannot write {}: {error}", file.display()))
        .is_ok()
}

impl Args {
    fn request(&self, seed: u64) -> Request {
        let classes = self.faults.as_ref().map(|classes| classes.0.clone());
        Request { seed, ranks: self.ranks, classes, mutant: self.mutant, timing: self.timing }
    }
}

fn one(args: &Args, seed: u64) -> ExitCode {
    let request = args.request(seed);
    let report = campaign::run(&request, args.trace);
    println!("{}", report.options);
    report.trace.iter().for_each(|line| println!("{line}"));
    show(&report);
    // The largest runs take minutes, and what could make two runs differ is there in the small ones too.
    let again = (args.ranks.1 <= TWICE_MAX).then(|| campaign::run(&request, false));
    if let Some(again) = again.filter(|again| again.stream != report.stream) {
        eprintln!("two runs of this seed differ: {:016x} and {:016x}", report.stream, again.stream);
        return ExitCode::FAILURE;
    }
    if report.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn show(report: &Report) {
    let struck: Vec<String> = report.faults.iter().map(|(class, count)| format!("{class} {count}")).collect();
    println!(
        "exit {:?} after {:.3} s and {} events, stream {:016x}, {} repeats, struck: {}",
        report.exit,
        report.simulated.as_secs_f64(),
        report.events,
        report.stream,
        report.repeats,
        struck.join(", ")
    );
    if let Some(violation) = &report.violation {
        println!("{}\nFAILED: {violation}\n{}", report.options, report.repeat);
    }
}

fn many(args: &Args) -> ExitCode {
    let survey = survey::seeds(args.seeds.0..args.seeds.1, |seed| args.request(seed));
    survey.failures.iter().for_each(show);
    let caught = if args.mutants { survey::mutants() } else { Vec::new() };
    print_survey(&survey);
    for (mutant, seed) in &caught {
        match seed {
            Some(seed) => println!("without {:<24} noticed by seed {seed}", mutant.name()),
            None => println!("without {:<24} NOT NOTICED", mutant.name()),
        }
    }
    let written = args.json.as_deref().is_none_or(|file| write(file, &survey.json(&caught)));
    let blind = caught.iter().any(|(_, seed)| seed.is_none());
    if survey.failures.is_empty() && !blind && written { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_survey(survey: &Survey) {
    for (class, count) in &survey.faults {
        println!("{:<18} {count}", class.name());
    }
    println!(
        "{} seeds, {} failures, {:.2} simulated hours in {:.1} s: {:.0} hours an hour, {} events",
        survey.seeds,
        survey.failures.len(),
        survey.sim_hours,
        survey.wall_s,
        survey.speedup(),
        survey.events
    );
}

fn pair<N: core::str::FromStr>(text: &str) -> Result<(N, N), String> {
    let number = |text: &str| text.parse().map_err(|_| format!("`{text}` is no number"));
    let (low, high) = text.split_once("..").ok_or_else(|| format!("`{text}` is not of the form A..B"))?;
    Ok((number(low)?, number(high)?))
}

fn ranks(text: &str) -> Result<(u32, u32), String> {
    let (low, high) = text.parse().map_or_else(|_| pair(text), |ranks: u32| Ok((ranks, ranks)))?;
    if low == 0 || low > high {
        return Err(format!("{low}..{high} names no run: give at least one rank, the fewer first"));
    }
    Ok((low, high))
}

fn seeds(text: &str) -> Result<(u64, u64), String> {
    text.parse().map_or_else(|_| pair(text), |count: u64| Ok((0, count)))
}

fn classes(text: &str) -> Result<Classes, String> {
    let known = || Class::ALL.map(Class::name).join(", ");
    let class = |name: &str| Class::named(name).ok_or_else(|| format!("`{name}` is no fault: there are {}", known()));
    text.split(',').filter(|name| !name.is_empty()).map(class).collect::<Result<_, _>>().map(Classes)
}

fn mutant(name: &str) -> Result<Mutant, String> {
    let known = || Mutant::ALL.map(Mutant::name).join(", ");
    Mutant::named(name).ok_or_else(|| format!("`{name}` is no protection: there are {}", known()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_and_nonsense_is_not() {
        assert_eq!(ranks("3..64"), Ok((3, 64)));
        assert_eq!(ranks("1024"), Ok((1024, 1024)));
        assert_eq!(seeds("0..2000"), Ok((0, 2000)));
        assert_eq!(seeds("12"), Ok((0, 12)));
        for wrong in ["0..3", "5..3", "a..b", ""] {
            assert!(ranks(wrong).is_err(), "{wrong}");
        }
        assert!(classes("pause,meteor").is_err_and(|error| error.contains("meteor") && error.contains("clock-jump")));
        assert_eq!(classes("").map(|classes| classes.0), Ok(Vec::new()));
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
