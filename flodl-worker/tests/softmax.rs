//! The example's model, trained in memory by unequal ranks: it learns, every sample is trained once, and every digest agrees.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;
#[path = "../examples/softmax/model.rs"]
mod model;

use common::{Conductor, Seat, counted, windows};
use flodl_wire::message::control::Next;
use flodl_wire::message::join::TrainerSettings;
use flodl_wire::message::report::Received;
use flodl_wire::{Incarnation, Rank, Time, Version};
use flodl_worker::dataset::Dataset;
use flodl_worker::loader::idx::LabelledImages;
use flodl_worker::worker::{Callbacks, Job, Worker};
use std::path::Path;
use std::time::Duration;

fn seat<'a>(rank: u32, train: &'a LabelledImages, test: &'a LabelledImages) -> Seat<'a, model::Softmax> {
    let job = Job {
        trainee: model::Softmax::new(train.image_len(), "bias".to_owned()),
        train_set: Box::new(train),
        eval_set: Some(Box::new(test)),
        schedule: Box::new(|at| model::learning_rate(0.1, at)),
        settings: TrainerSettings { batch_size: Some(64), epochs: Some(8), augment: None },
        callbacks: Callbacks::default(),
    };
    let worker = Worker::new(job, (Rank(rank), Incarnation(1)), common::PATIENCE, Time::ZERO).unwrap();
    Seat::new(worker, Duration::from_millis(8))
}

/// Trains `epochs` with ranks that do so many batches a window, and answers with the accuracy.
fn accuracy(batches: &[u64], epochs: u64, limit: usize) -> f64 {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/softmax/data");
    let train = LabelledImages::read_split(&dir, "train").unwrap().truncated(limit);
    let test = LabelledImages::read_split(&dir, "t10k").unwrap();
    let seats = (0..).zip(batches).map(|(rank, _)| seat(rank, &train, &test)).collect();
    let mut conductor = Conductor::new(seats, epochs);
    let epoch_windows = windows(train.len(), 64, batches);
    let mut version = Version(0);
    for epoch in 0..epochs {
        let mut trained = Vec::new();
        for (place, leases) in epoch_windows.iter().enumerate() {
            let last = epoch + 1 == epochs && place + 1 == epoch_windows.len();
            let result = conductor.step(epoch, leases, if last { Next::Final } else { Next::Window });
            trained.extend(&result.ranges);
            let received: Vec<Received> = result.acks.iter().filter_map(|ack| ack.received().copied()).collect();
            assert_eq!(received.len(), result.acks.len());
            for (ack, report) in received.iter().zip(&result.reports) {
                assert_eq!(ack.digest, received[0].digest);
                assert_eq!(report.replica_digest.map(|(version, _)| version), Some(version));
            }
            let found: Vec<f64> = received.iter().filter_map(|received| received.divergence).collect();
            for (ack, expect) in found.iter().zip(&result.divergence) {
                assert!((ack - expect).abs() < 1e-4, "{ack} {expect}");
            }
            assert_eq!(found.len(), result.divergence.len());
            version = version.next();
        }
        let counts = counted(&trained);
        assert!(counts.len() as u64 == train.len() && counts.values().all(|&count| count == 1));
    }
    conductor.finish().accuracy.unwrap()
}

#[test]
fn unequal_ranks_learn_together() {
    for (batches, epochs, limit, at_least) in [
        (&[16, 6, 4][..], 8, usize::MAX, 0.88),
        (&[16, 6, 4], 3, usize::MAX, 0.85),
        (&[1, 1, 1], 3, usize::MAX, 0.85),
        (&[4], 3, usize::MAX, 0.85),
        (&[9, 8, 4, 4, 3], 3, usize::MAX, 0.85),
        (&[5, 0, 2], 3, 7919, 0.85),
    ] {
        let found = accuracy(batches, epochs, limit);
        println!("{batches:?} x {epochs}: {found}");
        assert!(found >= at_least, "{batches:?} reach {found} after {epochs} epochs, expected {at_least}");
    }
}
