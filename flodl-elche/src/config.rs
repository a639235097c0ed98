//! The scheduler's settings, and which of them contradict each other.
//!
//! Settings that only make sense under some policies are unset by default, so that a value a person gave can be told
//! from one that nobody asked for, and is refused where it would have no effect.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::mode::{Policy, Windowing};
use crate::span::Slot;

/// The anchor does not shrink below this where nothing else is said.
pub(crate) const MIN_ANCHOR: u32 = 4;
/// The anchor does not grow above this where nothing else is said.
pub(crate) const MAX_ANCHOR: u32 = 1000;
/// The part of the wall time that may be overhead where nothing else is said.
pub(crate) const OVERHEAD_TARGET: f64 = 0.03;

/// What the scheduler is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How ranks wait for each other.
    pub policy: Policy,
    /// How a rank knows that its window is over.
    pub windowing: Windowing,
    /// Samples in a batch, at least 1; one batch size for all ranks.
    pub batch_size: u32,
    /// The anchor: where it starts and what bounds it.
    pub anchor: AnchorSettings,
    /// How many batches more than the slowest a rank may do in a window; unset: as many as its speed allows.
    pub max_batch_diff: Option<u32>,
    /// Under Async, how many batches over its quota a rank may do while its round is reduced; unset: 3, growing to 15 while
    /// rounds are stable.
    pub overshoot: Option<u32>,
    /// Relative speeds the user knows beforehand; larger is faster, the unit does not matter.
    pub speed_hints: Vec<(Slot, f64)>,
    /// Plans depend on nothing that is measured: counts by the hints' speeds (equal without any), windows that keep their
    /// length, and nobody runs ahead.
    pub deterministic: bool,
}

/// What the anchor (batches of the slowest member in a window) may be. None of it applies under Sync.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnchorSettings {
    /// In the first window. Unset: 4, within the bounds.
    pub start: Option<u32>,
    /// Not below this, unless a guard or a short epoch asks for it. At least 1; unset: 4.
    pub min: Option<u32>,
    /// Not above this. Unset: 1000.
    pub max: Option<u32>,
    /// The part of the wall time that may go to waiting, reducing and filling, in (0, 0.5]. Unset: 0.03.
    pub overhead_target: Option<f64>,
}

impl AnchorSettings {
    /// An anchor that never moves, except where a guard or a short epoch asks for it.
    pub fn fixed(anchor: u32) -> Self {
        Self { start: Some(anchor), min: Some(anchor), max: Some(anchor), overhead_target: None }
    }

    /// The lower bound in force.
    pub fn least(&self) -> u32 {
        self.min.unwrap_or(MIN_ANCHOR.min(self.max.unwrap_or(MIN_ANCHOR)))
    }

    /// The upper bound in force.
    pub fn most(&self) -> u32 {
        self.max.unwrap_or(MAX_ANCHOR.max(self.min.unwrap_or(MAX_ANCHOR)))
    }

    /// The overhead target in force.
    pub fn target(&self) -> f64 {
        self.overhead_target.unwrap_or(OVERHEAD_TARGET)
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::Cadence,
            windowing: Windowing::Budget,
            batch_size: 64,
            anchor: AnchorSettings::default(),
            max_batch_diff: None,
            overshoot: None,
            speed_hints: Vec::new(),
            deterministic: false,
        }
    }
}

/// Settings that cannot be followed, each with what to change. The words are those of the command line's options.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SettingsError {
    /// No samples in a batch.
    #[error("batch-size is 0: a batch holds at least one sample")]
    EmptyBatch,
    /// The smallest anchor is no window at all.
    #[error("min-anchor is 0: the slowest rank does at least one batch a window")]
    NoAnchor,
    /// The bounds exclude each other.
    #[error("min-anchor {min} is above max-anchor {max}: lower the one or raise the other")]
    AnchorBounds {
        /// The lower bound.
        min: u32,
        /// The upper bound.
        max: u32,
    },
    /// The first anchor lies outside the bounds.
    #[error("anchor {start} is not within min-anchor {min} and max-anchor {max}: move it or the bound it breaks")]
    AnchorStart {
        /// The first anchor.
        start: u32,
        /// The lower bound.
        min: u32,
        /// The upper bound.
        max: u32,
    },
    /// A setting that has no effect under the policy.
    #[error("{setting} {value} contradicts policy {policy}, {because}: take policy {instead} or leave it out")]
    Policy {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// The policy.
        policy: Policy,
        /// Why it has no effect there.
        because: &'static str,
        /// Under which policy it has one.
        instead: Policy,
    },
    /// An overhead target where the anchor cannot move.
    #[error(
        "overhead-target {target} contradicts min-anchor and max-anchor, which are both {anchor}: the target moves the \
         anchor between them; leave it out or move a bound"
    )]
    TargetOfFixed {
        /// The target.
        target: f64,
        /// Both bounds.
        anchor: u32,
    },
    /// A setting that only means something where plans follow what is measured.
    #[error("{setting} {value} contradicts deterministic, {because}: leave one of the two out")]
    Deterministic {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// Why it has no effect there.
        because: &'static str,
    },
    /// The target is no useful fraction.
    #[error(
        "overhead-target {target} is not above 0 and at most 0.5: it is the fraction of the time that may be overhead"
    )]
    OverheadTarget {
        /// The target.
        target: f64,
    },
    /// A speed hint is no speed.
    #[error("the speed {speed} of {slot} is not a finite number above 0: larger is faster, the unit does not matter")]
    SpeedHint {
        /// Whose hint.
        slot: Slot,
        /// The hint.
        speed: f64,
    },
    /// Two speed hints for one member.
    #[error("{slot} has two speeds: leave one")]
    SpeedHintTwice {
        /// Whose hints.
        slot: Slot,
    },
}

impl Settings {
    /// Checks each setting and that no two contradict each other.
    ///
    /// # Errors
    ///
    /// The first contradiction found, naming the settings and their values.
    pub fn validate(&self) -> Result<(), SettingsError> {
        if self.batch_size == 0 {
            return Err(SettingsError::EmptyBatch);
        }
        self.validate_policy()?;
        self.validate_deterministic()?;
        self.validate_anchor()?;
        let mut hinted = BTreeSet::new();
        for &(slot, speed) in &self.speed_hints {
            if !(speed.is_finite() && speed > 0.0) {
                return Err(SettingsError::SpeedHint { slot, speed });
            }
            if !hinted.insert(slot) {
                return Err(SettingsError::SpeedHintTwice { slot });
            }
        }
        Ok(())
    }

    /// No setting may be given that has no effect.
    fn validate_policy(&self) -> Result<(), SettingsError> {
        let AnchorSettings { start, min, max, overhead_target } = self.anchor;
        let lockstep = [
            ("anchor", start.filter(|&start| start != 1).map(f64::from)),
            ("min-anchor", min.map(f64::from)),
            ("max-anchor", max.map(f64::from)),
            ("overhead-target", overhead_target),
            ("max-batch-diff", self.max_batch_diff.map(f64::from)),
        ];
        let policy = self.policy;
        for (setting, value) in lockstep {
            if policy == Policy::Sync
                && let Some(value) = value
            {
                let because = "which averages after every batch";
                return Err(SettingsError::Policy { setting, value, policy, because, instead: Policy::Cadence });
            }
        }
        match self.overshoot {
            Some(value) if policy != Policy::Async => Err(SettingsError::Policy {
                setting: "overshoot",
                value: f64::from(value),
                policy,
                because: "under which nobody trains while a round is averaged",
                instead: Policy::Async,
            }),
            _ => Ok(()),
        }
    }

    /// Nor one that would be moved by what is measured.
    fn validate_deterministic(&self) -> Result<(), SettingsError> {
        let AnchorSettings { start: _, min, max, overhead_target } = self.anchor;
        let fixed = "under which windows keep the length that anchor says";
        let ahead = "under which nobody runs ahead of its window";
        let moved = [
            ("overhead-target", overhead_target, fixed),
            ("min-anchor", min.map(f64::from), fixed),
            ("max-anchor", max.map(f64::from), fixed),
            ("overshoot", self.overshoot.filter(|&overshoot| overshoot > 0).map(f64::from), ahead),
        ];
        for (setting, value, because) in moved.into_iter().filter(|_| self.deterministic) {
            if let Some(value) = value {
                return Err(SettingsError::Deterministic { setting, value, because });
            }
        }
        Ok(())
    }

    fn validate_anchor(&self) -> Result<(), SettingsError> {
        let (min, max, target) = (self.anchor.least(), self.anchor.most(), self.anchor.target());
        if min == 0 || max == 0 {
            return Err(SettingsError::NoAnchor);
        }
        if min > max {
            return Err(SettingsError::AnchorBounds { min, max });
        }
        if self.deterministic && self.anchor.start == Some(0) {
            return Err(SettingsError::NoAnchor);
        }
        if let Some(start) = self.anchor.start
            && self.policy != Policy::Sync
            && !self.deterministic
            && !(min..=max).contains(&start)
        {
            return Err(SettingsError::AnchorStart { start, min, max });
        }
        if !(target > 0.0 && target <= 0.5) {
            return Err(SettingsError::OverheadTarget { target });
        }
        match self.anchor.overhead_target {
            Some(target) if min == max => Err(SettingsError::TargetOfFixed { target, anchor: min }),
            _ => Ok(()),
        }
    }

    /// The anchor of the first window.
    pub fn first_anchor(&self) -> u32 {
        let usual = self.policy.defaults().anchor;
        match self.policy {
            Policy::Sync => usual,
            Policy::Cadence | Policy::Async => {
                self.anchor.start.unwrap_or(usual.clamp(self.anchor.least(), self.anchor.most()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn anchored(anchor: AnchorSettings) -> Settings {
        Settings { anchor, ..Settings::default() }
    }

    #[test]
    fn defaults_are_valid_and_start_at_four() {
        for (settings, first) in [
            (Settings::default(), 4),
            (Settings { policy: Policy::Async, overshoot: Some(0), ..Settings::default() }, 4),
            (Settings { policy: Policy::Sync, ..Settings::default() }, 1),
            (anchored(AnchorSettings { min: Some(1), max: Some(2), ..Default::default() }), 2),
            // One bound beyond the other one's default moves that.
            (anchored(AnchorSettings { max: Some(2), ..Default::default() }), 2),
            (anchored(AnchorSettings { min: Some(2000), ..Default::default() }), 2000),
            (anchored(AnchorSettings::fixed(16)), 16),
            (Settings { deterministic: true, ..anchored(AnchorSettings { start: Some(2), ..Default::default() }) }, 2),
        ] {
            assert_eq!((settings.validate(), settings.first_anchor()), (Ok(()), first), "{settings:?}");
        }
    }

    #[test]
    fn c1_contradictions_are_named() {
        let ok = Settings::default;
        let none = AnchorSettings::default;
        let sync = |anchor| Settings { policy: Policy::Sync, anchor, ..Settings::default() };
        let fixed = |anchor| Settings { deterministic: true, ..anchored(anchor) };
        for (settings, error) in [
            (Settings { batch_size: 0, ..ok() }, "batch-size is 0"),
            (anchored(AnchorSettings { min: Some(0), ..none() }), "min-anchor is 0"),
            (anchored(AnchorSettings { max: Some(0), ..none() }), "min-anchor is 0"),
            (
                anchored(AnchorSettings { min: Some(9), max: Some(8), ..none() }),
                "min-anchor 9 is above max-anchor 8: lower the one or raise the other",
            ),
            (anchored(AnchorSettings { start: Some(3), ..none() }), "anchor 3 is not within min-anchor 4"),
            (
                sync(AnchorSettings { start: Some(4), ..none() }),
                "anchor 4 contradicts policy sync, which averages after every batch: take policy cadence or leave it out",
            ),
            (sync(AnchorSettings { min: Some(2), ..none() }), "min-anchor 2 contradicts policy sync"),
            (sync(AnchorSettings { max: Some(20), ..none() }), "max-anchor 20 contradicts policy sync"),
            (
                sync(AnchorSettings { overhead_target: Some(0.1), ..none() }),
                "overhead-target 0.1 contradicts policy sync",
            ),
            (Settings { max_batch_diff: Some(3), ..sync(none()) }, "max-batch-diff 3 contradicts policy sync"),
            (
                Settings { overshoot: Some(3), ..ok() },
                "overshoot 3 contradicts policy cadence, under which nobody trains while a round is averaged: take policy \
                 async or leave it out",
            ),
            (
                anchored(AnchorSettings { overhead_target: Some(0.1), ..AnchorSettings::fixed(8) }),
                "overhead-target 0.1 contradicts min-anchor and max-anchor, which are both 8",
            ),
            (anchored(AnchorSettings { overhead_target: Some(0.0), ..none() }), "overhead-target 0 is not above 0"),
            (anchored(AnchorSettings { overhead_target: Some(0.6), ..none() }), "overhead-target 0.6 is not above 0"),
            (anchored(AnchorSettings { overhead_target: Some(f64::NAN), ..none() }), "overhead-target NaN is not"),
            (
                fixed(AnchorSettings { overhead_target: Some(0.1), ..none() }),
                "overhead-target 0.1 contradicts deterministic, under which windows keep the length that anchor says: leave \
                 one of the two out",
            ),
            (fixed(AnchorSettings { min: Some(2), ..none() }), "min-anchor 2 contradicts deterministic"),
            (fixed(AnchorSettings { max: Some(9), ..none() }), "max-anchor 9 contradicts deterministic"),
            (fixed(AnchorSettings { start: Some(0), ..none() }), "min-anchor is 0"),
            (
                Settings { policy: Policy::Async, overshoot: Some(2), ..fixed(none()) },
                "overshoot 2 contradicts deterministic, under which nobody runs ahead",
            ),
            (Settings { speed_hints: vec![(Slot(1), 0.0)], ..ok() }, "the speed 0 of slot 1 is not a finite number"),
            (
                Settings { speed_hints: vec![(Slot(1), 2.0), (Slot(1), 2.0)], ..ok() },
                "slot 1 has two speeds: leave one",
            ),
        ] {
            let said = settings.validate().expect_err(error).to_string();
            assert!(said.starts_with(error), "{said}");
        }
    }
}
