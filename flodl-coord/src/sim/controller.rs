//! The controller's process: the production coordinator and root, and around them what the shell does.

use super::auditor::Auditor;
use super::fabric::{Event, Fabric};
use super::mutant::{Mutant, unprotected};
use super::net::{ConnId, Lane, Node, Packet};
use super::rounding;
use super::succession::Paper;
use super::violation::Rule;
use crate::journal::{Entry, Image, Journal, Restored, Start};
use crate::shell::edge;
use crate::shell::limits::{CONTROL_QUEUE, PARTING};
use crate::{Config, Coordinator, Input, Membership, Output, SaveRequest, Slowing};
use core::num::NonZeroU32;
use flodl_relay::root::{self, Root};
use flodl_wire::message::report::{Folded, FoldedPart};
use flodl_wire::message::{Control, Data};
use flodl_wire::{Frame, HostId, Incarnation, Rank, RunId, SessionId, Stream};
use std::collections::{BTreeMap, VecDeque};

/// A relay's connections.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) host: u32,
    /// The session that its relay was connected by first.
    first: SessionId,
    control: ConnId,
    data: ConnId,
    /// Its control connection is open.
    pub(super) open: bool,
    /// What came on its data connection and is not folded yet.
    inbox: VecDeque<Data>,
    /// Nothing more comes, and the root was not told yet.
    ended: bool,
    /// The root reads it.
    read: bool,
}

/// The process.
pub(crate) struct Controller {
    me: Node,
    pub(crate) core: Coordinator,
    root: Root,
    pub(super) peers: BTreeMap<SessionId, Peer>,
    conns: BTreeMap<ConnId, (SessionId, Lane)>,
    pub(super) pending: VecDeque<Input>,
    pub(crate) auditor: Auditor,
    journal: Journal<Paper>,
    generation: u64,
    pub(crate) saves: VecDeque<Box<SaveRequest>>,
    /// Who was told to evaluate first, and through which session.
    pub(super) evaluator: Option<(SessionId, Rank, Incarnation)>,
    /// Answers to the open round, on whatever communicator (for a mutant).
    pub(super) answers: Vec<Input>,
    pub(crate) exit: Option<i32>,
    inputs: u64,
}

/// Its tally is checked every so many inputs, or as many as there are ranks.
const TALLY_EVERY: u64 = 16;

impl Controller {
    pub(crate) fn new(fab: &Fabric) -> Result<Controller, crate::ConfigError> {
        let work = &fab.options.work;
        let config = Config {
            run_id: RunId([1; 16]),
            world_size: fab.options.ranks(),
            min_ranks: 1,
            mode: work.mode,
            epochs: Some(work.epochs),
            epoch_splits: work.epoch_splits,
            batch_size: Some(work.batch_size),
            seed: fab.options.request.seed,
            patience: work.patience,
            slow: Slowing::default(),
            membership: Membership { max_failure: work.max_failure, ..Membership::default() },
            scheduling: fab.options.scheduling.clone(),
            duties: fab.options.duties,
        };
        let core = unprotected(fab, Coordinator::new(config.clone(), fab.now)?.recording(0));
        let journal = Journal::new(Paper::default(), Image::default());
        Ok(Controller::of(core, (config, 0), fab, (journal, Auditor::default())))
    }

    /// Another one, which goes on with what the journal says.
    pub(crate) fn successor(
        &mut self,
        fab: &Fabric,
        image: Image,
        restored: Restored,
    ) -> Result<Controller, crate::ConfigError> {
        let generation = restored.start.generation + 1;
        let config = restored.start.config.clone();
        let guard = config.scheduling.guard.build(1.0);
        let core = unprotected(fab, Coordinator::resume(restored, generation, guard, fab.local(Node::Controller))?);
        let paper = Paper { bytes: Vec::new(), full: self.paper().full.clone() };
        let (journal, mut auditor) = (Journal::new(paper, image), core::mem::take(&mut self.auditor));
        auditor.controller_died();
        Ok(Controller::of(core, (config, generation), fab, (journal, auditor)))
    }

    fn of(
        core: Coordinator,
        (config, generation): (Config, u64),
        fab: &Fabric,
        (mut journal, auditor): (Journal<Paper>, Auditor),
    ) -> Controller {
        let (run_id, address, keep_checkpoints) = (config.run_id, "sim:1".to_owned(), NonZeroU32::MIN);
        // Where its disk is full, the first entry that can be written brings everything.
        let start = Start { run_id, generation, address, keep_checkpoints, config };
        journal.write(Entry::Start(Box::new(start))).ok();
        Controller {
            me: Node::Controller,
            core,
            root: Root::new(fab.options.work.patience).with_codec(fab.options.wire),
            peers: BTreeMap::new(),
            conns: BTreeMap::new(),
            pending: VecDeque::new(),
            auditor,
            journal,
            generation,
            saves: VecDeque::new(),
            evaluator: None,
            answers: Vec::new(),
            exit: None,
            inputs: 0,
        }
    }

    fn name(&self) -> &'static str {
        if self.is_former() { "the former controller" } else { "controller" }
    }

    /// The journal's disk.
    pub(crate) fn paper(&self) -> &Paper {
        self.journal.store()
    }

    /// How many controllers were before it.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Another one has taken its place: what it does from here on changes nothing that is true.
    pub(crate) fn is_outlived(&mut self) {
        self.me = Node::Former;
    }

    fn is_former(&self) -> bool {
        self.me == Node::Former
    }

    /// Whether that session is one of its own.
    pub(crate) fn has(&self, session: SessionId) -> bool {
        self.peers.contains_key(&session)
    }

    /// A relay's two connections have finished their handshakes.
    pub(crate) fn connected(&mut self, fab: &mut Fabric, host: u32, conns: (ConnId, ConnId)) {
        let rank_count = fab.options.hosts[host as usize];
        let session = self.welcome((host, None), conns);
        self.pending.push_back(Input::HostConnected { session, host: name(host), rank_count });
        self.drain(fab);
    }

    /// The same, of a relay whose link broke. False where the gate does not let it in.
    pub(crate) fn resumed(
        &mut self,
        fab: &mut Fabric,
        (host, first): (u32, SessionId),
        conns: (ConnId, ConnId),
    ) -> bool {
        let older = self.peers.iter().find(|(_, peer)| peer.host == host && peer.open);
        match older.map(|(&session, peer)| (session, peer.first)) {
            Some((older, of)) if of == first => self.lose(fab, older, "its relay has connected anew".to_owned()),
            Some(_) => return false,
            None => {}
        }
        let session = self.welcome((host, Some(first)), conns);
        self.pending.push_back(Input::HostResumed { session, host: name(host), first });
        self.drain(fab);
        true
    }

    fn welcome(&mut self, (host, first): (u32, Option<SessionId>), (control, data): (ConnId, ConnId)) -> SessionId {
        let session = SessionId(u64::from(control.0));
        let first = first.unwrap_or(session);
        self.conns.insert(control, (session, Lane::Control));
        self.conns.insert(data, (session, Lane::Data));
        let inbox = VecDeque::new();
        self.peers.insert(session, Peer { host, first, control, data, open: true, inbox, ended: false, read: true });
        session
    }

    pub(crate) fn arrive(&mut self, fab: &mut Fabric, conn: ConnId, packet: Packet) {
        let Some(&(session, lane)) = self.conns.get(&conn) else { return };
        let session = match packet {
            Packet::Frame(_) | Packet::Data(_) if fab.off(Mutant::SessionNumber) => self.replacement(session),
            _ => session,
        };
        match (lane, packet) {
            (Lane::Control, Packet::Frame(frame)) => self.frame(fab, session, &frame),
            (Lane::Control, Packet::End(why)) => self.lose(fab, session, why.to_owned()),
            (Lane::Data, Packet::Data(data)) => {
                let data = rounding::believed(fab, &self.root, data);
                if let Some(peer) = self.peers.get_mut(&session).filter(|peer| peer.read) {
                    peer.inbox.push_back(data);
                }
                self.pump(fab);
            }
            (Lane::Data, Packet::End(_)) => {
                if let Some(peer) = self.peers.get_mut(&session) {
                    peer.ended = true;
                }
                fab.close(self.me, conn, "the root closed it");
                fab.after(PARTING.as_nanos() as u64, Event::Part(session));
                self.pump(fab);
            }
            (Lane::Control, Packet::Data(_)) | (Lane::Data, Packet::Frame(_)) | (_, Packet::Sealed { .. }) => {
                fab.ledger.broken(Rule::Growth, "a packet came on the wrong connection");
            }
        }
        self.drain(fab);
    }

    /// A data link has ended a while ago: its session goes with it.
    pub(crate) fn part(&mut self, fab: &mut Fabric, session: SessionId) {
        self.lose(fab, session, "its data connection ended".to_owned());
        self.drain(fab);
    }

    /// What happens to its process.
    pub(crate) fn event(&mut self, fab: &mut Fabric, event: Event) {
        match event {
            Event::Packet(_, conn, packet) => self.arrive(fab, conn, packet),
            Event::Told(_, input) => self.told(fab, *input),
            Event::Part(session) => self.part(fab, session),
            _ => self.wake(fab),
        }
    }

    pub(crate) fn told(&mut self, fab: &mut Fabric, input: Input) {
        self.pending.push_back(input);
        self.drain(fab);
    }

    pub(crate) fn wake(&mut self, fab: &mut Fabric) {
        let now = fab.local(self.me);
        if self.root.next_deadline().is_some_and(|at| at <= now) {
            self.root.handle(root::Input::Tick, now);
            self.drain_root(fab);
        }
        if self.core.next_deadline().is_some_and(|at| at <= now) {
            self.core.tick(now);
        }
        self.drain(fab);
    }

    fn frame(&mut self, fab: &mut Fabric, session: SessionId, frame: &Frame) {
        if !self.peers.get(&session).is_some_and(|peer| peer.open) {
            return;
        }
        let input = match edge::input(session, frame) {
            Ok(input) => self.reborn(fab, input),
            Err(error) => return self.lose(fab, session, format!("it sent {error}")),
        };
        match edge::speaker(&input) {
            Some((rank, incarnation))
                if !self.core.speaks_for(session, rank, incarnation) && !self.core.outlived(rank, incarnation) =>
            {
                fab.say(|| format!("controller refuses {rank} ({incarnation}) of {session}"));
            }
            _ => self.pending.push_back(input),
        }
    }

    /// The drain invariant: one input, then every output is carried out, until there is neither.
    fn drain(&mut self, fab: &mut Fabric) {
        loop {
            while let Some(output) = self.core.poll() {
                self.carry_out(fab, output);
            }
            let Some(input) = self.pending.pop_front() else { break };
            let Some(input) = self.mutated(fab, input) else { continue };
            fab.say(|| format!("{} < {input:?}", self.name()));
            if !self.is_former() {
                self.auditor.input(fab, &input);
            }
            self.core.handle(input, fab.local(self.me));
            self.check_tally(fab);
        }
        fab.wake(self.me, self.core.next_deadline());
        fab.wake(self.me, self.root.next_deadline());
    }

    /// Now and then: is what the coordinator keeps of its members true?
    fn check_tally(&mut self, fab: &mut Fabric) {
        self.inputs += 1;
        let is_due = self.inputs.is_multiple_of(TALLY_EVERY.max(u64::from(fab.options.ranks())));
        if is_due && !self.core.members.tally_is_true() {
            fab.ledger.broken(Rule::Tally, "what the coordinator keeps of who stands where is not where they stand");
        }
    }

    fn carry_out(&mut self, fab: &mut Fabric, output: Output) {
        fab.say(|| format!("{} > {output:?}", self.name()));
        let Some(output) = self.misdirected(fab, output) else { return };
        self.keeps_leases(fab, &output);
        if !self.is_former() {
            self.auditor.output(fab, &output);
        }
        match output {
            Output::ToHost { session, control } => {
                if let (Control::Admit(admit), Some(peer)) = (&control, self.peers.get(&session)) {
                    fab.admitted(peer.host, admit.ids.iter().map(|&(rank, _)| rank));
                }
                self.enqueue(fab, session, Frame::control(Stream::Host, Incarnation(0), &control));
            }
            Output::ToRank { session, rank, incarnation, control } => {
                self.enqueue(fab, session, Frame::control(Stream::Rank(rank), incarnation, &control));
            }
            Output::Broadcast(control) => {
                self.is_stopped(fab, &control);
                self.broadcast(fab, control);
            }
            Output::Layout(sizes) => self.tell_root(fab, root::Input::Layout(sizes)),
            Output::CloseHost { session } => self.leave(fab, session),
            Output::Save(request) => self.saves.push_back(request),
            Output::Restore { session, round, version, digest } => {
                self.tell_root(fab, root::Input::Restore { session, round, version, digest });
            }
            // A disk that is full costs nothing but what the next controller would find there.
            Output::Journal(entry) => {
                self.journal.write(entry).ok();
            }
            Output::Record(_) => {}
            Output::End { exit } => self.exit = Some(exit),
        }
    }

    /// Somebody may have waited for ranks to average among themselves, to ask for the end, and again.
    fn is_stopped(&self, fab: &mut Fabric, control: &Control) {
        if matches!(control, Control::SyncNow { .. }) && core::mem::take(&mut fab.gathering.stops) {
            for longest in [20_000_000, 40_000_000] {
                let after = fab.rng.within(1_000_000, longest);
                fab.after(after, Event::Told(self.generation, Box::new(Input::Stop)));
            }
        }
    }

    fn broadcast(&mut self, fab: &mut Fabric, control: Control) {
        let frame = Frame::control(Stream::AllRanks, Incarnation(0), &control);
        self.tell_root(fab, root::Input::Control(control));
        for session in self.peers.keys().copied().collect::<Vec<_>>() {
            self.enqueue(fab, session, frame.clone());
        }
    }

    fn enqueue(&mut self, fab: &mut Fabric, session: SessionId, frame: Result<Frame, flodl_wire::codec::EncodeError>) {
        let Some(peer) = self.peers.get(&session).filter(|peer| peer.open) else { return };
        let control = peer.control;
        match frame {
            Ok(_) if fab.net.waiting(control, false) >= CONTROL_QUEUE => {
                self.lose(fab, session, "it takes no control messages".to_owned());
            }
            Ok(frame) => fab.frame(self.me, control, frame),
            Err(error) => self.lose(fab, session, format!("a message for it cannot be sent: {error}")),
        }
    }

    fn lose(&mut self, fab: &mut Fabric, session: SessionId, error: String) {
        if self.peers.get(&session).is_some_and(|peer| peer.open) {
            self.leave(fab, session);
            if !fab.off(Mutant::DeathNotice) {
                self.pending.push_back(Input::HostLost { session, error });
            }
        }
    }

    /// Its connections close; what the root has of it counts.
    fn leave(&mut self, fab: &mut Fabric, session: SessionId) {
        let Some(peer) = self.peers.get_mut(&session).filter(|peer| peer.open) else { return };
        (peer.open, peer.ended) = (false, true);
        let (control, data) = (peer.control, peer.data);
        if !fab.off(Mutant::SessionNumber) {
            fab.close(self.me, control, "the controller closed it");
            fab.close(self.me, data, "the controller closed it");
        }
        self.pump(fab);
    }

    fn tell_root(&mut self, fab: &mut Fabric, input: root::Input) {
        self.root.handle(input, fab.local(self.me));
        self.drain_root(fab);
        self.pump(fab);
    }

    /// Gives the root what it wants of what has come.
    fn pump(&mut self, fab: &mut Fabric) {
        let has_more = |(_, peer): &(&SessionId, &Peer)| peer.read && (peer.ended || !peer.inbox.is_empty());
        for session in self.peers.iter().filter(has_more).map(|(&session, _)| session).collect::<Vec<_>>() {
            while let Some(peer) = self.peers.get_mut(&session).filter(|peer| peer.read) {
                let data = if self.root.wants(session) { peer.inbox.pop_front() } else { None };
                let input = match data {
                    Some(data) => root::Input::Data { session, data },
                    None if peer.ended && peer.inbox.is_empty() => {
                        peer.read = false;
                        root::Input::Lost { session }
                    }
                    None => break,
                };
                self.root.handle(input, fab.local(self.me));
                self.drain_root(fab);
            }
        }
    }

    fn drain_root(&mut self, fab: &mut Fabric) {
        while let Some(output) = self.root.poll() {
            match output {
                root::Output::Result { session, chunk } => {
                    if !self.is_former() {
                        fab.ledger.result(&chunk);
                    }
                    self.down(fab, session, Data::Consensus(chunk));
                }
                root::Output::LeftOut { session, data } => self.down(fab, session, data),
                root::Output::Folded(folded) => {
                    if !self.is_former() {
                        fab.ledger.folded(&folded);
                    }
                    self.folded(fab, folded);
                }
                root::Output::Waiting { .. } if fab.off(Mutant::CutOff) => {}
                root::Output::Waiting { round, rank, chunk } => {
                    self.pending.push_back(Input::RootWaits { round, rank, chunk });
                }
                root::Output::Restored { version, result } => {
                    self.pending.push_back(Input::Restored { version, result });
                }
                root::Output::Breach { session, why } => {
                    fab.say(|| format!("the root closes {session}: {why}"));
                    if let Some(peer) = self.peers.get_mut(&session) {
                        peer.read = false;
                    }
                    // What a relay sends has been through its own fold.
                    fab.ledger.broken(Rule::Innocence, format!("the root closes {session}: {why}"));
                    fab.after(PARTING.as_nanos() as u64, Event::Part(session));
                }
                root::Output::Refused(why) => fab.ledger.broken(Rule::Growth, format!("the root refuses: {why}")),
            }
        }
    }

    fn down(&self, fab: &mut Fabric, session: SessionId, data: Data) {
        if let Some(peer) = self.peers.get(&session).filter(|peer| peer.read) {
            fab.send(self.me, peer.data, Packet::Data(data));
        }
    }

    fn folded(&mut self, fab: &Fabric, mut folded: Folded) {
        for (.., part) in &mut folded.ranks {
            *part = match *part {
                FoldedPart::Chunks(_) if fab.off(Mutant::PartialIsNotWhole) => FoldedPart::Whole,
                FoldedPart::Chunks(_) if fab.off(Mutant::RepeatsCounted) => FoldedPart::None,
                FoldedPart::None if fab.off(Mutant::OnlyFoldedCommits) => FoldedPart::Whole,
                part => part,
            };
        }
        if fab.off(Mutant::EverybodyAcks) {
            self.acknowledge_all(&folded);
        }
        self.pending.push_back(Input::Folded(folded));
    }

    /// The bytes of the consensus in force.
    pub(crate) fn consensus(&self) -> Option<(flodl_wire::Version, bytes::Bytes)> {
        self.root.consensus_bytes()
    }
}

fn name(host: u32) -> HostId {
    HostId::from_name(&format!("h{host}")).unwrap_or(HostId([1; 16]))
}
