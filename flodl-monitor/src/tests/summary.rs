//! Sequences of records and the summaries they come to.

use crate::samples::*;
use crate::{Store, Summary};
use flodl_wire::message::Record;
use flodl_wire::message::record::EventKind;
use flodl_wire::{Epoch, Rank, Round, Version};
use serde_json::{Value, json};
use std::fs;

fn summary(records: &[Record]) -> Summary {
    let mut store = Store::new();
    records.iter().for_each(|record| store.take(record));
    Summary::of(&store)
}

/// Two ranks, of 10 and 40 ms a batch of 10; the wall is 1 s .. 1.2 s, so the ceiling is 1000 + 250 samples/s.
fn healthy() -> Vec<Record> {
    vec![
        formed(500, &[0, 1]),
        meta(500),
        committed(900, 0, &[], 0),
        planned(1000, 1, 0, &[(0, 8), (1, 2)]),
        window(1090, 0, 8, 50, 3),
        window(1090, 1, 2, 90, 5),
        committed(1100, 1, &[(0, 80), (1, 20)], 0),
        root(1100, 1, Some(0.75)),
        epoch(1100, 0, &[("accuracy", 0.75), ("lost", f64::NAN)]),
        event(1100, EventKind::EpochDone { epoch: Epoch(0) }),
        planned(1100, 2, 1, &[(0, 8), (1, 2)]),
        event(1101, EventKind::ReplicaDigest { rank: Rank(0), version: Version(1), equal: true }),
        window(1190, 0, 8, 10, 4),
        window(1190, 1, 2, 40, 1),
        committed(1200, 2, &[(0, 80), (1, 20)], 0),
        evaluated(1300, 0.25, Some(0.9375)),
        saved(1400, 2),
        ended(1500, 0),
    ]
}

#[test]
fn a_whole_run_has_every_figure() {
    let mut expected = json!({
        "accuracy": 0.9375, "loss": 0.25, "rounds": 2, "version": 2,
        "samples_committed": 200, "samples_expected": 200, "repeats": 0, "quarantined": 0, "digests_equal": true,
        "throughput": 1000.0, "ceiling": 1250.0, "ceiling_fraction": 0.8,
        "per_rank": [
            { "rank": 0, "batches": 16, "batch_ms": 10.0, "wait_ms": 7.0, "share": 0.8, "committed": 160, "emulated": null },
            { "rank": 1, "batches": 4, "batch_ms": 40.0, "wait_ms": 6.0, "share": 0.2, "committed": 40,
              "emulated": { "step_ms": 8.0, "slowdown": 2.5 } },
        ],
        "deaths": [], "wall_s": 0.2, "degraded": false, "exit": 0,
        "world_size": 2, "started": 2, "refused": [],
        "model": "runs/a/checkpoints/v2/model.safetensors", "timeline": null, "checkpoint": "runs/a/checkpoints/v2",
        "saved_version": 2, "not_saved": null, "why": null, "wire": null, "lockstep": 500.0, "over_lockstep": 2.0,
    });
    expected["scalars"] = json!({ "accuracy": 0.75 });
    expected["epochs"] = json!([{
        "epoch": 0, "version": 1, "wall_s": 1.0, "rounds": 1, "committed": 100, "loss": 0.5, "wait_ms": 7.0,
        "reduce_ms": 4.0, "divergence": 0.5, "scalars": { "accuracy": 0.75 },
    }]);
    expected["evaluations"] =
        json!([{ "version": null, "rank": 0, "loss": 0.25, "accuracy": 0.9375, "samples": 2000 }]);
    assert_eq!(serde_json::to_value(summary(&healthy())).unwrap(), expected);
}

#[test]
fn a_run_of_which_nothing_is_known_has_nulls_and_no_zeros_in_their_place() {
    let expected = json!({
        "accuracy": null, "loss": null, "rounds": 0, "version": null,
        "samples_committed": 0, "samples_expected": null, "repeats": 0, "quarantined": 0, "digests_equal": null,
        "throughput": null, "ceiling": null, "ceiling_fraction": null,
        "per_rank": [], "deaths": [], "wall_s": null, "degraded": false, "exit": null,
        "world_size": null, "started": null, "refused": [],
        "model": null, "timeline": null, "checkpoint": null, "saved_version": null, "not_saved": null, "why": null, "wire": null,
        "lockstep": null, "over_lockstep": null, "scalars": {}, "epochs": [], "evaluations": [],
    });
    assert_eq!(serde_json::to_value(summary(&[])).unwrap(), expected);
}

/// The healthy run with `more` put in by time (after what has the same time).
fn with(more: impl IntoIterator<Item = Record>) -> Vec<Record> {
    let mut records = healthy();
    records.extend(more);
    records.sort_by_key(|record| record.at);
    records
}

/// Checks the named keys alone; a key is a JSON pointer.
#[track_caller]
fn check(what: &str, records: &[Record], expected: &[(&str, Value)]) {
    let found = serde_json::to_value(summary(records)).unwrap();
    for (pointer, value) in expected {
        assert_eq!(found.pointer(pointer), Some(value), "{what}: {pointer}");
    }
}

#[test]
fn a_death_is_named_and_its_rank_counts_for_the_time_it_was_there() {
    let records = with([died(1150, 1, "killed by signal 9"), committed(1160, 3, &[(0, 10)], 20)]);
    // Rank 1 was there for 150 of 200 ms.
    check(
        "death",
        &records,
        &[
            ("/ceiling", json!(1187.5)),
            ("/deaths", json!([{ "rank": 1, "why": "killed by signal 9" }])),
            ("/degraded", json!(true)),
            ("/repeats", json!(20)),
            ("/samples_committed", json!(210)),
            ("/per_rank/1/batches", json!(4)),
        ],
    );
    let left = with([event(1150, EventKind::RankFinished { rank: Rank(1) })]);
    check("planned leave", &left, &[("/ceiling", json!(1187.5)), ("/degraded", json!(false))]);
    let after = with([died(1450, 1, "killed by signal 9")]);
    check("death after the last round", &after, &[("/ceiling", json!(1250.0)), ("/degraded", json!(true))]);
}

#[test]
fn a_rank_that_is_refused_or_missing_degrades_the_run() {
    let refused = because(400, EventKind::RankRefused { rank: Rank(2) }, "another model");
    check(
        "refused",
        &with([refused]),
        &[("/degraded", json!(true)), ("/refused", json!([{ "rank": 2, "why": "another model" }]))],
    );
    check("missing", &[meta(1), formed(1, &[0])], &[("/degraded", json!(true)), ("/started", json!(1))]);
    check(
        "before the start",
        &with([died(400, 2, "exit status 1")]),
        &[("/degraded", json!(true)), ("/deaths/0/rank", json!(2))],
    );
    assert_eq!(summary(&with([died(400, 2, "exit status 1")])).per_rank.len(), 2, "it took no part");
}

#[test]
fn only_the_last_versions_evaluation_counts() {
    let failed = because(1350, EventKind::Evaluated { rank: Rank(0), result: None, version: None }, "out of memory");
    check("failed later", &with([failed]), &[("/accuracy", Value::Null), ("/loss", Value::Null)]);
    check("a commit later", &with([committed(1310, 3, &[], 0)]), &[("/accuracy", Value::Null), ("/version", json!(3))]);
    let odd = evaluated(1350, f64::NAN, None);
    check("no number", &with([odd]), &[("/accuracy", Value::Null), ("/loss", Value::Null)]);
}

#[test]
fn rounds_without_a_result_count_as_rounds_and_as_time() {
    let empty = because(1400, EventKind::RoundEmpty { round: Round(3) }, "nobody is left");
    check(
        "empty",
        &with([empty]),
        &[
            ("/rounds", json!(3)),
            ("/version", json!(2)),
            ("/wall_s", json!(0.4)),
            ("/throughput", json!(500.0)),
            ("/ceiling_fraction", json!(0.4)),
        ],
    );
    check(
        "round 0 alone",
        &healthy()[..4],
        &[
            ("/rounds", json!(0)),
            ("/version", json!(0)),
            ("/wall_s", Value::Null),
            ("/throughput", Value::Null),
            ("/digests_equal", json!(true)),
            ("/per_rank/0/share", Value::Null),
        ],
    );
    // After an empty round, rounds and versions differ.
    check("numbers", &with([committed_as(1410, 4, 3, &[], 0)]), &[("/rounds", json!(3)), ("/version", json!(3))]);
}

#[test]
fn one_digest_that_differs_is_enough() {
    check("consensus", &with([differing(1150, 9)]), &[("/digests_equal", json!(false))]);
    let replica = event(1199, EventKind::ReplicaDigest { rank: Rank(1), version: Version(1), equal: false });
    check("replica", &with([replica]), &[("/digests_equal", json!(false))]);
}

#[test]
fn a_rank_without_a_batch_adds_nothing_to_the_ceiling() {
    let idle = [formed(501, &[0, 1, 2]), window(1090, 2, 0, 0, 90), window(1190, 2, 0, 0, 90)];
    check(
        "idle",
        &with(idle),
        &[
            ("/ceiling", json!(1250.0)),
            (
                "/per_rank/2",
                json!({
                    "rank": 2, "batches": 0, "batch_ms": null, "wait_ms": 180.0, "share": 0.0, "committed": 0, "emulated": null
                }),
            ),
        ],
    );
    let without_meta: Vec<Record> = healthy().into_iter().filter(|record| *record != meta(500)).collect();
    check("no settings", &without_meta, &[("/ceiling", Value::Null), ("/throughput", json!(1000.0))]);
}

#[test]
fn what_was_saved_and_what_was_not() {
    let failed =
        |at, version| because(at, EventKind::Checkpoint { version: Version(version), path: None }, "disk full");
    check("failed", &with([failed(1450, 3)]), &[("/saved_version", json!(2)), ("/not_saved", json!("disk full"))]);
    check("failed, then saved", &with([failed(1350, 2)]), &[("/saved_version", json!(2)), ("/not_saved", Value::Null)]);
    check(
        "quarantined",
        &with([event(1450, EventKind::Quarantined { epoch: Epoch(0), samples: 10 })]),
        &[("/quarantined", json!(10))],
    );
    check(
        "why",
        &with([because(1600, EventKind::RunEnded { exit: 4 }, "interrupted")]),
        &[("/exit", json!(4)), ("/why", json!("interrupted"))],
    );
}

#[test]
fn deaths_without_end_take_no_memory_without_end() {
    let deaths: Vec<Record> = (0..3_000).map(|at| died(at, 0, "again")).collect();
    let mut store = Store::new();
    deaths.iter().for_each(|death| store.take(death));
    assert_eq!((store.deaths().listed.len(), store.deaths().more), (crate::store::LISTED, 2_000));
}

#[test]
fn people_read_it_in_lines() {
    let mut summary = summary(&with([
        died(1150, 1, "killed by signal 9\n\x1b[2J"),
        committed(1160, 3, &[(0, 10)], 20),
        because(1600, EventKind::RunEnded { exit: 3 }, "one rank died"),
    ]));
    summary.files.timeline = Some("runs/a/timeline.jsonl".to_owned());
    let expected = "\
test      accuracy 0.9375, loss 0.2500
epoch     accuracy 0.7500 in the last one
rounds    3 after round 0, version 3
samples   210 of 200 committed (10 too many), 20 repeated
digests   equal on all ranks in all rounds
speed     1050 samples/s, ceiling 1188 samples/s, fraction of the ceiling 0.884
          2.10 times lockstep at its best (2 x the slowest, 500 samples/s)
time      0.20 s from the first window to the end of the last round

  rank   batches    ms/batch    waited s    share
     0        16      10.000       0.007   81.0 %
     1         4      40.000       0.006   19.0 %  emulated: step >= 8 ms, x2.5 slower

died      rank 1: killed by signal 9 \u{fffd}[2J

model     runs/a/checkpoints/v2/model.safetensors
timeline  runs/a/timeline.jsonl
ended     one rank died
saved: runs/a/checkpoints/v2/model.safetensors (version 2); resuming is not available in this version
";
    assert_eq!(summary.to_string(), expected);
}

#[test]
fn people_read_of_what_is_not_known() {
    let expected = "\
test      the last version was not evaluated
rounds    none committed
samples   0 committed, 0 repeated
digests   none compared
speed     not known: no round ended

nothing was saved
";
    assert_eq!(summary(&[]).to_string(), expected);
}

#[test]
fn it_is_written_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("summary.json");
    let first = summary(&healthy());
    first.write_json(&path).unwrap();
    let read = |path| serde_json::from_slice::<Summary>(&fs::read(path).unwrap()).unwrap();
    assert_eq!(read(&path), first);
    let second = summary(&[]);
    second.write_json(&path).unwrap();
    assert_eq!(read(&path), second);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");

    let blocked = folder.path().join("a-folder");
    fs::create_dir_all(blocked.join("full")).unwrap();
    for bad in [blocked.as_path(), &folder.path().join("none/summary.json"), "/".as_ref()] {
        let error = first.write_json(bad).unwrap_err();
        assert_eq!(error.path, bad);
        assert!(error.to_string().contains("cannot be written"), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no attempt is left");
}
