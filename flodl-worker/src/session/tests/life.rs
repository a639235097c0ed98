//! What a rank says and does, in which order, in the situations of its life.

use super::*;

#[test]
fn a_rank_lives_from_ready_to_finished() {
    let mut driver = Driver::new();
    driver.order(Control::Admitted(Box::new(run_config())));
    driver.order(request(0, Part::Source));
    driver.order(committed(0, 0));
    driver.order(Control::Window(window(1, &[range(0, 15), range(40, 48)])));
    driver.order(request(1, Part::Contribute));
    let next = Next::Final;
    let outcome = RoundOutcome::Committed { version: Version(1) };
    driver.order(Control::RoundDone { round: Round(1), outcome, next });
    driver.order(Control::ExecuteEval { schedule: 5 });
    driver.order(Control::Shutdown);
    driver.give(Input::Lost(Lost::Closed { channel: "control" }));
    assert_eq!(
        driver.log,
        [
            "ready",
            "take round 0",
            "snapshot of 0 steps, 0 samples",
            "contribute 1",
            "ack Whole",
            "apply, reset false",
            "train 10 at 100",
            "train 10 at 103",
            "train 3 at 106",
            "report 3 batches",
            "take round 1",
            "snapshot of 3 steps, 23 samples",
            "contribute 3",
            "ack Whole",
            "apply, reset false",
            "evaluate 5",
            "evaluated 5",
            "digest",
            "finished with Some(Version(1))",
            "Finished { version: Some(Version(1)) }",
        ]
    );
}

#[test]
fn a_window_report_holds_the_figures_of_its_batches() {
    let mut driver = Driver::formed();
    driver.wait(ms(50));
    driver.batch_times = [ms(20), ms(7), ms(9)].into();
    driver.order(Control::Window(window(1, &[range(10, 35)])));
    driver.wait(ms(4));
    driver.order(request(1, Part::Contribute));
    let expect = WindowReport {
        window: WindowId(1),
        epoch: Epoch(0),
        batches: 3,
        samples: 25,
        first: ms(20),
        rest: ms(16),
        data_wait: ms(3),
        idle: ms(50),
        loss_sum: 50.0,
        loss_count: 25,
        lr: 0.5,
        used: vec![range(10, 35)],
        replica_digest: Some((Version(0), 77)),
        scalars: Vec::new(),
    };
    assert_eq!(driver.window_reports(), [&expect]);
    let ack = driver.reports.iter().find_map(|report| match report {
        Report::SyncAck(ack) => Some(*ack),
        _ => None,
    });
    let ack = ack.unwrap();
    assert_eq!((ack.waited, ack.copied), (ms(4), ms(3)));
    let received = Received { digest: 99, divergence: Some(0.5), pre_norm: 2.0, post_norm: 1.0 };
    assert_eq!(ack.received(), Some(&received));

    driver.order(committed(1, 1));
    driver.order(Control::Window(window(2, &[range(35, 40)])));
    assert_eq!(driver.window_reports()[1].idle, ms(4));
    driver.order(Control::Window(window(3, &[range(40, 45)])));
    let digests: Vec<_> = driver.window_reports().iter().map(|report| report.replica_digest).collect();
    assert_eq!(digests, [Some((Version(0), 77)), Some((Version(1), 77)), None], "each version is reported once");
}

#[test]
fn windows_end_where_they_must() {
    let budget = |budget: u64| WindowPlan { budget: Some(ms(budget)), ..window(1, &[range(0, 500)]) };
    for (name, plan, during, expect) in [
        ("the lease", window(1, &[range(0, 30)]), None, 3),
        ("the largest quota", WindowPlan { quota: 2, quota_max: 4, ..window(1, &[range(0, 500)]) }, None, 4),
        ("the budget, at the nearest batch", budget(34), None, 3),
        ("the budget, not before the first batch", budget(0), None, 1),
        ("a request", window(1, &[range(0, 500)]), Some(request(1, Part::Contribute)), 3),
        ("more ranges", window(1, &[range(0, 30)]), Some(extend(1, &[range(90, 96)])), 4),
        ("ranges of another window", window(1, &[range(0, 30)]), Some(extend(0, &[range(90, 96)])), 3),
        ("the shutdown", window(1, &[range(0, 500)]), Some(Control::Shutdown), 3),
        ("nothing to train", window(1, &[]), None, 0),
        ("empty ranges", window(1, &[range(7, 7)]), None, 0),
    ] {
        let mut driver = Driver::formed();
        driver.during_batch = during.map(|message| (2, message)).into_iter().collect();
        driver.order(Control::Window(plan));
        let reports = driver.window_reports();
        assert_eq!(reports.iter().map(|report| report.batches).collect::<Vec<_>>(), [expect], "{name}");
        assert_eq!(reports[0].used.iter().map(Range::len).sum::<u64>(), reports[0].samples, "{name}");
    }
}

#[test]
fn a_request_in_mid_window_meets_the_rank_at_a_batch_boundary() {
    let mut driver = Driver::formed();
    driver.during_batch = vec![(1, request(1, Part::Contribute))];
    driver.order(Control::Window(window(1, &[range(0, 90)])));
    let expect = ["train 10 at 100", "train 10 at 103", "report 2 batches", "take round 1"];
    assert_eq!(driver.log[..4], expect);
    assert_eq!(driver.log[4], "snapshot of 2 steps, 20 samples");
}

#[test]
fn long_windows_tell_their_progress() {
    let mut driver = Driver::formed();
    driver.batch_times = [ms(600), ms(600), ms(600), ms(1200)].into();
    driver.order(Control::Window(window(1, &[range(0, 50)])));
    let told: Vec<_> = driver.log.iter().filter(|line| line.starts_with("Progress")).collect();
    assert_eq!(
        told,
        [
            "Progress { window: WindowId(1), batches: 2, samples: 20 }",
            "Progress { window: WindowId(1), batches: 4, samples: 40 }"
        ]
    );
}

#[test]
fn an_evaluation_waits_for_the_window() {
    let mut driver = Driver::formed();
    driver.during_batch = vec![(0, Control::ExecuteEval { schedule: 9 })];
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    assert_eq!(driver.log[2..], ["report 2 batches", "evaluate 9", "evaluated 9"]);
}

#[test]
fn duties_come_before_the_window_that_waits_already() {
    let mut driver = Driver::formed();
    let save = Control::ExecuteCheckpoint { schedule: 4, version: Version(0) };
    let next = Control::Window(window(1, &[range(0, 10)]));
    driver.during_evaluation = vec![save, next];
    driver.order(Control::ExecuteEval { schedule: 3 });
    assert_eq!(driver.log[..2], ["evaluate 3", "evaluated 3"]);
    assert_eq!(driver.log[2..4], ["save version 0 by 4", "CheckpointResult { schedule: 4, outcome: Ok(()) }"]);
    assert_eq!(driver.log[4..], ["train 10 at 100", "report 1 batches"]);
}

#[test]
fn a_duty_that_is_ordered_again_is_done_once() {
    let mut driver = Driver::formed();
    let save = Control::ExecuteCheckpoint { schedule: 4, version: Version(0) };
    let eval = Control::ExecuteEval { schedule: 3 };
    driver.during_evaluation = vec![save.clone(), eval.clone(), save];
    driver.order(eval);
    assert_eq!(driver.log[..2], ["evaluate 3", "evaluated 3"]);
    assert_eq!(driver.log[2..], ["save version 0 by 4", "CheckpointResult { schedule: 4, outcome: Ok(()) }"]);
}

#[test]
fn what_its_program_asks_for_is_told_once_a_round() {
    let mut driver = Driver::formed();
    for _ in 0..2 {
        driver.give(Input::Asked(Intent::CheckpointNow));
        driver.give(Input::Asked(Intent::EvalNow));
    }
    assert_eq!(driver.log, ["Intent(CheckpointNow)", "Intent(EvalNow)"]);
    driver.order(request(1, Part::Contribute));
    driver.order(committed(1, 1));
    driver.give(Input::Asked(Intent::EvalNow));
    assert_eq!(driver.log.last().unwrap(), "Intent(EvalNow)");
}

#[test]
fn news_are_passed_on_to_its_program() {
    let mut driver = Driver::formed();
    let metrics = EpochMetrics { epoch: Epoch(2), ..EpochMetrics::default() };
    let evaluation = Evaluation { loss: 1.0, accuracy: None, samples: 1 };
    driver.order(Control::EpochAggregated(Box::new(metrics)));
    driver.order(Control::EvalBroadcast { version: Version(7), rank: Rank(3), evaluation });
    assert_eq!(driver.log, ["told of epoch 2", "told of the evaluation of version 7"]);
}

#[test]
fn a_result_that_stays_away_makes_a_joiner() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    driver.results = false;
    driver.order(request(1, Part::Contribute));
    driver.wait(ms(6000));
    driver.give(Input::ResultGrew { round: Round(1), chunks: CHUNKS - 1 });
    driver.give(Input::Heard);
    // Whoever holds the round up is let go after one patience; only then the result's own begins.
    for _ in 0..2 {
        driver.wait(PATIENCE - ms(1));
        driver.give(Input::Heard);
        driver.give(Input::Tick);
    }
    assert!(!driver.log.iter().any(|line| line.starts_with("ack")), "a byte came within twice the patience");
    driver.wait(ms(2));
    assert_eq!(driver.session.next_deadline(), Some(driver.now));
    driver.give(Input::Tick);
    assert_eq!(driver.log.last().unwrap(), "ack Incomplete { from_chunk: 2 }");
    driver.give(whole(Round(1)));
    assert_eq!(driver.log.last().unwrap(), "ack Incomplete { from_chunk: 2 }", "what was answered stands");
    driver.order(committed(1, 1));
    assert_eq!(driver.session.version(), None);
    driver.results = true;
    driver.log.clear();
    driver.order(request(2, Part::Receive));
    driver.order(committed(2, 2));
    assert_eq!(
        driver.log,
        ["take round 2", "snapshot of 0 steps, 0 samples", "absent Joining", "ack Whole", "apply, reset false"]
    );
    assert_eq!(driver.session.version(), Some(Version(2)));
}

#[test]
fn a_round_with_nothing_keeps_the_steps_and_not_the_ranges() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    driver.order(request(1, Part::Contribute));
    driver.order(nothing(1));
    driver.order(request(2, Part::Contribute));
    let last = &driver.log[driver.log.len() - 3..];
    assert_eq!(last, ["snapshot of 2 steps, 0 samples", "contribute 2", "ack Whole"]);
}

#[test]
fn the_same_version_again_is_taken_again() {
    let mut driver = Driver::formed();
    driver.order(request(1, Part::Contribute));
    driver.order(committed(1, 0));
    assert_eq!(driver.log[2..], ["absent NothingTrained", "ack Whole", "apply, reset false"]);
    assert_eq!((driver.session.version(), driver.end), (Some(Version(0)), None));
}

#[test]
fn a_round_without_this_rank_is_missed() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 20)])));
    driver.order(Control::RequestParams { round: Round(1), roster: Vec::new() });
    driver.order(committed(1, 1));
    assert_eq!(driver.session.version(), None);
    driver.order(request(2, Part::Receive));
    assert!(driver.log.contains(&"snapshot of 0 steps, 20 samples".to_owned()), "{:?}", driver.log);
    assert!(driver.log.contains(&"absent Joining".to_owned()));
}

#[test]
fn a_replica_that_is_not_finite_takes_the_consensus_and_ends_at_the_third() {
    let mut driver = Driver::formed();
    driver.finite = false;
    driver.order(Control::Window(window(1, &[range(0, 10)])));
    driver.order(request(1, Part::Contribute));
    driver.order(committed(1, 1));
    assert_eq!(
        driver.log[3..],
        ["snapshot of 1 steps, 10 samples", "absent NonFinite", "ack Whole", "apply, reset true"]
    );
    // Alone, nothing is folded: the result is the consensus before, which is what this replica needs.
    driver.order(Control::Window(window(2, &[range(10, 20)])));
    driver.order(request(2, Part::Contribute));
    driver.order(nothing(2));
    assert_eq!(driver.log.last().unwrap(), "apply, reset true");
    assert_eq!(driver.session.version(), Some(Version(1)));
    driver.order(request(3, Part::Contribute));
    assert!(driver.failure().contains("not finite in 3 rounds in a row"), "{}", driver.failure());
    assert_eq!(driver.log[driver.log.len() - 2..], ["failed", "end in failure"]);

    let mut driver = Driver::formed();
    for (place, finite) in [false, false, true, false, false].into_iter().enumerate() {
        driver.finite = finite;
        let round = place as u64 + 1;
        driver.order(request(round, Part::Contribute));
        driver.order(committed(round, round));
    }
    assert_eq!(driver.end, None, "two in a row, twice");
}

#[test]
fn silence_and_ends_of_connections_are_told_apart() {
    let mut driver = Driver::formed();
    driver.wait(PATIENCE - ms(1));
    driver.give(Input::Tick);
    driver.order(Control::Heartbeat);
    driver.wait(PATIENCE);
    driver.give(Input::Tick);
    assert_eq!(
        driver.failure(),
        "the coordinator is lost: nothing came from the relay for 10s, which is all the patience there is"
    );
    assert_eq!(driver.log, ["end in failure"], "there is nobody to tell");
    assert_eq!(driver.session.next_deadline(), None);

    let mut driver = Driver::formed();
    driver.during_batch = vec![(1, Control::Shutdown)];
    driver.order(Control::Window(window(1, &[range(0, 90)])));
    assert_eq!(driver.end, Some(End::Finished { version: Some(Version(0)) }));

    // The end of the connection is in line behind the batch, and behind a shutdown that came before it.
    for (first, second, finished) in [(true, true, true), (false, true, false)] {
        let mut driver = Driver::formed();
        driver.session.handle(Input::Control(Control::Window(window(1, &[range(0, 90)]))), driver.now);
        if first {
            driver.session.handle(Input::Control(Control::Shutdown), driver.now);
        }
        if second {
            driver.session.handle(Input::Lost(Lost::Closed { channel: "control" }), driver.now);
        }
        driver.drain();
        assert_eq!(matches!(driver.end, Some(End::Finished { .. })), finished);
    }
}

#[test]
fn a_shutdown_is_answered_in_any_state() {
    let why = Reason::new("test", "the disk is full");
    let states: Vec<(&str, Vec<Control>)> = vec![
        ("forming", vec![]),
        ("idle", vec![Control::Admitted(Box::new(run_config()))]),
        ("in a round", vec![Control::Admitted(Box::new(run_config())), request(0, Part::Source)]),
    ];
    for (name, before) in states {
        let mut driver = Driver::new();
        before.into_iter().for_each(|message| driver.order(message));
        driver.order(Control::ShutdownWithSave { why: why.clone() });
        let version = None;
        assert_eq!(driver.end, Some(End::Stopped { why: "the disk is full".to_owned(), version }), "{name}");
        assert!(
            matches!(driver.reports.last(), Some(Report::Finished { version: None, replica_digest: 78 })),
            "{name}"
        );
    }
}

#[test]
fn the_manifest_is_told_in_parts() {
    let mut driver = Driver::new();
    driver.order(Control::SendManifest);
    let parts: Vec<(u32, u32, usize)> = driver
        .reports
        .iter()
        .filter_map(|report| match report {
            Report::Manifest { part, parts, tensors } => Some((*part, *parts, tensors.len())),
            _ => None,
        })
        .collect();
    assert_eq!(parts, [(0, 3, 1024), (1, 3, 1024), (2, 3, 452)]);
}

#[test]
fn the_end_of_others_is_not_ours() {
    let mut driver = Driver::formed();
    let why = Reason::new("x", "gone");
    for (rank, incarnation) in [(1, 1), (2, 0), (2, 2)] {
        let (rank, incarnation) = (Rank(rank), Incarnation(incarnation));
        driver.order(Control::DeclareDead { rank, incarnation, why: why.clone() });
        driver.order(Control::Fenced { incarnation: Incarnation(7) });
    }
    assert_eq!(driver.end, None);
    driver.order(Control::DeclareDead { rank: Rank(2), incarnation: Incarnation(1), why });
    assert_eq!(driver.failure(), "the coordinator declared this rank dead (gone); its samples go to others");
    let mut driver = Driver::formed();
    driver.order(Control::Fenced { incarnation: Incarnation(1) });
    assert!(driver.failure().starts_with("incarnation 1 of this rank is over"), "{}", driver.failure());
}

#[test]
fn a_joiner_contributes_nothing_whatever_it_is_asked() {
    let mut driver = Driver::new();
    driver.order(Control::Admitted(Box::new(run_config())));
    driver.order(request(4, Part::Contribute));
    assert!(driver.log.contains(&format!("absent {:?}", AbsentWhy::Joining)), "{:?}", driver.log);
    assert!(driver.reports.iter().any(|report| {
        matches!(report, Report::SyncAck(ack) if ack.received().is_some_and(|received| received.divergence.is_none()))
    }));
}

#[test]
fn who_comes_into_a_run_that_has_begun_waits_takes_the_consensus_and_warms_up() {
    let mut driver = Driver::new();
    // The run goes on while it waits to be let in, and while it waits for a round of its own.
    let others = |round| {
        let Control::RequestParams { round, mut roster } = request(round, Part::Contribute) else { unreachable!() };
        roster.retain(|entry| entry.rank == Rank(0));
        Control::RequestParams { round, roster }
    };
    driver.order(others(7));
    driver.order(committed(7, 7));
    driver.order(others(8));
    driver.order(Control::Admitted(Box::new(run_config())));
    driver.order(committed(8, 8));
    assert_eq!(driver.session.version(), None);
    driver.order(request(9, Part::Receive));
    driver.order(committed(9, 9));
    assert_eq!(driver.session.version(), Some(Version(9)));
    driver.order(Control::Window(window(1, &[range(0, 30)])));
    driver.order(request(10, Part::Contribute));
    driver.order(committed(10, 10));
    driver.order(Control::Window(window(2, &[range(30, 40)])));
    assert_eq!(driver.end, None);
    let factors = |of: &WarmUp| of.factor();
    assert_eq!(
        driver.warm_ups.iter().map(|at| at.as_ref().map(factors)).collect::<Vec<_>>(),
        [Some(0.1), Some(0.2), Some(0.3), None]
    );
}

#[test]
fn who_was_there_from_the_start_does_not_warm_up() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(1, &[range(0, 10)])));
    assert_eq!(driver.warm_ups, [None]);
}
