//! Sessions and the rendezvous together, on a model of NCCL in virtual time: ranks die, aborts get stuck, errors come up
//! and messages take their time; and each alone, on whatever inputs there are.
//!
//! What must hold: every round ends bit-equal at all who are left, and is the average of what its members had before it;
//! whatever happens, within bounded time either rounds are done or there is a reason to stop.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use flodl_nccl::session::{
    Effect, Form, Generation, Input, Member, Moment, Order, Patience, Rendezvous, Report, Round, STUCK_EXIT, Said,
    Session, Stop, Stopped, Why,
};
use flodl_nccl::{ErrorCode, Features, UniqueId, Version};
use proptest::prelude::*;

const PATIENCE: Patience = Patience(Duration::from_secs(10));
const ROUNDS: u64 = 4;

fn member(rank: u32) -> Member {
    Member { rank, incarnation: 0 }
}

/// What goes wrong, at a rank, some milliseconds after the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Dies,
    /// Its library reports an error.
    Breaks,
    /// From now on its aborts do not come back.
    AbortsHang,
    /// From now on its library makes no ids.
    MakesNoIds,
}

#[derive(Debug, Clone, PartialEq)]
enum Event {
    ToRank(Member, Input),
    ToCoordinator(Member, Report),
    /// The coordinator's control connection to a rank has ended.
    SeenDead(Member),
    Fault(Member, Fault),
    /// An abort comes back, which nothing else waits for.
    Back(Member, Generation, Stopped),
    /// A rank's deadline.
    Tick(Member),
    /// The coordinator's deadline.
    Wake,
}

/// A rank: its machine, its replica, and what the model of its library knows.
struct Rank {
    session: Session,
    value: f64,
    copy: Option<(Round, f64)>,
    in_round: Option<(Generation, Round)>,
    generation: Option<Generation>,
    is_alive: bool,
    aborts_hang: bool,
    makes_no_ids: bool,
    ended_with: Option<u8>,
}

/// A communicator in the model.
#[derive(Default)]
struct Group {
    members: Vec<Member>,
    begun: BTreeSet<Member>,
    issued: BTreeMap<Round, BTreeMap<Member, f64>>,
}

struct World {
    now: Duration,
    queue: BTreeMap<(Duration, u64), Event>,
    next: u64,
    ranks: BTreeMap<Member, Rank>,
    groups: BTreeMap<Generation, Group>,
    rendezvous: Rendezvous,
    round: Round,
    acked: BTreeSet<Member>,
    current: Option<(Generation, Vec<Member>)>,
    stop: Option<Stop>,
    /// What delays are drawn from.
    delay_seed: u64,
}

impl World {
    fn new(size: u32, version: Version, faults: &[(u32, u64, Fault)], delay_seed: u64) -> Self {
        let features = Features::of(version);
        let can_shrink = features.has(flodl_nccl::Capability::Shrink);
        let ranks = (0..size).map(|rank| {
            let rank_of = Rank {
                session: Session::new(member(rank), PATIENCE, features),
                value: f64::from(rank) + 1.0,
                copy: None,
                in_round: None,
                generation: None,
                is_alive: true,
                aborts_hang: false,
                makes_no_ids: false,
                ended_with: None,
            };
            (member(rank), rank_of)
        });
        let mut world = Self {
            now: Duration::ZERO,
            queue: BTreeMap::new(),
            next: 0,
            ranks: ranks.collect(),
            groups: BTreeMap::new(),
            rendezvous: Rendezvous::new(PATIENCE, can_shrink),
            round: Round(0),
            acked: BTreeSet::new(),
            current: None,
            stop: None,
            delay_seed,
        };
        for (rank, millis, fault) in faults {
            world.at(Duration::from_millis(*millis), Event::Fault(member(rank % size), *fault));
        }
        world.rendezvous.begin(&(0..size).map(member).collect::<Vec<_>>(), &[], Moment::at(Duration::ZERO));
        world.obey();
        world
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.next += 1;
        self.queue.insert((time, self.next), event);
    }

    /// Some milliseconds from now; connections keep their order, so each has its own last time.
    fn soon(&mut self, event: Event) {
        self.delay_seed =
            self.delay_seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let delay = Duration::from_millis(1 + (self.delay_seed >> 33) % 20);
        let same_way = |other: &Event| match (&event, other) {
            (Event::ToRank(to, _), Event::ToRank(other, _)) => to == other,
            (Event::ToCoordinator(from, _), Event::ToCoordinator(other, _)) => from == other,
            _ => false,
        };
        let last = self.queue.iter().filter(|(_, other)| same_way(other)).map(|((time, _), _)| *time).max();
        self.at(last.unwrap_or_default().max(self.now + delay), event);
    }

    /// Carries out what the rendezvous orders.
    fn obey(&mut self) {
        while let Some(order) = self.rendezvous.poll_order() {
            match order {
                Order::RequestId(to, generation) => self.soon(Event::ToRank(to, Input::RequestId(generation))),
                Order::NewSession { generation, form, members } => {
                    self.current = None;
                    for to in members.clone() {
                        let (form, members) = (form.clone(), members.clone());
                        self.soon(Event::ToRank(to, Input::NewSession { generation, form, members }));
                    }
                }
                Order::Established(generation, members) => {
                    self.acked.clear();
                    self.current = Some((generation, members.clone()));
                    for to in members {
                        self.soon(Event::ToRank(to, Input::SyncNow(self.round)));
                    }
                }
                Order::Drop(who) => {
                    self.kill(who);
                    self.declare_dead(who);
                }
                Order::Stop(why) => self.stop = Some(why),
            }
        }
        if let Some(until) = self.rendezvous.next_deadline() {
            self.at(until.since(Moment::default()).max(self.now), Event::Wake);
        }
    }

    fn declare_dead(&mut self, who: Member) {
        let alive: Vec<Member> = self.ranks.keys().copied().filter(|rank| *rank != who).collect();
        for to in alive {
            self.soon(Event::ToRank(to, Input::Dead(who)));
        }
    }

    fn kill(&mut self, who: Member) {
        self.ranks.get_mut(&who).expect("a rank").is_alive = false;
    }

    fn heard(&mut self, from: Member, report: Report) {
        let now = Moment::at(self.now);
        match report {
            Report::Id(generation, id) => self.rendezvous.said(from, Said::Id(generation, id), now),
            Report::Begun(generation) => self.rendezvous.said(from, Said::Begun(generation), now),
            Report::Formed(generation) => self.rendezvous.said(from, Said::Formed(generation), now),
            Report::NotFormed(generation, _) => self.rendezvous.said(from, Said::NotFormed(generation), now),
            // The coordinator said so itself.
            Report::NotDone(_, _, Why::PeerDied(_)) | Report::Lost(_, Why::PeerDied(_)) => {}
            Report::NotDone(generation, ..) | Report::Lost(generation, _) => {
                self.rendezvous.said(from, Said::Lost(generation), now);
            }
            Report::Acked(round) if round == self.round => {
                self.acked.insert(from);
                self.complete();
            }
            Report::Acked(_) | Report::Closed(_) => {}
        }
        self.obey();
    }

    /// The round is done once every member has said so.
    fn complete(&mut self) {
        let Some((_, members)) = self.current.clone() else { return };
        if !members.iter().all(|member| self.acked.contains(member)) {
            return;
        }
        let values: Vec<u64> = members.iter().map(|member| self.ranks[member].value.to_bits()).collect();
        assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "replicas differ after {:?}", self.round);
        let before = members.iter().map(|member| self.ranks[member].copy.expect("kept until the round counts").1);
        let mean = before.sum::<f64>() / members.len() as f64;
        assert_eq!(values[0], mean.to_bits(), "{:?} is not the average of what its members had", self.round);
        for to in &members {
            self.soon(Event::ToRank(*to, Input::RoundDone(self.round)));
        }
        self.round = Round(self.round.0 + 1);
        self.acked.clear();
        if self.round.0 < ROUNDS {
            for to in members {
                self.soon(Event::ToRank(to, Input::SyncNow(self.round)));
            }
        }
    }

    fn give(&mut self, to: Member, input: Input) {
        if !self.ranks[&to].is_alive {
            return;
        }
        let now = Moment::at(self.now);
        let rank = self.ranks.get_mut(&to).expect("a rank");
        if let Input::Formed(generation) = input {
            rank.generation = Some(generation);
        }
        rank.session.handle(input, now);
        let effects: Vec<Effect> = std::iter::from_fn(|| rank.session.poll_effect()).collect();
        let due = rank.session.next_deadline();
        for effect in effects {
            self.carry_out(to, effect);
        }
        if let Some(until) = due {
            self.at(until.since(Moment::default()).max(self.now), Event::Tick(to));
        }
    }

    fn carry_out(&mut self, who: Member, effect: Effect) {
        let rank = self.ranks.get_mut(&who).expect("a rank");
        match effect {
            Effect::MakeId(generation) => {
                let made = (!rank.makes_no_ids).then(|| UniqueId::from_bytes([1; UniqueId::BYTES]));
                self.soon(Event::ToRank(who, Input::IdMade(generation, made)));
            }
            Effect::Form { generation, form, place, size, .. } => {
                if let Form::Shrink { gone } = &form {
                    let old = &self.groups[&rank.generation.expect("something to shrink")];
                    let left = old.members.len() - gone.len();
                    assert_eq!(left, size as usize, "who is left of the old one is in the new one");
                }
                rank.in_round = None;
                let group = self.groups.entry(generation).or_default();
                group.begun.insert(who);
                group.members.resize(size as usize, who);
                group.members[place as usize] = who;
                let members = group.members.clone();
                let all_alive = members.iter().all(|member| self.ranks[member].is_alive);
                if self.groups[&generation].begun.len() == size as usize && all_alive {
                    members.into_iter().for_each(|to| self.soon(Event::ToRank(to, Input::Formed(generation))));
                }
            }
            Effect::Copy(round) => {
                assert!(rank.copy.is_none_or(|(of, _)| of < round), "a copy is overwritten");
                // What a rank trained since the last round.
                rank.value += f64::from(who.rank) + 0.5;
                rank.copy = Some((round, rank.value));
            }
            Effect::Restore(round) => {
                let (of, value) = rank.copy.expect("there is a copy");
                assert_eq!(of, round);
                rank.value = value;
            }
            Effect::Issue(round) => {
                let generation = rank.generation.expect("a communicator");
                rank.in_round = Some((generation, round));
                let (value, group) = (rank.value, self.groups.get_mut(&generation).expect("it was formed"));
                let issued = group.issued.entry(round).or_default();
                assert!(issued.insert(who, value).is_none(), "issued twice on one communicator");
                self.reduce(generation, round);
            }
            Effect::Release(round) => assert_eq!(rank.copy.take().map(|(of, _)| of), Some(round)),
            Effect::Abort(generation, limit) => {
                let hangs = rank.aborts_hang;
                rank.generation = None;
                rank.in_round = None;
                let how = if hangs { Stopped::Stuck } else { Stopped::Ended };
                let wait = if hangs { limit } else { Duration::from_millis(5) };
                self.at(self.now + wait, Event::Back(who, generation, how));
            }
            Effect::Revoke(generation, _) => {
                rank.in_round = None;
                self.soon(Event::ToRank(who, Input::Stopped(generation, Stopped::Revoked)));
            }
            Effect::Close(generation, _) => {
                rank.generation = None;
                self.soon(Event::ToRank(who, Input::Stopped(generation, Stopped::Ended)));
            }
            Effect::Send(report) => self.soon(Event::ToCoordinator(who, report)),
            Effect::EndProcess(status) => {
                rank.ended_with = Some(status);
                self.kill(who);
                self.soon(Event::SeenDead(who));
            }
        }
    }

    /// A collective is done where every member has issued it, and is still in it.
    fn reduce(&mut self, generation: Generation, round: Round) {
        let group = &self.groups[&generation];
        let issued = &group.issued[&round];
        let is_in = |member: &Member| {
            let rank = &self.ranks[member];
            rank.is_alive && rank.in_round == Some((generation, round))
        };
        if issued.len() < group.members.len() || !group.members.iter().all(is_in) {
            return;
        }
        let mean = issued.values().sum::<f64>() / issued.len() as f64;
        for to in group.members.clone() {
            let rank = self.ranks.get_mut(&to).expect("a rank");
            rank.value = mean;
            rank.in_round = None;
            self.soon(Event::ToRank(to, Input::Collected(round)));
        }
    }

    fn step(&mut self) -> bool {
        let Some(((time, _), event)) = self.queue.pop_first() else { return false };
        self.now = time;
        match event {
            Event::ToRank(to, input) => self.give(to, input),
            Event::ToCoordinator(from, report) => self.heard(from, report),
            Event::Back(rank, generation, how) => self.give(rank, Input::Stopped(generation, how)),
            Event::Tick(rank) => self.give(rank, Input::Tick),
            Event::SeenDead(who) => {
                self.declare_dead(who);
                self.rendezvous.said(who, Said::Gone, Moment::at(self.now));
                self.current = self.current.take().filter(|(_, members)| !members.contains(&who));
                self.obey();
            }
            Event::Wake => {
                self.rendezvous.tick(Moment::at(self.now));
                self.obey();
            }
            Event::Fault(who, fault) => {
                let rank = self.ranks.get_mut(&who).expect("a rank");
                match fault {
                    Fault::Dies if rank.is_alive => {
                        self.kill(who);
                        self.soon(Event::SeenDead(who));
                    }
                    Fault::Dies => {}
                    Fault::Breaks => self.give(who, Input::Broken(ErrorCode::Remote)),
                    Fault::AbortsHang => rank.aborts_hang = true,
                    Fault::MakesNoIds => rank.makes_no_ids = true,
                }
            }
        }
        true
    }

    fn run(&mut self) {
        let limit = Duration::from_secs(3600);
        while self.round.0 < ROUNDS && self.stop.is_none() {
            assert!(self.step(), "nothing will happen any more, in {:?} at {:?}", self.round, self.now);
            assert!(self.now < limit, "{:?} is not done after {:?}", self.round, self.now);
        }
    }
}

fn faults() -> impl Strategy<Value = Vec<(u32, u64, Fault)>> {
    let fault = prop_oneof![
        4 => Just(Fault::Dies),
        3 => Just(Fault::Breaks),
        1 => Just(Fault::AbortsHang),
        1 => Just(Fault::MakesNoIds),
    ];
    prop::collection::vec((0_u32..6, 0_u64..400, fault), 0..6)
}

fn versions() -> impl Strategy<Value = Version> {
    prop_oneof![Just(Version::new(2, 18, 5)), Just(Version::new(2, 27, 3)), Just(Version::new(2, 28, 9))]
}

/// Cases of a property; what fails is printed, and no file is left behind.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn rounds_are_done_bit_equal_or_there_is_a_reason_to_stop(
        size in 2_u32..6,
        version in versions(),
        faults in faults(),
        seed in any::<u64>(),
    ) {
        let mut world = World::new(size, version, &faults, seed);
        world.run();
        let alive = world.ranks.values().filter(|rank| rank.is_alive).count();
        match world.stop {
            None => prop_assert_eq!(world.round, Round(ROUNDS)),
            Some(Stop::Alone(_)) => prop_assert!(alive <= 1),
            Some(Stop::Nobody) => prop_assert_eq!(alive, 0),
            Some(Stop::NoId) => prop_assert!(faults.iter().any(|(_, _, fault)| *fault == Fault::MakesNoIds)),
            // Three attempts are made, and each needs a fault of its own to fail.
            Some(Stop::NeverForms) => {
                prop_assert!(faults.iter().filter(|(_, _, fault)| *fault == Fault::Breaks).count() >= 3);
            }
        }
        for rank in world.ranks.values() {
            if let Some(status) = rank.ended_with {
                prop_assert_eq!(status, STUCK_EXIT);
                prop_assert!(rank.aborts_hang, "a process is ended although its abort came back");
            }
        }
    }
}

fn inputs() -> impl Strategy<Value = Vec<(Input, u64)>> {
    let id = UniqueId::from_bytes([2; UniqueId::BYTES]);
    let members = prop::collection::vec((0_u32..3).prop_map(member), 1..4).prop_map(|mut members| {
        members.sort();
        members.dedup();
        members
    });
    let form = prop_oneof![3 => Just(Form::Fresh(id)), 1 => Just(Form::Shrink { gone: vec![1] })];
    let generation = || (1_u64..4).prop_map(Generation);
    let round = || (0_u64..3).prop_map(Round);
    let stopped = prop_oneof![4 => Just(Stopped::Ended), 2 => Just(Stopped::Revoked), 1 => Just(Stopped::Stuck)];
    let input = prop_oneof![
        generation().prop_map(Input::RequestId),
        (generation(), form, members).prop_map(|(generation, form, members)| Input::NewSession {
            generation,
            form,
            members
        }),
        generation().prop_map(Input::Formed),
        round().prop_map(Input::SyncNow),
        round().prop_map(Input::Collected),
        round().prop_map(Input::RoundDone),
        Just(Input::Broken(ErrorCode::Internal)),
        (0_u32..4).prop_map(|rank| Input::Dead(member(rank))),
        Just(Input::CoordinatorLost),
        Just(Input::CoordinatorBack),
        generation().prop_map(Input::EndSession),
        (generation(), stopped).prop_map(|(generation, how)| Input::Stopped(generation, how)),
        Just(Input::Tick),
    ];
    prop::collection::vec((input, 0_u64..8_000), 0..60)
}

/// Checks one rank's effects for what must hold of any: one end a communicator, copies before what overwrites them.
#[derive(Default)]
struct Checker {
    formed: Option<Generation>,
    ending: BTreeSet<Generation>,
    revoking: Option<Generation>,
    copy: Option<Round>,
    is_prepared: Option<Round>,
    has_ended: bool,
}

impl Checker {
    /// A revocation that fails ends in an abort, which is said of it.
    fn hears(&mut self, input: &Input) {
        if let Input::Stopped(generation, how) = input
            && self.revoking == Some(*generation)
        {
            self.revoking = None;
            self.formed = self.formed.filter(|_| *how != Stopped::Ended);
        }
    }

    fn check(&mut self, effect: &Effect) -> Result<(), TestCaseError> {
        prop_assert!(!self.has_ended, "{:?} after the end of the process", effect);
        match effect {
            Effect::Form { generation, form, place, size, .. } => {
                prop_assert!(place < size);
                let is_free = self.formed.is_none() || matches!(form, Form::Shrink { .. });
                prop_assert!(is_free, "two communicators at once");
                self.formed = Some(*generation);
                self.ending.remove(generation);
            }
            Effect::Copy(round) => {
                prop_assert_ne!(self.copy, Some(*round), "what is kept is overwritten");
                (self.copy, self.is_prepared) = (Some(*round), Some(*round));
            }
            Effect::Restore(round) => {
                prop_assert_eq!(self.copy, Some(*round));
                self.is_prepared = Some(*round);
            }
            Effect::Issue(round) => {
                prop_assert_eq!(self.is_prepared.take(), Some(*round));
                prop_assert!(self.formed.is_some_and(|formed| !self.ending.contains(&formed)), "no communicator");
            }
            Effect::Release(round) => prop_assert_eq!(self.copy.take(), Some(*round)),
            Effect::Abort(generation, _) | Effect::Close(generation, _) => {
                prop_assert!(self.formed.take() == Some(*generation) || !self.ending.insert(*generation));
                self.ending.insert(*generation);
            }
            Effect::Revoke(generation, _) => {
                prop_assert_eq!(self.formed, Some(*generation));
                self.revoking = Some(*generation);
            }
            Effect::EndProcess(status) => {
                prop_assert_eq!(*status, STUCK_EXIT);
                self.has_ended = true;
            }
            Effect::MakeId(_) | Effect::Send(_) => {}
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn whatever_a_rank_hears_it_keeps_its_copies_and_ends_each_communicator_once(
        inputs in inputs(),
        version in versions(),
    ) {
        let mut session = Session::new(member(0), PATIENCE, Features::of(version));
        let (mut checker, mut now) = (Checker::default(), Duration::ZERO);
        let drain = |session: &mut Session, checker: &mut Checker| {
            let effects: VecDeque<Effect> = std::iter::from_fn(|| session.poll_effect()).collect();
            effects.iter().try_for_each(|effect| checker.check(effect))
        };
        for (input, millis) in inputs {
            now += Duration::from_millis(millis);
            checker.hears(&input);
            session.handle(input, Moment::at(now));
            drain(&mut session, &mut checker)?;
        }
        // Left alone it comes to rest, by its deadlines alone.
        for _ in 0..8 {
            let Some(until) = session.next_deadline() else { break };
            now = now.max(until.since(Moment::default()));
            session.handle(Input::Tick, Moment::at(now));
            drain(&mut session, &mut checker)?;
        }
        prop_assert_eq!(session.next_deadline(), None);
    }
}
