//! Connections between simulated processes: latency, bandwidth and jitter, and everything that can go wrong with them.
//!
//! A connection is two pipes. What is sent into a pipe arrives in order, like bytes of a stream; pipes do not wait for
//! each other, so that what is sent on two connections arrives in any order.

use super::options::Plane;
use super::rng::Rng;
use super::sealed::{Sealed, flipped};
use super::tamper::Deed;
use flodl_wire::message::Data;
use flodl_wire::{Frame, Time};
use std::collections::VecDeque;

/// A simulated process.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Node {
    /// Coordinator and root.
    Controller,
    /// The same of an earlier controller, which does not know that another one has taken its place.
    Former,
    /// The relay of that host.
    Host(u32),
    /// That life of some rank, in order of starting.
    Seat(u32),
}

/// A connection, counted from 1; a number is never used again.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnId(pub(crate) u32);

/// What is on its way.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    /// On a control connection.
    Frame(Frame),
    /// On a data connection.
    Data(Data),
    /// The other end is gone, and why.
    End(&'static str),
    /// Between two hosts, where there is an adversary: the bytes, and what they hold.
    Sealed { bytes: Vec<u8>, clear: Box<Packet> },
}

/// What a connection carries.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Control,
    Data,
}

/// One direction of a connection.
#[derive(Debug)]
struct Pipe {
    transit: VecDeque<Packet>,
    /// When the wire is free for the next packet.
    free: Time,
    /// When the last packet arrives.
    last: Time,
    /// Arrivals of another generation were lost.
    generation: u32,
    stalled_until: Time,
    slow_until: Time,
    slowness: f64,
    /// Nothing arrives any more.
    dead: bool,
    /// Packets behind one another, at most.
    deepest: usize,
    /// What the adversary does to the next packet.
    deed: Option<Deed>,
}

/// Two ends and what is between them.
#[derive(Debug)]
pub(crate) struct Conn {
    /// The end nearer to the ranks, then the one nearer to the controller.
    pub(crate) ends: [Node; 2],
    pub(crate) lane: Lane,
    closed: [bool; 2],
    plane: Plane,
    /// Upwards, then downwards.
    pipes: [Pipe; 2],
    sealed: Option<Box<Sealed>>,
}

/// One arrival that is to be looked at: of which pipe of which connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) conn: ConnId,
    pub(crate) up: bool,
    generation: u32,
}

/// What comes of an arrival.
pub(crate) enum Arrived {
    /// Nothing: it was lost.
    Lost,
    /// Look again then: the pipe is stalled.
    Later(Time),
    /// This, at that node.
    Packet(Node, Packet),
}

/// All connections.
#[derive(Debug)]
pub(crate) struct Net {
    conns: Vec<Conn>,
    rng: Rng,
}

impl Pipe {
    fn new() -> Pipe {
        Pipe {
            transit: VecDeque::new(),
            free: Time::ZERO,
            last: Time::ZERO,
            generation: 0,
            stalled_until: Time::ZERO,
            slow_until: Time::ZERO,
            slowness: 1.0,
            dead: false,
            deepest: 0,
            deed: None,
        }
    }

    fn lose(&mut self) {
        self.transit.clear();
        self.generation += 1;
    }
}

impl Net {
    pub(crate) fn new(rng: Rng) -> Net {
        Net { conns: Vec::new(), rng }
    }

    pub(crate) fn open(&mut self, lower: Node, upper: Node, lane: Lane, plane: Plane) -> ConnId {
        let pipes = [Pipe::new(), Pipe::new()];
        self.conns.push(Conn { ends: [lower, upper], lane, closed: [false; 2], plane, pipes, sealed: None });
        ConnId(self.conns.len() as u32)
    }

    pub(crate) fn conn(&self, id: ConnId) -> &Conn {
        &self.conns[id.0 as usize - 1]
    }

    fn conn_mut(&mut self, id: ConnId) -> &mut Conn {
        &mut self.conns[id.0 as usize - 1]
    }

    /// The connections with an end at that node, of which neither end is closed.
    pub(crate) fn of(&self, node: Node) -> Vec<ConnId> {
        let open = |conn: &Conn| conn.ends.contains(&node) && conn.closed == [false; 2];
        (1..).map(ConnId).zip(&self.conns).filter(|(_, conn)| open(conn)).map(|(id, _)| id).collect()
    }

    /// What was one node's is another's.
    pub(crate) fn rename(&mut self, from: Node, to: Node) {
        let ends = self.conns.iter_mut().flat_map(|conn| &mut conn.ends);
        ends.filter(|end| **end == from).for_each(|end| *end = to);
    }

    /// Seals a connection's frames from now on.
    pub(crate) fn seal(&mut self, id: ConnId) {
        let conn = self.conn_mut(id);
        conn.sealed = Sealed::new(conn.lane, u64::from(id.0)).map(Box::new);
    }

    /// The adversary does that to the next frame that goes up or down.
    pub(crate) fn tamper(&mut self, id: ConnId, up: bool, deed: Deed) {
        self.conn_mut(id).pipes[usize::from(!up)].deed = Some(deed);
    }

    /// What goes onto the wire for a packet, and whether it goes twice.
    fn on_the_wire(&mut self, id: ConnId, up: bool, packet: Packet) -> (Packet, bool) {
        let conn = self.conn_mut(id);
        let Some(mut bytes) = conn.sealed.as_mut().and_then(|sealed| sealed.seal(up, &packet)) else {
            return (packet, false);
        };
        let deed = conn.pipes[usize::from(!up)].deed.take();
        let clear = match deed {
            Some(Deed::Flip(dice)) => {
                let at = dice as usize % (bytes.len() * 8);
                bytes[at / 8] ^= 1 << (at % 8);
                flipped(packet, dice)
            }
            Some(Deed::Repeat) | None => packet,
        };
        (Packet::Sealed { bytes, clear: Box::new(clear) }, deed == Some(Deed::Repeat))
    }

    /// Sends from one end. Gives the arrival and its time, and whether it comes twice, unless nobody will ever see it.
    pub(crate) fn send(&mut self, from: Node, id: ConnId, packet: Packet, now: Time) -> Option<(Time, Arrival, bool)> {
        let up = self.conn(id).ends[0] == from;
        let (packet, twice) = self.on_the_wire(id, up, packet);
        let bytes = size(&packet);
        let factor = self.rng.around_one(self.conn(id).plane.jitter);
        let conn = self.conn_mut(id);
        if conn.closed[usize::from(!up)] {
            return None;
        }
        let Plane { latency_ns, bandwidth, .. } = conn.plane;
        let pipe = &mut conn.pipes[usize::from(!up)];
        if pipe.dead {
            return None;
        }
        let slowness = if now < pipe.slow_until { pipe.slowness } else { 1.0 };
        let wire = bytes as f64 / bandwidth * 1e9 * slowness;
        pipe.free = Time(pipe.free.max(now).0 + wire as u64);
        let arrives = Time(pipe.free.0 + (latency_ns * factor * slowness) as u64 + 1).max(pipe.last);
        pipe.last = arrives;
        if twice {
            pipe.transit.push_back(packet.clone());
        }
        pipe.transit.push_back(packet);
        pipe.deepest = pipe.deepest.max(pipe.transit.len());
        Some((arrives, Arrival { conn: id, up, generation: pipe.generation }, twice))
    }

    /// Takes what has arrived. `trusting`: an end that takes frames without the checks of their seal.
    pub(crate) fn arrive(&mut self, arrival: Arrival, now: Time, trusting: bool) -> Arrived {
        let conn = self.conn_mut(arrival.conn);
        let to = usize::from(arrival.up);
        let pipe = &mut conn.pipes[usize::from(!arrival.up)];
        if pipe.generation != arrival.generation {
            return Arrived::Lost;
        }
        if pipe.stalled_until > now {
            return Arrived::Later(pipe.stalled_until);
        }
        let Some(packet) = pipe.transit.pop_front() else { return Arrived::Lost };
        if conn.closed[to] {
            return Arrived::Lost;
        }
        let packet = match (packet, &mut conn.sealed) {
            (Packet::Sealed { clear, .. }, _) if trusting => *clear,
            (Packet::Sealed { bytes, .. }, Some(sealed)) => {
                sealed.open(arrival.up, conn.lane, &bytes).unwrap_or_else(|_| {
                    // Nobody reads on; the other end learns of it when this one closes.
                    pipe.lose();
                    pipe.dead = true;
                    Packet::End("it carried what is not its next frame")
                })
            }
            (Packet::End(why), _) => {
                conn.closed[to] = true;
                Packet::End(why)
            }
            (packet, _) => packet,
        };
        Arrived::Packet(conn.ends[to], packet)
    }

    /// One end closes: what it sent before still arrives, what comes to it is not read.
    pub(crate) fn close(&mut self, end: Node, id: ConnId, why: &'static str, now: Time) -> Option<(Time, Arrival)> {
        let last = self.send(end, id, Packet::End(why), now).map(|(at, arrival, _)| (at, arrival));
        let conn = self.conn_mut(id);
        let up = conn.ends[0] == end;
        conn.closed[usize::from(!up)] = true;
        conn.pipes[usize::from(up)].lose();
        last
    }

    /// Both ends learn that it is over; what is on its way is lost.
    pub(crate) fn reset(&mut self, id: ConnId, now: Time) -> Vec<(Time, Arrival)> {
        let conn = self.conn_mut(id);
        conn.pipes.iter_mut().for_each(Pipe::lose);
        let ends = conn.ends;
        let told = |end| self.send(end, id, Packet::End("it was reset"), now).map(|(at, arrival, _)| (at, arrival));
        ends.into_iter().filter_map(told).collect()
    }

    /// Nothing arrives any more in these directions, and nobody is told.
    pub(crate) fn cut(&mut self, id: ConnId, up: bool, down: bool) {
        let conn = self.conn_mut(id);
        for (pipe, cut) in conn.pipes.iter_mut().zip([up, down]) {
            if cut {
                pipe.lose();
                pipe.dead = true;
            }
        }
    }

    /// Nothing arrives before that time in these directions.
    pub(crate) fn stall(&mut self, id: ConnId, up: bool, down: bool, until: Time) {
        for (pipe, stalled) in self.conn_mut(id).pipes.iter_mut().zip([up, down]) {
            if stalled {
                pipe.stalled_until = pipe.stalled_until.max(until);
            }
        }
    }

    /// What is sent before that time takes so many times longer.
    pub(crate) fn slow(&mut self, id: ConnId, slowness: f64, until: Time) {
        for pipe in &mut self.conn_mut(id).pipes {
            (pipe.slowness, pipe.slow_until) = (slowness, until);
        }
    }

    /// Packets that are on their way up or down a connection.
    pub(crate) fn waiting(&self, id: ConnId, up: bool) -> usize {
        self.conn(id).pipes[usize::from(!up)].transit.len()
    }

    /// The most packets that were ever behind one another in a pipe of that lane.
    pub(crate) fn deepest(&self, lane: Lane) -> usize {
        let of_lane = self.conns.iter().filter(|conn| conn.lane == lane);
        of_lane.flat_map(|conn| &conn.pipes).map(|pipe| pipe.deepest).max().unwrap_or(0)
    }
}

/// About how many bytes a packet is.
fn size(packet: &Packet) -> usize {
    use flodl_wire::limits::{ABSENCE_LEN, CHUNK_HEADER, FRAME_HEADER, FRAME_TAG};
    if let Packet::Sealed { bytes, .. } = packet {
        return bytes.len();
    }
    FRAME_HEADER
        + FRAME_TAG
        + match packet {
            Packet::Frame(frame) => frame.payload.len(),
            Packet::Data(Data::Contribution(chunk) | Data::Consensus(chunk)) => CHUNK_HEADER + chunk.bytes.len(),
            Packet::Data(Data::Absent { .. } | Data::Dropped { .. } | Data::Holds { .. } | Data::LeftOut { .. }) => {
                ABSENCE_LEN
            }
            Packet::End(_) | Packet::Sealed { .. } => 0,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flodl_wire::message::{Control, HostReport};
    use flodl_wire::{Incarnation, Stream};

    const PLANE: Plane = Plane { latency_ns: 1000.0, jitter: 0.3, bandwidth: 1e9 };
    const LOWER: Node = Node::Host(0);

    fn net() -> (Net, ConnId) {
        let mut net = Net::new(Rng::new(5));
        let conn = net.open(LOWER, Node::Controller, Lane::Control, PLANE);
        (net, conn)
    }

    fn up(net: &mut Net, conn: ConnId, now: u64) -> (Time, Arrival) {
        let frame = Frame::host_report(&HostReport::Heartbeat).expect("fits");
        let (at, arrival, twice) = net.send(LOWER, conn, Packet::Frame(frame), Time(now)).expect("is on its way");
        assert!(!twice);
        (at, arrival)
    }

    #[test]
    fn a_pipe_keeps_its_order_and_takes_its_time() {
        let (mut net, conn) = net();
        let sent: Vec<(Time, Arrival)> = (0..50).map(|_| up(&mut net, conn, 7)).collect();
        assert!(sent.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert!(sent[0].0 > Time(300), "{:?}", sent[0].0);
        let arrived = net.arrive(sent[0].1, sent[0].0, false);
        assert!(matches!(arrived, Arrived::Packet(Node::Controller, Packet::Frame(_))));
        assert_eq!(net.deepest(Lane::Control), 50);
    }

    #[test]
    fn a_stall_delays_and_a_reset_loses() {
        let (mut net, conn) = net();
        let (at, arrival) = up(&mut net, conn, 0);
        net.stall(conn, true, false, Time(9_000_000));
        assert!(matches!(net.arrive(arrival, at, false), Arrived::Later(Time(9_000_000))));
        let ends = net.reset(conn, Time(8_000_000));
        assert!(matches!(net.arrive(arrival, Time(9_000_000), false), Arrived::Lost));
        assert_eq!(ends.len(), 2, "both ends are told");
        assert!(matches!(net.arrive(ends[1].1, ends[1].0, false), Arrived::Packet(LOWER, Packet::End(_))));
    }

    #[test]
    fn what_was_sent_before_a_close_arrives_before_its_end() {
        let (mut net, conn) = net();
        let (_, first) = up(&mut net, conn, 0);
        let frame = Frame::control(Stream::Host, Incarnation(0), &Control::Heartbeat).expect("fits");
        let (_, down, _) = net.send(Node::Controller, conn, Packet::Frame(frame), Time(0)).expect("is on its way");
        let (end, last) = net.close(LOWER, conn, "it closed", Time(10)).expect("is told");
        assert!(matches!(net.arrive(down, end, false), Arrived::Lost), "nobody reads there any more");
        assert!(matches!(net.arrive(first, end, false), Arrived::Packet(_, Packet::Frame(_))));
        assert!(matches!(net.arrive(last, end, false), Arrived::Packet(_, Packet::End("it closed"))));
        assert!(net.of(LOWER).is_empty());
    }

    #[test]
    fn a_cut_pipe_carries_nothing() {
        let (mut net, conn) = net();
        let (at, arrival) = up(&mut net, conn, 0);
        net.cut(conn, true, false);
        assert!(matches!(net.arrive(arrival, at, false), Arrived::Lost));
        let frame = Frame::host_report(&HostReport::Heartbeat).expect("fits");
        assert!(net.send(LOWER, conn, Packet::Frame(frame), Time(3)).is_none());
    }
}
