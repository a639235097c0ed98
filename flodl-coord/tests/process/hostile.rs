//! Whoever does not belong: a clear line each, and the run goes on unharmed.

use crate::harness::{World, poll};
use crate::joins::{serve, ticket};
use crate::runs::is_exact;
use flodl_wire::handshake::Dialler;
use flodl_wire::secret::DialKeys;
use flodl_wire::{Channel, Hello, Role, SessionId, Ticket};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where the version range lies in a hello, and where its tag begins.
const VERSIONS: std::ops::Range<usize> = 8..12;
const TAG: usize = 104;

fn connect(world: &World) -> TcpStream {
    let address = fs::read_to_string(world.path("run/address")).expect("is there");
    let stream = TcpStream::connect(address.trim()).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("can be set");
    stream
}

/// What is answered to `bytes` until the connection ends.
fn answer(world: &World, bytes: &[u8]) -> Vec<u8> {
    let mut stream = connect(world);
    stream.write_all(bytes).expect("is taken");
    let mut answer = Vec::new();
    // A connection that is closed with unread bytes is reset, which is an end like any other.
    stream.read_to_end(&mut answer).ok();
    answer
}

fn hello(world: &World) -> ([u8; 120], Ticket) {
    let text = fs::read_to_string(world.path("ticket-a")).expect("is there");
    let ticket = Ticket::parse(&text).expect("is a ticket");
    let role = Role::Relay { rank_count: 1 };
    let hello = Hello {
        role,
        channel: Channel::Control,
        session: SessionId(0),
        run_id: ticket.run_id,
        host_id: ticket.host_id,
    };
    (*Dialler::new(hello, DialKeys::from(&ticket), [3; 32]).m1(), ticket)
}

/// Writes the ticket again with other digits in its line `name`.
fn forge(world: &World, name: &str) {
    let text = fs::read_to_string(world.path("ticket-a")).expect("is there");
    let forged = text.lines().map(|line| match line.split_once('=') {
        Some((field, value)) if field.trim() == name => {
            let digits = value.trim().chars().map(|digit| if digit == '0' { '1' } else { '0' });
            format!("{name} = {}\n", digits.collect::<String>())
        }
        _ => format!("{line}\n"),
    });
    fs::write(world.path("forged"), forged.collect::<String>()).expect("is writable");
}

#[test]
fn strangers_during_formation_do_not_harm_the_run() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --epochs 2 --batch-size 16 --step-ms 1");
    ticket(&world, "a");

    assert_eq!(answer(&world, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(4).as_slice()), b"");
    serve.says("does not speak flodl");

    let (mut m1, keys) = hello(&world);
    m1[VERSIONS].copy_from_slice(&[9, 0, 9, 0]);
    let mut mac = Hmac::<Sha256>::new_from_slice(keys.gate_key.expose()).expect("any length is right");
    mac.update(&m1[..TAG]);
    m1[TAG..].copy_from_slice(&mac.finalize().into_bytes()[..16]);
    let refusal = answer(&world, &m1);
    assert_eq!(refusal.len(), 512);
    assert!(String::from_utf8_lossy(&refusal).contains("you speak 9..=9"));
    serve.says("you speak 9..=9");

    forge(&world, "gate-key");
    let ended = world.train("join --ticket forged -n 1 --run-dir x", "").exits(1);
    ended.said(&["closed without an answer", "ticket"]);
    serve.says("gate key is not this run's");

    forge(&world, "host-key");
    world.train("join --ticket forged -n 1 --run-dir y", "").exits(1).said(&["key"]);

    let join = world.train("join --ticket ticket-a -n 2", "--samples 1000");
    serve.exits(0);
    join.exits(0);
    is_exact(&world.summary("summary.json"), 2000);
}

#[test]
fn a_hundred_silent_connections_keep_nobody_out() {
    let world = World::new();
    let serve = serve(&world, "-n 2 --epochs 2 --batch-size 16 --step-ms 1");
    ticket(&world, "a");
    let silent: Vec<_> = (0..100).map(|_| connect(&world)).collect();
    let join = world.train("join --ticket ticket-a -n 2", "--samples 1000");
    let crowded = poll(Duration::from_secs(20), || serve.err().contains("too many unfinished").then_some(()));
    assert!(crowded.is_some(), "{}", serve.err());
    let ended = serve.exits(0);
    join.exits(0);
    is_exact(&world.summary("summary.json"), 2000);
    assert_eq!(ended.err.matches("too many unfinished").count(), 1, "one line a minute: {}", ended.err);
    drop(silent);
}

/// Strangers of every kind at the door for as long as a run lasts: some silent, some sending a byte now and then, some noise,
/// some what looks like a greeting.
struct Siege {
    over: Arc<AtomicBool>,
    crowds: Vec<JoinHandle<u32>>,
}

impl Siege {
    fn lay(address: &str) -> Siege {
        let over = Arc::new(AtomicBool::new(false));
        let crowd = |number: usize, each: fn(&mut TcpStream, u32) -> bool, rest: Duration| {
            let (over, address) = (Arc::clone(&over), address.to_owned());
            std::thread::spawn(move || {
                let (mut streams, mut opened) = (Vec::new(), 0);
                while !over.load(Ordering::Relaxed) {
                    while streams.len() < number
                        && let Ok(stream) = TcpStream::connect(&address)
                    {
                        stream.set_write_timeout(Some(Duration::from_millis(100))).expect("can be set");
                        opened += 1;
                        streams.push(stream);
                    }
                    // Whoever was closed makes room for another one.
                    streams.retain_mut(|stream| each(stream, opened));
                    std::thread::sleep(rest);
                }
                opened
            })
        };
        let silent = |_: &mut TcpStream, _| true;
        let drips = |stream: &mut TcpStream, _| stream.write_all(b"f").is_ok();
        let noise = |stream: &mut TcpStream, turn: u32| stream.write_all(&[turn as u8 ^ 0xa5; 4096]).is_ok();
        let greets = |stream: &mut TcpStream, turn: u32| {
            let mut m1 = [turn as u8; 120];
            m1[..8].copy_from_slice(b"flodl-m1");
            stream.write_all(&m1).is_ok()
        };
        let rest = Duration::from_millis(100);
        let crowds =
            vec![crowd(300, silent, rest), crowd(100, drips, rest * 2), crowd(2, noise, rest), crowd(2, greets, rest)];
        Siege { over, crowds }
    }

    /// How many connections each crowd opened.
    fn lift(self) -> Vec<u32> {
        self.over.store(true, Ordering::Relaxed);
        self.crowds.into_iter().map(|crowd| crowd.join().expect("a crowd does not fail")).collect()
    }
}

#[test]
fn a_run_under_siege_loses_nobody_and_counts_exactly() {
    let world = World::new();
    let serve = serve(&world, "-n 3 --epochs 6 --batch-size 16 --step-ms 30");
    ticket(&world, "a");
    ticket(&world, "b");
    let address = fs::read_to_string(world.path("run/address")).expect("is there");
    let siege = Siege::lay(address.trim());
    let crowded = poll(Duration::from_secs(20), || serve.err().contains("too many unfinished").then_some(()));
    assert!(crowded.is_some(), "{}", serve.err());
    let a = world.train("join --ticket ticket-a -n 2", "--samples 1000");
    let b = world.train("join --ticket ticket-b -n 1", "--samples 1000");
    serve.exits(0);
    let opened = siege.lift();
    a.exits(0);
    b.exits(0);
    let summary = world.summary("summary.json");
    is_exact(&summary, 6000);
    assert!(!summary.degraded, "nobody is lost");
    assert!(opened.iter().zip([100, 50, 1, 1]).all(|(opened, least)| *opened >= least), "a siege: {opened:?}");
    world.empties_within(Duration::from_secs(5));
}

#[test]
fn a_host_with_another_model_or_dataset_is_refused() {
    for (fault, what) in [("tensors", "weight"), ("dataset", "dataset")] {
        let world = World::new();
        let serve = serve(&world, "-n 3 --epochs 2 --batch-size 16 --step-ms 1");
        ticket(&world, "a");
        ticket(&world, "b");
        let a = world.train("join --ticket ticket-a -n 2", "--samples 1000");
        let b = world.train("join --ticket ticket-b -n 1", &format!("--samples 1000 --fault {fault}"));
        serve.exits(3).said(&["is refused", what]);
        a.exits(0);
        b.ends();
        let summary = world.summary("summary.json");
        assert_eq!((summary.samples_committed, summary.digests_equal), (2000, Some(true)));
        assert_eq!((summary.degraded, summary.start.refused.len()), (true, 1));
        world.empties_within(Duration::from_secs(5));
    }
}

#[test]
fn a_controller_without_descriptors_goes_on_accepting() {
    let world = World::new();
    let line = "serve -n 1 --batch-size 16 --run-dir run --summary summary.json";
    let mut serve = world.flodl_with_descriptors(20, line);
    serve.says("waiting for hosts");
    ticket(&world, "a");
    let silent: Vec<_> = (0..40).map(|_| connect(&world)).collect();
    serve.says("a connection could not be accepted");
    let join = world.train("join --ticket ticket-a -n 1", "--samples 500");
    serve.exits(0);
    join.exits(0);
    is_exact(&world.summary("summary.json"), 500);
    drop(silent);
}

#[test]
fn run_takes_no_other_hosts() {
    let world = World::new();
    let line = "run -n 1 --epochs 40 --batch-size 16 --step-ms 2 --run-dir run --summary summary.json";
    let mut run = world.train(line, "--samples 400");
    run.says("listening on");
    ticket(&world, "a");
    world.train("join --ticket ticket-a -n 1", "").exits(1).said(&["flodl serve"]);
    run.exits(0);
    is_exact(&world.summary("summary.json"), 16_000);
}
