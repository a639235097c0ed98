//! What the root does, as data: inputs in, outputs out.

use super::*;
use flodl_wire::message::control::{Next, Part};
use flodl_wire::message::data::{self, AbsentWhy};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::FoldedPart;

const LIFE: Incarnation = Incarnation(1);
const PATIENCE: Duration = Duration::from_secs(8);
const A: SessionId = SessionId(70);
const B: SessionId = SessionId(30);

/// Two full chunks of parameters would be large; here chunk 0 is parameters, 1 buffers, 2 integers.
fn root() -> Root {
    let mut root = Root::new(PATIENCE);
    root.handle(Input::Layout(LayoutSizes { parameters: 2, buffers: 1, integers: 1 }), Time::ZERO);
    root
}

/// Relay A has ranks 0 and 2, relay B has rank 1.
fn open(root: &mut Root, round: u64) {
    let entry = |rank, session| RosterEntry { rank: Rank(rank), incarnation: LIFE, session, part: Part::Contribute };
    let roster = vec![entry(0, A), entry(1, B), entry(2, A)];
    root.handle(Input::Control(Control::RequestParams { round: Round(round), roster }), Time::ZERO);
}

fn bytes(index: u32, value: f32) -> Bytes {
    match index {
        0 => [value.to_le_bytes(), value.to_le_bytes()].concat().into(),
        1 => value.to_le_bytes().to_vec().into(),
        _ => (value as i64).to_le_bytes().to_vec().into(),
    }
}

fn give(root: &mut Root, session: SessionId, round: u64, index: u32, sum: (f64, f32)) {
    let (round, version, codec) = (Round(round), Version(0), data::Codec::Exact);
    let chunk = Chunk { round, version, chunk: index, mass: sum.0, codec, bytes: bytes(index, sum.1) };
    root.handle(Input::Data { session, data: Data::Contribution(chunk) }, Time::ZERO);
}

fn close(root: &mut Root, round: u64, version: Option<u64>) {
    let outcome =
        version.map_or(RoundOutcome::Nothing, |version| RoundOutcome::Committed { version: Version(version) });
    root.handle(Input::Control(Control::RoundDone { round: Round(round), outcome, next: Next::Window }), Time::ZERO);
}

/// What came out: results as text, and the report if there was one.
fn drained(root: &mut Root) -> (Vec<String>, Option<report::Folded>) {
    let mut folded = None;
    let mut lines = Vec::new();
    while let Some(output) = root.poll() {
        match output {
            Output::Result { session, chunk } => {
                let value = match chunk.chunk {
                    0 | 1 => f32::from_le_bytes(*chunk.bytes.first_chunk().unwrap()),
                    _ => i64::from_le_bytes(*chunk.bytes.first_chunk().unwrap()) as f32,
                };
                let version = chunk.version.0;
                lines.push(format!("to {} chunk {} mass {} = {value} v{version}", session.0, chunk.chunk, chunk.mass));
            }
            Output::Folded(report) => folded = Some(report),
            Output::Waiting { rank, chunk, .. } => lines.push(format!("waiting {rank} chunk {chunk}")),
            Output::Breach { session, why } => lines.push(format!("breach {session}: {why}")),
            Output::Restored { version, result } => lines.push(format!("restored {version}: {result:?}")),
            Output::LeftOut { session, data } => lines.push(format!("{session}: {data:?}")),
            Output::Refused(why) => lines.push(format!("refused: {why}")),
        }
    }
    (lines, folded)
}

fn parts(report: &report::Folded) -> Vec<FoldedPart> {
    report.ranks.iter().map(|&(_, _, part)| part).collect()
}

/// Round 0 as it is: both relays whole, everything 1.
fn first_consensus(root: &mut Root) {
    open(root, 0);
    for index in 0..3 {
        give(root, A, 0, index, (1.0, 1.0));
        give(root, B, 0, index, (1.0, 1.0));
    }
    assert!(drained(root).1.unwrap().any_mass);
    close(root, 0, Some(0));
}

#[test]
fn a_round_is_divided_by_what_was_folded_streamed_down_and_committed() {
    let mut root = root();
    open(&mut root, 0);
    give(&mut root, B, 0, 0, (1.0, 10.0));
    give(&mut root, A, 0, 0, (3.0, 2.0));
    let to_both = |chunk: u32, rest: &str| ["30", "70"].map(|to| format!("to {to} chunk {chunk} {rest} v0"));
    assert_eq!(drained(&mut root).0, to_both(0, "mass 4 = 3"));
    for (session, buffer, integer) in [(A, 4.0, 7.0), (B, 1.0, 9.0)] {
        give(&mut root, session, 0, 1, (1.0, buffer));
        give(&mut root, session, 0, 2, (1.0, integer));
    }
    let (lines, folded) = drained(&mut root);
    assert_eq!(lines, [to_both(1, "mass 2 = 2.5"), to_both(2, "mass 2 = 9")].concat());
    let folded = folded.unwrap();
    assert_eq!(parts(&folded), [FoldedPart::Whole; 3]);
    assert!(folded.any_mass);
    assert_eq!(root.consensus_bytes(), None, "nothing is committed yet");
    close(&mut root, 0, Some(0));
    let whole = [bytes(0, 3.0), bytes(1, 2.5), bytes(2, 9.0)].concat();
    assert_eq!(root.consensus_bytes(), Some((Version(0), Bytes::from(whole))));
    assert_eq!(root.consensus_digest(), Some(folded.digest));
}

#[test]
fn a_dropped_rank_and_a_lost_relay_are_partial_and_the_round_ends_without_them() {
    let mut root = root();
    first_consensus(&mut root);
    open(&mut root, 1);
    give(&mut root, A, 1, 0, (1.0, 6.0));
    give(&mut root, B, 1, 0, (1.0, 2.0));
    let dropped =
        Data::Dropped { round: Round(1), rank: Rank(2), incarnation: LIFE, from_chunk: 1, why: AbsentWhy::Dead };
    root.handle(Input::Data { session: A, data: dropped }, Time::ZERO);
    give(&mut root, A, 1, 1, (1.0, 5.0));
    root.handle(Input::Lost { session: B }, Time::ZERO);
    give(&mut root, A, 1, 2, (1.0, 5.0));
    let (lines, folded) = drained(&mut root);
    assert_eq!(lines[0], "to 30 chunk 0 mass 2 = 4 v1");
    assert_eq!(lines[3], "to 70 chunk 1 mass 1 = 5 v1");
    let folded = folded.unwrap();
    assert_eq!(parts(&folded), [FoldedPart::Whole, FoldedPart::Chunks(1), FoldedPart::Chunks(1)]);
    close(&mut root, 1, Some(1));

    open(&mut root, 2);
    for index in 0..3 {
        give(&mut root, A, 2, index, (1.0, 1.0));
    }
    let folded = drained(&mut root).1.unwrap();
    assert_eq!(parts(&folded), [FoldedPart::Whole, FoldedPart::None, FoldedPart::Whole], "B stays lost");
}

#[test]
fn with_nobody_in_it_a_round_gives_the_consensus_in_force_and_commits_nothing() {
    let mut root = root();
    first_consensus(&mut root);
    open(&mut root, 1);
    let absent = || Data::Absent { round: Round(1), from_chunk: 0, why: AbsentWhy::Empty };
    root.handle(Input::Data { session: A, data: absent() }, Time::ZERO);
    root.handle(Input::Data { session: B, data: absent() }, Time::ZERO);
    let (lines, folded) = drained(&mut root);
    assert_eq!(lines.len(), 6);
    assert_eq!(lines[0], "to 30 chunk 0 mass 0 = 1 v1");
    let folded = folded.unwrap();
    assert!(!folded.any_mass);
    assert_eq!(parts(&folded), [FoldedPart::None; 3]);
    let before = root.consensus_bytes();
    close(&mut root, 1, None);
    assert_eq!(root.consensus_bytes(), before);
    assert_eq!(Some(folded.digest), root.consensus_digest());
}

/// The coordinator hands the consensus in force to ranks that lack it by committing its version again. The root
/// complained that nobody had contributed.
#[test]
fn a_round_that_hands_out_the_consensus_in_force_changes_nothing_and_is_no_complaint() {
    let mut root = root();
    first_consensus(&mut root);
    let (before, digest) = (root.consensus_bytes(), root.consensus_digest());
    for (round, version, complaints) in [(1, 0, 0), (2, 1, 1)] {
        open(&mut root, round);
        for session in [A, B] {
            let data = Data::Absent { round: Round(round), from_chunk: 0, why: AbsentWhy::Empty };
            root.handle(Input::Data { session, data }, Time::ZERO);
        }
        drained(&mut root);
        close(&mut root, round, Some(version));
        assert_eq!(drained(&mut root).0.len(), complaints, "{round}");
        assert_eq!((root.consensus_bytes(), root.consensus_digest()), (before.clone(), digest));
    }
}

#[test]
fn a_first_round_that_loses_its_source_has_no_mass_and_cannot_commit() {
    let mut root = root();
    open(&mut root, 0);
    root.handle(
        Input::Data { session: B, data: Data::Absent { round: Round(0), from_chunk: 0, why: AbsentWhy::Empty } },
        Time::ZERO,
    );
    give(&mut root, A, 0, 0, (1.0, 1.0));
    root.handle(Input::Lost { session: A }, Time::ZERO);
    let (_, folded) = drained(&mut root);
    assert!(!folded.unwrap().any_mass);
    close(&mut root, 0, Some(0));
    let (lines, _) = drained(&mut root);
    assert!(lines[0].starts_with("refused: round 0 cannot be committed: chunk 1 has neither"), "{lines:?}");
    assert_eq!(root.consensus_bytes(), None);
}

#[test]
fn a_silent_relay_is_given_up_once_all_its_ranks_are_declared_dead() {
    let mut root = root();
    first_consensus(&mut root);
    open(&mut root, 1);
    (0..3).for_each(|index| give(&mut root, B, 1, index, (1.0, 2.0)));
    for (rank, ends) in [(0, false), (2, true)] {
        let why = Reason::new("silent", "silent");
        let dead = Control::DeclareDead { rank: Rank(rank), incarnation: LIFE, why };
        root.handle(Input::Control(dead), Time::ZERO);
        assert_eq!(drained(&mut root).1.is_some(), ends, "after rank {rank}");
    }
}

#[test]
fn a_wait_names_the_lowest_rank_still_expected() {
    let mut root = root();
    open(&mut root, 0);
    give(&mut root, B, 0, 0, (1.0, 1.0));
    let dropped =
        Data::Dropped { round: Round(0), rank: Rank(0), incarnation: LIFE, from_chunk: 0, why: AbsentWhy::Dead };
    root.handle(Input::Data { session: A, data: dropped }, Time::ZERO);
    let due = root.next_deadline().unwrap();
    root.handle(Input::Tick, due);
    assert_eq!(drained(&mut root).0, ["waiting rank 2 chunk 0"]);
}

#[test]
fn what_does_not_fit_loses_the_relay_and_strays_are_counted() {
    let mut root = root();
    open(&mut root, 0);
    give(&mut root, B, 9, 0, (1.0, 1.0));
    give(&mut root, SessionId(1), 0, 0, (1.0, 1.0));
    assert_eq!((drained(&mut root).0.len(), root.strays()), (0, 2));
    give(&mut root, B, 0, 2, (1.0, 1.0));
    let (lines, _) = drained(&mut root);
    assert!(lines[0].starts_with("breach session 30"), "{lines:?}");
    (0..3).for_each(|index| give(&mut root, A, 0, index, (1.0, 1.0)));
    assert_eq!(parts(&drained(&mut root).1.unwrap()), [FoldedPart::Whole, FoldedPart::None, FoldedPart::Whole]);
    close(&mut root, 5, Some(1));
    assert!(drained(&mut root).0[0].starts_with("refused: round 5"));

    let mut blank = Root::new(PATIENCE);
    open(&mut blank, 0);
    assert!(drained(&mut blank).0[0].contains("sizes of the model are not known"));
}

/// A root that goes on with the consensus and the momentum of another one does what that one would have done.
#[test]
fn momentum_goes_on_in_another_root() {
    let rule = || "nesterov:0.7,0.9".parse::<OuterRule>().unwrap().optimizer();
    let sizes = LayoutSizes { parameters: 2, buffers: 1, integers: 1 };
    let start = |root: Root| {
        let mut root = root.with_outer(rule());
        root.handle(Input::Layout(sizes), Time::ZERO);
        root
    };
    let average = |root: &mut Root, round: u64, value: f32| {
        open(root, round);
        for index in 0..3 {
            give(root, A, round, index, (1.0, value));
            give(root, B, round, index, (1.0, value));
        }
        close(root, round, Some(round));
        drained(root).0
    };
    let mut first = start(Root::new(PATIENCE));
    assert!(first.outer_state().is_empty(), "nothing is committed");
    (0..4).for_each(|round| drop(average(&mut first, round, 1.0 + round as f32)));
    let (version, model) = first.consensus_bytes().unwrap();
    let (digest, past) = (first.consensus_digest().unwrap(), first.outer_state());
    for (past, goes_on) in [(past.clone(), true), (Vec::new(), false), (past[1..].to_vec(), false)] {
        let damaged = past.len() % 4 == 3;
        let mut second = start(Root::new(PATIENCE).with_past(past));
        let (lines, _) = drained(&mut second);
        assert_eq!(lines.iter().any(|line| line.contains("the outer optimizer begins anew")), damaged, "{lines:?}");
        second.handle(Input::Restore { session: A, round: Round(4), version, digest }, Time::ZERO);
        for (index, at) in (0..).zip([0..8, 8..12, 12..20]) {
            let (bytes, codec) = (model.slice(at), data::Codec::Exact);
            let chunk = Chunk { round: Round(4), version, chunk: index, mass: 1.0, codec, bytes };
            second.handle(Input::Data { session: A, data: Data::Contribution(chunk) }, Time::ZERO);
        }
        assert_eq!(drained(&mut second).0, [format!("restored {version}: Ok(())")]);
        average(&mut second, 4, 9.0);
        let mut uninterrupted = start(Root::new(PATIENCE));
        (0..4).for_each(|round| drop(average(&mut uninterrupted, round, 1.0 + round as f32)));
        average(&mut uninterrupted, 4, 9.0);
        assert_eq!(second.consensus_digest() == uninterrupted.consensus_digest(), goes_on);
    }
}
