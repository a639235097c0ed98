//! The median of a rank's batch times in bounded memory: exact up to [`KEPT`] windows, then over every second window,
//! every fourth, and so on, always spread evenly over the whole run.

use core::time::Duration;

/// The most windows a rank's median is taken over. Even, so that halving keeps the windows evenly spaced.
pub const KEPT: usize = 4096;

/// One rank's batch times, one for each window in which it did a batch.
///
/// The first window is left out of the median: it holds what a process does once (allocation, compilation, cold caches).
/// It counts only while it is the only one. Past [`KEPT`] further windows, every second kept one is dropped and only
/// every second coming one is kept, again at each time the room is full.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchTimes {
    first: Option<Duration>,
    /// Nanoseconds of the windows 0, stride, 2 x stride, ... after the first.
    kept: Vec<u64>,
    stride: u64,
    seen: u64,
}

impl Default for BatchTimes {
    fn default() -> BatchTimes {
        BatchTimes { first: None, kept: Vec::new(), stride: 1, seen: 0 }
    }
}

impl BatchTimes {
    /// Adds the next window's batch time.
    pub fn take(&mut self, time: Duration) {
        if self.first.is_none() {
            self.first = Some(time);
            return;
        }
        if self.seen.is_multiple_of(self.stride) {
            self.kept.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        self.seen = self.seen.saturating_add(1);
        if self.kept.len() >= KEPT {
            let mut index = 0_usize;
            self.kept.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.stride = self.stride.saturating_mul(2);
        }
    }

    /// The median, the mean of the middle two where their number is even; `None` before the first window.
    #[must_use]
    pub fn median(&self) -> Option<Duration> {
        if self.kept.is_empty() {
            return self.first;
        }
        let mut sorted = self.kept.clone();
        sorted.sort_unstable();
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        Some(Duration::from_nanos(lower + (upper - lower) / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median_of(millis: impl IntoIterator<Item = u64>) -> Option<Duration> {
        let mut times = BatchTimes::default();
        millis.into_iter().for_each(|ms| times.take(Duration::from_millis(ms)));
        times.median()
    }

    #[test]
    fn the_first_window_counts_only_while_it_is_alone() {
        for (millis, expected) in [
            (vec![], None),
            (vec![90], Some(90.0)),
            (vec![90, 8], Some(8.0)),
            (vec![90, 8, 10], Some(9.0)),
            (vec![90, 10, 8, 30], Some(10.0)),
            (vec![90, 4, 3, 2, 1], Some(2.5)),
        ] {
            let expected = expected.map(|ms: f64| Duration::from_secs_f64(ms / 1e3));
            assert_eq!(median_of(millis.clone()), expected, "{millis:?}");
        }
    }

    #[test]
    fn it_is_exact_until_the_room_is_full() {
        let windows = KEPT as u64 - 1;
        assert_eq!(median_of(0..=windows), Some(Duration::from_millis(windows.div_ceil(2))));
    }

    #[test]
    fn a_long_run_keeps_evenly_spaced_windows_in_bounded_memory() {
        let mut times = BatchTimes::default();
        for window in 0..1_000_001_u64 {
            times.take(Duration::from_nanos(window));
            assert!(times.kept.len() < KEPT);
        }
        let gaps: Vec<u64> = times.kept.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|&gap| gap == times.stride), "not evenly spaced");
        let median = times.median().unwrap().as_nanos() as f64;
        assert!((median - 500_000.0).abs() < times.stride as f64, "{median} is not the middle");
    }
}
