//! What a rank checks before it obeys: settings and plans that cannot be become a [`Violation`], never a panic.

use super::error::Violation;
use flodl_elche::Passes;
use flodl_wire::Range;
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::join::{Ready, RunConfig};

/// Epochs that the positions of one lease may be of: two are open at a time, and the first of them may have been closed since
/// the window was planned.
const EPOCHS_MAX: u64 = 3;

/// Whether the run's settings are possible, and about this rank's own model and dataset.
pub(super) fn settings(run: &RunConfig, own: &Ready) -> Result<(), Violation> {
    let impossible = |field: &'static str, value: String| Err(Violation::Settings { field, value });
    for (field, value) in [
        ("world_size", u64::from(run.world_size)),
        ("epochs", run.epochs),
        ("batch_size", u64::from(run.batch_size)),
        ("dataset_len", run.dataset_len),
        ("epoch_len", run.epoch_len),
        ("epoch_splits", u64::from(run.epoch_splits)),
    ] {
        if value == 0 {
            return impossible(field, "0".to_owned());
        }
    }
    let longest = Passes::new(run.pass_len, run.epoch_splits).longest();
    if longest != run.epoch_len {
        return impossible("epoch_len", format!("{} where the longest epoch has {longest} positions", run.epoch_len));
    }
    if run.patience.is_zero() {
        return impossible("patience", "0".to_owned());
    }
    if let Some(emulation) = run.emulation
        && !(emulation.slowdown.is_finite() && emulation.slowdown >= 1.0)
    {
        return impossible("emulated slowdown", emulation.slowdown.to_string());
    }
    let not_mine = |field: &'static str, run: String, own: String| Err(Violation::NotMine { field, run, own });
    if run.dataset_len != own.dataset.len {
        return not_mine("dataset length", run.dataset_len.to_string(), own.dataset.len.to_string());
    }
    if run.layout != own.layout {
        return not_mine("layout", format!("{:?}", run.layout), format!("{:?}", own.layout));
    }
    Ok(())
}

/// Whether a plan can be trained.
pub(super) fn plan(plan: &WindowPlan, run: &RunConfig) -> Result<(), Violation> {
    let window = plan.window;
    if plan.epoch.0 >= run.epochs {
        return Err(Violation::NoSuchEpoch { window, epoch: plan.epoch, epochs: run.epochs });
    }
    let trains = plan.leases.iter().any(|range| !range.is_empty());
    if plan.quota_max < plan.quota || (trains && plan.quota == 0) {
        return Err(Violation::Quota { window, quota: plan.quota, quota_max: plan.quota_max });
    }
    ranges(plan, &plan.leases, run)
}

/// Whether every range lies in the plan's epochs and no position is in two of them. Where windows overlap, positions may run on
/// into the epoch after.
pub(super) fn ranges(plan: &WindowPlan, ranges: &[Range], run: &RunConfig) -> Result<(), Violation> {
    let epochs = if plan.overlap.is_some() { EPOCHS_MAX.min(run.epochs.saturating_sub(plan.epoch.0)) } else { 1 };
    let (window, epoch_len) = (plan.window, run.epoch_len.saturating_mul(epochs));
    if let Some(&range) = ranges.iter().find(|range| range.start > range.end || range.end > epoch_len) {
        return Err(Violation::Outside { window, range, epoch_len });
    }
    let mut sorted: Vec<Range> = ranges.iter().copied().filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[1].start < pair[0].end) {
        Some(pair) => Err(Violation::Twice { window, range: pair[1] }),
        None => Ok(()),
    }
}
