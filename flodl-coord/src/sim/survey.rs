//! Many seeds on all cores, the self-test, and the figures of both.

#![expect(clippy::disallowed_methods, reason = "the survey measures real time, the simulation has none")]

use super::campaign::{self, Report};
use super::class::Class;
use super::mutant::Mutant;
use super::options::Request;
use super::violation::{Rule, Violation};
use core::ops::Range;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// One seed in so many is run twice, to see that it is the same both times.
const TWICE_EVERY: u64 = 16;

/// Seeds that the self-test tries for each protection.
const MUTANT_SEEDS: u64 = 5000;

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Survey {
    /// How many.
    pub seeds: u64,
    /// Those that broke a rule, in order of their seeds.
    pub failures: Vec<Report>,
    /// Simulated time of all of them.
    pub sim_hours: f64,
    /// Real time of the whole survey.
    pub wall_s: f64,
    /// Events of all of them.
    pub events: u64,
    /// Faults that struck.
    pub faults: BTreeMap<Class, u64>,
}

impl Survey {
    /// Simulated time over real time.
    #[must_use]
    pub fn speedup(&self) -> f64 {
        self.sim_hours * 3600.0 / self.wall_s.max(1e-9)
    }

    fn add(&mut self, report: Report) {
        self.seeds += 1;
        self.sim_hours += report.simulated.as_secs_f64() / 3600.0;
        self.events += report.events;
        for (&class, &count) in &report.faults {
            *self.faults.entry(class).or_default() += count;
        }
        if report.violation.is_some() {
            self.failures.push(report);
        }
    }

    /// The figures as JSON, with what the self-test found.
    #[must_use]
    pub fn json(&self, caught: &[(Mutant, Option<u64>)]) -> Value {
        let faults: Map<String, Value> = Class::ALL
            .iter()
            .map(|class| (class.name().to_owned(), json!(self.faults.get(class).copied().unwrap_or(0))))
            .collect();
        let mutants: Map<String, Value> =
            caught.iter().map(|(mutant, seed)| (mutant.name().to_owned(), json!(seed))).collect();
        json!({
            "seeds": self.seeds,
            "failures": self.failures.len(),
            "failed_seeds": self.failures.iter().map(|report| report.repeat.clone()).collect::<Vec<_>>(),
            "sim_hours": self.sim_hours,
            "wall_s": self.wall_s,
            "sim_speedup": self.speedup(),
            "events": self.events,
            "faults": faults,
            "mutants": mutants,
        })
    }
}

/// Runs these seeds on all cores.
pub fn seeds(seeds: Range<u64>, request: impl Fn(u64) -> Request + Sync) -> Survey {
    let started = Instant::now();
    let (next, survey) = (AtomicU64::new(seeds.start), Mutex::new(Survey::default()));
    quietly(|| {
        on_all_cores(|| {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= seeds.end {
                    return;
                }
                let report = checked(&request(seed), seed % TWICE_EVERY == 0);
                survey.lock().unwrap_or_else(PoisonError::into_inner).add(report);
            }
        });
    });
    let mut survey = survey.into_inner().unwrap_or_else(PoisonError::into_inner);
    survey.failures.sort_by(|a, b| a.repeat.cmp(&b.repeat));
    survey.wall_s = started.elapsed().as_secs_f64();
    survey
}

fn on_all_cores(work: impl Fn() + Sync) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(&work);
        }
    });
}

/// A run, and the same again where that is to be checked.
fn checked(request: &Request, twice: bool) -> Report {
    let mut report = campaign::run(request, false);
    if twice && report.violation.is_none() {
        let again = campaign::run(request, false);
        if again.stream != report.stream {
            let what = format!("the streams are {:016x} and {:016x}", report.stream, again.stream);
            report.violation = Some(Violation { at: report.simulated, rule: Rule::Determinism, what });
        }
    }
    report
}

/// For each protection, the first seed that notices when it is off.
#[must_use]
pub fn mutants() -> Vec<(Mutant, Option<u64>)> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(BTreeMap::new());
    quietly(|| {
        on_all_cores(|| {
            while let Some(&mutant) = Mutant::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                let seed = caught(mutant);
                found.lock().unwrap_or_else(PoisonError::into_inner).insert(mutant, seed);
            }
        });
    });
    found.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
}

/// The first seed that notices when `mutant`'s protection is off, and finds nothing while it is on.
#[must_use]
pub fn caught(mutant: Mutant) -> Option<u64> {
    (0..MUTANT_SEEDS).find(|&seed| {
        let classes = Some(mutant.against().to_vec());
        let whole = Request { classes, ..Request::new(seed, (2, 12)) };
        let without = Request { mutant: Some(mutant), ..whole.clone() };
        let broken = |request: &Request| campaign::run(request, false).violation.is_some();
        broken(&without) && !broken(&whole)
    })
}

/// A core that panics is a finding, not noise on the screen.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let done = work();
    std::panic::set_hook(hook);
    done
}
