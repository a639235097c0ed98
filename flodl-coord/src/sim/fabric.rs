//! What all simulated processes share: the clock, the heap of events, the network, the accounts.

use super::class::Class;
use super::collectives::Came;
use super::gathering::Gathering;
use super::ledger::Ledger;
use super::mutant::Mutant;
use super::net::{Arrival, ConnId, Net, Node, Packet};
use super::options::Options;
use super::rng::Rng;
use crate::Input;
use bytes::Bytes;
use flodl_relay::relay;
use flodl_wire::codec::DecodeError;
use flodl_wire::message::data::Chunk;
use flodl_wire::message::{Control, Data};
use flodl_wire::{Frame, Incarnation, Rank, SessionId, Stream, Time};
use std::cmp::Ordering;
use std::collections::{BTreeSet, BinaryHeap};
use std::rc::Rc;

/// Something that happens at a moment.
#[derive(Debug)]
pub(crate) enum Event {
    /// Something may have arrived.
    Arrive(Arrival),
    /// That has arrived at a process.
    Packet(Node, ConnId, Packet),
    /// A process asked to be woken.
    Wake(Node),
    /// A rank's input-output thread gives a sign of life.
    Beat(u32),
    /// The agent of a host tells its relay, which is the host's so-manieth.
    Agent { host: u32, relay: u32, input: Box<relay::Input> },
    /// A rank's process begins.
    Start { host: u32, relay: u32, life: (Rank, Incarnation) },
    /// A process is killed.
    Kill(Node),
    /// Something tells the run's so-manieth controller.
    Told(u64, Box<Input>),
    /// Something comes of what a rank wanted of its library.
    Library(u32, Box<Came>),
    /// A data link that has ended takes its session with it.
    Part(SessionId),
    /// A fault strikes.
    Strike(usize),
    /// A process that stood still goes on.
    Resume(Node),
    /// A relay dials.
    Dial(u32),
    /// Another controller starts.
    Succeed,
    /// A controller that stood still goes on, where another one may have taken its place.
    Return,
    /// The journal's disk has room again.
    PaperIsThere,
    /// A relay, which is the host's so-manieth, dials again after its link broke.
    Redial { host: u32, relay: u32, first: SessionId },
}

struct Entry {
    at: Time,
    order: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Entry) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    /// The heap gives the greatest first: the earliest is it.
    fn cmp(&self, other: &Entry) -> Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

/// Whether a process lives, and what it has yet to see.
#[derive(Debug)]
pub(crate) struct Vital {
    pub(crate) alive: bool,
    pub(crate) paused: bool,
    /// What came while it stood still.
    pub(crate) backlog: Vec<Event>,
    /// The earliest moment at which it will be woken.
    wake: Option<Time>,
    /// It is killed at that many inputs and outputs from here.
    pub(crate) fuse: Option<u64>,
    pub(crate) blown: bool,
}

impl Vital {
    pub(crate) fn new() -> Vital {
        Vital { alive: true, paused: false, backlog: Vec::new(), wake: None, fuse: None, blown: false }
    }

    /// Nobody.
    fn gone() -> Vital {
        Vital { alive: false, ..Vital::new() }
    }

    /// One more input or output; `true`: it does not come to it any more.
    pub(crate) fn burn(&mut self) -> bool {
        if let Some(left) = &mut self.fuse {
            *left = left.saturating_sub(1);
            self.blown |= *left == 0;
        }
        self.blown
    }
}

/// The shared part of a simulation.
pub(crate) struct Fabric {
    pub(crate) options: Rc<Options>,
    pub(crate) now: Time,
    heap: BinaryHeap<Entry>,
    posted: u64,
    pub(crate) net: Net,
    pub(crate) rng: Rng,
    pub(crate) ledger: Ledger,
    pub(crate) controller: Vital,
    pub(crate) former: Vital,
    pub(crate) hosts: Vec<Vital>,
    pub(crate) seats: Vec<Vital>,
    /// How far each host's clock is ahead.
    pub(crate) ahead: Vec<u64>,
    /// The host of each seat.
    pub(crate) host_of: Vec<u32>,
    /// The ranks that each host ever had.
    pub(crate) ranks_at: Vec<BTreeSet<Rank>>,
    /// Ranks that a fault has touched, so that what becomes of them is no surprise.
    pub(crate) touched: BTreeSet<Rank>,
    /// Ranks that were made to send what no rank sends.
    pub(crate) forged: BTreeSet<Rank>,
    /// Hosts whose ranks, also later ones, are touched.
    pub(crate) touched_hosts: BTreeSet<u32>,
    /// What ranks average by among themselves.
    pub(crate) gathering: Gathering,
    /// What is to happen to the next evaluation.
    pub(crate) duty_fault: Option<Class>,
    /// After this nothing that has struck so far is out of order any more.
    pub(crate) healed: Time,
    /// A digest of everything that was said, and when.
    pub(crate) stream: u64,
    /// Lines of what happens, where somebody reads them.
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) events: u64,
    /// The newest long message that many get.
    shared: Option<Shared>,
}

/// What was worked out of a message's bytes, once for all that get them.
struct Shared {
    payload: Bytes,
    digest: u64,
    control: Option<Control>,
}

/// From this length on it is worth remembering.
const LONG: usize = 1024;

impl Shared {
    fn is_of(&self, payload: &Bytes) -> bool {
        (self.payload.as_ptr(), self.payload.len()) == (payload.as_ptr(), payload.len())
    }
}

impl Fabric {
    pub(crate) fn new(options: Rc<Options>, rng: &mut Rng) -> Fabric {
        let hosts = options.hosts.len();
        let ahead = (0..hosts).map(|_| rng.below(3_600_000_000_000)).collect();
        let seed = options.request.seed;
        Fabric {
            now: Time::ZERO,
            heap: BinaryHeap::new(),
            posted: 0,
            net: Net::new(rng.fork()),
            rng: rng.fork(),
            ledger: Ledger::new(seed, options.work.passes(), options.wire, !options.work.mode.is_cpu()),
            controller: Vital::new(),
            former: Vital::gone(),
            hosts: (0..hosts).map(|_| Vital::new()).collect(),
            seats: Vec::new(),
            ahead,
            host_of: Vec::new(),
            ranks_at: vec![BTreeSet::new(); hosts],
            touched: BTreeSet::new(),
            forged: BTreeSet::new(),
            touched_hosts: BTreeSet::new(),
            gathering: Gathering::default(),
            duty_fault: None,
            healed: Time::ZERO,
            stream: seed,
            trace: None,
            events: 0,
            shared: None,
            options,
        }
    }

    /// The ranks that a host ever had.
    pub(crate) fn ranks_of(&self, host: u32) -> impl Iterator<Item = Rank> + '_ {
        self.ranks_at[host as usize].iter().copied()
    }

    /// The coordinator gives a host these ranks.
    pub(crate) fn admitted(&mut self, host: u32, ranks: impl Iterator<Item = Rank>) {
        self.ranks_at[host as usize].extend(ranks);
        if self.touched_hosts.contains(&host) {
            self.touch(host);
        }
    }

    /// A fault touches a host: whatever becomes of its ranks is no surprise.
    pub(crate) fn touch(&mut self, host: u32) {
        let ranks: Vec<Rank> = self.ranks_of(host).collect();
        self.touched.extend(ranks);
        self.touched_hosts.insert(host);
    }

    /// Whether the protection is turned off.
    pub(crate) fn off(&self, mutant: Mutant) -> bool {
        self.options.request.mutant == Some(mutant)
    }

    pub(crate) fn vital(&mut self, node: Node) -> &mut Vital {
        match node {
            Node::Controller => &mut self.controller,
            Node::Former => &mut self.former,
            Node::Host(host) => &mut self.hosts[host as usize],
            Node::Seat(seat) => &mut self.seats[seat as usize],
        }
    }

    /// The time on that process's clock.
    pub(crate) fn local(&self, node: Node) -> Time {
        Time(self.now.0 + self.ahead_of(node))
    }

    fn ahead_of(&self, node: Node) -> u64 {
        match node {
            Node::Controller | Node::Former => 0,
            Node::Host(host) => self.ahead[host as usize],
            Node::Seat(seat) => self.ahead[self.host_of[seat as usize] as usize],
        }
    }

    pub(crate) fn post(&mut self, at: Time, event: Event) {
        self.posted += 1;
        self.heap.push(Entry { at: at.max(self.now), order: self.posted, event });
    }

    pub(crate) fn after(&mut self, ns: u64, event: Event) {
        self.post(Time(self.now.0.saturating_add(ns)), event);
    }

    /// The next event, unless it is later than `until`.
    pub(crate) fn next(&mut self, until: Time) -> Option<Event> {
        if self.heap.peek()?.at > until {
            return None;
        }
        let entry = self.heap.pop()?;
        self.now = entry.at;
        self.ledger.now = entry.at;
        self.events += 1;
        Some(entry.event)
    }

    /// Wakes a process at that time of its own clock, if it will not be awake before.
    pub(crate) fn wake(&mut self, node: Node, deadline: Option<Time>) {
        let Some(deadline) = deadline else { return };
        let at = Time(deadline.0.saturating_sub(self.ahead_of(node))).max(self.now);
        let vital = self.vital(node);
        if vital.wake.is_none_or(|wake| at < wake) {
            vital.wake = Some(at);
            self.post(at, Event::Wake(node));
        }
    }

    /// Whether a process is to be woken now (and not by an event that another has overtaken).
    pub(crate) fn wakes(&mut self, node: Node) -> bool {
        let now = self.now;
        let vital = self.vital(node);
        vital.wake.take_if(|wake| *wake <= now).is_some()
    }

    /// Sends, unless the process is killed before it comes to it.
    pub(crate) fn send(&mut self, from: Node, conn: ConnId, packet: Packet) {
        if self.vital(from).burn() {
            return;
        }
        self.mix(conn, &packet);
        if let Some((at, arrival, twice)) = self.net.send(from, conn, packet, self.now) {
            self.post(at, Event::Arrive(arrival));
            if twice {
                self.post(at, Event::Arrive(arrival));
            }
        }
    }

    pub(crate) fn frame(&mut self, from: Node, conn: ConnId, frame: Frame) {
        self.send(from, conn, Packet::Frame(frame));
    }

    pub(crate) fn chunk(&mut self, from: Node, conn: ConnId, chunk: Chunk) {
        self.send(from, conn, Packet::Data(Data::Consensus(chunk)));
    }

    pub(crate) fn close(&mut self, end: Node, conn: ConnId, why: &'static str) {
        if let Some((at, arrival)) = self.net.close(end, conn, why, self.now) {
            self.post(at, Event::Arrive(arrival));
        }
    }

    pub(crate) fn reset(&mut self, conn: ConnId) {
        for (at, arrival) in self.net.reset(conn, self.now) {
            self.post(at, Event::Arrive(arrival));
        }
    }

    /// Adds a line to the trace, if somebody reads it.
    pub(crate) fn say(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:>14.6} {}", now.as_secs_f64(), line()));
        }
    }

    fn mix(&mut self, conn: ConnId, packet: &Packet) {
        let word = self.now.0 ^ (u64::from(conn.0) << 40);
        self.stir(word);
        match packet {
            Packet::Frame(frame) if frame.payload.len() >= LONG => {
                let digest = self.shared(&frame.payload).digest;
                self.stir(digest);
            }
            Packet::Frame(frame) => self.stir_bytes(&frame.payload),
            Packet::Data(Data::Contribution(chunk) | Data::Consensus(chunk)) => {
                self.stir(u64::from(chunk.chunk) ^ chunk.mass.to_bits());
                self.stir_bytes(&chunk.bytes);
            }
            Packet::Data(
                Data::Absent { from_chunk, .. } | Data::Dropped { from_chunk, .. } | Data::LeftOut { from_chunk, .. },
            ) => self.stir(u64::from(*from_chunk)),
            Packet::Data(Data::Holds { version, digest, .. }) => self.stir(version.0 ^ digest),
            Packet::End(why) => self.stir_bytes(why.as_bytes()),
            Packet::Sealed { bytes, .. } => self.stir_bytes(bytes),
        }
    }

    fn shared(&mut self, payload: &Bytes) -> &mut Shared {
        let known = self.shared.take().filter(|shared| shared.is_of(payload));
        let new = || Shared { payload: payload.clone(), digest: mixed(0, payload), control: None };
        self.shared.insert(known.unwrap_or_else(new))
    }

    /// Reads a control message.
    pub(crate) fn control(&mut self, frame: &Frame) -> Result<Control, DecodeError> {
        if frame.payload.len() < LONG || frame.stream != Stream::AllRanks {
            return frame.to_control();
        }
        let shared = self.shared(&frame.payload);
        if let Some(control) = &shared.control {
            return Ok(control.clone());
        }
        let control = frame.to_control()?;
        shared.control = Some(control.clone());
        Ok(control)
    }

    fn stir(&mut self, word: u64) {
        self.stream = stirred(self.stream, word);
    }

    fn stir_bytes(&mut self, bytes: &[u8]) {
        self.stream = mixed(self.stream, bytes);
    }
}

fn stirred(stream: u64, word: u64) -> u64 {
    (stream ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

fn mixed(stream: u64, bytes: &[u8]) -> u64 {
    bytes.chunks(8).fold(stream, |stream, piece| {
        let mut word = [0; 8];
        word[..piece.len()].copy_from_slice(piece);
        stirred(stream, u64::from_le_bytes(word))
    })
}
