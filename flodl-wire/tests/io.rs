//! Handshakes and frames over streams in memory: no socket, no clock that anything waits for.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![cfg(feature = "io")]

mod common;

use common::{Controller, NONCE_C, NONCE_S, data_hello, handshake, keys_for, rank_hello, relay_hello};
use core::time::Duration;
use flodl_wire::frame::{Frame, OpenError, Stream};
use flodl_wire::handshake::{HandshakeError, StrangerWhy};
use flodl_wire::io::{
    Deadlines, FrameReader, FrameWriter, RecvError, SendError, accept, accept_within, connect, connect_within, duplex,
};
use flodl_wire::message::data::{Chunk, Codec};
use flodl_wire::message::{Control, Data, HostReport, Report};
use flodl_wire::secret::DialKeys;
use flodl_wire::{Incarnation, Rank, Round, RunId, Secret, SessionId, Version};
use futures_lite::future::{block_on, poll_once, zip};
use futures_lite::io::{AsyncReadExt, AsyncWriteExt, Cursor};

fn consensus(chunk: u32, len: usize) -> Data {
    let bytes = (0..len).map(|i| (i as u32 ^ chunk) as u8).collect::<Vec<u8>>().into();
    Data::Consensus(Chunk { round: Round(4), version: Version(3), chunk, mass: 1.5, codec: Codec::Exact, bytes })
}

fn contribution(chunk: u32, len: usize) -> Data {
    let Data::Consensus(chunk) = consensus(chunk, len) else { unreachable!() };
    Data::Contribution(chunk)
}

#[test]
fn two_peers_talk() {
    let (up, down) = duplex(64);
    block_on(async {
        let hello = relay_hello();
        let controller = Controller::new();
        let (dialled, accepted) =
            zip(connect(up, hello, keys_for(&hello), NONCE_C), accept(down, &controller, NONCE_S)).await;
        let (dialled, (accepted, heard)) = (dialled.unwrap(), accepted.unwrap());
        assert_eq!(heard, hello);
        assert_eq!((dialled.session, accepted.session), (SessionId(7), SessionId(7)));
        assert_eq!(dialled.patience, Duration::from_millis(12_345));
        assert_eq!((dialled.generation, dialled.membership_epoch), (3, 9));

        let ((mut from_below, mut to_below), (mut from_above, mut to_above)) = (accepted.split(), dialled.split());
        let beat = Report::Heartbeat { step: 12 };
        let below = async {
            to_above.send(&Frame::report(Rank(1), Incarnation(1), &beat).unwrap()).await.unwrap();
            to_above.send(&Frame::host_report(&HostReport::Heartbeat).unwrap()).await.unwrap();
            to_above.flush().await.unwrap();
            let order = from_above.next().await.unwrap().unwrap();
            assert_eq!((order.stream, order.to_control().unwrap()), (Stream::AllRanks, Control::Shutdown));
            to_above.close().await.unwrap();
        };
        let above = async {
            let report = from_below.next().await.unwrap().unwrap();
            assert_eq!((report.stream, report.to_report().unwrap()), (Stream::Rank(Rank(1)), beat.clone()));
            let report = from_below.next().await.unwrap().unwrap();
            assert_eq!(report.to_host_report().unwrap(), HostReport::Heartbeat);
            to_below
                .send(&Frame::control(Stream::AllRanks, Incarnation(0), &Control::Shutdown).unwrap())
                .await
                .unwrap();
            to_below.flush().await.unwrap();
            assert_eq!(from_below.next().await, Ok(None), "a clean end");
        };
        zip(below, above).await;
    });
}

/// Both links of a handshake over a pipe that holds `bytes` each way.
fn links(
    hello: flodl_wire::Hello,
    bytes: usize,
) -> (flodl_wire::io::Link<flodl_wire::io::Duplex>, flodl_wire::io::Link<flodl_wire::io::Duplex>) {
    let (up, down) = duplex(bytes);
    let controller = Controller::new();
    let (dialled, accepted) =
        block_on(zip(connect(up, hello, keys_for(&hello), NONCE_C), accept(down, &controller, NONCE_S)));
    (dialled.unwrap(), accepted.unwrap().0)
}

#[test]
fn large_chunks_both_ways_at_once_over_4_kib_do_not_wait_for_each_other() {
    let (dialled, accepted) = links(data_hello(), 4096);
    let ((mut from_above, mut to_above), (mut from_below, mut to_below)) = (dialled.split(), accepted.split());
    let sizes = [256 << 10, 1 << 20, 8, 0, (256 << 10) + 4];
    block_on(async {
        let send_up = async {
            for (i, len) in (0..).zip(sizes) {
                to_above.send_data(Stream::Host, Incarnation(0), &contribution(i, len)).await.unwrap();
            }
            to_above.close().await.unwrap();
        };
        let send_down = async {
            for (i, len) in (0..).zip(sizes) {
                let frame = Frame::data(Stream::AllRanks, Incarnation(0), &consensus(i, len));
                to_below.send(&frame).await.unwrap();
            }
            to_below.close().await.unwrap();
        };
        let receive_up = async {
            for (i, len) in (0..).zip(sizes) {
                let frame = from_below.next().await.unwrap().unwrap();
                assert_eq!(frame.to_data().unwrap(), contribution(i, len));
            }
            assert_eq!(from_below.next().await, Ok(None));
        };
        let receive_down = async {
            for (i, len) in (0..).zip(sizes) {
                let frame = from_above.next().await.unwrap().unwrap();
                assert_eq!(frame.to_data().unwrap(), consensus(i, len));
            }
            assert_eq!(from_above.next().await, Ok(None));
        };
        zip(zip(send_up, send_down), zip(receive_up, receive_down)).await;
    });
}

#[test]
fn a_reader_and_a_writer_that_are_dropped_in_mid_wait_lose_nothing() {
    let (dialled, accepted) = links(data_hello(), 100);
    let ((_, mut writer), (mut reader, _)) = (dialled.split(), accepted.split());
    let sizes = [40_000, 3, 20_000, 0];
    block_on(async {
        for (i, len) in (0..).zip(sizes) {
            writer.send_data(Stream::Host, Incarnation(0), &contribution(i, len)).await.unwrap();
        }
        let (mut arrived, mut dropped) = (Vec::new(), 0);
        while arrived.len() < sizes.len() {
            // Each future is polled once and dropped where it has to wait.
            if poll_once(writer.flush()).await.is_none() {
                dropped += 1;
            }
            if let Some(frame) = poll_once(reader.next()).await {
                arrived.push(frame.unwrap().unwrap().to_data().unwrap());
            }
        }
        let expected: Vec<Data> = (0..).zip(sizes).map(|(i, len)| contribution(i, len)).collect();
        assert_eq!(arrived, expected);
        assert!(dropped > 100, "{dropped} flushes were cut short");
    });
}

#[test]
fn frames_gather_until_flush() {
    let (_, established, _) = handshake(relay_hello());
    let mut writer = FrameWriter::new(Vec::new(), established.sealer);
    let beat = Frame::host_report(&HostReport::Heartbeat).unwrap();
    block_on(async {
        for _ in 0..10 {
            writer.send(&beat).await.unwrap();
        }
        assert_eq!(writer.pending(), 10 * 41);
        writer.flush().await.unwrap();
        assert_eq!(writer.pending(), 0);
    });
}

#[test]
fn a_frame_that_cannot_be_sealed_leaves_the_connection_as_it_was() {
    let (_, dialled, accepted) = handshake(relay_hello());
    let mut bytes = Vec::new();
    let mut writer = FrameWriter::new(&mut bytes, dialled.sealer);
    let beat = Frame::host_report(&HostReport::Heartbeat).unwrap();
    let order = Frame::control(Stream::Host, Incarnation(0), &Control::Shutdown).unwrap();
    block_on(async {
        assert!(matches!(writer.send(&order).await, Err(SendError::Seal(_))));
        writer.send(&beat).await.unwrap();
        writer.close().await.unwrap();
    });
    drop(writer);
    let mut reader = FrameReader::new(Cursor::new(bytes), accepted.opener);
    assert_eq!(block_on(reader.next()), Ok(Some(beat)));
    assert_eq!(block_on(reader.next()), Ok(None));
}

#[test]
fn an_end_inside_a_frame_is_not_a_clean_end() {
    let (_, mut dialled, _) = handshake(data_hello());
    let mut bytes = Vec::new();
    dialled.sealer.seal_data(Stream::Host, Incarnation(0), &contribution(0, 40_000), &mut bytes).unwrap();
    for (len, missing) in [(0, None), (1, Some(23)), (24, Some(40_056)), (30_000, Some(10_080)), (40_079, Some(1))] {
        let (_, _, accepted) = handshake(data_hello());
        let mut reader = FrameReader::new(Cursor::new(&bytes[..len]), accepted.opener);
        let expected = missing.map_or(Ok(None), |missing| Err(RecvError::Truncated { missing }));
        assert_eq!(block_on(reader.next()), expected, "cut to {len}");
    }
}

#[test]
fn a_frame_whose_bytes_trickle_in_is_not_waited_for_for_ever() {
    let (_, mut dialled, _) = handshake(data_hello());
    let mut bytes = Vec::new();
    dialled.sealer.seal_data(Stream::Host, Incarnation(0), &contribution(0, 8), &mut bytes).unwrap();
    let whole = bytes.len();
    dialled.sealer.seal_data(Stream::Host, Incarnation(0), &contribution(1, 60_000), &mut bytes).unwrap();
    // In its header, in its payload, and where its bytes go straight into place.
    for (at, missing) in [(whole + 7, 17), (whole + 24 + 60_000, 72), (whole + 24 + 10, 60_062)] {
        let (_, _, accepted) = handshake(data_hello());
        let (mut up, down) = duplex(1 << 17);
        let limit = Duration::from_millis(30);
        let mut reader = FrameReader::new(down, accepted.opener).with_frame_limit(limit);
        let drip = async {
            up.write_all(&bytes[..at]).await.unwrap();
            // The next byte is always soon there, and the last one never.
            for byte in bytes[at..bytes.len() - 1].chunks(1).cycle() {
                async_io::Timer::after(limit / 8).await;
                if up.write_all(byte).await.is_err() {
                    break;
                }
            }
        };
        let read = async {
            assert!(matches!(reader.next().await, Ok(Some(_))), "the frame before it is whole");
            let error = reader.next().await.unwrap_err();
            drop(reader);
            error
        };
        let (error, ()) = block_on(zip(read, drip));
        let RecvError::Slow { limit: said, missing: left } = error else { panic!("{error:?}") };
        assert!(said == limit && left < missing, "{error}");
    }
}

#[test]
fn between_frames_a_connection_may_be_silent() {
    let (_, mut dialled, accepted) = handshake(relay_hello());
    let beat = Frame::host_report(&HostReport::Heartbeat).unwrap();
    let (mut up, down) = duplex(4096);
    let mut reader = FrameReader::new(down, accepted.opener).with_frame_limit(Duration::from_millis(1));
    let send = async {
        for _ in 0..2 {
            async_io::Timer::after(Duration::from_millis(20)).await;
            let mut bytes = Vec::new();
            dialled.sealer.seal(&beat, &mut bytes).unwrap();
            up.write_all(&bytes).await.unwrap();
        }
        up.close().await.unwrap();
    };
    let read = async {
        let got = [reader.next().await, reader.next().await, reader.next().await];
        assert_eq!(got, [Ok(Some(beat.clone())), Ok(Some(beat.clone())), Ok(None)]);
    };
    block_on(zip(send, read));
}

#[test]
fn a_forged_frame_ends_the_connection_and_the_frames_before_it_count() {
    let (_, mut dialled, accepted) = handshake(relay_hello());
    let beat = Frame::host_report(&HostReport::Heartbeat).unwrap();
    let mut bytes = Vec::new();
    for _ in 0..3 {
        dialled.sealer.seal(&beat, &mut bytes).unwrap();
    }
    bytes[41 + 24] ^= 1;
    let mut reader = FrameReader::new(Cursor::new(bytes), accepted.opener);
    block_on(async {
        assert_eq!(reader.next().await, Ok(Some(beat)));
        for _ in 0..2 {
            assert_eq!(reader.next().await, Err(RecvError::Open(OpenError::Forged { seq: 1 })));
        }
    });
}

#[test]
fn a_writer_without_a_reader_says_so() {
    let (dialled, accepted) = links(relay_hello(), 64);
    drop(accepted);
    let (mut reader, mut writer) = dialled.split();
    block_on(async {
        writer.send(&Frame::host_report(&HostReport::Heartbeat).unwrap()).await.unwrap();
        assert_eq!(writer.flush().await, Err(SendError::Io { kind: std::io::ErrorKind::BrokenPipe }));
        assert_eq!(reader.next().await, Ok(None));
    });
}

#[test]
fn a_wrong_secret_gets_no_byte_and_an_error_that_says_why() {
    let (up, down) = duplex(256);
    let (hello, other) = (relay_hello(), Secret::from_bytes([1; 32]));
    let keys = DialKeys { gate: other.gate_key(), peer: other.host_key(hello.run_id, hello.host_id).into() };
    let controller = Controller::new();
    let (dialled, accepted) = block_on(zip(connect(up, hello, keys, NONCE_C), accept(down, &controller, NONCE_S)));
    let silent = HandshakeError::Silent { run_id: hello.run_id, host: "box-2".to_owned() };
    assert_eq!(dialled.map(|_| ()), Err(silent));
    assert_eq!(accepted.map(|_| ()), Err(HandshakeError::Stranger { why: StrangerWhy::WrongGate }));
}

#[test]
fn strangers_read_nothing() {
    let garbage: [&[u8]; 3] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 4096], b"flodl-m1"];
    for said in garbage {
        let (mut up, down) = duplex(8192);
        let controller = Controller::new();
        let mut heard = Vec::new();
        let stranger = async {
            up.write_all(said).await.unwrap();
            up.close().await.unwrap();
            up.read_to_end(&mut heard).await.unwrap();
        };
        let ((), accepted) = block_on(zip(stranger, accept(down, &controller, NONCE_S)));
        let short = said.len() < 120;
        let closed = HandshakeError::Closed { waiting_for: "hello" };
        let stranger = HandshakeError::Stranger { why: StrangerWhy::NotFlodl };
        assert_eq!(accepted.map(|_| ()), Err(if short { closed } else { stranger }));
        assert_eq!(heard, b"");
    }
}

#[test]
fn a_refusal_arrives_as_a_sentence_on_both_sides() {
    let (up, down) = duplex(64);
    let hello = rank_hello();
    let why = "rank 3 is already here from host b";
    let controller = Controller::refusing(why);
    let (dialled, accepted) =
        block_on(zip(connect(up, hello, keys_for(&hello), NONCE_C), accept(down, &controller, NONCE_S)));
    assert_eq!(dialled.map(|_| ()), Err(HandshakeError::Refused(why.to_owned())));
    let error = accepted.map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, format!("the rank 3 (incarnation 2) of host box-2 (control connection) was refused: {why}"));
}

#[test]
fn another_run_is_refused_with_both_values() {
    let (up, down) = duplex(64);
    let hello = flodl_wire::Hello { run_id: RunId([9; 16]), ..relay_hello() };
    let controller = Controller::new();
    let (dialled, _) = block_on(zip(connect(up, hello, keys_for(&hello), NONCE_C), accept(down, &controller, NONCE_S)));
    let said = dialled.map(|_| ()).unwrap_err().to_string();
    assert!(said.contains(&"11".repeat(16)) && said.contains(&"09".repeat(16)), "{said}");
}

#[test]
fn a_peer_that_says_nothing_or_too_little_meets_the_deadline() {
    let deadlines = Deadlines { hello: Duration::ZERO, total: Duration::ZERO, ..Deadlines::default() };
    let timed_out = |waiting_for| HandshakeError::TimedOut { waiting_for, after: Duration::ZERO };
    let controller = Controller::new();
    block_on(async {
        // Nobody answers the hello.
        let (up, _silent) = duplex(4096);
        let hello = relay_hello();
        let dialled = connect_within(up, hello, keys_for(&hello), NONCE_C, deadlines).await;
        assert_eq!(dialled.map(|_| ()), Err(timed_out("answer to the hello")));
        // Nobody says hello, or not all of it.
        for said in [0, 1, 119] {
            let (mut up, down) = duplex(4096);
            up.write_all(&handshake(hello).0.m1[..said]).await.unwrap();
            let accepted = accept_within(down, &controller, NONCE_S, deadlines).await;
            assert_eq!(accepted.map(|_| ()), Err(timed_out("hello")));
        }
        // The challenge is never answered, or has no room to go.
        for room in [4096, 121] {
            let (mut up, down) = duplex(room);
            up.write_all(&handshake(hello).0.m1).await.unwrap();
            let hello_first = Deadlines { hello: Duration::from_secs(3600), ..deadlines };
            let accepted = accept_within(down, &controller, NONCE_S, hello_first).await;
            assert_eq!(accepted.map(|_| ()), Err(timed_out("finish")));
        }
    });
    let seconds = Duration::from_secs;
    assert_eq!(Deadlines::default(), Deadlines { hello: seconds(5), total: seconds(10), frame: seconds(60) });
}

#[test]
fn both_ends_see_the_same_close() {
    let (dialled, accepted) = links(relay_hello(), 4096);
    let ((mut from_above, mut to_above), (mut from_below, mut to_below)) = (dialled.split(), accepted.split());
    block_on(async {
        to_above.send(&Frame::report(Rank(0), Incarnation(1), &Report::Heartbeat { step: 0 }).unwrap()).await.unwrap();
        to_above.close().await.unwrap();
        assert!(from_below.next().await.unwrap().is_some());
        assert_eq!(from_below.next().await, Ok(None));
        to_below.close().await.unwrap();
        assert_eq!(from_above.next().await, Ok(None));
    });
}

/// Each part of a connection can move to a task of its own, on any thread.
#[test]
fn everything_can_move_between_threads() {
    fn moves<T: Send>(value: T) -> T {
        value
    }
    let (up, down) = duplex(4096);
    let (hello, controller) = (relay_hello(), Controller::new());
    let dialling = moves(connect(up, hello, keys_for(&hello), NONCE_C));
    let accepting = moves(accept(down, &controller, NONCE_S));
    let (dialled, accepted) = block_on(zip(dialling, accepting));
    let (mut reader, mut writer) = moves(dialled.unwrap().split());
    moves(accepted.unwrap());
    drop((moves(reader.next()), moves(writer.flush())));
}
