//! One run or many, and what came of them.

use super::class::Class;
use super::fabric::Fabric;
use super::options::Request;
use super::violation::{Rule, Violation};
use super::world::World;
use flodl_wire::{Rank, Time, Version};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What came of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What the seed drew, one line.
    pub options: String,
    /// The line that repeats the run.
    pub repeat: String,
    /// The first broken rule.
    pub violation: Option<Violation>,
    /// The coordinator's exit status, if it came to that.
    pub exit: Option<i32>,
    /// How long it took, in simulated time.
    pub simulated: Time,
    /// Events that happened.
    pub events: u64,
    /// A digest of all that was said and when.
    pub stream: u64,
    /// Faults that struck.
    pub faults: BTreeMap<Class, u64>,
    /// Samples that were trained again though a part of them is in a consensus.
    pub repeats: u64,
    /// What must be the same whatever the timing, where the run was to be so and nothing happened that no setting fixes.
    pub repeats_as: Option<Outcome>,
    /// What happened, line by line, where it was asked for.
    pub trace: Vec<String>,
}

/// What a run has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The ranks of each host: sums of several hosts depend on it.
    pub places: Vec<BTreeSet<Rank>>,
    /// The version of the last consensus.
    pub version: Option<Version>,
    /// xxh3 of it.
    pub digest: u64,
}

impl Outcome {
    fn of(world: &World) -> Option<Outcome> {
        let Fabric { options, ledger, ranks_at, .. } = &world.fab;
        // These change replicas at moments of their own, behind their ranks' backs.
        let changed = options.has(Class::CorruptResult) || options.has(Class::NonFinite);
        let fixed = options.scheduling.deterministic && !ledger.unrepeatable && !changed;
        (fixed && world.controller.exit == Some(0)).then(|| Outcome {
            places: ranks_at.clone(),
            version: ledger.version,
            digest: xxhash_rust::xxh3::xxh3_64(&ledger.consensus),
        })
    }
}

/// Runs one seed, and where it is to be bit-equal whatever the timing, with another timing. `traced`: with every message.
#[must_use]
pub fn run(request: &Request, traced: bool) -> Report {
    let mut report = once(request, traced);
    let Some(outcome) = report.repeats_as.as_ref().filter(|_| report.violation.is_none()) else { return report };
    let other = once(&Request { timing: request.timing + 1, ..request.clone() }, false);
    if other.violation.is_some() {
        return other;
    }
    if let Some(another) = other.repeats_as.filter(|another| another.places == outcome.places && another != outcome) {
        let what = format!(
            "with other devices it comes to {:?} {:016x} and not {:?} {:016x}",
            another.version, another.digest, outcome.version, outcome.digest
        );
        report.violation = Some(Violation { at: report.simulated, rule: Rule::Repeatable, what });
    }
    report
}

/// Runs one seed. `traced`: with every message.
fn once(request: &Request, traced: bool) -> Report {
    let world = World::new(request.clone());
    let mut world = match world {
        Ok(world) => world,
        Err(error) => return refused(request, &error.to_string()),
    };
    if traced {
        world.fab.trace = Some(Vec::new());
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| world.run()));
    let violation = match outcome {
        Ok(Ok(())) => None,
        Ok(Err(violation)) => Some(violation),
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default();
            Some(Violation { at: world.fab.now, rule: Rule::Panic, what: text })
        }
    };
    Report {
        options: world.fab.options.to_string(),
        repeat: world.fab.options.repeat(),
        violation,
        exit: world.controller.exit,
        simulated: world.fab.now,
        events: world.fab.events,
        stream: world.fab.stream,
        faults: world.faults.struck.clone(),
        repeats: world.fab.ledger.repeats,
        repeats_as: Outcome::of(&world),
        trace: world.fab.trace.take().unwrap_or_default(),
    }
}

fn refused(request: &Request, error: &str) -> Report {
    Report {
        options: format!("seed {}", request.seed),
        repeat: format!("cargo xtask sim --seed {}", request.seed),
        violation: Some(Violation { at: Time::ZERO, rule: Rule::Panic, what: error.to_owned() }),
        exit: None,
        simulated: Time::ZERO,
        events: 0,
        stream: 0,
        faults: BTreeMap::new(),
        repeats: 0,
        repeats_as: None,
        trace: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_faults_is_exact() {
        for seed in 0..40 {
            let request = Request { classes: Some(Vec::new()), ..Request::new(seed, (1, 8)) };
            let report = run(&request, false);
            assert_eq!(report.violation, None, "{}\n{}", report.options, report.repeat);
            assert_eq!(report.exit, Some(0), "{}", report.options);
        }
    }
}
