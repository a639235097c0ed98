//! Words out of turn: what a rank, a relay or the root may not say, what arrives in odd but legal orders, and whom a stall
//! report names. Each test is a short script against a run of two ranks, one per host.

mod common;

use common::puppet::ack;
use common::script::Script;
use common::{DIGEST, LIFE};
use flodl_coord::{Input, Output};
use flodl_wire::message::control::{Next, Part, RoundOutcome};
use flodl_wire::message::record::{Body, EventKind};
use flodl_wire::message::report::{Folded, FoldedPart, SyncOutcome, WindowReport};
use flodl_wire::message::{Control, HostReport, Report};
use flodl_wire::{Epoch, Incarnation, Range, Rank, Round, SessionId, Version, WindowId};

fn range(start: u64, end: u64) -> Range {
    Range { start, end }
}

#[test]
fn a_breach_ends_the_rank_with_the_reason_told_to_it() {
    type Act = fn(&mut Script);
    let cases: [(&str, Act); 10] = [
        ("it reported 64 trained samples of which some were not leased to it", |script| {
            let mut report = script.done(0, 1);
            report.used = vec![range(7900, 7964)];
            script.say(0, Report::WindowReport(Box::new(report)));
        }),
        ("it reported 128 trained samples of which some were not leased to it", |script| {
            let mut report = script.done(0, 1);
            report.used.extend(report.used.clone());
            (report.samples, report.batches) = (128, 2);
            script.say(0, Report::WindowReport(Box::new(report)));
        }),
        ("it reported 0 batches of 64 samples, and ranges that hold 64", |script| {
            let report = WindowReport { batches: 0, ..script.done(0, 1) };
            script.say(0, Report::WindowReport(Box::new(report)));
        }),
        ("it reported 1 batches of 65 samples, and ranges that hold 64", |script| {
            let report = WindowReport { samples: 65, ..script.done(0, 1) };
            script.say(0, Report::WindowReport(Box::new(report)));
        }),
        ("it was leased 192 samples and trained none of them", |script| {
            let report = WindowReport { batches: 0, samples: 0, used: Vec::new(), ..script.done(0, 1) };
            script.say(0, Report::WindowReport(Box::new(report)));
        }),
        ("it reported a window it was not given", |script| {
            let report = WindowReport { window: WindowId(9), ..script.done(0, 1) };
            script.say(0, Report::WindowReport(Box::new(report)));
        }),
        ("it reported a window it was not given", |script| {
            script.report(0, 1);
            script.report(0, 1);
        }),
        ("it spoke of round 1 before its window report and snapshot", |script| {
            script.take(Input::Stop);
            script.snapshot(0, 1, &[]);
        }),
        ("it spoke of round 1 before its window report and snapshot", |script| {
            script.take(Input::Stop);
            script.say(0, Report::SyncAck(ack(Round(1))));
        }),
        ("its snapshot speaks for 64 samples, its window reports for 64", |script| {
            script.report(0, 1);
            script.report(1, 1);
            script.snapshot(0, 1, &[range(7000, 7064)]);
        }),
    ];
    for (why, act) in cases {
        let mut script = Script::training();
        act(&mut script);
        assert_eq!(script.deaths(), [(0, format!("it broke the protocol: {why}"))]);
        let told = |output: &Output| matches!(output, Output::ToRank { rank: Rank(0), control: Control::Refused { why: told }, .. } if told.text.ends_with(why));
        assert!(script.outputs.iter().any(told), "{why}");
    }
}

#[test]
fn a_round_closes_in_whatever_order_its_words_come() {
    for order in 0..4 {
        let (mut script, [a, b]) = Script::averaging();
        let whole = [FoldedPart::Whole, FoldedPart::Whole];
        if order == 0 {
            script.folded(1, whole);
        }
        script.snapshot(1, 1, &b);
        if order == 1 {
            script.folded(1, whole);
        }
        script.say(1, Report::SyncAck(ack(Round(1))));
        script.snapshot(0, 1, &a);
        if order == 2 {
            script.folded(1, whole);
        }
        assert_eq!(script.rounds_done().len(), 1, "round 1 closes with the last word, not before it");
        script.say(0, Report::SyncAck(ack(Round(1))));
        if order == 3 {
            script.folded(1, whole);
        }
        assert_eq!(script.commits(), [(Version(0), 0, 0), (Version(1), 128, 0)], "order {order}");
        assert_eq!(script.deaths(), []);
    }
}

#[test]
fn each_round_is_requested_for_a_reason_that_is_told() {
    let (mut script, [a, b]) = Script::averaging();
    script.snapshot(0, 1, &a);
    script.snapshot(1, 1, &b);
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
    script.take(Input::Stop);
    let why = |(kind, why): (&EventKind, String)| matches!(kind, EventKind::RoundRequested { .. }).then_some(why);
    assert_eq!(
        script.events().filter_map(why).collect::<Vec<_>>(),
        [
            "the first parameters are spread",
            "the window is over for everybody, and trained in it have rank 0, rank 1",
            "stopped on request",
        ]
    );
}

#[test]
fn a_fold_that_forgets_a_rank_or_names_strangers_loses_nothing() {
    let (mut script, [a, b]) = Script::averaging();
    script.snapshot(0, 1, &a);
    script.snapshot(1, 1, &b);
    let ranks = vec![
        (Rank(0), Incarnation(7), FoldedPart::Whole),
        (Rank(1), LIFE, FoldedPart::Whole),
        (Rank(1), LIFE, FoldedPart::None),
        (Rank(77), LIFE, FoldedPart::Whole),
    ];
    let folded = |round| Folded { round: Round(round), ranks: ranks.clone(), digest: DIGEST, any_mass: true };
    script.take(Input::Folded(folded(2)));
    script.take(Input::Folded(folded(1)));
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
    assert_eq!(script.commits()[1..], [(Version(1), 64, 0)], "rank 0's work is given back");
    assert_eq!(script.windows[1].global_step, 1);
}

#[test]
fn stale_and_repeated_words_change_nothing() {
    let (mut script, [a, b]) = Script::averaging();
    script.snapshot(0, 0, &[range(0, 10)]);
    script.say(0, Report::SyncAck(ack(Round(0))));
    script.snapshot(0, 1, &a);
    script.snapshot(0, 1, &[range(0, 10)]);
    script.snapshot(1, 1, &b);
    script.folded(0, [FoldedPart::None, FoldedPart::None]);
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.say(0, Report::SyncAck(ack(Round(1))));
    let late = common::puppet::ack(Round(1));
    let late = flodl_wire::message::report::SyncAck { outcome: SyncOutcome::Incomplete { from_chunk: 0 }, ..late };
    script.say(0, Report::SyncAck(late));
    script.say(1, Report::SyncAck(ack(Round(1))));
    script.say(1, Report::SyncAck(ack(Round(1))));
    script.say(1, Report::EvalResult { schedule: 0, outcome: Err("not asked".into()) });
    script.take(Input::Saved { version: Version(1), result: Ok("elsewhere".into()) });
    assert_eq!(script.commits()[1..], [(Version(1), 128, 0)]);
    assert_eq!(script.deaths(), []);
    assert_eq!([script.windows[0].window, script.windows[1].window], [WindowId(2), WindowId(2)]);
}

#[test]
fn hostile_figures_do_not_overflow() {
    let mut script = Script::training();
    for rank in [0, 1] {
        let report = WindowReport {
            loss_sum: f64::MAX,
            loss_count: u64::MAX,
            first: std::time::Duration::MAX,
            rest: std::time::Duration::MAX,
            data_wait: std::time::Duration::MAX,
            ..script.done(rank, 1)
        };
        script.say(rank, Report::WindowReport(Box::new(report)));
    }
    let leases = script.windows.clone();
    for rank in [0u32, 1] {
        let ranges = common::puppet::prefix(&leases[rank as usize].leases, 64);
        script.say(rank, Report::SnapshotReady { round: Round(1), steps: u64::MAX, ranges, epoch: Epoch(0) });
    }
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
    assert_eq!(script.commits()[1..], [(Version(1), 128, 0)]);
    assert_eq!(script.windows[0].global_step, 128, "a sample is at most one step");
}

#[test]
fn a_dead_ranks_work_is_committed_exactly_where_it_was_folded_whole() {
    for (part, committed, repeats) in
        [(FoldedPart::Whole, 128, 0), (FoldedPart::Chunks(2), 64, 64), (FoldedPart::None, 64, 0)]
    {
        // Its end is told before its snapshot, before the fold, or before its acknowledgement.
        for told in 0..3 {
            let (mut script, [a, b]) = Script::averaging();
            script.snapshot(1, 1, &b);
            for step in 0..3 {
                if step == told {
                    script.dies(0, 9);
                }
                match step {
                    0 => script.snapshot(0, 1, &a),
                    1 => script.folded(1, [part, FoldedPart::Whole]),
                    _ => script.say(1, Report::SyncAck(ack(Round(1)))),
                }
            }
            assert_eq!(script.commits()[1..], [(Version(1), committed, repeats)], "{part:?}, told at {told}");
            assert_eq!(script.windows[1].global_step, committed / 64);
        }
    }
}

#[test]
fn who_was_left_out_takes_the_consensus_before_it_trains_again() {
    let (mut script, [a, b]) = Script::averaging();
    script.snapshot(0, 1, &a);
    script.snapshot(1, 1, &b);
    script.folded(1, [FoldedPart::None, FoldedPart::None]);
    script.acks(1);
    let (_, outcome, _) = script.rounds_done()[1];
    assert_eq!(outcome, RoundOutcome::Committed { version: Version(0) }, "the consensus is handed out again");
    assert_eq!(script.commits()[1..], [(Version(0), 0, 0)]);
    assert_eq!(script.windows[0].window, WindowId(2));
    assert_eq!(script.windows[0].global_step, 0);
}

#[test]
fn a_wrong_replica_gives_its_work_back_and_is_brought_in_line() {
    let mut script = Script::training();
    let report = WindowReport { replica_digest: Some((Version(0), 1)), ..script.done(0, 1) };
    script.say(0, Report::WindowReport(Box::new(report)));
    let used = script.report(1, 1);
    assert_eq!(script.roster(), [(0, Part::Receive), (1, Part::Contribute)]);
    script.snapshot(0, 1, &[]);
    script.snapshot(1, 1, &used);
    script.folded(1, [FoldedPart::None, FoldedPart::Whole]);
    script.acks(1);
    assert_eq!(script.commits()[1..], [(Version(1), 64, 0)]);
    assert_eq!(script.windows[0].window, WindowId(2), "it trains again");
}

#[test]
fn a_wrong_replica_that_is_noticed_in_a_round_stays_in_it() {
    let mut script = Script::training();
    let other = script.report(1, 1);
    script.take(Input::Stop);
    let report = WindowReport { replica_digest: Some((Version(0), 1)), ..script.done(0, 1) };
    let used = report.used.clone();
    script.say(0, Report::WindowReport(Box::new(report)));
    script.snapshot(0, 1, &used);
    script.snapshot(1, 1, &other);
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
    assert_eq!(script.commits()[1..], [(Version(1), 128, 0)]);
    assert_eq!(script.deaths(), []);
}

#[test]
fn the_final_consensus_is_held_by_somebody() {
    let mut script = Script::training();
    script.take(Input::Stop);
    let used = [0, 1].map(|rank| script.report(rank, 1));
    for rank in [0u32, 1] {
        script.snapshot(rank, 1, &used[rank as usize]);
    }
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    for rank in [0, 1] {
        let incomplete = SyncOutcome::Incomplete { from_chunk: 3 };
        script
            .say(rank, Report::SyncAck(flodl_wire::message::report::SyncAck { outcome: incomplete, ..ack(Round(1)) }));
    }
    assert_eq!(script.rounds_done()[1], (1, RoundOutcome::Committed { version: Version(1) }, Next::Window));
    assert_eq!(script.roster(), [(0, Part::Receive), (1, Part::Receive)]);
    script.snapshot(0, 2, &[]);
    script.snapshot(1, 2, &[]);
    script.folded(2, [FoldedPart::None, FoldedPart::None]);
    script.acks(2);
    assert_eq!(script.rounds_done()[2], (2, RoundOutcome::Committed { version: Version(1) }, Next::Final));
}

#[test]
fn a_stall_names_who_is_waited_for_in_every_phase() {
    type Act = fn(&mut Script);
    let cases: [(&str, Act); 9] = [
        ("waiting for the window of rank 1 (at most 3 batches)", |script| {
            script.report(0, 1);
        }),
        ("waiting for the snapshot of rank 0", |script| {
            script.report(0, 1);
            let used = script.report(1, 1);
            script.snapshot(1, 1, &used);
        }),
        ("every snapshot is taken, the fold is not done", to_fold),
        ("the fold waits for chunk 5 of rank 1", |script| {
            to_fold(script);
            let report = HostReport::Waiting { round: Round(1), rank: Rank(1), chunk: 5 };
            script.take(Input::FromHost { session: SessionId(1), report });
        }),
        ("every snapshot is taken, the fold is not done", |script| {
            to_fold(script);
            let anothers = HostReport::Waiting { round: Round(1), rank: Rank(0), chunk: 5 };
            script.take(Input::FromHost { session: SessionId(1), report: anothers });
        }),
        ("the fold waits for chunk 2 of rank 1", |script| {
            to_fold(script);
            script.take(Input::RootWaits { round: Round(1), rank: Rank(0), chunk: 2 });
            let report = HostReport::Waiting { round: Round(1), rank: Rank(1), chunk: 2 };
            script.take(Input::FromHost { session: SessionId(1), report });
            script.take(Input::RootWaits { round: Round(1), rank: Rank(0), chunk: 2 });
        }),
        ("waiting for the acknowledgement of rank 1", |script| {
            to_fold(script);
            script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
            script.say(0, Report::SyncAck(ack(Round(1))));
        }),
        ("waiting for the evaluation of rank 0", to_end),
        ("waiting for the checkpoint", |script| {
            to_end(script);
            script.say(0, Report::EvalResult { schedule: 0, outcome: Err("none".into()) });
            script.say(1, Report::EvalResult { schedule: 1, outcome: Err("none".into()) });
        }),
    ];
    for (what, act) in cases {
        let mut script = Script::training();
        act(&mut script);
        script.wait(11);
        let stalls = script.stalls();
        assert_eq!(stalls.len(), 1, "{stalls:?}");
        assert!(stalls[0].starts_with(&format!("nothing has moved for 10.0 s: {what}")), "{stalls:?}");
        // While the run goes on, pool and plan are told too.
        let running = !what.contains("evaluation") && !what.contains("checkpoint");
        assert_eq!(stalls[0].contains(" (window 1 of epoch 0, anchor "), running, "{stalls:?}");
    }
}

fn to_fold(script: &mut Script) {
    let used = [0, 1].map(|rank| script.report(rank, 1));
    for rank in [0u32, 1] {
        script.snapshot(rank, 1, &used[rank as usize]);
    }
}

fn to_end(script: &mut Script) {
    script.take(Input::Stop);
    to_fold(script);
    script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
    script.acks(1);
}

#[test]
fn a_late_evaluation_checkpoint_or_end_does_not_hold_the_run_up() {
    let mut script = Script::training();
    to_end(&mut script);
    script.wait(2 * 300 + 300 + 11);
    let ended = script.events().last().map(|(kind, why)| (kind.clone(), why));
    let why = "stopped on request, without rank 0, rank 1; the checkpoint was not written";
    assert_eq!(ended, Some((EventKind::RunEnded { exit: 1 }, why.to_owned())));
    let deaths = script.deaths();
    assert!(deaths.iter().all(|(_, why)| why == "it did not end within 10s of being told to"), "{deaths:?}");
    assert_eq!(script.coordinator.next_deadline(), None);
}

#[test]
fn who_has_said_its_last_word_may_lose_its_host() {
    let mut script = Script::training();
    to_end(&mut script);
    script.say(0, Report::EvalResult { schedule: 0, outcome: Err("none".into()) });
    script.say(1, Report::EvalResult { schedule: 1, outcome: Err("none".into()) });
    script.take(Input::Saved { version: Version(1), result: Ok("checkpoints/v1".into()) });
    script.say(0, Report::Finished { version: Some(Version(1)), replica_digest: DIGEST });
    for session in [0, 1] {
        script.take(Input::HostLost { session: SessionId(session), error: "reset".into() });
    }
    assert_eq!(script.deaths(), [], "it may come back");
    script.wait(11);
    assert_eq!(script.deaths(), [(1, "the link to its host is gone: reset".to_owned())]);
    assert!(script.outputs.contains(&Output::End { exit: 4 }));
    let lost = script.events().filter(|(kind, _)| matches!(kind, EventKind::HostLost { .. }));
    assert_eq!(lost.count(), 1, "a host that is done is not lost");
}

/// One window and its round; rank 0's replica is the consensus or not.
fn window_and_round(script: &mut Script, round: u64, right: bool) {
    let version = script.commits().last().map_or(Version(0), |commit| commit.0);
    let report = WindowReport { replica_digest: Some((version, if right { DIGEST } else { 1 })), ..script.done(0, 1) };
    let mine = report.used.clone();
    script.say(0, Report::WindowReport(Box::new(report)));
    let used = script.report(1, 1);
    script.snapshot(0, round, &mine);
    script.snapshot(1, round, &used);
    script.folded(round, [if right { FoldedPart::Whole } else { FoldedPart::None }, FoldedPart::Whole]);
    script.acks(round);
}

#[test]
fn only_failures_in_a_row_end_a_rank() {
    for (replicas, ends) in [([false, false, true, false, false].as_slice(), false), (&[false, false, false], true)] {
        let mut script = Script::training();
        for (round, &right) in (1..).zip(replicas) {
            window_and_round(&mut script, round, right);
        }
        assert_eq!(!script.deaths().is_empty(), ends, "{replicas:?}: {:?}", script.deaths());
    }
}

#[test]
fn the_scheduler_forgets_who_is_dead_and_who_lost_the_consensus() {
    type Act = fn(&mut Script);
    let acts: [Act; 3] = [
        |script| script.dies(0, 9),
        |script| {
            let report = WindowReport { replica_digest: Some((Version(0), 1)), ..script.done(0, 1) };
            script.say(0, Report::WindowReport(Box::new(report)));
        },
        |script| {
            let used = script.report(0, 1);
            let other = script.report(1, 1);
            script.snapshot(0, 1, &used);
            script.snapshot(1, 1, &other);
            script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
            let incomplete = SyncOutcome::Incomplete { from_chunk: 0 };
            let answer = flodl_wire::message::report::SyncAck { outcome: incomplete, ..ack(Round(1)) };
            script.say(0, Report::SyncAck(answer));
            script.say(1, Report::SyncAck(ack(Round(1))));
        },
    ];
    for (case, act) in acts.into_iter().enumerate() {
        let mut script = Script::training();
        act(&mut script);
        if case < 2 {
            let used = script.report(1, 1);
            script.snapshot(0, 1, &[]);
            script.snapshot(1, 1, &used);
            script.folded(1, [FoldedPart::None, FoldedPart::Whole]);
            script.acks(1);
        }
        let left = |output: &Output| matches!(output, Output::Record(Body::Event(event)) if event.reason.as_ref().is_some_and(|why| why.code == "left" && why.ranks == [Rank(0)]));
        assert!(script.outputs.iter().any(left), "case {case}");
    }
}

#[test]
fn without_mass_there_is_no_version_to_commit_into() {
    let (mut script, [a, b]) = Script::averaging();
    script.snapshot(0, 1, &a);
    script.snapshot(1, 1, &b);
    let ranks = [0, 1].map(|rank| (Rank(rank), LIFE, FoldedPart::Whole)).to_vec();
    script.take(Input::Folded(Folded { round: Round(1), ranks, digest: DIGEST, any_mass: false }));
    script.acks(1);
    assert_eq!(script.commits()[1..], [(Version(0), 0, 0)]);
}

#[test]
fn work_that_is_in_no_consensus_is_not_kept_by_a_rank_without_the_result() {
    let (mut script, [a, b]) = Script::averaging();
    script.snapshot(0, 1, &a);
    script.snapshot(1, 1, &b);
    script.folded(1, [FoldedPart::None, FoldedPart::None]);
    for rank in [0, 1] {
        let outcome = SyncOutcome::Incomplete { from_chunk: 0 };
        script.say(rank, Report::SyncAck(flodl_wire::message::report::SyncAck { outcome, ..ack(Round(1)) }));
    }
    assert_eq!(script.rounds_done()[1], (1, RoundOutcome::Nothing, Next::Window));
    assert_eq!(script.roster(), [(0, Part::Receive), (1, Part::Receive)]);
}

#[test]
fn a_source_that_cannot_give_its_parameters_is_replaced_and_nobody_else_blamed() {
    let mut script = Script::formed();
    for round in 0..3 {
        assert_eq!(script.roster(), [(0, Part::Source), (1, Part::Receive)]);
        script.snapshot(0, round, &[]);
        script.snapshot(1, round, &[]);
        script.folded(round, [FoldedPart::None, FoldedPart::None]);
        script.acks(round);
    }
    assert_eq!(script.deaths(), [(0, "it did not hold the consensus after 3 rounds in a row".to_owned())]);
    script.snapshot(1, 3, &[]);
    script.folded(3, [FoldedPart::None, FoldedPart::None]);
    script.say(1, Report::SyncAck(ack(Round(3))));
    assert_eq!(script.roster(), [(1, Part::Source)]);
}

#[test]
fn the_evaluator_dies_and_the_next_is_asked() {
    let mut script = Script::training();
    to_end(&mut script);
    script.dies(0, 9);
    let asked = |output: &Output| match output {
        Output::ToRank { rank, control: Control::ExecuteEval { schedule }, .. } => Some((rank.0, *schedule)),
        _ => None,
    };
    let asked: Vec<_> = script.outputs.iter().filter_map(asked).collect();
    assert_eq!(asked, [(0, 0), (1, 1)]);
}

/// The next window, whose first batch tells a speed.
fn timed_window(script: &mut Script) {
    script.average(1, std::time::Duration::from_millis(50));
}

fn alerts(script: &Script) -> Vec<String> {
    script.events().filter(|(kind, _)| **kind == EventKind::Alert).map(|(_, why)| why).collect()
}

#[test]
fn who_makes_no_step_is_named_and_at_the_ceiling_dead() {
    // Without an estimate ten times the patience are waited, with one three times its window and at least three times the
    // patience.
    for (timed, named, dead_after) in [(false, vec![], 100), (true, vec![0, 1], 30)] {
        let mut script = Script::training();
        if timed {
            timed_window(&mut script);
        }
        script.wait(dead_after - 1);
        let told = alerts(&script);
        assert_eq!(told.len(), named.len(), "{told:?}");
        for (rank, text) in named.iter().zip(&told) {
            let start = format!("rank {rank} has made no step of window 2 for ");
            assert!(text.starts_with(&start), "{text}");
        }
        assert_eq!(script.deaths(), []);
        script.wait(2);
        let start = format!("it gave signs of life but made no progress for {dead_after}.");
        let deaths = script.deaths();
        assert_eq!(deaths.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0, 1]);
        assert!(deaths.iter().all(|(_, why)| why.starts_with(&start)), "{deaths:?}");
        let told =
            script.outputs.iter().filter(|output| matches!(output, Output::Broadcast(Control::DeclareDead { .. })));
        assert_eq!(told.count(), 2, "their relays end the processes");
    }
}

#[test]
fn a_step_now_and_then_keeps_a_rank_alive() {
    let mut script = Script::training();
    timed_window(&mut script);
    for step in 0..20 {
        script.wait(25);
        for rank in [0, 1] {
            script.say(rank, Report::Heartbeat { step: step + 1 });
        }
    }
    assert_eq!(script.deaths(), []);
}

#[test]
fn a_round_does_not_wait_for_ever_for_one_that_lives() {
    type Act = fn(&mut Script, &[Vec<Range>; 2]);
    let acts: [Act; 3] = [
        |script, used| script.snapshot(1, 1, &used[1]),
        |script, used| {
            script.snapshot(0, 1, &used[0]);
            script.snapshot(1, 1, &used[1]);
            let report = HostReport::Waiting { round: Round(1), rank: Rank(0), chunk: 5 };
            script.take(Input::FromHost { session: SessionId(0), report });
        },
        |script, used| {
            script.snapshot(0, 1, &used[0]);
            script.snapshot(1, 1, &used[1]);
            script.folded(1, [FoldedPart::Whole, FoldedPart::Whole]);
            script.say(1, Report::SyncAck(ack(Round(1))));
        },
    ];
    for (case, act) in acts.into_iter().enumerate() {
        let (mut script, used) = Script::averaging();
        act(&mut script, &used);
        script.wait(299);
        assert_eq!(script.deaths(), [], "case {case}");
        script.wait(2);
        assert_eq!(script.deaths().iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [0], "case {case}");
    }
}
