//! Threads that enqueue, poll, abort and close one communicator at the same time, a thousand times over.
//!
//! What would be a use after free or a double free in the real library ends the process in the stand-in, which never
//! gives a handle out twice; what would be a deadlock runs into a deadline.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]

mod common;

use std::sync::Barrier;
use std::time::Duration;

use common::{LIMIT, RankOf, ranks, stand_in, view};
use flodl_nccl::{CallError, End, Reduction};

const RACES: u32 = 1000;

/// A pause that differs from race to race and thread to thread, so that every order comes up.
fn stagger(race: u32, thread: u32) {
    let mixed = (race.wrapping_mul(0x9e37_79b9) ^ thread.wrapping_mul(0x85eb_ca6b)).rotate_left(13) % 400;
    if !mixed.is_multiple_of(3) {
        std::thread::sleep(Duration::from_micros(u64::from(mixed)));
    }
}

/// Enqueues until the communicator has ended under it.
fn enqueue_until_ended(of: &RankOf) -> u32 {
    let memory = of.memory(&[1.0; 16]);
    let mut issued = 0;
    loop {
        match of.comm.all_reduce(view(&memory), view(&memory), Reduction::PreMulSum(0.5), of.on()) {
            Ok(_) => issued += 1,
            Err(CallError::InProgress | CallError::Busy { .. }) => std::thread::yield_now(),
            Err(CallError::Ended(_)) => break,
            Err(other) => panic!("enqueueing: {other}"),
        }
    }
    // The memory may be freed once the abort is over, and not when it has begun.
    assert_eq!(of.comm.wait_for_end(LIMIT), Some(End::Aborted));
    of.drain();
    issued
}

#[test]
fn a_thousand_races_of_abort_and_enqueue() {
    let bench = stand_in::bench();
    let mut issued = 0;
    for race in 0..RACES {
        let counts = ranks(&bench, 1, |of| {
            let barrier = Barrier::new(4);
            let handle = of.comm.abort_handle();
            std::thread::scope(|scope| {
                let enqueuing = scope.spawn(|| {
                    barrier.wait();
                    enqueue_until_ended(&of)
                });
                let polling = scope.spawn(|| {
                    barrier.wait();
                    while handle.end().is_none() {
                        match handle.poll(LIMIT) {
                            Ok(_) | Err(CallError::Ended(_)) => std::thread::yield_now(),
                            Err(other) => panic!("polling: {other}"),
                        }
                    }
                });
                let aborting: Vec<_> = (0..2)
                    .map(|thread| {
                        let (barrier, handle) = (&barrier, &handle);
                        scope.spawn(move || {
                            barrier.wait();
                            stagger(race, thread);
                            handle.abort(LIMIT)
                        })
                    })
                    .collect();
                for abort in aborting {
                    assert_eq!(abort.join().expect("no panic"), Ok(End::Aborted));
                }
                polling.join().expect("no panic");
                enqueuing.join().expect("no panic")
            })
        });
        issued += counts[0];
    }
    assert!(issued > RACES / 4, "the threads hardly ever met: {issued} collectives in {RACES} races");
}

#[test]
fn exactly_one_of_close_and_abort_ends_it() {
    let bench = stand_in::bench();
    for race in 0..200 {
        let results = ranks(&bench, 1, |of| {
            let handle = of.comm.abort_handle();
            let RankOf { comm, .. } = of;
            std::thread::scope(|scope| {
                let aborting = scope.spawn(|| {
                    stagger(race, 1);
                    handle.abort(LIMIT)
                });
                stagger(race, 2);
                let closed = comm.close(LIMIT);
                assert_eq!(aborting.join().expect("no panic"), closed, "both hear of one end");
                closed
            })
        });
        match &results[0] {
            Ok(End::Aborted | End::Destroyed) => {}
            other => panic!("{other:?}"),
        }
    }
}
