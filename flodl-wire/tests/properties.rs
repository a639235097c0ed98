//! Laws: what goes in comes out, whatever it is and however it is cut; and no bytes at all make anything panic.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::samples::{CONTROL_NAMES, HOST_REPORT_NAMES, REPORT_NAMES, controls, host_reports, reports};
use common::{data_hello, handshake, keys_for, relay_hello, secret};
use core::time::Duration;
use flodl_wire::codec::{decode, encode};
use flodl_wire::frame::{Frame, Kind, Stream};
use flodl_wire::handshake::{Dialler, greet};
use flodl_wire::message::control::WindowPlan;
use flodl_wire::message::data::{AbsentWhy, Chunk, Codec};
use flodl_wire::message::report::WindowReport;
use flodl_wire::message::{Control, Data, HostReport, Report};
use flodl_wire::{Epoch, Incarnation, Range, Rank, Round, Ticket, Version, WindowId};
use proptest::collection::vec;
use proptest::prelude::*;

fn range() -> impl Strategy<Value = Range> {
    (any::<u64>(), any::<u64>()).prop_map(|(a, b)| Range { start: a.min(b), end: a.max(b) })
}

fn plan() -> impl Strategy<Value = Control> {
    let numbers = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>(), any::<u64>());
    let budget = proptest::option::of((any::<u64>(), 0..1_000_000_000u32));
    (numbers, vec(range(), 0..50), budget).prop_map(
        |((window, epoch, a, b, global_step, quota_sum), leases, budget)| {
            Control::Window(WindowPlan {
                window: WindowId(window),
                epoch: Epoch(epoch),
                leases,
                quota: a.min(b),
                quota_max: a.max(b),
                budget: budget.map(|(seconds, nanos)| Duration::new(seconds, nanos)),
                global_step,
                quota_sum,
                overlap: None,
            })
        },
    )
}

fn window_report() -> impl Strategy<Value = Report> {
    let scalars = vec((".{0,20}", -1e300..1e300), 0..5);
    let digest = proptest::option::of((any::<u64>(), any::<u64>()));
    (vec(range(), 0..50), scalars, digest, any::<u32>(), -1e300..1e300).prop_map(
        |(used, scalars, digest, batches, loss_sum)| {
            let replica_digest = digest.map(|(version, digest)| (Version(version), digest));
            let report = WindowReport { batches, loss_sum, used, replica_digest, scalars, ..WindowReport::default() };
            Report::WindowReport(Box::new(report))
        },
    )
}

fn data() -> impl Strategy<Value = Data> {
    let codec = (0..3u8, any::<u32>());
    let chunk = (any::<u64>(), any::<u64>(), any::<u32>(), 0.0..1e300, vec(any::<u8>(), 0..20_000), codec).prop_map(
        |(round, version, chunk, mass, bytes, (codec, back))| {
            let (round, base, bytes) = (Round(round), Version(version.saturating_sub(u64::from(back))), bytes.into());
            let codec = [Codec::Exact, Codec::Bf16 { base }, Codec::Int8 { base }][usize::from(codec)];
            Data::Contribution(Chunk { round, version: Version(version), chunk, mass, codec, bytes })
        },
    );
    let absence = (any::<u64>(), any::<u32>(), 0..65_536u32, any::<u32>(), any::<bool>()).prop_map(
        |(round, from_chunk, rank, incarnation, dropped)| {
            let (round, why) = (Round(round), AbsentWhy::LinkLost);
            if !dropped {
                return Data::Absent { round, from_chunk, why };
            }
            Data::Dropped { round, rank: Rank(rank), incarnation: Incarnation(incarnation), from_chunk, why }
        },
    );
    prop_oneof![chunk, absence]
}

proptest! {
    #[test]
    fn control_and_reports_survive(plan in plan(), report in window_report()) {
        prop_assert_eq!(decode::<Control>(&encode(&plan).unwrap()), Ok(plan));
        prop_assert_eq!(decode::<Report>(&encode(&report).unwrap()), Ok(report));
    }

    #[test]
    fn data_survives_any_cut(messages in vec(data(), 1..6), portion in 1usize..30_000, incarnation in any::<u32>()) {
        let (_, mut dialled, mut accepted) = handshake(data_hello());
        let (mut copied, mut direct, incarnation) = (Vec::new(), Vec::new(), Incarnation(incarnation));
        for message in &messages {
            dialled.sealer.seal_data(Stream::Host, incarnation, message, &mut direct).unwrap();
        }
        let (_, mut again, _) = handshake(data_hello());
        for message in &messages {
            again.sealer.seal(&Frame::data(Stream::Host, incarnation, message), &mut copied).unwrap();
        }
        prop_assert_eq!(&copied, &direct, "both ways of sealing give the same bytes");
        let mut arrived = Vec::new();
        for mut bytes in direct.chunks(portion) {
            while let Some(frame) = accepted.opener.feed(&mut bytes).unwrap() {
                prop_assert_eq!((frame.stream, frame.incarnation), (Stream::Host, incarnation));
                arrived.push(frame.to_data().unwrap());
            }
        }
        prop_assert_eq!(arrived, messages);
    }

    #[test]
    fn c11_no_bytes_are_a_frame_without_the_key(bytes in vec(any::<u8>(), 0..400), kind in prop::sample::select(&Kind::ALL)) {
        for hello in [relay_hello(), data_hello()] {
            let (_, mut dialled, mut accepted) = handshake(hello);
            for opener in [&mut dialled.opener, &mut accepted.opener] {
                let mut header = [0; 24];
                header[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
                header[4..6].copy_from_slice(&(kind as u16).to_le_bytes());
                let plausible = [&header[..], &bytes].concat();
                prop_assert!(!matches!(opener.feed(&mut &plausible[..]), Ok(Some(_))));
                prop_assert!(!matches!(opener.feed(&mut &bytes[..]), Ok(Some(_))));
            }
        }
    }

    #[test]
    fn c11_no_bytes_make_a_decoder_panic(bytes in vec(any::<u8>(), 0..400), kind in prop::sample::select(&Kind::ALL)) {
        let frame = Frame { kind, stream: Stream::Host, incarnation: Incarnation(0), payload: bytes.clone().into() };
        let decoded = [
            frame.to_control().is_ok(),
            frame.to_report().is_ok(),
            frame.to_host_report().is_ok(),
            frame.to_data().is_ok(),
        ];
        prop_assert!(decoded.iter().filter(|ok| **ok).count() <= 1, "one kind is one type");
        if let Ok(message) = decode::<Control>(&bytes) {
            let again = decode::<Control>(&encode(&message).unwrap()).unwrap();
            prop_assert_eq!(encode(&again).unwrap(), encode(&message).unwrap());
        }
    }

    #[test]
    fn c11_a_changed_message_is_an_error_or_another_valid_message(
        which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), flip in 1u8..,
    ) {
        let (controls, reports, hosts) = (controls(), reports(), host_reports());
        let mut control = encode(which.get(&controls)).unwrap();
        let mut report = encode(which.get(&reports)).unwrap();
        let mut host = encode(which.get(&hosts)).unwrap();
        for bytes in [&mut control, &mut report, &mut host] {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        if let Ok(message) = decode::<Control>(&control) {
            prop_assert!(encode(&message).is_ok());
        }
        if let Ok(message) = decode::<Report>(&report) {
            prop_assert!(encode(&message).is_ok());
        }
        if let Ok(message) = decode::<HostReport>(&host) {
            prop_assert!(encode(&message).is_ok());
        }
    }

    #[test]
    fn c11_no_hello_passes_the_gate_by_chance(bytes in vec(any::<u8>(), 112), magic in any::<bool>()) {
        let mut m1 = [0; 120];
        m1[8..].copy_from_slice(&bytes);
        if magic {
            m1[..8].copy_from_slice(b"flodl-m1");
        }
        prop_assert!(greet(&secret().gate_key(), &m1).is_err());
    }

    #[test]
    fn c11_no_answer_makes_a_dialler_panic(mut answer in vec(any::<u8>(), 512), refusal in any::<bool>(), portion in 1usize..512) {
        answer[..8].copy_from_slice(if refusal { b"flodl-no" } else { b"flodl-m2" });
        let mut dialler = Dialler::new(relay_hello(), keys_for(&relay_hello()), [1; 32]);
        let mut rest = &answer[..];
        let error = loop {
            let space = dialler.space();
            let n = space.len().min(portion).min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            match dialler.filled(n) {
                Ok(finish) => prop_assert!(finish.is_none()),
                Err(error) => break error,
            }
        };
        prop_assert!(!error.to_string().is_empty());
    }

    #[test]
    fn c11_no_text_makes_a_ticket_panic(text in "(flodl ticket 1\n)?(.{0,40}\n|[a-z-]{0,9} ?= ?[0-9a-f]{0,64}\n){0,8}") {
        prop_assert!(Ticket::parse(&text).is_err());
    }
}

#[test]
fn c11_a_message_cut_anywhere_is_no_message() {
    for message in controls() {
        let bytes = encode(&message).unwrap();
        for len in 0..bytes.len() {
            assert!(decode::<Control>(&bytes[..len]).is_err(), "{message:?} cut to {len}");
        }
        assert!(decode::<Control>(&[&bytes[..], &[0]].concat()).is_err(), "{message:?} and a byte more");
    }
    for message in reports() {
        let bytes = encode(&message).unwrap();
        for len in 0..bytes.len() {
            assert!(decode::<Report>(&bytes[..len]).is_err(), "{message:?} cut to {len}");
        }
        assert!(decode::<Report>(&[&bytes[..], &[0]].concat()).is_err(), "{message:?} and a byte more");
    }
}

#[test]
fn c11_a_variant_that_nobody_knows_is_no_message() {
    for number in 0..=250u8 {
        for len in [1, 2, 9, 64, 500] {
            let mut bytes = vec![0; len];
            bytes[0] = number;
            let at = usize::from(number);
            assert!(at < CONTROL_NAMES.len() || decode::<Control>(&bytes).is_err(), "order {number}");
            assert!(at < REPORT_NAMES.len() || decode::<Report>(&bytes).is_err(), "report {number}");
            assert!(at < HOST_REPORT_NAMES.len() || decode::<HostReport>(&bytes).is_err(), "host report {number}");
        }
    }
    for number in [u64::from(u16::MAX), u64::from(u32::MAX), u64::MAX] {
        let bytes = bincode::serde::encode_to_vec(number, bincode::config::standard()).unwrap();
        assert!(decode::<Control>(&bytes).is_err() && decode::<Report>(&bytes).is_err());
    }
}
