//! What a relay does, as data: inputs in, outputs out.

use super::*;
use flodl_wire::message::control::{Next, Part};
use flodl_wire::message::data::{Chunk, Codec};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::ExitStatus;

const PATIENCE: Duration = Duration::from_secs(10);
const LIFE: Incarnation = Incarnation(1);
const SESSION: SessionId = SessionId(5);

/// What came out, in words.
fn drained(relay: &mut Relay) -> Vec<String> {
    core::iter::from_fn(|| relay.poll()).map(|output| words(&output)).collect()
}

fn words(output: &Output) -> String {
    match output {
        Output::Up(frame) => match frame.kind {
            Kind::HostReport => match frame.to_host_report().unwrap() {
                HostReport::RankUp { rank, pid, .. } => format!("up: {rank} is process {pid}"),
                HostReport::RankExited { rank, status, .. } => format!("up: {rank} exited {status:?}"),
                HostReport::RankNotStarted { rank, error, .. } => format!("up: {rank} not started: {error}"),
                HostReport::RankLost { rank, error, .. } => format!("up: {rank} lost: {error}"),
                HostReport::Waiting { rank, chunk, .. } => format!("up: waiting for {rank} chunk {chunk}"),
                HostReport::Heartbeat => "up: heartbeat".to_owned(),
                HostReport::WillRestart { rank, .. } => format!("up: {rank} will be restarted"),
                HostReport::Leaving => "up: leaving".to_owned(),
                HostReport::RankState(state) => format!("up: {} stands at {:?}", state.rank, state.words),
                HostReport::CommitPart { part, parts, .. } => format!("up: part {part} of {parts} of the record"),
                HostReport::Back { consensus, result, .. } => format!("up: back with {consensus:?} and {result:?}"),
            },
            kind => format!("up: {kind} of {}", frame.stream),
        },
        Output::Fold(Order::Layout(sizes)) => format!("fold: {} parameters", sizes.parameters),
        Output::Fold(Order::Open { round, version, members }) => {
            let ranks: Vec<_> = members.iter().map(|member| member.rank.0).collect();
            format!("fold: open {round} on {version} of {ranks:?}")
        }
        Output::Fold(Order::Drop { rank, why, .. }) => format!("fold: drop {rank} {why:?}"),
        Output::Fold(Order::Hold(base)) => format!("fold: hold {}", base.version),
        Output::Fold(Order::Commit { round, chunks }) => format!("fold: commit {round} up to {chunks}"),
        Output::Fold(Order::Close { round }) => format!("fold: close {round}"),
        Output::ToRank { connection, frame } => format!("to {}: {}", connection.0, frame.stream),
        Output::Result { connection, chunk } => format!("to {}: result {}", connection.0, chunk.chunk),
        Output::Offer(chunks) => format!("offer {} chunks", chunks.len()),
        Output::Start { rank, incarnation, .. } if *incarnation != LIFE => format!("start {rank} as {incarnation}"),
        Output::Start { rank, place: Place { local_rank, local_world_size, world_size }, .. } => {
            format!("start {rank} as {local_rank} of {local_world_size} here and {world_size} in all")
        }
        Output::Kill { rank, .. } => format!("kill {rank}"),
        Output::Close { connection, why } => format!("close {}: {why}", connection.0),
        Output::Redial { session } => format!("redial {session}"),
        Output::Warn(warning) => format!("warn: {warning}"),
        Output::End(Ok(())) => "end".to_owned(),
        Output::End(Err(error)) => format!("end: {error}"),
    }
}

fn order(relay: &mut Relay, stream: Stream, control: &Control, now: Time) -> Vec<String> {
    let incarnation = if matches!(stream, Stream::Rank(_)) { LIFE } else { Incarnation(0) };
    relay.handle(Input::Upstream(Frame::control(stream, incarnation, control).unwrap()), now);
    drained(relay)
}

fn give(relay: &mut Relay, input: Input) -> Vec<String> {
    relay.handle(input, Time::ZERO);
    drained(relay)
}

fn connect(relay: &mut Relay, rank: u32, connection: u64, channel: Channel) -> Vec<String> {
    let peer = Peer { rank: Rank(rank), incarnation: LIFE, channel, session: SessionId(u64::from(rank)) };
    give(relay, Input::Connected { connection: Connection(connection), peer })
}

fn closed(relay: &mut Relay, connection: u64) -> Vec<String> {
    give(relay, Input::Closed { connection: Connection(connection), why: "end of file".to_owned() })
}

fn exited(relay: &mut Relay, rank: u32, status: ExitStatus) -> Vec<String> {
    let last_lines = String::new();
    give(relay, Input::Exited { rank: Rank(rank), incarnation: LIFE, status, last_lines })
}

fn says(relay: &mut Relay, rank: u32, connection: u64, report: &Report) -> Vec<String> {
    let frame = Frame::report(Rank(rank), LIFE, report).unwrap();
    give(relay, Input::RankFrame { connection: Connection(connection), frame })
}

/// A relay with ranks 4 and 6. Rank r has connections 10 r (control) and 10 r + 1 (data).
fn relay() -> Relay {
    let mut relay = Relay::new(PATIENCE, Time::ZERO);
    let ids = vec![(Rank(4), LIFE), (Rank(6), LIFE)];
    let admit = Control::Admit(Admit { session: SESSION, ids, world_size: 9 });
    let started = order(&mut relay, Stream::Host, &admit, Time::ZERO);
    assert_eq!(started, ["start rank 4 as 0 of 2 here and 9 in all", "start rank 6 as 1 of 2 here and 9 in all"]);
    for rank in [4, 6] {
        let up = give(&mut relay, Input::Started { rank: Rank(rank), incarnation: LIFE, pid: 100 + rank });
        assert_eq!(up, [format!("up: rank {rank} is process {}", 100 + rank)]);
        assert_eq!(connect(&mut relay, rank, u64::from(rank) * 10, Channel::Control), [""; 0]);
        assert_eq!(connect(&mut relay, rank, u64::from(rank) * 10 + 1, Channel::Data), [""; 0]);
    }
    relay
}

fn open_round(relay: &mut Relay, round: u64) -> Vec<String> {
    let entry = |rank, session| RosterEntry { rank: Rank(rank), incarnation: LIFE, session, part: Part::Contribute };
    let roster = vec![entry(2, SessionId(1)), entry(4, SESSION), entry(6, SESSION)];
    order(relay, Stream::AllRanks, &Control::RequestParams { round: Round(round), roster }, Time::ZERO)
}

fn result(relay: &mut Relay, round: u64, chunk: u32) -> Vec<String> {
    let (round, version, bytes) = (Round(round), Version(0), bytes::Bytes::new());
    give(relay, Input::Result(Data::Consensus(Chunk { round, version, chunk, mass: 1.0, codec: Codec::Exact, bytes })))
}

const FINISHED: Report = Report::Finished { version: None, replica_digest: 0 };

#[test]
fn control_goes_by_stream_and_reports_go_up_as_they_are() {
    let mut relay = relay();
    assert_eq!(order(&mut relay, Stream::Rank(Rank(6)), &Control::SendManifest, Time::ZERO), ["to 60: rank 6"]);
    assert_eq!(
        order(&mut relay, Stream::AllRanks, &Control::Heartbeat, Time::ZERO),
        ["to 40: all ranks", "to 60: all ranks"]
    );
    assert_eq!(says(&mut relay, 4, 40, &Report::Heartbeat { step: 1 }), ["up: report of rank 4"]);
    assert_eq!(order(&mut relay, Stream::Rank(Rank(9)), &Control::SendManifest, Time::ZERO), [""; 0]);
    let old = Frame::control(Stream::Rank(Rank(6)), Incarnation(9), &Control::SendManifest).unwrap();
    assert_eq!(give(&mut relay, Input::Upstream(old)), [""; 0]);
    assert_eq!(relay.strays(), 2);
}

#[test]
fn a_round_is_opened_before_the_ranks_hear_of_it_and_its_result_goes_to_each() {
    let mut relay = relay();
    assert_eq!(
        open_round(&mut relay, 3),
        ["fold: open round 3 on version 0 of [4, 6]", "to 40: all ranks", "to 60: all ranks"]
    );
    assert_eq!(result(&mut relay, 3, 0), ["to 41: result 0", "to 61: result 0"]);
    for (round, chunk) in [(2, 1), (3, 0), (3, 2)] {
        assert_eq!(result(&mut relay, round, chunk), [""; 0], "{round} {chunk}");
    }
    assert_eq!(relay.strays(), 3);
    assert_eq!(result(&mut relay, 3, 1), ["to 41: result 1", "to 61: result 1"]);
    let outcome = RoundOutcome::Committed { version: Version(7) };
    let done = Control::RoundDone { round: Round(3), outcome, next: Next::Window };
    assert_eq!(order(&mut relay, Stream::AllRanks, &done, Time::ZERO)[0], "fold: close round 3");
    assert_eq!(result(&mut relay, 3, 2), [""; 0]);
    assert_eq!(open_round(&mut relay, 4)[0], "fold: open round 4 on version 7 of [4, 6]");
}

#[test]
fn a_killed_rank_is_lost_then_exited_and_only_once_its_connections_are_read_to_their_end() {
    let mut relay = relay();
    open_round(&mut relay, 0);
    assert_eq!(exited(&mut relay, 6, ExitStatus::Signal(9)), [""; 0], "its sockets may hold more");
    assert_eq!(closed(&mut relay, 60), ["up: rank 6 lost: its control connection to its relay ended: end of file"]);
    assert_eq!(closed(&mut relay, 61), ["up: rank 6 exited Signal(9)"]);
    assert_eq!(result(&mut relay, 0, 0), ["to 41: result 0"]);
    assert_eq!(
        open_round(&mut relay, 1)[..2],
        ["fold: open round 1 on version 0 of [4, 6]", "fold: drop rank 6 Dead"],
        "the coordinator did not know yet"
    );
}

#[test]
fn sockets_that_outlive_their_process_are_waited_for_briefly() {
    let mut relay = relay();
    exited(&mut relay, 6, ExitStatus::Code(1));
    let due = relay.next_deadline().unwrap();
    assert_eq!(due, Time::ZERO.plus(PATIENCE / 20));
    relay.handle(Input::Tick, due);
    assert_eq!(
        drained(&mut relay),
        ["up: rank 6 exited Code(1)", "close 60: rank 6 is gone", "close 61: rank 6 is gone"]
    );
}

#[test]
fn a_rank_that_finished_may_go_and_one_that_did_not_is_lost() {
    let mut relay = relay();
    assert_eq!(says(&mut relay, 4, 40, &FINISHED), ["up: report of rank 4"]);
    assert_eq!((closed(&mut relay, 41), closed(&mut relay, 40)), (vec![], vec![]));
    assert_eq!(exited(&mut relay, 4, ExitStatus::Code(0)), ["up: rank 4 exited Code(0)"]);
    assert_eq!(closed(&mut relay, 61), ["up: rank 6 lost: its data connection to its relay ended: end of file"]);
}

/// A rank that is told to end says `Finished` and closes both connections. Where the relay read the end of the data
/// connection first, it called the rank lost, and a run that had gone well was a degraded one.
#[test]
fn a_rank_that_was_told_to_end_may_close_its_data_connection_before_its_last_word_is_read() {
    let mut relay = relay();
    order(&mut relay, Stream::AllRanks, &Control::Shutdown, Time::ZERO);
    assert_eq!(closed(&mut relay, 41), [""; 0]);
    assert_eq!(says(&mut relay, 4, 40, &FINISHED), ["up: report of rank 4"]);
    assert_eq!(closed(&mut relay, 40), [""; 0]);
    assert_eq!(closed(&mut relay, 61), [""; 0]);
    assert_eq!(
        closed(&mut relay, 60),
        ["up: rank 6 lost: its control connection to its relay ended: end of file"],
        "it said nothing"
    );
}

#[test]
fn an_impostor_loses_its_connection_and_is_lost() {
    let mut relay = relay();
    let out = says(&mut relay, 4, 60, &FINISHED);
    assert!(out[0].starts_with("warn: a connection was closed: rank 6"), "{out:?}");
    assert!(out[1].starts_with("close 60: rank 6 (incarnation 1) sent a frame of rank 4"), "{out:?}");
    assert!(out[2].starts_with("up: rank 6 lost"), "{out:?}");
    assert_eq!(out.len(), 3);
    assert_eq!(says(&mut relay, 6, 60, &FINISHED), [""; 0], "what is still read from it goes nowhere");
    assert_eq!(says(&mut relay, 4, 40, &FINISHED), ["up: report of rank 4"], "the other is unharmed");
}

#[test]
fn a_second_connection_of_a_rank_is_closed_and_the_first_stays() {
    let mut relay = relay();
    let out = connect(&mut relay, 4, 99, Channel::Control);
    assert_eq!(out[1], "close 99: rank 4 is already here with a control connection");
    assert_eq!(says(&mut relay, 4, 40, &FINISHED), ["up: report of rank 4"]);
}

#[test]
fn data_that_cannot_be_folded_closes_the_rank_and_a_wait_is_told() {
    let mut relay = relay();
    open_round(&mut relay, 0);
    let waiting = fold::Output::Waiting { round: Round(0), rank: Rank(4), chunk: 2 };
    assert_eq!(give(&mut relay, Input::Fold(waiting)), ["up: waiting for rank 4 chunk 2"]);
    let why = fold::DataBreach::Kind { kind: "a result" };
    let out = give(&mut relay, Input::Fold(fold::Output::Breach { rank: Rank(4), incarnation: LIFE, why }));
    assert!(out[1].starts_with("close 41") && out[2].starts_with("up: rank 4 lost"), "{out:?}");
    assert_eq!(out.len(), 3);
}

#[test]
fn the_dead_are_dropped_killed_and_closed_and_others_dead_only_passed_on() {
    let mut relay = relay();
    let dead = |rank| {
        let why = Reason::new("silent", "silent for 10 s");
        Control::DeclareDead { rank: Rank(rank), incarnation: LIFE, why }
    };
    assert_eq!(order(&mut relay, Stream::AllRanks, &dead(2), Time::ZERO), ["to 40: all ranks", "to 60: all ranks"]);
    assert_eq!(
        order(&mut relay, Stream::AllRanks, &dead(6), Time::ZERO),
        [
            "fold: drop rank 6 Dead",
            "kill rank 6",
            "close 60: rank 6 is gone",
            "close 61: rank 6 is gone",
            "to 40: all ranks"
        ]
    );
    assert_eq!(exited(&mut relay, 6, ExitStatus::Signal(9)), ["up: rank 6 exited Signal(9)"]);
}

#[test]
fn a_relay_whose_link_breaks_before_it_is_admitted_comes_back_as_what_it_was() {
    let mut relay = Relay::new(PATIENCE, Time::ZERO).of_session(SessionId(8)).resuming(true);
    let lost = || Input::UpstreamLost { why: "reset".to_owned() };
    assert_eq!(give(&mut relay, lost()), ["redial session 8"]);
    assert_eq!(
        give(&mut relay, Input::Resumed { session: SessionId(9), anew: false }),
        ["up: back with None and None"]
    );
    let admit = Control::Admit(Admit { session: SessionId(9), ids: vec![(Rank(0), LIFE)], world_size: 1 });
    assert!(order(&mut relay, Stream::Host, &admit, Time::ZERO)[0].starts_with("start rank 0"));
    assert_eq!(give(&mut relay, lost())[0], "redial session 8", "by its first session on whatever link");
}

#[test]
fn who_is_fenced_hears_it_and_is_killed_if_it_does_not_end() {
    let fenced = Control::Fenced { incarnation: LIFE };
    let mut relay = relay();
    assert_eq!(order(&mut relay, Stream::Rank(Rank(6)), &fenced, Time::ZERO), ["to 60: rank 6"]);
    // Said again, it does not live longer for it.
    order(&mut relay, Stream::Rank(Rank(6)), &fenced, Time::ZERO.plus(PATIENCE / 4));
    let over = Time::ZERO.plus(PATIENCE / 2);
    assert!(relay.next_deadline().is_some_and(|at| at <= over));
    relay.handle(Input::Tick, over);
    assert!(drained(&mut relay).contains(&"kill rank 6".to_owned()));
    relay.handle(Input::Tick, over.plus(PATIENCE / 20));
    assert!(!drained(&mut relay).contains(&"kill rank 6".to_owned()), "it is killed once");

    let mut relay = self::relay();
    order(&mut relay, Stream::Rank(Rank(6)), &fenced, Time::ZERO);
    exited(&mut relay, 6, ExitStatus::Code(1));
    relay.handle(Input::Tick, over);
    assert!(!drained(&mut relay).contains(&"kill rank 6".to_owned()), "it has ended by itself");
}

#[test]
fn a_rank_condemned_while_it_starts_is_killed_when_it_runs() {
    let mut relay = Relay::new(PATIENCE, Time::ZERO);
    let admit = Control::Admit(Admit { session: SESSION, ids: vec![(Rank(0), LIFE)], world_size: 1 });
    order(&mut relay, Stream::Host, &admit, Time::ZERO);
    let why = Reason::new("formation", "it took too long");
    let dead = Control::DeclareDead { rank: Rank(0), incarnation: LIFE, why };
    order(&mut relay, Stream::AllRanks, &dead, Time::ZERO);
    let out = give(&mut relay, Input::Started { rank: Rank(0), incarnation: LIFE, pid: 8 });
    assert_eq!(out, ["up: rank 0 is process 8", "kill rank 0"]);
    let error = "no such program".to_owned();
    let out = give(&mut relay, Input::NotStarted { rank: Rank(0), incarnation: LIFE, error });
    assert_eq!(out[0], "up: rank 0 not started: no such program");
}

#[test]
fn after_shutdown_the_relay_waits_for_its_ranks_and_then_kills_and_then_goes() {
    let mut relay = relay();
    closed(&mut relay, 60);
    let out = order(&mut relay, Stream::AllRanks, &Control::Shutdown, Time::ZERO);
    assert_eq!(out, ["kill rank 6", "to 40: all ranks"], "rank 6 cannot hear it");
    assert_eq!(give(&mut relay, Input::UpstreamLost { why: "end of file".to_owned() }), [""; 0]);
    exited(&mut relay, 6, ExitStatus::Signal(9));
    let patience_over = Time::ZERO.plus(PATIENCE);
    relay.handle(Input::Tick, patience_over);
    assert!(drained(&mut relay).contains(&"kill rank 4".to_owned()));
    relay.handle(Input::Tick, patience_over.plus(PATIENCE / 2));
    let out = drained(&mut relay);
    assert_eq!(out[..2], ["warn: rank 4 has not ended though it was killed", "end"]);
    assert_eq!(relay.next_deadline(), None);

    let mut relay = self::relay();
    order(&mut relay, Stream::AllRanks, &Control::ShutdownWithSave { why: Reason::new("x", "x") }, Time::ZERO);
    for rank in [4, 6] {
        says(&mut relay, rank, u64::from(rank) * 10, &FINISHED);
        closed(&mut relay, u64::from(rank) * 10);
        closed(&mut relay, u64::from(rank) * 10 + 1);
    }
    assert_eq!(exited(&mut relay, 4, ExitStatus::Code(0)), ["up: rank 4 exited Code(0)"]);
    assert_eq!(exited(&mut relay, 6, ExitStatus::Code(0)), ["up: rank 6 exited Code(0)", "end"]);
}

#[test]
fn a_lost_silent_or_refusing_controller_ends_the_relay_with_an_error() {
    let mut relay = relay();
    let out = give(&mut relay, Input::UpstreamLost { why: "end of file".to_owned() });
    assert_eq!(out, ["end: the controller was lost: end of file; this host's ranks were ended"]);

    let mut relay = self::relay();
    let why = Reason::new("version", "another version");
    let out = order(&mut relay, Stream::Host, &Control::Refused { why }, Time::ZERO);
    assert_eq!(out, ["end: the controller refused this host: another version"]);

    let mut relay = self::relay();
    let mut now = Time::ZERO;
    order(&mut relay, Stream::Host, &Control::Heartbeat, Time::ZERO.plus(PATIENCE / 2));
    let mut heartbeats = 0;
    let end = loop {
        now = relay.next_deadline().unwrap().max(now);
        relay.handle(Input::Tick, now);
        let out = drained(&mut relay);
        heartbeats += out.iter().filter(|line| *line == "up: heartbeat").count();
        if let Some(end) = out.into_iter().find(|line| line.starts_with("end")) {
            break end;
        }
    };
    assert!(end.contains("it was silent for 10.0 s"), "{end}");
    assert_eq!((now, heartbeats), (Time::ZERO.plus(PATIENCE * 3 / 2), 9), "one a second, from 6 to 14");
}

#[test]
fn nonsense_of_the_controller_is_passed_over_with_a_warning() {
    let mut relay = relay();
    let admit = Control::Admit(Admit { session: SESSION, ids: vec![], world_size: 9 });
    assert!(order(&mut relay, Stream::Host, &admit, Time::ZERO)[0].contains("a second admission"));
    let ids = vec![(Rank(4), LIFE), (Rank(6), LIFE)];
    let admit = Control::Admit(Admit { session: SESSION, ids, world_size: 9 });
    assert_eq!(
        order(&mut relay, Stream::Host, &admit, Time::ZERO),
        [""; 0],
        "the same is said again after a broken link"
    );
    let payload = bytes::Bytes::from_static(&[250; 9]);
    let frame = Frame { kind: Kind::Control, stream: Stream::Host, incarnation: Incarnation(0), payload };
    assert!(
        give(&mut relay, Input::Upstream(frame))[0].starts_with("warn: a message of the controller cannot be read")
    );
    let up = Data::Absent { round: Round(0), from_chunk: 0, why: AbsentWhy::Empty };
    assert!(give(&mut relay, Input::Result(up))[0].contains("a data message that is no result"));
}

#[test]
fn a_rank_that_ended_is_started_again_when_the_controller_says_so() {
    let mut relay = Relay::new(PATIENCE, Time::ZERO).restarting(1);
    let admit = Control::Admit(Admit { session: SESSION, ids: vec![(Rank(4), LIFE)], world_size: 9 });
    order(&mut relay, Stream::Host, &admit, Time::ZERO);
    let started = |incarnation| Input::Started { rank: Rank(4), incarnation, pid: 7 };
    assert_eq!(give(&mut relay, started(LIFE)), ["up: rank 4 is process 7", "up: rank 4 will be restarted"]);
    exited(&mut relay, 4, ExitStatus::Code(1));
    let again = Control::Restart { rank: Rank(4), incarnation: Incarnation(2) };
    assert_eq!(order(&mut relay, Stream::Host, &again, Time::ZERO), ["start rank 4 as incarnation 2"]);
    assert_eq!(give(&mut relay, started(Incarnation(2))), ["up: rank 4 is process 7"], "once is all");
    assert!(relay.routes().expects(Rank(4)));
    let stranger = Control::Restart { rank: Rank(5), incarnation: Incarnation(2) };
    let said = order(&mut relay, Stream::Host, &stranger, Time::ZERO);
    assert!(said[0].starts_with("warn: the controller sent a restart"), "{said:?}");
}

#[test]
fn the_next_life_begins_when_the_last_process_is_gone() {
    let mut relay = relay();
    let again = Control::Restart { rank: Rank(4), incarnation: Incarnation(2) };
    assert_eq!(order(&mut relay, Stream::Host, &again, Time::ZERO), ["kill rank 4"]);
    closed(&mut relay, 40);
    closed(&mut relay, 41);
    let said = exited(&mut relay, 4, ExitStatus::Signal(9));
    assert_eq!(said.last().map(String::as_str), Some("start rank 4 as incarnation 2"), "{said:?}");
}

#[test]
fn a_host_that_leaves_ends_when_its_ranks_have() {
    let mut relay = relay();
    assert_eq!(give(&mut relay, Input::Leave), ["up: leaving"]);
    assert_eq!(give(&mut relay, Input::Leave), [""; 0], "once");
    for rank in [4, 6] {
        says(&mut relay, rank, u64::from(rank) * 10, &FINISHED);
        closed(&mut relay, u64::from(rank) * 10);
        closed(&mut relay, u64::from(rank) * 10 + 1);
        let said = exited(&mut relay, rank, ExitStatus::Code(0));
        assert_eq!(said.last().is_some_and(|last| last == "end"), rank == 6, "{said:?}");
    }
}

#[test]
fn a_relay_whose_link_breaks_goes_on_and_says_where_its_ranks_stand() {
    let mut relay = relay().resuming(true);
    open_round(&mut relay, 3);
    let lost = give(&mut relay, Input::UpstreamLost { why: "reset".to_owned() });
    assert_eq!(lost, ["to 40: all ranks", "to 60: all ranks", "fold: close round 3", "redial session 5"]);
    assert_eq!(give(&mut relay, Input::UpstreamLost { why: "the other one".to_owned() }), [""; 0]);
    assert_eq!(says(&mut relay, 4, 40, &FINISHED), [""; 0], "it is kept");
    closed(&mut relay, 60);
    let back = give(&mut relay, Input::Resumed { session: SessionId(9), anew: false });
    let finished = format!("up: rank 4 stands at {:?}", [&FINISHED]);
    let gone = "up: rank 6 lost: its connection to its relay ended while the controller was out of reach".to_owned();
    assert_eq!(back, [finished, gone, "up: back with None and None".to_owned()]);

    let opened = open_round(&mut relay, 4);
    assert!(opened.iter().all(|said| said.starts_with("fold: ")), "no rank hears of it: {opened:?}");
    let known = order(&mut relay, Stream::Rank(Rank(4)), &Control::ControllerBack, Time::ZERO);
    assert_eq!(known, ["to 40: rank 4"]);
    let opened = open_round(&mut relay, 5);
    assert!(opened.contains(&"to 40: all ranks".to_owned()), "{opened:?}");
}

/// Both ranks say their last word and exit as they should.
fn end_both(relay: &mut Relay) -> Vec<String> {
    let mut said = Vec::new();
    for rank in [4, 6] {
        says(relay, rank, u64::from(rank) * 10, &FINISHED);
        closed(relay, u64::from(rank) * 10);
        closed(relay, u64::from(rank) * 10 + 1);
        said.extend(exited(relay, rank, ExitStatus::Code(0)));
    }
    said
}

#[test]
fn last_words_that_are_lost_with_the_link_are_said_again() {
    let told = ["up: rank 4 exited Code(0)", "up: rank 6 exited Code(0)"];
    for leaves in [false, true] {
        let mut relay = relay().resuming(true);
        if leaves {
            give(&mut relay, Input::Leave);
        } else {
            order(&mut relay, Stream::AllRanks, &Control::Shutdown, Time::ZERO);
        }
        assert_eq!(end_both(&mut relay), told, "it does not end before its controller knows");
        assert_eq!(give(&mut relay, Input::UpstreamLost { why: "reset".to_owned() }), ["redial session 5"]);
        let back = give(&mut relay, Input::Resumed { session: SessionId(9), anew: false });
        for rank in [4, 6] {
            let word = back.iter().position(|said| said.starts_with(&format!("up: rank {rank} stands at [Finished")));
            let exit = back.iter().position(|said| *said == format!("up: rank {rank} exited Code(0)"));
            assert!(word.is_some() && word < exit, "{back:?}");
        }
        assert_eq!(order(&mut relay, Stream::Host, &Control::Dismissed, Time::ZERO), ["end"]);
    }
}

#[test]
fn who_is_dismissed_waits_for_its_ranks_and_for_nobody_else() {
    let mut relay = relay().resuming(true);
    assert_eq!(order(&mut relay, Stream::Host, &Control::Dismissed, Time::ZERO), [""; 0], "its run goes on");
    order(&mut relay, Stream::AllRanks, &Control::Shutdown, Time::ZERO);
    assert_eq!(order(&mut relay, Stream::Host, &Control::Dismissed, Time::ZERO), [""; 0]);
    assert_eq!(give(&mut relay, Input::UpstreamLost { why: "end of file".to_owned() }), [""; 0], "it is not missed");
    assert_eq!(end_both(&mut relay), ["end"]);
}

#[test]
fn a_relay_that_is_done_does_not_wait_for_ever_to_hear_it() {
    let lost = || Input::UpstreamLost { why: "end of file".to_owned() };
    for how in 0..3 {
        let mut relay = relay().resuming(true);
        order(&mut relay, Stream::AllRanks, &Control::Shutdown, Time::ZERO);
        end_both(&mut relay);
        let said = match how {
            0 => {
                assert_eq!(give(&mut relay, lost()), ["redial session 5"]);
                give(&mut relay, Input::NotResumed { why: "nobody listens".to_owned() })
            }
            1 => {
                let why = Reason::new("unknown-host", "it is not known here");
                order(&mut relay, Stream::Host, &Control::Refused { why }, Time::ZERO)
            }
            _ => {
                let over = Time::ZERO.plus(PATIENCE);
                order(&mut relay, Stream::Host, &Control::Heartbeat, over)
            }
        };
        assert!(said.contains(&"end".to_owned()), "way {how}: {said:?}");
        assert_eq!(relay.next_deadline(), None);
    }
}

#[test]
fn ranks_do_not_judge_a_controller_that_is_silent() {
    let mut relay = relay().resuming(true);
    let tick = |relay: &mut Relay, seconds| {
        relay.handle(Input::Tick, Time::ZERO.plus(Duration::from_secs(seconds)));
        drained(relay).iter().filter(|said| said.ends_with("0: all ranks")).count()
    };
    assert_eq!(tick(&mut relay, 1), 0, "it speaks for itself");
    assert_eq!((tick(&mut relay, 2), tick(&mut relay, 9)), (2, 2), "each hears that its relay is there");
}

#[test]
fn a_relay_that_finds_no_controller_ends() {
    let silent = Time::ZERO.plus(PATIENCE);
    for how in 0..2 {
        let mut relay = relay().resuming(true);
        relay.handle(Input::Tick, silent);
        assert!(drained(&mut relay).contains(&"redial session 5".to_owned()), "silence is a loss too");
        let said = if how == 0 {
            give(&mut relay, Input::NotResumed { why: "nobody listens".to_owned() })
        } else {
            relay.handle(Input::Tick, silent.plus(PATIENCE));
            drained(&mut relay)
        };
        let end = said.iter().find(|said| said.starts_with("end: the controller was lost: "));
        assert!(end.is_some(), "{said:?}");
    }
}
