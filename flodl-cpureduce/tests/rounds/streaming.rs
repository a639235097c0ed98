//! What makes a round fast and bounded: early chunks leave early, memory is used again, waits are known.

use crate::plan::drain;
use bytes::Bytes;
use flodl_cpureduce::{
    AHEAD_BYTES_MAX, Absence, CHUNK_BYTES, Contributor, Fold, Folded, Layout, Mass, contribution_chunk,
};

const A: Contributor = Contributor(0);
const B: Contributor = Contributor(1);
const C: Contributor = Contributor(2);

fn layout(chunks: u64) -> Layout {
    Layout::new(2 * chunks, 0, 0).unwrap().with_chunk_bytes(8).unwrap()
}

fn data() -> Bytes {
    contribution_chunk(&[1.0, 2.0], Mass::ONE).0
}

fn indices(events: &[Folded]) -> Vec<u32> {
    let index = |event: &Folded| match event {
        Folded::Chunk { index, .. } | Folded::Empty { index } => Some(*index),
        _ => None,
    };
    events.iter().filter_map(index).collect()
}

#[test]
fn a_chunk_leaves_while_later_ones_are_still_arriving() {
    let mut fold = Fold::new(1, layout(3), vec![A, B]).unwrap();
    for index in 0..3 {
        fold.chunk(A, index, Mass::ONE, data()).unwrap();
        assert_eq!(drain(&mut fold), []);
    }
    for index in 0..3 {
        fold.chunk(B, index, Mass::ONE, data()).unwrap();
        assert_eq!(indices(&drain(&mut fold)), [index]);
    }
    assert!(fold.is_done());
    assert_eq!(drain(&mut fold), [], "done once");
}

#[test]
fn one_contribution_passes_through_without_a_copy() {
    let mut fold = Fold::new(1, layout(1), vec![A, B, C]).unwrap();
    let data = data();
    fold.chunk(A, 0, Mass::ZERO, Bytes::new()).unwrap();
    fold.chunk(B, 0, Mass::ONE, data.clone()).unwrap();
    fold.absent(C, 0, Absence::NothingTrained).unwrap();
    let out = drain(&mut fold);
    assert!(matches!(&out[1], Folded::Chunk { data: out, .. } if out.as_ptr() == data.as_ptr()), "{out:?}");
}

#[test]
fn memory_that_is_lent_comes_back_once_its_sum_is_made() {
    let mut fold = Fold::new(1, layout(2), vec![A, B]).unwrap().of_lent();
    let (one, other) = (data(), data());
    let mut events = Vec::new();
    for (index, other) in [(0, Some(&other)), (1, None)] {
        fold.chunk(A, index, Mass::ONE, one.clone()).unwrap();
        match other {
            Some(other) => fold.chunk(B, index, Mass::ONE, other.clone()).unwrap(),
            None => fold.absent(B, index, Absence::NothingTrained).unwrap(),
        }
        events.extend(drain(&mut fold));
    }
    let sums: Vec<Bytes> = events
        .into_iter()
        .filter_map(|event| match event {
            Folded::Chunk { data, .. } => Some(data),
            _ => None,
        })
        .collect();
    assert_eq!(sums, [contribution_chunk(&[2.0, 4.0], Mass::ONE).0, data()]);
    assert!(sums.iter().all(|sum| sum.as_ptr() != one.as_ptr()));
    assert!(one.try_into_mut().is_ok() && other.try_into_mut().is_ok(), "nobody holds them any more");
}

#[test]
fn values_without_mass_are_not_looked_at() {
    let mut fold = Fold::new(1, layout(1), vec![A, B]).unwrap();
    let (sick, _) = contribution_chunk(&[f32::NAN, f32::INFINITY], Mass::ONE);
    fold.chunk(A, 0, Mass::ZERO, sick).unwrap();
    fold.chunk(B, 0, Mass::ONE, data()).unwrap();
    assert_eq!(drain(&mut fold), [Folded::Chunk { index: 0, mass: Mass::ONE, data: data() }, Folded::Done]);
}

#[test]
fn several_are_added_in_the_memory_of_the_first() {
    let mut fold = Fold::new(1, layout(2), vec![A, B]).unwrap();
    let first = data();
    let memory = first.as_ptr();
    fold.chunk(A, 0, Mass::ONE, first).unwrap();
    fold.chunk(B, 0, Mass::ONE, data()).unwrap();
    assert!(matches!(&drain(&mut fold)[0], Folded::Chunk { data, .. } if data.as_ptr() == memory));

    let held = data();
    fold.chunk(A, 1, Mass::ONE, held.clone()).unwrap();
    fold.chunk(B, 1, Mass::ONE, data()).unwrap();
    assert!(matches!(&drain(&mut fold)[0], Folded::Chunk { data, .. } if data.as_ptr() != held.as_ptr()));
    assert_eq!(held, data(), "memory that somebody else holds is not written");
}

#[test]
fn the_wait_is_for_whoever_holds_up_the_next_chunk() {
    let mut fold = Fold::new(1, layout(2), vec![A, B, C]).unwrap();
    assert_eq!(fold.waiting(), [], "nobody holds up anybody yet");
    assert_eq!(fold.missing().collect::<Vec<_>>(), [(A, 0), (B, 0), (C, 0)]);

    fold.chunk(B, 0, Mass::ONE, data()).unwrap();
    assert_eq!(fold.waiting(), [(A, 0), (C, 0)]);
    fold.chunk(B, 1, Mass::ONE, data()).unwrap();
    fold.chunk(C, 0, Mass::ONE, data()).unwrap();
    assert_eq!(fold.waiting(), [(A, 0)]);

    fold.drop_contributor(A, Absence::LinkLost);
    assert_eq!(indices(&drain(&mut fold)), [0]);
    assert_eq!(fold.waiting(), [(C, 1)]);
    fold.drop_contributor(C, Absence::Dead);
    assert_eq!(indices(&drain(&mut fold)), [1]);
    assert_eq!(fold.waiting(), []);
    assert!(fold.is_done());
}

#[test]
fn the_only_one_left_is_waited_for() {
    let mut fold = Fold::new(1, layout(1), vec![A, B]).unwrap();
    fold.absent(A, 0, Absence::Joining).unwrap();
    assert_eq!(drain(&mut fold), []);
    assert_eq!(fold.waiting(), [(B, 0)]);
    assert_eq!(fold.empty_from(), None);
    fold.drop_contributor(B, Absence::Dead);
    assert_eq!(fold.empty_from(), Some(0));
    let dropped = |contributor, why| Folded::Dropped { contributor, from_chunk: 0, why };
    let expect = [dropped(A, Absence::Joining), dropped(B, Absence::Dead), Folded::Empty { index: 0 }, Folded::Done];
    assert_eq!(drain(&mut fold), expect);
}

/// Two relays whose links were dead kept a round waiting for ever: everybody else had said that it had nothing to give,
/// and neither of the two was named because neither had delivered.
#[test]
fn those_who_keep_silent_are_waited_for_once_others_have_said_that_they_give_nothing() {
    let mut fold = Fold::new(1, layout(1), vec![A, B, C]).unwrap();
    assert_eq!(fold.waiting(), []);
    fold.absent(A, 0, Absence::Joining).unwrap();
    assert_eq!(fold.waiting(), [(B, 0), (C, 0)]);
}

#[test]
fn rounds_without_contributors_or_chunks_end() {
    let mut fold = Fold::new(1, layout(2), vec![]).unwrap();
    assert_eq!(drain(&mut fold), [Folded::Empty { index: 0 }, Folded::Empty { index: 1 }, Folded::Done]);
    let mut fold = Fold::new(1, Layout::new(0, 0, 0).unwrap(), vec![A]).unwrap();
    assert_eq!(drain(&mut fold), [Folded::Done]);
    assert_eq!(fold.waiting(), []);
}

#[test]
fn how_far_ahead_a_contributor_is_shows_in_bytes() {
    let layout = Layout::new(20 * 65_536, 0, 0).unwrap();
    let mut fold = Fold::new(1, layout, vec![A, B]).unwrap();
    let chunk = Bytes::from(vec![0; CHUNK_BYTES as usize]);
    let mut sent = 0;
    while !fold.is_ahead(A) {
        fold.chunk(A, sent, Mass::ONE, chunk.clone()).unwrap();
        sent += 1;
        assert_eq!(fold.queued(A), u64::from(sent * CHUNK_BYTES));
        assert_eq!(drain(&mut fold), []);
    }
    assert_eq!(fold.queued(A), AHEAD_BYTES_MAX);
    assert_eq!(fold.queued(B), 0);
    fold.chunk(B, 0, Mass::ONE, chunk).unwrap();
    assert_eq!(drain(&mut fold).len(), 1);
    assert!(!fold.is_ahead(A));
}
