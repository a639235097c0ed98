//! The speed of the last seconds, from the times of the commits themselves.

use core::time::Duration;
use flodl_wire::Time;
use std::collections::VecDeque;

/// How far back "recent" reaches.
pub const RECENT: Duration = Duration::from_secs(10);

/// The most commits kept; when there are more within [`RECENT`], every second one is forgotten.
const MARKS: usize = 64;

/// Totals at the commits of the last seconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recent {
    marks: VecDeque<(Time, u64)>,
}

impl Recent {
    /// At `at` the total is `total`.
    pub(crate) fn mark(&mut self, at: Time, total: u64) {
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

    /// Units per second over about the last [`RECENT`]; `None` before two marks at different times.
    pub(crate) fn rate(&self) -> Option<f64> {
        let (&(from, before), &(to, after)) = (self.marks.front()?, self.marks.back()?);
        let time = to.since(from).as_secs_f64();
        (time > 0.0).then(|| after.saturating_sub(before) as f64 / time)
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
        assert_eq!(recent.rate(), None);
        recent.mark(at(0), 0);
        assert_eq!(recent.rate(), None, "one mark has no speed");
        recent.mark(at(1_000), 500);
        assert_eq!(recent.rate(), Some(500.0));
        recent.mark(at(20_000), 500);
        recent.mark(at(30_000), 1_500);
        assert_eq!(recent.rate(), Some(100.0), "the last ten seconds alone");
    }

    #[test]
    fn thousands_of_commits_a_second_fit() {
        let mut recent = Recent::default();
        for commit in 0..100_000 {
            recent.mark(at(commit), 2 * commit);
            assert!(recent.marks.len() <= MARKS);
        }
        assert_eq!(recent.rate(), Some(2_000.0));
        let &(oldest, _) = recent.marks.front().unwrap();
        assert!(at(99_999).since(oldest) >= RECENT, "the speed covers less than it says");
    }
}
