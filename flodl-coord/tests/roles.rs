//! Evaluations and checkpoints between rounds, word by word: what triggers them, who is asked, and what happens where that
//! goes wrong.

mod common;

use common::puppet::ready;
use common::script::Script;
use common::{config, scenario};
use core::num::NonZeroU64;
use core::time::Duration;
use flodl_coord::{Duties, Duty, Elect, Input, Output};
use flodl_elche::NoGuard;
use flodl_wire::message::record::{Body, EventKind, Node, Role};
use flodl_wire::message::report::{Evaluation, FoldedPart, Intent, WindowReport};
use flodl_wire::message::{Control, Report};
use flodl_wire::{Rank, Version};

const FOUND: Evaluation = Evaluation { loss: 0.5, accuracy: Some(0.75), samples: 10 };

fn every(rounds: u64) -> Duty {
    Duty { rounds: NonZeroU64::new(rounds), ..Duty::default() }
}

/// Two ranks in their first window. `saves`: their programs have a part of checkpoints.
fn script(duties: Duties, saves: bool) -> Script {
    let mut said = ready(8000, None);
    if let Report::Ready(ready) = &mut said {
        ready.saves = saves;
    }
    let mut script =
        Script::of(flodl_coord::Config { duties, ..config(&scenario(&[8, 20])) }, Box::new(NoGuard), &said);
    script.spread();
    script
}

fn evaluating(evaluation: Duty) -> Script {
    script(Duties { evaluation, ..Duties::default() }, false)
}

/// A window of one batch each, and its round.
fn round(script: &mut Script, round: u64) {
    script.average(round, Duration::ZERO);
}

/// Orders to do something for all: who, and by which order.
fn orders(script: &Script) -> Vec<(&'static str, u32, u64)> {
    let order = |output: &Output| match output {
        Output::ToRank { rank, control: Control::ExecuteEval { schedule }, .. } => {
            Some(("evaluate", rank.0, *schedule))
        }
        Output::ToRank { rank, control: Control::ExecuteCheckpoint { schedule, .. }, .. } => {
            Some(("save", rank.0, *schedule))
        }
        _ => None,
    };
    script.outputs.iter().filter_map(order).collect()
}

fn requests(script: &Script) -> usize {
    let request = |output: &&Output| matches!(output, Output::Broadcast(Control::RequestParams { .. }));
    script.outputs.iter().filter(request).count()
}

fn sets(script: &Script) -> Vec<Version> {
    let set = |output: &Output| match output {
        Output::Save(request) => Some(request.version),
        _ => None,
    };
    script.outputs.iter().filter_map(set).collect()
}

fn answer(script: &mut Script, rank: u32, schedule: u64) {
    script.say(rank, Report::EvalResult { schedule, outcome: Ok(FOUND) });
}

fn alerts(script: &Script) -> Vec<String> {
    script.events().filter(|(kind, _)| **kind == EventKind::Alert).map(|(_, why)| why).collect()
}

#[test]
fn an_evaluation_comes_before_the_next_window_and_the_next_round_after_its_answer() {
    let mut script = evaluating(every(2));
    round(&mut script, 1);
    assert_eq!(orders(&script), []);
    round(&mut script, 2);
    assert_eq!(orders(&script), [("evaluate", 0, 0)]);
    let to_0 = |output: &Output| match output {
        Output::ToRank { rank: Rank(0), control, .. } => Some(matches!(control, Control::ExecuteEval { .. })),
        _ => None,
    };
    let last_two: Vec<bool> = script.outputs.iter().filter_map(to_0).collect();
    assert!(last_two.ends_with(&[true, false]), "the order, then the window");
    // The windows are over, but the evaluation is not.
    for rank in [0, 1] {
        script.report(rank, 1);
    }
    assert_eq!(requests(&script), 3);
    answer(&mut script, 0, 7);
    answer(&mut script, 1, 0);
    assert_eq!(requests(&script), 3, "neither another order's answer nor another rank's counts");
    answer(&mut script, 0, 0);
    assert_eq!(requests(&script), 4);
    let said: Vec<EventKind> = script.events().map(|(kind, _)| kind.clone()).collect();
    let (role, schedule, rank, version) = (Role::Evaluation, 0, Rank(0), Version(2));
    assert!(said.contains(&EventKind::Elected { role, rank }));
    assert!(said.contains(&EventKind::RoleOrdered { role, schedule, rank, version }));
    assert!(said.iter().any(|kind| matches!(kind, EventKind::RoleDone { schedule: 0, done: true, .. })));
    assert!(said.contains(&EventKind::Evaluated { rank, result: Some(FOUND), version: Some(version) }));
    let news = Output::Broadcast(Control::EvalBroadcast { version, rank, evaluation: FOUND });
    assert_eq!(script.outputs.iter().filter(|output| **output == news).count(), 1);
}

#[test]
fn who_cannot_do_it_is_followed_by_the_next_one_who_keeps_it() {
    let mut script = evaluating(every(1));
    round(&mut script, 1);
    script.say(0, Report::EvalResult { schedule: 0, outcome: Err("no test split".into()) });
    round(&mut script, 2);
    assert_eq!(orders(&script), [("evaluate", 0, 0), ("evaluate", 1, 1)]);
    answer(&mut script, 1, 1);
    round(&mut script, 3);
    assert_eq!(orders(&script)[2], ("evaluate", 1, 2), "it is sticky");
    // Where nobody can, that is said once, and training goes on.
    for (rank, schedule) in [(1, 2), (0, 3)] {
        script.say(rank, Report::EvalResult { schedule, outcome: Err("no test split".into()) });
        round(&mut script, schedule + 2);
    }
    assert_eq!(alerts(&script), ["no rank could do its part of the evaluation of version 5; training goes on"]);
    assert_eq!(script.deaths(), []);
}

#[test]
fn the_rank_that_was_asked_for_is_asked_first_each_time() {
    let mut script = evaluating(Duty { by: Elect::Rank(Rank(1)), ..every(1) });
    round(&mut script, 1);
    script.say(1, Report::EvalResult { schedule: 0, outcome: Err("busy".into()) });
    round(&mut script, 2);
    answer(&mut script, 0, 1);
    round(&mut script, 3);
    assert_eq!(orders(&script), [("evaluate", 1, 0), ("evaluate", 0, 1), ("evaluate", 1, 2)]);
}

#[test]
fn the_dead_and_the_hanging_are_followed_and_the_slow_are_waited_for() {
    let mut script = evaluating(every(1));
    round(&mut script, 1);
    script.dies(0, 9);
    let used = script.report(1, 1);
    script.snapshot(1, 2, &used);
    script.folded(2, [FoldedPart::None, FoldedPart::Whole]);
    script.acks(2);
    assert_eq!(orders(&script), [("evaluate", 0, 0), ("evaluate", 1, 1)]);
    // It evaluates for longer than any deadline, but goes on.
    for step in 1..=70 {
        script.wait(5);
        script.say(1, Report::Heartbeat { step });
    }
    assert_eq!(script.deaths().len(), 1);
    script.wait(299);
    script.wait(2);
    let why = script.deaths().pop().map(|(_, why)| why).unwrap_or_default();
    assert!(why.starts_with("it gave signs of life but made no progress for 300"), "{why}");
}

#[test]
fn ranks_may_ask_for_it() {
    let mut script = evaluating(Duty::default());
    for _ in 0..2 {
        script.say(1, Report::Intent(Intent::EvalNow));
        script.say(0, Report::Intent(Intent::CheckpointNow));
    }
    assert_eq!((orders(&script), sets(&script)), (vec![], vec![]), "not before the round's end");
    round(&mut script, 1);
    answer(&mut script, 0, 0);
    script.take(Input::Saved { version: Version(1), result: Ok("v1".into()) });
    round(&mut script, 2);
    assert_eq!((orders(&script), sets(&script)), (vec![("evaluate", 0, 0)], vec![Version(1)]));
    let why: Vec<String> =
        script.events().filter(|(kind, _)| matches!(kind, EventKind::RoleOrdered { .. })).map(|(_, why)| why).collect();
    assert_eq!(why, ["rank 1 asked for it"]);
}

#[test]
fn what_it_costs_is_taken_off_the_next_window() {
    let mut script = evaluating(every(1));
    script.average(1, Duration::from_millis(50));
    script.wait(1);
    answer(&mut script, 0, 0);
    script.average(2, Duration::from_millis(50));
    let taken: Vec<String> = script.events().map(|(_, why)| why).filter(|why| why.contains("callback")).collect();
    assert_eq!(taken.len(), 1, "{taken:?}");
    let quotas = [0, 1].map(|rank| script.windows[rank].quota);
    assert!(quotas[0] < quotas[1], "{quotas:?}");
}

#[test]
fn a_stop_waits_for_the_evaluation_that_is_going_on() {
    let mut script = evaluating(every(1));
    round(&mut script, 1);
    script.take(Input::Stop);
    assert_eq!(requests(&script), 2, "nobody could answer it in time");
    answer(&mut script, 0, 0);
    assert_eq!(requests(&script), 3);
}

#[test]
fn sets_are_saved_one_at_a_time_and_a_failure_ends_nothing() {
    let mut script = script(Duties { checkpoint: every(1), ..Duties::default() }, false);
    round(&mut script, 1);
    round(&mut script, 2);
    assert_eq!(sets(&script), [Version(1)]);
    script.take(Input::Saved { version: Version(1), result: Err("no space left".into()) });
    round(&mut script, 3);
    assert_eq!(sets(&script), [Version(1), Version(3)]);
    let failed = EventKind::Checkpoint { version: Version(1), path: None };
    assert!(script.events().any(|(kind, why)| *kind == failed && why.contains("no space left")));
    script.wait(301);
    assert!(script.events().any(|(_, why)| why == "the checkpoint was not written: not done within 300s"));
    script.take(Input::Saved { version: Version(3), result: Ok("late".into()) });
    let saved = |kind: &EventKind| matches!(kind, EventKind::Checkpoint { path: Some(_), .. });
    assert!(!script.events().any(|(kind, _)| saved(kind)), "nobody waits for it any more");
    assert_eq!(orders(&script), [], "no program has a part of it");
}

#[test]
fn programs_save_their_part_with_the_set() {
    let mut script = script(Duties { checkpoint: every(2), ..Duties::default() }, true);
    round(&mut script, 1);
    round(&mut script, 2);
    assert_eq!((sets(&script), orders(&script)), (vec![Version(2)], vec![("save", 0, 0)]));
    for rank in [0, 1] {
        script.report(rank, 1);
    }
    assert_eq!(requests(&script), 3, "its part is waited for, the disk is not");
    script.say(0, Report::CheckpointResult { schedule: 0, outcome: Err("no token".into()) });
    assert_eq!(requests(&script), 4);
    let why = "rank 0 could not save its part: no token";
    assert!(script.events().any(|(kind, told)| matches!(kind, EventKind::RoleDone { done: false, .. }) && told == why));
}

#[test]
fn an_epoch_that_is_over_is_told_with_its_figures() {
    let mut script = script(Duties::default(), false);
    // 8000 samples in batches of 64: each rank does what it was leased.
    let mut done = 0;
    for n in 1.. {
        let used = [0u32, 1].map(|rank| {
            let batches = flodl_wire::id::samples(&script.windows[rank as usize].leases).div_ceil(64) as u32;
            let report = WindowReport { loss_sum: 3.0, loss_count: 6, ..script.done(rank, batches) };
            let used = report.used.clone();
            done += flodl_wire::id::samples(&used);
            script.say(rank, Report::WindowReport(Box::new(report)));
            used
        });
        for rank in [0u32, 1] {
            script.snapshot(rank, n, &used[rank as usize]);
        }
        script.folded(n, [FoldedPart::Whole, FoldedPart::Whole]);
        script.acks(n);
        if done >= 8000 {
            break;
        }
    }
    let told = |output: &Output| match output {
        Output::Record(Body::Node(Node::Epoch(metrics))) => Some(metrics.clone()),
        _ => None,
    };
    let records: Vec<_> = script.outputs.iter().filter_map(told).collect();
    let [metrics] = &records[..] else { panic!("{records:?}") };
    assert_eq!((metrics.committed, metrics.batches, metrics.loss), (8000, 125, Some(0.5)));
    assert_eq!(metrics.ranks.iter().map(|rank| rank.committed).sum::<u64>(), 8000);
    let news = script.outputs.iter().filter(|output| matches!(output, Output::Broadcast(Control::EpochAggregated(_))));
    assert_eq!(news.count(), 1);
}
