//! A watchdog over the calls of a communicator, on the stand-in.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]

mod common;

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::stand_in::{self, Fault};
use common::{LIMIT, RankOf, ranks_of, view};
use flodl_nccl::session::{
    Form, Generation, Input, Member, Moment, Patience, Replica, Round, Runner, STUCK_EXIT, Session, Tools, Watchdog,
};
use flodl_nccl::{CallError, Comm, End, Place, Reduction, UniqueId};

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

/// A replica without anything in it.
struct Nothing;

impl Replica for Nothing {
    fn copy(&mut self, _: Round) {}

    fn restore(&mut self, _: Round) {}

    fn release(&mut self, _: Round) {}

    fn issue(&mut self, _: Round, _: &Comm) -> Result<(), CallError> {
        Ok(())
    }

    fn is_idle(&mut self) -> Result<bool, CallError> {
        Ok(true)
    }
}

/// Lets a session of two ranks do something in which the library takes `millis`, with a limit of 200. Says which status the
/// process would have ended with while the library was at it.
fn session(fault: Fault, inputs: impl Fn(UniqueId) -> Vec<Input>) -> Option<u8> {
    let bench = stand_in::bench();
    let limit = Duration::from_millis(200);
    let (stuck, is_stuck) = channel();
    let watchdog = Watchdog::start(move |status| stuck.send(status).expect("somebody listens")).expect("a thread");
    let session = Session::new(member(0), Patience(Duration::from_secs(4)), bench.library.features());
    let tools = Tools { library: bench.library.clone(), watchdog, limit };
    let mut runner = Runner::new(session, tools, Nothing);
    let id = bench.library.unique_id().expect("an id");
    bench.devices[0].make_current().expect("a device");
    let peer = Comm::init_rank(&bench.library, Place { id, rank: 1, size: 2 }, LIMIT).expect("it begins");
    stand_in::ask(id, 0, fault);
    let started = Instant::now();
    for input in inputs(id) {
        runner.handle(input, Moment::at(started.elapsed()));
        let waits = Instant::now();
        while runner.next_deadline().is_some() && waits.elapsed() < LIMIT / 20 {
            runner.poll(Moment::at(started.elapsed()));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    drop(peer);
    is_stuck.try_recv().ok()
}

fn member(rank: u32) -> Member {
    Member { rank, incarnation: 0 }
}

#[test]
fn every_call_of_a_session_that_does_not_come_back_ends_the_process() {
    let form = |id| Input::NewSession {
        generation: Generation(1),
        form: Form::Fresh(id),
        members: vec![member(0), member(1)],
    };
    for (millis, expected) in [(0, None), (1500, Some(STUCK_EXIT))] {
        let made = session(Fault::IdBlocks(millis), |_| vec![Input::RequestId(Generation(1))]);
        assert_eq!(made, expected, "an id, {millis} ms");
        assert_eq!(session(Fault::InitBlocks(millis), |id| vec![form(id)]), expected, "forming, {millis} ms");
        let revoked = session(Fault::RevokeBlocks(millis), |id| vec![form(id), Input::Dead(member(1))]);
        assert_eq!(revoked, expected, "revoking, {millis} ms");
    }
}
