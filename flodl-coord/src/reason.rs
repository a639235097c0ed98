//! Scheduler changes as the reasons that log, timeline and page show.

use crate::id;
use flodl_elche::Change;
use flodl_wire::Rank;
use flodl_wire::message::record::Reason;

/// The reason behind a scheduler's change: its stable name, its sentence, the rank it speaks of.
pub(crate) fn of_change(change: &Change) -> Reason {
    let (code, rank) = name(change);
    Reason::new(code, change.to_string()).about(rank)
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
        Change::NudgeRejected => ("nudge-rejected", None),
        Change::NudgeSkipped { .. } => ("nudge-skipped", None),
        Change::Tail { .. } => ("tail", None),
        Change::LeasesCut { .. } => ("leases-cut", None),
        Change::Callback { slot, .. } => ("callback", Some(*slot)),
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
