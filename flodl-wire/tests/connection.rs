//! A whole connection over byte vectors: what it says, what it waits for, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use common::{
    Controller, NONCE_C, NONCE_S, RUN, connections, data_hello, open, rank_hello, relay_hello, said, secret, take,
};
use core::time::Duration;
use flodl_wire::Capabilities;
use flodl_wire::connection::{Close, Connection, Deadlines, Event, SendError, Terms};
use flodl_wire::frame::{Frame, Kind, OpenError, SealError, Stream};
use flodl_wire::handshake::{HandshakeError, M1_LEN, M2_LEN, M3_LEN, StrangerWhy};
use flodl_wire::limits::{FRAME_HEADER, WRITE_BEHIND};
use flodl_wire::message::{Control, Data, HostReport};
use flodl_wire::{Channel, Hello, Incarnation, Secret, SessionId, Time};

fn beat() -> Frame {
    Frame::host_report(&HostReport::Heartbeat).unwrap()
}

fn order() -> Frame {
    Frame::control(Stream::AllRanks, Incarnation(0), &Control::Shutdown).unwrap()
}

fn seconds(n: u64) -> Time {
    Time::ZERO.plus(Duration::from_secs(n))
}

fn closed(error: impl Into<Close>) -> Option<Event> {
    Some(Event::Closed(error.into()))
}

#[test]
fn both_sides_open_and_frames_go_both_ways() {
    for hello in [relay_hello(), rank_hello(), data_hello()] {
        let (mut below, mut above) = connections(hello);
        assert_eq!((below.waiting_for(), above.waiting_for()), ("answer to the hello", "hello"));
        assert_eq!(below.send(&beat()), Err(SendError::NotOpen));
        assert_eq!(take(&mut above, &said(&mut below)), [Event::Hello(hello)]);
        let (session, patience) = (SessionId(7), Duration::from_millis(12_345));
        let terms = Event::Open(Terms {
            session,
            patience,
            generation: 3,
            membership_epoch: 9,
            capabilities: Capabilities::NONE,
        });
        assert_eq!(take(&mut below, &said(&mut above)), core::slice::from_ref(&terms));
        assert_eq!(take(&mut above, &said(&mut below)), [terms]);
        assert!(!below.is_drained() && !above.is_drained());
        if hello.channel == Channel::Data {
            let data = Data::Contribution(common::samples::chunk(vec![7; 30_000]));
            below.send_data(Stream::Host, Incarnation(0), &data).unwrap();
            let [Event::Frame(frame)] = &take(&mut above, &said(&mut below))[..] else { panic!("a frame") };
            assert_eq!(frame.to_data(), Ok(data));
            continue;
        }
        below.send(&beat()).unwrap();
        below.send(&beat()).unwrap();
        assert_eq!(take(&mut above, &said(&mut below)), [Event::Frame(beat()), Event::Frame(beat())]);
        above.send(&order()).unwrap();
        assert_eq!(take(&mut below, &said(&mut above)), [Event::Frame(order())]);
        let misplaced = SealError::Misplaced { kind: Kind::Control, channel: Channel::Control };
        assert_eq!(below.send(&order()), Err(SendError::Seal(misplaced)), "a relay gives no orders");
    }
}

#[test]
fn bytes_may_come_one_by_one_and_events_come_when_their_last_byte_does() {
    let (mut below, mut above) = connections(relay_hello());
    let mut events = Vec::new();
    for byte in said(&mut below) {
        events.extend(take(&mut above, &[byte]));
    }
    for byte in said(&mut above) {
        events.extend(take(&mut below, &[byte]));
    }
    below.send(&beat()).unwrap();
    for byte in said(&mut below) {
        events.extend(take(&mut above, &[byte]));
    }
    assert!(matches!(&events[..], [Event::Hello(_), Event::Open(_), Event::Open(_), Event::Frame(_)]), "{events:?}");
}

#[test]
fn nothing_is_taken_while_a_hello_is_to_be_answered() {
    let (mut below, mut above) = connections(relay_hello());
    let hello = [said(&mut below), vec![1, 2, 3]].concat();
    let mut input = &hello[..];
    assert_eq!(above.receive(&mut input, Time::ZERO), Some(Event::Hello(relay_hello())));
    assert_eq!(above.receive(&mut input, Time::ZERO), None);
    assert_eq!((input, above.space().len()), (&[1, 2, 3][..], 0));
    assert_eq!(above.filled(3, Time::ZERO), None);
    assert_eq!(above.admit(&Controller::new()), None);
    assert_eq!(above.admit(&Controller::new()), None, "it is answered once");
    assert_eq!(above.outgoing().len(), M2_LEN);
}

#[test]
fn a_refusal_is_the_last_word_and_is_heard() {
    let (mut below, mut above) = connections(rank_hello());
    let mut input = &said(&mut below)[..];
    above.receive(&mut input, Time::ZERO);
    let why = "rank 3 is already here from host b";
    let who = rank_hello().to_string();
    let refused = HandshakeError::TurnedAway { who, why: why.to_owned() };
    assert_eq!(above.admit(&Controller::refusing(why)), closed(refused));
    assert!(!above.is_drained(), "it has something to say");
    assert_eq!(above.deadline(), Some(seconds(10)), "and not for ever");
    let refusal = said(&mut above);
    assert!(above.is_drained());
    assert_eq!(take(&mut below, &refusal), closed(HandshakeError::Refused(why.to_owned())).as_slice());
    assert!(below.is_drained());
    assert_eq!((below.ended(), above.ended(), below.deadline(), above.deadline()), (None, None, None, None));
}

#[test]
fn a_refusal_that_nobody_takes_is_dropped() {
    let (mut below, mut above) = connections(rank_hello());
    above.receive(&mut &said(&mut below)[..], Time::ZERO);
    above.admit(&Controller::refusing("no room"));
    assert_eq!(above.tick(seconds(9)), None);
    assert!(!above.is_drained());
    assert_eq!(above.tick(seconds(10)), None, "the last event has been");
    assert!(above.is_drained());
}

#[test]
fn strangers_are_told_nothing() {
    let mut above = Connection::accept(&secret().gate_key(), NONCE_S, Time::ZERO);
    let stranger = HandshakeError::Stranger { why: StrangerWhy::NotFlodl };
    assert_eq!(take(&mut above, &[b'G'; 500]), closed(stranger).as_slice());
    assert_eq!((above.outgoing(), above.is_drained(), above.is_open()), (&[][..], true, false));
    let other = Secret::from_bytes([1; 32]);
    let keys = flodl_wire::secret::DialKeys {
        gate: other.gate_key(),
        peer: other.host_key(RUN, relay_hello().host_id).into(),
    };
    let mut below = Connection::dial(relay_hello(), keys, NONCE_C, Time::ZERO);
    let mut above = Connection::accept(&secret().gate_key(), NONCE_S, Time::ZERO);
    let stranger = HandshakeError::Stranger { why: StrangerWhy::WrongGate };
    assert_eq!(take(&mut above, &said(&mut below)), closed(stranger).as_slice());
    let silent = HandshakeError::Silent { run_id: RUN, host: "box-2".to_owned() };
    assert_eq!(below.ended(), closed(silent));
}

#[test]
fn an_end_says_what_it_cut_off_at_every_length() {
    let hello = relay_hello();
    let waiting = |waiting_for| closed(HandshakeError::Closed { waiting_for });
    for len in 0..M1_LEN {
        let (mut below, mut above) = connections(hello);
        assert_eq!(take(&mut above, &said(&mut below)[..len]), []);
        assert_eq!(above.ended(), waiting("hello"), "hello cut to {len}");
        assert_eq!(take(&mut above, &[0; M1_LEN]), [], "it is over");
    }
    for len in 0..M2_LEN {
        let (mut below, mut above) = connections(hello);
        take(&mut above, &said(&mut below));
        assert_eq!(take(&mut below, &said(&mut above)[..len]), []);
        let silent = closed(HandshakeError::Silent { run_id: RUN, host: "box-2".to_owned() });
        assert_eq!(below.ended(), if len == 0 { silent } else { waiting("answer to the hello") });
    }
    for len in 0..M3_LEN {
        let (mut below, mut above) = connections(hello);
        take(&mut above, &said(&mut below));
        take(&mut below, &said(&mut above));
        assert_eq!(take(&mut above, &said(&mut below)[..len]), []);
        assert_eq!(above.ended(), waiting("finish"), "finish cut to {len}");
    }
    let frame = {
        let (mut below, _) = open(hello);
        below.send(&beat()).unwrap();
        said(&mut below)
    };
    for len in 0..frame.len() {
        let (_, mut above) = open(hello);
        assert_eq!(take(&mut above, &frame[..len]), []);
        let end = if len < FRAME_HEADER { FRAME_HEADER } else { frame.len() };
        let truncated = Close::Truncated { missing: end - len };
        assert_eq!(above.ended(), closed(if len == 0 { Close::Ended } else { truncated }), "cut to {len}");
        assert_eq!((above.ended(), above.is_open()), (None, false));
    }
}

#[test]
fn deadlines_are_totals_that_trickling_bytes_do_not_move() {
    let timed_out =
        |waiting_for, after| closed(HandshakeError::TimedOut { waiting_for, after: Duration::from_secs(after) });
    let (mut below, mut above) = connections(relay_hello());
    let hello = said(&mut below);
    assert_eq!((below.deadline(), above.deadline()), (Some(seconds(10)), Some(seconds(5))));
    for (byte, now) in hello.iter().zip(0..4) {
        assert_eq!(above.receive(&mut &[*byte][..], seconds(now)), None);
        assert_eq!((above.tick(seconds(now)), above.deadline()), (None, Some(seconds(5))));
    }
    assert_eq!(above.tick(seconds(5)), timed_out("hello", 5));
    assert_eq!((above.tick(seconds(6)), above.deadline(), above.is_drained()), (None, None, true));

    let mut above = Connection::accept(&secret().gate_key(), NONCE_S, Time::ZERO);
    let mut input = &hello[..];
    assert!(matches!(above.receive(&mut input, seconds(4)), Some(Event::Hello(_))));
    assert_eq!(above.deadline(), Some(seconds(10)), "the whole handshake, from the start");
    above.admit(&Controller::new());
    let challenge = said(&mut above);
    assert_eq!(above.tick(seconds(10)), timed_out("finish", 10));

    assert!(matches!(take(&mut below, &challenge)[..], [Event::Open(_)]));
    assert_eq!(below.deadline(), Some(seconds(10)), "the finish must be taken in time as well");
    below.sent(M3_LEN - 1);
    assert_eq!(below.tick(seconds(10)), timed_out("room for the end of the handshake", 10));
}

#[test]
fn a_frame_that_has_begun_must_come_to_its_end() {
    let deadlines = Deadlines { frame: Duration::from_secs(2), ..Deadlines::default() };
    let (mut below, above) = open(relay_hello());
    let mut above = above.within(deadlines);
    below.send(&beat()).unwrap();
    below.send(&beat()).unwrap();
    let bytes = said(&mut below);
    let (first, second) = bytes.split_at(bytes.len() / 2);
    assert_eq!((above.deadline(), above.tick(seconds(1000))), (None, None), "between frames there is no hurry");
    assert_eq!(above.receive(&mut &first[..5], seconds(1000)), None);
    assert_eq!(above.deadline(), Some(seconds(1002)));
    assert_eq!(above.receive(&mut &first[5..30], seconds(1001)), None);
    assert_eq!((above.deadline(), above.tick(seconds(1001))), (Some(seconds(1002)), None));
    assert_eq!(above.receive(&mut &first[30..], seconds(1001)), Some(Event::Frame(beat())));
    assert_eq!(above.deadline(), None);
    above.receive(&mut &second[..30], seconds(2000));
    let slow = Close::Slow { after: Duration::from_secs(2), missing: 11 };
    assert_eq!(above.tick(seconds(2002)), closed(slow));
}

#[test]
fn what_waits_is_bounded_and_goes_on_when_it_is_taken() {
    let (below, mut above) = open(relay_hello());
    let mut below = below.holding(100);
    let mut taken = 0;
    let full = loop {
        match below.send(&beat()) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((taken, full), (3, SendError::Full { waiting: 123, most: 100 }));
    let bytes = below.outgoing()[..41].to_vec();
    below.sent(41);
    assert_eq!(below.send(&beat()), Ok(()));
    assert_eq!(below.outgoing().len(), 3 * 41);
    let rest = said(&mut below);
    assert_eq!(take(&mut above, &[bytes, rest].concat()), vec![Event::Frame(beat()); 4], "none is lost or doubled");
    let (mut below, _) = open(data_hello());
    let data = Data::Contribution(common::samples::chunk(vec![0; 1 << 20]));
    below.send_data(Stream::Host, Incarnation(0), &data).unwrap();
    let error = below.send_data(Stream::Host, Incarnation(0), &data).unwrap_err();
    assert!(matches!(error, SendError::Full { most: WRITE_BEHIND, .. }), "{error}");
}

#[test]
fn a_close_lets_both_sides_finish() {
    let (mut below, mut above) = open(relay_hello());
    below.send(&beat()).unwrap();
    assert_eq!(below.close(), None);
    assert_eq!(below.send(&beat()), Err(SendError::NotOpen));
    assert!(!below.is_drained());
    assert_eq!(take(&mut above, &said(&mut below)), [Event::Frame(beat())]);
    assert!(below.is_drained());
    assert_eq!(above.ended(), closed(Close::Ended));
    let (mut below, mut above) = open(relay_hello());
    above.close();
    below.send(&beat()).unwrap();
    assert_eq!(take(&mut above, &said(&mut below)), [Event::Frame(beat())], "closed for sending is not for receiving");
    let (mut below, _) = connections(relay_hello());
    assert_eq!((below.close(), below.close()), (closed(Close::GivenUp), None));
    assert!(below.is_drained());
}

#[test]
fn a_forged_frame_ends_it_and_what_waited_is_not_sent() {
    let (mut below, mut above) = open(relay_hello());
    (0..3).for_each(|_| below.send(&beat()).unwrap());
    above.send(&order()).unwrap();
    let mut bytes = said(&mut below);
    bytes[41 + FRAME_HEADER] ^= 1;
    let forged = Event::Closed(OpenError::Forged { seq: 1 }.into());
    assert_eq!(take(&mut above, &bytes), [Event::Frame(beat()), forged]);
    assert_eq!(above.send(&order()), Err(SendError::NotOpen));
    assert_eq!((above.outgoing(), above.is_drained()), (&[][..], true));
    assert_eq!(take(&mut above, &bytes), []);
}

#[test]
fn the_directions_can_be_taken_apart_at_any_time() {
    let (mut below, mut above) = open(relay_hello());
    (0..3).for_each(|_| below.send(&beat()).unwrap());
    let sent = below.outgoing()[..50].to_vec();
    below.sent(50);
    assert_eq!(take(&mut above, &sent), [Event::Frame(beat())]);
    let (established, waiting) = below.into_parts().unwrap();
    assert_eq!((established.session, waiting.len()), (SessionId(7), 3 * 41 - 50));
    let (mut accepted, _) = above.into_parts().unwrap();
    let mut input = &waiting[..];
    for _ in 0..2 {
        assert_eq!(accepted.opener.feed(&mut input), Ok(Some(beat())));
    }
    assert!(connections(relay_hello()).0.into_parts().is_none());
}

#[test]
fn nothing_shows_a_key_and_everything_says_what_it_is_about() {
    let (below, above) = connections(Hello { session: SessionId(2), ..relay_hello() });
    assert_eq!(format!("{below:?}"), "Connection { waiting_for: \"answer to the hello\", outgoing: 120, .. }");
    assert_eq!(format!("{above:?}"), "Connection { waiting_for: \"hello\", outgoing: 0, .. }");
    let (below, _) = open(relay_hello());
    assert_eq!(format!("{below:?}"), "Connection { waiting_for: \"frame\", outgoing: 0, .. }");
    for (close, text) in [
        (Close::Ended, "the other side closed the connection"),
        (
            Close::Slow { after: Duration::from_secs(60), missing: 7 },
            "a frame was not whole 60s after its first byte, with 7 bytes of its current part missing",
        ),
        (Close::GivenUp, "the connection was closed on this side before it was established"),
    ] {
        assert_eq!(close.to_string(), text);
    }
}
