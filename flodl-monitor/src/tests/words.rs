//! The sentences of events and the progress line.

use crate::progress::{Training, epoch_done};
use crate::samples::*;
use crate::{Progress, Store, describe};
use flodl_wire::message::Record;
use flodl_wire::message::record::{Body, Event, EventKind};
use flodl_wire::{Epoch, Rank, Time, Version};
use std::time::Duration;

fn said(record: &Record) -> Option<String> {
    match &record.body {
        Body::Event(event) => describe(event),
        _ => None,
    }
}

#[test]
fn a_person_reads_what_matters_and_not_what_comes_with_every_window() {
    let heard: Vec<String> = one_of_each().iter().filter_map(said).collect();
    assert_eq!(
        heard,
        [
            "host box joined with ranks 0-1",
            "rank 2 is refused: its model has 10 tensors, the run's has 2",
            "the run starts with ranks 0-1",
            "round 2 ended without a result: nobody trained",
            "nothing moves: rank 1 has 2 of 5 batches",
            "attention: the disk of the run directory is full",
            "10 samples set aside and not trained: positions 40..50 ended 2 ranks",
            "rank 1 is back in the run (incarnation 2)",
            "host box is back",
            "NCCL session 2 is ready, with ranks 0-1",
            "round 3 is averaged again, NCCL session 2 is lost: rank 2 died",
            "another controller goes on with the run at version 7: 7000 samples are committed",
            "rank 1 died: killed by signal 9",
            "host box is lost: nothing heard for 10 s",
            "evaluation on rank 0: accuracy 0.9375, loss 0.2500 over 2000 samples",
            "saved version 1 in runs/a/checkpoints/v1",
            "rank 0 leaves the run",
        ]
    );
}

#[test]
fn what_went_wrong_is_said() {
    let replica = EventKind::ReplicaDigest { rank: Rank(1), version: Version(4), equal: false };
    for (record, expected) in [
        (differing(0, 7), "round 7: the ranks received different results, their digests disagree"),
        (committed(0, 7, &[], 1), "round 7: 1 sample had been averaged in part and will be trained again"),
        (event(0, replica), "rank 1 differs from version 4 after applying it"),
        (
            because(0, EventKind::Evaluated { rank: Rank(1), result: None, version: None }, "rank 1 has no test data"),
            "evaluation failed: rank 1 has no test data",
        ),
        (event(0, EventKind::Evaluated { rank: Rank(1), result: None, version: None }), "evaluation on rank 1 failed"),
        (
            because(0, EventKind::Checkpoint { version: Version(4), path: None }, "no space"),
            "version 4 was not saved: no space",
        ),
        (because(0, EventKind::RunEnded { exit: 4 }, "interrupted"), "the run ends with exit status 4: interrupted"),
        (event(0, EventKind::Stall), "nothing moves: no reason was given"),
    ] {
        assert_eq!(said(&record).as_deref(), Some(expected));
    }
    assert_eq!(describe(&Event { kind: EventKind::RunEnded { exit: 0 }, reason: None }), None);
}

#[test]
fn the_progress_line_says_what_is_known_so_far() {
    let ready = |rank| event(1, EventKind::RankReady { rank: Rank(rank) });
    let steps = [
        (vec![], "starting: 0 ranks ready"),
        (vec![ready(0)], "starting: 1 rank ready"),
        (vec![meta(2), formed(2, &[0, 1])], "starting: 2 of 2 ranks ready"),
        (
            vec![planned(1000, 1, 0, &[(0, 8), (1, 2)])],
            "epoch 1/2, 0 of 200 samples, 0 %, 2 of 2 ranks, eta -, emulation",
        ),
        (
            vec![window(1090, 0, 8, 10, 0), window(1090, 1, 2, 40, 0), committed(1100, 1, &[(0, 80), (1, 20)], 0)],
            "epoch 1/2, 100 of 200 samples, 50 %, 1000 samples/s, 0.80 of the ceiling, 2 of 2 ranks, eta -, emulation",
        ),
        (
            vec![root(1100, 1, Some(0.5)), planned(1100, 2, 1, &[(0, 8)]), died(1150, 1, "gone")],
            "epoch 2/2, 100 of 200 samples, 50 %, 1000 samples/s, loss 0.5000, 0.80 of the ceiling, 1 of 2 ranks, eta -, \
             emulation",
        ),
        // The speed after a death is that of the windows after it; the loss stays where nobody trained.
        (
            vec![root(31_100, 2, None), committed(21_100, 2, &[], 0), committed(31_100, 3, &[(0, 50)], 0)],
            "epoch 2/2, 150 of 200 samples, 75 %, 5.000 samples/s, loss 0.5000, 0.00 of the ceiling, 1 of 2 ranks, \
             eta -, emulation",
        ),
        (
            vec![root(31_200, 4, Some(f64::NAN)), evaluated(31_200, 0.25, Some(0.9375))],
            "epoch 2/2, 150 of 200 samples, 75 %, 5.000 samples/s, loss NaN, test accuracy 0.9375, 0.00 of the ceiling, 1 of 2 ranks, \
             eta -, emulation",
        ),
    ];
    let mut store = Store::new();
    for (records, expected) in steps {
        records.iter().for_each(|record| store.take(record));
        let now = records.last().map_or(Time::ZERO, |record| record.at);
        assert_eq!(Progress::of(&store, now).line(), expected);
    }
}

fn midway() -> Training {
    Training {
        epoch: 2,
        epochs: Some(5),
        done: 21_500,
        expected: Some(64_000),
        rate: Some(12_684.0),
        loss: Some(0.31049),
        accuracy: None,
        fraction: Some(0.97),
        left: Some(Duration::from_millis(3_351)),
        ranks: (3, 3),
        emulated: false,
        scalars: Vec::new(),
    }
}

#[test]
fn the_bar_fits_every_terminal() {
    let dead = Training { ranks: (2, 3), left: None, accuracy: Some(0.906), emulated: true, ..midway() };
    let fresh = Training { epoch: 1, epochs: Some(5), expected: Some(64_000), ranks: (3, 3), ..Training::default() };
    let done = Training { epoch: 5, done: 64_000, left: Some(Duration::ZERO), ..midway() };
    let unknown = Training { epoch: 1, done: 64, ..Training::default() };
    let cases = [
        (
            midway(),
            120,
            "[==========>                   ]   33%  epoch 2/5  12684 samples/s  loss 0.3105  0.97 of the ceiling  eta 0:04",
        ),
        (midway(), 80, "[=====>           ]  33%  epoch 2/5  12.7k/s  loss 0.310  ceiling 0.97  eta 0:04"),
        (midway(), 69, "[==>   ]  33%  epoch 2/5  12.7k/s  loss 0.310  ceiling 0.97  eta 0:04"),
        (midway(), 40, "33%  epoch 2/5  loss 0.310  eta 0:04"),
        (midway(), 20, "33%  epoch 2/5"),
        (midway(), 3, "33%"),
        (midway(), 2, ""),
        (midway(), 0, ""),
        (
            dead.clone(),
            140,
            "[========>                ]   33%  epoch 2/5  12684 samples/s  loss 0.3105  test 0.9060  0.97 of the ceiling  \
             2 of 3 ranks  emulation  eta -",
        ),
        (dead.clone(), 60, "33%  epoch 2/5  12.7k/s  loss 0.310  2/3 ranks  eta -"),
        (dead, 40, "33%  epoch 2/5  loss 0.310  eta -"),
        (fresh, 60, "[>                    ]    0%  epoch 1/5  - samples/s  eta -"),
        (done, 90, "[==========]  100%  epoch 5/5  12684 samples/s  loss 0.3105  0.97 of the ceiling  eta 0:00"),
        (unknown, 60, "epoch 1  - samples/s  eta -"),
    ];
    for (training, columns, expected) in cases {
        let bar = Progress::Training(training).bar(columns);
        assert_eq!(bar, expected, "in {columns} columns");
    }
    assert_eq!(Progress::Starting { ready: 1, of: Some(3) }.bar(14), "starting: 1 of");
    for columns in 0..200 {
        let bar = Progress::Training(midway()).bar(columns);
        assert!(bar.len() <= columns && bar.is_ascii(), "{columns}: {bar}");
    }
}

#[test]
fn an_epoch_ends_with_its_figures() {
    let mut store = Store::new();
    let mut after = |records: &[Record], epoch| {
        records.iter().for_each(|record| store.take(record));
        epoch_done(&store, Epoch(epoch))
    };
    assert_eq!(after(&[], 0), None);
    let done = event(1500, EventKind::EpochDone { epoch: Epoch(0) });
    let first = [meta(0), planned(1000, 1, 0, &[(0, 8), (1, 2)]), window(1090, 0, 8, 10, 0), window(1090, 1, 2, 40, 0)];
    after(&first, 0);
    let told = after(&[committed(1200, 1, &[(0, 80), (1, 20)], 0), done], 0);
    let expected = "epoch 1/2 done in 0.50 s, mean loss 1.2500, 200 samples/s, 0.40 of the ceiling so far";
    assert_eq!(told.as_deref(), Some(expected));
    // An epoch of which nobody reported a window, by records that are not all there.
    let told = after(&[planned(2000, 2, 1, &[]), event(72_000, EventKind::EpochDone { epoch: Epoch(1) })], 1);
    assert_eq!(told.as_deref(), Some("epoch 2/2 done in 70.0 s, 1.429 samples/s, 0.40 of the ceiling so far"));
    assert_eq!(after(&[], 0), None, "another has ended since");
}
