//! What a guard of one's own is shown of a committed round: everything that the ranks measured of it.

mod common;

use common::script::Script;
use flodl_elche::{Guard, GuardInput, Norms, Slot, Verdict};
use flodl_wire::message::report::FoldedPart;
use std::sync::{Arc, Mutex};

/// Keeps what it is shown.
struct Witness(Arc<Mutex<Vec<GuardInput>>>);

impl Guard for Witness {
    fn verdict(&mut self, input: &GuardInput) -> Verdict {
        self.0.lock().expect("one thread").push(input.clone());
        Verdict::Stable
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
