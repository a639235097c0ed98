//! Budgets against counts on twelve clusters, in computed time: how much of the ceiling each way to end a window reaches.
//!
//! `cargo xtask sim clusters [--json FILE]` runs it. The ceiling is what all ranks would train alone without ever waiting
//! or being throttled. Every policy meets the same batches: how long the `n`th batch of a rank takes depends on cluster,
//! seed, rank and `n` alone. Windows are 16 batches of the slowest rank, and an average costs 50 ms.
//!
//! - `budget`: ElChe; each rank stops by its own clock.
//! - `equal`: the same count for everybody, as in lockstep training.
//! - `counts`: counts in proportion to speeds, each the mean over a rank's last five windows.
//! - `oracle`: knows every batch's time beforehand and stops each rank nearest to the window's end.
//!
//! It fails where budgets reach less than 0.98 of the oracle at a jitter of at most 0.1, or counts are ahead of budgets by
//! more than 0.002 anywhere.

use std::collections::VecDeque;
use std::env;
use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use flodl_elche::model::Model;
use flodl_elche::{AnchorSettings, Elche, NoGuard, Policy, Settings, Slot};
use serde_json::{Value, json};

/// Seconds a batch of the fastest rank.
const BATCH: f64 = 0.05;
/// Seconds an average.
const REDUCE: f64 = 0.05;
/// Batches of the slowest rank in a window.
const ANCHOR: u32 = 16;
/// A throttled rank's batches take so many times as long...
const THROTTLED: f64 = 1.6;
/// ...in this part of all stretches...
const THROTTLED_PART: f64 = 0.02;
/// ...of so many seconds.
const STRETCH: f64 = 20.0;
/// Batches of all ranks in a run, about.
const BATCHES: f64 = 250_000.0;

/// Name, ranks, and how many times slower than the fastest the slowest is.
const CLUSTERS: [(&str, usize, f64); 12] = [
    ("2 equal", 2, 1.0),
    ("2, 1 to 2.3", 2, 2.3),
    ("2, 1 to 20", 2, 20.0),
    ("3, 1 to 2.5 to 4", 3, 4.0),
    ("4 equal", 4, 1.0),
    ("4, one 10 times slower", 4, 10.0),
    ("8 equal", 8, 1.0),
    ("8, spread 4", 8, 4.0),
    ("16, spread 2", 16, 2.0),
    ("32, spread 5", 32, 5.0),
    ("64, spread 10", 64, 10.0),
    ("256, spread 20", 256, 20.0),
];

/// Batch times of one rank.
#[derive(Clone)]
struct Rank {
    mean: f64,
    jitter: f64,
    throttling: bool,
    seed: u64,
}

impl Rank {
    fn took(&self, batch: u64) -> f64 {
        let normal =
            (-2.0 * self.uniform(2 * batch).ln()).sqrt() * (std::f64::consts::TAU * self.uniform(2 * batch + 1)).cos();
        let jitter = (self.jitter * normal - self.jitter * self.jitter / 2.0).exp();
        let stretch = batch / (STRETCH / self.mean).ceil() as u64;
        let throttled = self.throttling && self.uniform(u64::MAX - stretch) < THROTTLED_PART;
        self.mean * jitter * if throttled { THROTTLED } else { 1.0 }
    }

    /// The `n`th random number in (0, 1) of this rank (SplitMix64).
    fn uniform(&self, n: u64) -> f64 {
        let mut x = self.seed.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + f64::MIN_POSITIVE
    }
}

fn ranks(index: usize, jitter: f64, throttling: bool) -> Vec<Rank> {
    let (name, count, spread) = CLUSTERS[index];
    let slower = |i: usize| match name {
        "3, 1 to 2.5 to 4" => [1.0, 2.5, 4.0][i],
        "4, one 10 times slower" => [1.0, 1.0, 1.0, 10.0][i],
        _ => spread.powf(i as f64 / (count - 1) as f64),
    };
    let seed = |i: usize| (index as u64 + 1) << 32 | i as u64;
    (0..count).map(|i| Rank { mean: BATCH * slower(i), jitter, throttling, seed: seed(i) }).collect()
}

/// Batches done and seconds passed.
#[derive(Copy, Clone, Default)]
struct Tally {
    batches: u64,
    seconds: f64,
}

impl Tally {
    fn fraction(self, ranks: &[Rank]) -> f64 {
        let solo: f64 = ranks.iter().map(|rank| 1.0 / rank.mean).sum();
        self.batches as f64 / (solo * self.seconds)
    }
}

fn budget(ranks: &[Rank], windows: usize) -> Tally {
    let settings = Settings { anchor: AnchorSettings::fixed(ANCHOR), batch_size: 1, ..Settings::default() };
    let elche = Elche::new(settings, Box::new(NoGuard)).expect("valid settings");
    let mut model = Model::new(Box::new(elche), Policy::Cadence, u64::MAX / 4);
    model.round.reduce = Duration::from_secs_f64(REDUCE);
    for (slot, rank) in (0..).map(Slot).zip(ranks) {
        let rank = rank.clone();
        model.join(slot, Box::new(move |batch| Duration::from_secs_f64(rank.took(batch))));
    }
    let mut tally = Tally::default();
    for _ in 0..windows {
        let window = model.window();
        tally.batches += window.batches();
        tally.seconds += window.wall.as_secs_f64();
    }
    tally
}

/// Windows in which `count` says how many batches a rank does, by its index and the times of its batches to come.
fn counted(
    ranks: &[Rank],
    windows: usize,
    mut count: impl FnMut(usize, &mut dyn FnMut() -> f64) -> (u64, f64),
) -> Tally {
    let mut next = vec![0u64; ranks.len()];
    let mut tally = Tally::default();
    for _ in 0..windows {
        let mut wall = 0.0f64;
        for (i, rank) in ranks.iter().enumerate() {
            let mut ahead = next[i];
            let (batches, seconds) = count(i, &mut || {
                ahead += 1;
                rank.took(ahead - 1)
            });
            next[i] += batches;
            tally.batches += batches;
            wall = wall.max(seconds);
        }
        tally.seconds += wall + REDUCE;
    }
    tally
}

fn equal(ranks: &[Rank], windows: usize) -> Tally {
    counted(ranks, windows, |_, took| (u64::from(ANCHOR), (0..ANCHOR).map(|_| took()).sum()))
}

fn proportional(ranks: &[Rank], windows: usize) -> Tally {
    let mut times: Vec<VecDeque<f64>> = vec![VecDeque::new(); ranks.len()];
    let mut quotas = vec![3u64; ranks.len()];
    let mut tally = Tally::default();
    let mut next = vec![0u64; ranks.len()];
    for _ in 0..windows {
        let mut wall = 0.0f64;
        for (i, rank) in ranks.iter().enumerate() {
            let seconds: f64 = (0..quotas[i]).map(|n| rank.took(next[i] + n)).sum();
            next[i] += quotas[i];
            tally.batches += quotas[i];
            wall = wall.max(seconds);
            if times[i].len() == 5 {
                times[i].pop_front();
            }
            times[i].push_back(seconds / quotas[i] as f64);
        }
        tally.seconds += wall + REDUCE;
        let means: Vec<f64> = times.iter().map(|times| times.iter().sum::<f64>() / times.len() as f64).collect();
        let window = f64::from(ANCHOR) * means.iter().copied().fold(0.0, f64::max);
        quotas = means.iter().map(|mean| ((window / mean).round() as u64).max(1)).collect();
    }
    tally
}

fn oracle(ranks: &[Rank], windows: usize) -> Tally {
    let window = f64::from(ANCHOR) * ranks.iter().map(|rank| rank.mean).fold(0.0, f64::max);
    counted(ranks, windows, |_, took| {
        let (mut batches, mut seconds) = (1, took());
        loop {
            let longer = seconds + took();
            if longer - window > window - seconds {
                return (batches, seconds);
            }
            (batches, seconds) = (batches + 1, longer);
        }
    })
}

type PolicyRun = fn(&[Rank], usize) -> Tally;

const POLICIES: [(&str, PolicyRun); 4] =
    [("budget", budget), ("equal", equal), ("counts", proportional), ("oracle", oracle)];

/// One cluster under one kind of weather, each policy's fraction of the ceiling.
struct Row {
    cluster: &'static str,
    jitter: f64,
    throttling: bool,
    fractions: [f64; 4],
}

impl Row {
    fn values(&self) -> impl Iterator<Item = Value> {
        POLICIES.iter().zip(self.fractions).map(|((policy, _), fraction)| {
            json!({
                "cluster": self.cluster, "policy": policy, "jitter": self.jitter, "throttling": self.throttling,
                "ceiling_fraction": fraction, "oracle_fraction": fraction / self.fractions[3],
            })
        })
    }

    /// What must hold and does not.
    fn broken(&self) -> Option<String> {
        let [budget, _, counts, oracle] = self.fractions;
        if self.jitter <= 0.1 && budget < 0.98 * oracle {
            return Some(format!("budgets reach {:.4} of the oracle", budget / oracle));
        }
        (counts > budget + 0.002).then(|| format!("counts are ahead of budgets by {:.4}", counts - budget))
    }
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, &(cluster, ..)) in CLUSTERS.iter().enumerate() {
        for jitter in [0.02, 0.1, 0.3] {
            for throttling in [false, true] {
                let ranks: Rc<[Rank]> = ranks(index, jitter, throttling).into();
                let slowest = ranks.iter().map(|rank| rank.mean).fold(0.0, f64::max);
                let per_window: f64 = ranks.iter().map(|rank| f64::from(ANCHOR) * slowest / rank.mean).sum();
                let windows = (BATCHES / per_window).clamp(60.0, 1500.0) as usize;
                let fractions = POLICIES.map(|(_, run)| run(&ranks, windows).fraction(&ranks));
                rows.push(Row { cluster, jitter, throttling, fractions });
            }
        }
    }
    rows
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| cluster | jitter | throttling | budget | equal counts | proportional counts | oracle | budget / oracle |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for Row { cluster, jitter, throttling, fractions: [budget, equal, counts, oracle] } in rows {
        let throttling = if *throttling { "yes" } else { "no" };
        text += &format!(
            "| {cluster} | {jitter} | {throttling} | {budget:.3} | {equal:.3} | {counts:.3} | {oracle:.3} | {:.3} |\n",
            budget / oracle
        );
    }
    text
}

fn main() -> ExitCode {
    let file = match env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => None,
        [option, file] if option == "--json" => Some(file.clone()),
        _ => {
            writeln!(io::stderr(), "usage: clusters [--json FILE]").ok();
            return ExitCode::from(2);
        }
    };
    let rows = rows();
    let broken: Vec<String> = rows
        .iter()
        .filter_map(|row| {
            Some(format!("{}, jitter {}, throttling {}: {}", row.cluster, row.jitter, row.throttling, row.broken()?))
        })
        .collect();
    let values: Vec<Value> = rows.iter().flat_map(Row::values).collect();
    let written = match file {
        Some(file) => {
            fs::write(&file, format!("{:#}\n", Value::from(values))).map_err(|error| format!("{file}: {error}"))
        }
        None => Ok(()),
    };
    let told = io::stdout().write_all(table(&rows).as_bytes()).map_err(|error| error.to_string());
    let errors: Vec<String> = broken.into_iter().chain([written, told].into_iter().filter_map(Result::err)).collect();
    for error in &errors {
        writeln!(io::stderr(), "{error}").ok();
    }
    if errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
