//! Whole sessions over the library: a coordinator and its ranks as threads, on the stand-in, and on GPUs where they are.
//!
//! Each rank's parameters are one vector that grows by the rank's own number in every window; a round averages them with
//! equal mass. What must hold is that all who are left have the same bits, and the right ones.

#![allow(unsafe_code, clippy::disallowed_methods, reason = "see tests/common")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use common::stand_in::{self, Fault};
use common::{Bench, LIMIT, bytes_of, floats_of, tests_on_each, view};
use flodl_nccl::session::{
    Form, Input, Member, Moment, Order, Outcome, Patience, Rendezvous, Replica, Report, Round, Runner, STUCK_EXIT,
    Said, Session, Stop, Tools, Watchdog, Why,
};
use flodl_nccl::{CallError, Capability, Comm, DataType, Device, Memory, Reduction, Stream};

/// Long enough for a busy machine.
const PATIENCE: Patience = Patience(Duration::from_secs(2));

/// For what is about outliving it.
const LITTLE: Patience = Patience(Duration::from_millis(400));
const LENGTH: usize = 100;

fn member(rank: u32) -> Member {
    Member { rank, incarnation: 0 }
}

/// A rank's parameters, with the copy of them beside.
struct Parameters {
    own: u32,
    members: u32,
    memory: Memory,
    stream: Stream,
    copy: Option<(Round, Vec<f32>)>,
    restored: Vec<Round>,
}

impl Parameters {
    fn new(rank: u32, device: &Device) -> Self {
        let mut memory = device.alloc(LENGTH, DataType::F32).expect("there is memory");
        memory.upload(&bytes_of(&[0.0; LENGTH])).expect("it fits");
        let stream = device.stream().expect("a stream");
        Self { own: rank, members: 1, memory, stream, copy: None, restored: Vec::new() }
    }
}

impl Replica for Parameters {
    fn copy(&mut self, round: Round) {
        // What a window of training does.
        let trained: Vec<f32> = floats_of(&self.memory).iter().map(|value| value + self.own as f32 + 1.0).collect();
        self.memory.upload(&bytes_of(&trained)).expect("it fits");
        self.copy = Some((round, trained));
    }

    fn restore(&mut self, round: Round) {
        let (of, values) = self.copy.as_ref().expect("there is a copy");
        assert_eq!(*of, round, "the copy is the round's");
        self.memory.upload(&bytes_of(values)).expect("it fits");
        self.restored.push(round);
    }

    fn release(&mut self, round: Round) {
        assert_eq!(self.copy.take().map(|(of, _)| of), Some(round));
    }

    fn issue(&mut self, _round: Round, comm: &Comm) -> Result<(), CallError> {
        self.members = comm.size();
        let reduction = Reduction::PreMulSum(1.0 / f64::from(comm.size()));
        // SAFETY: the stream lives as long as the replica, which waits for it before it is dropped.
        let stream = unsafe { self.stream.view() };
        comm.all_reduce(view(&self.memory), view(&self.memory), reduction, stream).map(|_| ())
    }

    fn is_idle(&mut self) -> Result<bool, CallError> {
        self.stream.is_idle().map_err(|error| CallError::Argument(error.to_string()))
    }
}

/// What happens to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lives,
    /// Its process dies when it is told to begin this round.
    DiesAt(u64),
    /// It leaves in order after this round.
    LeavesAfter(u64),
    /// The library does wrong in the first communicator.
    Suffers(Fault),
}

/// How a rank ended: its values, the rounds it did again, and the status its process would have.
#[derive(Debug, PartialEq)]
struct Ended {
    values: Vec<f32>,
    restored: Vec<Round>,
    status: Option<u8>,
}

enum Heard {
    Report(Report),
    ProcessEnded,
}

type ToCoordinator = Sender<(Member, Heard)>;

fn rank(
    bench: &Bench,
    (own, fate): (Member, Fate),
    patience: Patience,
    from: &Receiver<Input>,
    to: &ToCoordinator,
) -> Ended {
    let device = bench.devices[own.rank as usize % bench.devices.len()].clone();
    device.make_current().expect("a device");
    let started = Instant::now();
    let session = Session::new(own, patience, bench.library.features());
    let watchdog = Watchdog::start(|status| panic!("a call is stuck, and the process would end with {status}"));
    let tools =
        Tools { library: bench.library.clone(), watchdog: watchdog.expect("a thread"), limit: patience.ending() };
    let mut runner = Runner::new(session, tools, Parameters::new(own.rank, &device));
    let mut status = None;
    'life: loop {
        let now = || Moment::at(started.elapsed());
        match from.recv_timeout(Duration::from_micros(500)) {
            Ok(Input::SyncNow(round)) if fate == Fate::DiesAt(round.0) => break,
            Ok(mut input) => {
                if let (Fate::Suffers(fault), Input::NewSession { form: Form::Fresh(id), generation, .. }) =
                    (fate, &mut input)
                    && generation.0 == 1
                {
                    stand_in::ask(*id, own.rank as usize, fault);
                }
                runner.handle(input, now());
            }
            Err(RecvTimeoutError::Timeout) => runner.poll(now()),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        while let Some(outcome) = runner.poll_outcome() {
            match outcome {
                Outcome::Send(report) => drop(to.send((own, Heard::Report(report)))),
                Outcome::EndProcess(code) => {
                    status = Some(code);
                    break 'life;
                }
            }
        }
    }
    drop(to.send((own, Heard::ProcessEnded)));
    let replica = runner.replica();
    if status.is_none() && fate == Fate::Lives {
        common::drain(&replica.stream);
    }
    let ended = Ended { values: floats_of(&replica.memory), restored: replica.restored.clone(), status };
    if status.is_some() {
        // Nothing is freed any more where a process ends.
        std::mem::forget(runner);
    }
    ended
}

/// The coordinator of one run.
struct Coordinator {
    started: Instant,
    rendezvous: Rendezvous,
    ranks: BTreeMap<Member, Sender<Input>>,
    members: Vec<Member>,
    acked: BTreeSet<Member>,
    closed: BTreeSet<Member>,
    round: u64,
    rounds: u64,
    leaver: Option<(Member, u64)>,
    stop: Option<Stop>,
    whys: Vec<Why>,
}

impl Coordinator {
    fn now(&self) -> Moment {
        Moment::at(self.started.elapsed())
    }

    fn tell(&self, to: &Member, input: Input) {
        if let Some(to) = self.ranks.get(to) {
            // A rank that ended hears nothing any more.
            drop(to.send(input));
        }
    }

    fn tell_members(&self, input: &Input) {
        self.members.iter().for_each(|to| self.tell(to, input.clone()));
    }

    fn obey(&mut self) {
        while let Some(order) = self.rendezvous.poll_order() {
            match order {
                Order::RequestId(to, generation) => self.tell(&to, Input::RequestId(generation)),
                Order::NewSession { generation, form, members } => {
                    self.members.clear();
                    for to in &members {
                        let (form, members) = (form.clone(), members.clone());
                        self.tell(to, Input::NewSession { generation, form, members });
                    }
                }
                Order::Established(_, members) => {
                    self.members = members;
                    self.acked.clear();
                    self.tell_members(&Input::SyncNow(Round(self.round)));
                }
                Order::Drop(who) => self.gone(who),
                Order::Stop(why) => self.stop = Some(why),
            }
        }
    }

    fn gone(&mut self, who: Member) {
        self.ranks.remove(&who);
        self.members.retain(|member| *member != who);
        self.ranks.keys().for_each(|to| self.tell(to, Input::Dead(who)));
        let now = self.now();
        self.rendezvous.said(who, Said::Gone, now);
    }

    fn heard(&mut self, from: Member, report: Report) {
        let now = self.now();
        match report {
            Report::Id(generation, id) => self.rendezvous.said(from, Said::Id(generation, id), now),
            Report::Begun(generation) => self.rendezvous.said(from, Said::Begun(generation), now),
            Report::Formed(generation) => self.rendezvous.said(from, Said::Formed(generation), now),
            Report::NotFormed(generation, why) => {
                self.whys.push(why);
                self.rendezvous.said(from, Said::NotFormed(generation), now);
            }
            Report::NotDone(generation, _, why) | Report::Lost(generation, why) => {
                self.whys.push(why);
                if !matches!(why, Why::PeerDied(_)) {
                    self.rendezvous.said(from, Said::Lost(generation), now);
                }
            }
            Report::Acked(round) if round.0 == self.round => {
                self.acked.insert(from);
                if self.members.iter().all(|member| self.acked.contains(member)) {
                    self.done();
                }
            }
            Report::Closed(_) => {
                self.closed.insert(from);
                if self.members.iter().all(|member| self.closed.contains(member)) {
                    let leaver = self.leaver.take().map(|(leaver, _)| leaver);
                    self.rendezvous.begin(&[], leaver.as_slice(), now);
                    leaver.iter().for_each(|leaver| drop(self.ranks.remove(leaver)));
                }
            }
            Report::Acked(_) => {}
        }
    }

    fn done(&mut self) {
        self.tell_members(&Input::RoundDone(Round(self.round)));
        let leaves = self.leaver.is_some_and(|(_, round)| round == self.round);
        self.round += 1;
        self.acked.clear();
        if leaves {
            let first = flodl_nccl::session::Generation(1);
            self.tell_members(&Input::EndSession(first));
        } else if self.round < self.rounds {
            self.tell_members(&Input::SyncNow(Round(self.round)));
        }
    }

    fn run(&mut self, from: &Receiver<(Member, Heard)>) {
        self.obey();
        while self.round < self.rounds && self.stop.is_none() {
            assert!(self.started.elapsed() < LIMIT, "round {} is not done; {:?}", self.round, self.whys);
            match from.recv_timeout(Duration::from_millis(5)) {
                Ok((who, Heard::Report(report))) => self.heard(who, report),
                Ok((who, Heard::ProcessEnded)) => self.gone(who),
                Err(_) => self.rendezvous.tick(self.now()),
            }
            self.obey();
        }
        // Without a connection a rank ends.
        self.ranks.clear();
    }
}

/// How each rank ended, why the coordinator stopped, and what it was told of what went wrong.
type Told = (Vec<Ended>, Option<Stop>, Vec<Why>);

/// Runs ranks with these fates through some rounds.
fn run(bench: &Bench, fates: &[Fate], rounds: u64, may_shrink: bool) -> Told {
    run_with(bench, fates, rounds, may_shrink, PATIENCE)
}

fn run_with(bench: &Bench, fates: &[Fate], rounds: u64, may_shrink: bool, patience: Patience) -> Told {
    let (to_coordinator, from_ranks) = channel();
    let all: Vec<Member> = (0..).map(member).take(fates.len()).collect();
    std::thread::scope(|scope| {
        let mut coordinator = Coordinator {
            started: Instant::now(),
            rendezvous: Rendezvous::new(patience, may_shrink && bench.library.features().has(Capability::Shrink)),
            ranks: BTreeMap::new(),
            members: Vec::new(),
            acked: BTreeSet::new(),
            closed: BTreeSet::new(),
            round: 0,
            rounds,
            leaver: None,
            stop: None,
            whys: Vec::new(),
        };
        let threads: Vec<_> = all
            .iter()
            .zip(fates)
            .map(|(own, fate)| {
                let (to_rank, from_coordinator) = channel();
                coordinator.ranks.insert(*own, to_rank);
                if let Fate::LeavesAfter(round) = fate {
                    coordinator.leaver = Some((*own, *round));
                }
                let to = to_coordinator.clone();
                scope.spawn(move || rank(bench, (*own, *fate), patience, &from_coordinator, &to))
            })
            .collect();
        let now = coordinator.now();
        coordinator.rendezvous.begin(&all, &[], now);
        coordinator.run(&from_ranks);
        let ended = threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect();
        (ended, coordinator.stop, coordinator.whys)
    })
}

/// What everyone has after rounds of these ranks: each adds the average of their numbers.
fn after(rounds: &[&[u32]]) -> Vec<f32> {
    let step = |ranks: &&[u32]| {
        let share = 1.0 / ranks.len() as f32;
        ranks.iter().map(|rank| share * (*rank as f32 + 1.0)).sum::<f32>()
    };
    vec![rounds.iter().map(step).sum(); LENGTH]
}

fn close_to(values: &[f32], expected: &[f32]) {
    let differs = values.iter().zip(expected).any(|(a, b)| (a - b).abs() > 1e-4);
    assert!(!differs, "{:?} is not {:?}", &values[..2], &expected[..2]);
}

tests_on_each! {
    rounds_leave_all_ranks_bit_equal, 2;
    a_killed_rank_costs_the_survivors_one_round_done_again, 3;
    survivors_shrink_where_the_library_can, 3;
    a_planned_leave_closes_in_order, 3;
}

fn rounds_leave_all_ranks_bit_equal(bench: &Bench) {
    let (ended, stop, whys) = run(bench, &[Fate::Lives; 2], 5, true);
    assert_eq!((stop, whys), (None, vec![]));
    assert_eq!(ended[0], ended[1]);
    close_to(&ended[0].values, &after(&[[0, 1].as_slice(); 5]));
}

fn a_killed_rank_costs_the_survivors_one_round_done_again(bench: &Bench) {
    let (ended, stop, whys) = run(bench, &[Fate::Lives, Fate::DiesAt(2), Fate::Lives], 4, false);
    assert_eq!(stop, None);
    assert!(whys.contains(&Why::PeerDied(member(1))), "{whys:?}");
    assert_eq!(ended[0].values, ended[2].values);
    assert_eq!(ended[0].restored, [Round(2)]);
    let (all, left): (&[u32], &[u32]) = (&[0, 1, 2], &[0, 2]);
    close_to(&ended[0].values, &after(&[all, all, left, left]));
}

fn survivors_shrink_where_the_library_can(bench: &Bench) {
    let (ended, stop, _) = run(bench, &[Fate::DiesAt(1), Fate::Lives, Fate::Lives], 3, true);
    assert_eq!(stop, None);
    assert_eq!(ended[1].values, ended[2].values);
    assert_eq!(ended[1].restored, [Round(1)]);
    close_to(&ended[1].values, &after(&[&[0, 1, 2], &[1, 2], &[1, 2]]));
}

fn a_planned_leave_closes_in_order(bench: &Bench) {
    let (ended, stop, whys) = run(bench, &[Fate::Lives, Fate::Lives, Fate::LeavesAfter(1)], 4, true);
    assert_eq!((stop, whys), (None, vec![]), "nobody aborts, and nobody does a round again");
    assert_eq!(ended[0], ended[1]);
    assert_eq!(ended[0].restored, []);
    close_to(&ended[0].values, &after(&[&[0, 1, 2], &[0, 1, 2], &[0, 1], &[0, 1]]));
}

#[test]
fn an_error_of_one_ranks_library_is_a_new_session_of_all() {
    let bench = stand_in::bench();
    for fault in [Fault::FailAt(2, 3), Fault::LateError(1, 6), Fault::FailAt(0, 99)] {
        let (ended, stop, whys) = run(&bench, &[Fate::Suffers(fault), Fate::Lives], 4, true);
        assert_eq!(stop, None, "{fault:?}");
        assert!(whys.iter().any(|why| matches!(why, Why::Broken(_))), "{fault:?}: {whys:?}");
        assert_eq!(ended[0].values, ended[1].values, "{fault:?}");
        close_to(&ended[0].values, &after(&[[0, 1].as_slice(); 4]));
    }
}

#[test]
fn a_slow_peer_is_waited_for() {
    let bench = stand_in::bench();
    let slow = Fate::Suffers(Fault::Slow(600));
    let (ended, stop, whys) = run_with(&bench, &[Fate::Lives, slow], 3, true, LITTLE);
    assert_eq!(stop, None);
    assert!(!whys.contains(&Why::RoundTooLong), "slower than the patience is not dead: {whys:?}");
    assert_eq!(ended[0].values, ended[1].values);
}

#[test]
fn a_collective_that_never_ends_is_aborted_at_its_ceiling_and_done_again() {
    let bench = stand_in::bench();
    let (ended, stop, whys) = run_with(&bench, &[Fate::Lives, Fate::Suffers(Fault::HangAt(1))], 3, true, LITTLE);
    assert_eq!(stop, None);
    assert!(whys.contains(&Why::RoundTooLong), "{whys:?}");
    assert_eq!(ended[0].values, ended[1].values);
    close_to(&ended[0].values, &after(&[[0, 1].as_slice(); 3]));
}

#[test]
fn a_rank_whose_abort_never_returns_ends_its_process_and_the_others_go_on() {
    let bench = stand_in::bench();
    let stuck = Fate::Suffers(Fault::AbortHangs);
    let (ended, stop, _) = run(&bench, &[Fate::Lives, Fate::DiesAt(1), stuck, Fate::Lives], 3, false);
    assert_eq!(stop, None);
    assert_eq!(ended[2].status, Some(STUCK_EXIT));
    assert_eq!(ended[0].values, ended[3].values);
    close_to(&ended[0].values, &after(&[&[0, 1, 2, 3], &[0, 3], &[0, 3]]));
}

#[test]
fn a_rank_that_is_left_alone_is_told() {
    let bench = stand_in::bench();
    let (_, stop, _) = run(&bench, &[Fate::Lives, Fate::DiesAt(1)], 3, true);
    assert_eq!(stop, Some(Stop::Alone(member(0))));
}
