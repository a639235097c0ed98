//! Two tiers: relays fold their ranks, the root folds the relays, and the root still knows whose work is where.

use crate::arrival::{exits, layouts, plans};
use crate::plan::{Exit, Input, Plan, combine, drain, fold_of, sums};
use flodl_cpureduce::{Absence, Contributor, Fold, Folded, Layout, Mass, Outcome, Record};
use proptest::prelude::*;

/// What a relay sends up: its chunks, and in band who is not in them.
enum Up {
    Fold(Input),
    Dropped(Contributor, u32, Absence),
}

/// A relay's whole stream. Its link is lost before it sends chunk `cut`, and the root hears no more of it.
fn stream(relay: Contributor, layout: Layout, members: &[Plan], cut: Option<u32>) -> Vec<Up> {
    let mut fold = fold_of(layout, members);
    for input in members.iter().flat_map(|plan| plan.inputs(&layout)) {
        input.feed(&mut fold);
    }
    let mut up = Vec::new();
    let mut silent = false;
    while let Some(event) = fold.poll() {
        match event {
            Folded::Dropped { contributor, from_chunk, why } => up.push(Up::Dropped(contributor, from_chunk, why)),
            Folded::Chunk { index, .. } | Folded::Empty { index } if Some(index) == cut => {
                up.push(Up::Fold(Input::Drop(relay, Absence::LinkLost)));
                return up;
            }
            Folded::Chunk { index, mass, data } => up.push(Up::Fold(Input::Chunk(relay, index, mass, data))),
            Folded::Empty { .. } if silent => {}
            Folded::Empty { index } if fold.empty_from() == Some(index) => {
                silent = true;
                up.push(Up::Fold(Input::Absent(relay, index, Absence::Empty)));
            }
            Folded::Empty { index } => {
                up.push(Up::Fold(Input::Chunk(relay, index, Mass::ZERO, bytes::Bytes::new())));
            }
            Folded::Done => {}
        }
    }
    up
}

/// A relay's link is lost only while it still contributes: afterwards the root has nothing to drop.
fn effective_cut(layout: Layout, members: &[Plan], cut: Option<u32>) -> Option<u32> {
    let last = members.iter().map(|plan| plan.exit.map_or(layout.chunks(), |(chunk, _)| chunk)).max().unwrap_or(0);
    cut.filter(|&cut| cut < last)
}

/// The sums of the root by the definition: relays' sums, added in order.
fn reference(layout: Layout, hosts: &[(Vec<Plan>, Option<u32>)]) -> Vec<Folded> {
    let below: Vec<_> = hosts.iter().map(|(members, _)| sums(&layout, members)).collect();
    let mut chunks = Vec::new();
    for spec in layout.iter() {
        let index = spec.index;
        let mut total = Mass::ZERO;
        let mut all: Option<Vec<u8>> = None;
        for ((_, cut), sums) in hosts.iter().zip(&below) {
            let (mass, sum) = &sums[index as usize];
            if let Some(sum) = sum.as_ref().filter(|_| cut.is_none_or(|cut| index < cut)) {
                total = total.plus(*mass);
                all = Some(all.map_or_else(|| sum.clone(), |all| combine(spec.section, &all, sum)));
            }
        }
        chunks.push(match all {
            Some(data) => Folded::Chunk { index, mass: total, data: data.into() },
            None => Folded::Empty { index },
        });
    }
    chunks
}

fn outcome(missing: Option<u32>) -> Outcome {
    match missing {
        None => Outcome::Whole,
        Some(0) => Outcome::Nothing,
        Some(chunks) => Outcome::Chunks(chunks),
    }
}

fn check(layout: Layout, mut hosts: Vec<(Vec<Plan>, Option<u32>)>, swap: bool) -> Result<(), TestCaseError> {
    for (members, cut) in &mut hosts {
        *cut = effective_cut(layout, members, *cut);
    }
    let relay = |place: usize| Contributor(place as u32);
    let mut root = Fold::new(1, layout, (0..hosts.len()).map(relay).collect()).unwrap();
    let mut record = Record::new();
    for (place, (members, _)) in hosts.iter().enumerate() {
        members.iter().for_each(|plan| record.enter(plan.id, relay(place)));
    }
    let mut streams: Vec<_> =
        hosts.iter().enumerate().map(|(at, (members, cut))| stream(relay(at), layout, members, *cut)).collect();
    if swap {
        streams.reverse();
    }
    let mut chunks = Vec::new();
    for up in streams.into_iter().flatten() {
        match up {
            Up::Fold(input) => input.feed(&mut root),
            Up::Dropped(member, from_chunk, why) => prop_assert!(record.dropped(member, from_chunk, why)),
        }
        for event in drain(&mut root) {
            match event {
                Folded::Dropped { contributor, from_chunk, why } => record.dropped_via(contributor, from_chunk, why),
                Folded::Chunk { .. } | Folded::Empty { .. } => chunks.push(event),
                Folded::Done => {}
            }
        }
    }
    prop_assert!(root.is_done() || layout.chunks() == 0);
    prop_assert_eq!(chunks, reference(layout, &hosts));
    let expect: Vec<_> = hosts
        .iter()
        .flat_map(|(members, cut)| members.iter().map(move |plan| (plan, *cut)))
        .map(|(plan, cut)| {
            let missing = plan.exit.map(|(chunk, _)| chunk).into_iter().chain(cut).min();
            (plan.id, outcome(missing))
        })
        .collect();
    prop_assert_eq!(record.outcomes().collect::<Vec<_>>(), expect);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn two_tiers_report_every_dropped_member(
        (layout, hosts, swap) in (layouts(), 1..4_usize, 1..4_usize).prop_flat_map(|(layout, first, second)| {
            let cut = || exits(layout.chunks()).prop_map(|exit| exit.map(|(chunk, _)| chunk));
            let hosts = ((plans(layout, 0, first), cut()), (plans(layout, 100, second), cut()));
            (Just(layout), hosts.prop_map(|(first, second)| vec![first, second]), any::<bool>())
        }),
    ) {
        check(layout, hosts, swap)?;
    }
}

#[test]
fn a_lost_relay_takes_its_members_from_the_chunk_it_did_not_deliver() {
    let layout = Layout::new(12, 0, 0).unwrap().with_chunk_bytes(16).unwrap();
    let plan = |id, exit| Plan {
        id: Contributor(id),
        mass: Mass::ONE,
        parameters: vec![1.0; 12],
        buffers: vec![],
        integers: vec![],
        exit,
    };
    let dead = Some((1, Exit::Dies(Absence::Dead)));
    let hosts = vec![(vec![plan(0, None), plan(1, dead)], Some(2)), (vec![plan(2, None)], None)];
    check(layout, hosts, false).unwrap();
}
