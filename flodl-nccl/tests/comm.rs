//! Communicators: what they compute, and how they end. On the stand-in, and on GPUs where they are.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]

mod common;

use std::time::{Duration, Instant};

use common::stand_in::{self, Fault, Variant};
use common::{Bench, LIMIT, RankOf, bytes_of, drain, floats_of, ranks, ranks_of, tests_on_each, view};
use flodl_nccl::{
    CallError, Capability, Comm, DataType, End, EndError, ErrorCode, Library, MissingCapability, Part, Place, Progress,
    Reduction, Unfit, Version,
};

tests_on_each! {
    sums_averages_and_scaled_sums_are_the_ranks_values, 2;
    bfloat16_is_summed_as_such, 2;
    a_broadcast_brings_the_roots_values, 2;
    grouped_calls_are_one, 2;
    one_thread_forms_the_communicators_of_its_devices, 2;
    a_world_of_one_is_a_world, 1;
    a_split_has_the_ranks_of_one_color, 2;
    survivors_shrink_around_a_dead_rank_in_the_middle_of_a_collective, 3;
    a_revoked_communicator_has_ended_its_work_and_takes_no_more, 2;
    a_communicator_grows_by_a_new_rank, 3;
    an_abort_ends_a_collective_that_a_peer_never_joins, 2;
    a_rank_that_never_comes_is_a_deadline_and_an_abort_ends_the_waiting, 1;
    arguments_that_contradict_each_other_never_reach_the_library, 1;
}

/// One all-reduce in place, waited for.
fn reduced(of: &RankOf, values: &[f32], reduction: Reduction) -> Vec<f32> {
    let memory = of.memory(values);
    of.comm.all_reduce(view(&memory), view(&memory), reduction, of.on()).expect("it is put on the stream");
    of.comm.settle(LIMIT).expect("it is on the stream");
    of.drain();
    floats_of(&memory)
}

fn close(of: RankOf) {
    assert_eq!(of.comm.close(LIMIT), Ok(End::Destroyed));
}

fn sums_averages_and_scaled_sums_are_the_ranks_values(bench: &Bench) {
    let results = ranks(bench, 2, |of| {
        let own = of.rank as f32;
        let got = [
            reduced(&of, &[own, 10.0, -1.5], Reduction::Sum),
            reduced(&of, &[own, 10.0, -1.5], Reduction::Average),
            reduced(&of, &[own, 3.0 - own, -1.5], Reduction::Max),
            reduced(&of, &[4.0, 8.0, 1.0], Reduction::PreMulSum(if of.rank == 0 { 0.25 } else { 0.75 })),
        ];
        close(of);
        got
    });
    for got in results {
        let expected = [[1.0, 20.0, -3.0], [0.5, 10.0, -1.5], [1.0, 3.0, -1.5], [4.0, 8.0, 1.0]];
        assert_eq!(got.map(|values| [values[0], values[1], values[2]]), expected);
    }
}

fn bfloat16_is_summed_as_such(bench: &Bench) {
    let results = ranks(bench, 2, |of| {
        let mut memory = of.device.alloc(2, DataType::Bf16).expect("there is memory");
        memory.upload(&[0x80, 0x3f, 0x00, 0x40]).expect("1 and 2 fit");
        of.comm.all_reduce(view(&memory), view(&memory), Reduction::PreMulSum(0.5), of.on()).expect("it begins");
        of.comm.settle(LIMIT).expect("it is on the stream");
        of.drain();
        let got = memory.download().expect("readable");
        close(of);
        got
    });
    assert_eq!(results, [[0x80, 0x3f, 0x00, 0x40], [0x80, 0x3f, 0x00, 0x40]], "half of 1 + 1, half of 2 + 2");
}

fn a_broadcast_brings_the_roots_values(bench: &Bench) {
    let results = ranks(bench, 2, |of| {
        let memory = of.memory(&[of.rank as f32 + 1.0; 5]);
        of.comm.broadcast(view(&memory), view(&memory), 1, of.on()).expect("it begins");
        of.comm.settle(LIMIT).expect("it is on the stream");
        of.drain();
        let got = floats_of(&memory);
        close(of);
        got
    });
    assert_eq!(results, [[2.0; 5], [2.0; 5]]);
}

fn grouped_calls_are_one(bench: &Bench) {
    let results = ranks(bench, 2, |of| {
        let (mass, sum) = (of.memory(&[of.rank as f32 + 1.0]), of.memory(&[1.0; 4]));
        let (mass_view, sum_view) = (view(&mass), view(&sum));
        let issued = bench.library.group(|group| {
            group.all_reduce(&of.comm, (mass_view, mass_view), Reduction::Sum, of.on())?;
            group.all_reduce(&of.comm, (sum_view, sum_view), Reduction::PreMulSum(0.5), of.on())?;
            group.broadcast(&of.comm, (sum_view, sum_view), 0, of.on())
        });
        issued.expect("the group is put on the stream");
        of.comm.settle(LIMIT).expect("it is on the stream");
        of.drain();
        let got = (floats_of(&mass), floats_of(&sum));
        close(of);
        got
    });
    assert_eq!(results, vec![(vec![3.0], vec![1.0; 4]); 2]);
}

fn one_thread_forms_the_communicators_of_its_devices(bench: &Bench) {
    let devices = &bench.devices[..2];
    let comms = Comm::init_all(&bench.library, devices, LIMIT).expect("both are formed");
    comms.iter().for_each(|comm| comm.settle(LIMIT).expect("they are ready"));
    let streams: Vec<_> = devices.iter().map(|device| device.stream().expect("a stream")).collect();
    let memory: Vec<_> = devices
        .iter()
        .map(|device| {
            let mut memory = device.alloc(1, DataType::F32).expect("there is memory");
            memory.upload(&bytes_of(&[2.0])).expect("it fits");
            memory
        })
        .collect();
    let issued = bench.library.group(|group| {
        for ((comm, memory), stream) in comms.iter().zip(&memory).zip(&streams) {
            // SAFETY: the streams are drained before they are dropped.
            let stream = unsafe { stream.view() };
            group.all_reduce(comm, (view(memory), view(memory)), Reduction::Sum, stream)?;
        }
        Ok(())
    });
    issued.expect("the group is put on the streams");
    comms.iter().for_each(|comm| comm.settle(LIMIT).expect("it is on the streams"));
    streams.iter().for_each(drain);
    assert_eq!(memory.iter().map(floats_of).collect::<Vec<_>>(), [[4.0], [4.0]]);
    for comm in comms {
        assert_eq!(comm.abort(LIMIT), Ok(End::Aborted));
    }
}

fn a_world_of_one_is_a_world(bench: &Bench) {
    let results = ranks(bench, 1, |of| {
        let got = reduced(&of, &[3.0, 4.0], Reduction::PreMulSum(2.0));
        close(of);
        got
    });
    assert_eq!(results, [[6.0, 8.0]]);
}

fn a_split_has_the_ranks_of_one_color(bench: &Bench) {
    let results = ranks(bench, 2, |of| {
        let color = (of.rank == 1).then_some(3);
        let child = of.comm.split(color, Part { rank: 0, size: 1 }, LIMIT).expect("every rank comes");
        let of_child = child.as_ref().map(|child| (child.rank(), child.size()));
        if let Some(child) = child {
            child.settle(LIMIT).expect("it is ready");
            assert_eq!(child.close(LIMIT), Ok(End::Destroyed));
        }
        close(of);
        of_child
    });
    assert_eq!(results, [None, Some((0, 1))]);
}

fn survivors_shrink_around_a_dead_rank_in_the_middle_of_a_collective(bench: &Bench) {
    let results = ranks(bench, 3, |of| {
        let memory = of.memory(&[1.0]);
        if of.rank == 1 {
            // It never comes to the collective; its process would be dead.
            assert_eq!(of.comm.abort(LIMIT), Ok(End::Aborted));
            return None;
        }
        of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on()).expect("it begins");
        of.comm.settle(LIMIT).expect("it is on the stream");
        let fewer = of.comm.shrink(&[1], LIMIT).expect("the survivors come");
        fewer.settle(LIMIT).expect("it is ready");
        of.drain();
        assert_eq!(of.comm.abort(LIMIT), Ok(End::Aborted));
        let of = RankOf { comm: fewer, ..of };
        let place = (of.comm.rank(), of.comm.size());
        let sum = reduced(&of, &[of.rank as f32], Reduction::Sum);
        close(of);
        Some((place, sum))
    });
    assert_eq!(results, [Some(((0, 2), vec![2.0])), None, Some(((1, 2), vec![2.0]))]);
}

fn a_revoked_communicator_has_ended_its_work_and_takes_no_more(bench: &Bench) {
    if !bench.library.features().has(Capability::Revoke) {
        return common::skip("revoke: the library is older than 2.28.7");
    }
    ranks(bench, 2, |of| {
        let memory = of.memory(&[1.0]);
        if of.rank == 0 {
            of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on()).expect("it begins");
            of.comm.settle(LIMIT).expect("it is on the stream");
        }
        of.comm.revoke().expect("it begins");
        of.comm.settle(LIMIT).expect("nothing is in flight");
        of.drain();
        let again = of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on());
        assert!(matches!(again, Err(CallError::Failed { .. })), "{again:?}");
        assert_eq!(of.comm.close(LIMIT), Ok(End::Aborted), "what is revoked is not finalized");
    });
}

fn a_communicator_grows_by_a_new_rank(bench: &Bench) {
    if !bench.library.features().has(Capability::Grow) && !bench.is_stand_in {
        return common::skip("grow: the library is older than 2.29.2");
    }
    // The stand-in of every test is of an older version.
    let bench = if bench.is_stand_in { &stand_in::bench_of(Variant::New) } else { bench };
    let (give, take) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(move || {
            let id = take.recv().expect("somebody makes it");
            let device = bench.devices[2].clone();
            let stream = device.stream().expect("a stream");
            let comm = Comm::join(&bench.library, Place { id, rank: 2, size: 3 }, LIMIT).expect("it begins");
            comm.settle(LIMIT).expect("every rank comes");
            let of = RankOf { rank: 2, comm, stream, device };
            let sum = reduced(&of, &[4.0], Reduction::Sum);
            close(of);
            sum
        });
        let give = std::sync::Mutex::new(give);
        let sums = ranks(bench, 2, |of| {
            let id = (of.rank == 0).then(|| of.comm.grow_id().expect("an id"));
            if let Some(id) = id {
                give.lock().expect("no panic").send(id).expect("it is waited for");
            }
            let smaller = of.comm.grow(id, 2, LIMIT).map(|comm| comm.rank());
            assert!(matches!(smaller, Err(CallError::Argument(_))), "{smaller:?}");
            let larger = of.comm.grow(id, 3, LIMIT).expect("the others come");
            larger.settle(LIMIT).expect("it is ready");
            assert_eq!(of.comm.abort(LIMIT), Ok(End::Aborted));
            let of = RankOf { comm: larger, ..of };
            assert_eq!((of.comm.rank(), of.comm.size()), (of.rank, 3), "members keep their ranks");
            let sum = reduced(&of, &[of.rank as f32 + 1.0], Reduction::Sum);
            close(of);
            sum
        });
        assert_eq!(sums, [[7.0], [7.0]]);
        assert_eq!(newcomer.join().expect("no panic"), [7.0]);
    });
}

fn an_abort_ends_a_collective_that_a_peer_never_joins(bench: &Bench) {
    ranks(bench, 2, |of| {
        let memory = of.memory(&[1.0; 1024]);
        if of.rank == 0 {
            of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on()).expect("it begins");
            of.comm.settle(LIMIT).expect("it is on the stream");
            assert!(!of.stream.is_idle().expect("askable"), "the peer has not come");
        }
        let handle = of.comm.abort_handle();
        let aborts: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| handle.abort(LIMIT))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(aborts, vec![Ok(End::Aborted); 3], "one aborts, the others hear of it");
        of.drain();
        let late = of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on());
        assert_eq!(late, Err(CallError::Ended(End::Aborted)));
        assert_eq!(of.comm.poll(), Err(CallError::Ended(End::Aborted)));
        assert_eq!(handle.end(), Some(End::Aborted));
    });
}

fn a_rank_that_never_comes_is_a_deadline_and_an_abort_ends_the_waiting(bench: &Bench) {
    let id = bench.library.unique_id().expect("an id");
    bench.devices[0].make_current().expect("a device");
    let comm = Comm::init_rank(&bench.library, Place { id, rank: 0, size: 2 }, LIMIT).expect("it begins");
    let limit = Duration::from_millis(50);
    assert_eq!(comm.settle(limit), Err(CallError::Deadline { limit }));
    assert_eq!(comm.abort(LIMIT), Ok(End::Aborted));
}

fn arguments_that_contradict_each_other_never_reach_the_library(bench: &Bench) {
    let id = bench.library.unique_id().expect("an id");
    let outside = Comm::init_rank(&bench.library, Place { id, rank: 2, size: 2 }, LIMIT).map(|comm| comm.rank());
    assert_eq!(outside, Err(CallError::Argument("rank 2 is not one of 2: ranks count from 0".to_owned())));
    ranks(bench, 1, |of| {
        let (short, long) = (of.memory(&[1.0]), of.memory(&[1.0, 2.0]));
        let unequal = of.comm.all_reduce(view(&short), view(&long), Reduction::Sum, of.on());
        assert!(matches!(unequal, Err(CallError::Argument(_))), "{unequal:?}");
        let root = of.comm.broadcast(view(&short), view(&short), 1, of.on());
        assert_eq!(root, Err(CallError::Argument("rank 1 is not one of 1".to_owned())));
        let integers = of.device.alloc(1, DataType::I64).expect("there is memory");
        let scaled = of.comm.all_reduce(view(&integers), view(&integers), Reduction::PreMulSum(0.5), of.on());
        assert!(matches!(scaled, Err(CallError::Argument(_))), "{scaled:?}");
        assert!(of.comm.shrink(&[0], LIMIT).is_err(), "nobody shrinks itself away");
        close(of);
    });
}

/// One rank of a world of one on the stand-in, with a fault.
fn with_fault<T: Send>(fault: Fault, body: impl Fn(RankOf) -> T + Sync) -> T {
    let bench: Bench = stand_in::bench();
    let id = bench.library.unique_id().expect("an id");
    stand_in::ask(id, 0, fault);
    ranks_of(&bench, id, 1, body).remove(0)
}

#[test]
fn a_code_of_a_newer_library_is_an_error_and_neither_success_nor_progress() {
    for (code, expected) in [(8, ErrorCode::Timeout), (9, ErrorCode::Unknown(9)), (-4, ErrorCode::Unknown(-4))] {
        with_fault(Fault::FailAt(0, code), |of| {
            let memory = of.memory(&[1.0]);
            let failed = of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on());
            let detail = "the stand-in's last error".to_owned();
            assert_eq!(failed, Err(CallError::Failed { call: "ncclAllReduce", code: expected, detail }));
        });
    }
}

#[test]
fn an_error_that_comes_to_light_late_is_seen_by_polling() {
    with_fault(Fault::LateError(0, 6), |of| {
        let memory = of.memory(&[1.0]);
        of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on()).expect("it is put on the stream");
        of.drain();
        assert_eq!(floats_of(&memory), [1.0], "the collective itself went well");
        let polled = of.comm.poll();
        assert!(matches!(polled, Err(CallError::Failed { code: ErrorCode::Remote, .. })), "{polled:?}");
        let seen_by_watchdog = of.comm.abort_handle().poll(LIMIT);
        assert_eq!(seen_by_watchdog, polled);
        assert_eq!(of.comm.abort(LIMIT), Ok(End::Aborted));
    });
}

#[test]
fn an_abort_that_never_returns_is_hopeless_within_its_deadline() {
    with_fault(Fault::AbortHangs, |of| {
        let handle = of.comm.abort_handle();
        let limit = Duration::from_millis(60);
        let error = handle.abort(limit);
        assert_eq!(error, Err(EndError::LibraryHangs { limit }));
        assert!(error.is_err_and(|error| error.is_hopeless()));
        assert_eq!(handle.end(), Some(End::Ending));
        assert_eq!(of.comm.poll(), Err(CallError::Ended(End::Ending)), "nobody touches what is being freed");
        assert_eq!(handle.abort(limit), Err(EndError::LibraryHangs { limit }), "and nobody frees it twice");
    });
}

#[test]
fn an_abort_waits_for_the_call_that_is_inside_but_not_for_ever() {
    with_fault(Fault::BlockAt(0, 400), |of| {
        let memory = of.memory(&[1.0]);
        let handle = of.comm.abort_handle();
        let limit = Duration::from_millis(50);
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on()));
            std::thread::sleep(Duration::from_millis(100));
            assert_eq!(handle.abort(limit), Err(EndError::CallHangs { limit }));
            assert_eq!(handle.poll(limit), Err(CallError::Busy { waited: limit }));
            assert_eq!(handle.abort(LIMIT), Ok(End::Aborted), "it waits longer than the call takes");
            let issued = inside.join().expect("no panic");
            assert!(issued.is_ok(), "{issued:?}");
        });
        of.drain();
    });
}

/// A call beside the group would belong to it too, and nobody would hold its communicator until the group is closed.
#[test]
fn a_group_takes_no_calls_that_it_does_not_hold() {
    let bench = stand_in::bench();
    ranks(&bench, 1, |of| {
        let memory = of.memory(&[1.0]);
        let beside = |_: &mut flodl_nccl::Group<'_>| {
            let call = of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on());
            assert!(matches!(call, Err(CallError::Argument(_))), "{call:?}");
            let id = bench.library.unique_id().expect("an id");
            let begun = Comm::init_rank(&bench.library, Place { id, rank: 0, size: 1 }, LIMIT);
            assert!(matches!(begun, Err(CallError::Argument(_))), "{begun:?}");
            let nested = bench.library.group(|_| Ok(()));
            assert!(matches!(nested, Err(CallError::Argument(_))), "{nested:?}");
            Ok(())
        };
        bench.library.group(beside).expect("an empty group");
        assert_eq!(reduced(&of, &[2.0], Reduction::Sum), [2.0], "and after it they are taken again");
        close(of);
    });
}

#[test]
fn calls_are_refused_while_the_last_one_is_in_progress() {
    let bench = stand_in::bench();
    let id = bench.library.unique_id().expect("an id");
    stand_in::ask(id, 0, Fault::InitHangs);
    let device = &bench.devices[0];
    let comm = Comm::init_rank(&bench.library, Place { id, rank: 0, size: 1 }, LIMIT).expect("it begins");
    let (memory, stream) = (device.alloc(1, DataType::F32).expect("memory"), device.stream().expect("a stream"));
    // SAFETY: nothing is ever put on the stream.
    let on = unsafe { stream.view() };
    assert_eq!(comm.poll(), Ok(Progress::InProgress));
    let early = comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, on);
    assert_eq!(early, Err(CallError::InProgress));
    let grouped =
        bench.library.group(|group| group.all_reduce(&comm, (view(&memory), view(&memory)), Reduction::Sum, on));
    assert_eq!(grouped, Err(CallError::InProgress));
    assert_eq!(comm.close(LIMIT), Ok(End::Aborted), "what is not ready is not finalized");
}

#[test]
fn dropping_never_blocks_and_a_close_without_peers_aborts() {
    let bench = stand_in::bench();
    let id = bench.library.unique_id().expect("an id");
    stand_in::ask(id, 0, Fault::AbortHangs);
    let started = Instant::now();
    let ends = ranks_of(&bench, id, 2, |of| match of.rank {
        0 => {
            drop(of.comm);
            None
        }
        _ => Some(of.comm.close(Duration::from_millis(100))),
    });
    assert_eq!(ends, [None, Some(Ok(End::Aborted))]);
    assert!(started.elapsed() < LIMIT / 2, "{:?}", started.elapsed());
}

#[test]
fn a_library_is_asked_for_no_more_than_its_version_has() {
    let old = Library::open(&stand_in::candidate_of(Variant::Old)).expect("it is an NCCL");
    assert_eq!(old.version(), Version::new(2, 12, 12));
    let id = old.unique_id().expect("an id");
    let refused = Comm::init_rank(&old, Place { id, rank: 0, size: 1 }, LIMIT).map(|comm| comm.rank());
    let found = old.version();
    assert_eq!(refused, Err(CallError::Missing(MissingCapability { capability: Capability::NonBlocking, found })));
    ranks(&stand_in::bench(), 1, |of| {
        let found = Version::new(2, 28, 9);
        let missing = Err(CallError::Missing(MissingCapability { capability: Capability::Grow, found }));
        assert_eq!(of.comm.grow_id().map(|_| ()), missing);
        close(of);
    });
    let new = Library::open(&stand_in::candidate_of(Variant::New)).expect("it is an NCCL");
    assert!(new.features().has(Capability::SharedGpu));
    let broken = Library::open(&stand_in::candidate_of(Variant::Broken)).map(|library| library.version());
    assert_eq!(broken, Err(Unfit::NoFunction { symbol: "ncclCommAbort" }));
}
