//! Property: whatever arrives in whatever order, and whoever leaves wherever, a fold is the plain reference, bit by bit.

use crate::plan::{Exit, Plan, divided, expected, finish, fold_of, run, run_fold, sums};
use flodl_cpureduce::{Absence, Consensus, Contributor, Digest, Folded, Layout, Mass, Rooms};
use proptest::collection::vec;
use proptest::prelude::*;

/// A layout of up to eleven chunks of four `f32` or two `i64`.
pub(crate) fn layouts() -> impl Strategy<Value = Layout> {
    (0..20_u64, 0..7_u64, 0..5_u64).prop_map(|(p, b, i)| Layout::new(p, b, i).unwrap().with_chunk_bytes(16).unwrap())
}

/// Values of very different sizes, so that any other order of adding shows in the bits.
fn floats() -> impl Strategy<Value = f32> {
    prop_oneof![-1000.0..1000.0_f32, -1e-30..1e-30_f32, -1e30..1e30_f32, Just(-0.0), Just(1e-42)]
}

fn masses() -> impl Strategy<Value = Mass> {
    (0..6_u64, prop_oneof![Just(1.0), Just(0.5), Just(0.0)]).prop_map(|(n, gamma)| Mass::from_steps(n, gamma).unwrap())
}

pub(crate) fn exits(chunks: u32) -> BoxedStrategy<Option<(u32, Exit)>> {
    if chunks == 0 {
        return Just(None).boxed();
    }
    let exit = prop_oneof![
        Just(Exit::Says(Absence::NothingTrained)),
        Just(Exit::Dies(Absence::Dead)),
        Just(Exit::Poison(f32::NAN)),
        Just(Exit::Poison(f32::NEG_INFINITY)),
    ];
    proptest::option::of((0..chunks, exit)).boxed()
}

/// So many contributors with ids in ascending order from `first`.
pub(crate) fn plans(layout: Layout, first: u32, count: usize) -> impl Strategy<Value = Vec<Plan>> {
    use flodl_cpureduce::Section::{Buffers, Integers, Parameters};
    let size = |section| layout.elements(section) as usize;
    let one = (
        masses(),
        vec(floats(), size(Parameters)),
        vec(floats(), size(Buffers)),
        vec(any::<i64>(), size(Integers)),
        exits(layout.chunks()),
    );
    vec(one, count).prop_map(move |drawn| {
        let ids = (first..).step_by(3).map(Contributor);
        let plan =
            |(id, (mass, parameters, buffers, integers, exit))| Plan { id, mass, parameters, buffers, integers, exit };
        ids.zip(drawn).map(plan).collect()
    })
}

/// Every place as often as it can have inputs, in random order.
pub(crate) fn turns(places: usize, layout: Layout) -> impl Strategy<Value = Vec<usize>> {
    let each = layout.chunks() as usize + 1;
    Just((0..places * each).map(|turn| turn % places).collect::<Vec<_>>()).prop_shuffle()
}

fn rounds() -> impl Strategy<Value = (Layout, Vec<Plan>, Vec<usize>)> {
    (layouts(), 1..5_usize)
        .prop_flat_map(|(layout, count)| (Just(layout), plans(layout, 2, count), turns(count, layout)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn events_are_the_reference_in_any_order((layout, plans, turns) in rounds()) {
        prop_assert_eq!(run(layout, &plans, &turns), expected(&layout, &plans));
    }

    #[test]
    fn events_are_the_same_where_contributions_are_only_lent((layout, plans, turns) in rounds()) {
        let rooms = Rooms::default();
        for _ in 0..2 {
            let fold = fold_of(layout, &plans).of_lent().with_rooms(rooms.clone());
            let events = run_fold(fold, &plans, &turns);
            prop_assert_eq!(&events, &expected(&layout, &plans));
            // Sums lie in memory that is used again, of whatever length it was.
            for event in events {
                if let Folded::Chunk { data, .. } = event {
                    rooms.give(data);
                }
            }
        }
    }

    #[test]
    fn the_result_is_sum_over_mass_or_the_previous_consensus(
        (layout, plans, turns) in rounds(),
        previous in proptest::option::of(any::<u8>()),
    ) {
        let model = previous.map(|fill| vec![fill & 0x3f; layout.total_bytes() as usize]);
        let mut consensus = match &model {
            Some(model) => Consensus::from_bytes(layout, 7, model.clone().into()).unwrap(),
            None => Consensus::empty(layout),
        };
        let sums = sums(&layout, &plans);
        let mut result = Vec::new();
        for (spec, (mass, sum)) in layout.iter().zip(&sums) {
            let place = spec.byte_offset as usize..spec.byte_offset as usize + spec.bytes as usize;
            result.extend(match (sum, &model) {
                (Some(sum), _) => divided(spec.section, *mass, sum),
                (None, Some(model)) => model[place].to_vec(),
                (None, None) => vec![0; place.len()],
            });
        }
        consensus.begin(8);
        prop_assert_eq!(&finish(&mut consensus, &run(layout, &plans, &turns)), &result);
        prop_assert_eq!(consensus.digest_of_result(), Some(Digest::of(&result)));

        let folded = sums.iter().filter(|(_, sum)| sum.is_some()).count();
        let whole = folded > 0 && (model.is_some() || folded == sums.len());
        prop_assert_eq!(consensus.commit(8).is_ok(), whole);
        let expect = if whole { Some(result) } else { model };
        prop_assert_eq!(consensus.read_all().map(Vec::from), expect);
    }
}
