//! Inputs that a peer must not send: each is a typed error and changes nothing.

use crate::plan::{drain, f32s, finish};
use bytes::Bytes;
use flodl_cpureduce::{
    Absence, Consensus, ConsensusError, Contributor, Fold, FoldError, Folded, Layout, Mass, Reject, Section,
    contribution_chunk,
};
use proptest::collection::vec;
use proptest::prelude::*;

const A: Contributor = Contributor(3);
const B: Contributor = Contributor(8);

/// Two chunks of two `f32` and one of one.
fn layout() -> Layout {
    Layout::new(5, 0, 0).unwrap().with_chunk_bytes(8).unwrap()
}

fn fold() -> Fold {
    Fold::new(4, layout(), vec![A, B]).unwrap()
}

fn data(values: &[f32]) -> Bytes {
    contribution_chunk(values, Mass::ONE).0
}

/// Makes the call on a fold that has chunk 0 of `A`, and checks the refusal and that the round ends as without it.
fn check(call: impl Fn(&mut Fold) -> Result<(), Reject>, expect: Reject) {
    let round = |attack: bool| {
        let mut fold = fold();
        fold.chunk(A, 0, Mass::ONE, data(&[1.0, 2.0])).unwrap();
        if attack {
            assert_eq!(call(&mut fold), Err(expect.clone()));
        }
        assert_eq!(drain(&mut fold), []);
        fold.chunk(A, 1, Mass::ONE, data(&[3.0, 4.0])).unwrap();
        fold.chunk(A, 2, Mass::ONE, data(&[5.0])).unwrap();
        fold.drop_contributor(B, Absence::Dead);
        drain(&mut fold)
    };
    assert_eq!(round(true), round(false));
}

#[test]
fn a_stranger_is_refused() {
    let stranger = Contributor(4);
    check(|fold| fold.chunk(stranger, 0, Mass::ONE, data(&[1.0, 2.0])), Reject::Unknown(stranger));
    check(|fold| fold.absent(stranger, 0, Absence::Joining), Reject::Unknown(stranger));
    let mut fold = fold();
    assert!(!fold.drop_contributor(stranger, Absence::Dead));
    assert_eq!(fold.queued(stranger), 0);
}

#[test]
fn chunks_out_of_order_are_refused() {
    for got in [0, 2, 3, u32::MAX] {
        let expect = Reject::OutOfOrder { contributor: A, expected: 1, got };
        check(|fold| fold.chunk(A, got, Mass::ONE, data(&[1.0, 2.0])), expect.clone());
        check(|fold| fold.absent(A, got, Absence::Joining), expect);
    }
}

#[test]
fn wrong_lengths_are_refused() {
    for got in [0, 1, 4, 7, 9, 12, 1 << 20] {
        let long = Bytes::from(vec![0; got]);
        let expect = Reject::Length { contributor: A, index: 1, expected: 8, got };
        check(|fold| fold.chunk(A, 1, Mass::ONE, long.clone()), expect.clone());
        if got > 0 {
            check(|fold| fold.chunk(A, 1, Mass::ZERO, long.clone()), expect);
        }
    }
}

#[test]
fn nothing_follows_an_absence() {
    let mut fold = fold();
    fold.absent(A, 0, Absence::Joining).unwrap();
    let expect = Reject::Absent { contributor: A, from_chunk: 0, why: Absence::Joining };
    assert_eq!(fold.chunk(A, 0, Mass::ONE, data(&[1.0, 2.0])), Err(expect.clone()));
    assert_eq!(fold.absent(A, 0, Absence::Stale), Err(expect));
    assert!(!fold.drop_contributor(A, Absence::Dead), "the first reason stays");
}

#[test]
fn nothing_follows_a_whole_contribution() {
    let mut fold = Fold::new(4, layout(), vec![A]).unwrap();
    for (index, values) in [&[1.0, 2.0][..], &[3.0, 4.0], &[5.0]].into_iter().enumerate() {
        fold.chunk(A, index as u32, Mass::ONE, data(values)).unwrap();
    }
    let expect = Reject::Complete { contributor: A, chunks: 3 };
    assert_eq!(fold.chunk(A, 3, Mass::ONE, data(&[1.0])), Err(expect.clone()));
    assert_eq!(fold.absent(A, 3, Absence::Stale), Err(expect));
    assert!(!fold.drop_contributor(A, Absence::Dead), "what is whole stays whole");
    assert_eq!(drain(&mut fold).len(), 4);
}

#[test]
fn a_number_that_is_no_mass_never_reaches_a_fold() {
    for bad in [f64::NAN, -1.0, f64::INFINITY, 1e300, 1e-300] {
        assert!(Mass::new(bad).is_err(), "{bad}");
    }
}

#[test]
fn extreme_masses_cannot_poison_a_consensus() {
    let most = Mass::new(f64::from(f32::MAX)).unwrap();
    let least = Mass::new(f64::from(f32::MIN_POSITIVE)).unwrap();
    let layout = Layout::new(1, 0, 0).unwrap();
    for (mass, value) in [(most, 1.0), (most, f32::MAX), (least, 1.0), (least, f32::MAX)] {
        let mut fold = Fold::new(1, layout, vec![A, B]).unwrap();
        fold.chunk(A, 0, mass, data(&[value])).unwrap();
        fold.chunk(B, 0, mass, data(&[value])).unwrap();
        let mut consensus = Consensus::from_bytes(layout, 0, data(&[7.0])).unwrap();
        consensus.begin(1);
        let result = finish(&mut consensus, &drain(&mut fold));
        assert!(f32s(&result)[0].is_finite(), "{mass} {value}");
    }
}

#[test]
fn a_sum_that_overflows_drops_everyone_in_it() {
    let layout = Layout::new(5, 0, 0).unwrap().with_chunk_bytes(8).unwrap();
    let idle = Contributor(9);
    let mut fold = Fold::new(1, layout, vec![A, B, idle]).unwrap();
    for from in [A, B] {
        fold.chunk(from, 0, Mass::ONE, data(&[1.0, 2.0])).unwrap();
        fold.chunk(from, 1, Mass::ONE, data(&[3e38, 2.0])).unwrap();
    }
    fold.chunk(A, 2, Mass::ONE, data(&[1.0])).unwrap();
    for index in 0..2 {
        fold.chunk(idle, index, Mass::ZERO, Bytes::new()).unwrap();
    }
    fold.chunk(idle, 2, Mass::ONE, data(&[6.0])).unwrap();
    let why = Absence::NonFinite;
    let expect = [
        Folded::Chunk { index: 0, mass: Mass::new(2.0).unwrap(), data: data(&[2.0, 4.0]) },
        Folded::Dropped { contributor: A, from_chunk: 1, why },
        Folded::Dropped { contributor: B, from_chunk: 1, why },
        Folded::Empty { index: 1 },
        Folded::Chunk { index: 2, mass: Mass::ONE, data: data(&[6.0]) },
        Folded::Done,
    ];
    assert_eq!(drain(&mut fold), expect);
    assert_eq!(fold.queued(A), 0);
}

#[test]
fn contributors_must_be_sorted_and_distinct() {
    for (before, after) in [(A, A), (B, A)] {
        let refused = Fold::new(1, layout(), vec![before, after]).map(|_| ());
        assert_eq!(refused, Err(FoldError::NotAscending { before, after }));
    }
}

#[test]
fn a_model_of_another_size_is_refused() {
    for got in [0, 19, 21] {
        let refused = Consensus::from_bytes(layout(), 1, Bytes::from(vec![0; got])).map(|_| ());
        assert_eq!(refused, Err(ConsensusError::ModelLength { expected: 20, got }));
    }
}

/// A call with arguments that are sometimes right by accident.
#[derive(Debug, Clone)]
enum Call {
    Chunk(u32, u32, u64, Vec<u8>),
    Absent(u32, u32),
    Drop(u32),
    Poll,
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let data = prop_oneof![4 => vec(any::<u8>(), 8), 2 => vec(any::<u8>(), 4), 1 => vec(any::<u8>(), 0..12)];
    let call = prop_oneof![
        8 => (0..4_u32, 0..5_u32, 0..3_u64, data).prop_map(|(from, index, n, data)| Call::Chunk(from, index, n, data)),
        1 => (0..4_u32, 0..5_u32).prop_map(|(from, index)| Call::Absent(from, index)),
        1 => (0..4_u32).prop_map(Call::Drop),
        4 => Just(Call::Poll),
    ];
    vec(call, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Whatever is called, every chunk comes once and in order, all that comes is finite, everybody who is dropped is
    /// named before the first chunk without it, and the round ends when everybody is gone.
    #[test]
    fn any_calls_leave_a_round_that_ends(calls in calls()) {
        let layout = Layout::new(5, 1, 1).unwrap().with_chunk_bytes(8).unwrap();
        let mut fold = Fold::new(1, layout, (0..3).map(Contributor).collect()).unwrap();
        let mut events = Vec::new();
        for call in calls {
            let before = format!("{fold:?}");
            let refused = match call {
                Call::Chunk(from, index, n, data) => {
                    fold.chunk(Contributor(from), index, Mass::from_steps(n, 1.0).unwrap(), data.into()).is_err()
                }
                Call::Absent(from, index) => fold.absent(Contributor(from), index, Absence::Stale).is_err(),
                Call::Drop(from) => !fold.drop_contributor(Contributor(from), Absence::Dead),
                Call::Poll => {
                    events.extend(fold.poll());
                    false
                }
            };
            if refused {
                prop_assert_eq!(format!("{fold:?}"), before);
            }
        }
        let absent_before_the_end: Vec<u32> =
            (0..3).filter(|&id| fold.drop_contributor(Contributor(id), Absence::LinkLost)).collect();
        events.extend(drain(&mut fold));
        prop_assert!(fold.is_done());
        prop_assert_eq!(events.pop(), Some(Folded::Done));
        let mut next = 0;
        let mut dropped = Vec::new();
        for event in events {
            match event {
                Folded::Dropped { contributor, from_chunk, .. } => {
                    prop_assert_eq!(from_chunk, next);
                    dropped.push(contributor.0);
                }
                Folded::Chunk { index, mass, data } => {
                    let spec = layout.chunk(index).unwrap();
                    prop_assert_eq!((index, data.len()), (next, spec.bytes as usize));
                    prop_assert!(!mass.is_zero() && dropped.len() < 3);
                    let floats = spec.section != Section::Integers;
                    prop_assert!(!floats || f32s(&data).iter().all(|value| value.is_finite()));
                    next += 1;
                }
                Folded::Empty { index } => {
                    prop_assert_eq!(index, next);
                    next += 1;
                }
                Folded::Done => prop_assert!(false, "done twice"),
            }
        }
        prop_assert_eq!(next, layout.chunks());
        prop_assert!(absent_before_the_end.iter().all(|id| dropped.contains(id)));
        dropped.sort_unstable();
        let named = dropped.len();
        dropped.dedup();
        prop_assert_eq!(dropped.len(), named, "each is dropped once");
    }
}
