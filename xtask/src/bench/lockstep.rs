//! `cargo xtask bench lockstep`: the default run of `digits` against the same ranks in lockstep, in turns.

use serde_json::{Value, json};

use super::programs::{median, throughput, train};
use crate::failure::Failure;

/// The name of this benchmark on the command line.
pub(super) const NAME: &str = "lockstep";

/// How often each mode runs. Odd, so that a median is one of the runs.
const TURNS: usize = 3;
/// The default first.
const MODES: [&str; 2] = ["cpu-cadence", "cpu-sync"];

/// One run.
#[derive(Debug, Clone, PartialEq)]
struct Run {
    mode: &'static str,
    turn: usize,
    summary: Value,
}

/// Runs both modes in turns, prints a table and answers with the figures: `over_lockstep` is the median over the turns of
/// the throughput of the default mode divided by that of `cpu-sync`.
///
/// # Errors
///
/// A build or a run that fails.
pub(super) fn run() -> Result<Value, Failure> {
    let mut runs = Vec::new();
    for turn in 0..TURNS {
        for mode in MODES {
            let summary = train(&["--mode", mode], &[])?;
            println!(
                "turn {turn}  {mode:<12} {:>7.0} samples/s, fraction of the ceiling {:.3}, accuracy {:.4}",
                throughput(&summary)?,
                summary["ceiling_fraction"].as_f64().unwrap_or(f64::NAN),
                summary["accuracy"].as_f64().unwrap_or(f64::NAN),
            );
            runs.push(Run { mode, turn, summary });
        }
    }
    let figures = figures(&runs)?;
    println!("over_lockstep {:.2}", figures["over_lockstep"].as_f64().unwrap_or(f64::NAN));
    Ok(figures)
}

fn figures(runs: &[Run]) -> Result<Value, Failure> {
    let mut rows = Vec::new();
    for run in runs {
        rows.push(json!({
            "mode": run.mode,
            "turn": run.turn,
            "samples_per_s": throughput(&run.summary)?,
            "ceiling_fraction": run.summary["ceiling_fraction"],
            "accuracy": run.summary["accuracy"],
        }));
    }
    let speed = |mode: &str, turn: usize| {
        let found = runs.iter().find(|run| run.mode == mode && run.turn == turn)?;
        throughput(&found.summary).ok()
    };
    let ratios = (0..TURNS).filter_map(|turn| Some(speed(MODES[0], turn)? / speed(MODES[1], turn)?));
    Ok(json!({ "over_lockstep": median(ratios), "rows": rows }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_compared_turn_by_turn() {
        let runs: Vec<Run> = [(0, 2200.0, 1000.0), (1, 630.0, 300.0), (2, 2000.0, 1000.0)]
            .into_iter()
            .flat_map(|(turn, cadence, sync)| [(MODES[0], turn, cadence), (MODES[1], turn, sync)])
            .map(|(mode, turn, speed)| Run { mode, turn, summary: json!({ "throughput": speed, "accuracy": 0.97 }) })
            .collect();
        let figures = figures(&runs).expect("all have a throughput");
        assert_eq!(figures["over_lockstep"], json!(2.1));
        assert_eq!(figures["rows"].as_array().map(Vec::len), Some(6));
        assert_eq!(figures["rows"][1]["mode"], json!("cpu-sync"));
    }
}
