//! What is done with hostile bytes: one function for each parser. The coverage-guided fuzzers in `fuzz/` call them, and
//! `tests/corpus.rs` plays what those have kept.
//!
//! Each demands more than that nothing panics: whatever was changed is refused, and whatever is taken comes back the same.

#![allow(dead_code, unreachable_pub, reason = "each program uses its own part of it")]
#![allow(clippy::indexing_slicing, reason = "a fuzzer that goes out of bounds has found something")]

use super::common::{
    Controller, NONCE_C, NONCE_S, data_hello, handshake, keys_for, rank_hello, relay_hello, samples, secret,
};
use core::fmt::Debug;
use flodl_wire::codec::{decode, encode};
use flodl_wire::handshake::{Dialler, M1_LEN, M2_LEN, M3_LEN, Unheard, greet};
use flodl_wire::message::data::AbsentWhy;
use flodl_wire::message::join::RunConfig;
use flodl_wire::message::{Check, Control, Data, HostReport, Report};
use flodl_wire::secret::{Secret, Ticket};
use flodl_wire::{Channel, Frame, Hello, HostId, Incarnation, Kind, Rank, Role, Round, RunId, SessionId, Stream};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A parser and its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 8] = [
    ("hello", hello),
    ("challenge", challenge),
    ("finish", finish),
    ("frame", frame),
    ("message", message),
    ("chunk", chunk),
    ("config", config),
    ("ticket", ticket),
];

/// The first `N` bytes, filled up with zeros.
fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    for (to, from) in array.iter_mut().zip(bytes) {
        *to = *from;
    }
    array
}

/// `original` with bits turned over where `change` has ones; whether there were any.
fn changed<const N: usize>(original: &[u8; N], change: &[u8]) -> ([u8; N], bool) {
    let change: [u8; N] = array(change);
    let mut bytes = *original;
    for (byte, bits) in bytes.iter_mut().zip(change) {
        *byte ^= bits;
    }
    (bytes, change != [0; N])
}

/// M1: a stranger's bytes, and whatever a member may ask for.
pub fn hello(bytes: &[u8]) {
    let gate = secret().gate_key();
    assert!(greet(&gate, &array::<M1_LEN>(bytes)).is_err(), "without the key of the gate nobody is heard");
    let field = |from: usize| bytes.get(from..).unwrap_or_default();
    let [kind, channel] = array(bytes);
    let number = u32::from_le_bytes(array(field(2)));
    let role = match kind % 2 {
        0 => Role::Relay { rank_count: number },
        _ => Role::Rank { rank: Rank(number), incarnation: Incarnation(u32::from_le_bytes(array(field(6)))) },
    };
    let asked = Hello {
        role,
        channel: if channel % 2 == 0 { Channel::Control } else { Channel::Data },
        session: SessionId(u64::from_le_bytes(array(field(10)))),
        run_id: RunId(array(field(18))),
        host_id: HostId(array(field(34))),
        capabilities: flodl_wire::Capabilities::ALL,
    };
    let m1 = *Dialler::new(asked, keys_for(&asked), NONCE_C).m1();
    if let Ok(greeted) = greet(&gate, &m1) {
        assert_eq!(*greeted.hello(), asked);
    }
    let (m1, is_changed) = changed(&m1, field(50));
    assert!(!is_changed || greet(&gate, &m1).is_err(), "a changed greeting is a stranger's");
}

/// M2, as the dialling side reads it: in portions, changed, cut short, or made up.
pub fn challenge(bytes: &[u8]) {
    let hello = if bytes.first().is_some_and(|first| first % 2 == 1) { rank_hello() } else { relay_hello() };
    let policy = if bytes.first().is_some_and(|first| first % 4 > 1) {
        Controller::refusing("another version")
    } else {
        Controller::new()
    };
    let mut dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    let greeted = greet(&policy.gate, dialler.m1()).expect("its own greeting");
    let answer: Vec<u8> = match greeted.admit(&policy, NONCE_S) {
        Ok((_, m2)) => m2.to_vec(),
        Err(Unheard::Refusal(refusal, _)) => refusal.to_vec(),
        Err(Unheard::Silence(_)) => return,
    };
    let original: [u8; M2_LEN] = array(&answer);
    let (answer, is_changed) = changed(&original, bytes.get(2..).unwrap_or_default());
    let mut answer = answer.to_vec();
    answer.truncate(usize::from(bytes.get(1).copied().unwrap_or(u8::MAX)).max(1));
    let mut rest = &answer[..];
    let portion = usize::from(bytes.get(1).copied().unwrap_or(0) % 50) + 1;
    while !rest.is_empty() {
        let n = portion.min(rest.len()).min(dialler.space().len());
        if n == 0 {
            return;
        }
        dialler.space()[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        match dialler.filled(n) {
            Ok(Some(_)) => return assert!(!is_changed, "a changed challenge is answered"),
            Ok(None) => {}
            Err(_) => return,
        }
    }
    let _why: flodl_wire::HandshakeError = dialler.closed();
}

/// M3: only the right one is taken.
pub fn finish(bytes: &[u8]) {
    let hello = rank_hello();
    let mut dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    let policy = Controller::new();
    let greeted = greet(&policy.gate, dialler.m1()).expect("its own greeting");
    let Ok((challenged, m2)) = greeted.admit(&policy, NONCE_S) else { panic!("a member is let in") };
    dialler.space()[..m2.len()].copy_from_slice(&m2);
    let finish = dialler.filled(m2.len()).expect("its own challenge").expect("all of it");
    let original: [u8; M3_LEN] = finish.m3;
    let (m3, is_changed) = changed(&original, bytes);
    assert_eq!(challenged.finish(&m3).is_err(), is_changed);
}

/// Sealed frames: what was changed, cut out, doubled or made up is refused, and nothing after it is read.
pub fn frame(bytes: &[u8]) {
    let [portion, at, deed] = array(bytes);
    let change = bytes.get(3..).unwrap_or_default();
    // Reports on a control connection, or chunks and what stands for them on one for data.
    let is_data = (deed / 3) % 2 == 1;
    let (_, mut below, mut above) = handshake(if is_data { data_hello() } else { relay_hello() });
    let report = |step| Frame::report(Rank(3), Incarnation(2), &Report::Heartbeat { step }).expect("it is valid");
    let sent: Vec<Frame> = if is_data {
        let chunk = |len: u8| Data::Contribution(samples::chunk((0..len).collect()));
        let absent = Data::Absent { round: Round(5), from_chunk: 3, why: AbsentWhy::Dead };
        [chunk(40), absent, chunk(0)].map(|data| Frame::data(Stream::Host, Incarnation(0), &data)).into()
    } else {
        (0..3).map(report).collect()
    };
    let mut wire = Vec::new();
    let mut ends = vec![0];
    for frame in &sent {
        below.sealer.seal(frame, &mut wire).expect("it is sealed");
        ends.push(wire.len());
    }
    let original = wire.clone();
    let from = usize::from(at) % wire.len();
    match deed % 3 {
        0 => wire[from..].iter_mut().zip(change).for_each(|(byte, bits)| *byte ^= bits),
        1 => {
            let to = (from + usize::from(change.first().copied().unwrap_or(0))).min(wire.len());
            wire.drain(from..to);
        }
        _ => {
            wire.splice(from..from, change.iter().copied());
        }
    }
    let same = original.iter().zip(&wire).take_while(|(a, b)| a == b).count();
    let whole = ends.iter().skip(1).filter(|&&end| end <= same).count();
    let mut got = Vec::new();
    'all: for mut input in wire.chunks(usize::from(portion) + 1) {
        while !input.is_empty() {
            match above.opener.feed(&mut input) {
                Ok(Some(frame)) => got.push(frame),
                Ok(None) => {}
                Err(_) => break 'all,
            }
        }
    }
    assert_eq!(got, sent[..whole], "the frames before the first change, and no other");
}

/// Whatever can be read can be written, and is read the same.
fn round_trip<T: Serialize + DeserializeOwned + Check + Debug>(bytes: &[u8]) {
    if let Ok(message) = decode::<T>(bytes) {
        let written = encode(&message).expect("what was read can be written");
        let again: T = decode(&written).expect("what was written can be read");
        assert_eq!(encode(&again).expect("as before"), written, "{message:?}");
    }
}

/// A message of each kind; the first byte chooses.
pub fn message(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => round_trip::<Control>(bytes),
        1 => round_trip::<Report>(bytes),
        _ => round_trip::<HostReport>(bytes),
    }
}

/// A data message: its header and what follows.
pub fn chunk(bytes: &[u8]) {
    let (_, mut below, mut above) = handshake(Hello { channel: Channel::Data, session: SessionId(7), ..relay_hello() });
    let [kind] = array(bytes);
    let payload = bytes.get(1..).unwrap_or_default();
    let kinds = [Kind::Contribution, Kind::Absent, Kind::Dropped, Kind::Holds];
    let kind = kinds[usize::from(kind) % kinds.len()];
    let frame = Frame {
        kind,
        stream: if kind == Kind::Holds { Stream::Host } else { Stream::Rank(Rank(3)) },
        incarnation: Incarnation(2),
        payload: bytes::Bytes::copy_from_slice(payload),
    };
    if let Ok(data) = frame.to_data() {
        let again = Frame::data(frame.stream, frame.incarnation, &data);
        assert_eq!(again, frame, "{data:?}");
    }
    let mut wire = Vec::new();
    if below.sealer.seal(&frame, &mut wire).is_ok() {
        let opened = above.opener.feed(&mut &wire[..]).expect("what can be sealed can be opened");
        let opened: Option<Data> = opened.and_then(|frame| frame.to_data().ok());
        assert_eq!(opened.is_some(), frame.to_data().is_ok());
    }
}

/// The settings of a run.
pub fn config(bytes: &[u8]) {
    round_trip::<RunConfig>(bytes);
}

/// The text of a ticket or a secret.
pub fn ticket(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    if let Ok(ticket) = Ticket::parse(text) {
        let written = ticket.to_text();
        let again = Ticket::parse(&written).expect("its own text");
        assert_eq!(*again.to_text(), *written);
    }
    if let Ok(secret) = Secret::parse(text) {
        assert!(Secret::parse(&secret.to_text()).is_ok());
    }
}
