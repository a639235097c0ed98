//! `flodl serve` with hosts that join over loopback TCP.

use crate::harness::{Running, World};
use crate::proxy::Proxy;
use crate::runs::{is_exact, names_its_model};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A controller that waits for hosts, its run directory being `run`.
pub(crate) fn serve(world: &World, line: &str) -> Running {
    let mut serve = world.flodl(&format!("serve {line} --run-dir run --summary summary.json"));
    serve.says("waiting for hosts");
    serve
}

/// The ticket of a host, as a file `ticket-HOST`.
pub(crate) fn ticket(world: &World, host: &str) {
    world.flodl(&format!("ticket {host} --run-dir run")).exits(0);
}

#[test]
fn two_hosts_train_one_model() {
    let world = World::new();
    let serve = serve(&world, "-n 3 --epochs 3 --batch-size 16 --step-ms 2 --slow 2=2");
    for host in ["a", "b"] {
        ticket(&world, host);
        let mode = fs::metadata(world.path(format!("ticket-{host}"))).expect("is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let a = world.train("join --ticket ticket-a -n 1", "--samples 2000");
    let b = world.train("join --ticket ticket-b -n 2 --run-dir logs", "--samples 2000");
    let ended = serve.exits(0);
    a.exits(0);
    b.exits(0);
    let summary = world.summary("summary.json");
    is_exact(&summary, 6000);
    assert_eq!(summary.per_rank.len(), 3);
    names_its_model(&ended, summary.version);
    ended.said(&["host a joined"]).said(&["host b joined"]);
    assert!(fs::read_dir(world.path("logs")).expect("is a folder").count() > 0, "the host's logs");
    let address = fs::read_to_string(world.path("run/address")).expect("is there");
    ended.said(&["listening on", address.trim()]);
}

#[test]
fn an_address_on_the_line_replaces_the_tickets() {
    let world = World::new();
    let serve = serve(&world, "-n 1 --batch-size 16");
    ticket(&world, "a");
    let path = world.path("ticket-a");
    let address = fs::read_to_string(world.path("run/address")).expect("is there").trim().to_owned();
    let text = fs::read_to_string(&path).expect("is there").replace(&address, "127.0.0.1:1");
    fs::write(&path, text).expect("is writable");
    let join = world.train(&format!("join --ticket ticket-a {address} -n 1"), "--samples 200");
    serve.exits(0);
    join.exits(0);
}

#[test]
fn a_host_that_is_here_already_and_one_too_many_are_told() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --epochs 2 --batch-size 16 --step-ms 1");
    ticket(&world, "a");
    ticket(&world, "b");
    let a = world.train("join --ticket ticket-a -n 1 --run-dir a", "--samples 1000");
    serve.says("host a joined");
    world.train("join --ticket ticket-a -n 1 --run-dir again", "").exits(1).said(&["host a is already here"]);
    world.train("join --ticket ticket-b -n 2 --run-dir two", "").exits(1).said(&["-n 1"]);
    let b = world.train("join --ticket ticket-b -n 1 --run-dir b", "--samples 1000");
    serve.exits(0);
    a.exits(0);
    b.exits(0);
    is_exact(&world.summary("summary.json"), 2000);
}

#[test]
fn a_host_that_is_asked_to_end_leaves_without_a_loss() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --epochs 60 --batch-size 16 --step-ms 2");
    ticket(&world, "a");
    ticket(&world, "b");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 800");
    let b = world.train("join --ticket ticket-b -n 1", "--samples 800");
    serve.says("the run starts with");
    b.signal(rustix::process::Signal::TERM);
    b.exits(0).said(&["leaving"]);
    serve.says("leaves the run");
    serve.exits(0);
    a.exits(0);
    let summary = world.summary("summary.json");
    assert_eq!((summary.samples_committed, summary.repeats, summary.deaths.len()), (48_000, 0, 0));
    world.empties_within(std::time::Duration::from_secs(5));
}

#[test]
fn a_host_that_is_killed_takes_its_ranks_along() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --epochs 4000 --batch-size 16 --step-ms 2 --patience 2");
    ticket(&world, "a");
    ticket(&world, "b");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 1000");
    let b = world.train("join --ticket ticket-b -n 1", "--samples 1000");
    serve.says("the run starts with");
    b.signal(rustix::process::Signal::KILL);
    b.ends();
    serve.says("died");
    serve.signal(rustix::process::Signal::INT);
    let ended = serve.ends();
    assert!([3, 4].contains(&ended.status.code().expect("by itself")), "{ended:?}");
    a.ends();
    world.empties_within(std::time::Duration::from_secs(5));
}

#[test]
fn a_host_joins_a_run_that_has_begun() {
    let world = World::new();
    let mut serve = serve(&world, "-n 1 --epochs 60 --batch-size 16 --step-ms 4");
    ticket(&world, "a");
    ticket(&world, "b");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
    serve.says("the run starts with");
    let b = world.train("join --ticket ticket-b -n 2", "--samples 500");
    serve.says("rank 2 joined the run");
    let ended = serve.exits(0);
    a.exits(0);
    b.exits(0);
    ended.said(&["host b joined with ranks 1-2"]);
    let summary = world.summary("summary.json");
    is_exact(&summary, 30_000);
    assert!(summary.per_rank.len() == 3 && summary.per_rank[1].committed > 0, "{:?}", summary.per_rank);
}

#[test]
fn a_late_host_with_another_model_is_refused_by_name() {
    let world = World::new();
    let mut serve = serve(&world, "-n 1 --epochs 40 --batch-size 16 --step-ms 4");
    ticket(&world, "a");
    ticket(&world, "b");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
    serve.says("the run starts with");
    let b = world.train("join --ticket ticket-b -n 1", "--samples 500 --fault tensors");
    serve.says("rank 1 is refused");
    serve.exits(3).said(&["rank 1 has another model than the run: tensor 0", "weight"]);
    a.exits(0);
    b.ends();
    assert_eq!(world.summary("summary.json").samples_committed, 20_000);
}

#[test]
fn a_host_whose_link_breaks_comes_back_with_its_ranks() {
    let world = World::new();
    let mut serve = serve(&world, "-n 3 --epochs 80 --batch-size 16 --step-ms 4");
    ticket(&world, "a");
    ticket(&world, "b");
    let address = fs::read_to_string(world.path("run/address")).expect("is there");
    let proxy = Proxy::to(address.trim());
    let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
    let mut b = world.train(&format!("join --ticket ticket-b {} -n 2", proxy.address()), "--samples 500");
    serve.says("the run starts with");
    for times in 1..=3 {
        proxy.cut();
        b.says_times("the controller is there again", times);
        serve.says_times("host b is back", times);
    }
    serve.exits(0);
    a.exits(0);
    b.exits(0);
    let summary = world.summary("summary.json");
    assert_eq!((summary.samples_committed, summary.deaths.len(), summary.digests_equal), (40_000, 0, Some(true)));
}
