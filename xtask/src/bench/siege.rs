//! `cargo xtask bench siege`: a run with a thousand strangers at its door against the same run in peace, in turns.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::programs::{Scratch, median, throughput};
use crate::build::{Build, Executable};
use crate::failure::Failure;
use crate::train;

/// The name of this benchmark on the command line.
pub(super) const NAME: &str = "siege";

/// How often each is run. Odd, so that a median is one of the runs.
const TURNS: usize = 3;
/// Long enough for every stranger to come.
const RUN: [&str; 4] = ["--example", "softmax", "--epochs", "24"];
/// A run listens within that time.
const LISTENS_WITHIN: Duration = Duration::from_secs(60);

const SIEGE: Executable = Executable { package: "flodl-coord", kind: "--example", name: "siege", features: "cli" };

/// Runs in peace and under siege in turns, prints a table and answers with the figures: `over_peace` is the median over the
/// turns of the wall time under siege divided by that in peace.
///
/// # Errors
///
/// A build or a run that fails.
pub(super) fn run() -> Result<Value, Failure> {
    let siege = Build::without_libtorch().executable(SIEGE)?;
    let (mut rows, mut ratios) = (Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let mut walls = [0.0; 2];
        for (besieged, wall) in [false, true].into_iter().zip(&mut walls) {
            let (took, summary) = trains(besieged.then_some(siege.as_path()))?;
            *wall = took.as_secs_f64();
            let (speed, degraded) = (throughput(&summary)?, summary["degraded"].as_bool());
            let who = if besieged { "under siege" } else { "in peace" };
            println!("turn {turn}  {who:<11} {wall:>6.2} s, {speed:>7.0} samples/s, lost somebody: {degraded:?}");
            rows.push(json!({
                "besieged": besieged, "turn": turn, "wall_s": *wall, "samples_per_s": speed, "degraded": degraded,
            }));
        }
        ratios.push(walls[1] / walls[0]);
    }
    let over_peace = median(ratios.into_iter());
    println!("over_peace {:.3}", over_peace.unwrap_or(f64::NAN));
    Ok(json!({ "over_peace": over_peace, "rows": rows }))
}

/// One run, with strangers at its door from its beginning to its end where `siege` is their program. How long it took, and
/// its summary.
fn trains(siege: Option<&Path>) -> Result<(Duration, Value), Failure> {
    let scratch = Scratch::new()?;
    let run = scratch.run();
    let mut args: Vec<String> = RUN.iter().map(|option| (*option).to_owned()).collect();
    args.extend(["--run-dir".to_owned(), run.display().to_string()]);
    let mut command = train::command(&args)?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let began = Instant::now();
    let mut trainer = command.spawn().map_err(|error| Failure::failed(format!("cannot start flodl: {error}")))?;
    let strangers = siege.map(|siege| besiege(siege, &run)).transpose();
    let status = trainer.wait().map_err(|error| Failure::failed(format!("cannot wait for flodl: {error}")))?;
    let took = began.elapsed();
    strangers?.map(lift).transpose()?;
    if !status.success() {
        return Err(Failure::failed(format!("the run failed, {status}")));
    }
    Ok((took, scratch.summary()?))
}

/// Sends the strangers home. They have all been there, or it was no siege.
fn lift(mut strangers: Child) -> Result<(), Failure> {
    drop(strangers.stdin.take());
    let output = strangers.wait_with_output();
    let output = output.map_err(|error| Failure::failed(format!("cannot wait for the strangers: {error}")))?;
    match String::from_utf8_lossy(&output.stdout).starts_with("besieged") && output.status.success() {
        true => Ok(()),
        false => Err(Failure::failed(format!("the run was over before every stranger was there ({})", output.status))),
    }
}

/// Starts the strangers once the run listens.
fn besiege(siege: &Path, run: &Path) -> Result<Child, Failure> {
    let address = run.join("address");
    let end = Instant::now() + LISTENS_WITHIN;
    let address = loop {
        match std::fs::read_to_string(&address) {
            Ok(text) if text.ends_with('\n') => break text,
            Ok(_) | Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(10)),
            Ok(_) | Err(_) => return Err(Failure::failed(format!("no run listens at {}", address.display()))),
        }
    };
    let mut command = Command::new(siege);
    command.arg(address.trim()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().map_err(|error| Failure::failed(format!("cannot start {}: {error}", siege.display())))
}
