//! How long a member's batch takes: an estimate that jitter does not move and a change of regime does.
//!
//! The estimate is the median of the last five windows' samples. Where three samples in a row differ from it by more
//! than a quarter on the same side, the device has changed (throttled, or has the machine to itself again), and the
//! estimate starts over from the newest sample.

use std::time::Duration;

use crate::cadence::WindowSample;
use crate::change::Rejected;

/// Samples the median is taken of.
const KEPT: usize = 5;
/// So many samples in a row off by more than [`OFF`] are a change of regime.
const RUN: u32 = 3;
/// How far off, relative to the estimate.
const OFF: f64 = 0.25;
/// So many windows without a sample, and the estimate is forgotten.
pub(crate) const ABSENT_MAX: u32 = 5;
/// A batch is not shorter than this; what says so was not measured.
const BATCH_MIN: Duration = Duration::from_nanos(100);
/// A batch is not longer than this; what says so is a stopped machine or a broken clock.
const BATCH_MAX: Duration = Duration::from_secs(24 * 3600);

/// What a sample did to the estimate, in seconds a batch.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Shift {
    /// Nothing worth telling.
    Steady,
    /// The first estimate.
    Calibrated,
    /// A new regime; the estimate was `from`.
    Regime { from: f64 },
}

/// The measured speed of one member.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Speed {
    batch: Window,
    fill: Window,
    off: Option<(Side, u32)>,
    absent: u32,
    fresh: bool,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Side {
    Slower,
    Faster,
}

impl Speed {
    /// Takes one window's sample in.
    ///
    /// # Errors
    ///
    /// Where its numbers cannot be; nothing has changed then.
    pub(crate) fn take(&mut self, sample: WindowSample) -> Result<Shift, Rejected> {
        let (batch, fill) = split_sample(sample)?;
        self.absent = 0;
        self.fresh = true;
        self.fill.push(fill);
        let Some(estimate) = self.batch.median() else {
            self.batch.push(batch);
            return Ok(Shift::Calibrated);
        };
        let side = if batch > estimate * (1.0 + OFF) {
            Some(Side::Slower)
        } else if batch < estimate * (1.0 - OFF) {
            Some(Side::Faster)
        } else {
            None
        };
        self.off = match (side, self.off) {
            (None, _) => None,
            (Some(side), Some((before, run))) if before == side => Some((side, run + 1)),
            (Some(side), _) => Some((side, 1)),
        };
        if self.off.is_some_and(|(_, run)| run >= RUN) {
            self.off = None;
            self.batch.restart(batch);
            return Ok(Shift::Regime { from: estimate });
        }
        self.batch.push(batch);
        Ok(Shift::Steady)
    }

    /// A window is over; true where the member has now been absent for so long that its estimate is forgotten.
    pub(crate) fn window_over(&mut self) -> bool {
        if std::mem::take(&mut self.fresh) || self.batch.median().is_none() {
            return false;
        }
        self.absent += 1;
        let forgotten = self.absent >= ABSENT_MAX;
        if forgotten {
            *self = Self::default();
        }
        forgotten
    }

    /// The measured times that are kept, in seconds, oldest first: batches and fills.
    pub(crate) fn kept(&self) -> (&[f64], &[f64]) {
        (self.batch.values(), self.fill.values())
    }

    /// Goes on from kept times; what cannot be one is left out.
    pub(crate) fn from_kept(batches: &[f64], fills: &[f64]) -> Self {
        let mut speed = Self::default();
        let possible = BATCH_MIN.as_secs_f64()..=BATCH_MAX.as_secs_f64();
        batches.iter().filter(|seconds| possible.contains(seconds)).for_each(|&s| speed.batch.push(s));
        fills.iter().filter(|seconds| (0.0..=*possible.end()).contains(*seconds)).for_each(|&s| speed.fill.push(s));
        speed
    }

    /// Whether a sample was taken since the last window's end.
    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Seconds a batch.
    pub(crate) fn batch(&self) -> Option<f64> {
        self.batch.median()
    }

    /// What the first batch of the last window took beyond the others, in seconds.
    pub(crate) fn last_fill(&self) -> f64 {
        self.fill.values().last().copied().unwrap_or(0.0)
    }

    /// Seconds a window's first batch takes beyond that.
    pub(crate) fn fill(&self) -> f64 {
        self.fill.median().unwrap_or(0.0)
    }
}

/// Whether a report's times can be believed.
pub(crate) fn is_usable(sample: WindowSample) -> bool {
    split_sample(sample).is_ok()
}

/// A window's seconds a batch, and its fill.
fn split_sample(sample: WindowSample) -> Result<(f64, f64), Rejected> {
    let batch = sample.batch().ok_or(Rejected::NoBatches)?;
    if batch < BATCH_MIN || sample.first < BATCH_MIN {
        return Err(Rejected::TooShort { batch: batch.min(sample.first) });
    }
    if batch > BATCH_MAX || sample.first > BATCH_MAX {
        return Err(Rejected::TooLong { batch: batch.max(sample.first) });
    }
    Ok((batch.as_secs_f64(), sample.fill().as_secs_f64()))
}

/// The last few values of something, and their median.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub(crate) struct Window {
    values: [f64; KEPT],
    len: usize,
    /// Kept with the values, because it is asked for far more often than they change.
    median: Option<f64>,
}

impl Window {
    pub(crate) fn push(&mut self, value: f64) {
        if self.len == KEPT {
            self.values.rotate_left(1);
        } else {
            self.len += 1;
        }
        self.values[self.len - 1] = value;
        let mut sorted = self.values;
        self.median = median_in(&mut sorted[..self.len]);
    }

    fn restart(&mut self, value: f64) {
        self.len = 0;
        self.push(value);
    }

    /// The values, oldest first.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values[..self.len]
    }

    pub(crate) fn median(&self) -> Option<f64> {
        self.median
    }
}

/// The median of `values`, whose order this changes: the mean of the middle two where their number is even; none of
/// nothing. Takes time in proportion to their number.
pub(crate) fn median_in(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let even = values.len().is_multiple_of(2);
    let (below, &mut middle, _) = values.select_nth_unstable_by(values.len() / 2, f64::total_cmp);
    let lower = below.iter().copied().max_by(f64::total_cmp).filter(|_| even);
    Some(lower.map_or(middle, |lower| (lower + middle) / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_median_is_the_middle_of_the_sorted(values in prop::collection::vec(-9.0f64..9.0, 0..12)) {
            let mut sorted = values.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            let n = sorted.len();
            let expected = match n {
                0 => None,
                _ if n % 2 == 1 => Some(sorted[n / 2]),
                _ => Some((sorted[n / 2 - 1] + sorted[n / 2]) / 2.0),
            };
            prop_assert_eq!(median_in(&mut values.clone()), expected);
            let mut window = Window::default();
            values.iter().for_each(|&value| window.push(value));
            let last = values.len().saturating_sub(KEPT);
            prop_assert_eq!(window.values(), &values[last..]);
            prop_assert_eq!(window.median(), median_in(&mut values[last..].to_vec()));
        }
    }

    fn sample(batches: u32, first_ms: u64, rest_ms: u64) -> WindowSample {
        WindowSample {
            batches,
            first: Duration::from_millis(first_ms),
            rest: Duration::from_millis(rest_ms),
            data_wait: Duration::ZERO,
        }
    }

    /// Feeds windows of two batches of so many milliseconds.
    fn fed(millis: &[u64]) -> (Speed, Vec<Shift>) {
        let mut speed = Speed::default();
        let shifts = millis.iter().map(|&ms| speed.take(sample(2, ms, ms)).unwrap()).collect();
        (speed, shifts)
    }

    #[test]
    fn the_first_batch_counts_apart_as_fill() {
        for (given, batch, fill) in
            [(sample(5, 30, 40), 0.010, 0.020), (sample(1, 30, 0), 0.030, 0.0), (sample(3, 5, 20), 0.010, 0.0)]
        {
            let mut speed = Speed::default();
            assert_eq!(speed.take(given), Ok(Shift::Calibrated));
            assert!((speed.batch().unwrap() - batch).abs() < 1e-9);
            assert!((speed.fill() - fill).abs() < 1e-9);
        }
    }

    #[test]
    fn single_outliers_do_not_move_the_estimate() {
        let (speed, shifts) = fed(&[10, 10, 10, 90, 10]);
        assert_eq!(speed.batch(), Some(0.010));
        assert!(shifts[1..].iter().all(|&shift| shift == Shift::Steady));
    }

    #[test]
    fn three_in_a_row_on_one_side_are_a_new_regime() {
        let (speed, shifts) = fed(&[10, 10, 10, 10, 10, 16, 17, 18]);
        assert_eq!(shifts[7], Shift::Regime { from: 0.010 });
        assert_eq!(speed.batch(), Some(0.018));
        let (speed, shifts) = fed(&[10, 10, 10, 10, 10, 16, 16, 7, 16]);
        assert!(shifts[1..].iter().all(|&shift| shift == Shift::Steady), "{shifts:?}");
        assert_eq!(speed.batch(), Some(0.016));
    }

    #[test]
    fn numbers_that_cannot_be_are_rejected() {
        let (before, _) = fed(&[10, 11]);
        for bad in [
            WindowSample { batches: 3, ..WindowSample::default() },
            WindowSample { batches: 3, first: Duration::MAX, rest: Duration::MAX, data_wait: Duration::MAX },
            WindowSample {
                batches: u32::MAX,
                first: Duration::from_millis(1),
                rest: Duration::from_nanos(1),
                ..before_sample()
            },
            WindowSample { batches: 1, first: Duration::from_nanos(99), ..before_sample() },
        ] {
            let mut speed = before.clone();
            assert!(speed.take(bad).is_err(), "{bad:?}");
            assert_eq!(speed, before);
        }
    }

    fn before_sample() -> WindowSample {
        sample(2, 10, 10)
    }

    #[test]
    fn an_absent_member_is_forgotten_after_five_windows() {
        let (mut speed, _) = fed(&[10]);
        let forgotten: Vec<bool> = (0..7).map(|_| speed.window_over()).collect();
        assert_eq!(forgotten, [false, false, false, false, false, true, false]);
        assert_eq!(speed.batch(), None);
    }
}
