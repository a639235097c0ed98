//! Ranks that share memory with their relay: what holds over sockets holds there too, bit by bit.

use crate::Case;
use crate::relays::{Controller, LIFE, Local};
use flodl_wire::io::Duplex;
use flodl_wire::message::control::{Next, Part};
use flodl_wire::message::record::Reason;
use flodl_wire::message::report::{Folded, FoldedPart};
use flodl_wire::message::{Control, HostReport};
use flodl_wire::{Rank, Version};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    ("shared::a_run_over_shared_memory_folds_commits_and_ends_with_nothing_left", whole_run),
    ("shared::the_consensus_is_the_same_bit_by_bit_on_either_way_and_on_both", same_bits),
    ("shared::a_rank_killed_in_mid_contribution_is_partial_and_the_others_finish_within_a_second", death),
    ("shared::a_rank_that_stops_is_waited_for_until_it_is_declared_dead", stall),
    ("shared::a_rank_that_spoils_its_lane_is_closed_and_the_others_finish", scribble),
    ("shared::a_lost_controller_ends_ranks_that_wait_in_shared_memory", lost_controller),
];

/// The first round, by which all ranks hold what rank 0 does.
async fn first_round(controller: &mut Controller<Duplex>) -> u64 {
    controller.form(3).await;
    controller.open(0, &[Part::Source, Part::Receive, Part::Receive]).await;
    let digest = controller.folded().await.digest;
    controller.acks(3, digest).await;
    controller.commit(0, Next::Window).await;
    digest
}

fn whole_run() {
    smol::block_on(async {
        let mut local = Local::start("lanes").await;
        local.controller.whole_run(3).await;
        assert_eq!(local.controller.lost(), []);
        local.end().await.unwrap();
    });
}

/// Digests of two rounds, and the consensus.
async fn rounds(plan: &str, shares_memory: bool) -> (u64, u64, Vec<u8>) {
    let mut local = Local::start_with(plan, |config| config.shares_memory = shares_memory).await;
    let controller = &mut local.controller;
    let first = first_round(controller).await;
    controller.open(1, &[Part::Contribute; 3]).await;
    let folded = controller.folded().await;
    controller.acks(3, folded.digest).await;
    controller.commit(1, Next::Final).await;
    let consensus = controller.consensus().await;
    assert_eq!((consensus.version, consensus.digest), (Version(1), folded.digest));
    controller.shut_down(3).await;
    local.end().await.unwrap();
    (first, folded.digest, consensus.bytes.to_vec())
}

fn same_bits() {
    smol::block_on(async {
        let sockets = rounds("odd", false).await;
        assert_ne!(sockets.0, sockets.1);
        // Refused by the relay; offered and not taken; taken.
        for (plan, shares_memory) in [("odd lanes", false), ("odd", true), ("odd lanes", true)] {
            assert!(rounds(plan, shares_memory).await == sockets, "{plan} {shares_memory}");
        }
    });
}

fn parts(folded: &Folded) -> Vec<FoldedPart> {
    folded.ranks.iter().map(|&(_, _, part)| part).collect()
}

/// Declares rank 1 dead and ends the run with the others, whose results are whole.
async fn go_on_without(mut local: Local, folded: Folded) {
    let controller = &mut local.controller;
    controller.acks(2, folded.digest).await;
    controller.commit(1, Next::Final).await;
    controller.shut_down(2).await;
    local.end().await.unwrap();
}

fn dead() -> Control {
    let why = Reason::new("lost", "it is of no more use");
    Control::DeclareDead { rank: Rank(1), incarnation: LIFE, why }
}

fn death() {
    smol::block_on(async {
        let mut local = Local::start("lanes 1:die").await;
        first_round(&mut local.controller).await;
        let start = Instant::now();
        local.controller.open(1, &[Part::Contribute; 3]).await;
        let folded = local.controller.folded().await;
        assert!(start.elapsed() < Duration::from_secs(1), "survivors took {:?}", start.elapsed());
        assert_eq!(parts(&folded), [FoldedPart::Whole, FoldedPart::Chunks(1), FoldedPart::Whole]);
        local.controller.broadcast(&dead()).await;
        go_on_without(local, folded).await;
    });
}

fn stall() {
    smol::block_on(async {
        let mut local = Local::start("lanes 1:stall").await;
        let controller = &mut local.controller;
        first_round(controller).await;
        controller.open(1, &[Part::Contribute; 3]).await;
        let waiting = |said: &crate::relays::Said| match said {
            crate::relays::Said::Host(HostReport::Waiting { rank, chunk, .. }) => Some((*rank, *chunk)),
            _ => None,
        };
        assert_eq!(controller.hear("who is waited for", waiting).await, (Rank(1), 1));
        controller.root_waits().await;
        controller.broadcast(&dead()).await;
        let folded = controller.folded().await;
        assert_eq!(parts(&folded), [FoldedPart::Whole, FoldedPart::Chunks(1), FoldedPart::Whole]);
        go_on_without(local, folded).await;
    });
}

fn scribble() {
    smol::block_on(async {
        let mut local = Local::start("lanes 1:scribble").await;
        let controller = &mut local.controller;
        first_round(controller).await;
        controller.open(1, &[Part::Contribute; 3]).await;
        let lost = |said: &crate::relays::Said| match said {
            crate::relays::Said::Host(HostReport::RankLost { rank, error, .. }) => Some((*rank, error.clone())),
            _ => None,
        };
        let (rank, error) = controller.hear("that it is lost", lost).await;
        assert_eq!(rank, Rank(1));
        assert!(error.contains("its lane holds a"), "{error}");
        let folded = controller.folded().await;
        assert_eq!(parts(&folded), [FoldedPart::Whole, FoldedPart::Chunks(1), FoldedPart::Whole]);
        controller.broadcast(&dead()).await;
        go_on_without(local, folded).await;
    });
}

fn lost_controller() {
    smol::block_on(async {
        let mut local = Local::start("lanes 1:stall").await;
        first_round(&mut local.controller).await;
        local.controller.open(1, &[Part::Contribute; 3]).await;
        local.loses_its_controller().await;
    });
}
