//! Guards: whether the replicas drift apart too far for longer windows.
//!
//! A guard sees each committed round and says whether windows may grow. It only ever says so: what a verdict does to the
//! window is decided in one place, together with what the learning rate asks for (`arbiter`).

mod msf;
mod trend;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use msf::MsfGuard;
pub use trend::TrendGuard;

use crate::span::Slot;
use crate::watcher::LrPhase;

/// What a guard says of a round.
#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Windows may grow.
    Stable,
    /// Windows may not grow for a while.
    SuppressGrowth,
    /// Windows have to become shorter now.
    NudgeDown {
        /// The anchor is multiplied by this, clamped to [0.1, 1].
        factor: f64,
    },
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stable => f.write_str("windows may grow"),
            Self::SuppressGrowth => f.write_str("windows may not grow"),
            Self::NudgeDown { factor } => write!(f, "windows become shorter by a factor of {factor}"),
        }
    }
}

/// What a verdict rests on.
#[derive(Clone, Debug, PartialEq)]
pub enum Grounds {
    /// Nothing stands out.
    Content,
    /// The largest divergence has been rising.
    Rising {
        /// The last so many rounds each had a larger one than the round before (the first of them included).
        rounds: u32,
        /// The last one.
        divergence: f64,
        /// What it may reach while it rises.
        threshold: f64,
    },
    /// The divergence grows exponentially with the steps between two averages.
    Growing {
        /// The smoothed exponent per step.
        rate: f64,
        /// What it may be.
        limit: f64,
        /// Rounds in a row above the limit.
        rounds: u32,
    },
    /// The learning rate dropped between two rounds.
    RateDropped {
        /// Before.
        from: f64,
        /// Now.
        to: f64,
    },
    /// The guard has not been content for several rounds.
    Sustained {
        /// Its verdicts in a row that were not [`Verdict::Stable`].
        verdicts: u32,
        /// Where the learning-rate schedule stands; later phases wait for fewer of them.
        phase: LrPhase,
    },
    /// What a guard of one's own has to say.
    Said(Cow<'static, str>),
}

impl fmt::Display for Grounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content => f.write_str("nothing stands out"),
            Self::Rising { rounds, divergence, threshold } => {
                write!(f, "the divergence rose over {rounds} rounds to {divergence:.4}, above {threshold}")
            }
            Self::Growing { rate, limit, rounds } => {
                write!(f, "the divergence grows by {rate:.2e} a step, over {limit:.0e} for {rounds} rounds")
            }
            Self::RateDropped { from, to } => write!(f, "the learning rate dropped from {from:.3e} to {to:.3e}"),
            Self::Sustained { verdicts, phase } => {
                write!(f, "the guard was not content for {verdicts} rounds while the learning rate {phase}")
            }
            Self::Said(text) => f.write_str(text),
        }
    }
}

/// A verdict and its grounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What should happen.
    pub verdict: Verdict,
    /// Why.
    pub grounds: Grounds,
}

impl Judgement {
    /// Nothing stands out: windows may grow.
    pub const CONTENT: Self = Self { verdict: Verdict::Stable, grounds: Grounds::Content };

    /// A verdict on these grounds.
    pub fn new(verdict: Verdict, grounds: Grounds) -> Self {
        Self { verdict, grounds }
    }

    /// A verdict with a sentence, for guards of one's own.
    pub fn said(verdict: Verdict, text: impl Into<Cow<'static, str>>) -> Self {
        Self { verdict, grounds: Grounds::Said(text.into()) }
    }
}

/// The norms of a member's parameters before and after it took a round's consensus.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Norms {
    /// Euclidean norm of the replica at its snapshot.
    pub pre: f64,
    /// Euclidean norm of the consensus.
    pub post: f64,
}

/// What a guard sees of a committed round. Values that are not finite have been taken out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuardInput {
    /// |replica - consensus| / |consensus| of each member that reported it; a member that did not is missing, not 0.
    pub divergence: Vec<(Slot, f64)>,
    /// Optimizer steps each member contributed.
    pub steps: Vec<(Slot, u32)>,
    /// The largest of those.
    pub k_max: u32,
    /// Norms of each member that reported them.
    pub norms: Vec<(Slot, Norms)>,
}

impl GuardInput {
    /// The largest divergence; none where nobody reported one.
    pub fn max_divergence(&self) -> Option<f64> {
        self.divergence.iter().map(|&(_, divergence)| divergence).reduce(f64::max)
    }
}

/// Looks at each committed round and says whether windows may grow.
///
/// A guard of one's own is a type with a memory of past rounds and one function. This one watches the norms: averaging
/// replicas that have walked off in different directions gives a consensus shorter than each of them.
///
/// ```
/// use flodl_elche::{Elche, Guard, GuardInput, Judgement, Norms, Settings, Slot, Verdict};
///
/// /// Shortens windows where averages cancel out twice in a row.
/// #[derive(Default)]
/// struct Cancelling {
///     rounds: u32,
/// }
///
/// impl Guard for Cancelling {
///     fn judge(&mut self, round: &GuardInput) -> Judgement {
///         let kept = round.norms.iter().map(|(_, norms)| norms.post / norms.pre.max(1e-10));
///         let Some(least) = kept.reduce(f64::min) else { return Judgement::CONTENT };
///         self.rounds = if least < 0.9 { self.rounds + 1 } else { 0 };
///         match self.rounds {
///             0 => Judgement::CONTENT,
///             1 => Judgement::said(Verdict::SuppressGrowth, format!("the average kept {least:.2} of a norm")),
///             _ => Judgement::said(Verdict::NudgeDown { factor: 0.5 }, "averages keep cancelling out"),
///         }
///     }
///
///     fn name(&self) -> &str {
///         "cancelling"
///     }
///
///     // What a checkpoint keeps of it, as numbers, and how it goes on from them.
///     fn memory(&self) -> Vec<f64> {
///         vec![f64::from(self.rounds)]
///     }
///
///     fn recall(&mut self, memory: &[f64]) -> bool {
///         let [rounds] = memory else { return false };
///         self.rounds = *rounds as u32;
///         true
///     }
/// }
///
/// let mut guard = Cancelling::default();
/// let round = GuardInput { norms: vec![(Slot(0), Norms { pre: 10.0, post: 6.0 })], ..GuardInput::default() };
/// assert_eq!(guard.judge(&round).verdict, Verdict::SuppressGrowth);
/// assert_eq!(guard.judge(&round).verdict, Verdict::NudgeDown { factor: 0.5 });
/// let elche = Elche::new(Settings::default(), Box::new(guard))?;
/// # Ok::<(), flodl_elche::SettingsError>(())
/// ```
pub trait Guard: Send {
    /// The verdict on one round, and why; called once a round, in order.
    fn judge(&mut self, round: &GuardInput) -> Judgement;

    /// A name under which its memory is kept; another guard does not get it back.
    fn name(&self) -> &str {
        "own"
    }

    /// What it has to keep over a restart, as finite numbers; by default nothing. It must not depend on who the members
    /// are, because the run may go on with others.
    fn memory(&self) -> Vec<f64> {
        Vec::new()
    }

    /// Goes on from what [`memory`](Self::memory) gave. False: the numbers are none of its own and it begins anew.
    fn recall(&mut self, memory: &[f64]) -> bool {
        memory.is_empty()
    }
}

/// The guard that is always content.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NoGuard;

impl Guard for NoGuard {
    fn judge(&mut self, _round: &GuardInput) -> Judgement {
        Judgement::CONTENT
    }

    fn name(&self) -> &str {
        "none"
    }
}

/// The guards there are, by name.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum GuardKind {
    /// [`NoGuard`].
    #[default]
    None,
    /// [`TrendGuard`].
    Trend,
    /// [`MsfGuard`].
    Msf,
}

impl GuardKind {
    /// All of them, in the order in which help texts list them.
    pub const ALL: [Self; 3] = [Self::None, Self::Trend, Self::Msf];

    /// A guard of this kind. `pull` in (0, 1] is how far a replica goes towards the consensus at a round; replicas that go
    /// only part of the way are further apart by design, and the thresholds allow for it.
    pub fn build(self, pull: f64) -> Box<dyn Guard> {
        match self {
            Self::None => Box::new(NoGuard),
            Self::Trend => Box::new(TrendGuard::for_pull(pull)),
            Self::Msf => Box::new(MsfGuard::default()),
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Trend => "trend",
            Self::Msf => "msf",
        }
    }
}

impl fmt::Display for GuardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no guard.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("there is no guard {word:?}: take none, trend or msf")]
pub struct UnknownGuard {
    /// The word.
    pub word: String,
}

impl FromStr for GuardKind {
    type Err = UnknownGuard;

    fn from_str(word: &str) -> Result<Self, UnknownGuard> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == word);
        kind.ok_or_else(|| UnknownGuard { word: word.to_owned() })
    }
}

/// A whole number that a guard kept as one of its numbers.
fn count(number: f64) -> Option<u32> {
    (number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number)).then_some(number as u32)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A round of one member with this divergence and this many steps.
    pub(crate) fn round(divergence: f64, steps: u32) -> GuardInput {
        GuardInput {
            divergence: vec![(Slot(0), divergence)],
            steps: vec![(Slot(0), steps)],
            k_max: steps,
            ..GuardInput::default()
        }
    }

    /// A guard's verdicts, a letter each: `.` stable, `s` suppress growth, `n` nudge down.
    pub(crate) fn letters(guard: &mut dyn Guard, rounds: &[GuardInput]) -> String {
        let letter = |verdict| match verdict {
            Verdict::Stable => '.',
            Verdict::SuppressGrowth => 's',
            Verdict::NudgeDown { .. } => 'n',
        };
        rounds.iter().map(|round| letter(guard.judge(round).verdict)).collect()
    }

    #[test]
    fn names_go_both_ways_and_build_what_they_say() {
        for (name, kind) in [("none", GuardKind::None), ("trend", GuardKind::Trend), ("msf", GuardKind::Msf)] {
            assert_eq!(name.parse(), Ok(kind));
            assert_eq!((kind.to_string().as_str(), kind.build(1.0).name()), (name, name));
        }
        assert_eq!("Trend".parse::<GuardKind>(), Err(UnknownGuard { word: "Trend".into() }));
    }

    #[test]
    fn every_guard_goes_on_where_its_memory_ends_and_refuses_another_ones() {
        let rounds: Vec<GuardInput> = (1..20).map(|i| round(0.01 * f64::from(i * i % 37 + i), 5)).collect();
        for kind in GuardKind::ALL {
            for cut in 0..rounds.len() {
                let mut whole = kind.build(1.0);
                letters(&mut *whole, &rounds[..cut]);
                let mut other = kind.build(1.0);
                assert!(other.recall(&whole.memory()), "{kind} after {cut}");
                assert_eq!(other.memory(), whole.memory());
                assert_eq!(letters(&mut *other, &rounds[cut..]), letters(&mut *whole, &rounds[cut..]), "{kind} {cut}");
            }
            for bad in [vec![1.0], vec![f64::NAN; 3], vec![-1.0; 4], vec![1.5; 5], vec![1e300; 6]] {
                let mut guard = kind.build(1.0);
                let fresh = guard.memory();
                assert!(!guard.recall(&bad), "{kind} {bad:?}");
                assert_eq!(guard.memory(), fresh, "a refused memory changes nothing");
            }
        }
    }
}
