//! A full window: how many batches each member is expected to do, may do, and for how long.
//!
//! With the slowest member's batch time `b_s` the window lasts `T = anchor * b_s`; a member's quota is what fits into T
//! at its own speed, and T is its budget. It may do a quarter more (and one), because the budget ends its window and
//! not its count: a member that turns out faster than estimated goes on instead of waiting.

use std::time::Duration;

use crate::config::Settings;
use crate::mode::{Policy, Windowing};
use crate::span::Slot;

/// A member without an estimate does so many batches at most: one fills, two measure.
pub(crate) const UNCALIBRATED: u32 = 3;
/// Batch times further apart than this count as this far apart.
pub(crate) const RATIO_MAX: f64 = 64.0;

/// What is known of a member when a window is planned.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Known {
    pub(crate) slot: Slot,
    /// Seconds a batch; in an arbitrary unit where nobody is measured and only hints are known.
    pub(crate) batch: Option<f64>,
    /// Whether `batch` was measured: a hint fills a count but not a budget.
    pub(crate) measured: bool,
    /// Expected cost of a callback before the window, in seconds.
    pub(crate) callback: f64,
}

/// A member's row of a window, in batches.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) quota: u32,
    pub(crate) quota_max: u32,
    pub(crate) budget: Option<Duration>,
    /// Batches it may do beyond that while its round is averaged.
    pub(crate) lead: u32,
}

impl Row {
    /// All the batches it may do.
    pub(crate) fn leased(&self) -> u64 {
        u64::from(self.quota_max) + u64::from(self.lead)
    }

    /// So many batches, neither more nor less, and no budget.
    pub(crate) fn counted(batches: u32) -> Self {
        Self { quota: batches, quota_max: batches, budget: None, lead: 0 }
    }
}

/// How long a full window is, and how far ranks may run ahead of it, in batches of the slowest and of their own.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Length {
    pub(crate) anchor: u32,
    pub(crate) lead: u32,
}

/// The full window for all members, in `rows`; `slowest` is the batch time the anchor counts.
pub(crate) fn full(settings: &Settings, length: Length, slowest: Option<f64>, members: &[Known], rows: &mut Vec<Row>) {
    rows.clear();
    if settings.policy == Policy::Sync {
        rows.resize(members.len(), Row::counted(1));
        return;
    }
    rows.extend(members.iter().map(|member| row(settings, length, slowest, member)));
    if rows.iter().all(|row| row.quota == 0)
        && let Some(least) = least_busy(members)
    {
        // Callbacks may take any window but the last one there is.
        rows[least] = Row::counted(1);
    }
}

fn row(settings: &Settings, Length { anchor, lead: ahead }: Length, slowest: Option<f64>, member: &Known) -> Row {
    let lead = |of: u32| settings.max_batch_diff.map_or(u32::MAX, |diff| of.saturating_add(diff));
    let (Some(batch), Some(slowest)) = (member.batch, slowest) else {
        let quota = anchor.min(UNCALIBRATED);
        let busy = slowest.is_some_and(|slowest| member.callback >= f64::from(anchor) * slowest);
        return Row::counted(if busy { 0 } else { quota });
    };
    let cap = lead(anchor);
    let time = f64::from(anchor) * slowest - member.callback;
    let fitting = (time.max(0.0) / batch).round() as u32;
    let quota = if member.callback > 0.0 { fitting } else { fitting.max(1) }.min(cap);
    if quota == 0 || !member.measured || settings.windowing == Windowing::Count {
        return Row::counted(quota);
    }
    let quota_max = u32::try_from((u64::from(quota) * 5).div_ceil(4) + 1).unwrap_or(u32::MAX).min(cap);
    let lead = ahead.min(cap.saturating_sub(quota_max));
    Row { quota, quota_max, budget: Duration::try_from_secs_f64(time).ok(), lead }
}

/// The member with the cheapest callback; of equals the fastest, of those the lowest slot.
fn least_busy(members: &[Known]) -> Option<usize> {
    let key = |member: &Known| (member.callback, member.batch.unwrap_or(f64::INFINITY));
    (0..members.len()).reduce(|best, next| {
        let ((cost, batch), (best_cost, best_batch)) = (key(&members[next]), key(&members[best]));
        if cost.total_cmp(&best_cost).then(batch.total_cmp(&best_batch)).is_lt() { next } else { best }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(settings: &Settings, length: Length, slowest: Option<f64>, members: &[Known]) -> Vec<Row> {
        let mut rows = Vec::new();
        super::full(settings, length, slowest, members, &mut rows);
        rows
    }

    fn member(slot: u32, batch: f64) -> Known {
        Known { slot: Slot(slot), batch: Some(batch), measured: true, callback: 0.0 }
    }

    fn at(anchor: u32) -> Length {
        Length { anchor, lead: 0 }
    }

    fn quotas(rows: &[Row]) -> Vec<(u32, u32)> {
        rows.iter().map(|row| (row.quota, row.quota_max)).collect()
    }

    #[test]
    fn quotas_follow_speed_and_budgets_are_equal() {
        let members = [member(0, 0.008), member(1, 0.020), member(2, 0.032)];
        let rows = full(&Settings::default(), at(4), Some(0.032), &members);
        assert_eq!(quotas(&rows), [(16, 21), (6, 9), (4, 6)]);
        assert!(rows.iter().all(|row| row.budget == Some(Duration::from_millis(128))));
        let counts = Settings { windowing: Windowing::Count, ..Settings::default() };
        assert_eq!(quotas(&full(&counts, at(4), Some(0.032), &members)), [(16, 16), (6, 6), (4, 4)]);
        let sync = Settings { policy: Policy::Sync, ..Settings::default() };
        assert_eq!(full(&sync, at(1), Some(0.032), &members), [Row::counted(1); 3]);
    }

    #[test]
    fn the_lead_over_the_slowest_can_be_limited() {
        let limited = Settings { max_batch_diff: Some(3), ..Settings::default() };
        let rows = full(&limited, at(4), Some(0.032), &[member(0, 0.008), member(1, 0.032)]);
        assert_eq!(quotas(&rows), [(7, 7), (4, 6)]);
    }

    #[test]
    fn async_leases_reach_ahead_of_the_window() {
        let settings = Settings { policy: Policy::Async, ..Settings::default() };
        let unknown = Known { batch: None, measured: false, ..member(2, 1.0) };
        let members = [member(0, 0.008), member(1, 0.032), unknown];
        let leads = |settings: &Settings, lead| -> Vec<u32> {
            full(settings, Length { anchor: 4, lead }, Some(0.032), &members).iter().map(|row| row.lead).collect()
        };
        assert_eq!(leads(&settings, 5), [5, 5, 0], "who is not measured has no budget to run ahead of");
        let limited = Settings { max_batch_diff: Some(4), ..settings };
        assert_eq!(leads(&limited, 5), [0, 2, 0], "the limit on the distance from the slowest is strict");
    }

    #[test]
    fn the_unmeasured_have_no_budget() {
        let unknown = Known { batch: None, measured: false, ..member(1, 1.0) };
        let hinted = Known { measured: false, ..member(2, 0.016) };
        let rows = full(&Settings::default(), at(8), Some(0.032), &[member(0, 0.032), unknown, hinted]);
        assert_eq!(rows[1..], [Row::counted(3), Row::counted(16)]);
        assert_eq!(full(&Settings::default(), at(2), None, &[unknown]), [Row::counted(2)]);
    }

    #[test]
    fn callbacks_take_their_time_but_never_the_last_share() {
        let busy = |slot, callback| Known { callback, ..member(slot, 0.010) };
        let rows = full(&Settings::default(), at(10), Some(0.010), &[busy(0, 0.05), busy(1, 0.1), busy(2, 0.0)]);
        assert_eq!(rows.iter().map(|row| row.quota).collect::<Vec<_>>(), [5, 0, 10]);
        assert_eq!(rows[0].budget, Some(Duration::from_millis(50)));
        let all = full(&Settings::default(), at(10), Some(0.010), &[busy(0, 9.0), busy(1, 8.0), busy(2, f64::MAX)]);
        assert_eq!(all, [Row::counted(0), Row::counted(1), Row::counted(0)]);
    }
}
