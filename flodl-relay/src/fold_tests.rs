//! What a host's fold does, as data: inputs in, outputs out.

use super::*;
use flodl_cpureduce::{Mass, contribution_chunk};

const ROUND: Round = Round(4);
const HELD: Version = Version(3);
const LIFE: Incarnation = Incarnation(1);
const PATIENCE: Duration = Duration::from_secs(8);

/// 65,536 parameters fill a chunk, one more begins the second.
fn fold(parts: &[(u32, Part)]) -> HostFold {
    let mut fold = HostFold::new(PATIENCE);
    let sizes = LayoutSizes { parameters: 65_537, buffers: 0, integers: 0 };
    fold.handle(Input::Order(Order::Layout(sizes)), Time::ZERO);
    let members = parts.iter().map(|&(rank, part)| Member { rank: Rank(rank), incarnation: LIFE, part }).collect();
    fold.handle(Input::Order(Order::Open { round: ROUND, version: HELD, members }), Time::ZERO);
    fold
}

fn chunk(index: u32, value: f32, mass: f64) -> Data {
    let elements = if index == 0 { 65_536 } else { 1 };
    let (bytes, _) = contribution_chunk(&vec![value; elements], Mass::new(mass).unwrap());
    Data::Contribution(Chunk { round: ROUND, version: HELD, chunk: index, mass, codec: Codec::Exact, bytes })
}

fn send(fold: &mut HostFold, rank: u32, data: Data) {
    fold.handle(Input::Data { rank: Rank(rank), incarnation: LIFE, data }, Time::ZERO);
}

/// What came out, with chunks as (index, mass, first element).
fn drained(fold: &mut HostFold) -> Vec<String> {
    core::iter::from_fn(|| fold.poll())
        .map(|output| match output {
            Output::Up(Data::Contribution(chunk)) => {
                let first = chunk.bytes.first_chunk().copied().map(f32::from_le_bytes);
                format!("sum {} mass {} first {first:?} of {}", chunk.chunk, chunk.mass, chunk.bytes.len())
            }
            Output::Up(Data::Dropped { rank, from_chunk, why, .. }) => {
                format!("dropped {rank} at {from_chunk} {why:?}")
            }
            Output::Up(Data::Absent { from_chunk, why, .. }) => format!("absent from {from_chunk} {why:?}"),
            Output::Waiting { rank, chunk, .. } => format!("waiting {rank} chunk {chunk}"),
            Output::Breach { rank, why, .. } => format!("breach {rank}: {why}"),
            other => format!("{other:?}"),
        })
        .collect()
}

#[test]
fn sums_go_up_as_soon_as_everybody_is_in_a_chunk() {
    let mut fold = fold(&[(2, Part::Contribute), (5, Part::Contribute)]);
    send(&mut fold, 5, chunk(0, 1.0, 3.0));
    assert_eq!(drained(&mut fold), [""; 0]);
    send(&mut fold, 2, chunk(0, 2.0, 1.0));
    assert_eq!(drained(&mut fold), ["sum 0 mass 4 first Some(5.0) of 262144"]);
    send(&mut fold, 2, chunk(1, 2.0, 1.0));
    send(&mut fold, 5, chunk(1, 1.0, 3.0));
    assert_eq!(drained(&mut fold), ["sum 1 mass 4 first Some(5.0) of 4"]);
    assert_eq!(fold.strays(), 0);
}

#[test]
fn a_death_in_mid_round_is_told_before_the_first_chunk_without_it() {
    let mut fold = fold(&[(0, Part::Contribute), (1, Part::Contribute)]);
    for data in [chunk(0, 1.0, 1.0), chunk(1, 1.0, 1.0)] {
        send(&mut fold, 0, data);
    }
    send(&mut fold, 1, chunk(0, 3.0, 1.0));
    assert_eq!(drained(&mut fold), ["sum 0 mass 2 first Some(4.0) of 262144"]);
    fold.handle(Input::Ended { rank: Rank(1), incarnation: Incarnation(7) }, Time::ZERO);
    assert_eq!(drained(&mut fold), [""; 0], "another life of it ended");
    fold.handle(Input::Ended { rank: Rank(1), incarnation: LIFE }, Time::ZERO);
    assert_eq!(drained(&mut fold), ["dropped rank 1 at 1 LinkLost", "sum 1 mass 1 first Some(1.0) of 4"]);
}

#[test]
fn receivers_are_not_waited_for_and_with_nobody_left_one_absence_ends_the_round() {
    let mut fold = fold(&[(0, Part::Contribute), (1, Part::Receive)]);
    send(&mut fold, 0, Data::Absent { round: ROUND, from_chunk: 0, why: AbsentWhy::NothingTrained });
    let told = ["dropped rank 0 at 0 NothingTrained", "dropped rank 1 at 0 Joining", "absent from 0 Empty"];
    assert_eq!(drained(&mut fold), told);
    send(&mut fold, 1, Data::Absent { round: ROUND, from_chunk: 0, why: AbsentWhy::Joining });
    assert_eq!(drained(&mut fold), [""; 0]);
}

#[test]
fn chunks_without_mass_from_somebody_who_is_there_are_chunks() {
    let mut fold = fold(&[(0, Part::Contribute)]);
    for index in 0..2 {
        let bytes = Bytes::new();
        let chunk = Chunk { round: ROUND, version: HELD, chunk: index, mass: 0.0, codec: Codec::Exact, bytes };
        send(&mut fold, 0, Data::Contribution(chunk));
    }
    assert_eq!(drained(&mut fold), ["sum 0 mass 0 first None of 0", "sum 1 mass 0 first None of 0"]);
}

#[test]
fn what_does_not_fit_drops_the_rank_and_closes_its_connection() {
    let short = Chunk { bytes: Bytes::from_static(&[0; 4]), ..as_chunk(chunk(0, 1.0, 1.0)) };
    let massive = Chunk { mass: f64::NAN, ..as_chunk(chunk(0, 1.0, 1.0)) };
    for (data, said) in [
        (Data::Contribution(short), "4 bytes for chunk 0"),
        (Data::Contribution(massive), "NaN is no mass"),
        (chunk(1, 1.0, 1.0), "named chunk 1 where chunk 0 is next"),
        (Data::Consensus(as_chunk(chunk(0, 1.0, 1.0))), "sent a result"),
    ] {
        let mut fold = fold(&[(0, Part::Contribute), (1, Part::Contribute)]);
        send(&mut fold, 0, data);
        send(&mut fold, 1, chunk(0, 9.0, 1.0));
        let out = drained(&mut fold);
        assert!(out[0].starts_with("breach rank 0") && out[0].contains(said), "{out:?}");
        assert_eq!(out[1..], ["dropped rank 0 at 0 LinkLost", "sum 0 mass 1 first Some(9.0) of 262144"]);
    }
}

fn as_chunk(data: Data) -> Chunk {
    match data {
        Data::Contribution(chunk) | Data::Consensus(chunk) => chunk,
        other => panic!("{other:?}"),
    }
}

#[test]
fn other_rounds_other_lives_and_closed_rounds_are_counted_and_passed_over() {
    let mut fold = fold(&[(0, Part::Contribute)]);
    send(&mut fold, 0, Data::Contribution(Chunk { round: Round(3), ..as_chunk(chunk(0, 1.0, 1.0)) }));
    let other_life = Input::Data { rank: Rank(0), incarnation: Incarnation(9), data: chunk(0, 1.0, 1.0) };
    fold.handle(other_life, Time::ZERO);
    send(&mut fold, 8, chunk(0, 1.0, 1.0));
    fold.handle(Input::Order(Order::Close { round: Round(3) }), Time::ZERO);
    send(&mut fold, 0, chunk(0, 1.0, 1.0));
    fold.handle(Input::Order(Order::Close { round: ROUND }), Time::ZERO);
    send(&mut fold, 0, chunk(1, 1.0, 1.0));
    assert_eq!(drained(&mut fold), ["sum 0 mass 1 first Some(1.0) of 262144"]);
    assert_eq!(fold.strays(), 4);
}

#[test]
fn a_wait_is_reported_every_quarter_of_the_patience_while_it_lasts() {
    let mut fold = fold(&[(0, Part::Contribute), (1, Part::Contribute)]);
    assert_eq!(fold.next_deadline(), None, "nobody has delivered");
    send(&mut fold, 0, chunk(0, 1.0, 1.0));
    let quarter = Time::ZERO.plus(PATIENCE / 4);
    assert_eq!(fold.next_deadline(), Some(quarter));
    fold.handle(Input::Tick, Time(quarter.0 - 1));
    assert_eq!(drained(&mut fold), [""; 0]);
    for times in 1..=2 {
        fold.handle(Input::Tick, Time(quarter.0 * times));
        assert_eq!(drained(&mut fold), ["waiting rank 1 chunk 0"]);
    }
    fold.handle(Input::Data { rank: Rank(1), incarnation: LIFE, data: chunk(0, 1.0, 1.0) }, Time(quarter.0 * 3));
    assert_eq!(drained(&mut fold), ["sum 0 mass 2 first Some(2.0) of 262144"]);
    assert_eq!(fold.next_deadline(), None);
}

#[test]
fn a_rank_far_ahead_is_not_read_until_the_others_follow() {
    let mut fold = HostFold::new(PATIENCE);
    let sizes = LayoutSizes { parameters: 65_536 * 20, buffers: 0, integers: 0 };
    fold.handle(Input::Order(Order::Layout(sizes)), Time::ZERO);
    let member = |rank| Member { rank: Rank(rank), incarnation: LIFE, part: Part::Contribute };
    let open = Order::Open { round: ROUND, version: HELD, members: vec![member(0), member(1)] };
    fold.handle(Input::Order(open), Time::ZERO);
    let full = as_chunk(chunk(0, 1.0, 1.0));
    for index in 0..16 {
        assert!(fold.wants(Rank(0)), "at chunk {index}");
        send(&mut fold, 0, Data::Contribution(Chunk { chunk: index, ..full.clone() }));
    }
    assert!(!fold.wants(Rank(0)) && fold.wants(Rank(1)));
    send(&mut fold, 1, Data::Contribution(full));
    assert!(fold.wants(Rank(0)));
}
