//! The last windows of an epoch: counts, so that the epoch ends with the window planned to end it.
//!
//! A budget only bounds how late that end may be. Who is behind the plan by more than one more round would cost, and half a
//! batch, leaves its rest to a window after it, where the fastest do it: waiting for a slow member's last batches may cost
//! more than all of them are worth.
//!
//! Counts are whole batches, so somebody ends last whatever is done. Each batch goes to the member that would end it
//! first, which makes that end as early as it can be; rounding exact shares to the nearest whole would give a slow
//! member one batch more for a remainder that three fast ones do in half the time.

use std::collections::BinaryHeap;
use std::time::Duration;

use crate::config::Settings;
use crate::growth::DEAD_BAND;
use crate::mode::{Policy, Windowing};
use crate::speed::median_in;
use crate::split::Split;
use crate::window::{Known, Row, UNCALIBRATED};

/// Fewer windows than this are a tail.
const FULL_FROM: u64 = 3;

/// Windows left for `left` batches where a full window holds `window`.
///
/// A last window a little longer than the others is cheaper than one more round; as long as it stays within the band
/// in which the anchor itself does not care, it counts as one. Not where a lead limit is set: that is strict.
pub(crate) fn windows_left(settings: &Settings, left: u64, window: u64) -> u64 {
    let stretch = if settings.max_batch_diff.is_some() || settings.policy == Policy::Sync { 0.0 } else { DEAD_BAND };
    let holds = (window as f64 * (1.0 + stretch)).floor() as u64;
    left.div_ceil(holds.max(1))
}

/// Whether so many windows are a tail.
pub(crate) fn is_tail(windows: u64) -> bool {
    windows < FULL_FROM
}

/// Bounds how late the members may end the window that `rows` plan. `slack` is what another round costs, in seconds. Under
/// Async nobody waits for who is late, and under Sync everybody does one batch.
pub(crate) fn bound(settings: &Settings, members: &[Known], rows: &mut [Row], slack: f64) {
    if settings.policy != Policy::Cadence || settings.windowing == Windowing::Count {
        return;
    }
    let planned = |(member, row): (&Known, &Row)| match member.batch {
        Some(batch) if member.measured && row.quota > 0 => member.callback + f64::from(row.quota) * batch,
        _ => 0.0,
    };
    let end = members.iter().zip(rows.iter()).map(planned).fold(0.0, f64::max) + slack;
    for (member, row) in members.iter().zip(rows).filter(|(member, row)| member.measured && row.quota > 0) {
        row.budget = Duration::try_from_secs_f64((end - member.callback).max(0.0)).ok();
    }
}

/// Buffers that are used again.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    split: Split,
    counts: Vec<u64>,
    ends: BinaryHeap<End>,
    order: Vec<(f64, usize)>,
    values: Vec<f64>,
}

impl Tail {
    /// Divides the next of `windows` windows; `rows` are those of a full one before, and those of this one after.
    pub(crate) fn divide(
        &mut self,
        settings: &Settings,
        (left, windows): (u64, u64),
        members: &[Known],
        rows: &mut [Row],
    ) {
        if settings.policy == Policy::Sync {
            return self.sync(left, members, rows);
        }
        let batches = left.div_ceil(windows.max(1));
        self.values.clear();
        self.values.extend(members.iter().filter_map(|member| member.batch));
        let counts: &[u64] = if settings.max_batch_diff.is_some() {
            // Full quotas are within the lead limit already; fractions of them stay within it.
            self.split.divide(batches, rows.iter().map(|row| f64::from(row.quota)))
        } else if let Some(unknown) = median_in(&mut self.values) {
            self.earliest_end(batches, members, unknown);
            &self.counts
        } else {
            let most = rows.iter().map(|row| row.quota.min(UNCALIBRATED)).max().unwrap_or(0);
            let batches = batches.min(u64::from(most) * members.len() as u64);
            self.split.divide(batches, rows.iter().map(|_| 1.0))
        };
        for (row, &count) in rows.iter_mut().zip(counts) {
            *row = Row::counted(u32::try_from(count).unwrap_or(u32::MAX));
        }
    }

    /// Under Sync each does one batch; where fewer are left, the fastest do them, of equals the lowest slots.
    fn sync(&mut self, left: u64, members: &[Known], rows: &mut [Row]) {
        let order = members.iter().enumerate().map(|(i, member)| (member.batch.unwrap_or(f64::INFINITY), i));
        self.order.clear();
        self.order.extend(order);
        self.order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        rows.fill(Row::counted(0));
        for &(_, i) in self.order.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            rows[i] = Row::counted(1);
        }
    }

    /// Gives each of `batches` to the member that ends it first. `unknown` is the batch time of those without an estimate.
    fn earliest_end(&mut self, batches: u64, members: &[Known], unknown: f64) {
        let time_of = |member: &Known| member.batch.unwrap_or(unknown);
        // All batches that end before the exact end of the window are given for sure; no more than one a member is left.
        let end = self.exact_end(batches, members, unknown);
        let mut left = batches;
        self.counts.clear();
        for member in members {
            let whole = ((end - member.callback).max(0.0) / time_of(member)).floor() as u64;
            // Rounding may make the sum of all one too large, never the first.
            self.counts.push(whole.min(left));
            left -= whole.min(left);
        }
        let next = |index: usize, count: u64| {
            let member = &members[index];
            End { at: member.callback + (count + 1) as f64 * time_of(member), index }
        };
        self.ends.clear();
        self.ends.extend(self.counts.iter().enumerate().map(|(index, &count)| next(index, count)));
        for _ in 0..left {
            let Some(End { index, .. }) = self.ends.pop() else { break };
            self.counts[index] += 1;
            self.ends.push(next(index, self.counts[index]));
        }
    }

    /// The length T of a window in which all end together: `sum((T - callback) / batch) = batches` over the members whose
    /// callback ends before T.
    fn exact_end(&mut self, batches: u64, members: &[Known], unknown: f64) -> f64 {
        self.order.clear();
        self.order.extend(members.iter().enumerate().map(|(i, member)| (member.callback, i)));
        self.order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let (mut rate, mut spent, mut end) = (0.0, 0.0, f64::INFINITY);
        for &(callback, i) in &self.order {
            if callback >= end {
                break;
            }
            let batch = members[i].batch.unwrap_or(unknown);
            rate += 1.0 / batch;
            spent += callback / batch;
            end = (batches as f64 + spent) / rate;
        }
        end
    }
}

/// A member's end of its next batch; the earliest is the greatest, and of equals the lowest index.
#[derive(Debug, PartialEq)]
struct End {
    at: f64,
    index: usize,
}

impl Eq for End {}

impl Ord for End {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        other.at.total_cmp(&self.at).then(other.index.cmp(&self.index))
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::span::Slot;

    fn member(slot: u32, batch: Option<f64>, callback: f64) -> Known {
        Known { slot: Slot(slot), batch, measured: batch.is_some(), callback }
    }

    fn divided(settings: &Settings, left: u64, windows: u64, members: &[Known], full: &[u32]) -> Vec<u32> {
        let mut rows: Vec<Row> = full.iter().map(|&quota| Row::counted(quota)).collect();
        Tail::default().divide(settings, (left, windows), members, &mut rows);
        rows.iter().map(|row| row.quota).collect()
    }

    #[test]
    fn shares_follow_speed_sum_to_the_window_and_end_as_early_as_can_be() {
        let members = [member(0, Some(0.008), 0.0), member(1, Some(0.020), 0.0), member(2, Some(0.032), 0.0)];
        let settings = Settings::default();
        assert_eq!(divided(&settings, 125, 1, &members, &[76, 30, 19]), [76, 30, 19]);
        assert_eq!(divided(&settings, 125, 2, &members, &[76, 30, 19]), [39, 15, 9]);
        assert_eq!(divided(&settings, 1, 1, &members, &[4, 2, 1]), [1, 0, 0]);
    }

    #[test]
    fn a_window_within_the_dead_band_is_not_cut_in_two() {
        let settings = Settings::default();
        assert_eq!([100, 120, 121, 240, 241].map(|left| windows_left(&settings, left, 100)), [1, 1, 2, 2, 3]);
        let strict = Settings { max_batch_diff: Some(2), ..Settings::default() };
        assert_eq!(windows_left(&strict, 101, 100), 2);
    }

    #[test]
    fn the_unknown_count_with_the_median() {
        let some = [member(0, Some(0.010), 0.0), member(1, None, 0.0), member(2, Some(0.030), 0.0)];
        assert_eq!(divided(&Settings::default(), 11, 1, &some, &[9, 3, 3]), [6, 3, 2]);
        let none = [member(0, None, 0.0), member(1, None, 0.0)];
        assert_eq!(divided(&Settings::default(), 5, 1, &none, &[3, 3]), [3, 2]);
        assert_eq!(divided(&Settings::default(), 7, 1, &none, &[3, 3]), [3, 3]);
    }

    #[test]
    fn who_is_later_than_another_round_would_cost_leaves_its_rest() {
        let members = [member(0, Some(0.010), 0.02), member(1, Some(0.040), 0.0), member(2, None, 0.0)];
        let mut rows = vec![Row::counted(8), Row::counted(3), Row::counted(2)];
        bound(&Settings::default(), &members, &mut rows, 0.005);
        // The plan ends after 120 ms, with the slower one.
        let ms = |row: &Row| row.budget.map(|budget| budget.as_millis());
        assert_eq!(rows.iter().map(ms).collect::<Vec<_>>(), [Some(105), Some(125), None]);
        assert_eq!(
            rows.iter().map(|row| row.quota_max).collect::<Vec<_>>(),
            [8, 3, 2],
            "leases stay within what is left"
        );
        for settings in [
            Settings { policy: Policy::Sync, ..Settings::default() },
            Settings { policy: Policy::Async, ..Settings::default() },
            Settings { windowing: Windowing::Count, ..Settings::default() },
        ] {
            let mut rows = vec![Row::counted(1); 3];
            bound(&settings, &members, &mut rows, 0.005);
            assert_eq!(rows, vec![Row::counted(1); 3]);
        }
    }

    #[test]
    fn callbacks_shorten_a_share() {
        let members = [member(0, Some(0.010), 0.0), member(1, Some(0.010), 0.04), member(2, Some(0.010), 9.0)];
        assert_eq!(divided(&Settings::default(), 16, 1, &members, &[9, 9, 0]), [10, 6, 0]);
    }

    #[test]
    fn sync_leaves_the_last_batches_to_the_fastest() {
        let sync = Settings { policy: Policy::Sync, ..Settings::default() };
        let members = [member(0, None, 0.0), member(1, Some(0.020), 0.0), member(2, Some(0.010), 0.0)];
        assert_eq!(divided(&sync, 2, 1, &members, &[1, 1, 1]), [0, 1, 1]);
        assert_eq!(divided(&sync, 4, 2, &members, &[1, 1, 1]), [1, 1, 1]);
    }
}
