//! What the handshake lets through, and everything it does not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::samples::OTHER_RUN;
use common::{
    Controller, NONCE_C, NONCE_S, RUN, data_hello, handshake, host, keys_for, rank_hello, relay_hello, secret,
};
use core::time::Duration;
use flodl_wire::frame::{Frame, OpenError, Stream};
use flodl_wire::handshake::{
    Challenged, Dialler, Finish, HandshakeError, M1_LEN, M2_LEN, M3_LEN, REFUSE_LEN, StrangerWhy, Unheard, greet,
};
use flodl_wire::message::{Control, HostReport};
use flodl_wire::secret::{DialKeys, PeerKey};
use flodl_wire::{Channel, Hello, HostId, Incarnation, Rank, Role, Secret, SessionId};
use hmac::{Hmac, KeyInit, Mac};

/// One of each kind of connection.
const HELLOS: [fn() -> Hello; 3] = [relay_hello, rank_hello, data_hello];

/// Gives the dialling side `answer`, then the end of the connection if it wants more.
fn answered(hello: Hello, keys: DialKeys, answer: &[u8]) -> Result<Finish, HandshakeError> {
    let mut dialler = Dialler::new(hello, keys, NONCE_C);
    let mut rest = answer;
    while !rest.is_empty() {
        let space = dialler.space();
        let n = space.len().min(rest.len());
        space[..n].copy_from_slice(&rest[..n]);
        rest = &rest[n..];
        if let Some(finish) = dialler.filled(n)? {
            return Ok(finish);
        }
    }
    Err(dialler.closed())
}

/// The accepting side after its challenge to a dialler of `hello`.
fn challenged(hello: Hello) -> (Challenged, [u8; M2_LEN]) {
    let dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    greet(&secret().gate_key(), dialler.m1()).unwrap().admit(&Controller::new(), NONCE_S).unwrap()
}

fn stranger(why: StrangerWhy) -> HandshakeError {
    HandshakeError::Stranger { why }
}

/// The refusal that a hello is answered with.
fn refused(policy: &Controller, m1: &[u8; M1_LEN]) -> (Box<[u8; REFUSE_LEN]>, HandshakeError) {
    match greet(&policy.gate, m1).and_then(|greeted| greeted.admit(policy, NONCE_S)) {
        Err(Unheard::Refusal(refusal, error)) => (refusal, error),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

/// `m1` with other bytes and a right gate tag, computed here from the formula.
fn forged_by_member(mut m1: [u8; M1_LEN], at: usize, bytes: &[u8]) -> [u8; M1_LEN] {
    m1[at..at + bytes.len()].copy_from_slice(bytes);
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(secret().gate_key().expose()).unwrap();
    mac.update(&m1[..104]);
    m1[104..].copy_from_slice(&mac.finalize().into_bytes()[..16]);
    m1
}

#[test]
fn both_sides_agree_for_every_role_and_channel() {
    for hello in HELLOS {
        let hello = hello();
        let (_, dialled, accepted) = handshake(hello);
        for side in [&dialled, &accepted] {
            assert_eq!((side.session, side.patience), (SessionId(7), Duration::from_millis(12_345)));
            assert_eq!((side.generation, side.membership_epoch), (3, 9));
        }
    }
    let hello = relay_hello();
    assert_eq!(hello.to_string(), "the relay for 2 ranks of host box-2 (control connection)");
}

#[test]
fn every_flipped_bit_of_the_hello_is_met_with_silence() {
    for hello in HELLOS {
        let hello = hello();
        let m1 = *Dialler::new(hello, keys_for(&hello), NONCE_C).m1();
        for bit in 0..M1_LEN * 8 {
            let mut flipped = m1;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let why = if bit < 64 { StrangerWhy::NotFlodl } else { StrangerWhy::WrongGate };
            match greet(&secret().gate_key(), &flipped) {
                Err(Unheard::Silence(error)) => assert_eq!(error, stranger(why), "{hello}: bit {bit}"),
                other => panic!("{hello}: bit {bit}: {other:?}"),
            }
        }
    }
}

#[test]
fn every_flipped_bit_of_the_challenge_is_refused() {
    for hello in HELLOS {
        let hello = hello();
        let (_, m2) = challenged(hello);
        assert!(answered(hello, keys_for(&hello), &m2).is_ok());
        for bit in 0..M2_LEN * 8 {
            let mut flipped = m2;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = answered(hello, keys_for(&hello), &flipped).map(|_| ()).unwrap_err();
            let right = match bit / 8 {
                0..8 => matches!(error, HandshakeError::Malformed { message: "challenge", .. }),
                8..10 => matches!(error, HandshakeError::Version { .. }),
                10..16 | 44..56 => matches!(error, HandshakeError::Malformed { message: "challenge", .. }),
                _ => error == HandshakeError::WrongKey,
            };
            assert!(right, "{hello}: bit {bit}: {error}");
        }
    }
}

#[test]
fn every_flipped_bit_of_the_finish_is_refused() {
    for hello in HELLOS {
        let hello = hello();
        let m3 = handshake(hello).0.m3;
        assert!(challenged(hello).0.finish(&m3).is_ok());
        for bit in 0..M3_LEN * 8 {
            let mut flipped = m3;
            flipped[bit / 8] ^= 1 << (bit % 8);
            let error = challenged(hello).0.finish(&flipped).map(|_| ()).unwrap_err();
            let magic = matches!(error, HandshakeError::Malformed { message: "finish", .. });
            assert!(if bit < 64 { magic } else { error == HandshakeError::WrongKey }, "{hello}: bit {bit}: {error}");
        }
    }
}

#[test]
fn every_flipped_bit_of_a_refusal_is_noticed() {
    let hello = relay_hello();
    let m1 = *Dialler::new(hello, keys_for(&hello), NONCE_C).m1();
    let (refusal, _) = refused(&Controller::refusing("no room"), &m1);
    let said = answered(hello, keys_for(&hello), &refusal[..]).unwrap_err();
    assert_eq!(said, HandshakeError::Refused("no room".to_owned()));
    for bit in 0..REFUSE_LEN * 8 {
        let mut flipped = *refusal;
        flipped[bit / 8] ^= 1 << (bit % 8);
        let error = answered(hello, keys_for(&hello), &flipped).unwrap_err();
        assert!(matches!(error, HandshakeError::Malformed { .. }), "bit {bit}: {error}");
    }
}

#[test]
fn an_answer_cut_anywhere_is_no_answer() {
    let hello = relay_hello();
    let (_, m2) = challenged(hello);
    let m1 = *Dialler::new(hello, keys_for(&hello), NONCE_C).m1();
    let (refusal, _) = refused(&Controller::refusing("no room"), &m1);
    for whole in [&m2[..], &refusal[..]] {
        for len in 0..whole.len() {
            let error = answered(hello, keys_for(&hello), &whole[..len]).unwrap_err();
            let silent = HandshakeError::Silent { run_id: RUN, host: "box-2".to_owned() };
            let closed = HandshakeError::Closed { waiting_for: "answer to the hello" };
            assert_eq!(error, if len == 0 { silent } else { closed }, "{len} of {}", whole.len());
        }
    }
}

#[test]
fn an_answer_may_come_byte_by_byte_and_no_byte_behind_it_is_taken() {
    let hello = relay_hello();
    let (_, m2) = challenged(hello);
    let mut dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    for (i, byte) in m2.iter().enumerate() {
        assert_eq!(dialler.space().len(), M2_LEN - i);
        dialler.space()[0] = *byte;
        assert_eq!(dialler.filled(1).unwrap().is_some(), i + 1 == M2_LEN, "byte {i}");
    }
}

#[test]
fn a_wrong_secret_is_met_with_silence_that_names_the_run() {
    let other = Secret::from_bytes([0x43; 32]);
    let keys = DialKeys { gate: other.gate_key(), peer: other.host_key(RUN, host()).into() };
    let dialler = Dialler::new(relay_hello(), keys, NONCE_C);
    match greet(&secret().gate_key(), dialler.m1()) {
        Err(Unheard::Silence(error)) => assert_eq!(error, stranger(StrangerWhy::WrongGate)),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        dialler.closed().to_string(),
        "closed without an answer when asked for run 11111111111111111111111111111111 as host box-2: the key there is \
         another one (a ticket or secret of another run), or what listens there is not flodl"
    );
}

#[test]
fn the_right_gate_key_is_not_enough() {
    let others = [
        PeerKey::from(secret().host_key(RUN, HostId([9; 16]))),
        PeerKey::from(secret().host_key(OTHER_RUN, host())),
        PeerKey::from(secret().host_key(RUN, host()).rank_key(Rank(0), Incarnation(1))),
    ];
    for peer in others {
        let keys = DialKeys { gate: secret().gate_key(), peer };
        let dialler = Dialler::new(relay_hello(), keys.clone(), NONCE_C);
        let greeted = greet(&secret().gate_key(), dialler.m1()).unwrap();
        let (challenged, m2) = greeted.admit(&Controller::new(), NONCE_S).unwrap();
        assert_eq!(answered(relay_hello(), keys, &m2).map(|_| ()), Err(HandshakeError::WrongKey));
        // Nor does the finish of the key's right owner, of another handshake, help.
        let m3 = handshake(rank_hello()).0.m3;
        assert_eq!(challenged.finish(&m3).map(|_| ()), Err(HandshakeError::WrongKey));
    }
}

#[test]
fn another_incarnation_of_the_same_rank_is_another_member() {
    let old = rank_hello();
    let Role::Rank { rank, incarnation } = old.role else { panic!("a rank's hello") };
    let new = Hello { role: Role::Rank { rank, incarnation: Incarnation(incarnation.0 + 1) }, ..old };
    let dialler = Dialler::new(new, keys_for(&old), NONCE_C);
    let greeted = greet(&secret().gate_key(), dialler.m1()).unwrap();
    let (_, m2) = greeted.admit(&Controller::new(), NONCE_S).unwrap();
    assert_eq!(answered(new, keys_for(&old), &m2).map(|_| ()), Err(HandshakeError::WrongKey));
}

#[test]
fn a_replayed_handshake_does_not_pass_a_fresh_nonce() {
    let hello = relay_hello();
    let (old, _, _) = handshake(hello);
    // The old hello and finish, to a new challenge.
    let greeted = greet(&secret().gate_key(), &old.m1).unwrap();
    let (challenged, _) = greeted.admit(&Controller::new(), [0x52; 32]).unwrap();
    assert_eq!(challenged.finish(&old.m3).map(|_| ()), Err(HandshakeError::WrongKey));
    // The old challenge, to a new hello.
    let mut fresh = Dialler::new(hello, keys_for(&hello), [0xc2; 32]);
    fresh.space().copy_from_slice(&old.m2);
    assert_eq!(fresh.filled(M2_LEN).map(|_| ()), Err(HandshakeError::WrongKey));
    // An old refusal, to a new hello.
    let (refusal, _) = refused(&Controller::refusing("no room"), &old.m1);
    let mut fresh = Dialler::new(hello, keys_for(&hello), [0xc2; 32]);
    fresh.space().copy_from_slice(&refusal[..M2_LEN]);
    assert!(fresh.filled(M2_LEN).unwrap().is_none(), "a refusal is longer");
    let rest = &refusal[M2_LEN..];
    fresh.space().copy_from_slice(rest);
    let forged = HandshakeError::Malformed { message: "refusal", what: "it is not authentic" };
    assert_eq!(fresh.filled(rest.len()).map(|_| ()), Err(forged));
}

#[test]
fn what_is_reflected_is_refused() {
    let hello = relay_hello();
    let dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    let echoed = answered(hello, keys_for(&hello), dialler.m1()).map(|_| ()).unwrap_err();
    assert!(matches!(echoed, HandshakeError::Malformed { message: "challenge", .. }), "{echoed}");
    // The accepting side's own proof is not the dialling side's.
    let (challenged, m2) = challenged(hello);
    let mut m3 = handshake(hello).0.m3;
    m3[8..].copy_from_slice(&m2[88..]);
    assert_eq!(challenged.finish(&m3).map(|_| ()), Err(HandshakeError::WrongKey));
    // Nor does a frame that is sent back open.
    let (_, mut dialled, mut accepted) = handshake(hello);
    let mut sent = Vec::new();
    dialled.sealer.seal(&Frame::host_report(&HostReport::Heartbeat).unwrap(), &mut sent).unwrap();
    let back = dialled.opener.feed(&mut &sent[..]).unwrap_err();
    assert!(matches!(back, OpenError::Header(_)), "a report never comes down: {back}");
    let mut order = Vec::new();
    let frame = Frame::control(Stream::Host, Incarnation(0), &Control::Heartbeat).unwrap();
    accepted.sealer.seal(&frame, &mut order).unwrap();
    order[4..6].copy_from_slice(&3u16.to_le_bytes());
    let error = accepted.opener.feed(&mut &order[..]).unwrap_err();
    assert_eq!(error, OpenError::Forged { seq: 0 }, "dressed up as a report, still another key");
}

#[test]
fn another_version_is_refused_with_a_sentence_that_names_both() {
    let hello = relay_hello();
    let m1 = *Dialler::new(hello, keys_for(&hello), NONCE_C).m1();
    for (least, most) in [(2u16, 5u16), (0, 0), (3, 2)] {
        let versions = [least.to_le_bytes(), most.to_le_bytes()].concat();
        let m1 = forged_by_member(m1, 8, &versions);
        let (refusal, error) = refused(&Controller::new(), &m1);
        let sentence =
            format!("this side speaks protocol 1..=1, you speak {least}..={most}: install the same flodl on both");
        assert_eq!(error, HandshakeError::TurnedAway { who: "a member of this run".to_owned(), why: sentence.clone() });
        assert_eq!(&refusal[10..10 + sentence.len()], sentence.as_bytes());
    }
    // A wider offer is met in the middle.
    let m1 = forged_by_member(m1, 8, &[0, 0, 9, 0]);
    let (_, m2) = greet(&secret().gate_key(), &m1).unwrap().admit(&Controller::new(), NONCE_S).unwrap();
    assert_eq!(m2[8..10], [1, 0]);
    // A challenge that chooses what was not offered.
    let (_, mut m2) = challenged(hello);
    m2[8..10].copy_from_slice(&2u16.to_le_bytes());
    let error = answered(hello, keys_for(&hello), &m2).map(|_| ()).unwrap_err();
    assert_eq!(error.to_string(), "the controller speaks protocol 2, this program speaks 1..=1");
}

#[test]
fn a_member_that_makes_no_sense_is_told_so() {
    let m1 = *Dialler::new(relay_hello(), keys_for(&relay_hello()), NONCE_C).m1();
    let rank = *Dialler::new(rank_hello(), keys_for(&rank_hello()), NONCE_C).m1();
    let cases: [(&[u8; M1_LEN], usize, &[u8], &str); 8] = [
        (&m1, 12, &[9], "its role is not known here"),
        (&m1, 13, &[9], "its channel is not known here"),
        (&m1, 14, &[1], "a field that must be zero is not"),
        (&m1, 28, &[1], "a field that must be zero is not"),
        (&rank, 32, &[1], "a rank's control connection cannot belong to a session"),
        (&m1, 24, &[1], "a relay has no incarnation"),
        (&m1, 20, &[1, 0, 1, 0], "more ranks than a run can have"),
        (&rank, 20, &[0, 0, 1, 0], "its rank is not one that a run can have"),
    ];
    for (m1, at, bytes, what) in cases {
        let (_, error) = refused(&Controller::new(), &forged_by_member(*m1, at, bytes));
        let HandshakeError::TurnedAway { why, .. } = error else { panic!("{error}") };
        assert_eq!(why, format!("the hello is malformed: {what}"));
    }
}

#[test]
fn another_run_is_refused_with_both_runs() {
    let hello = Hello { run_id: OTHER_RUN, ..relay_hello() };
    let dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    let (refusal, _) = refused(&Controller::new(), dialler.m1());
    let HandshakeError::Refused(said) = answered(hello, keys_for(&hello), &refusal[..]).unwrap_err() else {
        panic!("a refusal")
    };
    assert_eq!(said, format!("this is run {RUN}, you asked for run {OTHER_RUN}: use a ticket of this run"));
}

#[test]
fn a_refusal_is_cut_to_its_size_and_shows_no_control_characters() {
    let hello = relay_hello();
    let m1 = *Dialler::new(hello, keys_for(&hello), NONCE_C).m1();
    for (sentence, expected) in [
        ("é".repeat(300), "é".repeat(235)),
        (format!("a{}", "é".repeat(300)), format!("a{}", "é".repeat(234))),
        ("\x1b[31mred\nline".to_owned(), " [31mred line".to_owned()),
        (String::new(), String::new()),
    ] {
        let (refusal, _) = refused(&Controller::refusing(&sentence), &m1);
        let said = answered(hello, keys_for(&hello), &refusal[..]).unwrap_err();
        assert_eq!(said, HandshakeError::Refused(expected));
    }
}

#[test]
fn the_channels_of_one_session_have_keys_of_their_own() {
    let (_, mut control, _) = handshake(relay_hello());
    let (_, _, mut other) = handshake(Hello { host_id: HostId([4; 16]), ..relay_hello() });
    let mut sent = Vec::new();
    control.sealer.seal(&Frame::host_report(&HostReport::Heartbeat).unwrap(), &mut sent).unwrap();
    assert_eq!(other.opener.feed(&mut &sent[..]), Err(OpenError::Forged { seq: 0 }));
    assert_eq!(data_hello().channel, Channel::Data);
}
