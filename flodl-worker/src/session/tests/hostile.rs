//! Messages that cannot be obeyed end the rank with a sentence that names what was wrong.

use super::*;

/// A driver in some state.
type Start = fn() -> Driver;

#[test]
fn what_cannot_be_obeyed_is_named() {
    let fresh: Start = Driver::new;
    let formed: Start = Driver::formed;
    let acked: Start = || {
        let mut driver = Driver::formed();
        driver.order(request(1, Part::Contribute));
        driver.order(committed(1, 1));
        driver.order(request(2, Part::Contribute));
        driver
    };
    let settings = |change: fn(&mut RunConfig)| {
        let mut run = run_config();
        change(&mut run);
        Control::Admitted(Box::new(run))
    };
    let plan = |change: fn(&mut WindowPlan)| {
        let mut plan = window(1, &[range(0, 10)]);
        change(&mut plan);
        Control::Window(plan)
    };
    let cases: Vec<(Start, Control, &str)> = vec![
        (
            formed,
            Control::Admit(Admit { session: SessionId(1), ids: vec![], world_size: 1 }),
            "Admit is a message for relays",
        ),
        (formed, settings(|_| {}), "Admitted came while this rank had nothing to do"),
        (fresh, settings(|run| run.batch_size = 0), "the run's settings are impossible: batch_size is 0"),
        (fresh, settings(|run| run.epoch_len = 0), "the run's settings are impossible: epoch_len is 0"),
        (fresh, settings(|run| run.patience = ms(0)), "the run's settings are impossible: patience is 0"),
        (fresh, settings(|run| run.dataset_len = 999), "the run's dataset length is 999, this rank's is 1000"),
        (fresh, settings(|run| run.layout.parameters = 5), "the run's layout is LayoutSizes { parameters: 5"),
        (fresh, plan(|_| {}), "Window came while this rank was not admitted yet"),
        (fresh, request(0, Part::Source), "RequestParams came while this rank was not admitted yet"),
        (fresh, extend(0, &[]), "ExtendPartition came while this rank was not admitted yet"),
        (fresh, Control::ExecuteEval { schedule: 0 }, "ExecuteEval came while this rank was not admitted yet"),
        (acked, plan(|_| {}), "Window came while this rank waited for a round's end"),
        (acked, request(3, Part::Contribute), "RequestParams came while this rank waited for a round's end"),
        (acked, committed(3, 2), "the end of round 3 came while Some(Round(2)) is open here"),
        (acked, committed(2, 0), "version 0 was committed after version 1"),
        (formed, committed(4, 4), "the end of round 4 came while None is open here"),
        (formed, request(0, Part::Source), "round 0 was ordered after round 0"),
        (formed, plan(|plan| plan.epoch = Epoch(5)), "window 1 is of epoch 5, the run has 5"),
        (formed, plan(|plan| plan.quota = 0), "window 1 plans 0 batches and allows 10"),
        (formed, plan(|plan| plan.quota_max = 9), "window 1 plans 10 batches and allows 9"),
        (
            formed,
            plan(|plan| plan.leases = vec![range(990, 1001)]),
            "window 1 leases positions 990..1001 of an epoch of 1000",
        ),
        (formed, plan(|plan| plan.leases = vec![range(9, 3)]), "window 1 leases positions 9..3 of an epoch of 1000"),
        (
            formed,
            plan(|plan| plan.leases = vec![range(500, 510), range(0, 10), range(509, 600)]),
            "window 1 leases positions 509..600 twice",
        ),
    ];
    for (driver, message, expect) in cases {
        let mut driver = driver();
        driver.order(message.clone());
        let error = driver.failure();
        let expect = format!("the coordinator sent what cannot be obeyed: {expect}");
        assert!(error.starts_with(&expect), "{message:?}:\n{error}\n{expect}");
        assert!(matches!(driver.reports.last(), Some(Report::Failed { error: told }) if *told == error));
    }
}

#[test]
fn windows_are_only_ordered_forwards_and_never_after_the_last() {
    let mut driver = Driver::formed();
    driver.order(Control::Window(window(7, &[])));
    driver.order(Control::Window(window(7, &[])));
    assert!(driver.failure().ends_with("window 7 was ordered after window 7"), "{}", driver.failure());

    let mut driver = Driver::formed();
    driver.order(request(1, Part::Contribute));
    let outcome = RoundOutcome::Committed { version: Version(1) };
    driver.order(Control::RoundDone { round: Round(1), outcome, next: Next::Final });
    driver.order(Control::Window(window(8, &[])));
    assert!(driver.failure().contains("Window came while"), "{}", driver.failure());
}

#[test]
fn a_lease_may_not_be_extended_over_itself() {
    let mut driver = Driver::formed();
    driver.during_batch = vec![(1, extend(1, &[range(5, 6)]))];
    driver.order(Control::Window(window(1, &[range(0, 30)])));
    assert!(driver.failure().ends_with("window 1 leases positions 5..6 twice"), "{}", driver.failure());
}

#[test]
fn messages_do_not_pile_up_without_bound() {
    let mut session = Driver::formed().session;
    session.handle(Input::Control(Control::Window(window(1, &[range(0, 30)]))), Time::ZERO);
    assert!(matches!(session.poll(), Some(Output::Train(_))));
    for _ in 0..=BACKLOG_MAX {
        session.handle(Input::Control(Control::ExecuteEval { schedule: 0 }), Time::ZERO);
    }
    let end = std::iter::from_fn(|| session.poll()).last();
    let expect = Violation::TooMany { limit: BACKLOG_MAX };
    assert_eq!(end, Some(Output::End(End::Failed(Failure::Protocol(expect)))));
}
