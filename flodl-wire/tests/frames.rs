//! What a decoder lets through, and everything it does not.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::samples::{chunk, controls, datas, host_reports, reports};
use common::{data_hello, handshake, relay_hello};
use flodl_wire::codec::{DecodeError, EncodeError, Flaw, decode, encode};
use flodl_wire::frame::{Frame, HeaderError, Kind, OpenError, Opener, SealError, Sealer, Stream};
use flodl_wire::limits::{CHUNK_MAX, CONTROL_MAX, FRAME_HEADER, FRAME_TAG, POOLED_FROM};
use flodl_wire::message::control::{Part, RosterEntry};
use flodl_wire::message::data::Chunk;
use flodl_wire::message::{Control, Data, HostReport, Report};
use flodl_wire::{Epoch, Hello, Incarnation, Range, Rank, Round, SessionId, WindowId};

/// The two sides of one direction: up (from the dialling side) or down.
fn direction(hello: Hello, up: bool) -> (Sealer, Opener) {
    let (_, dialled, accepted) = handshake(hello);
    if up { (dialled.sealer, accepted.opener) } else { (accepted.sealer, dialled.opener) }
}

/// The place of the one that is dropped among the samples; those of rounded chunks, of what is held and of who is left out
/// follow.
const DROPPED: usize = 10;

/// A frame of each kind and the direction it belongs to.
fn frames() -> Vec<(Hello, bool, Frame)> {
    let data = |stream, data: &Data| Frame::data(stream, Incarnation(2), data);
    let big = Data::Consensus(chunk(vec![7; 3 * POOLED_FROM]));
    vec![
        (relay_hello(), false, Frame::control(Stream::AllRanks, Incarnation(0), &controls()[1]).unwrap()),
        (relay_hello(), true, Frame::report(Rank(65_535), Incarnation(4), &reports()[2]).unwrap()),
        (relay_hello(), true, Frame::host_report(&host_reports()[1]).unwrap()),
        (data_hello(), true, data(Stream::Rank(Rank(3)), &datas()[0])),
        (data_hello(), true, data(Stream::Host, &datas()[3])),
        (data_hello(), true, data(Stream::Host, &datas()[DROPPED])),
        (data_hello(), true, data(Stream::Host, &datas()[DROPPED + 3])),
        (data_hello(), false, data(Stream::AllRanks, &datas()[DROPPED + 4])),
        (data_hello(), false, data(Stream::AllRanks, &datas()[1])),
        (data_hello(), false, data(Stream::AllRanks, &big)),
    ]
}

fn sealed(sealer: &mut Sealer, frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.seal(frame, &mut out).unwrap();
    assert_eq!(out.len(), FRAME_HEADER + frame.payload.len() + FRAME_TAG);
    out
}

#[test]
fn every_kind_of_frame_arrives_as_it_was_in_any_portions() {
    for (hello, up, frame) in frames() {
        for portion in [1, 7, 24, 1000, usize::MAX] {
            let (mut sealer, mut opener) = direction(hello, up);
            let mut stream = sealed(&mut sealer, &frame);
            sealer.seal(&frame, &mut stream).unwrap();
            let mut arrived = Vec::new();
            for mut bytes in stream.chunks(portion.min(stream.len())) {
                while let Some(frame) = opener.feed(&mut bytes).unwrap() {
                    arrived.push(frame);
                }
                assert!(bytes.is_empty());
            }
            assert_eq!(arrived, [frame.clone(), frame.clone()]);
            assert!(opener.between_frames());
        }
    }
}

#[test]
fn every_flipped_bit_of_every_kind_of_frame_is_refused() {
    for (hello, up, frame) in frames().into_iter().filter(|(_, _, frame)| frame.payload.len() < POOLED_FROM) {
        let bytes = sealed(&mut direction(hello, up).0, &frame);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let (_, mut opener) = direction(hello, up);
            match opener.feed(&mut &flipped[..]) {
                // A longer length that is still plausible makes the decoder wait for the rest, which then does not verify.
                Ok(None) => {
                    assert!(bit < 32, "{} bit {bit} is not noticed", frame.kind);
                    let rest = vec![0; opener.missing()];
                    assert_eq!(opener.feed(&mut &rest[..]), Err(OpenError::Forged { seq: 0 }));
                }
                Ok(Some(_)) => panic!("{} bit {bit} is not noticed", frame.kind),
                Err(error) => {
                    let right = match bit / 8 {
                        8..16 => matches!(error, OpenError::Sequence { expected: 0, .. }),
                        24.. => error == OpenError::Forged { seq: 0 },
                        _ => true,
                    };
                    assert!(right, "{} bit {bit}: {error}", frame.kind);
                }
            }
        }
    }
}

#[test]
fn a_frame_cut_anywhere_is_not_given_out() {
    for (hello, up, frame) in frames().into_iter().filter(|(_, _, frame)| frame.payload.len() < POOLED_FROM) {
        let bytes = sealed(&mut direction(hello, up).0, &frame);
        for len in 0..bytes.len() {
            let (_, mut opener) = direction(hello, up);
            assert_eq!(opener.feed(&mut &bytes[..len]), Ok(None));
            assert_eq!(opener.between_frames(), len == 0);
            let end = if len < FRAME_HEADER { FRAME_HEADER } else { bytes.len() };
            assert_eq!(opener.missing(), end - len);
        }
    }
}

#[test]
fn replayed_reordered_and_skipped_frames_are_refused_for_good() {
    let beat = Frame::host_report(&HostReport::Heartbeat).unwrap();
    let all = |order: &[usize]| {
        let (mut sealer, mut opener) = direction(relay_hello(), true);
        let frames: Vec<Vec<u8>> = (0..4).map(|_| sealed(&mut sealer, &beat)).collect();
        order.iter().map(|i| opener.feed(&mut &frames[*i][..]).map(|frame| frame.is_some())).collect::<Vec<_>>()
    };
    let wrong = |expected, got| Err(OpenError::Sequence { expected, got });
    assert_eq!(all(&[0, 1, 2, 3]), [Ok(true), Ok(true), Ok(true), Ok(true)]);
    assert_eq!(all(&[0, 0, 1]), [Ok(true), wrong(1, 0), wrong(1, 0)], "replayed");
    assert_eq!(all(&[1, 0]), [wrong(0, 1), wrong(0, 1)], "reordered");
    assert_eq!(all(&[0, 2]), [Ok(true), wrong(1, 2)], "skipped");
}

#[test]
fn a_renumbered_frame_is_still_the_old_one() {
    let beat = Frame::host_report(&HostReport::Heartbeat).unwrap();
    let (mut sealer, mut opener) = direction(relay_hello(), true);
    let mut replay = sealed(&mut sealer, &beat);
    assert!(opener.feed(&mut &replay[..]).unwrap().is_some());
    replay[8..16].copy_from_slice(&1u64.to_le_bytes());
    assert_eq!(opener.feed(&mut &replay[..]), Err(OpenError::Forged { seq: 1 }));
}

/// A header as a hostile peer would write it.
fn header(len: u32, kind: u16, flags: u16, stream: u32) -> [u8; FRAME_HEADER] {
    let mut bytes = [0; FRAME_HEADER];
    bytes[0..4].copy_from_slice(&len.to_le_bytes());
    bytes[4..6].copy_from_slice(&kind.to_le_bytes());
    bytes[6..8].copy_from_slice(&flags.to_le_bytes());
    bytes[16..20].copy_from_slice(&stream.to_le_bytes());
    bytes
}

#[test]
fn c11_hostile_headers_are_refused_by_name() {
    let length = |kind, len| OpenError::Header(HeaderError::Length { kind, len, min: 1, max: CONTROL_MAX });
    let cases = [
        (header(u32::MAX, 2, 0, 3), length(Kind::Report, u32::MAX as usize - FRAME_TAG)),
        (header(1 << 31, 2, 0, 3), length(Kind::Report, (1 << 31) - FRAME_TAG)),
        (header((CONTROL_MAX + FRAME_TAG + 1) as u32, 2, 0, 3), length(Kind::Report, CONTROL_MAX + 1)),
        (header(16, 2, 0, 3), length(Kind::Report, 0)),
        (header(0, 2, 0, 3), length(Kind::Report, 0)),
        (header(20, 0, 0, 3), OpenError::Header(HeaderError::Kind { number: 0 })),
        (header(20, 77, 0, 3), OpenError::Header(HeaderError::Kind { number: 77 })),
        (header(20, 1, 0, 3), OpenError::Header(HeaderError::Misplaced { kind: Kind::Control })),
        (header(80, 16, 0, 3), OpenError::Header(HeaderError::Misplaced { kind: Kind::Contribution })),
        (header(20, 2, 2, 3), OpenError::Header(HeaderError::Flags { flags: 2 })),
        (header(20, 2, 1, 3), OpenError::Rekey { seq: 0, due: false }),
        (header(20, 2, 0, 65_536), OpenError::Header(HeaderError::Stream { number: 65_536 })),
        (header(20, 2, 0, u32::MAX - 2), OpenError::Header(HeaderError::Stream { number: u32::MAX - 2 })),
        (
            header(20, 2, 0, u32::MAX),
            OpenError::Header(HeaderError::Unsuited { kind: Kind::Report, stream: Stream::Host }),
        ),
    ];
    for (bytes, expected) in cases {
        let (_, mut opener) = direction(relay_hello(), true);
        let mut input = &bytes[..];
        assert_eq!(opener.feed(&mut input), Err(expected));
        assert!(opener.space().is_empty(), "a failed decoder takes nothing more");
        assert_eq!(opener.feed(&mut input), Err(expected), "and stays failed");
        assert!(!expected.to_string().is_empty());
    }
    let (_, mut opener) = direction(data_hello(), true);
    let absent = HeaderError::Length { kind: Kind::Absent, len: 25, min: 24, max: 24 };
    assert_eq!(opener.feed(&mut &header(41, 17, 0, 3)[..]), Err(OpenError::Header(absent)));
}

#[test]
fn what_the_other_side_would_refuse_is_not_sealed() {
    let (mut up, _) = direction(data_hello(), true);
    let (mut control, _) = direction(relay_hello(), true);
    let consensus = Data::Consensus(chunk(vec![0; 8]));
    let contribution = Data::Contribution(chunk(vec![0; 8]));
    let seal = |sealer: &mut Sealer, stream, data: &Data| {
        let mut out = vec![1, 2, 3];
        let error = sealer.seal_data(stream, Incarnation(1), data, &mut out).unwrap_err();
        assert_eq!(out, [1, 2, 3], "nothing was written");
        error
    };
    let (kind, channel) = (Kind::Consensus, flodl_wire::Channel::Data);
    assert_eq!(seal(&mut up, Stream::Host, &consensus), SealError::Misplaced { kind, channel });
    let (kind, channel) = (Kind::Contribution, flodl_wire::Channel::Control);
    assert_eq!(seal(&mut control, Stream::Host, &contribution), SealError::Misplaced { kind, channel });
    let stream = Stream::AllRanks;
    assert_eq!(seal(&mut up, stream, &contribution), SealError::Unsuited { kind, stream });
    let stream = Stream::Rank(Rank(65_536));
    assert_eq!(seal(&mut up, stream, &contribution), SealError::Unsuited { kind, stream });
    let long = Data::Contribution(chunk(vec![0; CHUNK_MAX + 8]));
    let flaw = Flaw::TooMany { what: "a chunk", len: CHUNK_MAX + 8, max: CHUNK_MAX };
    assert_eq!(seal(&mut up, Stream::Host, &long), SealError::Invalid(flaw));
    for mass in [-1.0, f64::NAN, f64::INFINITY] {
        let bad = Data::Contribution(Chunk { mass, ..chunk(vec![0; 8]) });
        assert_eq!(seal(&mut up, Stream::Host, &bad), SealError::Invalid(Flaw::Number { what: "a chunk's mass" }));
    }
    let empty =
        Frame { kind: Kind::HostReport, stream: Stream::Host, incarnation: Incarnation(0), payload: Vec::new().into() };
    let error = control.seal(&empty, &mut Vec::new()).unwrap_err();
    assert_eq!(error, SealError::Length { kind: Kind::HostReport, len: 0 });
    // After all that the connection still works.
    let (mut sealer, mut opener) = direction(data_hello(), true);
    assert!(sealer.seal_data(Stream::AllRanks, Incarnation(1), &contribution, &mut Vec::new()).is_err());
    let mut out = Vec::new();
    sealer.seal_data(Stream::Rank(Rank(1)), Incarnation(1), &contribution, &mut out).unwrap();
    let frame = opener.feed(&mut &out[..]).unwrap().unwrap();
    assert_eq!(frame.to_data().unwrap(), contribution);
}

#[test]
fn data_payloads_are_checked_field_by_field() {
    let good = Frame::data(Stream::Host, Incarnation(0), &datas()[0]);
    let absent = Frame::data(Stream::Host, Incarnation(0), &datas()[3]);
    let dropped = Frame::data(Stream::Host, Incarnation(0), &datas()[DROPPED]);
    let rounded = Frame::data(Stream::Host, Incarnation(0), &datas()[DROPPED + 1]);
    let holds = Frame::data(Stream::Host, Incarnation(0), &datas()[DROPPED + 3]);
    let left_out = Frame::data(Stream::AllRanks, Incarnation(0), &datas()[DROPPED + 4]);
    let with = |frame: &Frame, at: usize, bytes: &[u8]| {
        let mut payload = frame.payload.to_vec();
        payload[at..at + bytes.len()].copy_from_slice(bytes);
        Frame { payload: payload.into(), ..frame.clone() }.to_data().unwrap_err()
    };
    let header = |what, value| DecodeError::Invalid(Flaw::Header { what, value });
    let mass = DecodeError::Invalid(Flaw::Number { what: "a chunk's mass" });
    let lengths = |expected, got| DecodeError::Invalid(Flaw::Length { expected, got });
    assert_eq!(with(&good, 16, &f64::NAN.to_le_bytes()), mass);
    assert_eq!(with(&good, 16, &(-0.5f64).to_le_bytes()), mass);
    assert_eq!(with(&good, 28, &[9]), lengths(49, 48));
    assert_eq!(with(&good, 28, &u32::MAX.to_le_bytes()), lengths(40 + u32::MAX as usize, 48));
    assert_eq!(with(&good, 32, &[3]), header("codec", 3));
    assert_eq!(with(&good, 33, &[1]), header("reserved", 1));
    assert_eq!(with(&good, 39, &[1]), header("reserved", 1 << 24));
    // The base is a version, so it is not before the first one.
    let base = DecodeError::Invalid(Flaw::Number { what: "the base of a chunk" });
    assert_eq!(with(&rounded, 36, &[5]), base);
    assert_eq!(with(&left_out, 23, &[7]), header("reserved", 7));
    assert_eq!(with(&absent, 12, &[7]), header("why", 7));
    assert_eq!(with(&absent, 13, &[7]), header("reserved", 7));
    assert_eq!(with(&absent, 23, &[7]), header("reserved", 7));
    assert_eq!(with(&dropped, 16, &65_536u32.to_le_bytes()), DecodeError::Invalid(Flaw::Rank { rank: 65_536 }));
    for (frame, least) in [(&good, 40), (&rounded, 40), (&absent, 24), (&dropped, 24), (&holds, 24), (&left_out, 24)] {
        for len in 0..least {
            let cut = Frame { payload: frame.payload.slice(..len), ..frame.clone() };
            assert_eq!(cut.to_data(), Err(lengths(least, len)));
        }
    }
    let report = Frame::host_report(&HostReport::Heartbeat).unwrap();
    assert_eq!(report.to_data(), Err(DecodeError::WrongKind { expected: "data", got: "host report" }));
    assert_eq!(good.to_control(), Err(DecodeError::WrongKind { expected: "control", got: "contribution" }));
    assert_eq!(report.to_report(), Err(DecodeError::WrongKind { expected: "report", got: "host report" }));
}

#[test]
fn a_chunk_shares_its_frames_buffer_which_comes_back() {
    let (mut sealer, mut opener) = direction(data_hello(), false);
    let data = Data::Consensus(chunk(vec![0x3f; 256 << 10]));
    let mut at = Vec::new();
    for _ in 0..4 {
        let mut bytes = Vec::new();
        sealer.seal_data(Stream::AllRanks, Incarnation(0), &data, &mut bytes).unwrap();
        let frame = opener.feed(&mut &bytes[..]).unwrap().unwrap();
        let Data::Consensus(chunk) = frame.to_data().unwrap() else { panic!("a consensus chunk") };
        assert_eq!(chunk.bytes.as_ptr(), frame.payload[40..].as_ptr(), "no copy");
        assert_eq!(chunk.bytes.as_ptr() as usize % 64, 0, "aligned for every element type");
        at.push(chunk.bytes.as_ptr());
    }
    assert!(at.windows(2).all(|pair| pair[0] == pair[1]), "the same memory is used again");
}

#[test]
fn messages_that_contradict_themselves_are_refused_by_both_sides() {
    let round = Round(1);
    let backwards = Range { start: 9, end: 3 };
    let entry = |rank| RosterEntry {
        rank: Rank(rank),
        incarnation: Incarnation(1),
        session: SessionId(1),
        part: Part::Contribute,
    };
    let controls = [
        (Control::ExtendPartition { window: WindowId(1), leases: vec![backwards] }, Flaw::Range { start: 9, end: 3 }),
        (Control::RequestParams { round, roster: vec![entry(2), entry(2)] }, Flaw::RankOrder { rank: 2 }),
        (Control::RequestParams { round, roster: vec![entry(65_536)] }, Flaw::Rank { rank: 65_536 }),
    ];
    for (message, flaw) in controls {
        assert_eq!(encode(&message), Err(EncodeError::Invalid(flaw.clone())));
        let bytes = bincode::serde::encode_to_vec(&message, bincode::config::standard()).unwrap();
        assert_eq!(decode::<Control>(&bytes), Err(DecodeError::Invalid(flaw)));
    }
    let tensors = vec![common::samples::tensors()[0].clone(); 1025];
    let reports = [
        (
            Report::SnapshotReady { round, steps: 1, ranges: vec![backwards], epoch: Epoch(0) },
            Flaw::Range { start: 9, end: 3 },
        ),
        (
            Report::Manifest { part: 0, parts: 1, tensors },
            Flaw::TooMany { what: "a manifest part", len: 1025, max: 1024 },
        ),
        (
            Report::Manifest { part: 1, parts: 1, tensors: Vec::new() },
            Flaw::Number { what: "the manifest's part number" },
        ),
    ];
    for (message, flaw) in reports {
        assert_eq!(encode(&message), Err(EncodeError::Invalid(flaw.clone())));
        let bytes = bincode::serde::encode_to_vec(&message, bincode::config::standard()).unwrap();
        assert_eq!(decode::<Report>(&bytes), Err(DecodeError::Invalid(flaw)));
    }
}

#[test]
fn a_message_too_long_for_a_frame_says_so_where_it_is_made() {
    let error = "x".repeat(CONTROL_MAX);
    let len = CONTROL_MAX + 6;
    assert_eq!(encode(&Report::Failed { error }), Err(EncodeError::TooLong { len, max: CONTROL_MAX }));
    assert_eq!(
        decode::<Report>(&vec![0; CONTROL_MAX + 1]),
        Err(DecodeError::TooLong { len: CONTROL_MAX + 1, max: CONTROL_MAX })
    );
}

#[test]
fn the_longest_list_of_small_numbers_that_fits_is_taken() {
    let ranges = vec![Range { start: 1, end: 2 }; CONTROL_MAX / 2 - 8];
    let message = Report::SnapshotReady { round: Round(1), steps: 1, ranges, epoch: Epoch(0) };
    let bytes = encode(&message).unwrap();
    assert!(bytes.len() > CONTROL_MAX - 32);
    assert_eq!(decode::<Report>(&bytes), Ok(message));
}
