//! Command lines, files and folders that are not as they must be: a sentence that says what to do.

use crate::harness::World;
use std::fs;

#[test]
fn bad_arguments_are_usage_errors() {
    let world = World::new();
    fs::create_dir(world.path("full")).expect("can be made");
    fs::write(world.path("full/file"), "x").expect("can be written");
    let cases = [
        ("run", "--ranks"),
        ("run -n 2", "PROGRAM"),
        ("run -n 0 -- true", "1..=65536"),
        ("run -n two -- true", "invalid digit"),
        ("run -n 2 --slow 2=2 -- true", "ranks are 0..=1"),
        ("run -n 2 --slow 1=0.5 -- true", "within 1..=1000"),
        ("run -n 2 --slow 1=2 --slow 1=3 -- true", "twice"),
        ("run -n 2 --slow 1 -- true", "RANK=FACTOR"),
        ("run -n 2 --mode nccl-async -- true", "nccl-cadence"),
        ("run -n 2 --mode fast -- true", "cpu-cadence"),
        ("run -n 2 --min-ranks 3 -- true", "--min-ranks 3"),
        ("run -n 2 --patience 0.01 -- true", "--patience"),
        ("run -n 2 --epochs 0 -- true", "--epochs"),
        ("run -n 2 --run-dir full -- true", "not empty"),
        ("run -n 2 --run-dir full/file -- true", "not a folder"),
        ("run -n 2 --what -- true", "--what"),
        ("serve", "--ranks"),
        ("ticket", "HOST"),
        ("ticket a/b", "letters"),
        ("join -n 1 -- true", "--ticket"),
        ("walk", "walk"),
    ];
    for (line, part) in cases {
        let ended = world.flodl(line).exits(2);
        assert!(ended.err.contains(part), "{line}: {}", ended.err);
    }
}

#[test]
fn help_is_no_error() {
    let world = World::new();
    let ended = world.flodl("run --help").exits(0);
    assert!(ended.out.contains("Emulation: stretch each step"), "{}", ended.out);
    assert!(world.flodl("--help").exits(0).out.contains("serve"));
    assert!(!world.flodl("--help").exits(0).out.contains("guard"), "is not for people");
    world.flodl("--version").exits(0);
}

#[test]
fn what_is_missing_is_named() {
    let world = World::new();
    fs::write(world.path("ticket-bad"), "no ticket\n").expect("can be written");
    let cases = [
        ("run -n 1 --run-dir /proc/run -- true", &["/proc/run", "--run-dir"][..]),
        ("serve -n 1 --listen nowhere", &["nowhere", "HOST:PORT"]),
        ("serve -n 1 --listen 192.0.2.1:0", &["192.0.2.1"]),
        ("ticket a", &["--run-dir"]),
        ("ticket a --run-dir none", &["secret is not there", "--run-dir"]),
        ("join --ticket none -n 1 -- true", &["none", "not there"]),
        ("join --ticket ticket-bad -n 1 -- true", &["not a ticket"]),
    ];
    for (line, parts) in cases {
        world.flodl(line).exits(1).said(parts);
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let world = World::new();
    world.flodl("run -n 2 --run-dir run -- ./no-such-trainer").exits(1).said(&["no-such-trainer"]);
    world.empties_within(std::time::Duration::from_secs(5));
}

#[test]
fn sinks_that_fail_do_not_harm_the_run() {
    let world = World::new();
    let ended = world.train("run -n 1 --run-dir run --summary /proc/none/summary.json", "--samples 100").exits(0);
    ended.said(&["/proc/none/summary.json", "cannot be written"]);
    assert!(world.path("run/summary.json").exists());
}
