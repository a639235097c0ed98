//! What travels between hosts in fewer bits, counted on the socket.

use crate::harness::World;
use crate::joins::{serve, ticket};
use crate::proxy::Proxy;
use flodl_monitor::Summary;
use std::fs;

/// A run of two hosts, each with two ranks, that averages after each batch: what the link of one of them carried.
fn carried(wire: &str) -> ([u64; 2], Summary) {
    let world = World::new();
    let line = format!("-n 4 --mode cpu-sync --epochs 2 --batch-size 4 --wire {wire}");
    let serve = serve(&world, &line);
    ticket(&world, "a");
    ticket(&world, "b");
    let address = fs::read_to_string(world.path("run/address")).expect("is there");
    let proxy = Proxy::to(address.trim());
    let trainer = "--samples 160 --features 4000";
    let a = world.train("join --ticket ticket-a -n 2", trainer);
    let b = world.train(&format!("join --ticket ticket-b {} -n 2", proxy.address()), trainer);
    let ended = serve.exits(0);
    a.exits(0);
    b.exits(0);
    let summary = world.summary("summary.json");
    assert_eq!(summary.wire.as_deref(), Some(wire));
    if wire != "f32" {
        ended.said(&["between hosts sums and averages travel as", wire]);
    }
    (proxy.carried(), summary)
}

#[test]
fn bf16_halves_and_int8_quarters_what_a_link_carries() {
    let (exact, first) = carried("f32");
    assert!(first.rounds >= 20, "{}", first.rounds);
    for (wire, part) in [("bf16", 0.5), ("int8", 0.25)] {
        let (bytes, summary) = carried(wire);
        assert_eq!((summary.rounds, summary.digests_equal), (first.rounds, Some(true)), "{wire}");
        assert_eq!(summary.samples_committed, first.samples_committed, "{wire}");
        // The first average travels as it is, and orders and reports as they are: a few hundredths.
        for (bytes, exact) in bytes.into_iter().zip(exact) {
            let of = bytes as f64 / exact as f64;
            assert!(of > part - 0.02 && of < part + 0.07, "{wire}: {bytes} bytes are {of} of {exact}");
        }
        let losses = summary.loss.zip(first.loss);
        assert!(losses.is_some_and(|(loss, exact)| (loss - exact).abs() < 0.05), "{wire}: {losses:?}");
    }
}

#[test]
fn a_link_that_breaks_and_a_host_that_comes_late_get_what_they_lack() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --min-ranks 2 --epochs 60 --batch-size 16 --step-ms 3 --wire int8");
    for host in ["a", "b", "c"] {
        ticket(&world, host);
    }
    let address = fs::read_to_string(world.path("run/address")).expect("is there");
    let proxy = Proxy::to(address.trim());
    let a = world.train("join --ticket ticket-a -n 1", "--samples 600");
    let mut b = world.train(&format!("join --ticket ticket-b {} -n 1", proxy.address()), "--samples 600");
    serve.says("the run starts with");
    let c = world.train("join --ticket ticket-c -n 1 --run-dir c", "--samples 600");
    serve.says("host c joined");
    for times in 1..=2 {
        proxy.cut();
        b.says_times("the controller is there again", times);
        serve.says_times("host b is back", times);
    }
    serve.exits(0);
    for host in [a, b, c] {
        host.exits(0);
    }
    let summary = world.summary("summary.json");
    assert_eq!((summary.samples_committed, summary.deaths.len(), summary.digests_equal), (36_000, 0, Some(true)));
    assert_eq!(summary.per_rank.len(), 3);
}
