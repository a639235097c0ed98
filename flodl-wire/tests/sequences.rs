//! Any sequence of operations on both ends of a connection and on the bytes between them. Whatever happens, nothing panics,
//! nobody is taken for a member who is not, and nothing is delivered that was not sent, in that order.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{Controller, data_hello, keys_for, relay_hello, secret};
use core::time::Duration;
use flodl_wire::connection::{Close, Connection, Event, SendError};
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::handshake::{HandshakeError, M1_LEN, M2_LEN, M3_LEN};
use flodl_wire::message::data::{Chunk, Codec};
use flodl_wire::message::{Control, Data, Report};
use flodl_wire::{Hello, Incarnation, Rank, Round, Time, Version};
use proptest::prelude::*;

/// From how many waiting bytes on the connections take no frame.
const HOLDING: usize = 3000;

/// Up is from the dialling side to the accepting one.
#[derive(Copy, Clone, Debug)]
enum Way {
    Up,
    Down,
}

/// Bytes that were recorded somewhere.
#[derive(Copy, Clone, Debug)]
enum Source {
    Here(Way),
    OtherSession(Way),
}

#[derive(Clone, Debug)]
enum Op {
    Send {
        way: Way,
        n: u16,
    },
    /// So many of the bytes that are under way arrive.
    Deliver {
        way: Way,
        n: u16,
    },
    DeliverAll,
    Flip {
        way: Way,
        at: u32,
        bit: u8,
    },
    Drop {
        way: Way,
        at: u32,
        n: u16,
    },
    /// A part of what was recorded comes again, at any place.
    Replay {
        way: Way,
        from: Source,
        part: u32,
        n: u16,
        at: u32,
    },
    /// Two neighbouring parts of what is under way change places.
    Reorder {
        way: Way,
        at: u32,
        n: u16,
        m: u16,
    },
    /// What is under way comes back to its sender too.
    Reflect {
        way: Way,
    },
    Pass {
        ms: u32,
    },
    Close {
        way: Way,
    },
    /// The stream ends where it is.
    End {
        way: Way,
    },
}

fn way() -> impl Strategy<Value = Way> {
    prop_oneof![Just(Way::Up), Just(Way::Down)]
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<u32>;
    let source = prop_oneof![way().prop_map(Source::Here), way().prop_map(Source::OtherSession)];
    prop_oneof![
        6 => (way(), any::<u16>()).prop_map(|(way, n)| Op::Send { way, n }),
        6 => (way(), 0..400u16).prop_map(|(way, n)| Op::Deliver { way, n }),
        6 => Just(Op::DeliverAll),
        2 => (way(), index(), 0..8u8).prop_map(|(way, at, bit)| Op::Flip { way, at, bit }),
        1 => (way(), index(), 1..200u16).prop_map(|(way, at, n)| Op::Drop { way, at, n }),
        2 => (way(), source, index(), 1..400u16, index())
            .prop_map(|(way, from, part, n, at)| Op::Replay { way, from, part, n, at }),
        1 => (way(), index(), 1..200u16, 1..200u16).prop_map(|(way, at, n, m)| Op::Reorder { way, at, n, m }),
        1 => way().prop_map(|way| Op::Reflect { way }),
        2 => (0..4000u32).prop_map(|ms| Op::Pass { ms }),
        1 => way().prop_map(|way| Op::Close { way }),
        1 => way().prop_map(|way| Op::End { way }),
    ]
}

/// One direction: what was said, what of it is under way, what arrived, and the frames in it.
#[derive(Default)]
struct Lane {
    said: Vec<u8>,
    under_way: Vec<u8>,
    arrived: Vec<u8>,
    sent: Vec<Frame>,
    /// Where each of those ends in what was said, once it is.
    ends: Vec<usize>,
    got: Vec<Frame>,
}

impl Lane {
    /// How much of what arrived is what was said.
    fn true_to(&self) -> usize {
        self.said.iter().zip(&self.arrived).take_while(|(a, b)| a == b).count()
    }

    /// How many frames lie wholly in what arrived untouched.
    fn whole(&self) -> usize {
        let true_to = self.true_to();
        self.ends.iter().filter(|&&end| end <= true_to).count()
    }
}

struct World {
    /// The dialling side, the accepting side.
    sides: [Connection; 2],
    /// Up, down.
    lanes: [Lane; 2],
    has_opened: [bool; 2],
    over: [Option<Close>; 2],
    now: Time,
    hello: Hello,
    policy: Controller,
    /// What was said up and down in another session of the same host.
    other: [Vec<u8>; 2],
}

impl World {
    fn new(hello: Hello, refuses: bool) -> World {
        let (now, keys) = (Time::ZERO, keys_for(&hello));
        let dialling = Connection::dial(hello, keys, [0xa1; 32], now).holding(HOLDING);
        let accepting = Connection::accept(&secret().gate_key(), [0xa2; 32], now).holding(HOLDING);
        World {
            sides: [dialling, accepting],
            lanes: Default::default(),
            has_opened: [false; 2],
            over: [None, None],
            now,
            hello,
            policy: if refuses { Controller::refusing("no room") } else { Controller::new() },
            other: other_session(hello),
        }
    }

    /// Takes what both sides have to say.
    fn collect(&mut self) {
        for (side, lane) in self.sides.iter_mut().zip(&mut self.lanes) {
            let bytes = common::said(side);
            lane.said.extend_from_slice(&bytes);
            lane.under_way.extend(bytes);
        }
    }

    fn deliver(&mut self, way: Way, n: usize) {
        let at = way as usize;
        let lane = &mut self.lanes[at];
        let bytes: Vec<u8> = lane.under_way.drain(..n.min(lane.under_way.len())).collect();
        let receiver = 1 - at;
        if self.over[receiver].is_none() {
            lane.arrived.extend_from_slice(&bytes);
        }
        let mut input = &bytes[..];
        while let Some(event) = self.sides[receiver].receive(&mut input, self.now) {
            let is_hello = matches!(event, Event::Hello(_));
            self.heard(receiver, event);
            if is_hello && let Some(event) = self.sides[receiver].admit(&self.policy) {
                self.heard(receiver, event);
            }
        }
    }

    fn heard(&mut self, side: usize, event: Event) {
        assert!(self.over[side].is_none(), "{event:?} after the end of side {side}");
        match event {
            Event::Hello(hello) => assert_eq!((side, hello), (1, self.hello)),
            Event::Open(_) => {
                assert!(!core::mem::replace(&mut self.has_opened[side], true), "opened twice");
                // Whoever opens has heard the other side's whole, untouched part of the handshake, and said its own.
                let least = if side == 0 { [0, M2_LEN] } else { [M1_LEN + M3_LEN, 0] };
                assert!(self.lanes[0].true_to() >= least[0] && self.lanes[1].true_to() >= least[1], "side {side}");
            }
            Event::Frame(frame) => {
                assert!(self.has_opened[side]);
                self.lanes[1 - side].got.push(frame);
            }
            Event::Closed(close) => {
                if let Close::Handshake(HandshakeError::TimedOut { after, .. }) | Close::Slow { after, .. } = &close {
                    assert!(self.now.since(Time::ZERO) >= *after, "{close} at {:?}", self.now);
                }
                assert!(!close.to_string().is_empty());
                self.over[side] = Some(close);
            }
        }
    }

    fn send(&mut self, way: Way, n: u16) {
        let at = way as usize;
        let frame = self.frame(way, n);
        match self.sides[at].send(&frame) {
            Ok(()) => {
                let lane = &mut self.lanes[at];
                lane.sent.push(frame);
                lane.ends.push(lane.said.len() + self.sides[at].outgoing().len());
            }
            Err(SendError::NotOpen) => {}
            Err(SendError::Full { waiting, most }) => assert!(waiting >= most),
            Err(error @ SendError::Seal(_)) => panic!("{error}"),
        }
        assert!(self.sides[at].outgoing().len() < HOLDING + 20_000, "what waits is bounded");
    }

    fn frame(&self, way: Way, n: u16) -> Frame {
        let (host, nobody) = (Stream::Host, Incarnation(0));
        if self.hello.channel == flodl_wire::Channel::Control {
            let report = Report::Heartbeat { step: u64::from(n) };
            let order = Control::ExecuteEval { schedule: u64::from(n) };
            return match way {
                Way::Up => Frame::report(Rank(u32::from(n)), Incarnation(2), &report).unwrap(),
                Way::Down => Frame::control(host, nobody, &order).unwrap(),
            };
        }
        let bytes = (0..n % 16_000).map(|i| (i ^ n) as u8).collect::<Vec<u8>>().into();
        let (round, version, codec) = (Round(u64::from(n)), Version(3), Codec::Exact);
        let chunk = Chunk { round, version, chunk: 0, mass: 1.0, codec, bytes };
        match way {
            Way::Up => Frame::data(host, nobody, &Data::Contribution(chunk)),
            Way::Down => Frame::data(host, nobody, &Data::Consensus(chunk)),
        }
    }

    fn tamper(&mut self, op: &Op) {
        match *op {
            Op::Flip { way, at, bit } => {
                let bytes = &mut self.lanes[way as usize].under_way;
                if !bytes.is_empty() {
                    let at = place(at, bytes.len());
                    bytes[at] ^= 1 << bit;
                }
            }
            Op::Drop { way, at, n } => {
                let bytes = &mut self.lanes[way as usize].under_way;
                let from = place(at, bytes.len() + 1);
                bytes.drain(from..(from + usize::from(n)).min(bytes.len()));
            }
            Op::Replay { way, from, part, n, at } => {
                let recorded = match from {
                    Source::Here(way) => &self.lanes[way as usize].said,
                    Source::OtherSession(way) => &self.other[way as usize],
                };
                let begin = place(part, recorded.len() + 1);
                let part = recorded[begin..(begin + usize::from(n)).min(recorded.len())].to_vec();
                let bytes = &mut self.lanes[way as usize].under_way;
                let at = place(at, bytes.len() + 1);
                bytes.splice(at..at, part);
            }
            Op::Reorder { way, at, n, m } => {
                let bytes = &mut self.lanes[way as usize].under_way;
                let from = place(at, bytes.len() + 1);
                let to = (from + usize::from(n) + usize::from(m)).min(bytes.len());
                let n = usize::from(n).min(to - from);
                bytes[from..to].rotate_left(n);
            }
            Op::Reflect { way } => {
                let copy = self.lanes[way as usize].under_way.clone();
                self.lanes[1 - way as usize].under_way.extend(copy);
            }
            _ => {}
        }
    }

    fn act(&mut self, op: &Op) {
        match *op {
            Op::Send { way, n } => self.send(way, n),
            Op::Deliver { way, n } => self.deliver(way, usize::from(n)),
            Op::DeliverAll => {
                self.deliver(Way::Up, usize::MAX);
                self.collect();
                self.deliver(Way::Down, usize::MAX);
            }
            Op::Pass { ms } => {
                self.now = self.now.plus(Duration::from_millis(u64::from(ms)));
                for side in 0..2 {
                    if let Some(event) = self.sides[side].tick(self.now) {
                        self.heard(side, event);
                    }
                    assert!(
                        self.sides[side].deadline().is_none_or(|deadline| deadline > self.now),
                        "a deadline passed"
                    );
                }
            }
            Op::Close { way } => {
                if let Some(event) = self.sides[way as usize].close() {
                    self.heard(way as usize, event);
                }
            }
            Op::End { way } => {
                let receiver = 1 - way as usize;
                if let Some(event) = self.sides[receiver].ended() {
                    self.heard(receiver, event);
                }
            }
            _ => self.tamper(op),
        }
        self.collect();
        self.check();
    }

    fn check(&self) {
        for (lane, receiver) in self.lanes.iter().zip([1, 0]) {
            let whole = lane.whole();
            assert!(lane.got.len() <= whole, "{} frames out of {whole} that arrived whole", lane.got.len());
            assert_eq!(lane.got[..], lane.sent[..lane.got.len()], "what was sent, in that order");
            let is_untouched = lane.true_to() == lane.arrived.len();
            if is_untouched && self.over[receiver].is_none() {
                assert_eq!(lane.got.len(), whole, "what arrived whole is delivered");
            }
            assert!(self.over[receiver].is_none() || !self.sides[receiver].is_open());
        }
    }
}

/// Any of `n` places.
fn place(at: u32, n: usize) -> usize {
    at as usize % n
}

/// What both sides say in a session with other nonces: the handshake, then some frames.
fn other_session(hello: Hello) -> [Vec<u8>; 2] {
    let mut below = Connection::dial(hello, keys_for(&hello), [0xb1; 32], Time::ZERO);
    let mut above = Connection::accept(&secret().gate_key(), [0xb2; 32], Time::ZERO);
    let mut up = common::said(&mut below);
    common::take(&mut above, &up);
    let mut down = common::said(&mut above);
    common::take(&mut below, &down);
    if hello.channel == flodl_wire::Channel::Control {
        let report = Report::Heartbeat { step: 1 };
        (0..3).for_each(|rank| below.send(&Frame::report(Rank(rank), Incarnation(2), &report).unwrap()).unwrap());
    }
    up.extend(common::said(&mut below));
    common::take(&mut above, &up[M1_LEN..]);
    if hello.channel == flodl_wire::Channel::Control {
        let order = Control::Heartbeat;
        (0..3).for_each(|_| above.send(&Frame::control(Stream::Host, Incarnation(0), &order).unwrap()).unwrap());
    }
    down.extend(common::said(&mut above));
    [up, down]
}

fn play(hello: Hello, refuses: bool, ops: &[Op]) -> World {
    let mut world = World::new(hello, refuses);
    world.collect();
    ops.iter().for_each(|op| world.act(op));
    world
}

/// The handshake as it should be.
const SHAKEN: [Op; 2] = [Op::DeliverAll, Op::DeliverAll];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn c11_no_sequence_of_operations_delivers_what_was_not_sent(
        ops in prop::collection::vec(op(), 0..40), is_data in any::<bool>(), is_shaken in any::<bool>(), refuses in prop::bool::weighted(0.1),
    ) {
        let hello = if is_data { data_hello() } else { relay_hello() };
        let before = if is_shaken { &SHAKEN[..] } else { &[] };
        play(hello, refuses, &[before, &ops].concat());
    }

    #[test]
    fn c11_without_an_adversary_everything_arrives(
        ops in prop::collection::vec((way(), any::<u16>(), 0..500u16), 0..60), is_data in any::<bool>(),
    ) {
        let hello = if is_data { data_hello() } else { relay_hello() };
        let honest = ops.into_iter().flat_map(|(way, n, part)| [Op::Send { way, n }, Op::Deliver { way, n: part }]);
        let world = play(hello, false, &SHAKEN.into_iter().chain(honest).chain(SHAKEN).collect::<Vec<Op>>());
        for lane in &world.lanes {
            prop_assert_eq!(&lane.got, &lane.sent);
        }
        prop_assert_eq!(world.over, [None, None]);
    }
}

/// A world in which nothing ever happens would pass everything.
#[test]
fn c11_the_operations_do_what_they_say() {
    let send = |n| Op::Send { way: Way::Up, n };
    let first = |op: Op| {
        let ops = [&SHAKEN[..], &[send(1), send(2), op, Op::DeliverAll]].concat();
        let world = play(relay_hello(), false, &ops);
        assert!(world.has_opened[0] && world.has_opened[1]);
        (world.lanes[0].got.len(), world.over[1].clone())
    };
    let at = 0;
    assert_eq!(first(Op::Deliver { way: Way::Up, n: 3 }), (2, None));
    let (way, frame) = (Way::Up, 24 + 2 + 16);
    assert!(matches!(first(Op::Flip { way, at, bit: 0 }), (0, Some(Close::Frame(_)))));
    assert!(matches!(first(Op::Drop { way, at, n: frame }), (0, Some(Close::Frame(_)))));
    assert!(matches!(first(Op::Reorder { way, at, n: frame, m: frame }), (0, Some(Close::Frame(_)))));
    let replay = |from| first(Op::Replay { way, from, part: at, n: 50, at });
    assert!(matches!(replay(Source::Here(Way::Up)), (0, Some(Close::Frame(_)))));
    assert!(matches!(replay(Source::OtherSession(Way::Down)), (0, Some(Close::Frame(_)))));
    assert!(matches!(first(Op::End { way }), (0, Some(Close::Ended))));
    let world = play(relay_hello(), false, &[&SHAKEN[..], &[send(1), Op::Reflect { way }, Op::DeliverAll]].concat());
    assert!(matches!(world.over[0], Some(Close::Frame(_))));
    let world = play(relay_hello(), false, &[Op::Pass { ms: 5000 }, Op::Pass { ms: 5000 }]);
    assert!(world.over.iter().all(|over| matches!(over, Some(Close::Handshake(HandshakeError::TimedOut { .. })))));
    assert!(matches!(play(relay_hello(), true, &SHAKEN).over[0], Some(Close::Handshake(HandshakeError::Refused(_)))));
}
