//! What is kept about one rank.

use crate::median::BatchTimes;
use crate::text;
use core::time::Duration;
use flodl_wire::message::record::{RankWindow, Reason};
use flodl_wire::{HostId, Time};

/// Where a rank is in its life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Its host is connected; it is not ready.
    #[default]
    Starting,
    /// Ready, the run has not begun with it.
    Ready,
    /// It is given windows.
    Active,
    /// It ended as it was told to.
    Finished,
    /// Its life ended before the run's.
    Dead {
        /// Why, in a sentence.
        why: String,
    },
    /// It was not taken into the run.
    Refused {
        /// Why, in a sentence.
        why: String,
    },
}

/// One rank's figures, of all its lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankLog {
    /// Where it is.
    pub state: State,
    /// The host that it runs on, once told.
    pub host: Option<HostId>,
    /// Batches trained.
    pub batches: u64,
    /// Samples trained, repeats included.
    pub samples: u64,
    /// Samples committed, each position of an epoch once.
    pub committed: u64,
    /// Its batch times.
    pub batch_times: BatchTimes,
    /// Waiting between the last batch of a window and the first of the next, summed over the run.
    pub idle: Duration,
    /// When it was given windows.
    pub active: Active,
}

impl RankLog {
    pub(crate) fn window(&mut self, window: &RankWindow) {
        self.batches = self.batches.saturating_add(u64::from(window.batches));
        self.samples = self.samples.saturating_add(window.samples);
        self.idle = self.idle.saturating_add(window.idle);
        if let Some(time) = window.batch_time {
            self.batch_times.take(time);
        }
    }

    /// Whether the run ever had it: it was given windows or has committed samples.
    #[must_use]
    pub fn took_part(&self) -> bool {
        self.active.from.is_some() || self.batches > 0 || self.committed > 0
    }
}

/// The time in which a rank was given windows.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Active {
    /// Time of the lives before the last one, from the first window on.
    earlier: Duration,
    /// From when its last life was given windows; `None`: never.
    pub from: Option<Time>,
    /// Until when; `None`: to the end.
    pub until: Option<Time>,
}

impl Active {
    /// The rank is given windows from `at` on, if it was not already. `start` is the first window's time, if there was one.
    pub(crate) fn begin(&mut self, at: Time, start: Option<Time>) {
        match (self.from, self.until) {
            (Some(_), None) => return,
            (Some(from), Some(until)) => {
                let life = start.map_or(Duration::ZERO, |start| until.since(from.max(start)));
                self.earlier = self.earlier.saturating_add(life);
            }
            (None, _) => {}
        }
        *self = Active { earlier: self.earlier, from: Some(at), until: None };
    }

    /// It is not given any more.
    pub(crate) fn end(&mut self, at: Time) {
        if self.from.is_some() {
            self.until = self.until.or(Some(at));
        }
    }

    /// The fraction of `start..end` in which it was given windows, 0..=1.
    #[must_use]
    pub fn fraction(&self, start: Time, end: Time) -> f64 {
        let wall = end.since(start);
        if wall.is_zero() {
            return 0.0;
        }
        let last = self.from.map_or(Duration::ZERO, |from| {
            let until = self.until.map_or(end, |until| until.min(end));
            until.since(from.max(start))
        });
        (self.earlier.saturating_add(last).as_secs_f64() / wall.as_secs_f64()).min(1.0)
    }
}

/// The sentence of a reason, cut to what a store keeps; where there is none, one that says so.
pub(crate) fn why(reason: Option<&Reason>) -> String {
    match reason {
        Some(reason) if !reason.text.is_empty() => text::cut(&reason.text),
        Some(reason) if !reason.code.is_empty() => text::cut(&reason.code),
        _ => "no reason was given".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_time_is_counted_within_the_wall() {
        // (begin, end)*, start, end, expected fraction
        type Case = (&'static [(u64, Option<u64>)], u64, u64, f64);
        let cases: [Case; 7] = [
            (&[], 10, 20, 0.0),
            (&[(5, None)], 10, 20, 1.0),
            (&[(5, Some(15))], 10, 20, 0.5),
            (&[(15, None)], 10, 20, 0.5),
            (&[(5, Some(8))], 10, 20, 0.0),
            (&[(5, Some(30))], 10, 20, 1.0),
            (&[(5, Some(12)), (16, None)], 10, 20, 0.6),
        ];
        for (lives, start, end, expected) in cases {
            let mut active = Active::default();
            for &(from, until) in lives {
                active.begin(Time(from), Some(Time(start)));
                active.begin(Time(from + 1), Some(Time(start)));
                until.into_iter().for_each(|until| active.end(Time(until)));
            }
            let found = active.fraction(Time(start), Time(end));
            assert!((found - expected).abs() < 1e-12, "{lives:?}: {found} instead of {expected}");
        }
    }

    #[test]
    fn a_wall_of_no_length_has_no_fraction() {
        let mut active = Active::default();
        active.begin(Time(1), None);
        assert_eq!(active.fraction(Time(3), Time(3)), 0.0);
    }
}
