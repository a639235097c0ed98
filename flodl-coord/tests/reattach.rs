//! A host's link breaks and comes back: nothing is lost, nothing counts twice, and its ranks are told what is true now. One that
//! says nothing is closed.

mod common;

use common::puppet::ack;
use common::script::Script;
use common::{LIFE, MS, pass};
use flodl_coord::{Input, Output};
use flodl_wire::message::control::{Next, Part, RoundOutcome};
use flodl_wire::message::record::EventKind;
use flodl_wire::message::report::{FoldedPart, RankState};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{Epoch, HostId, Incarnation, Rank, Round, SessionId, Time, Version, WindowId};

fn breaks(script: &mut Script) {
    script.take(Input::HostLost { session: SessionId(1), error: "reset".into() });
}

fn state(window: Option<u64>, round: (u64, bool), words: Vec<Report>) -> RankState {
    RankState {
        rank: Rank(1),
        incarnation: LIFE,
        window: window.map(WindowId),
        round: Some(Round(round.0)),
        round_done: round.1,
        admitted: true,
        words,
        version: None,
        plan: None,
        pace: None,
    }
}

/// Rank 1's host is back through session 11. What rank 1 is told.
fn comes_back(script: &mut Script, state: RankState) -> Vec<Control> {
    let (session, host) = (SessionId(11), HostId::from_name("host1").expect("a name"));
    let first = script.sessions[1];
    script.sessions[1] = session;
    script.take(Input::HostResumed { session, host, first });
    let from = script.outputs.len();
    script.take(Input::FromHost { session, report: HostReport::RankState(Box::new(state)) });
    let told = |output: &Output| match output {
        Output::ToRank { rank: Rank(1), session: SessionId(11), control, .. } => Some(control.clone()),
        _ => None,
    };
    script.outputs[from..].iter().filter_map(told).collect()
}

#[test]
fn a_window_report_counts_once_whether_it_was_heard_or_not() {
    for heard in [true, false] {
        let mut script = Script::training();
        let report = Report::WindowReport(Box::new(script.done(1, 1)));
        if heard {
            script.say(1, report.clone());
        }
        breaks(&mut script);
        let mine = script.report(0, 1);
        assert_eq!(script.roster(), [(0, Part::Source), (1, Part::Receive)], "the gate waits for it");
        let other = script.done(1, 1).used;
        let told = comes_back(&mut script, state(Some(1), (0, true), vec![report]));
        assert_eq!(told, [Control::ControllerBack]);
        assert_eq!(script.roster(), [(0, Part::Contribute), (1, Part::Contribute)]);
        script.snapshot(0, 1, &mine);
        script.snapshot(1, 1, &other);
        script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
        script.acks(1);
        assert_eq!(script.commits()[1..], [(Version(1), 128, 0)], "heard {heard}");
        assert_eq!(script.deaths(), []);
    }
}

#[test]
fn a_round_goes_on_without_a_host_whose_link_breaks_in_it() {
    for (part, committed, repeats) in
        [(FoldedPart::Whole, 128, 0), (FoldedPart::Chunks(2), 64, 64), (FoldedPart::None, 64, 0)]
    {
        let (mut script, [a, b]) = Script::averaging();
        script.snapshot(0, 1, &a);
        script.snapshot(1, 1, &b);
        breaks(&mut script);
        script.folded(1, [FoldedPart::Whole, part]);
        script.say(0, Report::SyncAck(ack(Round(1))));
        assert_eq!(script.commits()[1..], [(Version(1), committed, repeats)], "{part:?}");
        let words = vec![
            Report::SnapshotReady { round: Round(1), steps: 1, ranges: b.clone(), epoch: Epoch(0) },
            Report::SyncAck(ack(Round(1))),
        ];
        let told = comes_back(&mut script, state(Some(1), (1, false), words));
        let outcome = RoundOutcome::Committed { version: Version(1) };
        let done = Control::RoundDone { round: Round(1), outcome, next: Next::Window };
        assert_eq!(told, [Control::ControllerBack, done]);
        script.report(0, 1);
        assert_eq!(script.roster(), [(0, Part::Contribute), (1, Part::Receive)], "it takes the consensus first");
        assert_eq!(script.deaths(), []);
    }
}

#[test]
fn who_missed_that_the_last_round_is_over_is_told_at_the_end() {
    let (mut script, [a, b]) = Script::averaging();
    script.take(Input::Stop);
    script.snapshot(0, 1, &a);
    script.snapshot(1, 1, &b);
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
    assert_eq!(script.rounds_done().last().map(|done| done.2), Some(Next::Final));
    breaks(&mut script);
    let words = vec![Report::SyncAck(ack(Round(1)))];
    let told = comes_back(&mut script, state(Some(1), (1, false), words));
    let outcome = RoundOutcome::Committed { version: Version(1) };
    let done = Control::RoundDone { round: Round(1), outcome, next: Next::Final };
    assert_eq!(told[..2], [Control::ControllerBack, done], "it answers nothing while it is in that round");
}

#[test]
fn an_order_that_was_lost_is_given_again() {
    let mut script = Script::training();
    breaks(&mut script);
    let told = comes_back(&mut script, state(None, (0, false), Vec::new()));
    let done = Control::RoundDone {
        round: Round(0),
        outcome: RoundOutcome::Committed { version: Version(0) },
        next: Next::Window,
    };
    assert_eq!(told, [Control::ControllerBack, done, Control::Window(script.windows[1].clone())]);
}

#[test]
fn who_does_not_come_back_in_time_is_gone_and_who_comes_later_is_fenced() {
    let mut script = Script::training();
    breaks(&mut script);
    script.wait(9);
    assert_eq!(script.deaths(), []);
    script.wait(2);
    assert_eq!(script.deaths(), [(1, "the link to its host is gone: reset".to_owned())]);
    let told = comes_back(&mut script, state(Some(1), (0, true), Vec::new()));
    assert_eq!(told, [Control::Fenced { incarnation: LIFE }]);
    let stranger = RankState { incarnation: Incarnation(9), ..state(None, (0, true), Vec::new()) };
    let report = HostReport::RankState(Box::new(stranger));
    let from = script.outputs.len();
    script.take(Input::FromHost { session: SessionId(11), report });
    let fenced = |output: &Output| matches!(output, Output::ToRank { control: Control::Fenced { .. }, .. });
    assert!(script.outputs[from..].iter().any(fenced));
}

#[test]
fn a_host_that_the_run_does_not_know_is_refused() {
    let mut script = Script::training();
    let (session, host) = (SessionId(12), HostId::from_name("nobody").expect("a name"));
    script.take(Input::HostResumed { session, host, first: SessionId(3) });
    assert!(script.outputs.contains(&Output::CloseHost { session }));
    let back = script.events().filter(|(kind, _)| matches!(kind, EventKind::HostBack { .. }));
    assert_eq!(back.count(), 0);
}

#[test]
fn time_out_of_reach_is_no_time_without_a_step() {
    let mut script = Script::training();
    script.wait(95);
    breaks(&mut script);
    comes_back(&mut script, state(Some(1), (0, true), Vec::new()));
    script.say(0, Report::Heartbeat { step: 9 });
    script.wait(20);
    assert_eq!(script.deaths(), []);
}

/// What others sent while the coordinator stood still waits unread: their silence is not theirs.
#[test]
fn a_coordinator_that_stood_still_holds_it_against_nobody() {
    let mut script = Script::training();
    let slept_from = script.now;
    script.now = Time(slept_from.0 + 60_000 * MS);
    script.coordinator.tick(script.now);
    script.outputs.extend(std::iter::from_fn(|| script.coordinator.poll()));
    assert!(!script.outputs.iter().any(|output| matches!(output, Output::CloseHost { .. })));
    assert_eq!(script.deaths(), []);
    assert!(script.coordinator.next_deadline().is_some_and(|due| due > script.now), "it is not called over and over");
    // Who is silent from now on is silent.
    script.say(0, Report::Heartbeat { step: 0 });
    script.now = Time(script.now.0 + 9_500 * MS);
    let until = script.now;
    let outputs = pass(&mut script.coordinator, until);
    script.outputs.extend(outputs);
    assert_eq!(script.deaths().len(), 1, "of the host that said nothing since");
}

#[test]
fn a_silent_host_is_closed() {
    let mut script = Script::training();
    let silent_from = script.now;
    script.now = Time(silent_from.0 + 6_000 * MS);
    pass(&mut script.coordinator, script.now);
    script.say(0, Report::Heartbeat { step: 0 });
    script.now = Time(silent_from.0 + 10_000 * MS);
    script.outputs.extend(pass(&mut script.coordinator, script.now));
    let closed: Vec<_> = script.outputs.iter().filter(|o| matches!(o, Output::CloseHost { .. })).cloned().collect();
    assert_eq!(closed, [Output::CloseHost { session: SessionId(1) }]);
    assert_eq!(script.deaths().len(), 1);
}
