//! A watchdog over the calls of a communicator, on the stand-in.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]

mod common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::stand_in::{self, Fault};
use common::{LIMIT, RankOf, ranks_of, view};
use flodl_nccl::session::{STUCK_EXIT, Watchdog};
use flodl_nccl::{End, Reduction};

/// Issues one all-reduce under a watchdog with this limit, on a library that takes `millis` for the call. Says which status
/// the process would have ended with while the call was inside, and how the communicator ended.
fn issue(millis: i32, limit: Duration) -> (Option<u8>, Option<End>) {
    let bench = stand_in::bench();
    let id = bench.library.unique_id().expect("an id");
    stand_in::ask(id, 0, Fault::BlockAt(0, millis));
    ranks_of(&bench, id, 1, |of: RankOf| {
        let (stuck, is_stuck) = channel();
        let watchdog = Watchdog::start(move |status| stuck.send(status).expect("somebody listens")).expect("a thread");
        let memory = of.memory(&[1.0]);
        let guard = watchdog.guard(of.comm.abort_handle(), limit);
        of.comm.all_reduce(view(&memory), view(&memory), Reduction::Sum, of.on()).expect("it comes back in the end");
        let status = is_stuck.try_recv().ok();
        drop(guard);
        // Time enough for a watchdog that would not let go.
        std::thread::sleep(limit * 3);
        let end = of.comm.end();
        if end.is_none() {
            of.comm.settle(LIMIT).expect("it is on the stream");
        }
        of.drain();
        (status, end)
    })
    .remove(0)
}

#[test]
fn a_call_that_comes_back_in_time_is_let_go() {
    assert_eq!(issue(20, Duration::from_millis(500)), (None, None));
}

#[test]
fn a_call_that_comes_back_late_ends_the_communicator_and_not_the_process() {
    let (status, end) = issue(600, Duration::from_millis(400));
    assert_eq!((status, end), (None, Some(End::Aborted)));
}

#[test]
fn a_call_that_does_not_come_back_ends_the_process() {
    let started = Instant::now();
    let (status, _) = issue(1500, Duration::from_millis(200));
    assert_eq!(status, Some(STUCK_EXIT));
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
}
