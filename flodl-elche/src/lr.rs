//! Where a rank stands on the learning-rate schedule.

/// The position on the schedule of a rank that has done `i` batches of its window (0 at its first batch).
///
/// Schedules are functions of all ranks' batches together, so that they are the same for any world size. While a rank
/// does its `quota` batches the run does `quota_sum`, so its `i`-th stands at `global_step + round(i * quota_sum /
/// quota)`, where `global_step` is the batches committed by all before the window: no jump at a round. A quota of 0
/// stands still.
///
/// ```
/// use flodl_elche::lr_position;
/// assert_eq!(lr_position(100, 2, 4, 26), 113);
/// ```
pub fn lr_position(global_step: u64, i: u32, quota: u32, quota_sum: u64) -> u64 {
    if quota == 0 {
        return global_step;
    }
    let quota = u128::from(quota);
    let ahead = (2 * u128::from(i) * u128::from(quota_sum) + quota) / (2 * quota);
    global_step.saturating_add(u64::try_from(ahead).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_join_without_a_jump() {
        for (quota, sum) in [(16, 26), (6, 26), (4, 26), (1, 1), (3, 7)] {
            assert_eq!(lr_position(50, 0, quota, sum), 50);
            assert_eq!(lr_position(50, quota, quota, sum), 50 + sum);
        }
    }

    #[test]
    fn extremes_saturate() {
        assert_eq!(lr_position(9, 5, 0, 10), 9);
        assert_eq!(lr_position(u64::MAX, u32::MAX, 1, u64::MAX), u64::MAX);
    }
}
