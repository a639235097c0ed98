//! Besieges a controller, to see that a run does not mind: strangers of every kind at its door, until the standard input
//! ends. It prints a line once everybody is there, and in the end how many connections each crowd has opened.
//!
//! ```text
//! siege ADDRESS < /dev/tty
//! ```
//!
//! For one's own controller only: `cargo xtask bench siege` and a test of processes do that.

#![expect(clippy::disallowed_methods, reason = "a crowd rests between two rounds")]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Descriptors for all crowds at once.
const DESCRIPTORS: u64 = 2048;
/// Who is not let in by then tries again, and not ever more rarely as the system would.
const PATIENCE: Duration = Duration::from_millis(300);

/// A crowd of strangers that do the same.
struct Crowd {
    name: &'static str,
    /// Connections at a time.
    number: usize,
    /// Between two rounds over all of them.
    rest: Duration,
    /// Does it on one connection, `turn` tells them apart. Whether that is still open.
    act: fn(&mut TcpStream, u32) -> bool,
}

const CROWDS: [Crowd; 4] = [
    Crowd { name: "silent", number: 1000, rest: Duration::from_millis(100), act: |_, _| true },
    Crowd { name: "dripping", number: 200, rest: Duration::from_millis(200), act: |to, _| to.write_all(b"f").is_ok() },
    Crowd { name: "noisy", number: 4, rest: Duration::from_millis(50), act: noise },
    Crowd { name: "greeting", number: 4, rest: Duration::from_millis(50), act: greet },
];

fn noise(to: &mut TcpStream, turn: u32) -> bool {
    to.write_all(&[turn as u8 ^ 0xa5; 4096]).is_ok()
}

/// What looks like a greeting: the right first bytes, of the right length.
fn greet(to: &mut TcpStream, turn: u32) -> bool {
    let mut m1 = [turn as u8; 120];
    m1[..8].copy_from_slice(b"flodl-m1");
    to.write_all(&m1).is_ok()
}

/// Keeps a crowd at the door until it is over, and says when it is there. How many connections that took.
fn besiege(address: SocketAddr, crowd: &Crowd, (there, over): (Sender<()>, &AtomicBool)) -> u32 {
    let (mut streams, mut opened) = (Vec::new(), 0);
    while !over.load(Ordering::Relaxed) {
        while streams.len() < crowd.number
            && !over.load(Ordering::Relaxed)
            && let Ok(stream) = TcpStream::connect_timeout(&address, PATIENCE)
            && stream.set_write_timeout(Some(Duration::from_millis(100))).is_ok()
        {
            opened += 1;
            streams.push(stream);
        }
        if opened as usize >= crowd.number {
            // Once is enough; nobody listens afterwards.
            there.send(()).ok();
        }
        // Whoever was closed makes room for another one.
        streams.retain_mut(|stream| (crowd.act)(stream, opened));
        std::thread::sleep(crowd.rest);
    }
    opened
}

#[expect(clippy::print_stdout, reason = "a program talks to its user")]
fn main() -> Result<(), Box<dyn Error>> {
    let usage = "usage: siege ADDRESS:PORT (until the standard input ends)";
    let address: SocketAddr = std::env::args().nth(1).ok_or(usage)?.parse().map_err(|_| usage)?;
    let most = getrlimit(Resource::Nofile);
    let current = most.maximum.map_or(DESCRIPTORS, |maximum| maximum.min(DESCRIPTORS));
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: most.maximum })?;
    let over = Arc::new(AtomicBool::new(false));
    let (mut signs, mut crowds) = (Vec::new(), Vec::new());
    for crowd in &CROWDS {
        let (there, sign) = channel();
        let over = Arc::clone(&over);
        signs.push(sign);
        crowds.push((crowd.name, std::thread::spawn(move || besiege(address, crowd, (there, &over)))));
    }
    let lifted = {
        let over = Arc::clone(&over);
        std::thread::spawn(move || {
            let read = std::io::stdin().read_to_end(&mut Vec::new());
            over.store(true, Ordering::Relaxed);
            read.map(|_| ())
        })
    };
    // A crowd that goes before it was there says nothing.
    if signs.into_iter().all(|sign| sign.recv().is_ok()) {
        println!("besieged");
    }
    lifted.join().map_err(|_| "the standard input cannot be read")??;
    for (name, crowd) in crowds {
        println!("{name} {}", crowd.join().map_err(|_| "a crowd failed")?);
    }
    Ok(())
}
