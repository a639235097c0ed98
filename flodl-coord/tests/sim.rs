//! A fixed set of simulated runs, and the self-test of the simulator's eyes.

use flodl_coord::sim::{Class, Mutant, Request, campaign, survey};

fn check(request: &Request) -> campaign::Report {
    let report = campaign::run(request, false);
    let why = report.violation.as_ref().map(ToString::to_string);
    assert_eq!(why, None, "{}\nrepeat with: {}", report.options, report.repeat);
    report
}

#[test]
fn seeds_with_faults_break_no_rule() {
    let found = survey::seeds(0..120, |seed| Request::new(seed, (1, 24)));
    let failures: Vec<String> = found
        .failures
        .iter()
        .map(|report| format!("{:?}\n{}", report.violation.as_ref().map(ToString::to_string), report.repeat))
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(found.faults.len() > 10, "faults of many kinds strike: {:?}", found.faults);
}

/// Runs that once went wrong, each with what it found.
#[test]
fn runs_that_found_something() {
    let runs = [
        // A data connection that is dead while control is well held the round up for ever.
        (116, "two such connections, in round 0"),
        (259, "nobody else was left to answer"),
        (325, "everybody else had nothing to give"),
        (14, "a round that was held up made the next one's ceiling ten times longer"),
        // Everybody gave up on the result just before it came, three times, and all were counted as astray.
        (452, "a round that was held up is nobody's fault but the cause's"),
        // The end of a data connection was read before the last word on the other one.
        (999, "a rank that finished is not lost"),
        // The root complained of a commit that hands out the consensus in force.
        (167, "nobody had contributed"),
        // A power cut took the folder of the checkpoint sets.
        (189, "the folder's own name was not on the disk"),
        // A rank was let go under another controller while it trained on in a window of the one before.
        (2366, "it reports that window before it ends"),
    ];
    for (seed, what) in runs {
        let report = campaign::run(&Request::new(seed, (3, 64)), false);
        let why = report.violation.as_ref().map(ToString::to_string);
        assert_eq!(why, None, "{what}: {}\nrepeat with: {}", report.options, report.repeat);
    }
}

#[test]
fn two_runs_of_a_seed_are_the_same_and_two_seeds_are_not() {
    let runs = [5, 5, 6].map(|seed| check(&Request::new(seed, (4, 16))));
    assert_eq!(runs[0], runs[1]);
    assert_ne!(runs[0].stream, runs[2].stream);
}

#[test]
fn without_faults_nothing_is_lost_or_repeated() {
    for seed in 0..20 {
        let report = check(&Request { classes: Some(Vec::new()), ..Request::new(seed, (1, 32)) });
        assert_eq!((report.exit, report.repeats, report.faults.len()), (Some(0), 0, 0), "{}", report.options);
    }
}

/// Each kind of fault alone, where it is all that happens.
#[test]
fn every_kind_of_fault_strikes_and_is_survived() {
    for class in Class::ALL {
        let mut struck = 0;
        for seed in 0..12 {
            let report = check(&Request { classes: Some(vec![class]), ..Request::new(seed, (2, 12)) });
            struck += report.faults.values().sum::<u64>();
        }
        // Only a host that has died can be started again.
        assert!(struck > 0 || class == Class::Restart, "{class} never strikes");
    }
}

/// A simulator that finds nothing may be blind: with a protection turned off it must find something.
#[test]
fn a_system_without_one_of_its_protections_is_found_out() {
    let missed: Vec<&str> =
        survey::mutants().into_iter().filter(|(_, seed)| seed.is_none()).map(|(mutant, _)| mutant.name()).collect();
    assert_eq!(missed, [""; 0]);
    assert!(Mutant::ALL.len() >= 12);
}
