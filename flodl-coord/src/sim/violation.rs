//! What a run did that it must never do.

use core::fmt;
use flodl_wire::Time;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When, in simulated time.
    pub at: Time,
    /// Which rule.
    pub rule: Rule,
    /// What was seen.
    pub what: String,
}

/// The rules that every run is held against.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Every sample is committed exactly once, or its repeat is counted.
    ExactlyOnce,
    /// A consensus is the average of what was folded into it, in one round, of living lives alone.
    Average,
    /// The masses of a result sum up to those of the contributions in it.
    Mass,
    /// Everybody who takes a version holds the same bytes.
    Equal,
    /// Who never had the consensus is no source, and nothing but round 0 has one.
    Source,
    /// The dead get no plan.
    DeadPlan,
    /// A sample is leased to one rank at a time.
    Lease,
    /// A rank runs no further ahead of its window than it may.
    Lead,
    /// Versions, rounds and windows only grow, and there is one round at a time.
    Growth,
    /// What waits is bounded.
    Bounds,
    /// What the coordinator keeps of who stands where is true.
    Tally,
    /// Evaluations are of the consensus, by one living rank at a time, and nothing goes on before their end.
    Duty,
    /// Who has done nothing wrong and whose links are well is neither accused nor lost.
    Innocence,
    /// Who is out of reach for less than the patience keeps its life and its leases, and nothing is sent twice; who is
    /// dead is not taken back.
    Reattach,
    /// Nobody is told to end while anybody averages with others.
    Inside,
    /// After the last fault is healed everything finishes.
    Liveness,
    /// Nothing outlives the run.
    Orphans,
    /// A checkpoint set that is said to be saved is there, whole, whatever happens to the machine.
    Durable,
    /// The exit status says what happened.
    Exit,
    /// No core panics.
    Panic,
    /// What was to be bit-equal whatever the timing is.
    Repeatable,
    /// Two runs of a seed are the same.
    Determinism,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:.6} s: {}", self.rule, self.at.as_secs_f64(), self.what)
    }
}
