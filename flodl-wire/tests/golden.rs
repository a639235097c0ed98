//! The bytes of every message, kept in `tests/golden/v<version>.txt`: the wire format cannot change unnoticed.
//!
//! Each line is `name = hexadecimal bytes`. A variant that is appended appends lines. Any other change of a line is another
//! protocol: raise `VERSION_MAX` and keep the old file. Either way
//! `FLODL_WIRE_GOLDEN=write cargo test -p flodl-wire --test golden` writes the file of `VERSION_MAX`; read its diff.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::samples::{
    self, CONTROL_NAMES, DATA_NAMES, HOST_REPORT_NAMES, REPORT_NAMES, WHY_NAMES, control_name, data_name,
    host_report_name, report_name, why_name,
};
use common::{Controller, NONCE_C, RUN, data_hello, handshake, keys_for, rank_hello, relay_hello};
use flodl_wire::codec::encode;
use flodl_wire::frame::{Frame, Stream};
use flodl_wire::handshake::{Dialler, Unheard, VERSION_MAX, greet};
use flodl_wire::{Incarnation, Rank, manifest_digest};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Every golden line, in order.
fn lines() -> Vec<(String, Vec<u8>)> {
    let mut lines = keys();
    lines.extend(handshakes());
    lines.push(("manifest_digest".to_owned(), manifest_digest(&samples::tensors()).to_vec()));
    let mut add = |group: &str, variant: &str, bytes: Vec<u8>| {
        let stem = format!("{group}.{variant}.");
        let earlier = lines.iter().filter(|(name, _)| name.starts_with(&stem)).count();
        lines.push((format!("{stem}{earlier}"), bytes));
    };
    for message in samples::controls() {
        add("control", control_name(&message), encode(&message).unwrap());
    }
    for message in samples::reports() {
        add("report", report_name(&message), encode(&message).unwrap());
    }
    for message in samples::host_reports() {
        add("host_report", host_report_name(&message), encode(&message).unwrap());
    }
    for message in samples::datas() {
        let payload = Frame::data(Stream::Host, Incarnation(0), &message).payload;
        add("data", data_name(&message), payload.to_vec());
    }
    lines
}

fn keys() -> Vec<(String, Vec<u8>)> {
    let secret = common::secret();
    let host = secret.host_key(RUN, common::host());
    vec![
        ("key.gate".to_owned(), secret.gate_key().expose().to_vec()),
        ("key.host".to_owned(), host.expose().to_vec()),
        ("key.rank".to_owned(), host.rank_key(Rank(3), Incarnation(2)).expose().to_vec()),
    ]
}

fn handshakes() -> Vec<(String, Vec<u8>)> {
    let mut lines = Vec::new();
    for (name, hello) in [("relay", relay_hello()), ("data", data_hello()), ("rank", rank_hello())] {
        let (messages, _, _) = handshake(hello);
        lines.push((format!("handshake.{name}.m1"), messages.m1.to_vec()));
        lines.push((format!("handshake.{name}.m2"), messages.m2.to_vec()));
        lines.push((format!("handshake.{name}.m3"), messages.m3.to_vec()));
    }
    let hello = relay_hello();
    let dialler = Dialler::new(hello, keys_for(&hello), NONCE_C);
    let policy = Controller::refusing("rank 3 is already here from host b");
    let greeted = greet(&policy.gate, dialler.m1()).unwrap();
    let Err(Unheard::Refusal(refusal, _)) = greeted.admit(&policy, NONCE_C) else { panic!("the policy refuses") };
    lines.push(("handshake.refuse".to_owned(), refusal.to_vec()));

    let (_, mut dialled, mut accepted) = handshake(relay_hello());
    let mut up = Vec::new();
    for message in samples::host_reports().iter().take(2) {
        dialled.sealer.seal(&Frame::host_report(message).unwrap(), &mut up).unwrap();
    }
    lines.push(("frames.up".to_owned(), up));
    let (mut down, order) = (Vec::new(), &samples::controls()[0]);
    accepted.sealer.seal(&Frame::control(Stream::Host, Incarnation(0), order).unwrap(), &mut down).unwrap();
    lines.push(("frames.down".to_owned(), down));
    lines
}

fn file() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("v{VERSION_MAX}.txt")].iter().collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn every_message_has_the_bytes_it_always_had() {
    let text: String = lines().iter().map(|(name, bytes)| format!("{name} = {}\n", hex(bytes))).collect();
    if std::env::var_os("FLODL_WIRE_GOLDEN").is_some_and(|value| value == "write") {
        std::fs::write(file(), &text).unwrap();
    }
    let kept = std::fs::read_to_string(file()).unwrap_or_default();
    let (now, kept): (Vec<&str>, Vec<&str>) = (text.lines().collect(), kept.lines().collect());
    for (line, (now, kept)) in now.iter().zip(&kept).enumerate() {
        assert_eq!(now, kept, "line {} of {} changed: see the header of this test", line + 1, file().display());
    }
    assert_eq!(now.len(), kept.len(), "messages were added or removed: see the header of this test");
}

#[test]
fn every_variant_is_among_them() {
    let lines = lines();
    let names: BTreeSet<&str> =
        lines.iter().filter_map(|(name, _)| name.rsplit_once('.').map(|(stem, _)| stem)).collect();
    let groups = [
        ("control", CONTROL_NAMES),
        ("report", REPORT_NAMES),
        ("host_report", HOST_REPORT_NAMES),
        ("data", DATA_NAMES),
    ];
    for (group, variants) in groups {
        for variant in variants {
            assert!(names.contains(format!("{group}.{variant}").as_str()), "no sample of {group} {variant}");
        }
    }
    let whys: Vec<&str> = samples::WHYS.iter().map(why_name).collect();
    assert_eq!(whys, WHY_NAMES);
}

#[test]
fn names_are_used_once_and_the_manifest_digest_sees_a_shape() {
    let names: Vec<String> = lines().into_iter().map(|(name, _)| name).collect();
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "a name is used twice");
    let mut other = samples::tensors();
    let digest = manifest_digest(&other);
    other[0].shape[0] = 11;
    assert_ne!(manifest_digest(&other), digest);
}
