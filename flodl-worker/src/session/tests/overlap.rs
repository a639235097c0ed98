//! Windows that overlap with rounds: a rank trains on while its contribution is averaged.

use super::*;
use flodl_wire::message::control::Overlap;

/// A window that begins at that round's snapshot, or at once, with two batches of lead.
fn ahead(id: u64, begins: Option<u64>, quota: u32, leases: &[Range]) -> WindowPlan {
    let overlap = Some(Overlap { begins: begins.map(Round), lead: 2, late: Duration::ZERO });
    WindowPlan { quota, quota_max: quota, overlap, ..window(id, leases) }
}

/// Admitted to a run in which windows overlap, and holding version 0. Results come when they are given.
fn formed() -> Driver {
    let mut driver = Driver::new();
    driver.order(Control::Admitted(Box::new(RunConfig { mode: "cpu-async".to_owned(), ..run_config() })));
    driver.order(request(0, Part::Receive));
    driver.order(committed(0, 0));
    driver.log.clear();
    driver.reports.clear();
    driver.results = false;
    driver
}

/// In its second window, with round 1 in flight.
fn in_flight() -> Driver {
    let mut driver = formed();
    driver.order(Control::Window(ahead(1, None, 2, &[range(0, 60)])));
    driver.order(Control::Window(ahead(2, Some(1), 3, &[range(100, 160)])));
    driver.order(request(1, Part::Contribute));
    driver
}

fn snapshots(driver: &Driver) -> Vec<(u64, Vec<Range>, Epoch)> {
    let snapshot = |report: &Report| match report {
        Report::SnapshotReady { steps, ranges, epoch, .. } => Some((*steps, ranges.clone(), *epoch)),
        _ => None,
    };
    driver.reports.iter().filter_map(snapshot).collect()
}

#[test]
fn a_rank_trains_on_to_its_lead_and_begins_its_next_window_at_the_snapshot() {
    let mut driver = in_flight();
    driver.give(whole(Round(1)));
    driver.order(committed(1, 1));
    driver.order(request(2, Part::Contribute));
    assert_eq!(
        driver.log,
        [
            "train 10 at 100",
            "train 10 at 115",
            "report 2 batches",
            "train 10 at 130",
            "train 10 at 145",
            "take round 1",
            "snapshot of 4 steps, 40 samples",
            "contribute 4",
            "train 10 at 100",
            "train 10 at 110",
            "train 10 at 120",
            // What was done in the lead is in the figures of the next report.
            "report 5 batches",
            "train 10 at 130",
            "train 10 at 140",
            "ack Whole",
            "apply on top",
            // Steps count from the snapshot of the last contribution, whatever was trained before its result came.
            "take round 2",
            "snapshot of 5 steps, 50 samples",
            "contribute 5",
        ]
    );
    let told = snapshots(&driver);
    assert_eq!(told[0], (4, vec![range(0, 40)], Epoch(0)));
    assert_eq!(told[1], (5, vec![range(100, 150)], Epoch(0)), "and none of the window before, whose rest went back");
    assert_eq!(driver.window_reports()[1].used, [range(20, 40), range(100, 130)]);
}

/// What is done from the request on, where round 1's result is there at once and its end is heard in the first batch after.
fn early(deterministic: bool) -> Vec<String> {
    let mut driver = Driver::new();
    let run = RunConfig { mode: "cpu-async".to_owned(), deterministic, ..run_config() };
    driver.order(Control::Admitted(Box::new(run)));
    driver.order(request(0, Part::Receive));
    driver.order(committed(0, 0));
    let overlap = |begins: Option<u64>| Some(Overlap { begins: begins.map(Round), lead: 0, late: Duration::ZERO });
    driver.order(Control::Window(WindowPlan { overlap: overlap(None), ..ahead(1, None, 2, &[range(0, 20)]) }));
    driver.order(Control::Window(WindowPlan { overlap: overlap(Some(1)), ..ahead(2, Some(1), 3, &[range(100, 130)]) }));
    driver.during_batch.push((2, committed(1, 1)));
    driver.log.clear();
    driver.order(request(1, Part::Contribute));
    driver.log.retain(|line| line != "ack Whole");
    driver.log.split_off(3)
}

#[test]
fn where_runs_are_to_be_bit_equal_a_result_is_taken_after_the_last_batch() {
    let batches = ["train 10 at 100", "train 10 at 110", "train 10 at 120"];
    let end = ["apply on top", "report 3 batches"];
    assert_eq!(early(true), [&batches[..], &end].concat());
    assert_eq!(early(false), [&batches[..1], &end[..1], &batches[1..], &end[1..]].concat());
}

#[test]
fn a_result_takes_the_place_of_a_replica_that_was_not_trained_since() {
    let mut driver = formed();
    driver.order(Control::Window(ahead(1, None, 2, &[range(0, 60)])));
    // No window follows: everybody waits for this round.
    driver.order(request(1, Part::Contribute));
    driver.give(whole(Round(1)));
    driver.order(committed(1, 1));
    assert_eq!(driver.log.last().map(String::as_str), Some("apply, reset false"));
    driver.order(Control::Window(ahead(2, None, 1, &[range(60, 70)])));
    let digests: Vec<_> = driver.window_reports().iter().map(|report| report.replica_digest).collect();
    assert_eq!(digests, [Some((Version(0), 77)), Some((Version(1), 77))]);
}

#[test]
fn a_replica_that_is_not_finite_is_replaced_and_what_was_trained_on_it_is_forgotten() {
    let mut driver = formed();
    driver.order(Control::Window(ahead(1, None, 2, &[range(0, 60)])));
    driver.order(Control::Window(ahead(2, Some(1), 3, &[range(100, 160)])));
    driver.finite = false;
    driver.order(request(1, Part::Contribute));
    driver.finite = true;
    driver.give(whole(Round(1)));
    driver.order(committed(1, 1));
    driver.order(request(2, Part::Contribute));
    let steps: Vec<u64> = snapshots(&driver).iter().map(|(steps, ..)| *steps).collect();
    assert_eq!(steps, [4, 0], "{:?}", driver.log);
    assert!(driver.log.contains(&"apply, reset true".to_owned()));
}

#[test]
fn who_misses_a_result_or_only_receives_drops_its_windows() {
    let mut missed = in_flight();
    // Nothing comes of the result for twice the patience.
    missed.wait(PATIENCE);
    missed.give(Input::Heard);
    missed.wait(PATIENCE);
    missed.give(Input::Heard);
    missed.give(Input::Tick);
    missed.order(committed(1, 1));
    assert_eq!(missed.session.version(), None);
    let mut received = in_flight();
    received.give(whole(Round(1)));
    received.order(committed(1, 1));
    for driver in [&mut missed, &mut received] {
        driver.log.clear();
        driver.order(request(2, Part::Receive));
        driver.give(whole(Round(2)));
        driver.order(committed(2, 2));
        driver.order(extend(2, &[range(300, 310)]));
        let trains = driver.log.iter().any(|line| line.starts_with("train"));
        assert!(!trains && driver.log.contains(&"apply, reset false".to_owned()), "{:?}", driver.log);
        driver.order(Control::Window(ahead(7, None, 1, &[range(200, 210)])));
        assert_eq!(driver.log.last().map(String::as_str), Some("report 1 batches"));
    }
}

#[test]
fn a_result_may_be_late_by_the_batch_that_others_finish_first() {
    for (late, acks) in [(Duration::ZERO, 1), (PATIENCE, 0)] {
        let mut driver = formed();
        let mut plan = ahead(1, None, 2, &[range(0, 60)]);
        plan.overlap = Some(Overlap { begins: None, lead: 2, late });
        driver.order(Control::Window(plan));
        driver.order(request(1, Part::Contribute));
        for _ in 0..2 {
            driver.wait(PATIENCE);
            driver.give(Input::Heard);
        }
        driver.give(Input::Tick);
        let told = driver.reports.iter().filter(|report| matches!(report, Report::SyncAck(_))).count();
        assert_eq!(told, acks, "{late:?}");
    }
}

#[test]
fn a_window_runs_on_into_the_next_epoch() {
    let mut driver = formed();
    driver.order(Control::Window(ahead(1, None, 3, &[range(985, 1005)])));
    driver.order(request(1, Part::Contribute));
    // A batch holds positions of one epoch: the last one of the first is short.
    assert_eq!(driver.trained, [range(985, 995), range(995, 1000), range(0, 5)]);
    assert_eq!(snapshots(&driver), [(3, vec![range(985, 1000), range(1000, 1005)], Epoch(0))]);
    // But not past the end of the run.
    let mut driver = formed();
    let last = WindowPlan { epoch: Epoch(4), ..ahead(1, None, 1, &[range(995, 1005)]) };
    driver.order(Control::Window(last));
    assert!(driver.failure().ends_with("window 1 leases positions 995..1005 of an epoch of 1000"));
}

#[test]
fn the_final_consensus_takes_the_replicas_place_whatever_was_trained_since() {
    let mut driver = in_flight();
    driver.give(whole(Round(1)));
    let outcome = RoundOutcome::Committed { version: Version(1) };
    driver.order(Control::RoundDone { round: Round(1), outcome, next: Next::Final });
    driver.order(Control::ExecuteEval { schedule: 9 });
    driver.order(Control::Shutdown);
    let end = driver.log.iter().rev().take(6).rev().map(String::as_str).collect::<Vec<_>>();
    assert_eq!(end[..3], ["apply, reset false", "evaluate 9", "evaluated 9"], "{:?}", driver.log);
}

#[test]
fn an_evaluation_between_rounds_sees_the_consensus() {
    let mut driver = in_flight();
    driver.order(Control::ExecuteEval { schedule: 3 });
    assert!(!driver.log.contains(&"evaluate 3 aside".to_owned()), "the result is on its way");
    driver.give(whole(Round(1)));
    driver.order(committed(1, 1));
    assert!(driver.log.ends_with(&["apply on top".to_owned(), "evaluate 3 aside".into(), "evaluated 3".into()]));
}
