//! Whole runs of the coordinator in virtual time, with faults at any moment. An independent ledger of every
//! (epoch, position) says whether samples are exact.

mod common;

use common::oracle::Outcome;
use common::root::run;
use common::{Fault, Kind, MS, Odds, Scenario, scenario};
use flodl_coord::MaxFailure;
use flodl_elche::Mode;
use flodl_wire::{Incarnation, Rank, Time, Version};
use proptest::prelude::*;

fn fault(at_ms: u64, rank: u32, kind: Kind) -> Fault {
    Fault { at_ms, rank, kind, folded: 0 }
}

#[test]
fn unequal_ranks_train_everything_once_and_end_in_order() {
    let outcome = run(scenario(&[8, 20, 32]));
    outcome.assert_exact((3, 8000));
    assert_eq!((outcome.exit, outcome.told_repeats), (Some(0), 0));
    assert_eq!(outcome.evaluated_by, [Rank(0)], "the fastest evaluates");
    assert_eq!(outcome.saved, outcome.version);
    assert_eq!(outcome.sentences, [String::new()], "nothing to complain of");
}

#[test]
fn ranks_that_train_on_while_they_average_train_everything_once_too() {
    let outcome = run(Scenario { mode: Mode::CpuAsync, ..scenario(&[8, 20, 32]) });
    assert_eq!(outcome.deaths, []);
    outcome.assert_exact((3, 8000));
    assert_eq!((outcome.exit, outcome.told_repeats), (Some(0), 0));
    assert_eq!((outcome.saved, outcome.evaluated_by.len()), (outcome.version, 1));
    assert_eq!(outcome.sentences, [String::new()], "nothing to complain of");
}

#[test]
fn three_unequal_ranks_reach_nearly_the_sum_of_their_speeds() {
    let outcome = run(Scenario { epochs: 8, ..scenario(&[8, 20, 32]) });
    let ideal = 1000.0 / (1000.0 / 8.0 + 1000.0 / 20.0 + 1000.0 / 32.0);
    let fraction = ideal / outcome.ended.as_secs_f64();
    assert!(fraction > 0.9, "fraction of the ceiling {fraction:.3}, rounds {}", outcome.rounds);
}

#[test]
fn what_all_ranks_measured_beforehand_divides_the_first_window() {
    let time = |warm: &[u32]| {
        let outcome = run(Scenario { epochs: 1, warm: warm.to_vec(), ..scenario(&[8, 20, 160]) });
        outcome.assert_exact((1, 8000));
        outcome.ended.as_secs_f64()
    };
    let (cold, some, all) = (time(&[]), time(&[0, 1]), time(&[0, 1, 2]));
    assert_eq!(some, cold, "one that is not known makes the others' steps no scale");
    // Without, the first window lasts three batches of the slowest, in which the others do three of theirs.
    assert!(cold - all > 0.25, "{cold:.3} s cold, {all:.3} s warm");
}

#[test]
fn world_size_one_sync_and_odd_sizes() {
    for (mode, batch_ms, samples, batch_size) in [
        (Mode::CpuCadence, vec![10], 1000, 64),
        (Mode::CpuSync, vec![10], 130, 64),
        (Mode::CpuSync, vec![8, 20, 32], 1009, 17),
        (Mode::CpuCadence, vec![8, 20, 32, 9, 11], 1009, 17),
        (Mode::CpuCadence, vec![8, 20, 32], 1, 64),
        (Mode::CpuCadence, vec![8, 20, 32], 65, 64),
        (Mode::CpuCadence, vec![1, 64], 100, 1),
        (Mode::CpuAsync, vec![10], 1000, 64),
        (Mode::CpuAsync, vec![8, 20, 32, 9, 11], 1009, 17),
        (Mode::CpuAsync, vec![8, 20, 32], 1, 64),
        (Mode::CpuAsync, vec![8, 20, 32], 65, 64),
        (Mode::CpuAsync, vec![1, 64], 100, 1),
    ] {
        let scenario = Scenario { mode, samples, batch_size, epochs: 2, ..scenario(&batch_ms) };
        let outcome = run(scenario.clone());
        outcome.assert_exact((2, samples));
        assert_eq!(outcome.exit, Some(0), "{scenario:?}");
    }
}

#[test]
fn every_end_of_a_rank_is_named_and_its_samples_are_trained_by_others() {
    let cases = [
        (Kind::Signal(9), "its process was killed by signal 9 (SIGKILL)"),
        (Kind::Lost, "its connection to the relay ended: end of file"),
        (Kind::LostThenSignal(11), "its process was killed by signal 11 (SIGSEGV)"),
        (Kind::Fails, "it failed: the loss is not a number"),
        (Kind::Silent(60_000), "nothing was heard from it for 10s (the patience)"),
        (Kind::HostLost, "the link to its host is gone: connection reset"),
        (Kind::HostSilent, "the link to its host is gone: nothing was heard from its relay for 10s"),
        (Kind::Hangs, "it gave signs of life but made no progress for 30."),
    ];
    for (kind, why) in cases {
        let outcome = run(Scenario { faults: vec![fault(900, 1, kind)], hosts: 3, ..scenario(&[8, 20, 32]) });
        outcome.assert_exact((3, 8000));
        assert_eq!(outcome.deaths.len(), 1, "{:?}", outcome.deaths);
        assert!(outcome.deaths[0].0 == Rank(1) && outcome.deaths[0].1.starts_with(why), "{:?}", outcome.deaths);
        assert_eq!(outcome.exit, Some(3));
        assert_eq!(outcome.sentences.last().map(String::as_str), Some("every epoch is done, without rank 1"));
    }
}

#[test]
fn a_death_while_a_round_is_in_flight_costs_what_it_must_and_no_more() {
    for at_ms in (600..1000).step_by(7) {
        for folded in 0..3 {
            let faults = vec![Fault { folded, ..fault(at_ms, 1, Kind::Signal(9)) }];
            let outcome = run(Scenario { mode: Mode::CpuAsync, faults, ..scenario(&[8, 20, 32]) });
            outcome.assert_exact((3, 8000));
            assert_eq!((outcome.exit, outcome.deaths.len()), (Some(3), 1), "{at_ms} {folded}");
            assert!(folded > 0 || outcome.repeats == 0, "{at_ms}: nothing of it was folded");
        }
    }
}

#[test]
fn an_average_that_takes_long_holds_nobody_up_who_trains_on() {
    // Messages of up to 60 ms, so that a round takes several of them.
    let ended = |mode| {
        let odds = Odds { jitter_ms: 60, ..Odds::default() };
        let outcome = run(Scenario { mode, odds, epochs: 12, ..scenario(&[8, 20, 32]) });
        outcome.assert_exact((12, 8000));
        outcome.ended.as_secs_f64()
    };
    let (cadence, overlapping) = (ended(Mode::CpuCadence), ended(Mode::CpuAsync));
    assert!(overlapping < cadence, "{overlapping} s, {cadence} s where all wait");
}

/// A run waited forever for the answer of a rank that hung, because the round had passed its ceiling for another one's sake.
#[test]
fn a_round_has_its_ceiling_again_for_the_answers_to_its_result() {
    let hangs = |at_ms, rank| Fault { at_ms, rank, kind: Kind::Hangs, folded: 2 };
    let lost = |at_ms, rank, kind| Fault { at_ms, rank, kind, folded: 2 };
    let outcome = run(Scenario {
        epochs: 2,
        batch_size: 2,
        samples: 1343,
        hosts: 3,
        faults: vec![hangs(920, 4), lost(1288, 1, Kind::LostThenSignal(9)), hangs(1354, 3), lost(144, 0, Kind::Lost)],
        odds: Odds { incomplete: 6, digest: 5, replica: 7, left_out: 5, evaluation: 1, jitter_ms: 30 },
        max_failure: MaxFailure::Absolute(2),
        leaves: vec![(269, 0)],
        seed: 8_576_107_379_507_348_522,
        ..scenario(&[12, 37, 24, 4, 19, 7])
    });
    let dead: Vec<Rank> = outcome.deaths.iter().map(|(rank, _)| *rank).collect();
    assert!(dead.contains(&Rank(3)) && dead.contains(&Rank(4)), "{:?}", outcome.deaths);
    assert_eq!(outcome.exit, Some(4));
}

#[test]
fn a_pause_within_the_patience_is_no_death() {
    let outcome = run(Scenario { faults: vec![fault(900, 1, Kind::Silent(9_000))], ..scenario(&[8, 20, 32]) });
    outcome.assert_exact((3, 8000));
    assert_eq!((outcome.exit, outcome.deaths), (Some(0), vec![]));
}

#[test]
fn one_that_wakes_up_after_its_death_was_told_is_fenced() {
    let faults = vec![fault(900, 1, Kind::Silent(11_000))];
    let outcome = run(Scenario { faults, epochs: 30, ..scenario(&[8, 20, 32]) });
    outcome.assert_exact((30, 8000));
    assert!(outcome.fenced.contains(&Rank(1)), "{:?}", outcome.fenced);
}

#[test]
fn the_last_ranks_end_decides_the_exit_and_what_there_is_gets_saved() {
    for (kind, exit) in [
        (Kind::Signal(9), 4),
        (Kind::Signal(15), 4),
        (Kind::Signal(11), 1),
        (Kind::Signal(6), 1),
        (Kind::Fails, 1),
        (Kind::HostLost, 4),
        (Kind::Silent(60_000), 4),
    ] {
        let faults = vec![fault(500, 0, Kind::Signal(9)), fault(600, 1, kind)];
        let outcome = run(Scenario { faults: faults.clone(), hosts: 2, ..scenario(&[8, 20]) });
        assert_eq!(outcome.exit, Some(exit), "{kind:?}");
        assert!(outcome.saved.is_some());
        let unsaved = run(Scenario { faults, hosts: 2, save_fails: true, ..scenario(&[8, 20]) });
        assert_eq!(unsaved.exit, Some(1), "4 says that it is saved");
    }
}

#[test]
fn a_source_that_dies_in_round_0_is_replaced() {
    let outcome = run(Scenario { faults: vec![fault(4, 0, Kind::Signal(9))], ..scenario(&[8, 20, 32]) });
    outcome.assert_exact((3, 8000));
    assert_eq!((outcome.exit, outcome.deaths.len()), (Some(3), 1));
}

#[test]
fn a_stop_averages_evaluates_saves_and_says_so() {
    let outcome = run(Scenario { stops_at_ms: vec![700], ..scenario(&[8, 20, 32]) });
    outcome.assert_honest();
    assert_eq!(outcome.exit, Some(4));
    assert_eq!(outcome.saved, outcome.version);
    assert_eq!(outcome.evaluated_by.len(), 1);
    assert!(outcome.ended < Time(1_000 * MS), "{:?}", outcome.ended);
}

#[test]
fn a_second_stop_ends_at_once() {
    let outcome = run(Scenario { stops_at_ms: vec![700, 701], ..scenario(&[8, 20, 32]) });
    assert_eq!((outcome.exit, outcome.saved, outcome.ended), (Some(1), None, Time(701 * MS)));
}

#[test]
fn the_loss_that_is_one_too_many_ends_the_run_and_saves_it() {
    let faults = vec![fault(700, 3, Kind::Signal(9)), fault(1200, 0, Kind::HostLost)];
    for (max_failure, exit, says) in [
        (MaxFailure::None, 3, "every epoch is done, without rank 0, rank 3"),
        (MaxFailure::Absolute(3), 3, "every epoch is done, without rank 0, rank 3"),
        (MaxFailure::Absolute(1), 4, "1 rank is missing, and the run ends at 1 (--max-failure 1), without rank 3"),
        (
            MaxFailure::Percent(30),
            4,
            "2 ranks are missing, and the run ends at 2 (--max-failure 30%), without rank 0, rank 3",
        ),
    ] {
        let faults = faults.clone();
        let outcome = run(Scenario { faults, max_failure, hosts: 4, epochs: 9, ..scenario(&[8, 20, 32, 9]) });
        outcome.assert_honest();
        assert_eq!((outcome.exit, outcome.saved), (Some(exit), outcome.version), "{max_failure}");
        assert_eq!(outcome.sentences.last().map(String::as_str), Some(says));
        assert_eq!(outcome.evaluated_by.len(), 1, "what there is gets averaged and evaluated");
    }
}

#[test]
fn a_dead_rank_that_its_host_starts_again_is_back_in_the_run() {
    let faults = vec![fault(700, 1, Kind::Signal(9))];
    let outcome = run(Scenario { faults, restarts: 1, epochs: 20, ..scenario(&[8, 20, 32]) });
    outcome.assert_exact((20, 8000));
    assert_eq!((outcome.exit, outcome.deaths.len()), (Some(3), 1));
    assert_eq!(outcome.joined, [(Rank(1), Incarnation(2))]);
    let said = outcome.sentences.last().map(String::as_str);
    assert_eq!(said, Some("every epoch is done, lost and back again: rank 1"));
}

#[test]
fn a_run_whose_last_rank_died_waits_for_its_next_life_and_goes_on() {
    for fault in [fault(4, 0, Kind::Signal(9)), fault(300, 0, Kind::Signal(11)), fault(300, 0, Kind::Fails)] {
        let outcome = run(Scenario { faults: vec![fault], restarts: 1, ..scenario(&[10]) });
        outcome.assert_exact((3, 8000));
        assert_eq!((outcome.exit, outcome.joined.len()), (Some(3), 1), "{outcome:?}");
    }
}

#[test]
fn a_rank_that_is_back_does_not_count_as_missing() {
    // Two deaths of the same rank, seconds apart: never two missing at a time.
    let faults = vec![fault(500, 1, Kind::Signal(9)), fault(6000, 1, Kind::Signal(9))];
    let max_failure = MaxFailure::Absolute(2);
    let outcome = run(Scenario { faults, restarts: 5, max_failure, epochs: 60, ..scenario(&[8, 20, 32]) });
    outcome.assert_exact((60, 8000));
    assert_eq!((outcome.exit, outcome.deaths.len(), outcome.joined.len()), (Some(3), 2, 2));
}

#[test]
fn hosts_come_into_a_run_that_has_begun_and_train() {
    let alone = run(Scenario { epochs: 20, ..scenario(&[20]) });
    let outcome = run(Scenario { late: vec![(500, 2), (700, 1)], epochs: 20, ..scenario(&[20]) });
    outcome.assert_exact((20, 8000));
    assert_eq!((outcome.exit, outcome.deaths.len()), (Some(0), 0));
    assert_eq!(outcome.joined.iter().map(|(rank, _)| rank.0).collect::<Vec<_>>(), [1, 2, 3]);
    let (fast, slow) = (outcome.ended.as_secs_f64(), alone.ended.as_secs_f64());
    assert!(fast < 0.25 * slow, "three ranks of twice the speed help: {fast} s against {slow} s");
}

#[test]
fn a_host_that_leaves_by_plan_costs_nothing() {
    let outcome = run(Scenario { leaves: vec![(700, 2)], hosts: 2, epochs: 8, ..scenario(&[8, 20, 32, 9]) });
    outcome.assert_exact((8, 8000));
    assert_eq!((outcome.exit, outcome.told_repeats, outcome.deaths.len()), (Some(0), 0, 0));
    assert_eq!(outcome.left, [Rank(2), Rank(3)]);
    let everybody = run(Scenario { leaves: vec![(700, 0)], epochs: 8, ..scenario(&[8, 20]) });
    everybody.assert_honest();
    assert_eq!((everybody.exit, everybody.saved), (Some(4), everybody.version), "none left: saved");
}

#[test]
fn everybody_may_leave_while_a_round_is_in_flight() {
    for at_ms in 1..300 {
        let scenario = Scenario { samples: 200, epochs: 9, batch_size: 10, ..scenario(&[8, 20]) };
        let outcome = run(Scenario { mode: Mode::CpuAsync, leaves: vec![(at_ms, 0)], ..scenario });
        outcome.assert_honest();
        assert_eq!(outcome.told_repeats, 0, "{at_ms}");
        assert_eq!((outcome.saved, outcome.deaths.len()), (outcome.version, 0), "{at_ms}");
    }
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_no_success() {
    for (stops_at_ms, says) in [(vec![], "every epoch is done"), (vec![700], "stopped on request")] {
        let outcome = run(Scenario { save_fails: true, stops_at_ms, ..scenario(&[8, 20]) });
        assert_eq!(outcome.exit, Some(1));
        assert_eq!(outcome.sentences.last(), Some(&format!("{says}; the checkpoint was not written")));
    }
}

#[test]
fn where_nobody_can_evaluate_everybody_was_asked() {
    let odds = Odds { evaluation: 100, ..Odds::default() };
    let outcome = run(Scenario { odds, ..scenario(&[20, 8, 32]) });
    outcome.assert_exact((3, 8000));
    assert_eq!(outcome.evaluated_by, [Rank(1), Rank(0), Rank(2)], "the fastest first");
    assert!(outcome.sentences.contains(&"no rank could evaluate the final consensus".to_owned()));
}

#[test]
fn ranks_that_never_hold_the_consensus_end_the_run_instead_of_averaging_for_ever() {
    for odds in [
        Odds { incomplete: 100, ..Odds::default() },
        Odds { digest: 100, ..Odds::default() },
        Odds { replica: 100, ..Odds::default() },
    ] {
        let outcome = run(Scenario { odds, ..scenario(&[8, 20]) });
        outcome.assert_honest();
        assert_eq!(outcome.deaths.len(), 2, "{odds:?}");
        assert_eq!(outcome.deaths[0].1, "it did not hold the consensus after 3 rounds in a row");
        assert_eq!(outcome.saved, Some(Version(0)));
    }
}

#[test]
fn samples_whose_contributions_are_never_finite_are_set_aside() {
    let odds = Odds { left_out: 100, ..Odds::default() };
    let outcome = run(Scenario { odds, epochs: 2, samples: 300, batch_size: 10, ..scenario(&[8, 20]) });
    outcome.assert_exact((2, 300));
    assert!(outcome.told_quarantined > 0, "{outcome:?}");
}

#[test]
fn equal_scenarios_give_equal_runs() {
    let odds = Odds { incomplete: 5, digest: 5, replica: 5, left_out: 5, evaluation: 50, jitter_ms: 30 };
    let faults = vec![fault(700, 1, Kind::HostLost), fault(900, 0, Kind::LostThenSignal(9))];
    let scenario = Scenario { odds, faults, hosts: 2, ..scenario(&[8, 20, 32, 7]) };
    assert_eq!(run(scenario.clone()), run(scenario));
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        prop::sample::select(vec![9, 11]).prop_map(Kind::Signal),
        Just(Kind::Lost),
        prop::sample::select(vec![9, 11]).prop_map(Kind::LostThenSignal),
        Just(Kind::Fails),
        (0u64..15_000).prop_map(Kind::Silent),
        Just(Kind::HostLost),
        Just(Kind::HostSilent),
        Just(Kind::Hangs),
    ]
}

fn odds() -> impl Strategy<Value = Odds> {
    (0u8..8, 0u8..8, 0u8..8, 0u8..8, 0u8..100, 0u8..60).prop_map(
        |(incomplete, digest, replica, left_out, evaluation, jitter_ms)| Odds {
            incomplete,
            digest,
            replica,
            left_out,
            evaluation,
            jitter_ms,
        },
    )
}

prop_compose! {
    fn scenarios()(
        batch_ms in prop::collection::vec(1u64..40, 1..6),
        samples in 1u64..1500,
        batch_size in 1u32..80,
        mode in prop::sample::select(vec![Mode::CpuSync, Mode::CpuCadence, Mode::CpuAsync]),
        hosts in 1u32..4,
        faults in prop::collection::vec((0u64..1500, 0u32..6, kinds(), 0u8..3), 0..5),
        stops_at_ms in prop_oneof![3 => Just(vec![]), 1 => prop::collection::vec(0u64..1500, 1..3)],
        odds in prop_oneof![Just(Odds::default()), odds()],
        (save_fails, seed) in (prop::bool::weighted(0.1), any::<u64>()),
        restarts in prop_oneof![Just(0u32), 1u32..3],
        late in prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec((0u64..1500, 1u32..3), 1..3)],
        leaves in prop_oneof![2 => Just(vec![]), 1 => prop::collection::vec((0u64..1500, 0u32..6), 1..3)],
        max_failure in prop_oneof![
            3 => Just(MaxFailure::None),
            1 => (1u32..4).prop_map(MaxFailure::Absolute),
            1 => (1u8..=100).prop_map(MaxFailure::Percent),
        ],
    ) -> Scenario {
        let ranks = batch_ms.len() as u32;
        let faults = faults.into_iter().filter(|fault| fault.1 < ranks);
        let faults = faults.map(|(at_ms, rank, kind, folded)| Fault { at_ms, rank, kind, folded }).collect();
        let (epochs, stops) = (2, stops_at_ms);
        let lives = (restarts, late, leaves);
        let (restarts, late, leaves) = lives;
        let leaves = leaves.into_iter().filter(|leave| leave.1 < ranks).collect();
        // Half of the runs begin warm.
        let warm = (0..ranks).filter(|_| seed % 2 == 1).collect();
        Scenario {
            warm,
            restarts,
            late,
            leaves,
            mode, epochs, batch_size, samples, batch_ms, hosts, faults, stops_at_ms: stops, odds, save_fails, max_failure, seed,
        }
    }
}

/// What the exit status promises.
fn assert_kept(outcome: &Outcome, scenario: &Scenario) {
    let gone = outcome.deaths.len() + outcome.left.len();
    // Whoever leaves before the start has not been in the run.
    let all_gone = gone >= scenario.batch_ms.len() || !scenario.leaves.is_empty();
    let too_many = scenario.max_failure != MaxFailure::None && !outcome.deaths.is_empty();
    match outcome.exit {
        Some(exit @ (0 | 3)) => {
            outcome.assert_exact((scenario.epochs, scenario.samples));
            assert_eq!(exit == 3, !outcome.deaths.is_empty());
            assert_eq!(outcome.saved, outcome.version);
        }
        Some(4) => assert!(all_gone || too_many || !scenario.stops_at_ms.is_empty(), "{:?}", outcome.deaths),
        Some(1) => assert!(all_gone || !scenario.stops_at_ms.is_empty() || scenario.save_fails),
        other => panic!("exit {other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    /// Deaths, silence, lost hosts, stops, wrong results and odd orders at any moment.
    #[test]
    fn d1_no_fault_loses_a_sample_or_counts_one_twice(scenario in scenarios()) {
        let outcome = run(scenario.clone());
        outcome.assert_honest();
        assert_kept(&outcome, &scenario);
    }
}
