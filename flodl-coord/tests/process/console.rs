//! What people see while a run goes on: a bar on a terminal, plain lines elsewhere, the lines of ranks with their prefix.

use crate::harness::{World, signal};
use crate::screen::Screen;
use std::fs;
use std::time::{Duration, Instant};

/// A rank that says a few odd things, and then trains.
fn talkative(more: &str) -> String {
    format!(
        "#!/bin/sh\nprintf 'hello from %s\\n' \"$FLODL_RANK\"\nprintf '\\033[31mred\\033[0m \\377 \\007\\n' >&2\n{more}\nexec \"$@\"\n"
    )
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

#[test]
fn a_pipe_gets_plain_lines() {
    let world = World::new();
    world.script("talk", &talkative("printf 'no end'"));
    let run = "run -n 2 --epochs 3 --batch-size 16 --step-ms 1 --run-dir run";
    let ended = world.train_by("talk", run, "--samples 1000").exits(0);
    assert!(!ended.err.contains(|c: char| c.is_control() && c != '\n'), "{:?}", ended.err);
    for rank in ["rank 0 | ", "rank 1 | "] {
        let number = &rank[5..6];
        let lines: Vec<&str> = ended.err.lines().filter_map(|line| line.strip_prefix(rank)).collect();
        assert_eq!(lines[..2], [&format!("hello from {number}"), "red \u{fffd} \u{fffd}"], "{}", ended.err);
        assert!(lines[2].starts_with("no end"), "{lines:?}");
        let log = fs::read(world.path(format!("run/rank{number}.log"))).expect("is there");
        let unchanged = format!("hello from {number}\n\x1b[31mred\x1b[0m ").into_bytes();
        assert!(log.starts_with(&[&unchanged, &b"\xff \x07\nno end"[..]].concat()), "{log:?}");
    }
    let of_flodl = |line: &&str| line.starts_with("flodl: ");
    assert_eq!(ended.err.lines().filter(of_flodl).count() + count(&ended.err, " | "), ended.err.lines().count());
    for epoch in ["epoch 1/3 done in ", "epoch 2/3 done in ", "epoch 3/3 done in "] {
        ended.said(&["flodl: ", epoch, "mean loss ", " samples/s", " of the ceiling so far"]);
    }
}

#[test]
fn what_is_shown_can_be_chosen() {
    let world = World::new();
    world.script("talk", &talkative(""));
    let run = |more: &str| format!("run -n 1 --epochs 2 --run-dir {more}");
    let train = |more: &str| world.train_by("talk", &run(more), "--samples 200").exits(0);
    let ended = train("a --rank-output none");
    assert!(!ended.err.contains("hello") && ended.err.contains("epoch 2/2 done"), "{}", ended.err);
    assert!(fs::read_to_string(world.path("a/rank0.log")).is_err(), "the log has bytes that are not UTF-8");
    let ended = train("b --quiet");
    assert!(ended.err.is_empty() && ended.out.contains("saved: "), "{}\n{}", ended.out, ended.err);
    let ended = train("c --color always");
    assert!(ended.err.contains("\x1b[36mrank 0 |\x1b[0m hello from 0\n"), "{:?}", ended.err);
    let failed = world.flodl("run -n 1 --quiet --run-dir d -- /no/such/trainer").exits(1);
    failed.said(&["/no/such/trainer"]);
}

#[test]
fn a_flood_is_counted_and_harms_nobody() {
    let world = World::new();
    let lines = 300_000;
    let flood =
        format!("if [ \"$FLODL_RANK\" = 0 ]; then yes flood | head -n {lines}; else head -c 50000000 /dev/zero; fi");
    world.script("talk", &talkative(&flood));
    let run = "run -n 2 --epochs 2 --batch-size 16 --step-ms 1 --run-dir run";
    let start = Instant::now();
    let ended = world.train_by("talk", run, "--samples 1000").exits(0);
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(ended.err.len() < 200_000, "{} bytes are too many for anybody to read", ended.err.len());
    ended.said(&["rank 0 | (", " lines left out here; rank0.log has them)"]);
    ended.said(&["rank 1 | ", " ... (cut here, ", "bytes more in rank1.log)"]);
    let log = fs::read(world.path("run/rank0.log")).expect("is there");
    assert_eq!(log.split(|&byte| byte == b'\n').filter(|line| *line == b"flood").count(), lines, "the log is complete");
    let log = fs::metadata(world.path("run/rank1.log")).expect("is there");
    assert!(log.len() > 50_000_000, "{}", log.len());
}

#[test]
fn a_terminal_has_a_bar_that_is_taken_away() {
    for columns in [120, 40] {
        let world = World::new();
        world.script("talk", &talkative(""));
        let run = "run -n 2 --epochs 3 --batch-size 16 --step-ms 4 --run-dir run";
        let Some(mut terminal) = world.train_on_terminal(columns, "talk", run, "--samples 4000") else { return };
        terminal.shows("eta 0:");
        let screen = Screen::of(columns, &terminal.bytes());
        let bar = screen.rows().last().cloned().expect("has rows");
        assert!(bar.contains("epoch ") && bar.contains("eta "), "{bar:?}");
        assert_eq!(screen.rows().iter().filter(|row| row.contains("eta ")).count(), 1, "one bar: {:#?}", screen.rows());
        // A rank that dies is told above the bar.
        signal(world.rank(1).expect("trains"), rustix::process::Signal::KILL);
        let status = terminal.ends();
        assert_eq!(status.code(), Some(3));
        let bytes = terminal.bytes();
        let screen = Screen::of(columns, &bytes);
        let all = screen.text();
        assert!(!all.contains("eta ") && !all.contains("[=") && !all.contains('\u{1b}'), "{all}");
        assert!(all.contains("rank 1 died") && all.contains("rank 0 | hello from 0"), "{all}");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("\x1b[35mrank 1 |\x1b[0m hello from 1"), "{text:?}");
        assert!(text.contains("\x1b[1;31mflodl:\x1b[0m rank 1 died"), "{text:?}");
    }
}

#[test]
fn an_interrupted_run_leaves_a_tidy_terminal() {
    let world = World::new();
    world.script("talk", &talkative(""));
    let run = "run -n 1 --epochs 1000 --batch-size 16 --step-ms 4 --run-dir run";
    let Some(mut terminal) = world.train_on_terminal(80, "talk", run, "--samples 4000") else { return };
    terminal.shows("eta ");
    terminal.resize(50);
    terminal.interrupt();
    assert_eq!(terminal.ends().code(), Some(4));
    let screen = Screen::of(80, &terminal.bytes());
    assert!(!screen.text().contains("eta ") && screen.text().contains("saved version"), "{}", screen.text());
    assert_eq!(screen.rows().last().map(String::as_str), Some(""), "the cursor is on a row of its own");
}

#[test]
fn a_terminal_that_takes_nothing_does_not_stop_the_run() {
    let world = World::new();
    // More than the buffer of any terminal holds.
    world.script("talk", &talkative("yes $(head -c 600 /dev/zero | tr '\\0' x) | head -n 20000"));
    let run = "run -n 1 --epochs 2 --batch-size 16 --run-dir run --summary summary.json";
    let Some(mut terminal) = world.train_on_terminal(80, "talk", run, "--samples 1000") else { return };
    terminal.stop_reading();
    assert_eq!(terminal.ends().code(), Some(0));
    assert_eq!(world.summary("summary.json").samples_committed, 2000);
    assert!(!String::from_utf8_lossy(&terminal.bytes()).contains("saved version"), "it has taken everything");
}

#[test]
fn joined_hosts_show_their_own_ranks() {
    let world = World::new();
    world.script("talk", &talkative(""));
    let mut controller = world.flodl("serve -n 1 --run-dir run --epochs 2");
    controller.says("flodl ticket HOST");
    world.flodl("ticket box --run-dir run").exits(0);
    let join = "join --ticket ticket-box -n 1 --run-dir box";
    let joined = world.train_by("talk", join, "--samples 200").exits(0);
    joined.said(&["rank 0 | hello from 0"]).said(&["what this host's ranks write is in", "box/rank<k>.log"]);
    let ended = controller.exits(0);
    ended.said(&["host box joined with rank 0; what they write is shown and logged on that host"]);
    assert!(!ended.err.contains("hello"), "{}", ended.err);
}
