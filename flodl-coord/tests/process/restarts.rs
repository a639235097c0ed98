//! `flodl serve` that is killed, and another one that goes on with its run.

use crate::harness::{Running, World, poll};
use crate::joins::{serve, ticket};
use crate::proxy::Proxy;
use flodl_coord::journal::{Entry, Image, Journal, Store, read};
use flodl_monitor::Summary;
use flodl_monitor::timeline::Reader;
use flodl_wire::message::record::{Body, EventKind};
use flodl_worker::checkpoint::read_outer;
use rustix::process::Signal;
use std::time::Duration;
use std::{fs, io};

const RESUME: &str = "serve --resume-journal run";

/// Averages in the timelines of a run directory so far.
fn averages(world: &World, dir: &str) -> usize {
    let committed =
        |body: &Body| matches!(body, Body::Event(event) if matches!(event.kind, EventKind::RoundCommitted { .. }));
    let records = Reader::open(&world.path(dir)).into_iter().flatten().flatten();
    records.filter(|record| committed(&record.body)).count()
}

/// Waits for so many further averages.
fn averages_go_on(world: &World, dir: &str, more: usize) {
    let before = averages(world, dir);
    let went_on = poll(Duration::from_secs(60), || (averages(world, dir) >= before + more).then_some(()));
    assert!(went_on.is_some(), "no {more} averages after {before}");
}

/// Every sample counts once, and nothing was lost. Whose it was may be missing where the end of a timeline is.
fn is_exact(summary: &Summary, samples: u64) {
    assert_eq!((summary.samples_committed, summary.samples_expected), (samples, Some(samples)), "{summary:#?}");
    assert_eq!((summary.repeats, summary.quarantined, summary.digests_equal), (0, 0, Some(true)));
    assert_eq!((summary.exit, summary.degraded, summary.deaths.len()), (Some(0), false, 0));
}

fn kill(serve: Running) {
    serve.signal(Signal::KILL);
    serve.ends();
}

#[test]
fn b24_another_controller_goes_on_with_the_run_of_a_killed_one() {
    let world = World::new();
    let mut controller = serve(&world, "-n 3 --epochs 120 --batch-size 16 --step-ms 2 --slow 2=2 --patience 6");
    ticket(&world, "a");
    ticket(&world, "b");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
    let b = world.train("join --ticket ticket-b -n 2", "--samples 500");
    controller.says("the run starts with");
    let ranks: Vec<Option<i32>> = (0..3).map(|rank| world.rank(rank)).collect();
    for _ in 0..3 {
        averages_go_on(&world, "run", 4);
        kill(controller);
        controller = world.flodl(RESUME);
        controller.says("another controller goes on with the run");
    }
    let refused = world.flodl(RESUME).exits(1);
    refused.said(&["another controller runs this run", "only one may"]);
    assert_eq!((0..3).map(|rank| world.rank(rank)).collect::<Vec<_>>(), ranks, "no process is another");
    let ended = controller.exits(0);
    a.exits(0);
    b.exits(0);
    let summary = world.summary("run/summary.json");
    is_exact(&summary, 60_000);
    assert_eq!(summary.per_rank.len(), 3, "{ended:?}");
    world.flodl(RESUME).exits(1).said(&["the run is over"]);
    world.empties_within(Duration::from_secs(5));
}

/// Nobody can say what the replicas hold beside the consensus: they take it first, and train again what was not committed.
#[test]
fn another_controller_goes_on_with_ranks_that_train_on_while_they_average() {
    let world = World::new();
    let settings = "-n 3 --mode cpu-async --epochs 120 --batch-size 16 --step-ms 2 --slow 2=2 --patience 6";
    let mut controller = serve(&world, settings);
    ticket(&world, "a");
    ticket(&world, "b");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
    let b = world.train("join --ticket ticket-b -n 2", "--samples 500");
    controller.says("the run starts with");
    for _ in 0..2 {
        averages_go_on(&world, "run", 4);
        kill(controller);
        controller = world.flodl(RESUME);
        controller.says("another controller goes on with the run");
    }
    controller.exits(0);
    let mut said = Reader::open(&world.path("run")).into_iter().flatten().flatten();
    let says = |body: &Body| matches!(body, Body::Event(event) if event.reason.iter().any(|why| why.text.contains("ranks take the consensus first")));
    assert!(said.any(|record| says(&record.body)));
    a.exits(0);
    b.exits(0);
    is_exact(&world.summary("run/summary.json"), 60_000);
    world.empties_within(Duration::from_secs(5));
}

#[test]
fn a_journal_with_an_unfinished_end_is_gone_on_with_and_a_damaged_one_is_named() {
    let world = World::new();
    let mut controller = serve(&world, "-n 1 --epochs 100 --batch-size 16 --step-ms 2 --patience 6");
    ticket(&world, "a");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
    controller.says("the run starts with");
    averages_go_on(&world, "run", 4);
    kill(controller);
    let path = world.path("run/journal");
    let mut journal = fs::read(&path).expect("is there");
    let whole = journal.clone();
    journal[200] ^= 1;
    fs::write(&path, &journal).expect("is writable");
    let ended = world.flodl(RESUME).exits(1);
    ended.said(&["is damaged and others follow it"]);
    let start = ended.err.split("at byte ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or_default();
    assert!(start.parse::<usize>().is_ok_and(|start| (1..=200).contains(&start)), "{}", ended.err);
    ended.said(&[&format!("truncate -s {start} ")]);
    // What the journal lacks its host brings: the newest averages, above all.
    fs::write(&path, &whole[..whole.len() - 40]).expect("is writable");
    let mut controller = world.flodl(RESUME);
    controller.says("were not finished");
    controller.says("another controller goes on with the run");
    controller.exits(0);
    a.exits(0);
    is_exact(&world.summary("run/summary.json"), 50_000);
}

#[test]
fn what_cannot_be_resumed_is_said() {
    let world = World::new();
    let mut controller = serve(&world, "-n 1 --epochs 4000 --batch-size 16 --step-ms 2 --patience 1");
    let mut other = world.flodl("serve -n 1 --run-dir other");
    other.says("waiting for hosts");
    kill(other);
    kill({
        ticket(&world, "a");
        let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
        controller.says("the run starts with");
        averages_go_on(&world, "run", 2);
        controller.signal(Signal::KILL);
        a.ends();
        controller
    });
    // Its host has waited for the patience, and is gone.
    world.flodl(RESUME).exits(1).said(&["no host of the run came back", "checkpoint"]);
    world.flodl("serve --resume-journal other").exits(1).said(&["had not begun", "start it anew"]);
    fs::copy(world.path("other/journal"), world.path("run/journal")).expect("can be copied");
    world.flodl(RESUME).exits(1).said(&["it is the journal of run", "put back its own"]);
    fs::remove_file(world.path("run/journal")).expect("is there");
    world.flodl(RESUME).exits(1).said(&["run/journal", "name the run directory of `flodl serve`"]);
    fs::remove_file(world.path("run/secret")).expect("is there");
    world.flodl(RESUME).exits(1).said(&["run/secret"]);
    world.flodl("serve --resume-journal nowhere").exits(1).said(&["nowhere", "cannot be used"]);
    world.flodl("serve").exits(2).said(&["--ranks"]);
    world.flodl("serve --resume-journal run -n 2").exits(2).said(&["--resume-journal"]);
}

#[test]
fn b16_a_controller_that_stands_still_keeps_its_run() {
    let world = World::new();
    let mut controller = serve(&world, "-n 1 --epochs 100 --batch-size 16 --step-ms 2 --patience 8");
    ticket(&world, "a");
    let a = world.train("join --ticket ticket-a -n 1", "--samples 500");
    controller.says("the run starts with");
    averages_go_on(&world, "run", 2);
    controller.signal(Signal::STOP);
    let holder = format!("(process {})", controller.id());
    world.flodl(RESUME).exits(1).said(&["another controller runs this run", &holder, "Stop that one first"]);
    controller.signal(Signal::CONT);
    controller.exits(0);
    a.exits(0);
    is_exact(&world.summary("summary.json"), 50_000);
}

/// A journal's bytes in memory.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Store for Bytes {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0 = bytes.to_vec();
        Ok(())
    }
}

/// The run directory as it would be on another machine: a copy that nobody has locked, whose controller listens elsewhere.
fn moved(world: &World, from: &str, to: &str) {
    fs::create_dir(world.path(to)).expect("can be made");
    for file in fs::read_dir(world.path(from)).expect("is there") {
        let path = file.expect("is readable").path();
        if path.is_file() && !path.ends_with("journal.lock") {
            let name = path.file_name().expect("has a name");
            fs::copy(&path, world.path(to).join(name)).expect("can be copied");
        }
    }
    let found = read(&fs::read(world.path(to).join("journal")).expect("is there")).expect("is whole");
    let elsewhere = |entry: Entry| match entry {
        Entry::Start(mut start) => {
            start.address = "127.0.0.1:0".to_owned();
            Entry::Start(start)
        }
        entry => entry,
    };
    let mut journal = Journal::new(Bytes::default(), Image::default());
    for entry in found.entries.into_iter().map(elsewhere) {
        journal.write(entry).expect("memory takes it");
    }
    fs::write(world.path(to).join("journal"), &journal.store().0).expect("is writable");
}

#[test]
fn b16_a_controller_whose_place_was_taken_is_not_listened_to() {
    let world = World::new();
    let mut former = serve(&world, "-n 2 --epochs 100 --batch-size 16 --step-ms 2 --patience 8");
    let address = |dir: &str| fs::read_to_string(world.path(dir).join("address")).expect("is there").trim().to_owned();
    let proxy = Proxy::to(&address("run"));
    ticket(&world, "a");
    let mut a = world.train(&format!("join --ticket ticket-a {} -n 2", proxy.address()), "--samples 500");
    former.says("the run starts with");
    let ranks = [0, 1].map(|rank| world.rank(rank));
    averages_go_on(&world, "run", 2);
    former.signal(Signal::STOP);
    moved(&world, "run", "elsewhere");
    let mut newer = world.flodl("serve --resume-journal elsewhere");
    newer.says("listening on");
    proxy.leads_to(&address("elsewhere"));
    newer.says("another controller goes on with the run");
    averages_go_on(&world, "elsewhere", 2);
    former.signal(Signal::CONT);
    proxy.leads_to(&address("run"));
    a.says("a controller answers whose place another one has taken");
    proxy.leads_to(&address("elsewhere"));
    averages_go_on(&world, "elsewhere", 2);
    assert_eq!([0, 1].map(|rank| world.rank(rank)), ranks, "no process is another");
    newer.exits(0);
    a.exits(0);
    kill(former);
    is_exact(&world.summary("elsewhere/summary.json"), 50_000);
    world.empties_within(Duration::from_secs(5));
}

#[test]
fn another_controller_has_the_same_outer_optimizer_and_its_momentum() {
    let world = World::new();
    let settings = "-n 2 --mode cpu-sync --epochs 40 --batch-size 16 --step-ms 2 --outer nesterov:0.7,0.3";
    let mut controller = serve(&world, settings);
    ticket(&world, "a");
    let a = world.train("join --ticket ticket-a -n 2", "--samples 500");
    controller.says("the run starts with");
    averages_go_on(&world, "run", 3);
    kill(controller);
    let mut controller = world.flodl(RESUME);
    controller.says("outer optimizer nesterov:0.7,0.3: its momentum");
    let kept = || world.path("run/outer.safetensors").exists().then_some(());
    assert!(poll(Duration::from_secs(60), kept).is_some(), "its state is written down now and then");
    kill(controller);
    let ended = world.flodl(RESUME).exits(0);
    ended.said(&["nesterov:0.7,0.3", "its momentum is that of version"]);
    a.exits(0);
    is_exact(&world.summary("run/summary.json"), 20_000);
    let (version, state) = read_outer(&world.path("run/checkpoints/latest/outer.safetensors")).expect("is in the set");
    assert!(version > 16 && state.len() > 16, "{version}");
}
