//! What holds for any records in any order.

use crate::samples::*;
use crate::timeline::Records;
use crate::{Figures, Progress, Store, Summary, describe};
use flodl_wire::message::Record;
use flodl_wire::message::record::{Body, EventKind};
use flodl_wire::{Rank, Time, Version};
use proptest::prelude::*;
use std::path::Path;

fn odd_float() -> impl Strategy<Value = f64> {
    prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(0.0), Just(-1e300), any::<f64>()]
}

fn records() -> impl Strategy<Value = Vec<Record>> {
    let at = 0..3_000_u64;
    let rank = 0..4_u32;
    let one = (at, rank, 0..6_u64, 0..200_u64, odd_float()).prop_flat_map(|(at, rank, small, number, odd)| {
        prop_oneof![
            Just(meta(at)),
            Just(formed(at, &[0, rank])),
            Just(planned(at, small, small, &[(rank, 3)])),
            Just(window(at, rank, small as u32, number, number)),
            Just(root(at, small, Some(odd))),
            Just(committed(at, small, &[(rank, number), (0, small)], small)),
            Just(committed(at, small, &[(rank, u64::MAX)], u64::MAX)),
            Just(evaluated(at, odd, Some(odd))),
            Just(died(at, rank, "why")),
            Just(because(at, EventKind::RankRefused { rank: Rank(rank) }, "why")),
            Just(event(at, EventKind::RankFinished { rank: Rank(rank) })),
            Just(event(at, EventKind::ReplicaDigest { rank: Rank(rank), version: Version(1), equal: small > 0 })),
            Just(saved(at, small)),
            Just(ended(at, 0)),
        ]
    });
    prop::collection::vec(one, 0..60)
}

fn taken(records: &[Record]) -> Store {
    let mut store = Store::new();
    records.iter().for_each(|record| store.take(record));
    store
}

proptest! {
    #[test]
    fn shares_add_up_and_json_keeps_every_figure(records in records()) {
        let store = taken(&records);
        let summary = Summary::of(&store);
        let shares: Vec<f64> = summary.per_rank.iter().filter_map(|rank| rank.share).collect();
        if summary.samples_committed == 0 {
            prop_assert!(shares.is_empty());
        } else {
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{shares:?}");
        }
        // NaN would not be read back, and would not be equal.
        let json = serde_json::to_string(&summary).unwrap();
        prop_assert!(!json.contains("NaN") && !json.contains("inf"));
        prop_assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);
    }

    #[test]
    fn a_timeline_tells_the_same_as_the_run(records in records()) {
        let lines: Vec<u8> =
            records.iter().flat_map(|record| [serde_json::to_vec(record).unwrap(), vec![b'\n']].concat()).collect();
        let back: Vec<Record> = Records::new(Path::new("t"), &lines[..]).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(Summary::of(&taken(&back)), Summary::of(&taken(&records)));
    }

    #[test]
    fn the_fraction_is_of_the_ceiling(records in records()) {
        let Figures { throughput, ceiling, fraction, .. } = Figures::of(&taken(&records));
        if let (Some(throughput), Some(ceiling), Some(fraction)) = (throughput, ceiling, fraction) {
            prop_assert!(ceiling > 0.0 && ceiling.is_finite());
            prop_assert!((fraction * ceiling - throughput).abs() <= 1e-9 * throughput);
        } else {
            prop_assert!(fraction.is_none());
        }
    }

    #[test]
    fn words_stay_on_one_line(
        records in records(), why in "\\PC*|[\\x00-\\x1f]*", now in any::<u64>(), columns in 0..150_usize,
    ) {
        let progress = Progress::of(&taken(&records), Time(now));
        prop_assert!(!progress.line().contains(char::is_control));
        let bar = progress.bar(columns);
        prop_assert!(bar.len() <= columns && !bar.contains(char::is_control), "{columns}: {bar:?}");
        let alert = because(0, EventKind::Alert, &why);
        let Body::Event(event) = &alert.body else { unreachable!() };
        let said = describe(event).unwrap();
        prop_assert!(!said.chars().any(char::is_control), "{said:?}");
    }
}
