//! The coordinator of ranks in processes: the crate's rendezvous, and one round after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use flodl_nccl::session::{
    Form, Generation, Member, Moment, Order as Rendezvoused, Patience, Rendezvous, Said as Hears,
};

use super::PATIENCE;
use super::cluster::Seat;
use super::word::{Order, Said};

/// How long a whole run may take.
const LIMIT: Duration = Duration::from_secs(90);

/// What happens to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Lives,
    /// It dies where it should begin this round.
    DiesAt(u64),
    /// It leaves in order after this round.
    LeavesAfter(u64),
    /// The stand-in does wrong in its process (`STAND_IN_FAULTS`).
    Suffers(&'static str),
}

enum Heard {
    Said(Said),
    Ended,
}

/// One rank's process.
struct Process {
    child: Child,
    pipe: Option<ChildStdin>,
    fate: Fate,
}

/// A run of ranks in processes.
pub struct Run {
    started: Instant,
    rendezvous: Rendezvous,
    processes: BTreeMap<Member, Process>,
    heard: Receiver<(Member, Heard)>,
    members: Vec<Member>,
    generation: Generation,
    acked: BTreeMap<Member, (u64, f32)>,
    closed: BTreeSet<Member>,
    losses: usize,
}

impl Run {
    /// Starts a process for each rank.
    pub fn start(seats: &[Seat], fates: &[Fate]) -> Run {
        let (to, heard) = channel();
        let mut processes = BTreeMap::new();
        for (rank, (seat, fate)) in (0..).zip(seats.iter().zip(fates)) {
            let who = Member { rank, incarnation: 0 };
            let mut command = seat.command(rank);
            if let Fate::Suffers(faults) = fate {
                command.env("STAND_IN_FAULTS", faults);
            }
            let mut child = command.spawn().expect("a rank can be started");
            let pipe = child.stdin.take();
            listen(who, &mut child, to.clone());
            processes.insert(who, Process { child, pipe, fate: *fate });
        }
        Run {
            started: Instant::now(),
            rendezvous: Rendezvous::new(Patience(PATIENCE), false),
            processes,
            heard,
            members: Vec::new(),
            generation: Generation(0),
            acked: BTreeMap::new(),
            closed: BTreeSet::new(),
            losses: 0,
        }
    }

    /// How often a rank said that it has lost a communicator.
    pub fn losses(&self) -> usize {
        self.losses
    }

    /// Ends all ranks, and says with what they ended.
    pub fn statuses(&mut self) -> Vec<Option<i32>> {
        let who: Vec<Member> = self.processes.keys().copied().collect();
        who.iter().for_each(|who| self.tell(who, &Order::End));
        self.processes.values_mut().map(|process| process.child.wait().expect("it ended").code()).collect()
    }

    /// Goes through so many rounds, the first of which all take from the lowest rank. Says what every rank has at the end.
    pub fn rounds(&mut self, rounds: u64, batches: impl Fn(u32, u64) -> u32) -> f32 {
        let all: Vec<Member> = self.processes.keys().copied().collect();
        self.rendezvous.begin(&all, &[], self.now());
        let mut value = 0.0;
        for round in 0..rounds {
            self.wait("a communicator", |run| !run.members.is_empty());
            if round > 0 {
                for who in self.members.clone() {
                    self.tell(&who, &Order::Train(batches(who.rank, round)));
                }
            }
            value = self.round(round);
            self.leave_after(round);
        }
        value
    }

    /// One round, on as many communicators as it takes.
    fn round(&mut self, round: u64) -> f32 {
        loop {
            self.wait("a communicator", |run| !run.members.is_empty());
            let on = self.generation;
            self.acked.clear();
            for who in self.members.clone() {
                let dies = self.processes[&who].fate == Fate::DiesAt(round);
                self.tell(&who, &if dies { Order::Die } else { Order::Sync(round, (round == 0).then_some(0)) });
            }
            let is_over = |run: &Run| run.generation != on || run.members.iter().all(|who| run.acked.contains_key(who));
            self.wait("a round", |run| run.members.is_empty() || is_over(run));
            if self.generation == on && !self.members.is_empty() {
                break;
            }
        }
        let results: Vec<(u64, f32)> = self.acked.values().copied().collect();
        let is_same = |result: &(u64, f32)| result.0 == results[0].0 && result.1.to_bits() == results[0].1.to_bits();
        assert!(results.iter().all(is_same), "round {round}: {results:?}");
        for who in self.members.clone() {
            self.tell(&who, &Order::Done(round));
        }
        results[0].1
    }

    fn leave_after(&mut self, round: u64) {
        let leaves = |(who, process): (&Member, &Process)| (process.fate == Fate::LeavesAfter(round)).then_some(*who);
        let Some(leaver) = self.processes.iter().find_map(leaves) else { return };
        let members = self.members.clone();
        members.iter().for_each(|who| self.tell(who, &Order::Close(self.generation)));
        self.wait("the end of a communicator", |run| members.iter().all(|who| run.closed.contains(who)));
        self.members.clear();
        self.tell(&leaver, &Order::End);
        self.rendezvous.begin(&[], &[leaver], self.now());
    }

    fn now(&self) -> Moment {
        Moment::at(self.started.elapsed())
    }

    fn tell(&mut self, who: &Member, order: &Order) {
        let pipe = self.processes.get_mut(who).and_then(|process| process.pipe.as_mut());
        // One that ended hears nothing any more.
        drop(pipe.map(|pipe| writeln!(pipe, "{}", order.line()).and_then(|()| pipe.flush())));
    }

    fn wait(&mut self, what: &str, is_so: impl Fn(&Run) -> bool) {
        self.obey();
        while !is_so(self) {
            assert!(self.started.elapsed() < LIMIT, "there is no end of waiting for {what}");
            match self.heard.recv_timeout(Duration::from_millis(5)) {
                Ok((who, Heard::Said(said))) => self.heard(who, said),
                Ok((who, Heard::Ended)) => self.gone(who),
                Err(_) => {
                    let now = self.now();
                    self.rendezvous.tick(now);
                }
            }
            self.obey();
        }
    }

    fn heard(&mut self, who: Member, said: Said) {
        let now = self.now();
        let hears = match said {
            Said::Id(of, id) => Hears::Id(of, id),
            Said::Begun(of) => Hears::Begun(of),
            Said::Formed(of) => Hears::Formed(of),
            Said::Lost(of, _) => {
                self.losses += 1;
                if self.generation == of {
                    self.members.clear();
                }
                // Of an attempt that is going on it says that it comes to nothing; of a communicator that there was, that it
                // is lost.
                self.rendezvous.said(who, Hears::NotFormed(of), now);
                Hears::Lost(of)
            }
            Said::Acked(_, digest, first) => {
                self.acked.insert(who, (digest, first));
                return;
            }
            Said::Closed(_) => {
                self.closed.insert(who);
                return;
            }
        };
        self.rendezvous.said(who, hears, now);
    }

    fn gone(&mut self, who: Member) {
        let was_member = self.members.contains(&who);
        let others: Vec<Member> = self.processes.keys().copied().filter(|other| *other != who).collect();
        others.iter().for_each(|other| self.tell(other, &Order::Dead(who)));
        if was_member {
            self.members.clear();
        }
        let now = self.now();
        self.rendezvous.said(who, Hears::Gone, now);
    }

    fn obey(&mut self) {
        while let Some(order) = self.rendezvous.poll_order() {
            match order {
                Rendezvoused::RequestId(who, of) => self.tell(&who, &Order::Id(of)),
                Rendezvoused::NewSession { generation, form: Form::Fresh(id), members } => {
                    let order = Order::Form(generation, id, members.clone());
                    members.iter().for_each(|who| self.tell(who, &order));
                }
                Rendezvoused::Established(generation, members) => {
                    (self.generation, self.members) = (generation, members)
                }
                Rendezvoused::Drop(who) => panic!("{who} did not begin"),
                Rendezvoused::NewSession { .. } | Rendezvoused::Stop(_) => panic!("{order:?}"),
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for process in self.processes.values_mut() {
            process.pipe = None;
            let until = Instant::now() + PATIENCE * 2;
            while process.child.try_wait().is_ok_and(|status| status.is_none()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            let ended = process.child.try_wait().ok().flatten();
            if ended.is_none() {
                drop(process.child.kill());
                drop(process.child.wait());
            }
        }
    }
}

/// Makes news of what a rank's process says, and of its end.
fn listen(who: Member, child: &mut Child, to: Sender<(Member, Heard)>) {
    let out = child.stdout.take().expect("it was asked for");
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if let Some(said) = Said::of(&line) {
                drop(to.send((who, Heard::Said(said))));
            }
        }
        drop(to.send((who, Heard::Ended)));
    });
}
