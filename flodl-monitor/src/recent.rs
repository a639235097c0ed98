//! The speed of the last seconds, from the times of the commits themselves.

use core::time::Duration;
use flodl_wire::Time;
use std::collections::VecDeque;

/// How far back "recent" reaches.
pub const RECENT: Duration = Duration::from_secs(10);

/// The most commits kept; when there are more within [`RECENT`], every second one is forgotten.
const MARKS: usize = 64;

/// Windows behind a speed before anything is foretold from it: the first one holds what ranks do once.
const WINDOWS: u64 = 2;

/// Totals at the commits of the last seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    marks: VecDeque<(Time, u64)>,
    /// Marks since the first one, or since the last change.
    windows: u64,
    /// The run has changed, and what was before the next mark says nothing of what comes.
    changed: bool,
}

impl Recent {
    /// The run is not what it was: a rank is gone. The window that goes on is still in part of before.
    pub(crate) fn changed(&mut self) {
        self.changed = true;
    }

    /// At `at` the total is `total`.
    pub(crate) fn mark(&mut self, at: Time, total: u64) {
        if std::mem::take(&mut self.changed) {
            self.marks.clear();
        }
        self.windows = if self.marks.is_empty() { 0 } else { self.windows.saturating_add(1) };
        if self.marks.len() == MARKS {
            let mut index = 0_usize;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == 1
            });
        }
        self.marks.push_back((at, total));
        // The front stays the newest commit that is at least RECENT old, so that the speed covers that long.
        while self.marks.get(1).is_some_and(|&(second, _)| at.since(second) >= RECENT) {
            self.marks.pop_front();
        }
    }

    /// Units per second over about the last [`RECENT`] before `now`; `None` before two marks at different times. A mark that
    /// is overdue counts as nothing done since the last one.
    pub(crate) fn rate(&self, now: Time) -> Option<f64> {
        let (&(from, before), &(to, after)) = (self.marks.front()?, self.marks.back()?);
        let to = if self.is_overdue(now) { now } else { to };
        let time = to.since(from).as_secs_f64();
        (time > 0.0).then(|| after.saturating_sub(before) as f64 / time)
    }

    /// How long from `now` until `left` more units are there at this speed; `None` while that cannot be told: nothing moves,
    /// or fewer than [`WINDOWS`] windows since the start or the last change.
    pub(crate) fn until(&self, left: u64, now: Time) -> Option<Duration> {
        if left == 0 {
            return Some(Duration::ZERO);
        }
        if self.changed || self.windows < WINDOWS {
            return None;
        }
        let rate = self.rate(now).filter(|&rate| rate > 0.0)?;
        let from_last = Duration::try_from_secs_f64(left as f64 / rate).ok()?;
        let &(last, _) = self.marks.back()?;
        Some(if self.is_overdue(now) { from_last } else { from_last.saturating_sub(now.since(last)) })
    }

    /// Whether the last mark is longer ago than two marks usually are apart, twice over.
    fn is_overdue(&self, now: Time) -> bool {
        let (Some(&(from, _)), Some(&(to, _)), gaps @ 1..) = (self.marks.front(), self.marks.back(), self.gaps())
        else {
            return false;
        };
        now.since(to) > to.since(from).saturating_mul(2) / gaps
    }

    fn gaps(&self) -> u32 {
        u32::try_from(self.marks.len().saturating_sub(1)).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::ZERO.plus(Duration::from_millis(millis))
    }

    #[test]
    fn it_forgets_what_is_long_past() {
        let mut recent = Recent::default();
        assert_eq!(recent.rate(at(0)), None);
        recent.mark(at(0), 0);
        assert_eq!(recent.rate(at(0)), None, "one mark has no speed");
        recent.mark(at(1_000), 500);
        assert_eq!(recent.rate(at(1_000)), Some(500.0));
        recent.mark(at(20_000), 500);
        recent.mark(at(30_000), 1_500);
        assert_eq!(recent.rate(at(30_000)), Some(100.0), "the last ten seconds alone");
    }

    #[test]
    fn what_is_left_takes_as_long_as_the_speed_says() {
        let seconds = |seconds: f64| Some(Duration::from_secs_f64(seconds));
        // Commits of 100 a second; `None`: a rank dies. Then what is left, when it is asked, and the answer.
        type Case = (&'static str, &'static [Option<(u64, u64)>], (u64, u64), Option<Duration>);
        let cases: [Case; 13] = [
            ("nothing is known", &[], (100, 0), None),
            ("nothing is left", &[], (0, 0), seconds(0.0)),
            ("no window is done", &[Some((0, 0))], (100, 500), None),
            ("one window is done", &[Some((0, 0)), Some((1_000, 100))], (100, 1_000), None),
            ("two are", &[Some((0, 0)), Some((1_000, 100)), Some((2_000, 200))], (300, 2_000), seconds(3.0)),
            (
                "half a window later",
                &[Some((0, 0)), Some((1_000, 100)), Some((2_000, 200))],
                (300, 2_500),
                seconds(2.5),
            ),
            ("it is late", &[Some((0, 0)), Some((1_000, 100)), Some((2_000, 200))], (300, 8_000), seconds(12.0)),
            ("nothing is committed", &[Some((0, 9)), Some((1_000, 9)), Some((2_000, 9))], (300, 2_000), None),
            ("a death", &[Some((0, 0)), Some((1_000, 100)), Some((2_000, 200)), None], (300, 2_000), None),
            (
                "the window of the death",
                &[Some((0, 0)), Some((1_000, 100)), Some((2_000, 200)), None, Some((3_000, 250))],
                (300, 3_000),
                None,
            ),
            (
                "one window after it",
                &[Some((0, 0)), Some((1_000, 100)), None, Some((2_000, 150)), Some((3_000, 200))],
                (300, 3_000),
                None,
            ),
            (
                "two windows after it",
                &[Some((0, 0)), Some((1_000, 100)), None, Some((2_000, 150)), Some((3_000, 200)), Some((4_000, 250))],
                (300, 4_000),
                seconds(6.0),
            ),
            (
                "longer than can be said",
                &[Some((0, 0)), Some((1, 0)), Some((u64::MAX / 2_000_000, 1))],
                (u64::MAX, 0),
                None,
            ),
        ];
        for (what, steps, (left, now), expected) in cases {
            let mut recent = Recent::default();
            for step in steps {
                match *step {
                    Some((millis, total)) => recent.mark(at(millis), total),
                    None => recent.changed(),
                }
            }
            assert_eq!(recent.until(left, at(now)), expected, "{what}");
        }
    }

    #[test]
    fn thousands_of_commits_a_second_fit() {
        let mut recent = Recent::default();
        for commit in 0..100_000 {
            recent.mark(at(commit), 2 * commit);
            assert!(recent.marks.len() <= MARKS);
        }
        assert_eq!(recent.rate(at(99_999)), Some(2_000.0));
        let &(oldest, _) = recent.marks.front().unwrap();
        assert!(at(99_999).since(oldest) >= RECENT, "the speed covers less than it says");
    }
}
