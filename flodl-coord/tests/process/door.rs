//! Crowds at the door: they come from other addresses and faster than anybody is let in, repeat what a member has said, or
//! take all descriptors. A member joins within the patience that it always has.

use crate::harness::World;
use crate::hostile::{connect, hello};
use crate::joins::{serve, ticket};
use crate::runs::is_exact;
use rustix::io::Errno;
use rustix::net;
use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// Where a flood comes from; members come from 127.0.0.1.
const ELSEWHERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Connections that a flood keeps, the newest.
const KEPT: usize = 400;

/// New connections, whether or not those before them were accepted.
struct Flood {
    over: Arc<AtomicBool>,
    crowd: JoinHandle<u32>,
}

impl Flood {
    /// So many a second, each of which says that and then nothing.
    fn begin(world: &World, rate: u32, says: &[u8]) -> Flood {
        let address = fs::read_to_string(world.path("run/address")).expect("is there");
        let address: SocketAddr = address.trim().parse().expect("an address");
        let (over, says) = (Arc::new(AtomicBool::new(false)), says.to_vec());
        let end = Arc::clone(&over);
        let crowd = spawn(move || {
            let (mut streams, mut opened, began) = (VecDeque::new(), 0, Instant::now());
            while !end.load(Ordering::Relaxed) {
                while f64::from(opened) < began.elapsed().as_secs_f64() * f64::from(rate) {
                    opened += 1;
                    let Ok(mut stream) = knock(address) else { continue };
                    // One that is not accepted yet, or closed by now, takes nothing.
                    stream.write_all(&says).ok();
                    streams.push_back(stream);
                    if streams.len() > KEPT {
                        streams.pop_front();
                    }
                }
                sleep(Duration::from_millis(2));
            }
            opened
        });
        Flood { over, crowd }
    }

    /// How many it were.
    fn end(self) -> u32 {
        self.over.store(true, Ordering::Relaxed);
        self.crowd.join().expect("does not fail")
    }
}

/// A connection from elsewhere, which is waited for by nobody.
fn knock(address: SocketAddr) -> io::Result<TcpStream> {
    let flags = net::SocketFlags::NONBLOCK | net::SocketFlags::CLOEXEC;
    let socket = net::socket_with(net::AddressFamily::INET, net::SocketType::STREAM, flags, None)?;
    net::bind(&socket, &SocketAddrV4::new(ELSEWHERE, 0))?;
    match net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}

#[test]
fn a_flood_from_another_address_keeps_nobody_out() {
    let world = World::new();
    let mut serve = serve(&world, "-n 2 --epochs 4 --batch-size 16 --step-ms 1");
    ticket(&world, "a");
    let flood = Flood::begin(&world, 2000, b"");
    serve.says("too many unfinished");
    let join = world.train("join --ticket ticket-a -n 2", "--samples 1000");
    let ended = serve.exits(0);
    join.exits(0);
    assert!(flood.end() > 2000, "all the while");
    let summary = world.summary("summary.json");
    is_exact(&summary, 4000);
    assert!(!summary.degraded, "nobody is lost");
    assert_eq!(ended.err.matches("too many unfinished").count(), 1, "one line a minute: {}", ended.err);
}

#[test]
fn what_a_member_has_said_keeps_nobody_out_where_it_is_said_again() {
    let world = World::new();
    let mut serve = serve(&world, "-n 3 --epochs 4 --batch-size 16 --step-ms 1");
    ticket(&world, "a");
    ticket(&world, "b");
    let (m1, _) = hello(&world, "a");
    let replays: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = connect(&world);
            stream.write_all(&m1).expect("is taken");
            stream
        })
        .collect();
    let flood = Flood::begin(&world, 200, &m1);
    serve.says("too many unfinished");
    let b = world.train("join --ticket ticket-b -n 1", "--samples 1000");
    serve.says("host b joined");
    let a = world.train("join --ticket ticket-a -n 2", "--samples 1000");
    let ended = serve.exits(0);
    a.exits(0);
    b.exits(0);
    assert!(flood.end() >= 200, "at the least");
    drop(replays);
    let summary = world.summary("summary.json");
    is_exact(&summary, 4000);
    assert!(!summary.degraded, "nobody is lost");
    assert_eq!(ended.err.matches("joined with rank").count(), 2, "nobody else came in: {}", ended.err);
}

#[test]
fn descriptors_that_are_held_under_good_tags_come_back_as_well() {
    let world = World::new();
    let line = "serve -n 1 --batch-size 16 --run-dir run --summary summary.json";
    let mut serve = world.flodl_with_descriptors(24, line);
    serve.says("waiting for hosts");
    let hosts = ["a", "b", "c", "d", "e"];
    hosts.iter().for_each(|host| ticket(&world, host));
    let recorded: Vec<_> = hosts[1..].iter().map(|host| hello(&world, host).0).collect();
    let held: Vec<_> = recorded
        .iter()
        .cycle()
        .take(40)
        .map(|m1| {
            let mut stream = connect(&world);
            stream.write_all(m1).expect("is taken");
            stream
        })
        .collect();
    serve.says("a connection could not be accepted");
    let join = world.train("join --ticket ticket-a -n 1", "--samples 500");
    serve.exits(0);
    join.exits(0);
    is_exact(&world.summary("summary.json"), 500);
    drop(held);
}
