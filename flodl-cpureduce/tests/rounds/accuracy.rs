//! How near the average is to the exact one.

use crate::plan::{drain, f32s};
use flodl_cpureduce::{Consensus, Contributor, Fold, Folded, Layout, Mass, average, contribution_chunk};
use proptest::collection::vec;
use proptest::prelude::*;

/// Masses that steps give, and some that are tiny or huge.
fn masses() -> impl Strategy<Value = f64> {
    prop_oneof![
        (0..2000_u32).prop_map(f64::from),
        Just(0.0),
        (1..100_u32).prop_map(|n| f64::from(n).sqrt()),
        1e-30..1e-20_f64,
        Just(f64::from(f32::MIN_POSITIVE)),
        1e20..1e28_f64
    ]
}

fn values() -> impl Strategy<Value = f32> {
    prop_oneof![-1.0..1.0_f32, -1e9..1e9_f32, -1e-9..1e-9_f32, Just(0.0), Just(1e-40)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// A product, up to five sums, a division and the rounding of the whole mass, each off by at most half a unit in the
    /// last place: four units of `sum(m |x|) / sum(m)`. Products below the normal range are off by half of the smallest
    /// number, which only shows where all masses are tiny.
    #[test]
    fn the_average_is_within_four_units_of_the_exact_one(
        drawn in vec((masses(), vec(values(), 5)), 1..=6),
    ) {
        let whole: f64 = drawn.iter().map(|(mass, _)| mass).sum();
        prop_assume!(whole > 0.0);
        let vectors: Vec<(Mass, &[f32])> = drawn.iter().map(|(m, x)| (Mass::new(*m).unwrap(), &x[..])).collect();
        let got = average(&vectors).unwrap();
        let smallest = f64::from(f32::from_bits(1));
        for (place, got) in got.iter().enumerate() {
            let terms = || drawn.iter().map(|(mass, x)| mass * f64::from(x[place]));
            let exact = terms().sum::<f64>() / whole;
            let unit = terms().map(f64::abs).sum::<f64>() / whole * f64::from(f32::EPSILON);
            let below = smallest + drawn.len() as f64 * smallest / 2.0 / whole;
            let off = (f64::from(*got) - exact).abs();
            prop_assert!(off <= 4.0 * unit + below, "{got} is off {exact} by {} units", off / unit);
        }
        // The streamed round gives the same bits.
        let layout = Layout::new(5, 0, 0).unwrap().with_chunk_bytes(8).unwrap();
        let ids: Vec<Contributor> = (0..drawn.len() as u32).map(Contributor).collect();
        let mut fold = Fold::new(1, layout, ids.clone()).unwrap();
        for (id, (mass, x)) in ids.iter().zip(&vectors) {
            for spec in layout.iter() {
                let at = spec.first_element as usize..(spec.first_element as usize + spec.elements as usize);
                let (data, finite) = contribution_chunk(&x[at], *mass);
                prop_assert!(finite);
                fold.chunk(*id, spec.index, *mass, data).unwrap();
            }
        }
        let mut consensus = Consensus::empty(layout);
        consensus.begin(1);
        for event in drain(&mut fold) {
            if let Folded::Chunk { index, mass, data } = event {
                consensus.finish_chunk(index, mass, Some(data)).unwrap();
            }
        }
        consensus.commit(1).unwrap();
        let streamed = f32s(&consensus.read_all().unwrap());
        prop_assert!(streamed.iter().zip(&got).all(|(a, b)| a.to_bits() == b.to_bits()));
    }
}
