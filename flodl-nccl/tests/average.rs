//! Averages on devices: masses, buffers, integers, outer optimizers, what is not finite, and what is put back. On the
//! stand-in, and on GPUs where they are.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]

mod common;

use std::time::Instant;

use common::{Bench, LIMIT, ranks_of, tests_on_each};
use flodl_nccl::average::{Average, Looked, Measured, Outer, Shape, Task};
use flodl_nccl::session::{Replica, Round};
use flodl_nccl::{Comm, Place, Progress};

tests_on_each! {
    kernels_find_what_a_replica_holds, 1;
    kernels_make_the_outer_steps_of_a_host_bit_by_bit, 1;
    an_average_is_by_mass_and_its_measures_are_those_of_the_host, 2;
    whoever_has_no_mass_gives_nothing_whatever_it_holds, 2;
    all_take_the_roots_replica_bit_by_bit, 2;
    what_was_before_comes_back_and_a_round_is_done_again, 2;
    momentum_is_the_same_on_all_ranks_and_what_the_formulas_say, 2;
    whoever_comes_later_takes_the_momentum_of_who_has_it, 2;
    ranks_of_unequal_momentum_notice_and_begin_anew, 2;
    a_sum_past_the_largest_float_leaves_the_consensus_before, 2;
    a_round_to_which_nobody_gives_leaves_the_consensus_before, 2;
}

const SHAPE: Shape = Shape { parameters: 70_001, buffers: 3, integers: 2 };

/// A rank of a test with its average and communicator.
struct Rank {
    rank: u32,
    comm: Comm,
    average: Average,
    round: Round,
}

/// What a rank holds: floats that differ by rank and are sums of few binary digits.
fn floats(rank: u32) -> Vec<f32> {
    (0..SHAPE.floats()).map(|at| (at % 97) as f32 * 0.25 - 8.0 + 4.0 * rank as f32).collect()
}

fn integers(rank: u32) -> Vec<i64> {
    vec![-5 - i64::from(rank), i64::MAX - 3 + i64::from(rank)]
}

fn ranks<T: Send>(bench: &Bench, size: u32, outer: Outer, body: impl Fn(Rank) -> T + Sync) -> Vec<T> {
    let id = bench.library.unique_id().expect("an id");
    ranks_of(bench, id, size, |of| {
        let mut average = Average::new(bench.library.clone(), &of.device, SHAPE, outer).expect("there is room");
        average.load(&floats(of.rank), &integers(of.rank)).expect("it fits");
        body(Rank { rank: of.rank, comm: of.comm, average, round: Round(0) })
    })
}

impl Rank {
    fn drain(&mut self) {
        let started = Instant::now();
        while !self.average.is_idle().expect("it can be asked") {
            assert!(started.elapsed() < LIMIT, "the streams are not idle");
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    fn looked(&mut self) -> Looked {
        self.average.look().expect("it begins");
        self.drain();
        self.average.looked().expect("it can be read")
    }

    /// Issues a round, as a session's runner does, and says what it came to.
    fn issue(&mut self, task: Task) -> Measured {
        self.average.prepare(task);
        self.average.issue(self.round, &self.comm).expect("it is put on the stream");
        self.comm.settle(LIMIT).expect("it is on the stream");
        assert_eq!(self.comm.poll(), Ok(Progress::Ready));
        self.average.issued(self.round).expect("and so is what follows");
        self.drain();
        self.average.measured().expect("it can be read")
    }

    /// A round that counts.
    fn round(&mut self, task: Task) -> Measured {
        self.average.copy(self.round);
        let measured = self.issue(task);
        self.average.settle(true).expect("it counts");
        self.average.release(self.round);
        self.drain();
        self.round.0 += 1;
        measured
    }

    fn read(&self) -> (Vec<f32>, Vec<i64>) {
        self.average.read().expect("it can be read")
    }
}

/// Compares bits, and does not print all of them.
fn assert_same(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    let differs = got.iter().zip(expected).position(|(one, other)| one.to_bits() != other.to_bits());
    assert_eq!(differs.map(|at| (at, got[at], expected[at])), None);
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn kernels_find_what_a_replica_holds(bench: &Bench) {
    ranks(bench, 1, Outer::Average, |mut of| {
        assert_same(&of.read().0, &floats(0));
        assert_eq!(of.read().1, integers(0));
        let first = of.looked();
        assert!(first.is_finite);
        assert_eq!(of.looked(), first, "looking changes nothing");
        let mut other = floats(0);
        other.swap(3, 4);
        of.average.load(&other, &integers(0)).expect("it fits");
        assert_ne!(of.looked().digest, first.digest, "places count");
        for at in [0, SHAPE.parameters, SHAPE.floats() - 1] {
            for value in [f32::NAN, f32::NEG_INFINITY] {
                let mut broken = floats(0);
                broken[at] = value;
                of.average.load(&broken, &integers(0)).expect("it fits");
                assert!(!of.looked().is_finite, "{value} at {at}");
            }
        }
        let mut counted = integers(0);
        counted[1] -= 1;
        of.average.load(&floats(0), &counted).expect("it fits");
        assert_ne!(of.looked().digest, first.digest);
        assert!(of.average.load(&[0.0], &counted).is_err(), "another length");
    });
}

fn an_average_is_by_mass_and_its_measures_are_those_of_the_host(bench: &Bench) {
    let results = ranks(bench, 2, Outer::Average, |mut of| {
        let measured = of.round(Task::of_mass(if of.rank == 0 { 1.0 } else { 3.0 }));
        let looked = of.looked();
        assert_eq!(looked.digest, measured.digest, "the replica holds the result");
        (measured, of.read())
    });
    let own: [Vec<f32>; 2] = [floats(0), floats(1)];
    let expected: Vec<f32> = (0..SHAPE.floats())
        .map(|at| match at < SHAPE.parameters {
            true => (own[0][at] + 3.0 * own[1][at]) / 4.0,
            false => (own[0][at] + own[1][at]) / 2.0,
        })
        .collect();
    for (rank, (measured, (floats, integers))) in results.iter().enumerate() {
        assert_same(floats, &expected);
        assert_eq!(integers, &[-5, i64::MAX - 2], "the largest");
        assert_eq!((measured.mass, measured.movers, measured.is_finite), (4.0, 2, true));
        assert_eq!(measured.digest, results[0].0.digest);
        let norm = |values: &mut dyn Iterator<Item = f32>| {
            values.take(SHAPE.parameters).map(|value| f64::from(value) * f64::from(value)).sum::<f64>().sqrt()
        };
        let close = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9 * expected, "{got} {expected}");
        let post = norm(&mut expected.iter().copied());
        close(measured.pre_norm, norm(&mut own[rank].iter().copied()));
        close(measured.post_norm, post);
        close(measured.divergence, norm(&mut own[rank].iter().zip(&expected).map(|(one, other)| one - other)) / post);
    }
}

fn whoever_has_no_mass_gives_nothing_whatever_it_holds(bench: &Bench) {
    let results = ranks(bench, 2, Outer::Average, |mut of| {
        if of.rank == 1 {
            of.average.load(&vec![f32::NAN; SHAPE.floats()], &[i64::MAX, i64::MAX]).expect("it fits");
        }
        let measured = of.round(Task::of_mass(if of.rank == 0 { 7.0 } else { 0.0 }));
        (measured.mass, measured.movers, measured.is_finite, of.read())
    });
    for (mass, movers, is_finite, (values, counters)) in results {
        assert_eq!((mass, movers, is_finite), (7.0, 1, true));
        assert_same(&values, &floats(0));
        assert_eq!(counters, integers(0));
    }
}

fn all_take_the_roots_replica_bit_by_bit(bench: &Bench) {
    let results = ranks(bench, 2, Outer::Nesterov { rate: 0.7, momentum: 0.9 }, |mut of| {
        let measured = of.round(Task::from_root(1));
        assert_eq!(of.looked().digest, measured.digest);
        (measured.digest, of.read())
    });
    for (digest, (values, counters)) in &results {
        assert_same(values, &floats(1));
        assert_eq!(*counters, integers(1));
        assert_eq!(*digest, results[0].0);
    }
}

fn what_was_before_comes_back_and_a_round_is_done_again(bench: &Bench) {
    let results = ranks(bench, 2, Outer::SlowMomentum { rate: 1.0, momentum: 0.5 }, |mut of| {
        of.round(Task::from_root(0));
        let own: Vec<f32> = floats(0).iter().map(|value| value + 1.0 + of.rank as f32).collect();
        of.average.load(&own, &integers(of.rank)).expect("it fits");
        let before = of.looked();
        of.average.copy(of.round);
        let once = of.issue(Task::of_mass(1.0));
        // Issued again, as on another communicator.
        of.average.restore(of.round);
        let again = of.issue(Task::of_mass(1.0));
        assert_eq!(again, once);
        of.average.settle(false).expect("it does not count");
        of.drain();
        assert_eq!(of.looked(), before, "nor has the momentum changed");
        assert_same(&of.read().0, &own);
        of.average.release(of.round);
        of.round.0 += 1;
        let later = of.round(Task::of_mass(1.0));
        assert_eq!(later.digest, once.digest, "a round that came to nothing has left no trace");
        later.digest
    });
    assert!(results[0] == results[1], "the ranks differ");
}

fn momentum_is_the_same_on_all_ranks_and_what_the_formulas_say(bench: &Bench) {
    for (outer, is_nesterov) in [
        (Outer::SlowMomentum { rate: 0.7, momentum: 0.9 }, false),
        (Outer::Nesterov { rate: 0.7, momentum: 0.9 }, true),
    ] {
        let results = ranks(bench, 2, outer, |mut of| {
            of.round(Task::from_root(0));
            let mut digests = Vec::new();
            for window in 0..3 {
                let (consensus, counters) = of.read();
                let moved = |value: &f32| value + 0.5 * (window + 1) as f32 * (1.0 + 2.0 * of.rank as f32);
                of.average.load(&consensus.iter().map(moved).collect::<Vec<f32>>(), &counters).expect("it fits");
                digests.push(of.round(Task::of_mass(1.0)).digest);
            }
            (digests, bits(&of.read().0))
        });
        assert!(results[0] == results[1], "the ranks differ");
        // The same on the host, for the first parameter.
        let (mut consensus, mut velocity) = (floats(0)[0], 0.0_f32);
        for window in 0..3 {
            let by = 0.5 * (window + 1) as f32;
            let average = ((consensus + by) + (consensus + by * 3.0)) / 2.0;
            let gradient = consensus - average;
            velocity = 0.9 * velocity + gradient;
            consensus -= 0.7 * if is_nesterov { gradient + 0.9 * velocity } else { velocity };
        }
        let got = f32::from_bits(results[0].1[0]);
        assert!((got - consensus).abs() < 1e-4, "{got} is not {consensus}");
    }
}

fn whoever_comes_later_takes_the_momentum_of_who_has_it(bench: &Bench) {
    let outer = Outer::Nesterov { rate: 0.7, momentum: 0.9 };
    let results = ranks(bench, 2, outer, |mut of| {
        // Rank 0 has been through rounds of its own; rank 1 has just come.
        if of.rank == 0 {
            alone(bench, &mut of, &[Task::from_root(0), Task::of_mass(1.0)]);
            of.average.load(&floats(3), &integers(0)).expect("it fits");
        }
        let mass = if of.rank == 0 { 2.0 } else { 0.0 };
        let first = of.round(Task { holder: Some(0), ..Task::of_mass(mass) });
        let second = of.round(Task::of_mass(1.0));
        assert!(first.state_agrees && second.state_agrees);
        (first.digest, second.digest, bits(&of.read().0))
    });
    assert!(results[0] == results[1], "the ranks differ");
}

/// In a world of one the average is the replica itself, so that each step is known exactly.
fn kernels_make_the_outer_steps_of_a_host_bit_by_bit(bench: &Bench) {
    let (rate, momentum) = (0.7_f32, 0.9_f32);
    for is_nesterov in [false, true] {
        let outer =
            if is_nesterov { Outer::Nesterov { rate, momentum } } else { Outer::SlowMomentum { rate, momentum } };
        ranks(bench, 1, outer, |mut of| {
            of.round(Task::from_root(0));
            let mut consensus = floats(0);
            let mut velocity = vec![0.0_f32; SHAPE.parameters];
            for window in 1..4 {
                let moved = |(at, value): (usize, &f32)| value * 1.01 + (at % 13) as f32 / (3.0 * window as f32);
                let trained: Vec<f32> = consensus.iter().enumerate().map(moved).collect();
                of.average.load(&trained, &integers(0)).expect("it fits");
                of.round(Task::of_mass(1.0));
                let (parameters, buffers) = trained.split_at(SHAPE.parameters);
                for (place, average) in parameters.iter().enumerate() {
                    let gradient = consensus[place] - average;
                    velocity[place] = momentum * velocity[place] + gradient;
                    let ahead = if is_nesterov { gradient + momentum * velocity[place] } else { velocity[place] };
                    consensus[place] -= rate * ahead;
                }
                consensus[SHAPE.parameters..].copy_from_slice(buffers);
                assert_same(&of.read().0, &consensus);
            }
        });
    }
}

/// What a rank has done alone before it meets the others.
fn alone(bench: &Bench, of: &mut Rank, rounds: &[Task]) {
    let id = bench.library.unique_id().expect("an id");
    let comm = Comm::init_rank(&bench.library, Place { id, rank: 0, size: 1 }, LIMIT).expect("it begins");
    comm.settle(LIMIT).expect("it is ready");
    let with_peers = std::mem::replace(&mut of.comm, comm);
    for (at, task) in (0..).zip(rounds) {
        of.average.load(&floats(at), &integers(0)).expect("it fits");
        of.round(*task);
    }
    let comm = std::mem::replace(&mut of.comm, with_peers);
    comm.close(LIMIT).expect("it ends");
}

fn ranks_of_unequal_momentum_notice_and_begin_anew(bench: &Bench) {
    let outer = Outer::SlowMomentum { rate: 1.0, momentum: 0.5 };
    let results = ranks(bench, 2, outer, |mut of| {
        let rounds: &[Task] = if of.rank == 0 { &[Task::from_root(0), Task::of_mass(1.0)] } else { &[] };
        alone(bench, &mut of, rounds);
        let load = |of: &mut Rank| of.average.load(&floats(of.rank), &integers(0)).expect("it fits");
        load(&mut of);
        let first = of.round(Task::of_mass(1.0));
        load(&mut of);
        let taken = of.round(Task::from_root(0));
        load(&mut of);
        let last = of.round(Task::of_mass(1.0));
        [(first.state_agrees, 0), (taken.state_agrees, taken.digest), (last.state_agrees, last.digest)]
    });
    assert_eq!(results[0].map(|(agrees, _)| agrees), [false, true, true]);
    assert!(results[0] == results[1], "the ranks differ");
}

fn a_sum_past_the_largest_float_leaves_the_consensus_before(bench: &Bench) {
    for outer in [Outer::Average, Outer::Nesterov { rate: 0.7, momentum: 0.9 }] {
        let results = ranks(bench, 2, outer, |mut of| {
            assert_eq!(of.average.fall_back(), Ok(false), "there is nothing to fall back on");
            let first = of.round(Task::from_root(0));
            let mut values = floats(of.rank);
            values[17] = 3e38;
            of.average.load(&values, &integers(1)).expect("it fits");
            of.average.copy(of.round);
            assert!(!of.issue(Task::of_mass(1.0)).is_finite);
            assert_eq!(of.average.fall_back(), Ok(true));
            of.drain();
            assert_eq!(of.average.looked().expect("readable").digest, first.digest);
            of.average.settle(true).expect("it counts");
            of.drain();
            of.round.0 += 1;
            assert_same(&of.read().0, &floats(0));
            // And it goes on from there.
            of.average.load(&floats(of.rank), &integers(1)).expect("it fits");
            let next = of.round(Task::of_mass(1.0));
            (next.is_finite, next.state_agrees, next.digest)
        });
        assert_eq!((results[0].0, results[0].1), (true, true));
        assert!(results[0] == results[1], "the ranks differ");
    }
}

fn a_round_to_which_nobody_gives_leaves_the_consensus_before(bench: &Bench) {
    ranks(bench, 2, Outer::Average, |mut of| {
        let first = of.round(Task::from_root(1));
        of.average.load(&floats(5), &integers(1)).expect("it fits");
        of.average.copy(of.round);
        let measured = of.issue(Task::of_mass(0.0));
        assert_eq!((measured.mass, measured.movers, measured.is_finite), (0.0, 0, false));
        assert_eq!(of.average.fall_back(), Ok(true));
        of.drain();
        assert_eq!(of.average.looked().expect("readable").digest, first.digest);
    });
}
