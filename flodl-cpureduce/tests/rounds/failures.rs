//! Cases met by systems of this kind, each named by its id in the list of failures that flodl is tested against.

use crate::plan::{Exit, Plan, f32s, finish, i64s, run};
use flodl_cpureduce::{Absence, Consensus, Contributor, Folded, Layout, Mass};

fn mass(value: f64) -> Mass {
    Mass::new(value).unwrap()
}

/// Chunks of two `f32` or one `i64`: two of parameters, one of buffers, one of integers.
fn layout() -> Layout {
    Layout::new(4, 1, 1).unwrap().with_chunk_bytes(8).unwrap()
}

fn plan(id: u32, m: f64, parameters: [f32; 4], exit: Option<(u32, Exit)>) -> Plan {
    let integers = vec![i64::from(id)];
    Plan {
        id: Contributor(id),
        mass: mass(m),
        parameters: parameters.to_vec(),
        buffers: vec![id as f32],
        integers,
        exit,
    }
}

/// All orders in which three contributors with so many inputs each can take turns.
fn interleavings(left: [usize; 3]) -> Vec<Vec<usize>> {
    if left == [0; 3] {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for place in (0..3).filter(|&place| left[place] > 0) {
        let mut rest = left;
        rest[place] -= 1;
        all.extend(interleavings(rest).into_iter().map(|mut turns| {
            turns.push(place);
            turns
        }));
    }
    all
}

/// A NaN or an infinity in one replica must not reach the consensus. A source that tests itself says `NonFinite`; one
/// that does not is dropped by the fold from the poisoned chunk on, and the others' average stands.
#[test]
fn e1_a_value_that_is_not_finite_is_refused_by_the_fold() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let sick = plan(1, 2.0, [9.0; 4], Some((1, Exit::Poison(poison))));
        let events = run(layout(), &[plan(0, 1.0, [3.0, 3.0, 5.0, 5.0], None), sick], &[1, 0, 1, 0, 0, 0]);
        let dropped = Folded::Dropped { contributor: Contributor(1), from_chunk: 1, why: Absence::NonFinite };
        assert_eq!(events[1], dropped);
        let mut consensus = Consensus::empty(layout());
        consensus.begin(0);
        let result = finish(&mut consensus, &events);
        assert_eq!(f32s(&result[..20]), [7.0, 7.0, 5.0, 5.0, 0.0]);
        assert_eq!(consensus.commit(0), Ok(()));
    }
}

/// Unequal masses and a contributor lost in mid-round: each chunk is `sum(m x) / sum(m)` over what was folded of it,
/// not over who was there at the start, and not 1/n of anything.
#[test]
fn e5_a_contributor_lost_in_mid_round_leaves_sum_over_mass_of_what_was_folded() {
    let lost = plan(1, 5.0, [10.0, 20.0, 30.0, 40.0], Some((1, Exit::Dies(Absence::LinkLost))));
    let plans = [plan(0, 1.0, [1.0, 2.0, 3.0, 4.0], None), lost, plan(2, 2.0, [4.0, 5.0, 6.0, 7.0], None)];
    for turns in interleavings([4, 2, 4]) {
        let mut consensus = Consensus::empty(layout());
        consensus.begin(0);
        let result = finish(&mut consensus, &run(layout(), &plans, &turns));
        let reference = [
            (1.0 * 1.0 + 5.0 * 10.0 + 2.0 * 4.0) / 8.0, // all three
            (1.0 * 2.0 + 5.0 * 20.0 + 2.0 * 5.0) / 8.0,
            (1.0 * 3.0 + 2.0 * 6.0) / 3.0, // without the lost one
            (1.0 * 4.0 + 2.0 * 7.0) / 3.0,
            (0.0 + 2.0) / 2.0, // buffers: mass 1 each
        ];
        assert_eq!(f32s(&result[..20]), reference);
        assert_eq!(i64s(&result[20..]), [2]);
    }
}

/// The same inputs in any order of arrival give the same consensus, bit by bit. The values are chosen so that adding
/// them in another order gives other bits, and all 1,680 interleavings of three streams of three chunks are tried.
#[test]
fn e6_any_order_of_arrival_gives_identical_bits() {
    let layout = Layout::new(6, 0, 0).unwrap().with_chunk_bytes(8).unwrap();
    let values = [[1e8, 1.0, 0.1, 3e7, 1.0, 1e-3], [-1e8, 1e-8, 0.2, 1.0, 1e8, 0.7], [1.0, -1.0, 0.3, -3e7, -1e8, 0.9]];
    let plans: Vec<Plan> = values
        .iter()
        .enumerate()
        .map(|(id, values)| Plan {
            id: Contributor(id as u32),
            mass: mass(id as f64 * 0.7 + 1.0),
            parameters: values.to_vec(),
            buffers: vec![],
            integers: vec![],
            exit: None,
        })
        .collect();
    let all = interleavings([3, 3, 3]);
    assert_eq!(all.len(), 1680);
    let mut digests: Vec<u64> = all
        .iter()
        .map(|turns| {
            let mut consensus = Consensus::empty(layout);
            consensus.begin(0);
            finish(&mut consensus, &run(layout, &plans, turns));
            consensus.digest_of_result().unwrap()
        })
        .collect();
    digests.dedup();
    assert_eq!(digests.len(), 1);

    let mut renamed = plans.clone();
    renamed.reverse();
    for (id, plan) in renamed.iter_mut().enumerate() {
        plan.id = Contributor(id as u32);
    }
    let mut consensus = Consensus::empty(layout);
    consensus.begin(0);
    finish(&mut consensus, &run(layout, &renamed, &all[0]));
    assert_ne!(consensus.digest_of_result(), Some(digests[0]), "these values must tell one order from another");
}
