//! The tables of `docs/PROTOCOL.md`, checked against the bytes that the code makes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::samples::chunk;
use common::{Controller, NONCE_C, NONCE_S, RUN, data_hello, handshake, host, keys_for, rank_hello, relay_hello};
use flodl_wire::frame::{Frame, Kind, Stream};
use flodl_wire::handshake::{Dialler, M1_LEN, M2_LEN, M3_LEN, REFUSE_LEN, Unheard, greet};
use flodl_wire::limits::{ABSENCE_LEN, CHUNK_HEADER, FRAME_HEADER, FRAME_TAG};
use flodl_wire::message::Data;
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::{Incarnation, Rank, Round, Version};

const DOC: &str = include_str!("../docs/PROTOCOL.md");

/// A field's value where a test knows it, else only its place counts (tags: the golden file holds them).
type Fields<'a> = &'a [(&'a str, Option<&'a [u8]>)];

/// The rows of the tables under a heading whose header row has `columns`.
fn rows(heading: &str, columns: &[&str]) -> Vec<Vec<String>> {
    let section = DOC.split("\n## ").find(|section| section.lines().next() == Some(heading)).expect(heading);
    let cells =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect() };
    let table = section.lines().skip_while(|line| cells(line) != columns).skip(2);
    table.take_while(|line| line.starts_with('|')).map(cells).collect()
}

/// The table under `heading` describes exactly `bytes`, field by field, without a gap.
fn check(heading: &str, bytes: &[u8], fields: Fields<'_>) {
    let rows = rows(heading, &["offset", "size", "field", "meaning"]);
    assert_eq!(rows.len(), fields.len(), "{heading}: a row a field");
    let mut end = 0;
    for (row, (name, value)) in rows.iter().zip(fields) {
        let (offset, size): (usize, usize) = (row[0].parse().unwrap(), row[1].parse().unwrap());
        assert_eq!(row[2], *name, "{heading}");
        assert_eq!(offset, end, "{heading}: {name} does not follow its predecessor");
        end = offset + size;
        if let Some(value) = value {
            assert_eq!(&bytes[offset..end], *value, "{heading}: {name}");
        }
    }
    assert_eq!(end, bytes.len(), "{heading}: the table ends where the bytes do");
}

#[test]
fn m1_is_as_described() {
    let run = RUN.0;
    let host = host().0;
    let expected = |role, rank: &'static [u8], incarnation: &'static [u8]| {
        [
            ("magic", Some(&b"flodl-m1"[..])),
            ("version_min", Some(&[1, 0][..])),
            ("version_max", Some(&[1, 0][..])),
            ("role", Some(role)),
            ("channel", Some(&[1][..])),
            ("stream_index", Some(&[0; 2][..])),
            ("capabilities", Some(&[0; 4][..])),
            ("rank_or_count", Some(rank)),
            ("incarnation", Some(incarnation)),
            ("reserved", Some(&[0; 4][..])),
            ("session", Some(&[0; 8][..])),
        ]
    };
    let rest =
        [("run_id", Some(&run[..])), ("host_id", Some(&host[..])), ("nonce_c", Some(&NONCE_C[..])), ("gate_tag", None)];
    let m1 = handshake(rank_hello()).0.m1;
    assert_eq!(m1.len(), M1_LEN);
    check("M1: hello", &m1, &[&expected(&[2], &[3, 0, 0, 0], &[2, 0, 0, 0])[..], &rest].concat());
    let m1 = handshake(relay_hello()).0.m1;
    check("M1: hello", &m1, &[&expected(&[1], &[2, 0, 0, 0], &[0; 4])[..], &rest].concat());
    let data = handshake(data_hello()).0.m1;
    assert_eq!((data[13], &data[32..40]), (2, &[7, 0, 0, 0, 0, 0, 0, 0][..]));
}

#[test]
fn m2_and_m3_are_as_described() {
    let messages = handshake(relay_hello()).0;
    let mib = (1u32 << 20).to_le_bytes();
    let m2: Fields<'_> = &[
        ("magic", Some(b"flodl-m2")),
        ("version", Some(&[1, 0])),
        ("suite", Some(&[1, 0])),
        ("capabilities", Some(&[0; 4])),
        ("generation", Some(&[3, 0, 0, 0, 0, 0, 0, 0])),
        ("membership_epoch", Some(&[9, 0, 0, 0, 0, 0, 0, 0])),
        ("session", Some(&[7, 0, 0, 0, 0, 0, 0, 0])),
        ("patience_ms", Some(&12_345u32.to_le_bytes())),
        ("control_max", Some(&mib)),
        ("chunk_max", Some(&mib)),
        ("reserved", Some(&[0; 4])),
        ("nonce_s", Some(&NONCE_S)),
        ("tag_s", None),
    ];
    assert_eq!((messages.m2.len(), messages.m3.len()), (M2_LEN, M3_LEN));
    check("M2: challenge", &messages.m2, m2);
    check("M3: finish", &messages.m3, &[("magic", Some(b"flodl-m3")), ("tag_c", None)]);
}

#[test]
fn a_refusal_is_as_described() {
    let policy = Controller::refusing("no");
    let dialler = Dialler::new(relay_hello(), keys_for(&relay_hello()), NONCE_C);
    let answer = greet(&policy.gate, dialler.m1()).and_then(|greeted| greeted.admit(&policy, NONCE_S));
    let Err(Unheard::Refusal(refusal, _)) = answer else { panic!("the policy refuses") };
    assert_eq!(refusal.len(), REFUSE_LEN);
    let mut text = [0; 470];
    text[..2].copy_from_slice(b"no");
    let fields: Fields<'_> =
        &[("magic", Some(b"flodl-no")), ("text_len", Some(&[2, 0])), ("text", Some(&text)), ("tag", None)];
    check("Refuse", &refusal[..], fields);
}

#[test]
fn a_frame_is_as_described() {
    let (_, mut dialled, _) = handshake(data_hello());
    let absent = Data::Absent { round: Round(1), from_chunk: 2, why: AbsentWhy::Joining };
    let mut bytes = Vec::new();
    for stream in [Stream::Host, Stream::Rank(Rank(300))] {
        bytes.clear();
        dialled.sealer.seal_data(stream, Incarnation(5), &absent, &mut bytes).unwrap();
    }
    assert_eq!(bytes.len(), FRAME_HEADER + ABSENCE_LEN + FRAME_TAG);
    let fields: Fields<'_> = &[
        ("len", Some(&[40, 0, 0, 0])),
        ("kind", Some(&[17, 0])),
        ("flags", Some(&[0, 0])),
        ("seq", Some(&[1, 0, 0, 0, 0, 0, 0, 0])),
        ("stream", Some(&[44, 1, 0, 0])),
        ("incarnation", Some(&[5, 0, 0, 0])),
    ];
    check("Frame", &bytes[..FRAME_HEADER], fields);
    let stream_number = |number: u32| number.to_string();
    assert!(DOC.replace(' ', "").contains(&format!("{}:therelay", stream_number(u32::MAX))));
    assert!(DOC.replace(' ', "").contains(&format!("{}:allranks", stream_number(u32::MAX - 1))));
}

#[test]
fn the_kinds_are_as_described() {
    let rows = rows("Frame", &["kind", "name", "way", "channel", "least payload", "most payload"]);
    assert_eq!(rows.len(), Kind::ALL.len());
    for (row, kind) in rows.iter().zip(Kind::ALL) {
        assert_eq!(row[0], (kind as u16).to_string());
        assert_eq!(row[1], kind.to_string());
        assert_eq!(row[3], kind.channel().to_string());
        let limits = kind.payload_len();
        assert_eq!((&row[4], &row[5]), (&limits.start().to_string(), &limits.end().to_string()), "{kind}");
        // Which way: the side that may seal it.
        let hello = if row[3] == "data" { data_hello() } else { relay_hello() };
        let (_, mut dialled, mut accepted) = handshake(hello);
        let payload = vec![0; *limits.start()].into();
        let stream = [Stream::Host, Stream::Rank(Rank(0))].into_iter().find(|stream| kind.suits(*stream)).unwrap();
        let frame = Frame { kind, stream, incarnation: Incarnation(0), payload };
        let up = dialled.sealer.seal(&frame, &mut Vec::new()).is_ok();
        let down = accepted.sealer.seal(&frame, &mut Vec::new()).is_ok();
        assert_eq!((up, down), (row[2] == "up", row[2] == "down"), "{kind}");
    }
}

#[test]
fn data_payloads_are_as_described() {
    let payload = |data: &Data| Frame::data(Stream::Host, Incarnation(0), data).payload;
    let bytes = payload(&Data::Contribution(chunk(vec![9; 12])));
    let fields: Fields<'_> = &[
        ("round", Some(&[5, 0, 0, 0, 0, 0, 0, 0])),
        ("version", Some(&[4, 0, 0, 0, 0, 0, 0, 0])),
        ("mass", Some(&40.5f64.to_le_bytes())),
        ("chunk", Some(&[2, 0, 0, 0])),
        ("bytes", Some(&[12, 0, 0, 0])),
        ("codec", Some(&[0])),
        ("reserved", Some(&[0; 3])),
        ("back", Some(&[0; 4])),
    ];
    check("Payload of contribution and consensus", &bytes[..CHUNK_HEADER], fields);
    assert_eq!(bytes[CHUNK_HEADER..], [9; 12]);

    let why = AbsentWhy::NonFinite;
    let common = [
        ("round", Some(&[5, 0, 0, 0, 0, 0, 0, 0][..])),
        ("from_chunk", Some(&[3, 0, 0, 0][..])),
        ("why", Some(&[2][..])),
        ("reserved", Some(&[0; 3][..])),
    ];
    let bytes = payload(&Data::Absent { round: Round(5), from_chunk: 3, why });
    check("Payload of absent", &bytes, &[&common[..], &[("reserved", Some(&[0; 8]))]].concat());
    let (rank, incarnation) = (Rank(300), Incarnation(2));
    let bytes = payload(&Data::Dropped { round: Round(5), rank, incarnation, from_chunk: 3, why });
    let rest: Fields<'_> = &[("rank", Some(&[44, 1, 0, 0])), ("incarnation", Some(&[2, 0, 0, 0]))];
    check("Payload of dropped", &bytes, &[&common[..], rest].concat());
    let bytes = payload(&Data::LeftOut { round: Round(5), from_chunk: 3, why });
    check("Payload of left out", &bytes, &[&common[..], &[("reserved", Some(&[0; 8]))]].concat());
    let bytes = payload(&Data::Holds { round: Round(5), version: Version(4), digest: 6 });
    let number = |number: &'static [u8; 8]| Some(&number[..]);
    let fields: Fields<'_> = &[
        ("round", number(&[5, 0, 0, 0, 0, 0, 0, 0])),
        ("version", number(&[4, 0, 0, 0, 0, 0, 0, 0])),
        ("digest", number(&[6, 0, 0, 0, 0, 0, 0, 0])),
    ];
    check("Payload of holds", &bytes, fields);
    let (codec, version) = (Codec::Int8 { base: Version(1) }, Version(4));
    let bytes = payload(&Data::Consensus(Chunk { codec, version, ..chunk(vec![9; 12]) }));
    assert_eq!(bytes[32..CHUNK_HEADER], [2, 0, 0, 0, 3, 0, 0, 0]);
}
