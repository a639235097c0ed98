//! Whoever does not belong: a clear line each, and the run goes on unharmed.

use crate::harness::{World, example, poll};
use crate::joins::{serve, ticket};
use crate::losses::commits;
use crate::runs::is_exact;
use async_io::Timer;
use flodl_relay::shell::dial;
use flodl_wire::frame::Frame;
use flodl_wire::handshake::Dialler;
use flodl_wire::message::HostReport;
use flodl_wire::secret::DialKeys;
use flodl_wire::{Capabilities, Channel, Hello, Role, SessionId, Ticket};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// What a controller of a small run may take of memory, in kB, whoever is at its door.
const SIEGED_MAX: u64 = 64 << 10;
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
        capabilities: Capabilities::ALL,
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

/// The example `siege`, at work.
struct Siege {
    strangers: Child,
    said: BufReader<ChildStdout>,
}

impl Siege {
    fn lay(world: &World) -> Siege {
        let address = fs::read_to_string(world.path("run/address")).expect("is there");
        let mut command = Command::new(example("siege"));
        command.arg(address.trim()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut strangers = command.spawn().expect("can be started");
        let mut said = BufReader::new(strangers.stdout.take().expect("is piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("can be read");
        assert_eq!(line, "besieged\n", "1,000 silent connections and the others");
        Siege { strangers, said }
    }

    /// How many connections each crowd opened.
    fn lift(mut self) -> Vec<(String, u32)> {
        drop(self.strangers.stdin.take());
        let mut said = String::new();
        self.said.read_to_string(&mut said).expect("can be read");
        assert!(self.strangers.wait().expect("ends").success());
        let crowd = |line: &str| {
            line.split_once(' ').map(|(name, opened)| (name.to_owned(), opened.parse().expect("a number")))
        };
        said.lines().filter_map(crowd).collect()
    }
}

#[test]
fn a_run_under_siege_loses_nobody_and_counts_exactly() {
    let world = World::new();
    let mut serve = serve(&world, "-n 3 --epochs 6 --batch-size 16 --step-ms 30");
    ticket(&world, "a");
    ticket(&world, "b");
    let siege = Siege::lay(&world);
    let crowded = poll(Duration::from_secs(20), || serve.err().contains("too many unfinished").then_some(()));
    assert!(crowded.is_some(), "{}", serve.err());
    let a = world.train("join --ticket ticket-a -n 2", "--samples 1000");
    let b = world.train("join --ticket ticket-b -n 1", "--samples 1000");
    let largest = serve.most_memory();
    serve.exits(0);
    let opened = siege.lift();
    a.exits(0);
    b.exits(0);
    let summary = world.summary("summary.json");
    is_exact(&summary, 6000);
    assert!(!summary.degraded, "nobody is lost");
    let least = [("silent", 1000), ("dripping", 200), ("noisy", 4), ("greeting", 4)];
    assert!(
        least.iter().all(|(name, least)| opened.iter().any(|(crowd, n)| crowd == name && n >= least)),
        "{opened:?}"
    );
    assert!(largest < SIEGED_MAX, "the controller grew to {largest} kB");
    world.empties_within(Duration::from_secs(5));
}

/// A member that is let in, says that it lives, and reads nothing of what it is told.
#[test]
fn a_member_that_stops_reading_holds_up_nobody() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --epochs 300 --batch-size 16 --step-ms 1");
    ticket(&world, "a");
    ticket(&world, "deaf");
    let a = world.train("join --ticket ticket-a -n 2", "--samples 1000");
    commits(&world, 1);
    let keys = Ticket::parse(&fs::read_to_string(world.path("ticket-deaf")).expect("is there")).expect("is a ticket");
    let (over, until) = async_channel::bounded::<()>(1);
    let deaf = std::thread::spawn(move || {
        smol::block_on(async {
            let upstream = dial(&keys.address, &keys, 1, Duration::from_secs(10)).await.expect("it is let in");
            let (_unread, mut writer) = upstream.control.split();
            let _unread_data = upstream.data;
            let mut said = 0;
            let talks = async {
                while writer.send(&Frame::host_report(&HostReport::Heartbeat).expect("short")).await.is_ok()
                    && writer.flush().await.is_ok()
                {
                    said += 1;
                    Timer::after(Duration::from_millis(100)).await;
                }
            };
            let stops = async {
                until.recv().await.ok();
            };
            futures_lite::future::or(talks, stops).await;
            said
        })
    });
    let largest = serve.most_memory();
    serve.exits(0);
    a.exits(0);
    drop(over);
    assert!(deaf.join().expect("does not fail") > 3, "it lived while the run went on");
    is_exact(&world.summary("summary.json"), 300_000);
    assert!(largest < SIEGED_MAX, "the controller grew to {largest} kB");
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
