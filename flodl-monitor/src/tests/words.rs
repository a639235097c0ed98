//! The sentences of events and the progress line.

use crate::samples::*;
use crate::{Store, describe, progress};
use flodl_wire::message::Record;
use flodl_wire::message::record::{Body, Event, EventKind};
use flodl_wire::{Rank, Version};

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
            "rank 1 died: killed by signal 9",
            "host box is lost: nothing heard for 10 s",
            "evaluation on rank 0: accuracy 0.9375, loss 0.2500 over 2000 samples",
            "saved version 1 in runs/a/checkpoints/v1",
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
            because(0, EventKind::Evaluated { rank: Rank(1), result: None }, "rank 1 has no test data"),
            "evaluation failed: rank 1 has no test data",
        ),
        (event(0, EventKind::Evaluated { rank: Rank(1), result: None }), "evaluation on rank 1 failed"),
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
        (vec![planned(1000, 1, 0, &[(0, 8), (1, 2)])], "epoch 1/2, 0 of 200 samples, 2 of 2 ranks, emulation"),
        (
            vec![window(1090, 0, 8, 10, 0), window(1090, 1, 2, 40, 0), committed(1100, 1, &[(0, 80), (1, 20)], 0)],
            "epoch 1/2, 100 of 200 samples, 1000 samples/s, 0.80 of the ceiling, 2 of 2 ranks, emulation",
        ),
        (
            vec![root(1100, 1, Some(0.5)), planned(1100, 2, 1, &[(0, 8)]), died(1150, 1, "gone")],
            "epoch 2/2, 100 of 200 samples, 1000 samples/s, loss 0.5000, 0.80 of the ceiling, 1 of 2 ranks, emulation",
        ),
        // The loss stays where nobody trained; the speed is that of the last ten seconds.
        (
            vec![root(31_100, 2, None), committed(21_100, 2, &[], 0), committed(31_100, 3, &[(0, 50)], 0)],
            "epoch 2/2, 150 of 200 samples, 5.000 samples/s, loss 0.5000, 0.00 of the ceiling, 1 of 2 ranks, emulation",
        ),
        (
            vec![root(31_200, 4, Some(f64::NAN))],
            "epoch 2/2, 150 of 200 samples, 5.000 samples/s, loss NaN, 0.00 of the ceiling, 1 of 2 ranks, emulation",
        ),
    ];
    let mut store = Store::new();
    for (records, expected) in steps {
        records.iter().for_each(|record| store.take(record));
        assert_eq!(progress::line(&store), expected);
    }
}
