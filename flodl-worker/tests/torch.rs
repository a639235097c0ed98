//! The network of the example `digits` in whole ranks in memory: running statistics and counters of batch normalisation are
//! agreed on as they should be, every digest agrees, and the ranks learn.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;
#[path = "../examples/digits/model.rs"]
mod model;

use common::{Conductor, Seat, windows};
use flodl_wire::message::control::{Next, Part};
use flodl_wire::message::join::{Section, TrainerSettings};
use flodl_wire::{Incarnation, Rank, Time};
use flodl_worker::loader::idx::LabelledImages;
use flodl_worker::torch::{Sgd, TensorSet, TorchModel};
use flodl_worker::trainee::Trainee;
use flodl_worker::worker::{Callbacks, Job, Worker};
use std::path::Path;
use std::time::Duration;
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

fn network(seed: i64, normalised: bool) -> TorchModel<'static> {
    // Tests share the cores among themselves.
    tch::set_num_threads(1);
    tch::manual_seed(seed);
    let store = VarStore::new(Device::Cpu);
    let net = model::Net::new(&store.root(), normalised, "bias");
    TorchModel::new(store, net, Sgd { momentum: 0.9, ..Sgd::default() }).unwrap()
}

fn sets(limit: usize) -> (TensorSet, TensorSet) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/softmax/data");
    let set = |name, limit| {
        let images = LabelledImages::read_split(&dir, name).unwrap().truncated(limit);
        TensorSet::images(&images, 0.1307, 0.3081).unwrap()
    };
    (set("train", limit), set("t10k", 500))
}

/// Ranks that start from different parameters.
fn ranks<'a>(
    (train, test): (&'a TensorSet, &'a TensorSet),
    network: impl Fn(i64) -> TorchModel<'static>,
    ranks: u32,
) -> Conductor<'a, TorchModel<'static>> {
    let seat = |rank| {
        let job = Job {
            trainee: network(i64::from(rank)),
            train_set: Box::new(train),
            eval_set: Some(Box::new(test)),
            schedule: Box::new(|_| 0.05),
            settings: TrainerSettings { batch_size: Some(64), epochs: Some(2), augment: None },
            callbacks: Callbacks::default(),
        };
        let worker = Worker::new(job, (Rank(rank), Incarnation(1)), common::PATIENCE, Time::ZERO).unwrap();
        Seat::new(worker, Duration::from_millis(8))
    };
    Conductor::new((0..ranks).map(seat).collect(), 2)
}

fn tensors<'a>(conductor: &'a Conductor<'_, TorchModel<'static>>, name: &'a str) -> Vec<Tensor> {
    let of = |seat: &Seat<'_, TorchModel<'static>>| seat.worker.trainee().store().variables()[name].copy();
    conductor.seats.iter().map(of).collect()
}

#[test]
fn the_network_has_the_names_that_other_programs_read() {
    let manifest = network(1, true).manifest();
    let names = |section| -> Vec<&str> {
        manifest.iter().filter(|spec| spec.section == section).map(|spec| &spec.name[..]).collect()
    };
    assert_eq!(names(Section::Integers), ["norm1.num_batches_tracked", "norm2.num_batches_tracked"]);
    let statistics = ["norm1.running_mean", "norm1.running_var", "norm2.running_mean", "norm2.running_var"];
    assert_eq!(names(Section::Buffers), statistics);
    assert_eq!(names(Section::Parameters).len(), 12);
    let plain = network(1, false).manifest();
    let shapes: Vec<(&str, &[u64])> = plain.iter().map(|spec| (&spec.name[..], &spec.shape[..])).collect();
    let expect: [(&str, &[u64]); 8] = [
        ("conv1.bias", &[16]),
        ("conv1.weight", &[16, 1, 5, 5]),
        ("conv2.bias", &[32]),
        ("conv2.weight", &[32, 16, 5, 5]),
        ("fc1.bias", &[128]),
        ("fc1.weight", &[128, 1568]),
        ("fc2.bias", &[10]),
        ("fc2.weight", &[10, 128]),
    ];
    assert_eq!(shapes, expect);
}

#[test]
fn statistics_are_averaged_and_counters_agreed_on() {
    let (train, test) = sets(640);
    let mut conductor = ranks((&train, &test), |seed| network(seed, true), 3);
    let mut batches = 0;
    for leases in windows(640, 64, &[3, 1, 1]) {
        conductor.train(0, &leases);
        let before = tensors(&conductor, "norm1.running_mean");
        let counts: Vec<i64> =
            tensors(&conductor, "norm1.num_batches_tracked").iter().map(|t| t.int64_value(&[])).collect();
        assert_eq!(counts, [batches + 3, batches + 1, batches + 1]);
        let result = conductor.average(|_| Part::Contribute, Next::Window);
        batches += 3;
        for count in tensors(&conductor, "norm1.num_batches_tracked") {
            assert_eq!(count.int64_value(&[]), batches);
        }
        let mean = (&before[0] + &before[1] + &before[2]) / 3.0;
        for after in tensors(&conductor, "norm1.running_mean") {
            assert!((after - &mean).abs().max().double_value(&[]) < 1e-6);
        }
        assert_eq!(result.reports.iter().map(|report| report.loss_count).collect::<Vec<_>>(), [192, 64, 64]);
        let digests: Vec<u64> =
            result.acks.iter().filter_map(|ack| ack.received()).map(|received| received.digest).collect();
        assert_eq!(digests, [digests[0]; 3]);
    }
    let weights = tensors(&conductor, "fc1.weight");
    assert!(weights.iter().all(|weight| weight.equal(&weights[0])));
    conductor.finish();
}

/// A linear classifier whose parameters and buffers have all kinds that ranks average.
fn of_many_kinds(seed: i64) -> TorchModel<'static> {
    tch::set_num_threads(1);
    tch::manual_seed(seed);
    let store = VarStore::new(Device::Cpu);
    let root = store.root();
    let start = |shape: &[i64], kind| (Tensor::randn(shape, (Kind::Float, Device::Cpu)) * 0.01).to_kind(kind);
    let weight = root.add("weight", start(&[784, 10], Kind::BFloat16), true);
    let bias = root.add("bias", start(&[10], Kind::Half), true);
    let gain = root.add("gain", start(&[1], Kind::Double) + 1.0, true);
    // Running means, kept by the network itself.
    let half = root.add("mean_half", start(&[10], Kind::Half), false);
    let double = root.add("mean_double", start(&[10], Kind::Double), false);
    let net = tch::nn::func_t(move |images: &Tensor, train| {
        let product = images.flatten(1, -1).to_kind(Kind::BFloat16).matmul(&weight).to_kind(Kind::Float);
        let output = (product + bias.to_kind(Kind::Float)) * gain.to_kind(Kind::Float);
        if train {
            let mean = output.detach().mean_dim(0, false, None);
            half.shallow_clone().copy_(&(half.to_kind(Kind::Float) * 0.9 + &mean * 0.1));
            double.shallow_clone().copy_(&(&double * 0.9 + mean * 0.1));
        }
        output
    });
    TorchModel::new(store, net, Sgd { momentum: 0.9, ..Sgd::default() }).unwrap()
}

/// Ranks compare what they hold with the average bit by bit, which a tensor of 16 bits cannot hold.
#[test]
fn tensors_of_every_kind_are_averaged_alike_on_all_ranks() {
    let (train, test) = sets(1280);
    let mut conductor = ranks((&train, &test), of_many_kinds, 3);
    let mut digest = None;
    for (version, leases) in (1..).zip(windows(1280, 64, &[5, 2, 1])) {
        let result = conductor.step(0, &leases, Next::Window);
        for report in &result.reports {
            let held = report.replica_digest.map(|(version, digest)| (version.0, digest));
            assert!(held.is_some() && (digest.is_none() || held == digest), "{held:?} {digest:?}");
        }
        let received = result.acks[0].received().unwrap();
        digest = Some((version, received.digest));
        for name in ["weight", "bias", "gain", "mean_half", "mean_double"] {
            let of = tensors(&conductor, name);
            assert!(of.iter().all(|tensor| tensor.equal(&of[0])), "{name}");
        }
    }
    let found = conductor.finish().accuracy.unwrap();
    assert!(found >= 0.6, "{found}");
}

#[test]
fn unequal_ranks_learn_together() {
    let (train, test) = sets(2560);
    for normalised in [false, true] {
        let mut conductor = ranks((&train, &test), |seed| network(seed, normalised), 3);
        for epoch in 0..2 {
            for leases in windows(2560, 64, &[5, 2, 1]) {
                let result = conductor.step(epoch, &leases, Next::Window);
                let mean = |loss_sum: f64, count: u64| loss_sum / count as f64;
                assert!(result.reports.iter().all(|report| mean(report.loss_sum, report.loss_count) < 4.0));
            }
        }
        let found = conductor.finish().accuracy.unwrap();
        println!("normalised {normalised}: {found}");
        assert!(found >= 0.85, "normalised {normalised}: {found}");
    }
}
