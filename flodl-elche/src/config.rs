//! The scheduler's settings, and which of them contradict each other.

use std::collections::BTreeSet;

use thiserror::Error;

use crate::mode::{Policy, Windowing};
use crate::span::Slot;

/// The anchor a Cadence run begins with where nothing else is said, in batches of the slowest member.
const ANCHOR_START: u32 = 4;

/// What the scheduler is asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// How ranks wait for each other.
    pub policy: Policy,
    /// How a rank knows that its window is over.
    pub windowing: Windowing,
    /// Samples in a batch, at least 1; one batch size for all ranks.
    pub batch_size: u32,
    /// The anchor of the first window: batches of the slowest member. Unset: 4, or 1 under Sync.
    pub anchor_start: Option<u32>,
    /// The anchor does not shrink below this, unless a guard or a short epoch asks for it. At least 1.
    pub min_anchor: u32,
    /// The anchor does not grow above this.
    pub max_anchor: u32,
    /// The part of the wall time that may go to waiting, reducing and filling, in (0, 0.5].
    pub overhead_target: f64,
    /// How many batches more than the slowest a rank may do in a window; unset: as many as its speed allows.
    pub max_batch_diff: Option<u32>,
    /// Relative speeds the user knows beforehand; larger is faster, the unit does not matter.
    pub speed_hints: Vec<(Slot, f64)>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            policy: Policy::Cadence,
            windowing: Windowing::Budget,
            batch_size: 64,
            anchor_start: None,
            min_anchor: 4,
            max_anchor: 1000,
            overhead_target: 0.03,
            max_batch_diff: None,
            speed_hints: Vec::new(),
        }
    }
}

/// Settings that cannot be followed, each with what to change.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SettingsError {
    /// The policy has no scheduler here.
    #[error("policy async is not supported by this scheduler: take cadence (long windows) or sync (every step)")]
    AsyncUnsupported,
    /// No samples in a batch.
    #[error("batch_size is 0: a batch holds at least one sample")]
    EmptyBatch,
    /// The smallest anchor is no window at all.
    #[error("min_anchor is 0: the slowest member does at least one batch a window")]
    NoAnchor,
    /// The bounds exclude each other.
    #[error("min_anchor {min} is above max_anchor {max}: lower the one or raise the other")]
    AnchorBounds {
        /// `min_anchor`.
        min: u32,
        /// `max_anchor`.
        max: u32,
    },
    /// The first anchor lies outside the bounds.
    #[error("anchor_start {start} is not within min_anchor {min} and max_anchor {max}: move it or the bound it breaks")]
    AnchorStart {
        /// `anchor_start`.
        start: u32,
        /// `min_anchor`.
        min: u32,
        /// `max_anchor`.
        max: u32,
    },
    /// An anchor was asked for under Sync.
    #[error(
        "anchor_start {start} contradicts policy sync, which averages after every batch: take policy cadence or leave it out"
    )]
    AnchorUnderSync {
        /// `anchor_start`.
        start: u32,
    },
    /// The target is no useful fraction.
    #[error(
        "overhead_target {target} is not above 0 and at most 0.5: it is the fraction of the time that may be overhead"
    )]
    OverheadTarget {
        /// `overhead_target`.
        target: f64,
    },
    /// A speed hint is no speed.
    #[error(
        "the speed hint {speed} of {slot} is not a finite number above 0: larger is faster, the unit does not matter"
    )]
    SpeedHint {
        /// Whose hint.
        slot: Slot,
        /// The hint.
        speed: f64,
    },
    /// Two speed hints for one member.
    #[error("{slot} has two speed hints: leave one")]
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
        if self.policy == Policy::Async {
            return Err(SettingsError::AsyncUnsupported);
        }
        if self.batch_size == 0 {
            return Err(SettingsError::EmptyBatch);
        }
        if !(self.overhead_target > 0.0 && self.overhead_target <= 0.5) {
            return Err(SettingsError::OverheadTarget { target: self.overhead_target });
        }
        self.validate_anchors()?;
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

    fn validate_anchors(&self) -> Result<(), SettingsError> {
        let (min, max) = (self.min_anchor, self.max_anchor);
        if self.policy == Policy::Sync {
            // The bounds do not apply: a window is one batch.
            return match self.anchor_start {
                Some(start) if start != 1 => Err(SettingsError::AnchorUnderSync { start }),
                _ => Ok(()),
            };
        }
        if min == 0 {
            return Err(SettingsError::NoAnchor);
        }
        if min > max {
            return Err(SettingsError::AnchorBounds { min, max });
        }
        match self.anchor_start {
            Some(start) if start < min || start > max => Err(SettingsError::AnchorStart { start, min, max }),
            _ => Ok(()),
        }
    }

    /// The anchor of the first window.
    pub(crate) fn first_anchor(&self) -> u32 {
        match self.policy {
            Policy::Sync => 1,
            Policy::Cadence | Policy::Async => {
                self.anchor_start.unwrap_or(ANCHOR_START.clamp(self.min_anchor, self.max_anchor))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_start_at_four() {
        let settings = Settings::default();
        assert_eq!(settings.validate(), Ok(()));
        assert_eq!(settings.first_anchor(), 4);
        let sync = Settings { policy: Policy::Sync, ..Settings::default() };
        assert_eq!(sync.validate(), Ok(()));
        assert_eq!(sync.first_anchor(), 1);
        let bounded = Settings { max_anchor: 2, min_anchor: 1, ..Settings::default() };
        assert_eq!((bounded.validate(), bounded.first_anchor()), (Ok(()), 2));
    }

    #[test]
    fn c1_contradictions_are_named() {
        let ok = Settings::default;
        let sync = || Settings { policy: Policy::Sync, ..Settings::default() };
        for (settings, error) in [
            (Settings { policy: Policy::Async, ..ok() }, SettingsError::AsyncUnsupported),
            (Settings { batch_size: 0, ..ok() }, SettingsError::EmptyBatch),
            (Settings { min_anchor: 0, ..ok() }, SettingsError::NoAnchor),
            (Settings { min_anchor: 9, max_anchor: 8, ..ok() }, SettingsError::AnchorBounds { min: 9, max: 8 }),
            (Settings { anchor_start: Some(3), ..ok() }, SettingsError::AnchorStart { start: 3, min: 4, max: 1000 }),
            (Settings { anchor_start: Some(4), ..sync() }, SettingsError::AnchorUnderSync { start: 4 }),
            (Settings { overhead_target: 0.0, ..ok() }, SettingsError::OverheadTarget { target: 0.0 }),
            (Settings { overhead_target: 0.6, ..ok() }, SettingsError::OverheadTarget { target: 0.6 }),
            (
                Settings { speed_hints: vec![(Slot(1), 0.0)], ..ok() },
                SettingsError::SpeedHint { slot: Slot(1), speed: 0.0 },
            ),
            (
                Settings { speed_hints: vec![(Slot(1), 2.0), (Slot(1), 2.0)], ..ok() },
                SettingsError::SpeedHintTwice { slot: Slot(1) },
            ),
        ] {
            assert_eq!(settings.validate(), Err(error));
        }
        assert!(Settings { overhead_target: f64::NAN, ..ok() }.validate().is_err());
    }
}
