//! Scheduler changes as the reasons that log, timeline and page show.

use crate::context::Context;
use crate::id;
use flodl_elche::{Change, Grounds, Unrepeatable, Verdict};
use flodl_wire::Rank;
use flodl_wire::message::record::{EventKind, Reason};

/// Tells of a scheduler's change; of one that breaks what was asked for, loudly.
pub(crate) fn tell(ctx: &mut Context<'_>, change: &Change) {
    let reason = of_change(change);
    if matches!(change, Change::Unrepeatable(_)) {
        ctx.alert(reason.clone());
    }
    ctx.event(EventKind::PlanChanged, Some(reason));
}

/// The reason behind a scheduler's change: its stable name, its sentence, the rank it speaks of.
fn of_change(change: &Change) -> Reason {
    let (code, rank) = name(change);
    let reason = Reason::new(code, change.to_string()).about(rank);
    figures(change).into_iter().fold(reason, |reason, (name, value)| reason.with(name, value))
}

/// What a reader of the timeline would want to plot or filter by.
fn figures(change: &Change) -> Vec<(&'static str, f64)> {
    match change {
        Change::Anchor { from, to, .. } => vec![("from", f64::from(*from)), ("to", f64::from(*to))],
        Change::AnchorHeld { anchor, target, .. } => {
            vec![("anchor", f64::from(*anchor)), ("target", f64::from(*target))]
        }
        Change::Judged { verdict, grounds, .. } => {
            let mut figures = match verdict {
                Verdict::NudgeDown { factor } => vec![("factor", *factor)],
                Verdict::Stable | Verdict::SuppressGrowth => Vec::new(),
            };
            figures.extend(match grounds {
                Grounds::Rising { divergence, threshold, .. } => {
                    vec![("divergence", *divergence), ("threshold", *threshold)]
                }
                Grounds::Growing { rate, limit, .. } => vec![("rate", *rate), ("limit", *limit)],
                Grounds::RateDropped { from, to } => vec![("from", *from), ("to", *to)],
                Grounds::Sustained { verdicts, .. } => vec![("verdicts", f64::from(*verdicts))],
                Grounds::Content | Grounds::Said(_) => Vec::new(),
            });
            figures
        }
        _ => Vec::new(),
    }
}

fn name(change: &Change) -> (&'static str, Option<Rank>) {
    let (code, slot) = match change {
        Change::Joined { slot, .. } => ("joined", Some(*slot)),
        Change::Left { slot } => ("left", Some(*slot)),
        Change::Calibrated { slot, .. } => ("calibrated", Some(*slot)),
        Change::Regime { slot, .. } => ("regime", Some(*slot)),
        Change::Forgotten { slot } => ("forgotten", Some(*slot)),
        Change::SampleRejected { slot, .. } => ("sample-rejected", Some(*slot)),
        Change::FeedbackRejected { slot, .. } => ("feedback-rejected", *slot),
        Change::Elected { slot, .. } => ("elected", Some(*slot)),
        Change::Anchor { .. } => ("anchor", None),
        Change::AnchorHeld { .. } => ("anchor-held", None),
        Change::Judged { verdict: Verdict::NudgeDown { .. }, .. } => ("nudge-down", None),
        Change::Judged { .. } => ("suppress-growth", None),
        Change::Rearmed { .. } => ("rearmed", None),
        Change::Lead { .. } => ("lead", None),
        Change::Restored { .. } => ("restored", None),
        Change::NudgeRejected => ("nudge-rejected", None),
        Change::NudgeSkipped { .. } => ("nudge-skipped", None),
        Change::Tail { .. } => ("tail", None),
        Change::LeasesCut { .. } => ("leases-cut", None),
        Change::Callback { slot, .. } => ("callback", Some(*slot)),
        Change::Unrepeatable(Unrepeatable::Joined(slot) | Unrepeatable::Left(slot)) => ("unrepeatable", Some(*slot)),
        Change::Unrepeatable(Unrepeatable::Restored) => ("unrepeatable", None),
        Change::Replan(_) => ("replan", None),
    };
    (code, slot.map(id::rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use flodl_elche::Slot;

    #[test]
    fn a_change_keeps_its_name_its_sentence_and_its_rank() {
        let change = Change::Calibrated { slot: Slot(3), batch: Duration::from_millis(20) };
        let reason = of_change(&change);
        assert_eq!((reason.code.as_str(), reason.ranks.as_slice()), ("calibrated", [Rank(3)].as_slice()));
        assert_eq!(reason.text, change.to_string());
    }
}
