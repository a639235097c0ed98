//! What a guard of one's own is shown of a committed round (everything that the ranks measured of it), and what becomes of
//! its verdict.

mod common;

use common::script::Script;
use flodl_elche::{Guard, GuardInput, Judgement, Norms, Slot, Verdict};
use flodl_wire::message::record::EventKind;
use flodl_wire::message::report::FoldedPart;
use std::sync::{Arc, Mutex};

/// Keeps what it is shown.
struct Witness(Arc<Mutex<Vec<GuardInput>>>);

impl Guard for Witness {
    fn judge(&mut self, round: &GuardInput) -> Judgement {
        self.0.lock().expect("one thread").push(round.clone());
        Judgement::CONTENT
    }
}

#[test]
fn a_guard_is_shown_divergence_steps_and_norms() {
    let seen = Arc::default();
    let mut script = Script::guarded(Box::new(Witness(Arc::clone(&seen))));
    script.spread();
    let [a, b] = [0, 1].map(|rank| script.report(rank, 1));
    script.snapshot(0, 1, &a);
    script.snapshot(1, 1, &b);
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
    let norms = Norms { pre: 1.0, post: 1.0 };
    let expected = GuardInput {
        divergence: vec![(Slot(0), 0.01), (Slot(1), 0.01)],
        steps: vec![(Slot(0), 1), (Slot(1), 1)],
        k_max: 1,
        norms: vec![(Slot(0), norms), (Slot(1), norms)],
    };
    assert_eq!(*seen.lock().expect("one thread"), [expected], "round 0 trains nothing and is not shown");
}

/// Asks for half the window in every round.
struct Alarmed;

impl Guard for Alarmed {
    fn judge(&mut self, _round: &GuardInput) -> Judgement {
        Judgement::said(Verdict::NudgeDown { factor: 0.5 }, "something is wrong")
    }
}

#[test]
fn a_verdict_takes_effect_and_says_why() {
    let mut script = Script::guarded(Box::new(Alarmed));
    script.spread();
    let used = [0, 1].map(|rank| script.report(rank, 1));
    (0..2).for_each(|rank| script.snapshot(rank, 1, &used[rank as usize]));
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
    let changed: Vec<String> = script
        .events()
        .filter(|(kind, _)| **kind == EventKind::PlanChanged)
        .map(|(_, why)| why)
        .filter(|why| why.contains("shorte"))
        .collect();
    let expected = [
        "the guard finds that something is wrong: windows become shorter by a factor of 0.5",
        "anchor 4 -> 2: shortened by a factor of 0.5",
    ];
    assert_eq!(changed, expected);
    assert_eq!(script.windows[1].quota, 2, "the next window is planned with it");
}
