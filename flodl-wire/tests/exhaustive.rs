//! Every way to misuse what was recorded, tried one by one: each bit of 200 frames, each cut, each message in each wrong place,
//! each wrong key.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::samples::{controls, datas, host_reports, reports};
use common::{
    Controller, NONCE_C, NONCE_S, RUN, data_hello, handshake, host, keys_for, rank_hello, relay_hello, said, secret,
    take,
};
use core::time::Duration;
use flodl_wire::connection::{Close, Connection, Event};
use flodl_wire::frame::{Frame, HeaderError, Kind, OpenError, Stream};
use flodl_wire::handshake::{Accept, Admission, HandshakeError, M2_LEN};
use flodl_wire::secret::{DialKeys, GateKey, PeerKey, Secret};
use flodl_wire::{Hello, HostId, Incarnation, Rank, Role, RunId, SessionId, Time};

/// A frame and where it belongs.
struct Sample {
    hello: Hello,
    is_up: bool,
    frame: Frame,
}

/// 200 frames of every kind and every message, for and from everybody.
fn samples() -> Vec<Sample> {
    let ranks = [0, 3, 299, 65_535].map(Rank);
    let streams = ranks.map(Stream::Rank).into_iter().chain([Stream::Host, Stream::AllRanks]);
    let mut samples = Vec::new();
    let mut add = |hello, is_up, frame| samples.push(Sample { hello, is_up, frame });
    for (stream, life) in streams.zip(0..) {
        let life = Incarnation(life);
        for message in controls() {
            add(relay_hello(), false, Frame::control(stream, life, &message).unwrap());
        }
        for data in datas() {
            let frame = Frame::data(stream, life, &data);
            if frame.kind.suits(stream) {
                add(data_hello(), !matches!(frame.kind, Kind::Consensus | Kind::LeftOut), frame);
            }
        }
        let Stream::Rank(rank) = stream else { continue };
        for message in reports() {
            add(relay_hello(), true, Frame::report(rank, life, &message).unwrap());
        }
    }
    for message in host_reports() {
        add(relay_hello(), true, Frame::host_report(&message).unwrap());
    }
    // Evenly out of all that are short; each kind is among them.
    samples.retain(|sample| sample.frame.payload.len() <= 200);
    let every = samples.len();
    let (mut chosen, left): (Vec<_>, Vec<_>) =
        samples.into_iter().enumerate().partition(|(at, _)| at * 200 / every != (at + 1) * 200 / every);
    chosen.truncate(200);
    let mut spare = 0;
    for (place, sample) in left {
        // Of a kind that is passed over otherwise.
        if chosen.iter().all(|(_, other)| other.frame.kind != sample.frame.kind) {
            chosen[spare] = (place, sample);
            spare += 1;
        }
    }
    chosen.into_iter().map(|(_, sample)| sample).collect()
}

/// The frame's bytes, and a fresh decoder for every attempt to read some.
fn sealed(sample: &Sample) -> (Vec<u8>, impl Fn() -> flodl_wire::Opener) {
    let (hello, is_up) = (sample.hello, sample.is_up);
    let (_, dialled, accepted) = handshake(hello);
    let mut sealer = if is_up { dialled.sealer } else { accepted.sealer };
    let mut bytes = Vec::new();
    sealer.seal(&sample.frame, &mut bytes).unwrap();
    let opener = move || {
        let (_, dialled, accepted) = handshake(hello);
        if is_up { accepted.opener } else { dialled.opener }
    };
    (bytes, opener)
}

#[test]
fn every_flipped_bit_of_200_frames_is_refused() {
    let samples = samples();
    assert_eq!(samples.len(), 200);
    for kind in Kind::ALL {
        assert!(samples.iter().any(|sample| sample.frame.kind == kind), "no {kind} frame");
    }
    for sample in &samples {
        let (bytes, opener) = sealed(sample);
        assert_eq!(opener().feed(&mut &bytes[..]), Ok(Some(sample.frame.clone())));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (mut opener, mut input) = (opener(), &flipped[..]);
            let outcome = opener.feed(&mut input);
            // A longer length that is still plausible makes the decoder wait for the rest, which then does not verify.
            let outcome = match outcome {
                Ok(None) if bit < 32 => opener.feed(&mut &vec![0; opener.missing()][..]),
                outcome => outcome,
            };
            assert!(outcome.is_err(), "bit {bit} of {:?}: {outcome:?}", sample.frame);
        }
    }
}

#[test]
fn no_cut_of_200_frames_is_a_frame() {
    for sample in samples() {
        let (bytes, opener) = sealed(&sample);
        let mut opener = opener();
        for (byte, len) in bytes.iter().zip(1..) {
            let outcome = opener.feed(&mut &[*byte][..]);
            assert_eq!(outcome, Ok((len == bytes.len()).then(|| sample.frame.clone())), "cut to {len}");
        }
    }
}

/// What was said in a session: three messages of the handshake, then frames up and down.
struct Recording {
    messages: [Vec<u8>; 3],
    up: Vec<Vec<u8>>,
    down: Vec<Vec<u8>>,
}

fn connections(hello: Hello, nonces: [[u8; 32]; 2]) -> (Connection, Connection) {
    let below = Connection::dial(hello, keys_for(&hello), nonces[0], Time::ZERO);
    (below, Connection::accept(&secret().gate_key(), nonces[1], Time::ZERO))
}

fn record(hello: Hello, nonces: [[u8; 32]; 2]) -> Recording {
    let (mut below, mut above) = connections(hello, nonces);
    let m1 = said(&mut below);
    take(&mut above, &m1);
    let m2 = said(&mut above);
    take(&mut below, &m2);
    let m3 = said(&mut below);
    take(&mut above, &m3);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for sample in samples().iter().filter(|sample| sample.hello.channel == hello.channel) {
        let (from, to) = if sample.is_up { (&mut below, &mut up) } else { (&mut above, &mut down) };
        if to.len() < 3 {
            from.send(&sample.frame).unwrap();
            to.push(said(from));
        }
    }
    Recording { messages: [m1, m2, m3], up, down }
}

/// A session in each of its states, with what it is waiting for.
fn states(hello: Hello, nonces: [[u8; 32]; 2]) -> [(&'static str, Connection); 5] {
    let start = || connections(hello, nonces);
    let challenged = || {
        let (mut below, mut above) = start();
        take(&mut above, &said(&mut below));
        (below, above)
    };
    let opened = || {
        let (mut below, mut above) = challenged();
        take(&mut below, &said(&mut above));
        take(&mut above, &said(&mut below));
        (below, above)
    };
    let (below, above) = opened();
    [("hello", start().1), ("challenge", start().0), ("finish", challenged().1), ("down", below), ("up", above)]
}

#[test]
fn nothing_recorded_is_taken_in_another_session() {
    let fresh = [[0xd1; 32], [0xd2; 32]];
    // Nonces of this side are never used twice, and that suffices: that the other side's is the same helps nobody.
    let (dialling, accepting) = (["challenge", "down"], ["hello", "finish", "up"]);
    let replays = [
        ([NONCE_C, NONCE_S], [&dialling[..], &accepting].concat()),
        ([NONCE_C, fresh[1]], dialling.to_vec()),
        ([fresh[0], NONCE_S], accepting.to_vec()),
    ];
    let hellos = [relay_hello(), rank_hello(), data_hello()];
    for (hello, (old, against)) in
        hellos.into_iter().flat_map(|hello| replays.iter().map(move |replay| (hello, replay)))
    {
        let Recording { messages, up, down } = record(hello, *old);
        assert!(up.len() == 3 && down.len() == 3);
        for (said, bytes) in messages.iter().chain(&up).chain(&down).enumerate() {
            for (state, mut connection) in states(hello, fresh).into_iter().filter(|(state, _)| against.contains(state))
            {
                let mut events = take(&mut connection, bytes);
                // Whoever has the gate key may be greeted again; it comes no further.
                let is_hello = (said, state) == (0, "hello");
                if is_hello {
                    assert_eq!(events.remove(0), Event::Hello(hello));
                    events.extend(take(&mut connection, &messages[2]));
                }
                events.extend(connection.ended());
                assert!(matches!(events[..], [Event::Closed(_)]), "message {said} as {state}: {events:?}");
                if is_hello {
                    assert_eq!(events, [Event::Closed(HandshakeError::WrongKey.into())]);
                }
            }
        }
    }
}

#[test]
fn nothing_is_taken_in_another_place_of_its_own_session() {
    let nonces = [NONCE_C, NONCE_S];
    for hello in [relay_hello(), rank_hello(), data_hello()] {
        let Recording { messages, up, down } = record(hello, nonces);
        let named = messages.iter().zip(["hello", "challenge", "finish"]);
        let frames = up.iter().zip(["up", "", ""]).chain(down.iter().zip(["down", "", ""]));
        for (bytes, place) in named.chain(frames) {
            for (state, mut connection) in states(hello, nonces) {
                let mut events = take(&mut connection, bytes);
                if state == place {
                    assert!(matches!(events[..], [Event::Hello(_) | Event::Open(_) | Event::Frame(_)]), "{events:?}");
                    events = take(&mut connection, bytes);
                }
                events.extend(connection.ended());
                assert!(matches!(events[..], [Event::Closed(_)]), "what belongs to {place:?} as {state}: {events:?}");
            }
        }
    }
}

#[test]
fn frames_arrive_in_one_order_alone() {
    let Recording { up, .. } = record(relay_hello(), [NONCE_C, NONCE_S]);
    for order in 0..27 {
        let order = [order / 9, order / 3 % 3, order % 3];
        let (_, mut above) = common::open(relay_hello());
        let bytes: Vec<u8> = order.iter().flat_map(|at| up[*at].clone()).collect();
        let events = take(&mut above, &bytes);
        let right = order.iter().zip(0..).take_while(|(at, n)| **at == *n).count();
        assert_eq!(events.iter().filter(|event| matches!(event, Event::Frame(_))).count(), right, "{order:?}");
        let is_over = matches!(events.last(), Some(Event::Closed(Close::Frame(OpenError::Sequence { .. }))));
        assert_eq!(is_over, right < 3, "{order:?}");
    }
}

#[test]
fn channels_cannot_be_swapped() {
    let nonces = [NONCE_C, NONCE_S];
    let (control, data) = (record(relay_hello(), nonces), record(data_hello(), nonces));
    for (hello, other) in [(relay_hello(), &data), (data_hello(), &control)] {
        let wrong = [Event::Closed(HandshakeError::WrongKey.into())];
        let [_, (_, mut dialling), (_, mut proving), ..] = states(hello, nonces);
        assert_eq!(take(&mut dialling, &other.messages[1]), wrong);
        assert_eq!(take(&mut proving, &other.messages[2]), wrong);
        for frame in &other.up {
            let (_, mut above) = common::open(hello);
            let events = take(&mut above, frame);
            assert!(matches!(
                events[..],
                [Event::Closed(Close::Frame(OpenError::Header(HeaderError::Misplaced { .. })))]
            ));
        }
        // Dressed up as one that belongs there it is still sealed under another key.
        let (kind, stream) = if hello.channel == flodl_wire::Channel::Control { (2u16, 3u32) } else { (16, 3) };
        let mut frame = other.up[0].clone();
        frame[4..6].copy_from_slice(&kind.to_le_bytes());
        frame[16..20].copy_from_slice(&stream.to_le_bytes());
        frame.resize(24 + 64 + 16, 0);
        frame[0..4].copy_from_slice(&80u32.to_le_bytes());
        let (_, mut above) = common::open(hello);
        assert_eq!(take(&mut above, &frame), [Event::Closed(Close::Frame(OpenError::Forged { seq: 0 }))]);
    }
}

/// A controller as it would be if the impostor's key were the right one.
struct Believer {
    gate: GateKey,
    key: PeerKey,
}

impl Admission for Believer {
    fn gate_key(&self) -> &GateKey {
        &self.gate
    }

    fn decide(&self, _: &Hello) -> Result<Accept, String> {
        Ok(Accept { key: self.key.clone(), session: SessionId(7) })
    }

    fn patience(&self) -> Duration {
        Controller::new().patience()
    }

    fn generation(&self) -> u64 {
        Controller::new().generation()
    }

    fn membership_epoch(&self) -> u64 {
        Controller::new().membership_epoch()
    }
}

#[test]
fn whoever_holds_another_key_comes_in_nowhere() {
    let (other_run, other_host) = (RunId([0x22; 16]), HostId::from_name("box-3").unwrap());
    let Role::Rank { rank, incarnation } = rank_hello().role else { panic!("a rank's hello") };
    let of_host = secret().host_key(RUN, host());
    let stranger = Secret::from_bytes([0x43; 32]);
    let impostors: [(Hello, PeerKey, &str); 8] = [
        (rank_hello(), of_host.rank_key(Rank(rank.0 + 1), incarnation).into(), "another rank's key"),
        (rank_hello(), of_host.rank_key(rank, Incarnation(incarnation.0 + 1)).into(), "another life's key"),
        (
            rank_hello(),
            secret().host_key(RUN, other_host).rank_key(rank, incarnation).into(),
            "the rank of another host",
        ),
        (rank_hello(), of_host.clone().into(), "its host's key"),
        (relay_hello(), of_host.rank_key(rank, incarnation).into(), "a rank's key"),
        (relay_hello(), secret().host_key(RUN, other_host).into(), "another host's ticket"),
        (relay_hello(), secret().host_key(other_run, host()).into(), "a ticket of another run"),
        (relay_hello(), stranger.host_key(RUN, host()).into(), "another secret"),
    ];
    for (hello, key, what) in impostors {
        let keys = DialKeys { gate: secret().gate_key(), peer: key.clone() };
        let wrong = [Event::Closed(HandshakeError::WrongKey.into())];
        let mut above = Connection::accept(&secret().gate_key(), NONCE_S, Time::ZERO);
        let mut honest = Connection::dial(hello, keys.clone(), NONCE_C, Time::ZERO);
        assert_eq!(take(&mut above, &said(&mut honest)), [Event::Hello(hello)], "{what}");
        let challenge = said(&mut above);
        assert_eq!(take(&mut honest, &challenge), wrong, "{what}");
        // One that does not care computes its proof as if the challenge had been meant for its key.
        let mut forger = Connection::dial(hello, keys.clone(), NONCE_C, Time::ZERO);
        let mut believer = Connection::accept(&keys.gate, NONCE_S, Time::ZERO);
        let m1 = said(&mut forger);
        believer.receive(&mut &m1[..], Time::ZERO);
        believer.admit(&Believer { gate: keys.gate, key });
        let believed = said(&mut believer);
        assert_eq!(believed[..M2_LEN - 32], challenge[..M2_LEN - 32], "they differ in their proofs alone");
        assert!(matches!(take(&mut forger, &believed)[..], [Event::Open(_)]));
        assert_eq!(take(&mut above, &said(&mut forger)), wrong, "{what}");
    }
    // Who says openly that it means another run is told so.
    let hello = Hello { run_id: other_run, ..relay_hello() };
    let (mut below, mut above) = connections(hello, [NONCE_C, NONCE_S]);
    take(&mut above, &said(&mut below));
    let events = take(&mut below, &said(&mut above));
    let [Event::Closed(close)] = &events[..] else { panic!("{events:?}") };
    let sentence = format!("refused: this is run {RUN}, you asked for run {other_run}: use a ticket of this run");
    assert_eq!(close.to_string(), sentence);
}
