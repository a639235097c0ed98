//! Handshakes and frames over streams in memory: no socket, no clock that anything waits for.

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
