//! Peers of every version that ever was, as their bytes are kept in `tests/golden`: each is talked to, or refused by name. So is
//! one that comes with capabilities, or a version, that nobody here knows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{NONCE_S, connections, data_hello, rank_hello, relay_hello, said, secret, take};
use flodl_wire::connection::{Close, Connection, Event};
use flodl_wire::handshake::{HandshakeError, VERSION_MAX, VERSION_MIN};
use flodl_wire::{Capabilities, Hello, Time};
use hmac::{Hmac, KeyInit, Mac};
use std::collections::BTreeMap;

/// What a peer of that version said, by name.
fn golden(version: u16) -> BTreeMap<String, Vec<u8>> {
    let path = format!("{}/tests/golden/v{version}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let line = |line: &str| {
        let (name, digits) = line.split_once(" = ")?;
        let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        Some((name.to_owned(), (0..digits.len()).step_by(2).map(byte).collect()))
    };
    text.lines().filter_map(line).collect()
}

fn accepting() -> Connection {
    Connection::accept(&secret().gate_key(), NONCE_S, Time::ZERO)
}

/// A member's hello with other bytes at `at`, its gate tag made anew.
fn hello_with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut m1 = said(&mut connections(relay_hello()).0);
    m1[at..at + bytes.len()].copy_from_slice(bytes);
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(secret().gate_key().expose()).unwrap();
    mac.update(&m1[..104]);
    m1[104..].copy_from_slice(&mac.finalize().into_bytes()[..16]);
    m1
}

#[test]
fn a_peer_of_every_version_is_talked_to_or_refused_by_name() {
    for version in 1..=VERSION_MAX {
        let kept = golden(version);
        for (name, hello) in [("relay", relay_hello()), ("data", data_hello()), ("rank", rank_hello())] {
            let its = |message: &str| &kept[&format!("handshake.{name}.{message}")][..];
            if version >= VERSION_MIN {
                talks(version, hello, &its);
            } else {
                is_refused(version, its("m1"));
            }
        }
    }
}

/// Its hello is answered in its version, its finish is believed, and its frames mean what they meant. Its challenge is taken too.
fn talks<'a>(version: u16, hello: Hello, its: &impl Fn(&str) -> &'a [u8]) {
    let mut above = accepting();
    assert_eq!(take(&mut above, its("m1")), [Event::Hello(hello)]);
    let answer = said(&mut above);
    assert_eq!((&answer[..8], &answer[8..10]), (&b"flodl-m2"[..], &version.to_le_bytes()[..]));
    assert!(matches!(take(&mut above, its("m3"))[..], [Event::Open(_)]));
    let (mut below, _) = connections(hello);
    said(&mut below);
    assert!(matches!(take(&mut below, its("m2"))[..], [Event::Open(_)]));
    if hello == relay_hello() {
        let kept = golden(version);
        let heard = take(&mut above, &kept["frames.up"]);
        let all: Vec<_> = heard
            .into_iter()
            .map(|event| match event {
                Event::Frame(frame) => frame.to_host_report().unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(all, common::samples::host_reports()[..2]);
        let orders = take(&mut below, &kept["frames.down"]);
        assert!(matches!(&orders[..], [Event::Frame(frame)] if frame.to_control().is_ok()), "{orders:?}");
    }
}

fn is_refused(version: u16, m1: &[u8]) {
    let events = take(&mut accepting(), m1);
    let [Event::Closed(Close::Handshake(HandshakeError::TurnedAway { why, .. }))] = &events[..] else {
        panic!("{events:?}")
    };
    assert!(why.contains(&format!("protocol {VERSION_MIN}..={VERSION_MAX}, you speak 1..={version}")), "{why}");
}

#[test]
fn the_kept_messages_of_every_version_that_is_spoken_can_be_read() {
    use flodl_wire::codec::decode;
    use flodl_wire::message::{Control, HostReport, Report};
    for version in VERSION_MIN..=VERSION_MAX {
        let kept = golden(version);
        let mut read = 0;
        for (name, bytes) in &kept {
            let is_read = match name.split('.').next() {
                Some("control") => decode::<Control>(bytes).is_ok(),
                Some("report") => decode::<Report>(bytes).is_ok(),
                Some("host_report") => decode::<HostReport>(bytes).is_ok(),
                _ => continue,
            };
            assert!(is_read, "{name} of version {version}");
            read += 1;
        }
        assert!(read > 60, "only {read} messages");
    }
}

#[test]
fn capabilities_that_are_not_known_are_passed_over_and_none_is_chosen() {
    for bit in 0..32 {
        let mut above = accepting();
        let hello = hello_with(16, &(1u32 << bit).to_le_bytes());
        let known = [Capabilities::BF16, Capabilities::INT8].get(bit).copied().unwrap_or_default();
        let heard = Hello { capabilities: known, ..relay_hello() };
        assert_eq!(take(&mut above, &hello), [Event::Hello(heard)], "capability {bit}");
        assert_eq!(said(&mut above)[12..16], [0; 4]);
    }
    // A controller that chooses what was not offered is not believed, though it holds the key.
    for bit in 0..32 {
        let (mut below, mut above) = connections(relay_hello());
        take(&mut above, &said(&mut below));
        let mut challenge = said(&mut above);
        challenge[12..16].copy_from_slice(&(1u32 << bit).to_le_bytes());
        let what = "it chose a suite or capability that was not offered";
        let malformed = HandshakeError::Malformed { message: "challenge", what };
        assert_eq!(take(&mut below, &challenge), [Event::Closed(malformed.into())]);
    }
}

#[test]
fn the_newest_version_that_both_speak_is_chosen_and_others_are_named() {
    let newer = VERSION_MAX + 1;
    let offers = |least: u16, most: u16| hello_with(8, &[least.to_le_bytes(), most.to_le_bytes()].concat());
    for (least, most) in [(VERSION_MIN, newer), (0, u16::MAX), (VERSION_MAX, VERSION_MAX)] {
        let mut above = accepting();
        assert_eq!(take(&mut above, &offers(least, most)), [Event::Hello(relay_hello())]);
        assert_eq!(said(&mut above)[8..10], VERSION_MAX.to_le_bytes());
    }
    for (least, most) in [(newer, newer), (newer, u16::MAX), (0, VERSION_MIN - 1), (newer, VERSION_MIN)] {
        let mut above = accepting();
        let events = take(&mut above, &offers(least, most));
        let why = format!(
            "this side speaks protocol {VERSION_MIN}..={VERSION_MAX}, you speak {least}..={most}: install the same flodl on both"
        );
        let who = "a member of this run".to_owned();
        assert_eq!(events, [Event::Closed(HandshakeError::TurnedAway { who, why: why.clone() }.into())]);
        let refusal = said(&mut above);
        assert_eq!(&refusal[10..10 + why.len()], why.as_bytes());
    }
    let (mut below, mut above) = connections(relay_hello());
    take(&mut above, &said(&mut below));
    let mut challenge = said(&mut above);
    challenge[8..10].copy_from_slice(&newer.to_le_bytes());
    assert_eq!(take(&mut below, &challenge), [Event::Closed(HandshakeError::Version { theirs: newer }.into())]);
}
